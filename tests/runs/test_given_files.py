"""Files and pictures that functions give: kept once, named in the result, and shown to the model behind the results."""

from __future__ import annotations

import io
import json
from contextlib import aclosing
from typing import Any

import pytest
from msgspec.structs import replace
from openai import OpenAI
from sqlalchemy import func, select

from swarmkeep import Agent, File, Result, Swarm, tool
from swarmkeep.decide.checks import TakenMessages
from swarmkeep.events.errors import TooLarge
from swarmkeep.events.facts import MessageAdded
from swarmkeep.events.files import MAX_SENT_BYTES
from swarmkeep.events.messages import HEADING, list_result_references
from swarmkeep.history.export import iterate_keys, write_export
from swarmkeep.history.import_export import import_export
from swarmkeep.history.redact import redact
from swarmkeep.history.replay import rebuild_request, replay_session
from swarmkeep.history.verify import verify
from swarmkeep.models.failures import Secrets
from swarmkeep.models.offline.answers import read_turn
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.swarm import GivenFiles
from swarmkeep.runs.unstored import UnstoredSession
from swarmkeep.store.records import SessionKey
from swarmkeep.store.tables import files
from tests.runs.cluster import KEY, LIMITS, EngineCluster, Server, ToolGate, kill_engine, make_start_run
from tests.support.pictures import hash_content, make_data_url, make_png
from tests.support.scripted import ScriptedModel
from tests.support.scripted.replies import Call

pytestmark = pytest.mark.one_database

CHART = make_png(12_000)
PHOTO = make_png(500, 1)
PDF = b"%PDF-1.7 a report"


def show_chart() -> Result:
    """Show the chart."""
    return Result(
        "Sales rose.", files=[File(CHART, "image/png", "chart.png"), File(b"a,b\n1,2\n", "text/csv", "a.csv")]
    )


def find_photo() -> list[File]:
    """Find photos."""
    return [File(PHOTO, "image/png"), File(PDF, "application/pdf"), File(b"<svg/>", "image/svg+xml", "evil.svg")]


AGENT = Agent(name="A", model="m", functions=[show_chart, find_photo])


async def count_files(engine: Server, key: SessionKey = KEY) -> int:
    read = select(func.count()).select_from(files).where(files.c.session_id == key.id)
    counted = await engine.store.database.read(lambda db: db.scalar(read))  # type: ignore[attr-defined]
    assert isinstance(counted, int)
    return counted


def roles(request: dict[str, Any]) -> list[str]:
    return [message["role"] for message in request["messages"]]


