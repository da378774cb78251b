"""Every past request, put together again, is what the model received: to the byte."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from swarmkeep import Agent
from swarmkeep.events.errors import EventNotFound, RequestNotKept
from swarmkeep.events.facts import MessageAdded
from swarmkeep.history.replay import rebuild_request
from swarmkeep.models.model import ChatModel
from swarmkeep.runs.engine import Engine
from swarmkeep.store.records import SessionKey
from tests.history.replay.team import TEAM, GeneratedConversation, open_scripted_model
from tests.runs.cluster import (
    KEY,
    LIMITS,
    EngineCluster,
    kill_engine,
    open_session,
    read_log,
    run_to_end,
    start_hanging_run,
    wait_for_end,
    wait_for_state,
)
from tests.support.logs import SeededDice
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


async def find_answers(engine: Engine, key: SessionKey = KEY) -> list[int]:
    """The seqs of the model's answers, in order."""
    facts = [(event.seq, event.fact) for event in await read_log(engine, key)]
    return [
        seq
        for seq, fact in facts
        if isinstance(fact, MessageAdded) and fact.completion is not None and fact.completion.request is not None
    ]


async def rebuild_all(engine: Engine, key: SessionKey = KEY) -> list[bytes]:
    return [await rebuild_request(engine.store, key, seq) for seq in await find_answers(engine, key)]


@pytest.mark.parametrize("seed", range(100, 106))
async def test_every_request_rebuilt_exactly(cluster: EngineCluster, seed: int) -> None:
    generated = GeneratedConversation(SeededDice(seed))
    async with open_scripted_model(generated) as (model, client):
        engine = await cluster.open_engine(*TEAM, model=ChatModel(client))
        original, fork = await generated.run_conversation(engine)
        sent = model.raw_requests
        assert sent
        assert await rebuild_all(engine, original) == sent
        shared = await rebuild_all(engine, fork)
        assert shared == sent[: len(shared)]


async def test_request_with_partial_history_rebuilt(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(Agent(name="A"), limits=replace(LIMITS, history_turns=2))
    await open_session(engine)
    for number in range(4):
        model.say(f"answer {number}")
        await run_to_end(engine, f"question {number}", f"r{number}")
    assert len(model.requests[-1]["messages"]) < 8
    assert await rebuild_all(engine) == model.raw_requests


async def test_shortened_request_rebuilt(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(Agent(name="A"))
    await open_session(engine)
    for number in range(3):
        model.say(f"answer {number}")
        await run_to_end(engine, f"question {number}", f"r{number}")
    model.fail(400, code="context_length_exceeded")
    model.say("short")
    await run_to_end(engine, "and now?", "last")
    assert (await rebuild_all(engine))[-1] == model.raw_requests[-1] != model.raw_requests[-2]


async def test_request_after_take_over_rebuilt(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(Agent(name="A"))
    await open_session(engine)
    await start_hanging_run(engine, model)
    await kill_engine(engine)
    model.say("again")
    other = await cluster.open_engine(Agent(name="A"))
    await wait_for_end(other)
    await wait_for_state(other, lambda state: state.run is None)
    assert await rebuild_all(other) == model.raw_requests[-1:]
    model.release()


async def test_non_answer_has_no_request(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(Agent(name="A"))
    await open_session(engine)
    model.say("hi")
    await run_to_end(engine)
    for seq in (1, 2, 3):
        with pytest.raises(EventNotFound):
            await rebuild_request(engine.store, KEY, seq)
    with pytest.raises(EventNotFound):
        await rebuild_request(engine.store, KEY, 99)


async def test_request_with_lost_parts_refused(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(Agent(name="A"))
    await open_session(engine)
    model.say("hi")
    await run_to_end(engine)
    (seq,) = await find_answers(engine)
    marked = (
        """UPDATE events SET payload = substr(payload, 1, length(payload) - 1) || ',"redacted":true}' WHERE seq = 3"""
    )
    await damage(engine, marked)
    with pytest.raises(RequestNotKept, match="event 3 was redacted"):
        await rebuild_request(engine.store, KEY, seq)
    await damage(engine, "UPDATE events SET payload = replace(payload, ',\"redacted\":true', '') WHERE seq = 3")
    await damage(engine, "DELETE FROM blobs")
    with pytest.raises(RequestNotKept, match="instructions"):
        await rebuild_request(engine.store, KEY, seq)
    await damage(engine, "UPDATE events SET payload = 'null' WHERE seq = 3")
    with pytest.raises(RequestNotKept, match="event 3 was redacted"):
        await rebuild_request(engine.store, KEY, seq)


async def damage(engine: Engine, statement: str) -> None:
    await engine.store.database.write(  # type: ignore[attr-defined]
        lambda connection: connection.exec_driver_sql(statement)
    )
