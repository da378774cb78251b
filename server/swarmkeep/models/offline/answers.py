"""Finding a function's arguments in what was said; nothing is made up unless a call is forced."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

import msgspec

from swarmkeep.events.messages import HEADING as FILES_HEADING
from swarmkeep.models.offline import words as patterns
from swarmkeep.models.offline.words import (
    CHAT_WORDS,
    SYNONYMS,
    Parameter,
    SourceText,
    agrees,
    choose_kind,
    choose_type,
    find_stem,
    find_stems,
    is_small_talk,
    iterate_parameters,
    list_choices,
    make_word_set,
    refuses,
    resolve_schema,
    spell_out,
    split_words,
    weigh_stem,
)

MAX_OBJECT_DEPTH = 3
# Of one function: to look for each takes up to some milliseconds, and references can make millions of a few.
MAX_PARAMETERS = 100
# Of one parameter.
MAX_CHOICES = 300
MAX_ANSWER_WORDS = 8

_PATTERNS: dict[str, tuple[re.Pattern[str], ...]] = {
    "email": (patterns.EMAIL,),
    "phone": (patterns.PHONE,),
    "url": (patterns.URL,),
    "id": (patterns.ID,),
    "date": (patterns.DATE,),
    "iso_date": (patterns.ISO_DATE,),
    "place": patterns.PLACES,
    "name": (patterns.NAME,),
    "body": (patterns.SAID_TEXT,),
    "subject": (patterns.SUBJECT,),
    "reason": (patterns.REASON,),
    "text": (),
}
# What an older message said is only taken up where it can hardly be something else.
_LASTING_KINDS = frozenset({"email", "phone", "url", "id", "date", "iso_date", "name"})
_FREE_TEXT_KINDS = frozenset({"text", "body", "subject", "reason"})
_ANY_SHAPE_KINDS = frozenset(_PATTERNS) - {"email", "url", "iso_date"}
_UNSPOKEN_WORDS = make_word_set(
    "id ids number numbers no code codes ref reference name is has include with want should use"
)
_LINK_PATTERN = r"(?:[\s_-]*\b(?:ids?|numbers?|no|nr|code|ref|reference|is|was|of|the|to|as)\b)*[\s_:=#.'\"-]*?"


@dataclass
class ArgumentSources:
    """The texts to find values in, the newest first; values are taken out of them as they are used."""

    latest: SourceText
    earlier: list[SourceText] = field(default_factory=list)
    instructions: SourceText = field(default_factory=lambda: SourceText(""))
    is_answer: bool = False  # the last message answers a question for missing arguments
    request: str = ""  # the words that asked for the call
    parameters_left: int = MAX_PARAMETERS

    def take_parameters(self, schema: dict[str, Any], root: dict[str, Any]) -> list[Parameter]:
        """The parameters of an object, as many as are looked at."""
        taken = list(islice(iterate_parameters(schema, root), self.parameters_left))
        self.parameters_left -= len(taken)
        return taken


def find_arguments(
    schema: dict[str, Any], sources: ArgumentSources, *, force: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """The arguments found for a parameters schema, and the names of required ones that were not.

    With `force`, nothing is missing: the user's words, zero or false stand in.
    """
    values, missing = _fill_object(resolve_schema(schema, schema), schema, sources, 1)
    if sources.is_answer and missing:
        _take_short_answer(values, missing, sources)
    if force:
        for parameter in missing:
            values[parameter.name] = _make_stand_in(parameter, schema, sources, 1)
        missing = []
    return values, [parameter.spoken_name for parameter in missing]


def _fill_object(
    schema: dict[str, Any], root: dict[str, Any], sources: ArgumentSources, depth: int
) -> tuple[dict[str, Any], list[Parameter]]:
    parameters = sources.take_parameters(schema, root)
    found: dict[str, Any] = {}
    # What is said by name comes first for all of them, so that "item 3 for user 1" fits whichever way it is declared.
    for look in (
        _find_named_now,
        _recognise_now,
        _find_named_before,
        _take_first_number,
        _recognise_before,
        _take_free_text,
    ):
        for parameter in parameters:
            if parameter.name not in found and (value := look(parameter, sources)) is not None:
                found[parameter.name] = value
    missing: list[Parameter] = []
    for parameter in parameters:
        if parameter.name in found:
            continue
        if parameter.kind == "object" and parameter.required and depth < MAX_OBJECT_DEPTH:
            found[parameter.name], inner = _fill_object(parameter.schema, root, sources, depth + 1)
            missing += inner if not inner else [parameter]
        elif parameter.kind == "array" and (items := _take_several(parameter, root, sources)):
            found[parameter.name] = items
        elif parameter.required:
            missing.append(parameter)
    return {p.name: found[p.name] for p in parameters if p.name in found}, missing


def _make_phrase_pattern(parameter: Parameter) -> str:
    words = [
        word for word in parameter.spoken_name.split() if word not in _UNSPOKEN_WORDS
    ] or parameter.spoken_name.split()
    return r"[\s_-]+".join(re.escape(word.removesuffix("s")) + "s?" for word in words)


def _find_named_now(parameter: Parameter, sources: ArgumentSources) -> Any:
    return _find_named(parameter, [sources.latest])


def _find_named_before(parameter: Parameter, sources: ArgumentSources) -> Any:
    return _find_named(parameter, [*sources.earlier, sources.instructions]) if parameter.required else None


def _find_named(parameter: Parameter, materials: list[SourceText]) -> Any:
    """A value that stands beside the parameter's own name: "order 12", "subject: hello", "3 nights"."""
    phrase = _make_phrase_pattern(parameter)
    wanted: list[str] = []
    if parameter.kind == "id":
        start = re.escape(parameter.spoken_name[:3])
        wanted = [rf"\b({start}[a-z]*[_-]?\d[\w-]*)", rf"\b{phrase}{_LINK_PATTERN}(\w*\d[\w-]*)"]
    elif parameter.kind == "number":
        wanted = [
            rf"\b{phrase}{_LINK_PATTERN}(?<![\d.])(-?\d+(?:\.\d+)?)(?![\w/-]|[.:]\d)",
            rf"(?<![\w.-])(\d+(?:\.\d+)?)\s+{phrase}\b",
        ]
    elif parameter.kind in _PATTERNS and parameter.kind not in ("email", "iso_date"):
        wanted = [rf"\b{phrase}\s*(?::|=|\bis\b|\bshould be\b)\s*[\"'“]?([^\s\"'“”.,;!?][^\"“”.,;!?\n]*)"]
    for material in materials:
        for pattern in wanted:
            if value := material.take_first(re.compile(pattern, re.IGNORECASE)):
                return _parse_number(value, parameter) if parameter.kind == "number" else value
    return None


