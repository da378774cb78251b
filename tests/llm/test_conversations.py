"""The bundled teams on a real language model: what must hold whatever it says, calls and makes up.

What it says is never looked at. It is a model of 135 million parameters that runs with the likeliest word each time,
so a machine hears the same in each run; another machine may round otherwise and hear something else.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import Counter
from contextlib import closing

import pytest

from swarmkeep.events.fold import evolve
from swarmkeep.events.state import State
from swarmkeep.request.request import build_request
from swarmkeep.runs.agents import load_registry
from swarmkeep.runs.tool_runners import ThreadRunner
from swarmkeep.store.opening import open_store
from swarmkeep.store.records import DEFAULT_TENANT, SessionKey
from swarmkeep_agents import TEAMS
from swarmkeep_client import Event, MessageDelta, MessageStarted, StreamItem
from tests.llm.trial import TERMINAL, Trial, last_item, list_results
from tests.support.rules import find_body_faults

pytestmark = pytest.mark.llm


def test_enough_happened_that_nobody_scripted(trial: Trial) -> None:
    """Which function is called, with which arguments, and what is said of a result is the model's own choice. That
    some runs begin with a call was required of it, and one agent can only hand over, so these are far exceeded.
    """
    turns = sum(len(session.answers) for session in trial.sessions)
    assert turns >= 30
    assert sum(len(list_results(session.events)) for session in trial.sessions) >= 10
    assert sum(len(session.of_type("handoff.made")) for session in trial.sessions) >= 1
    assert {session.team for session in trial.sessions} == set(TEAMS)
    ends = Counter(end.data["stop_reason"] for session in trial.sessions for end in session.of_type(*TERMINAL))
    assert ends["end_turn"] > ends.total() / 2
    assert ends["max_turns"] >= 1


def test_every_log_is_whole(trial: Trial) -> None:
    for group in trial.groups:
        with closing(sqlite3.connect(group.database_url.removeprefix("sqlite:///"))) as file:
            for session in group.sessions:
                assert [event.seq for event in session.events] == [*range(1, len(session.events) + 1)]
                assert [event.hash for event in session.events] == _compute_hashes(file, session.session_id)
                assert session.state is not None
                assert (session.state.seq, session.state.hash) == (session.events[-1].seq, session.events[-1].hash)


def _compute_hashes(file: sqlite3.Connection, session_id: str) -> list[str]:
    """What the hash of each event must be, from what is stored of it."""
    rows = file.execute(
        "SELECT salt, CAST(payload AS BLOB), seq, type, version, run_id, agent, recorded_at FROM events "
        "WHERE session_id = ? ORDER BY seq",
        (session_id,),
    )
    hashes, previous = [], bytes(32)
    for salt, payload, *header in rows:
        commitment = _hash_parts(b"swarmkeep payload v2", salt, payload)
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":"))
        previous = _hash_parts(b"swarmkeep event v2", previous, text.encode(), commitment)
        hashes.append(previous.hex())
    return hashes


def _hash_parts(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()


def test_every_run_ended_once(trial: Trial) -> None:
    for session in trial.sessions:
        begun = [event.run_id for event in session.of_type("run.started")]
        ended = [event.run_id for event in session.of_type(*TERMINAL)]
        assert Counter(ended) == Counter(set(begun))
        assert len(begun) == len(session.texts) + 1 + (session in [group.sessions[0] for group in trial.groups])


def test_approvals_were_decided_once(trial: Trial) -> None:
    for session in trial.sessions:
        asked = [event.data["tool_call_id"] for event in session.of_type("approval.requested")]
        assert [event.data["tool_call_id"] for event in session.of_type("approval.decided")] == asked


def test_runs_fail_only_with_model_server(trial: Trial) -> None:
    refused = Counter(call.status for call in trial.calls if call.complete and call.status != 200)
    failed = [event.data["error"] for session in trial.sessions for event in session.of_type("run.failed")]
    assert {error["provider_status"] for error in failed} <= set(refused)
    assert not [event for session in trial.sessions for event in session.of_type("run.cancelled", "run.interrupted")]


async def test_log_prefixes_give_valid_requests(trial: Trial) -> None:
    for group in trial.groups:
        registry = load_registry(group.agents)
        store = open_store(group.database_url, read_only=True)
        for session in group.sessions:
            state = State()
            for event in await store.read(SessionKey(DEFAULT_TENANT, session.session_id)):
                state = evolve(state, event)
                profile = await registry.make_profile(
                    registry.get_active(state.agent), state.context_variables, ThreadRunner()
                )
                body = build_request(state, profile, stream=event.seq % 2 == 0).body()
                assert find_body_faults(body) == [], f"{session.session_id} up to {event.seq}"
        await store.close()


def test_requests_are_rebuilt_byte_exact(trial: Trial) -> None:
    """The model's server names each completion, and the log keeps that name beside the answer."""
    received = {call.completion_id: call.body for call in trial.calls if call.complete and call.status == 200}
    rebuilt: dict[str, bytes] = {}
    for session in trial.sessions:
        rebuilt |= {event.data["completion"]["id"]: session.requests[event.seq] for event in session.answers}
    assert rebuilt == received
    assert sum(len(session.answers) for session in trial.sessions) == len(received)
    assert [faults for body in received.values() if (faults := find_body_faults(body))] == []


