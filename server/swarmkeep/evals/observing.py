"""What came of a conversation, and whether it is what was expected."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from swarmkeep.domain.codec import MalformedJson, decode
from swarmkeep.domain.messages import Entry, asked_calls
from swarmkeep.domain.state import State
from swarmkeep.domain.wording import text_of
from swarmkeep.evals.cases import Expect, pattern, several

Json = dict[str, Any]
LONGEST = 200


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What happened from some message on: calls with their arguments, what was said, and the state in the end."""

    calls: list[tuple[str, Any]]
    said: list[str]
    agent: str
    context_variables: Json
    transcript: str


def observe(state: State, *, first: int = 0) -> Observed:
    """What happened from the message with this index on."""
    entries = list(state.messages[first:])
    answers = [entry for entry in entries if entry.role == "assistant"]
    return Observed(
        calls=[(name, _value(text)) for entry in answers for _, name, text in asked_calls(entry.message)],
        said=[text for entry in answers if (text := text_of(entry.message.get("content")))],
        agent=state.agent,
        context_variables=dict(state.context_variables),
        transcript="\n".join(_told(entries)),
    )


def _value(text: str) -> Any:
    try:
        return decode(text)
    except MalformedJson:
        return text


def _told(entries: Iterable[Entry]) -> Iterator[str]:
    for entry in entries:
        text = text_of(entry.message.get("content"))
        if text:
            yield f"{entry.message.get('sender') or entry.role} ({entry.role}): {text}"
        for _, name, arguments in asked_calls(entry.message):
            yield f"{entry.message.get('sender') or entry.role} calls {name}({arguments})"


def problems(expect: Expect, observed: Observed) -> Iterator[str]:
    """What was expected and is not so, in sentences; what a model has to judge is left out."""
    yield from _calls(expect, observed)
    if expect.agent is not None and observed.agent != expect.agent:
        yield f"the active agent is {observed.agent!r}, not {expect.agent!r}"
    if expect.context is not None:
        yield from differences(expect.context, observed.context_variables, "the context variables")
    said = "\n".join(observed.said)
    for text in several(expect.text):
        if not pattern(text).search(said):
            yield f"{text!r} was not said, but {short(said)}"
    for text in several(expect.no_text):
        if pattern(text).search(said):
            yield f"{text!r} was said: {short(said)}"


def _calls(expect: Expect, observed: Observed) -> Iterator[str]:
    made = [name for name, _ in observed.calls]
    left = iter(observed.calls)
    found: tuple[str, Any] | None = None
    for wanted in several(expect.function):
        found = next((call for call in left if call[0] == wanted), None)
        if found is None:
            missed = f"{wanted} was not called" + (" in its turn" if wanted in made else "")
            yield f"{missed}; calls: {', '.join(made) or 'none'}"
            break
    if expect.arguments is not None and found is not None:
        # Called more than once, it is enough that one of the calls has them.
        alike = [call[1] for call in observed.calls if call[0] == found[0]]
        if not any(not list(differences(expect.arguments, given, "")) for given in alike):
            yield from differences(expect.arguments, alike[-1], f"the arguments of {found[0]}")
    for unwanted in several(expect.no_function):
        if unwanted in made:
            yield f"{unwanted} was called"


def differences(wanted: Any, given: Any, where: str) -> Iterator[str]:
    """Where `given` lacks something of `wanted`; it may have more keys."""
    if isinstance(wanted, dict) and isinstance(given, dict):
        for key, value in wanted.items():
            if key not in given:
                yield f"{where} have no {key!r}" if "." not in where else f"{where} has no {key!r}"
            else:
                yield from differences(value, given[key], f"{where}.{key}")
    elif wanted != given or isinstance(wanted, bool) != isinstance(given, bool):
        yield f"{where}: {short(json.dumps(given, ensure_ascii=False))}, not {json.dumps(wanted, ensure_ascii=False)}"


def short(text: str) -> str:
    """A text on one line and in quotes, cut where it is long."""
    line = " ".join(text.split())
    return repr(line if len(line) <= LONGEST else line[:LONGEST] + "…")