def _recognise_now(parameter: Parameter, sources: ArgumentSources) -> Any:
    """A value known by how it looks, or by being one of the choices."""
    match parameter.kind:
        case "const":
            return parameter.schema["const"] if parameter.required else None
        case "choice":
            return _find_choice(parameter, sources)
        case "boolean":
            return _find_boolean(parameter, sources)
        case "id" if not parameter.required:
            return None
        case "place":
            looks = _choose_place_patterns(parameter)
        case _:
            looks = _PATTERNS.get(parameter.kind, ())
    value = sources.latest.take_first(*looks)
    return value.strip("\"'“”") if value else None


def _recognise_before(parameter: Parameter, sources: ArgumentSources) -> str | None:
    if not parameter.required or parameter.kind not in _LASTING_KINDS:
        return None
    looks = _PATTERNS[parameter.kind]
    return next((value for material in sources.earlier if (value := material.take_first(*looks))), None)


def _choose_place_patterns(parameter: Parameter) -> tuple[re.Pattern[str], ...]:
    words = set(parameter.spoken_name.split())
    if words & {"destination", "to", "arrival"}:
        return (patterns.DESTINATION, *patterns.PLACES)
    if words & {"origin", "from", "departure"}:
        return (patterns.ORIGIN,)
    return patterns.PLACES if parameter.required else patterns.PLACES[:1]


def _find_choices(parameter: Parameter, text: str) -> list[Any]:
    said = {find_stem(word) for word in split_words(text)}
    values = sorted(parameter.schema["enum"][:MAX_CHOICES], key=lambda value: -len(str(value)))
    return [
        value for value in values if (words := split_words(str(value))) and {find_stem(word) for word in words} <= said
    ]


