"""Propose a case from a recorded run: what was said before it and in it, and expectations by what was done."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import UNSET

from swarmkeep.evals.running import Observation, observe
from swarmkeep.events.codec import Json, encode
from swarmkeep.events.errors import RunNotFound
from swarmkeep.events.facts import ApprovalDecided, GuardrailTripped, RecordedEvent, is_redacted
from swarmkeep.events.fold import fold
from swarmkeep.events.messages import Entry, list_shown
from swarmkeep.events.state import Run, State
from swarmkeep.events.views import collect_runs
from swarmkeep.events.wording import join_content

# What Chat Completions has; the rest of a recorded message is the server's.
_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id")
_MAX_TURNS = 10
_NAME_CHARACTERS = 60
# YAML is written at half a megabyte a second, beside whatever else the process does.
MAX_CASE_BYTES = 2_000_000


class NoCase(ValueError):
    """A run that no case can be made of; the sentence says why."""


def propose_case(events: Sequence[RecordedEvent], run_id: str | None = None, name: str | None = None) -> Json:
    """The case of a run, by default the session's last one, in the words of a file of cases.

    Raises RunNotFound, and NoCase.
    """
    run = _find_run(fold(events), run_id)
    before = fold(event for event in events if event.seq < run.first_seq)
    mine = [event for event in events if run.first_seq <= event.seq <= run.last_seq]
    after = fold(mine, before)
    asked, rest = _split_input(run, after.messages[len(before.messages) :])
    if any(is_redacted(event) for event in mine if event.seq == asked.seq):
        raise NoCase(f"what the user said in run {run.id} was redacted; choose another run")
    text = join_content(asked.message.get("content"))
    if not text or asked.message.get("content") != text:
        raise NoCase(f"the user's message of run {run.id} is not text alone, and a case holds nothing else")
    history = [_plain(entry.message) for entry in (*list_shown(before.messages), *rest)]
    case: Json = {"name": name or _shorten(text), "agent": before.agent}
    case |= {"context_variables": dict(before.context_variables)} if before.context_variables else {}
    case |= {"history": history} if history else {}
    case["conversation"] = [text]
    case |= _list_options(run, mine)
    case["expect"] = _propose_expectations(before, after, mine)
    found: Json = _replace_surrogates(case)
    if len(encode(found)) > MAX_CASE_BYTES:
        raise NoCase(f"the case of run {run.id} would have more than {MAX_CASE_BYTES} bytes; choose an earlier run")
    return found


def _find_run(state: State, run_id: str | None) -> Run:
    begun = [run for run in collect_runs(state) if run.status != "queued"]
    if run_id is None:
        if not begun:
            raise NoCase("the session has no run that has begun")
        return begun[-1]
    found = [run for run in begun if run.id == run_id]
    if not found:
        raise RunNotFound(run_id)
    return found[-1]


def _split_input(run: Run, entries: Iterable[Entry]) -> tuple[Entry, list[Entry]]:
    """The user's last message of the run's input, and what the caller gave before it."""
    given: list[Entry] = []
    for entry in entries:
        if entry.run_id != run.id or entry.removed:
            continue
        if entry.completion is not None or entry.tool is not None or entry.person is not None:
            break
        given.append(entry)
    if not given or given[-1].role != "user":
        raise NoCase(f"run {run.id} does not begin with a message of the user")
    return given[-1], given[:-1]


def _plain(message: Json) -> Json:
    """A message as a model is sent it, of its content only the text."""
    kept = {key: message[key] for key in _KEYS if key in message}
    if isinstance(kept.get("content"), list):
        kept["content"] = join_content(kept["content"])
    return kept


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _NAME_CHARACTERS else line[: _NAME_CHARACTERS - 1] + "…"


def _list_options(run: Run, mine: Iterable[RecordedEvent]) -> Json:
    decisions = {event.fact.decision for event in mine if isinstance(event.fact, ApprovalDecided)}
    if decisions >= {"approve", "deny"}:
        raise NoCase(f"of run {run.id} some calls were approved and others denied, and a case decides all alike")
    options: Json = {"approve": False} if "deny" in decisions else {}
    if run.turns > _MAX_TURNS:
        options["max_turns"] = run.turns
    settings = run.options.model_settings
    return options if settings is UNSET or not settings else {**options, "model_settings": settings}


def _propose_expectations(before: State, after: State, mine: Iterable[RecordedEvent]) -> Json:
    guardrails = tuple(event.fact.name for event in mine if isinstance(event.fact, GuardrailTripped))
    seen = observe(after, first=len(before.messages), guardrails=guardrails)
    expect: Json = _expect_calls(seen)
    expect["agent"] = seen.agent
    had, has = before.context_variables, seen.context_variables
    if changed := {key: value for key, value in has.items() if key not in had or had[key] != value}:
        expect["context"] = changed
    if isinstance(seen.output, dict) and seen.output:
        expect["output"] = seen.output
    if guardrails:
        expect["guardrail"] = list(guardrails)
    return expect


def _expect_calls(seen: Observation) -> Json:
    if not seen.calls:
        return {}
    names, (_, arguments) = [name for name, _ in seen.calls], seen.calls[-1]
    expect: Json = {"function": names}
    return {**expect, "arguments": arguments} if isinstance(arguments, dict) and arguments else expect


def _replace_surrogates(value: Any) -> Any:
    """Replace lone surrogates, which no file holds."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_replace_surrogates(key): _replace_surrogates(item) for key, item in value.items()}
    return [_replace_surrogates(item) for item in value] if isinstance(value, list | tuple) else value


def make_case_file(events: Sequence[RecordedEvent], run_id: str | None = None, name: str | None = None) -> bytes:
    """A file with the case of a run, in YAML. Raises RunNotFound, and NoCase."""
    return write_case(propose_case(events, run_id, name))


# Line breaks of YAML that JSON does not have: unless they are escaped, they are read as spaces.
_BREAKS = "\x85\u2028\u2029"


def _represent_text(representer: Any, text: str) -> Any:
    style = '"' if any(sign in text for sign in _BREAKS) else None
    return representer.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def write_case(case: Json) -> bytes:
    """A file with this case, in YAML."""
    from ruamel.yaml import YAML

    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.allow_unicode = True
    writer.width = 120
    # As it was put together: the name first, the expectations last.
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.representer.add_representer(str, _represent_text)
    text = io.StringIO()
    writer.dump({"cases": [case]}, text)
    return text.getvalue().encode()
