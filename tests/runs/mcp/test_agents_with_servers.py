"""Agents with MCP servers: what models are offered, what is recorded, and what becomes of calls."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from swarmkeep import Agent, AsyncSwarm, MCPServer, Swarm
from swarmkeep.events.errors import RequestNotKept
from swarmkeep.events.facts import MessageAdded, ToolsListed
from swarmkeep.history.export import iterate_keys, write_export
from swarmkeep.history.import_export import import_export
from swarmkeep.history.redact import redact
from swarmkeep.history.replay import rebuild_request, replay_session
from swarmkeep.history.verify import verify
from swarmkeep.runs.agents import Registry
from swarmkeep.store.records import SessionKey
from tests.runs.cluster import KEY, EngineCluster, Server, kill_engine, list_results
from tests.support import warm
from tests.support.mcp.server import PICTURE
from tests.support.pictures import make_data_url
from tests.support.scripted import ScriptedModel
from tests.support.scripted.replies import Call, to_reply
from tests.support.waiting import wait_until

SERVERS = Path(__file__).parents[2] / "support" / "mcp"
SECRET = "hunter2-and-more"
DESCRIPTION = "Add two numbers"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    assert [thread for thread in threading.enumerate() if thread.name == "swarmkeep-mcp" and not thread.daemon] == []


@pytest.fixture
def ready_url(request: pytest.FixtureRequest) -> str:
    """Half of the tests are on each kind of database: what servers offer and answer is kept as all other facts are."""
    kind = ("sqlite", "postgres")[zlib.crc32(request.node.name.encode()) % 2]
    url = request.getfixturevalue(f"{kind}_ready")
    assert isinstance(url, str)
    return url


def make_server(folder: Path, *arguments: str, program: str = "server", **settings: Any) -> MCPServer:
    env = {"MCP_TEST_FOLDER": str(folder), **settings.pop("env", {})}
    settings = {"name": "files", "connect_timeout": 60, **settings}
    command = warm.shell_command(folder, program, SERVERS / f"{program}.py")
    return MCPServer(command=(str(command), *arguments), env=env, **settings)


# To start a server takes seconds, on a machine that has other things to do.
pytestmark = pytest.mark.long


def script(model: ScriptedModel, *replies: Call | str) -> None:
    for reply in replies:
        model.add(to_reply(reply))


def list_listings(events: Any) -> list[ToolsListed]:
    return [event.fact for event in events if isinstance(event.fact, ToolsListed)]


def list_offered(request: Any) -> list[str]:
    return [tool["function"]["name"] for tool in request.get("tools", [])]


def read_lines(folder: Path, name: str) -> list[str]:
    path = folder / name
    return path.read_text().splitlines() if path.exists() else []


async def check_requests(engine: Server, model: ScriptedModel) -> None:
    answers = [
        event.seq
        for event in await engine.read_log()
        if isinstance(event.fact, MessageAdded) and event.fact.completion is not None and event.fact.completion.request
    ]
    assert [await rebuild_request(engine.store, KEY, seq) for seq in answers] == model.raw_requests


async def test_server_tools_are_offered_recorded_and_called(
    cluster: EngineCluster, model: ScriptedModel, folder: Path
) -> None:
    agent = Agent(name="A", mcp_servers=[make_server(folder, tools=("add", "show"))])
    engine = await cluster.begin(agent)
    script(model, Call("add", {"a": 1, "b": 2}), Call("show", {}), "Three.", "Bye.")
    view = await engine.run()
    assert (view.status, view.output_text) == ("completed", "Three.")
    assert list_offered(model.requests[0]) == ["add", "show"]
    assert model.requests[0]["tools"][0]["function"]["description"] == "Add two numbers."
    await engine.run("more", "r2")
    events = await engine.read_log()
    (listing,) = list_listings(events)
    assert (listing.server, [tool.name for tool in listing.tools]) == ("files", ["add", "show"])
    assert (await engine.read_types())[:6] == [
        "session.created", "run.started", "message.added", "tools.listed", "message.added", "tool.started",
    ]  # fmt: skip
    (first, shown) = list_results(events)
    assert first == ("ok", "3")
    assert shown[1].splitlines()[:2] == ["Look:", "[picture, image/png]"]
    assert shown[1].splitlines()[-1] == "picture 1: image/png, 100 B"
    sent = model.requests[2]["messages"]
    assert [message["role"] for message in sent[-2:]] == ["tool", "user"]
    assert sent[-1]["content"][1] == {"type": "image_url", "image_url": {"url": make_data_url(PICTURE)}}
    assert "[resource file:///report.pdf, application/pdf, report]" in shown[1]
    assert "a note" in shown[1]
    await check_requests(engine, model)
    replayed = await replay_session(engine.store, Registry([agent]), KEY)
    assert (replayed.matches, replayed.turns, replayed.divergences) == (True, 4, [])
    assert len(read_lines(folder, "starts")) == 1
    assert (await verify(engine.store, KEY)).problems == []


@pytest.mark.parametrize("arguments", ['{"a": 1, "b', "{}"])
async def test_truncated_call_reaches_no_server(
    cluster: EngineCluster, model: ScriptedModel, folder: Path, arguments: str
) -> None:
    agent = Agent(name="A", mcp_servers=[make_server(folder, tools=("add",))])
    engine = await cluster.begin(agent)
    model.call("add", arguments, finish_reason="length")
    model.say("Sorry.")
    assert (await engine.run()).output_text == "Sorry."
    [(status, text)] = list_results(await engine.read_log())
    assert (status, "add was not run" in text) == ("error", True)
    assert "tool.started" not in await engine.read_types()
    await check_requests(engine, model)


async def test_clashing_tool_name_gets_server_prefix(
    cluster: EngineCluster, model: ScriptedModel, folder: Path
) -> None:
    def add(a: int) -> str:
        return "own"

    servers = [
        make_server(folder, tools=("add",)),
        make_server(folder, name="other", tools=("add",)),
        make_server(folder, name="third", prefix="x", tools=("add",)),
    ]
    engine = await cluster.begin(Agent(name="A", functions=[add], mcp_servers=servers))
    script(model, Call("other_add", {"a": 1, "b": 2}), Call("add", {"a": 1}), "Done.")
    await engine.run()
    assert list_offered(model.requests[0]) == ["add", "files_add", "other_add", "x_add"]
    assert list_results(await engine.read_log()) == [("ok", "3"), ("ok", "own")]
    await check_requests(engine, model)


@pytest.mark.parametrize("argument", ["aloud", "silently"])
async def test_changed_tool_list_is_one_event(
    cluster: EngineCluster, model: ScriptedModel, folder: Path, argument: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from swarmkeep.mcp import transports

    if argument == "silently":
        limits = transports.ConnectionLimits(list_seconds=0.0)
        monkeypatch.setattr(transports, "ConnectionLimits", lambda **given: limits)
    engine = await cluster.begin(Agent(name="A", mcp_servers=[make_server(folder, argument)]))
    script(
        model, Call("change", {}), Call("add", {"a": 1, "b": 1}), "Done.", Call("subtract", {"a": 3, "b": 1}), "Two."
    )
    await engine.run()
    await engine.run("And now?", "r2")
    events = await engine.read_log()
    before, after = list_listings(events)
    assert [tool.name for tool in after.tools] == [*(tool.name for tool in before.tools), "subtract"]
    assert list_results(events)[-1] == ("ok", "2")
    await check_requests(engine, model)


async def test_missing_server_is_only_a_model_error(cluster: EngineCluster, model: ScriptedModel, folder: Path) -> None:
    server = make_server(folder, env={"MCP_TEST_REFUSES": "yes"})
    nowhere = MCPServer(url="http://127.0.0.1:9/mcp", name="nowhere")
    engine = await cluster.begin(Agent(name="A", mcp_servers=[server, nowhere]), Agent(name="B"))
    script(model, Call("add", {"a": 1, "b": 1}), "I cannot.", "Hello.")
    assert (await engine.run()).status == "completed"
    events = await engine.read_log()
    listings = list_listings(events)
    assert [(one.server, one.tools, one.schemas) for one in listings] == [("files", (), None), ("nowhere", (), None)]
    assert listings[0].error == "its process ended with code 1"
    assert list_offered(model.requests[0]) == []
    assert list_results(events)[0][0] == "error"
    assert {one.name: one.status for one in engine.servers.list_statuses()} == {
        "files": "unreachable",
        "nowhere": "unreachable",
    }
    other = await engine.open_session(SessionKey("default", "s2"), agent="B")
    assert (await engine.run(key=other)).output_text == "Hello."


async def test_listed_tools_outlive_their_server(cluster: EngineCluster, model: ScriptedModel, folder: Path) -> None:
    first = await cluster.begin(Agent(name="A", mcp_servers=[make_server(folder, tools=("add",))]))
    script(model, "Hello.", Call("add", {"a": 1, "b": 1}), "I cannot.")
    await first.run()
    await first.stop()
    gone = make_server(folder, tools=("add",), env={"MCP_TEST_REFUSES": "yes"})
    engine = await cluster.open_engine(Agent(name="A", mcp_servers=[gone]))
    await engine.run("And?", "r2")
    events = await engine.read_log()
    assert len(list_listings(events)) == 1
    assert [list_offered(request) for request in model.requests] == [["add"]] * 3
    ((status, content),) = list_results(events)
    assert status == "error"
    assert content.startswith("Error: add failed: it did not run: the MCP server files cannot be reached")
    await check_requests(engine, model)


async def test_failing_server_is_answered_and_restarted(
    cluster: EngineCluster, model: ScriptedModel, folder: Path
) -> None:
    engine = await cluster.open_engine(Agent(name="A", mcp_servers=[make_server(folder)]))
    calls = [
        Call("die", {}),
        Call("add", {"a": 1, "b": 1}),
        Call("shout", {"length": 5_000_000}),
        Call("fail", {"text": "no luck"}),
        Call("add", {"a": "x"}),
        Call("add", "[1]"),
        Call("fail_and_show", {}),
        Call("add", {"a": 2, "b": 1}),
    ]
    script(model, *calls, "Done.")
    await engine.open_session()
    assert (await engine.run()).status == "completed"
    results = list_results(await engine.read_log())
    assert [status for status, _ in results] == ["error", "ok", "error", "error", "error", "error", "error", "ok"]
    assert "(its process ended with code 3). It may or may not have taken effect" in results[0][1]
    assert "larger than 4,000,000 bytes" in results[2][1]
    # What it shows of its failure is shown to the model.
    assert results[6][1].splitlines() == ["Error: fail_and_show failed: no such button", "picture 1: image/png, 100 B"]
    shown = [message for message in model.requests[7]["messages"] if isinstance(message["content"], list)]
    assert [message["content"][1]["image_url"]["url"] for message in shown] == [make_data_url(PICTURE)]
    assert "farewell" not in str(results)
    assert len(read_lines(folder, "starts")) >= 2


@pytest.mark.parametrize("tool", ["endless_line", "many_values", "many_parts", "garbage", "odd"])
async def test_flooded_output_is_not_kept(
    cluster: EngineCluster, model: ScriptedModel, folder: Path, tool: str
) -> None:
    engine = await cluster.begin(Agent(name="A", mcp_servers=[make_server(folder, program="raw_server")]))
    script(model, Call(tool, {}), Call("ok", {}), "Done.")
    assert (await engine.run()).status == "completed"
    first, second = list_results(await engine.read_log())
    assert first[0] == ("ok" if tool == "garbage" else "error")
    assert second == ("ok", "fine")
    reasons = {
        "endless_line": "larger than 4,000,000 bytes",
        "many_values": "more than 50,000 values",
        "many_parts": "more than 6,000 values outside of schemas and structured content",
        "odd": "odd failed: what it answered is not what the protocol asks for (content: Input should be a valid list)",
    }
    assert reasons.get(tool, "fine") in first[1]


async def test_hanging_call_times_out_and_tells_server(
    cluster: EngineCluster, model: ScriptedModel, folder: Path
) -> None:
    engine = await cluster.begin(Agent(name="A", mcp_servers=[make_server(folder, timeout=0.3)]))
    script(model, Call("hang", {}), "It did not answer.")
    await engine.run()
    ((status, content),) = list_results(await engine.read_log())
    assert (status, "did not finish within 0.3 s" in content) == ("timeout", True)
    await wait_until(lambda: read_lines(folder, "hangs") == ["begun", "cancelled"])


async def test_stalled_call_blocks_only_its_own_run(cluster: EngineCluster, model: ScriptedModel, folder: Path) -> None:
    engine = await cluster.begin(Agent(name="A", mcp_servers=[make_server(folder)]))
    other = SessionKey("default", "s2")
    await engine.open_session(other)
    script(model, Call("hang", {}))
    await engine.start_run()
    await wait_until(lambda: read_lines(folder, "hangs") == ["begun"])
    script(model, Call("add", {"a": 4, "b": 4}), "Eight.")
    assert (await engine.run(run_id="r2", key=other)).output_text == "Eight."
    await engine.runs.cancel(KEY, "r1")
    assert (await engine.wait()).status == "cancelled"
    await wait_until(lambda: read_lines(folder, "hangs") == ["begun", "cancelled"])
    assert len(read_lines(folder, "starts")) == 1


@pytest.mark.parametrize("trusted", [False, True])
async def test_cut_call_repeats_only_if_trusted_idempotent(
    cluster: EngineCluster, model: ScriptedModel, folder: Path, trusted: bool
) -> None:
    agent = Agent(name="A", mcp_servers=[make_server(folder, trust_hints=trusted)])
    first = await cluster.begin(agent)
    script(model, Call("send", {"text": "hi"}), "Done.")
    await first.start_run()
    await wait_until(lambda: read_lines(folder, "sent") == ["hi"])
    await kill_engine(first)
    (folder / "answer").touch()
    second = await cluster.open_engine(agent)
    assert (await second.wait()).status == "completed"
    ((status, _),) = list_results(await second.read_log())
    assert (status, read_lines(folder, "sent")) == (("ok", ["hi", "hi"]) if trusted else ("unknown_outcome", ["hi"]))
    types = await second.read_types()
    assert (types.count("tool.started"), types.count("tools.listed")) == (2 if trusted else 1, 1)


@pytest.mark.parametrize(
    ("settings", "waits"), [({}, False), ({"trust_hints": True}, True), ({"requires_approval": ("remove",)}, True)]
)
async def test_destructive_tools_need_approval_by_setting(
    cluster: EngineCluster, model: ScriptedModel, folder: Path, settings: dict[str, Any], waits: bool
) -> None:
    engine = await cluster.begin(Agent(name="A", mcp_servers=[make_server(folder, **settings)]))
    script(model, Call("remove", {"text": "all"}), *(() if waits else ("Done.",)))
    view = await engine.run()
    assert (view.status, view.stop_reason) == (("waiting", "approval") if waits else ("completed", "end_turn"))
    assert read_lines(folder, "removed") == ([] if waits else ["all"])


async def test_server_secrets_are_never_exposed(
    cluster: EngineCluster, model: ScriptedModel, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = make_server(folder, env={"MCP_TEST_SECRET": SECRET})
    engine = await cluster.begin(Agent(name="A", mcp_servers=[server]))
    script(model, Call("tell_secret", {}), Call("fail", {"text": SECRET}), Call("die", {}), "Done.")
    await engine.run()
    said = [event.payload for event in await engine.read_log() if "fail" not in event.payload]
    assert SECRET not in "".join(said)
    assert "the key is [secret removed]" in "".join(said)
    assert SECRET not in caplog.text
    assert SECRET not in f"{server!r} {server} {engine.servers.list_statuses()}"


async def test_sessions_may_have_their_own_processes(
    cluster: EngineCluster, model: ScriptedModel, folder: Path
) -> None:
    engine = await cluster.begin(Agent(name="A", mcp_servers=[make_server(folder, scope="session")]))
    script(model, "One.", "Two.")
    await engine.run()
    other = await engine.open_session(SessionKey("default", "s2"))
    await engine.run(key=other)
    assert len(read_lines(folder, "starts")) == 2


async def test_session_process_ends_with_its_session(
    cluster: EngineCluster, model: ScriptedModel, folder: Path
) -> None:
    agent = Agent(name="A", mcp_servers=[make_server(folder, scope="session")])
    first, second = [await cluster.open_engine(agent) for _ in range(2)]
    script(model, "One.", "Two.", "Three.")
    await first.open_session()
    for number, engine in enumerate((first, second)):
        await engine.run(run_id=f"r{number}")
    await first.sessions.delete(KEY)
    await wait_until(lambda: first.servers.list_statuses() == [])
    await second.open_session()
    await second.run(run_id="r2")
    assert len(read_lines(folder, "starts")) == 3


async def test_redacted_tool_list_is_recorded_again(cluster: EngineCluster, model: ScriptedModel, folder: Path) -> None:
    engine = await cluster.begin(Agent(name="A", mcp_servers=[make_server(folder, tools=("add",))]))
    script(model, "One.", "Two.")
    await engine.run()
    (seq,) = [event.seq for event in await engine.read_log() if event.type == "tools.listed"]
    answer = (await engine.read_log())[-2].seq
    assert DESCRIPTION in (await rebuild_request(engine.store, KEY, answer)).decode()
    await redact(engine.store, KEY, [seq], "no longer wanted")
    # Its descriptions are in no request any more, and the answers are left.
    with pytest.raises(RequestNotKept, match="tool schemas"):
        await rebuild_request(engine.store, KEY, answer)
    copy = await engine.sessions.fork(KEY, session_id="copy", at=answer)
    for key in (KEY, SessionKey(KEY.tenant, copy.id)):
        exported = b"".join([piece async for piece in write_export(engine.store, iterate_keys([key]), alone=True)])
        assert DESCRIPTION not in exported.decode()
        await engine.check_log(key=key)
        imported = SessionKey(KEY.tenant, f"import-{key.id}")
        await import_export(engine.store, KEY.tenant, io.BytesIO(exported), as_id=imported.id)
        assert (await verify(engine.store, imported)).problems == []
    assert (await engine.read_log())[answer - 1].fact.message["content"] == "One."
    await engine.run("again", "r2")
    assert (await replay_session(engine.store, engine.registry, KEY)).divergences == []
    gone, anew = list_listings(await engine.read_log())
    assert (gone.schemas, [tool.name for tool in gone.tools]) == (None, ["add"])
    assert anew.schemas is not None
    assert list_offered(model.requests[1]) == ["add"]
    assert (await verify(engine.store, KEY)).problems == []


async def test_serverless_agents_load_no_mcp(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(Agent(name="A"))
    script(model, "Hello.")
    await engine.run()
    assert engine.servers._pool is None
    assert "tools.listed" not in await engine.read_types()


def test_swarm_in_memory_has_them_too(client: OpenAI, model: ScriptedModel, folder: Path) -> None:
    agent = Agent(name="A", mcp_servers=[make_server(folder)])
    script(model, Call("add", {"a": 1, "b": 2}), "Three.")
    response = Swarm(client).run(agent, [{"role": "user", "content": "1 + 2?"}])
    assert [message["content"] for message in response.messages] == [None, "3", "Three."]


async def test_async_swarm_has_them_too(async_client: AsyncOpenAI, model: ScriptedModel, folder: Path) -> None:
    agent = Agent(name="A", mcp_servers=[make_server(folder)])
    script(model, Call("add", {"a": 1, "b": 2}), "Three.")
    response = await AsyncSwarm(async_client).run(agent, [{"role": "user", "content": "1 + 2?"}])
    assert response.messages[1]["content"] == "3"
    await asyncio.sleep(0)
    assert json.loads(json.dumps(response.messages))
