"""Sessions that are made for a run: in its commit, or not at all; and otherwise as if they had been made before it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from swarmkeep import Agent
from swarmkeep.decide.commands import StartRun, create_session
from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.errors import DomainError, QuotaExceeded, SeqConflict, SessionBusy, SessionExists
from swarmkeep.events.facts import EventDraft, RunResumed
from swarmkeep.events.state import State
from swarmkeep.history.redact import redact
from swarmkeep.runs.limits import Limits
from swarmkeep.runs.policy import make_plan
from swarmkeep.runs.runs import IdempotentRequest
from swarmkeep.store.records import SessionKey
from swarmkeep.store.tables import events, idempotency, search_marks, session_labels, sessions
from tests.runs.cluster import KEY, LIMITS, EngineCluster, Server, make_start_run
from tests.support.scripted import ScriptedModel

AT_ONCE, BEFORE, LATER = [SessionKey("default", name) for name in ("atonce", "before", "later")]
PICTURE = "data:image/png;base64,iVBORw0KGgo="
GIVEN: Any = {
    "context_variables": {"name": "Ada"},
    "metadata": {"from": "here"},
    "messages": [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PICTURE}}]},
        {"role": "assistant", "content": "A picture."},
    ],
}
# What differs between any two sessions: where they are, when they were made, by what chance, and whose they are.
_PLACE = {"session_id", "id", "view"}
_TIME = {"recorded_at", "created_at", "updated_at", "active_at"}
_CHANCE = {"salt", "commitment", "hash", "head_hash"}
# One that was there before has its second lease.
_LEASE = {"lease_owner", "lease_epoch", "lease_expires_at"}
# A session is found by more if it is made with its run.
_OWN = {"search_marks": {"seq", "done"}}


class NotingDrafts(list[EventDraft]):
    """Drafts that note in which threads they are gone through."""

    def __init__(self, drafts: Iterable[EventDraft]) -> None:
        super().__init__(drafts)
        self.threads: list[int] = []

    def __iter__(self) -> Iterator[EventDraft]:
        self.threads.append(threading.get_ident())
        return super().__iter__()


async def read_rows(engine: Server, key: SessionKey) -> dict[str, list[Any]]:
    """All that the database has of a session, but for what is its own."""
    found = {}
    for table in (sessions, events, session_labels, search_marks, idempotency):
        session = table.c.id if table is sessions else table.c.session_id
        left_out = _PLACE | _TIME | _CHANCE | _LEASE | _OWN.get(table.name, set())
        columns = [column for column in table.c if column.name not in left_out]
        statement = table.select().with_only_columns(*columns).where(session == key.id)
        rows = await engine.store.database.read(  # type: ignore[attr-defined]
            lambda connection, statement=statement: connection.execute(statement).all()
        )
        found[table.name] = sorted(map(repr, rows))
    return found


async def read_totals(engine: Server) -> tuple[int, int]:
    totals = await engine.store.read_totals("default")
    return totals.sessions, totals.bytes


@pytest.fixture
async def engine(cluster: EngineCluster) -> Server:
    return await cluster.open_engine(Agent(name="A"), start=False)


@pytest.mark.parametrize("origin", ["new", "fork"])
async def test_one_commit_records_what_two_would(engine: Server, model: ScriptedModel, origin: str) -> None:
    request = IdempotentRequest("k", "digest")
    if origin == "fork":
        model.say("Before.")
        await engine.sessions.create(KEY.tenant, session_id=KEY.id, **GIVEN)
        await engine.run()
        plan = await engine.sessions.plan_fork(KEY, at=4)
    else:
        plan = await engine.sessions.plan(**GIVEN)
    model.hang(then="Hello.")
    model.hang(then="Hello.")
    command = make_start_run("hello", "r2", context_variables={"n": 1})
    totals = [await read_totals(engine)]
    if origin == "fork":
        await engine.sessions.fork(KEY, at=4, session_id=BEFORE.id)
    else:
        await engine.sessions.create(BEFORE.tenant, session_id=BEFORE.id, **GIVEN)
    two = await engine.runs.start(BEFORE, command, idempotency=request)
    totals.append(await read_totals(engine))
    one = await engine.runs.start(AT_ONCE, command, idempotency=request, plan=plan)
    totals.append(await read_totals(engine))
    rows = await read_rows(engine, AT_ONCE)
    assert [len(found) for found in rows.values()] == [1, 6 if origin == "new" else 8, 1, 1, 1]
    assert rows == await read_rows(engine, BEFORE)
    assert [each - totals[0][0] for each, _ in totals] == [0, 1, 2]
    assert totals[2][1] - totals[1][1] == totals[1][1] - totals[0][1]
    assert (one.run_id, one.after, one.seq) == (two.run_id, two.after, two.seq)
    made = await engine.store.read(AT_ONCE, after=plan.base.seq)
    assert len({event.at for event in made}) == 1
    again = await engine.runs.start(AT_ONCE, command, idempotency=request, plan=plan)
    assert (again.repeated, again.after, again.seq) == (True, one.after, one.seq)
    model.release()
    for key in (AT_ONCE, BEFORE):
        assert (await engine.wait("r2", key)).status == "completed"
    assert await engine.read_types(AT_ONCE) == await engine.read_types(BEFORE)


async def test_existing_session_is_not_made_again(engine: Server) -> None:
    plan = await engine.sessions.plan(messages=[{"role": "user", "content": "mine"}])
    await engine.sessions.create(KEY.tenant, session_id=KEY.id)
    with pytest.raises(SessionExists):
        await engine.runs.start(KEY, make_start_run(), plan=plan)
    assert await engine.read_types() == ["session.created"]


async def test_fork_of_changed_source_is_refused(engine: Server, model: ScriptedModel) -> None:
    model.say("Hello.")
    await engine.sessions.create(KEY.tenant, session_id=KEY.id)
    await engine.run()
    plan = await engine.sessions.plan_fork(KEY, at=3)
    await engine.sessions.delete(KEY)
    with pytest.raises(SeqConflict) as refused:
        await engine.runs.start(AT_ONCE, make_start_run(), plan=plan)
    assert refused.value.session_id == KEY.id
    assert await engine.read_types(AT_ONCE) == []


async def test_fork_is_counted_once_recorded(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(Agent(name="A"), start=False, limits=replace(LIMITS, max_forks_per_minute=1))
    await engine.sessions.create(KEY.tenant, session_id=KEY.id, **GIVEN)
    await engine.sessions.create(KEY.tenant, session_id=BEFORE.id)
    plan = await engine.sessions.plan_fork(KEY, at=3)
    await redact(engine.store, KEY, [2], "private")
    with pytest.raises(SeqConflict):
        await engine.runs.start(AT_ONCE, make_start_run(), plan=plan)
    with pytest.raises(SessionExists):
        await engine.sessions.fork(KEY, session_id=BEFORE.id)
    model.say("Hello.")
    plan, late = [await engine.sessions.plan_fork(KEY, at=3) for _ in range(2)]
    await engine.runs.start(AT_ONCE, make_start_run(), plan=plan)
    with pytest.raises(QuotaExceeded):
        await engine.runs.start(LATER, make_start_run(), plan=late)
    with pytest.raises(QuotaExceeded):
        await engine.sessions.fork(KEY)
    assert (await engine.wait(key=AT_ONCE)).status == "completed"


async def test_large_plan_folds_once_in_thread() -> None:
    drafts = NotingDrafts(
        draft_events("A", create_session("A", {}, {}, [{"role": "user", "content": "hi"}] * 2_000), None)
    )
    plan = await make_plan(drafts)
    here = threading.get_ident()
    elsewhere = [thread for thread in drafts.threads if thread != here]
    assert len(elsewhere) == 1
    drafts.threads.clear()
    assert (plan.state.message_count, plan.state.seq) == (2_000, 2_001)
    begun = plan.begin_with(lambda state: draft_events(f"at {state.seq}", [RunResumed(reason="recovery")], "r1"))(
        State()
    )
    assert (len(begun), begun[-1].agent) == (2_002, "at 2001")
    # Put before what is decided, and not folded again.
    assert drafts.threads == [here]


async def test_what_is_refused_leaves_no_session(cluster: EngineCluster) -> None:
    cases: list[tuple[Limits, StartRun, type[DomainError]]] = [
        (replace(LIMITS, max_sessions=0), make_start_run(), QuotaExceeded),
        (replace(LIMITS, max_runs_per_tenant=0), make_start_run(), QuotaExceeded),
        (LIMITS, make_start_run(after_run="r0"), SessionBusy),
    ]
    for limits, command, refusal in cases:
        engine = await cluster.open_engine(Agent(name="A"), start=False, limits=limits)
        with pytest.raises(refusal):
            await engine.runs.start(KEY, command, plan=await engine.sessions.plan())
        assert await engine.read_types() == []
