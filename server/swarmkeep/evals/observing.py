"""Observe a conversation, and compare it with what was expected."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from swarmkeep.domain.codec import Json, MalformedJson, decode
from swarmkeep.domain.messages import Entry, read_tool_calls
from swarmkeep.domain.state import State
from swarmkeep.domain.views import find_answer
from swarmkeep.domain.wording import join_content
from swarmkeep.evals.cases import Expect, as_tuple, compile_pattern

LONGEST_CHARACTERS = 200


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """Events from some message on: calls with their arguments, what was said, and the state in the end."""

    calls: list[tuple[str, Any]]
    texts: list[str]
    agent: str
    context_variables: Json
    transcript: str
    output: Any = None
    guardrails: tuple[str, ...] = ()


def observe(state: State, *, first: int = 0, guardrails: tuple[str, ...] = ()) -> Observation:
    """Observe the conversation from the message with this index on. `guardrails` are those that refused something."""
    entries = list(state.messages[first:])
    answers = [entry for entry in entries if entry.role == "assistant"]
    return Observation(
        calls=[
            (name, _decode_arguments(text)) for entry in answers for _, name, text in read_tool_calls(entry.message)
        ],
        texts=[text for entry in answers if (text := join_content(entry.message.get("content")))],
        agent=state.agent,
        context_variables=dict(state.context_variables),
        transcript="\n".join(_format_transcript(entries)),
        output=find_answer(entries).read_value(),
        guardrails=guardrails,
    )


def _decode_arguments(text: str) -> Any:
    try:
        return decode(text)
    except MalformedJson:
        return text


def _format_transcript(entries: Iterable[Entry]) -> Iterator[str]:
    for entry in entries:
        text = join_content(entry.message.get("content"))
        if text:
            yield f"{entry.message.get('sender') or entry.role} ({entry.role}): {text}"
        for _, name, arguments in read_tool_calls(entry.message):
            yield f"{entry.message.get('sender') or entry.role} calls {name}({arguments})"


def find_problems(expect: Expect, observed: Observation) -> Iterator[str]:
    """Find expectations that do not hold, in sentences; what a model has to judge is left out."""
    yield from _check_calls(expect, observed)
    if expect.agent is not None and observed.agent != expect.agent:
        yield f"the active agent is {observed.agent!r}, not {expect.agent!r}"
    if expect.context is not None:
        yield from find_differences(expect.context, observed.context_variables, "the context variables")
    if expect.output is not None:
        yield from find_differences(expect.output, observed.output, "the output")
    yield from _check_guardrails(expect, observed)
    answer = "\n".join(observed.texts)
    for text in as_tuple(expect.text):
        if not compile_pattern(text).search(answer):
            yield f"expected {text!r}, but the answer was {shorten(answer)}"
    for text in as_tuple(expect.no_text):
        if compile_pattern(text).search(answer):
            yield f"{text!r} must not be said, but was: {shorten(answer)}"


def _check_calls(expect: Expect, observed: Observation) -> Iterator[str]:
    made = [name for name, _ in observed.calls]
    left = iter(observed.calls)
    found: tuple[str, Any] | None = None
    for wanted in as_tuple(expect.function):
        found = next((call for call in left if call[0] == wanted), None)
        if found is None:
            missed = f"{wanted} was not called" + (" in this order" if wanted in made else "")
            yield f"{missed}; calls: {', '.join(made) or 'none'}"
            break
    if expect.arguments is not None and found is not None:
        # Called more than once, it is enough that one of the calls has them.
        alike = [call[1] for call in observed.calls if call[0] == found[0]]
        if not any(not list(find_differences(expect.arguments, given, "")) for given in alike):
            yield from find_differences(expect.arguments, alike[-1], f"the arguments of {found[0]}")
    for unwanted in as_tuple(expect.no_function):
        if unwanted in made:
            yield f"{unwanted} was called"


def _check_guardrails(expect: Expect, observed: Observation) -> Iterator[str]:
    refused = ", ".join(observed.guardrails) or "none"
    left = iter(observed.guardrails)
    for wanted in as_tuple(expect.guardrail):
        if wanted not in left:
            missed = f"the guardrail {wanted} refused nothing" + (
                " in this order" if wanted in observed.guardrails else ""
            )
            yield f"{missed}; guardrails that did: {refused}"
            break
    for unwanted in as_tuple(expect.no_guardrail):
        if unwanted in observed.guardrails:
            yield f"the guardrail {unwanted} refused something"


def find_differences(wanted: Any, given: Any, where: str) -> Iterator[str]:
    """Find where `given` lacks something of `wanted`: objects may have more keys, at any depth, lists no more items."""
    if isinstance(wanted, dict) and isinstance(given, dict):
        for key, value in wanted.items():
            if key not in given:
                yield f"{where}: {key!r} is missing"
            else:
                yield from find_differences(value, given[key], f"{where}.{key}")
    elif isinstance(wanted, list) and isinstance(given, list) and len(wanted) == len(given):
        for index, (value, found) in enumerate(zip(wanted, given, strict=True)):
            yield from find_differences(value, found, f"{where}: item {index + 1}")
    elif wanted != given or isinstance(wanted, bool) != isinstance(given, bool):  # true is not 1
        yield f"{where}: {shorten(json.dumps(given, ensure_ascii=False))}, not {json.dumps(wanted, ensure_ascii=False)}"


def shorten(text: str) -> str:
    """A text on one line and in quotes, cut where it is long."""
    line = " ".join(text.split())
    return repr(line if len(line) <= LONGEST_CHARACTERS else line[:LONGEST_CHARACTERS] + "…")