def _find_choice(parameter: Parameter, sources: ArgumentSources) -> Any:
    texts = [sources.latest.whole, *(material.whole for material in sources.earlier)]
    for text in texts if parameter.required else texts[:1]:
        if values := _find_choices(parameter, text):
            return values[0]
    return None


def _find_boolean(parameter: Parameter, sources: ArgumentSources) -> bool | None:
    text = sources.latest.whole
    if sources.is_answer and parameter.required and (agrees(text) or refuses(text)):
        return agrees(text)
    words = {find_stem(word) for word in parameter.spoken_name.split() if word not in _UNSPOKEN_WORDS}
    if not words or not words <= find_stems(text):
        return None
    return not re.search(
        rf"\b(?:no|not|without|never|n't|don't)\s+(?:\w+\s+){{0,2}}{_make_phrase_pattern(parameter)}", text.lower()
    )


def _parse_number(value: str, parameter: Parameter) -> int | float | None:
    number = float(value.replace(",", ""))
    if number.is_integer():
        return int(number)
    return None if choose_type(parameter.schema) == "integer" else number


def _take_first_number(parameter: Parameter, sources: ArgumentSources) -> int | float | str | None:
    """Any number at all, where one is needed."""
    if not parameter.required or parameter.kind not in ("number", "id"):
        return None
    if value := sources.latest.take_first(patterns.NUMBER):
        return value if parameter.kind == "id" else _parse_number(value, parameter)
    if parameter.kind == "number" and (value := sources.latest.take_first(patterns.NUMBER_WORD)):
        return patterns.NUMBER_WORDS[value.lower()]
    return None


def _take_free_text(parameter: Parameter, sources: ArgumentSources) -> str | None:
    """For free text: what stands in quotes, or else the words that asked for the call."""
    if not parameter.required or parameter.kind not in (*_FREE_TEXT_KINDS, "name", "place"):
        return None
    if value := sources.latest.take_first(patterns.QUOTED):
        return value
    return sources.request.strip() or None if parameter.kind in _FREE_TEXT_KINDS else None


def _take_several(parameter: Parameter, root: dict[str, Any], sources: ArgumentSources) -> list[Any]:
    items = resolve_schema(parameter.schema.get("items"), root)
    kind = choose_kind(parameter.name, items)
    if kind == "choice":
        return _find_choices(Parameter(parameter.name, kind, items, True), sources.latest.whole)
    if not parameter.required:
        return []
    one = Parameter(parameter.name, kind, items, True)
    if kind == "number":
        numbers = (_parse_number(value, one) for value in sources.latest.take_all(patterns.NUMBER))
        return [number for number in numbers if number is not None]
    for look in (*_PATTERNS.get(kind, ()), *((patterns.NUMBER,) if kind == "id" else ()), patterns.QUOTED):
        if values := sources.latest.take_all(look):
            return values
    return [sources.request] if kind in _FREE_TEXT_KINDS and sources.request else []


def _take_short_answer(values: dict[str, Any], missing: list[Parameter], sources: ArgumentSources) -> None:
    """Take a short answer as it stands: for the one text that was asked for, or part by part for several."""
    answer = patterns.strip_answer(sources.latest.remaining)
    if not answer or refuses(sources.latest.whole) or all(word in CHAT_WORDS for word in split_words(answer)):
        return
    parts = [part for part in re.split(r"\s*[,;\n]\s*|\s+and\s+", answer) if part] if len(missing) > 1 else [answer]
    for parameter, part in zip(list(missing), parts, strict=False):
        if parameter.kind in _ANY_SHAPE_KINDS and len(part.split()) <= MAX_ANSWER_WORDS:
            values[parameter.name] = part
            missing.remove(parameter)


def _make_stand_in(parameter: Parameter, root: dict[str, Any], sources: ArgumentSources, depth: int) -> Any:
    match parameter.kind:
        case "choice":
            return parameter.schema["enum"][0]
        case "number":
            return 0
        case "boolean":
            return False
        case "iso_date":
            return "1970-01-01"
        case "array":
            return []
        case "const":
            return parameter.schema["const"]
        case "object":
            inner = sources.take_parameters(parameter.schema, root) if depth < MAX_OBJECT_DEPTH else ()
            return {one.name: _make_stand_in(one, root, sources, depth + 1) for one in inner if one.required}
    return sources.request.strip() or "unknown"