async def test_function_files_are_kept_shown_and_forwarded(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(AGENT)
    model.calls([Call("show_chart", id="call_1"), Call("find_photo", id="call_2")])
    model.say("It rises.")
    await engine.run()
    assert roles(model.requests[1]) == ["system", "user", "assistant", "tool", "tool", "user"]
    first, second, shown = model.requests[1]["messages"][3:]
    assert first["content"] == (
        "Sales rose.\npicture 1: chart.png, image/png, 12 kB\n"
        "file 2: a.csv, text/csv, 8 B (kept for people; it is not shown to you)"
    )
    assert second["content"].splitlines()[:2] == ["picture 1: image/png, 500 B", "file 2: application/pdf, 17 B"]
    assert "a file was not kept: evil.svg, image/svg+xml" in second["content"]
    assert shown["content"] == [
        {"type": "text", "text": f"{HEADING} picture 1 of the result of show_chart (call_1)]"},
        {"type": "image_url", "image_url": {"url": make_data_url(CHART)}},
        {"type": "text", "text": f"{HEADING} picture 1, file 2 of the result of find_photo (call_2)]"},
        {"type": "image_url", "image_url": {"url": make_data_url(PHOTO)}},
        {"type": "file", "file": {"file_data": make_data_url(PDF, "application/pdf"), "filename": "file-2"}},
    ]
    # The next run sends them at the same place.
    model.say("Still so.")
    await engine.run("Sure?", "r2")
    assert model.requests[2]["messages"][:6] == model.requests[1]["messages"]

    events = await engine.read_log()
    given = next(event for event in events if "chart.png" in event.payload)
    assert isinstance(given.fact, MessageAdded)
    assert given.fact.tool is not None
    assert [part["blob"]["sha256"] for part in given.fact.tool.files or ()] == [
        hash_content(CHART),
        hash_content(b"a,b\n1,2\n"),
    ]
    shown_files = [entry.view().get("files") for entry in (await engine.read_state()).messages if entry.role == "tool"]
    assert shown_files[0] == list(given.fact.tool.files or ())
    assert await count_files(engine) == 4
    assert (await verify(engine.store, KEY)).valid
    answers = [event.seq for event in events if isinstance(event.fact, MessageAdded) and event.fact.completion]
    assert await rebuild_request(engine.store, KEY, answers[1]) == model.raw_requests[1]
    found = await replay_session(engine.store, Registry([AGENT]), KEY)
    assert found.divergences == []

    fork = SessionKey(KEY.tenant, (await engine.sessions.fork(KEY)).id)
    exported = b"".join([line async for line in write_export(engine.store, iterate_keys([KEY]))])
    await redact(engine.store, KEY, [given.seq], "private")
    assert await count_files(engine) == 2
    assert (await verify(engine.store, KEY)).valid
    model.say("Gone.")
    await engine.run("And now?", "r3")
    assert make_data_url(CHART) not in model.raw_requests[3].decode()
    assert make_data_url(PHOTO) in model.raw_requests[3].decode()
    await engine.sessions.delete(KEY)
    await import_export(engine.store, "other", io.BytesIO(exported))
    for key in (fork, SessionKey("other", KEY.id)):
        assert await count_files(engine, key) == 4
        assert (await verify(engine.store, key)).valid
        assert await engine.store.read_files(key, [hash_content(CHART)]) == {hash_content(CHART): CHART}


async def test_files_past_tenant_quota_are_dropped(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(AGENT, limits=replace(LIMITS, max_stored_bytes=10_000))
    model.calls([Call("show_chart", id="call_1"), Call("find_photo", id="call_2")])
    model.say("It rises.")
    assert (await engine.run()).status == "completed"
    first, second, shown = model.requests[1]["messages"][3:]
    assert first["content"].splitlines()[:2] == ["Sales rose.", "picture 1: chart.png, image/png, 12 kB"]
    assert "None of these files was kept: the tenant would have " in first["content"]
    assert "SWARMKEEP_MAX_STORED_BYTES" in first["content"]
    # What there is room for is kept.
    assert second["content"].startswith("picture 1: image/png, 500 B")
    assert [part["type"] for part in shown["content"]] == ["text", "image_url", "file"]
    assert await count_files(engine) == 2
    await engine.check_log()


async def test_secrets_leave_text_files_before_hashing(cluster: EngineCluster, model: ScriptedModel) -> None:
    def dump() -> Result:
        """Dump the settings."""
        return Result(
            files=[
                File("clé = sk-secret-0123\n".encode(), "text/plain", "a.txt"),
                File(b"\xff sk-secret-0123", "application/zip", "b.zip"),
                File(b"nothing", "text/plain"),
            ]
        )

    engine = await cluster.begin(Agent(name="A", functions=[dump]), secrets=Secrets(["sk-secret-0123"]))
    model.call("dump")
    model.say("Done.")
    await engine.run()
    given = next(entry for entry in (await engine.read_state()).messages if entry.role == "tool")
    names = [found.sha256 for found in list_result_references(given.tool)]
    kept = await engine.store.read_files(KEY, names)
    # What is no text is as it was.
    assert [kept[name] for name in names] == ["clé = [secret removed]\n".encode(), b"\xff sk-secret-0123", b"nothing"]
    assert (await verify(engine.store, KEY)).valid


async def test_cut_call_picture_is_there_once(cluster: EngineCluster, model: ScriptedModel) -> None:
    """A call that may run again gives it again; of one whose result is too large, no file stays behind."""
    gate = ToolGate()

    @tool(idempotent=True)
    def draw() -> File:
        """Draw a picture."""
        gate.enter()
        return File(CHART, "image/png")

    def write() -> Result:
        """Write far too much."""
        return Result("x" * (LIMITS.max_message_bytes + 1), files=[File(PHOTO, "image/png")])

    agent = Agent(name="A", model="m", functions=[draw, write])
    first = await cluster.begin(agent)
    model.calls([Call("draw"), Call("write")])
    await first.start_run(gate=gate)
    await kill_engine(first)
    await gate.open()
    model.say("Drawn.")
    second = await cluster.open_engine(agent)
    assert (await second.wait()).status == "completed"
    drawn, written, shown = model.requests[1]["messages"][3:]
    assert drawn["content"] == "picture 1: image/png, 12 kB"
    assert written["content"].startswith("Error: write ran, but nothing that it gave")
    assert [part["type"] for part in shown["content"]] == ["text", "image_url"]
    assert await count_files(second) == 1
    assert (await verify(second.store, KEY)).valid


def test_memory_keeps_newest_files() -> None:
    kept = GivenFiles(max_bytes=10)
    kept.add({"a": b"1234", "b": b"1234"})
    # Given again, it is the newest.
    kept.add({"a": b"1234"})
    kept.add({"c": b"1234"})
    assert kept.find(["a", "b", "c"]) == {"a": b"1234", "c": b"1234"}
    kept.add({"d": b"12345678901"})
    assert kept.find(["a", "c", "d"]) == {}


def test_swarm_shows_model_function_files(model: ScriptedModel) -> None:
    model.call("show_chart", id="call_1")
    model.say("It rises.")
    client = Swarm(OpenAI(base_url=model.url, api_key="k"))
    response = client.run(AGENT, [{"role": "user", "content": "How are sales?"}])
    assert model.requests[1]["messages"][-1]["content"][1] == {
        "type": "image_url",
        "image_url": {"url": make_data_url(CHART)},
    }
    assert [message["role"] for message in response.messages] == ["assistant", "tool", "assistant"]


def test_offline_model_ignores_function_files() -> None:
    asked = {"role": "user", "content": "How are sales?"}
    called = [{"id": "c1", "type": "function", "function": {"name": "show_chart", "arguments": "{}"}}]
    given = {"role": "user", "content": [{"type": "text", "text": f"{HEADING} picture 1 of …]"}]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "They rise."}
    turn = read_turn({"messages": [asked, {"role": "assistant", "tool_calls": called}, result, given]})
    assert (turn.text, [found.name for found in turn.unseen_results]) == ("How are sales?", ["show_chart"])


async def test_unkept_session_file_reaches_next_run(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(AGENT)
    session = UnstoredSession((await engine.sessions.plan(agent="A")).state)
    model.call("show_chart")
    model.say("It rises.")
    model.say("Still so.")
    for run_id in ("r1", "r2"):
        async with aclosing(await engine.unstored.start("default", session, make_start_run(run_id=run_id))) as batches:
            _ = [batch async for batch in batches]
    pictures = [json.dumps(request).count(make_data_url(CHART)) for request in model.requests]
    assert pictures == [0, 1, 1]
    assert await count_files(engine, SessionKey("default", session.id)) == 0


async def test_unstored_responses_bound_files(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(AGENT, start=False)
    session = UnstoredSession((await engine.sessions.plan(agent="A")).state)
    blob = {"sha256": "0" * 64, "media_type": "image/png", "size": MAX_SENT_BYTES - len(PHOTO)}
    earlier = {"role": "user", "content": [{"type": "image_url", "image_url": {}, "blob": blob}]}
    session.count_files(TakenMessages((earlier,), {}))
    picture = {"type": "image_url", "image_url": {"url": make_data_url(PHOTO)}}
    command = replace(make_start_run(), messages=({"role": "user", "content": [picture]},))
    model.say("Seen.")
    async with aclosing(await engine.unstored.start("default", session, command)) as batches:
        _ = [batch async for batch in batches]
    assert session.state.message_count == 2
    with pytest.raises(TooLarge, match="more than 50000000 bytes together"):
        await engine.unstored.start("default", session, replace(command, run_id="r2"))
    assert session.state.message_count == 2
