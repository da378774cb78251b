"""Lists of the runs that are active: whose they are, what they took, and who has their leases."""

from __future__ import annotations

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.facts import EventDraft, PendingCall, RunQueued, RunWaiting
from swarmkeep.events.records import RunOptions
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey
from tests.store.calls import make_reply, make_tool_result
from tests.store.sessions import begin_run, draft_run_completion


async def test_active_runs_list_lease_calls_queue(store: SqlStore) -> None:
    busy, other = SessionKey("default", "busy"), SessionKey("default", "other")
    await begin_run(store, SessionKey("elsewhere", "busy"))
    ended, lease = await begin_run(store, SessionKey("default", "ended"))
    await store.append(SessionKey("default", "ended"), ended, draft_run_completion(ended), lease=lease)
    await begin_run(store, other, owner="b")
    state, lease = await begin_run(store, busy)
    calls = [make_reply(prompt_tokens=7, completion_tokens=2, total_tokens=9), make_tool_result()]
    state = (await store.append(busy, state, draft_events("Triage", calls, "r1"), lease=lease)).state
    queued = EventDraft(RunQueued(options=RunOptions(), messages=()), "r2", "Triage")
    state = (await store.append(busy, state, [queued], lease=lease)).state

    first = await store.list_active_runs("default", "running", limit=1)
    assert first.next_cursor is not None
    second = await store.list_active_runs("default", "running", limit=1, cursor=first.next_cursor)
    assert second.next_cursor is None
    (run,), (of_other,) = first.runs, second.runs
    assert (run.session_id, run.id, run.status, run.agent, run.title, run.seq) == (
        "busy", "r1", "running", "Triage", "hi", state.seq,
    )  # fmt: skip
    assert (run.model_calls, run.tool_calls, run.prompt_tokens, run.completion_tokens, run.total_tokens) == (
        1, 1, 7, 2, 9,
    )  # fmt: skip
    assert (run.server, run.lease_epoch, run.queued_runs) == ("a", lease.epoch, 1)
    assert run.lease_seconds is not None
    assert 0 < run.lease_seconds <= 60
    # It has a run of the same name, in another session.
    assert (of_other.session_id, of_other.server, of_other.model_calls, of_other.queued_runs) == ("other", "b", 0, 0)
    assert state.run is not None
    assert run.since == state.run.created_at
    (listed,) = [one for one in (await store.list_sessions("default")).sessions if one.id == "busy"]
    assert listed.queued_runs == 1

    waiting = RunWaiting(pending=(PendingCall(tool_call_id="c", name="t", arguments="{}", reason="approval"),))
    state = (await store.append(busy, state, draft_events("Triage", [waiting], "r1"), lease=lease)).state
    assert [one.session_id for one in (await store.list_active_runs("default", "running")).runs] == ["other"]
    (run,) = (await store.list_active_runs("default", "waiting")).runs
    assert (run.status, run.server, run.lease_seconds, run.since) == ("waiting", None, None, state.updated_at)