# Reads a request for the offline model: the last user message, what came of it, and the tools.

# Enough to understand a person; a pasted book would only cost time.
MAX_TEXT_CHARACTERS = 4000
MAX_EARLIER_MESSAGES = 40
MAX_EARLIER_TEXTS = 8

_HANDOFF_WORDS = frozenset(find_stems("transfer handoff handover escalate reroute"))
_ELSEWHERE = find_stems("handled different another outside other else triage back topic")


@dataclass(frozen=True)
class OfferedTool:
    """A function on offer, with the words it can be known by."""

    name: str
    description: str
    parameters: dict[str, Any]

    @cached_property
    def spoken_name(self) -> str:
        return spell_out(self.name)

    @cached_property
    def name_stems(self) -> frozenset[str]:
        return find_stems(self.name)

    @cached_property
    def other_stems(self) -> frozenset[str]:
        properties = self.parameters.get("properties")
        texts = [self.description]
        for name, schema in properties.items() if isinstance(properties, dict) else ():
            texts.append(name)
            if isinstance(schema, dict):
                texts += [str(value) for value in list_choices(schema)]
                texts.append(str(schema.get("description") or ""))
        return find_stems(" ".join(texts)[:MAX_TEXT_CHARACTERS])

    @property
    def is_handoff(self) -> bool:
        """True if it looks like a handoff, by its name: `transfer_to_sales`, `escalate_to_agent`, `handoff`."""
        return bool(self.name_stems & _HANDOFF_WORDS) or self.spoken_name.startswith(("hand off", "hand over"))

    @property
    def is_way_out(self) -> bool:
        """True if it is a handoff for a question that the present agent has no answer to."""
        words = self.name_stems | find_stems(self.description)
        return self.is_handoff and len(words & _ELSEWHERE) >= 2


@dataclass(frozen=True)
class CallResult:
    """A call made since the last user message, and what came back."""

    name: str
    arguments: str
    content: str

    @cached_property
    def handoff_agent(self) -> str | None:
        """The agent's name, if the result is that of a handoff."""
        if not self.content.startswith("{"):
            return None
        try:
            value = msgspec.json.decode(self.content)
        except (msgspec.DecodeError, RecursionError):
            return None
        match value:
            case {"assistant": str(agent)} if len(value) == 1:
                return agent
        return None


@dataclass(frozen=True)
class Turn:
    """The tail of a conversation, as one question with its circumstances."""

    instructions: str
    text: str  # the last user message
    earlier_texts: tuple[str, ...]  # user messages before it, newest first
    last_reply: str  # what the assistant said just before it
    results: tuple[CallResult, ...]  # since it, oldest first
    unseen_results: tuple[CallResult, ...]  # those no model has seen yet
    assistant_has_spoken: bool  # whether the assistant has said anything at all yet
    tools: tuple[OfferedTool, ...]

    @property
    def handoff_agent(self) -> str | None:
        """The agent that has just taken over for this user message; it has not spoken yet."""
        names = [result.handoff_agent for result in self.unseen_results if result.handoff_agent]
        return names[-1] if names else None

    @property
    def was_handed_over(self) -> bool:
        return any(result.handoff_agent for result in self.results)


def read_turn(body: dict[str, Any]) -> Turn:
    """The turn a valid request asks for."""
    messages: list[dict[str, Any]] = body["messages"]
    last_user = next((i for i in range(len(messages) - 1, -1, -1) if _is_said(messages[i])), -1)
    results, fresh = _collect_results(messages[last_user + 1 :])
    asked, earlier = _collect_before(messages[max(0, last_user - MAX_EARLIER_MESSAGES) : max(0, last_user)])
    return Turn(
        instructions=_find_instructions(messages),
        text=read_text(messages[last_user]) if last_user >= 0 else "",
        earlier_texts=earlier,
        last_reply=asked,
        results=results,
        unseen_results=fresh,
        assistant_has_spoken=any(message["role"] == "assistant" and message.get("content") for message in messages),
        tools=tuple(_iterate_tools(body.get("tools") or ())),
    )


def read_text(message: dict[str, Any]) -> str:
    """The text of a message, of all its text parts if it has parts; cut where it is longer than anyone would say."""
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content if part.get("type") == "text")
    return (content or "")[:MAX_TEXT_CHARACTERS]


