"""What the offline model answers to a turn: at most one call, or a few words."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from swarmkeep.engine.offline.arguments import Sources, arguments
from swarmkeep.engine.offline.choice import ranked
from swarmkeep.engine.offline.patterns import Material
from swarmkeep.engine.offline.reading import Result, Tool, Turn
from swarmkeep.engine.offline.words import agrees, in_words, is_small_talk, raw_words, refuses

LONGEST_QUOTE = 4000
MOST_ABILITIES = 8
DISCLAIMER = (
    "I am Swarmkeep's built-in offline model, not an LLM: "
    "I only match your words with the names and descriptions of functions."
)
_MISSING = re.compile(r"Before I can (.+?), I need ")
_FOLLOW_UP = re.compile(r"\s*(?:and|also|then|how about|what about|same|now)\b", re.IGNORECASE)
_YOU_ARE = re.compile(r"\b[Yy]ou are (?:now )?((?:an? |the )?[^.,;:!?\n]{2,60})")


@dataclass(frozen=True)
class Say:
    text: str


@dataclass(frozen=True)
class Call:
    name: str
    arguments: dict[str, Any]


Answer = Say | Call


def answer(turn: Turn, tool_choice: str | dict[str, Any] | None = None) -> Answer:
    """The answer to a turn. The same turn has the same answer, always."""
    if turn.fresh and turn.handed_to is None:
        return Say(_quote(turn.fresh))
    tools, forced = _allowed(turn, tool_choice)
    if forced:
        return _forced(turn, tools)
    if tools and (found := _matched(turn, tools)):
        return found
    return Say(_introduction(turn, tools))


def _allowed(turn: Turn, tool_choice: str | dict[str, Any] | None) -> tuple[tuple[Tool, ...], bool]:
    match tool_choice:
        case "none":
            return (), False
        case "required":
            return turn.tools, True
        case {"function": {"name": name}}:
            return tuple(tool for tool in turn.tools if tool.name == name), True
    return turn.tools, False


def _forced(turn: Turn, tools: tuple[Tool, ...]) -> Answer:
    """A call in any case, but not the same one twice: a forced choice would otherwise never let a run end."""
    text = _request(turn)
    best = ranked(tools, text, enough=0.0)
    for tool in best:
        values, _ = arguments(tool.parameters, _sources(turn, text, answering=False), force=True)
        if not _was_called(turn, tool, values):
            return Call(tool.name, values)
    return Say(_quote(turn.results))


def _matched(turn: Turn, tools: tuple[Tool, ...]) -> Answer | None:
    for tool, sources in _candidates(turn, tools):
        values, missing = arguments(tool.parameters, sources)
        if missing:
            return Say(_question(tool, missing))
        if not _was_called(turn, tool, values):
            return Call(tool.name, values)
    if turn.was_handed_over or is_small_talk(turn.text):
        return None
    elsewhere = next((tool for tool in tools if tool.leads_elsewhere and not _was_called(turn, tool, {})), None)
    if elsewhere is None or refuses(turn.text):
        return None
    values, missing = arguments(elsewhere.parameters, _sources(turn, turn.text, answering=False))
    return None if missing else Call(elsewhere.name, values)


def _candidates(turn: Turn, tools: tuple[Tool, ...]) -> Iterator[tuple[Tool, Sources]]:
    """The tools worth trying, best first, each with its own copy of what was said."""
    text = _request(turn)
    fitting = ranked(tools, text)
    asked_for = None if turn.was_handed_over or refuses(turn.text) else _asked_for(turn, tools)
    if asked_for and (not fitting or fitting[0] is asked_for or _now_complete(turn, asked_for)):
        request = next((said for said in turn.earlier if asked_for in ranked(tools, said)), turn.text)
        yield asked_for, _sources(turn, request, answering=True)
    elif fitting:
        for tool in fitting:
            yield tool, _sources(turn, text, answering=False)
    elif not turn.results and _follows_up(turn.text):
        yield from _continued(turn, tools)


def _now_complete(turn: Turn, tool: Tool) -> bool:
    """Whether the last message has what the tool was waiting for, recognisably."""
    return not arguments(tool.parameters, _sources(turn, turn.text, answering=False))[1]


def _continued(turn: Turn, tools: tuple[Tool, ...]) -> Iterator[tuple[Tool, Sources]]:
    """For "and in Rome?": the tool of the message before, if the new one has another argument for it."""
    for said in turn.earlier[:2]:
        for tool in ranked(tools, said)[:1]:
            sources = _sources(turn, turn.text, answering=False)
            _, missing = arguments(tool.parameters, sources)
            if not missing and sources.now.left != sources.now.whole:
                yield tool, _sources(turn, turn.text, answering=False)
                return


def _request(turn: Turn) -> str:
    """The user's request; if the last message only agrees to a question, what had been asked for before it."""
    if turn.asked and "?" in turn.asked and agrees(turn.text) and not turn.was_handed_over:
        return next((said for said in turn.earlier if not agrees(said)), turn.text)
    return turn.text