def test_turns_are_limited(trial: Trial) -> None:
    for session in trial.sessions:
        turns = Counter(event.run_id for event in session.answers)
        limits = {event.run_id: event.data["options"]["max_turns"] for event in session.of_type("run.started")}
        for end in session.of_type(*TERMINAL):
            assert turns[end.run_id] <= limits[end.run_id]
            if end.data["stop_reason"] == "max_turns":
                assert turns[end.run_id] == limits[end.run_id]


def test_what_was_recorded_survives_a_kill(trial: Trial) -> None:
    for session in trial.sessions:
        assert session.events_before_kill
        assert session.events[: len(session.events_before_kill)] == session.events_before_kill


def test_cut_off_run_continues_by_itself(trial: Trial) -> None:
    assert sum(not call.complete for call in trial.calls) == len(trial.groups)
    for group in trial.groups:
        (resumed,) = group.sessions[0].of_type("run.resumed")[-1:]
        assert (resumed.run_id, resumed.data["reason"]) == (group.cut_run_id, "recovery")
        (end,) = [event for event in group.sessions[0].of_type(*TERMINAL) if event.run_id == group.cut_run_id]
        assert end.type == "run.completed"


def test_sessions_continue_after_kill(trial: Trial) -> None:
    for session in trial.sessions:
        end = session.events[-1]
        assert (end.type, end.run_id) == ("run.completed", session.last_run_id)
        assert end.seq > session.events_before_kill[-1].seq


def test_stream_gives_events_once_as_recorded(trial: Trial) -> None:
    streams = [items for session in trial.sessions for items in session.streams]
    assert any(isinstance(item, MessageDelta) for items in streams for item in items)
    for items in streams:
        run = last_item(items).run
        seqs = [item.seq for item in items if isinstance(item, Event)]
        assert seqs == [*range(seqs[0], seqs[0] + len(seqs))]
        assert (seqs[0], seqs[-1]) == (run.first_seq, run.last_seq)
        said = [item.data["message"] for item in items if isinstance(item, Event) and item.data.get("completion")]
        assert _join_deltas(items) == [(message["content"] or "", _read_arguments(message)) for message in said]


def _join_deltas(items: list[StreamItem]) -> list[tuple[str, list[str]]]:
    """The text and the calls' arguments of each message, put together from its deltas."""
    shown: list[tuple[str, list[str]]] = []
    for item in items:
        if isinstance(item, MessageStarted):
            shown.append(("", []))
        elif isinstance(item, MessageDelta):
            text, arguments = shown[-1]
            for call in item.tool_calls or []:
                arguments += [""] * (call["index"] + 1 - len(arguments))
                arguments[call["index"]] += call["function"]["arguments"] or ""
            shown[-1] = (text + (item.content or ""), arguments)
    return shown


def _read_arguments(message: dict[str, list[dict[str, dict[str, str]]]]) -> list[str]:
    return [call["function"]["arguments"] for call in message.get("tool_calls", [])]