def _find_instructions(messages: list[dict[str, Any]]) -> str:
    for message in messages[:2]:
        if message["role"] in ("system", "developer"):
            return read_text(message)
    return ""


def _collect_results(tail: list[dict[str, Any]]) -> tuple[tuple[CallResult, ...], tuple[CallResult, ...]]:
    calls: dict[str, tuple[str, str]] = {}
    results: list[CallResult] = []
    seen = 0
    for message in tail:
        if message["role"] == "assistant":
            seen = len(results)
            for call in message.get("tool_calls") or ():
                calls[call["id"]] = (call["function"]["name"], call["function"]["arguments"])
        elif message["role"] == "tool":
            name, arguments = calls[message["tool_call_id"]]
            results.append(CallResult(name, arguments, read_text(message)))
    return tuple(results), tuple(results[seen:])


def _collect_before(messages: list[dict[str, Any]]) -> tuple[str, tuple[str, ...]]:
    asked = next((read_text(m) for m in reversed(messages) if m["role"] == "assistant" and m.get("content")), "")
    texts = [read_text(message) for message in reversed(messages) if _is_said(message)]
    return asked, tuple(texts[:MAX_EARLIER_TEXTS])


def _is_said(message: dict[str, Any]) -> bool:
    """Tell if a user said it: not what stands there for files that functions gave."""
    return message["role"] == "user" and not read_text(message).startswith(FILES_HEADING)


def _iterate_tools(definitions: Iterable[dict[str, Any]]) -> Iterator[OfferedTool]:
    for definition in definitions:
        function = definition["function"]
        yield OfferedTool(function["name"], function.get("description", ""), function.get("parameters", {}))


# Ranks tools by what was said: a score of shared words, the rarer the word among the tools the more it counts.

NAME_WEIGHT = 3.0
DESCRIPTION_WEIGHT = 1.0
SYNONYM_WEIGHT = 0.7
MIN_SCORE = 1.5  # a word of a name, or two of a description


def rank_tools(tools: Sequence[OfferedTool], text: str, *, enough: float = MIN_SCORE) -> list[OfferedTool]:
    """The tools that fit a text, best first; where two fit alike, the agent's own before a handoff, then in order."""
    said = find_stems(text)
    near = frozenset(word for one in said for word in SYNONYMS.get(one, ())) - said
    rarity = _measure_rarity(tools)
    scores = [(_score_tool(tool, said, near, rarity), tool) for tool in tools]
    fitting = [(score, tool) for score, tool in scores if score >= enough]
    fitting.sort(key=lambda scored: (-round(scored[0], 6), scored[1].is_handoff))
    return [tool for _, tool in fitting]


def _measure_rarity(tools: Sequence[OfferedTool]) -> dict[str, float]:
    counts: dict[str, int] = {}
    for tool in tools:
        for word in tool.name_stems | tool.other_stems:
            counts[word] = counts.get(word, 0) + 1
    return {word: 1 / math.sqrt(count) for word, count in counts.items()}


def _score_tool(tool: OfferedTool, said: frozenset[str], near: frozenset[str], rarity: dict[str, float]) -> float:
    total = 0.0
    for words, trust in ((said, 1.0), (near, SYNONYM_WEIGHT)):
        for word in words & tool.name_stems:
            total += NAME_WEIGHT * trust * weigh_stem(word) * rarity[word]
        for word in words & (tool.other_stems - tool.name_stems):
            total += DESCRIPTION_WEIGHT * trust * weigh_stem(word) * rarity[word]
    return total


# Chooses the offline model's answer to a turn: at most one call, or a few words.

MAX_QUOTE_CHARACTERS = 4000
MAX_ABILITIES = 8
DISCLAIMER = (
    "I am Swarmkeep's built-in offline model, not an LLM: "
    "I only match your words with the names and descriptions of functions."
)
_MISSING_QUESTION = re.compile(r"Before I can (.+?), I need ")
_FOLLOW_UP = re.compile(r"\s*(?:and|also|then|how about|what about|same|now)\b", re.IGNORECASE)
_YOU_ARE = re.compile(r"\b[Yy]ou are (?:now )?((?:an? |the )?[^.,;:!?\n]{2,60})")


@dataclass(frozen=True)
class TextAnswer:
    text: str


