"""Where a run's request stands in its trace is kept with the run, and only where there is a trace."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from swarmkeep.decide.commands import StartRun, start_queued, start_run
from swarmkeep.decide.drafts import apply_drafts, draft_events, preview_event
from swarmkeep.decide.importing import finish_import
from swarmkeep.decide.turns import end_run
from swarmkeep.events.codec import decode, encode_text
from swarmkeep.events.facts import RunCompleted, RunStarted, SessionCreated, decode_fact
from swarmkeep.events.redaction import redact_payload
from swarmkeep.events.state import State

FIRST = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SECOND = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


def make_command(run_id: str, **given: Any) -> StartRun:
    return StartRun(run_id=run_id, messages=({"role": "user", "content": "hi"},), **given)


def start(command: StartRun, state: State | None = None) -> State:
    if state is None:
        state = apply_drafts(State(), draft_events("A", [SessionCreated(agent="A")], None))
    return apply_drafts(state, start_run(state, command))


def test_run_knows_its_request_trace() -> None:
    state = start(make_command("r1", traceparent=FIRST))
    assert state.run is not None
    assert state.run.traceparent == FIRST


def test_queued_run_keeps_its_request_trace() -> None:
    state = start(make_command("r1", traceparent=FIRST))
    state = start(make_command("r2", traceparent=SECOND, on_busy="queue"), state)
    assert state.run is not None
    state = apply_drafts(state, draft_events("A", end_run(state, state.run, RunCompleted, "end_turn"), "r1"))
    state = apply_drafts(state, start_queued(state))
    assert state.run is not None
    assert (state.run.id, state.run.traceparent) == ("r2", SECOND)


def test_untraced_events_keep_their_old_form() -> None:
    (started, _) = start_run(State(agent="A"), make_command("r1"))
    text = encode_text(started.fact)
    assert list(decode(text)) == ["options", "idempotency_key"]
    fact = decode_fact(RunStarted.type, text)
    assert isinstance(fact, RunStarted)
    assert fact.traceparent is UNSET


def test_a_redacted_run_leaves_its_trace() -> None:
    (started, _) = start_run(State(agent="A"), make_command("r1", traceparent=FIRST))
    event = preview_event(1, started, "2026-01-01T00:00:00.000Z")
    assert FIRST not in redact_payload(event)


def test_imported_traces_are_not_trusted() -> None:
    state = start(make_command("r1", traceparent=FIRST))
    state = start(make_command("r2", traceparent=SECOND, on_busy="queue"), state)
    state = apply_drafts(state, finish_import(state, source="export", digest="d", by=None))
    runs = [*state.finished, *([] if state.run is None else [state.run])]
    assert [run.traceparent for run in runs] == [UNSET] * 2
    assert list(state.queue) == []
