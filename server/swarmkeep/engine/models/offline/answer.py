"""Chooses the offline model's answer to a turn: at most one call, or a few words."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from swarmkeep.engine.models.offline.arguments import ArgumentSources, find_arguments
from swarmkeep.engine.models.offline.patterns import SourceText
from swarmkeep.engine.models.offline.ranking import rank_tools
from swarmkeep.engine.models.offline.reading import CallResult, OfferedTool, Turn
from swarmkeep.engine.models.offline.words import agrees, is_small_talk, refuses, spell_out, split_words

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
    """Whether the last message has what the tool was waiting for, recognisably."""
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