def _asked_for(turn: Turn, tools: tuple[Tool, ...]) -> Tool | None:
    """The tool whose missing arguments the last reply asked for."""
    found = _MISSING.search(turn.asked)
    return next((tool for tool in tools if found and tool.spoken == found.group(1)), None)


def _follows_up(text: str) -> bool:
    return bool(_FOLLOW_UP.match(text)) or len(raw_words(text)) <= 4


def _sources(turn: Turn, request: str, *, answering: bool) -> Sources:
    now = turn.text if answering else request
    before = [Material(said) for said in turn.earlier if said is not now]
    return Sources(Material(now), before, Material(turn.instructions), answering, request)


def _was_called(turn: Turn, tool: Tool, values: dict[str, Any]) -> bool:
    return any(result.name == tool.name and _decoded(result.arguments) == values for result in turn.results)


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text) if text else {}
    except (msgspec.DecodeError, RecursionError):
        return text


def _quote(results: tuple[Result, ...]) -> str:
    lines = []
    for result in results:
        content = result.content.strip()
        if len(content) > LONGEST_QUOTE:
            content = content[:LONGEST_QUOTE] + "…"
        name = in_words(result.name)
        lines.append(f"Here is what {name} returned: {content}" if content else f"Done: {name} returned nothing.")
    return "\n".join(lines)


def _question(tool: Tool, missing: list[str]) -> str:
    return f"Before I can {tool.spoken}, I need {_listed(['the ' + name for name in missing])}. Could you tell me?"


def _listed(names: list[str], last: str = "and") -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {last} {names[-1]}"


def _introduction(turn: Turn, tools: tuple[Tool, ...]) -> str:
    gist = _YOU_ARE.search(turn.instructions)
    sentences = []
    if turn.handed_to:
        sentences.append(f"Hello, this is {turn.handed_to}.")
    elif gist and not turn.has_spoken:
        sentences.append(f"Hello, I am here as {gist.group(1).strip()}.")
    elif "thank" in turn.text.lower():
        sentences.append("You are welcome.")
    elif turn.has_spoken and turn.text and not is_small_talk(turn.text):
        sentences.append("I found no function of mine that fits those words.")
    if not turn.has_spoken:
        sentences.append(DISCLAIMER)
    sentences.append(_abilities(tools or turn.tools))
    return " ".join(sentences)


def _abilities(tools: tuple[Tool, ...]) -> str:
    own = [tool.spoken for tool in tools if not tool.hands_over][:MOST_ABILITIES]
    handoffs = [tool.spoken for tool in tools if tool.hands_over][:MOST_ABILITIES]
    if not own and not handoffs:
        return "I have no functions here, so this is all that I can say."
    return f"I can {_listed(own + handoffs, 'or')}: just ask."
