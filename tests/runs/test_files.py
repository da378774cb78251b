"""Pictures in sessions: kept once beside the events, sent to the model, and gone with what referred to them."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func, select

from swarmkeep import Agent
from swarmkeep.decide.commands import StartRun
from swarmkeep.events.errors import InvalidRequest, RequestNotKept, TooLarge
from swarmkeep.events.facts import EventDraft, MessageAdded
from swarmkeep.history.replay import rebuild_request
from swarmkeep.history.verify import verify
from swarmkeep.request.request import History
from swarmkeep.store.records import SessionKey
from swarmkeep.store.tables import files
from tests.runs.cluster import KEY, LIMITS, EngineCluster, Server
from tests.support.pictures import encode_content, hash_content, make_inline_picture, make_message, make_png
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

AGENT = Agent(name="A", model="m")
PICTURES = [make_png(100_000, seed) for seed in range(10)]


async def ask(engine: Server, message: Any, run_id: str = "r1", **options: Any) -> None:
    await engine.runs.start(KEY, StartRun(run_id=run_id, messages=(message,), **options))
    assert (await engine.wait(run_id)).status == "completed"


async def count_files(engine: Server) -> int:
    read = select(func.count()).select_from(files)
    counted = await engine.store.database.read(lambda db: db.scalar(read))  # type: ignore[attr-defined]
    assert isinstance(counted, int)
    return counted


async def test_picture_is_sent_and_stored_beside_event(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(AGENT)
    said = make_message(make_inline_picture(PICTURES[0], detail="low"))
    model.say("A cat.")
    await ask(engine, said)
    assert model.requests[0]["messages"][-1] == said
    assert all(encode_content(PICTURES[0])[:100] not in event.payload for event in await engine.read_log())
    model.say("Still a cat.")
    await ask(engine, make_message(text="Sure?"), "r2")
    assert model.requests[1]["messages"][1] == said
    assert (await verify(engine.store, KEY)).valid
    assert await count_files(engine) == 1


@pytest.mark.long
async def test_fifty_turns_with_ten_pictures(cluster: EngineCluster, model: ScriptedModel) -> None:
    """The log grows by each picture once, and what is kept of the state holds none."""
    engine = await cluster.begin(AGENT)
    before = (await engine.store.read_totals(KEY.tenant)).bytes
    said = []
    for number in range(50):
        parts = [make_inline_picture(PICTURES[number // 5])] if number % 5 == 0 else []
        said.append(make_message(*parts, text=f"question {number}"))
        model.say(f"answer {number}")
        await ask(engine, said[-1], f"r{number}")
    asked = [message for message in model.requests[-1]["messages"] if message["role"] == "user"]
    assert asked == said
    grown = (await engine.store.read_totals(KEY.tenant)).bytes - before
    content = sum(map(len, PICTURES))
    assert content < grown < content + 300_000
    state = await engine.read_state()
    assert state.size < 200_000
    kept = state.messages.recall(History)
    assert len(kept.json) < 50_000  # type: ignore[attr-defined]
    assert all(encode_content(picture)[:64] not in repr(kept) for picture in PICTURES)
    assert (await verify(engine.store, KEY)).valid


async def test_past_request_is_rebuilt_byte_exact(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(AGENT)
    model.say("A cat.")
    await ask(engine, make_message(make_inline_picture(PICTURES[0])))
    answer = next(event for event in await engine.read_log() if event.agent == "A" and "A cat." in event.payload)
    assert await rebuild_request(engine.store, KEY, answer.seq) == model.raw_requests[0]
    name = hash_content(PICTURES[0])
    await engine.store.database.write(lambda db: db.execute(files.delete().where(files.c.hash == name)))  # type: ignore[attr-defined]
    with pytest.raises(RequestNotKept, match=name):
        await rebuild_request(engine.store, KEY, answer.seq)
    found = await verify(engine.store, KEY)
    assert [problem.code for problem in found.problems] == ["file_missing"]


async def test_content_that_was_changed_is_found(cluster: EngineCluster) -> None:
    engine = await cluster.open_engine(AGENT)
    await engine.open_session(messages=[make_message(make_inline_picture(PICTURES[0]))])
    change = files.update().values(content=PICTURES[1])
    await engine.store.database.write(lambda db: db.execute(change))  # type: ignore[attr-defined]
    found = await verify(engine.store, KEY)
    assert [(problem.code, problem.seq) for problem in found.problems] == [("file_differs", 2)]
    stray = files.insert().values(tenant=KEY.tenant, session_id=KEY.id, hash="f" * 64, content=b"x")
    await engine.store.database.write(lambda db: db.execute(stray))  # type: ignore[attr-defined]
    found = await verify(engine.store, KEY)
    assert "file_stray" in [problem.code for problem in found.problems]


async def test_queued_picture_is_sent_in_turn(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(AGENT)
    model.hang()
    await engine.runs.start(KEY, StartRun(run_id="r1", messages=(make_message(text="first"),)))
    await model.wait_for_requests_async(1)
    said = make_message(make_inline_picture(PICTURES[0]))
    await engine.runs.start(KEY, StartRun(run_id="r2", messages=(said,), on_busy="queue"))
    model.say("A cat.")
    model.release()
    assert (await engine.wait("r2")).status == "completed"
    assert model.requests[1]["messages"][-1] == said
    assert (await verify(engine.store, KEY)).valid
    assert await count_files(engine) == 1


async def test_earlier_release_messages_keep_content(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(AGENT)
    said = make_message(make_inline_picture(PICTURES[0]))
    drafts = [EventDraft(MessageAdded(message=said), None, "A")]
    await engine.store.append(KEY, await engine.read_state(), drafts)
    model.say("A cat.")
    await ask(engine, make_message(text="What is it?"))
    assert model.requests[0]["messages"][1] == said
    assert (await verify(engine.store, KEY)).valid
    assert await count_files(engine) == 0


async def test_repeated_picture_is_read_from_memory(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(AGENT)
    await engine.open_session(messages=[make_message(make_inline_picture(PICTURES[0]))])
    name = hash_content(PICTURES[0])
    assert await engine.store.read_files(KEY, [name], fresh=False) == {name: PICTURES[0]}
    change = files.update().values(content=b"other")
    await engine.store.database.write(lambda db: db.execute(change))  # type: ignore[attr-defined]
    assert await engine.store.read_files(KEY, [name], fresh=False) == {name: PICTURES[0]}
    assert await engine.store.read_files(KEY, [name]) == {name: b"other"}


async def test_refused_files_are_not_kept(cluster: EngineCluster) -> None:
    engine = await cluster.begin(AGENT)
    for part, error in (
        (make_inline_picture(b"<html>"), InvalidRequest),
        (make_inline_picture(make_png(LIMITS.max_blob_bytes + 1)), TooLarge),
    ):
        with pytest.raises(error):
            await engine.runs.start(KEY, StartRun(run_id="r1", messages=(make_message(part),)))
        with pytest.raises(error):
            await engine.sessions.add_messages(KEY, [make_message(part)])
        with pytest.raises(error):
            await engine.sessions.create("default", messages=[make_message(part)])
    assert await count_files(engine) == 0
    assert len(await engine.read_log()) == 1


async def test_fork_is_sent_its_own_pictures(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(AGENT)
    said = make_message(make_inline_picture(PICTURES[0]))
    await engine.open_session(messages=[said])
    copy = await engine.sessions.fork(KEY)
    await engine.sessions.delete(KEY)
    model.say("A cat.")
    key = SessionKey(KEY.tenant, copy.id)
    await engine.runs.start(key, StartRun(run_id="r1", messages=(make_message(text="What is it?"),)))
    assert (await engine.wait("r1", key)).status == "completed"
    assert model.requests[0]["messages"][1] == said
    assert (await verify(engine.store, key)).valid