@dataclass(frozen=True)
class CallAnswer:
    name: str
    arguments: dict[str, Any]


Answer = TextAnswer | CallAnswer


def answer(turn: Turn, tool_choice: str | dict[str, Any] | None = None) -> Answer:
    """The answer to a turn. The same turn has the same answer, always."""
    if turn.unseen_results and turn.handoff_agent is None:
        return TextAnswer(_quote_results(turn.unseen_results))
    tools, forced = _choose_allowed_tools(turn, tool_choice)
    if forced:
        return _force_call(turn, tools)
    if tools and (found := _match_tool(turn, tools)):
        return found
    return TextAnswer(_introduce(turn, tools))


def fit_answer(answered: Answer, turn: Turn, response_format: Any) -> Answer:
    """The answer in the form that was asked for: words become what can be found of an object of that schema."""
    wanted = response_format.get("type") if isinstance(response_format, dict) else None
    if not isinstance(answered, TextAnswer) or wanted not in ("json_schema", "json_object"):
        return answered
    described = response_format.get("json_schema")
    schema = described.get("schema") if isinstance(described, dict) else None
    if wanted == "json_object" or not isinstance(schema, dict):
        return TextAnswer(msgspec.json.encode({"answer": answered.text}).decode())
    values, _ = find_arguments(schema, _make_sources(turn, turn.text, answering=False), force=True)
    return TextAnswer(msgspec.json.encode(values).decode())


def _choose_allowed_tools(turn: Turn, tool_choice: str | dict[str, Any] | None) -> tuple[tuple[OfferedTool, ...], bool]:
    match tool_choice:
        case "none":
            return (), False
        case "required":
            return turn.tools, True
        case {"function": {"name": name}}:
            return tuple(tool for tool in turn.tools if tool.name == name), True
        case {"allowed_tools": {"mode": mode, "tools": list(allowed)}}:
            names = [entry["function"]["name"] for entry in allowed]
            return tuple(tool for tool in turn.tools if tool.name in names), mode == "required"
    return turn.tools, False


def _force_call(turn: Turn, tools: tuple[OfferedTool, ...]) -> Answer:
    """A call in any case, but not the same one twice: a forced choice would otherwise never let a run end."""
    text = _find_request(turn)
    best = rank_tools(tools, text, enough=0.0)
    for tool in best:
        values, _ = find_arguments(tool.parameters, _make_sources(turn, text, answering=False), force=True)
        if not _was_called(turn, tool, values):
            return CallAnswer(tool.name, values)
    return TextAnswer(_quote_results(turn.results))


def _match_tool(turn: Turn, tools: tuple[OfferedTool, ...]) -> Answer | None:
    for tool, sources in _iterate_candidates(turn, tools):
        values, missing = find_arguments(tool.parameters, sources)
        if missing:
            return TextAnswer(_ask_for_missing(tool, missing))
        if not _was_called(turn, tool, values):
            return CallAnswer(tool.name, values)
    if turn.was_handed_over or is_small_talk(turn.text):
        return None
    elsewhere = next((tool for tool in tools if tool.is_way_out and not _was_called(turn, tool, {})), None)
    if elsewhere is None or refuses(turn.text):
        return None
    values, missing = find_arguments(elsewhere.parameters, _make_sources(turn, turn.text, answering=False))
    return None if missing else CallAnswer(elsewhere.name, values)


def _iterate_candidates(turn: Turn, tools: tuple[OfferedTool, ...]) -> Iterator[tuple[OfferedTool, ArgumentSources]]:
    """The tools worth trying, best first, each with its own copy of what was said."""
    text = _find_request(turn)
    fitting = rank_tools(tools, text)
    asked_for = None if turn.was_handed_over or refuses(turn.text) else _find_asked_tool(turn, tools)
    if asked_for and (not fitting or fitting[0] is asked_for or _is_now_complete(turn, asked_for)):
        request = next((said for said in turn.earlier_texts if asked_for in rank_tools(tools, said)), turn.text)
        yield asked_for, _make_sources(turn, request, answering=True)
    elif fitting:
        for tool in fitting:
            yield tool, _make_sources(turn, text, answering=False)
    elif not turn.results and _is_follow_up(turn.text):
        yield from _continue_earlier_request(turn, tools)


def _is_now_complete(turn: Turn, tool: OfferedTool) -> bool:
    """Tell if the last message has what the tool was waiting for, recognisably."""
    return not find_arguments(tool.parameters, _make_sources(turn, turn.text, answering=False))[1]


def _continue_earlier_request(
    turn: Turn, tools: tuple[OfferedTool, ...]
) -> Iterator[tuple[OfferedTool, ArgumentSources]]:
    """For "and in Rome?": the tool of the message before, if the new one has another argument for it."""
    for said in turn.earlier_texts[:2]:
        for tool in rank_tools(tools, said)[:1]:
            sources = _make_sources(turn, turn.text, answering=False)
            _, missing = find_arguments(tool.parameters, sources)
            if not missing and sources.latest.remaining != sources.latest.whole:
                yield tool, _make_sources(turn, turn.text, answering=False)
                return


def _find_request(turn: Turn) -> str:
    """The user's request; if the last message only agrees to a question, what had been asked for before it."""
    if turn.last_reply and "?" in turn.last_reply and agrees(turn.text) and not turn.was_handed_over:
        return next((said for said in turn.earlier_texts if not agrees(said)), turn.text)
    return turn.text


def _find_asked_tool(turn: Turn, tools: tuple[OfferedTool, ...]) -> OfferedTool | None:
    """The tool whose missing arguments the last reply asked for."""
    found = _MISSING_QUESTION.search(turn.last_reply)
    return next((tool for tool in tools if found and tool.spoken_name == found.group(1)), None)


def _is_follow_up(text: str) -> bool:
    return bool(_FOLLOW_UP.match(text)) or len(split_words(text)) <= 4


def _make_sources(turn: Turn, request: str, *, answering: bool) -> ArgumentSources:
    now = turn.text if answering else request
    before = [SourceText(said) for said in turn.earlier_texts if said is not now]
    return ArgumentSources(SourceText(now), before, SourceText(turn.instructions), answering, request)


def _was_called(turn: Turn, tool: OfferedTool, values: dict[str, Any]) -> bool:
    return any(result.name == tool.name and _decode_arguments(result.arguments) == values for result in turn.results)


def _decode_arguments(text: str) -> Any:
    try:
        return msgspec.json.decode(text) if text else {}
    except (msgspec.DecodeError, RecursionError):
        return text


def _quote_results(results: tuple[CallResult, ...]) -> str:
    lines = []
    for result in results:
        content = result.content.strip()
        if len(content) > MAX_QUOTE_CHARACTERS:
            content = content[:MAX_QUOTE_CHARACTERS] + "…"
        name = spell_out(result.name)
        lines.append(f"Here is what {name} returned: {content}" if content else f"Done: {name} returned nothing.")
    return "\n".join(lines)


def _ask_for_missing(tool: OfferedTool, missing: list[str]) -> str:
    needed = _join_names(["the " + name for name in missing])
    return f"Before I can {tool.spoken_name}, I need {needed}. Could you tell me?"


def _join_names(names: list[str], last: str = "and") -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {last} {names[-1]}"


def _introduce(turn: Turn, tools: tuple[OfferedTool, ...]) -> str:
    gist = _YOU_ARE.search(turn.instructions)
    sentences = []
    if turn.handoff_agent:
        sentences.append(f"Hello, this is {turn.handoff_agent}.")
    elif gist and not turn.assistant_has_spoken:
        sentences.append(f"Hello, I am here as {gist.group(1).strip()}.")
    elif "thank" in turn.text.lower():
        sentences.append("You are welcome.")
    elif turn.assistant_has_spoken and turn.text and not is_small_talk(turn.text):
        sentences.append("I found no function of mine that fits those words.")
    if not turn.assistant_has_spoken:
        sentences.append(DISCLAIMER)
    sentences.append(_describe_abilities(tools or turn.tools))
    return " ".join(sentences)


def _describe_abilities(tools: tuple[OfferedTool, ...]) -> str:
    own = [tool.spoken_name for tool in tools if not tool.is_handoff][:MAX_ABILITIES]
    handoffs = [tool.spoken_name for tool in tools if tool.is_handoff][:MAX_ABILITIES]
    if not own and not handoffs:
        return "I have no functions here, so this is all that I can say."
    return f"I can {_join_names(own + handoffs, 'or')}: just ask."
