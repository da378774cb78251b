"""A session over a WebSocket: what viewers see, what they may send, who is let in, and how it ends."""

from __future__ import annotations

import asyncio
import gc
import json
from contextlib import suppress
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from swarmkeep.events.state import State
from swarmkeep.http.metrics import ServerLimits
from tests.http.auth.keys import bearer_headers, create_key, key_store
from tests.http.server import RunningServer, server_settings, start_server
from tests.http.test_streams import wait_until_nobody_reads
from tests.http.websocket.client import SocketFrame, connect_session
from tests.support.scripted import ScriptedModel
from tests.support.waiting import wait_until

pytestmark = pytest.mark.one_database


def durable_frames(frames: list[SocketFrame]) -> list[SocketFrame]:
    return [frame for frame in frames if frame.seq is not None]


def content_of(frames: list[SocketFrame]) -> str:
    return "".join(frame.data.get("content", "") for frame in frames if frame.event == "message.delta")


async def test_run_created_and_watched_by_all(service: RunningServer, model: ScriptedModel) -> None:
    model.call("get_weather", {"city": "Rome"}, id="c1")
    model.say(["It ", "is\n", "sunny ☀."])
    session = await service.session()
    async with connect_session(service, session) as one, connect_session(service, session) as two:
        for viewer in (one, two):
            assert (await viewer.next()).event == "session.created"
        await one.send("run.create", input="hi", ref="r1")
        mine, theirs = await one.until("done"), await two.until("done")
    events = await service.events(session)
    for frames in (mine, theirs):
        assert [frame.data for frame in durable_frames(frames)] == events[1:]
        assert content_of(frames) == "It is\nsunny ☀."
    (answer,) = [frame for frame in mine if frame.ref is not None]
    assert (answer.event, answer.ref, answer.data["status"]) == ("accepted", "r1", "running")
    assert [frame for frame in theirs if frame.ref is not None] == []
    assert mine[-1].data == theirs[-1].data == (await service.get(f"{session}/runs/{answer.data['id']}")).json()
    await wait_until_nobody_reads(service)


async def test_every_run_shown_to_viewers(service: RunningServer, model: ScriptedModel) -> None:
    model.say("one")
    model.say("two")
    session = await service.session()
    async with connect_session(service, session, "?after=1") as viewer:
        for text in ("one", "two"):
            run = await service.run(session)
            frames = await viewer.until("done")
            recorded = [frame.data["data"]["message"]["content"] for frame in frames if frame.event == "message.added"]
            # A viewer that still reads the log as the message ends is shown it whole, without its pieces.
            assert content_of(frames) in ("", text)
            assert (recorded[-1], frames[-1].data) == (text, run)


async def test_returning_viewer_misses_nothing(service: RunningServer, model: ScriptedModel) -> None:
    model.call("get_weather", {"city": "Rome"}, id="c1")
    model.say("It is sunny.")
    session = await service.session()
    await service.run(session)
    events = await service.events(session)
    for seq in range(len(events)):
        async with connect_session(service, session, f"?after={seq}") as viewer:
            frames = [await viewer.next() for _ in events[seq:]]
            assert [frame.data for frame in frames] == events[seq:]


async def test_run_end_told_despite_slow_connection(
    service: RunningServer, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.say("first")
    model.say("second")
    session, reader, ended = await service.session(), service.engine.reader, asyncio.Event()
    await service.run(session)
    service.engine.hub.add_observer(lambda event: ended.set() if event.type == "run.completed" else None)
    read_state = reader.state

    async def read_slowly(*args: Any, **options: Any) -> State:
        monkeypatch.undo()
        # Longer than the run takes, if that can begin before.
        with suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await ended.wait()
        return await read_state(*args, **options)

    monkeypatch.setattr(reader, "state", read_slowly)
    async with connect_session(service, session, "?after=5") as viewer:
        await viewer.send("run.create", input="again")
        assert (await viewer.until("done"))[-1].data["output_text"] == "second"


async def test_a_run_is_cancelled(service: RunningServer, model: ScriptedModel) -> None:
    model.hang("It is ", then="never heard")
    session = await service.session()
    async with connect_session(service, session) as viewer:
        run = (await viewer.answer("run.create", input="hi")).data
        await viewer.until("message.delta")
        answer = await viewer.answer("run.cancel", run_id=run["id"])
        assert (answer.event, answer.data["status"]) == ("accepted", "cancelled")
    await model.wait_for_disconnects_async(1)


async def test_a_run_that_waits_is_resumed(service: RunningServer, model: ScriptedModel) -> None:
    model.call("refund", {"order": "1"}, id="c1")
    model.say("Done.")
    session = await service.session()
    async with connect_session(service, session) as viewer:
        await viewer.send("run.create", input="refund")
        waiting = (await viewer.until("done"))[-1].data
        assert (waiting["status"], waiting["stop_reason"]) == ("waiting", "approval")
        decision = {"tool_call_id": "c1", "decision": "approve"}
        other = {**decision, "arguments_digest": "0" * 64}
        refused = await viewer.answer("run.resume", run_id=waiting["id"], approvals=[other])
        assert (refused.event, refused.data["code"]) == ("error", "arguments_changed")
        await viewer.send("run.resume", run_id=waiting["id"], approvals=[decision])
        assert (await viewer.until("done"))[-1].data["output_text"] == "Done."
        refused = await viewer.answer("run.resume", run_id=waiting["id"], approvals=[decision])
        assert (refused.event, refused.data["code"]) == ("error", "already_decided")


async def test_refusals_are_those_of_http(service: RunningServer, model: ScriptedModel) -> None:
    model.hang(then="first")
    session = await service.session()
    async with connect_session(service, session, "?after=1") as viewer:
        for fields, code in (
            ({"type": "run.create", "input": "x", "agent": "Nobody"}, "agent_not_found"),
            ({"type": "run.create", "input": [{"role": "nobody"}]}, "invalid_request"),
            ({"type": "run.create", "input": "x", "max_turns": 0}, "invalid_request"),
            ({"type": "run.create", "input": "x", "surprise": 1}, "invalid_request"),
            ({"type": "run.cancel", "run_id": "run_none"}, "run_not_found"),
            ({"type": "run.resume", "run_id": "run_none"}, "run_not_found"),
        ):
            await viewer.send(**{"type_" if key == "type" else key: value for key, value in fields.items()})
            await viewer.problem(code)
        run = (await viewer.answer("run.create", input="one")).data
        busy = await viewer.answer("run.create", input="two")
        assert (busy.data["code"], busy.data["active_run_id"]) == ("session_busy", run["id"])
        await model.wait_for_requests_async(1)
        model.release()
        assert (await viewer.until("done"))[-1].data["output_text"] == "first"


@pytest.mark.parametrize(
    ("sent", "pointer"),
    [
        ("", ""),
        ("hello", ""),
        ("{", ""),
        ("[]", ""),
        ("null", ""),
        ("{}", "/type"),
        ('{"type": "run.destroy"}', "/type"),
        ('{"type": ["run.create"]}', "/type"),
        ('{"type": "run.create"}', "/input"),
        ('{"type": "run.create", "input": "a", "input": "b"}', ""),
        ('{"type": "run.cancel", "run_id": 7, "ref": "mine"}', "/run_id"),
        ('{"type": "run.cancel", "run_id": "r", "idempotency_key": ""}', "/idempotency_key"),
        ("[" * 30_000, ""),
        (b"\xff\xfe", ""),
    ],
)
async def test_bad_frame_answered_and_connection_continues(
    plain: RunningServer, sent: str | bytes, pointer: str
) -> None:
    session = await plain.session()
    async with connect_session(plain, session, "?after=1") as viewer:
        await viewer.socket.send(sent)
        frame = await viewer.next()
        assert (frame.event, frame.data["code"]) == ("error", "invalid_request")
        assert frame.data["errors"][0]["pointer"] == pointer
        assert frame.ref == ("mine" if "mine" in str(sent) else None)
        assert (await viewer.answer("run.create", input="hello")).event == "accepted"


async def test_oversized_frame_refused_by_name(sqlite_ready: str) -> None:
    async with start_server(server_settings(database_url=sqlite_ready, max_body_bytes=1000)) as service:
        session = await service.session()
        async with connect_session(service, session, "?after=1") as viewer:
            await viewer.send("run.create", input="x" * 1000)
            refused = await viewer.problem("too_large")
            assert (refused["status"], "SWARMKEEP_MAX_BODY_BYTES" in refused["detail"]) == (413, True)
            assert (await viewer.answer("run.create", input="hello")).event == "accepted"
        async with connect_session(service, session) as viewer:
            await viewer.send("run.create", input="x" * 3000)
            assert (await viewer.closed())[0] == 1009


async def test_idempotency_key_makes_one_run(service: RunningServer, model: ScriptedModel) -> None:
    model.say("once")
    session = await service.session()
    async with connect_session(service, session) as viewer:
        first = await viewer.answer("run.create", input="hi", idempotency_key="k")
        await viewer.until("done")
    async with connect_session(service, session) as viewer:
        again = await viewer.answer("run.create", input="hi", idempotency_key="k")
        assert (again.event, again.data["id"]) == ("accepted", first.data["id"])
        other = await viewer.answer("run.create", input="ho", idempotency_key="k")
        assert other.data["code"] == "idempotency_mismatch"


async def test_missing_session_told_and_closed(plain: RunningServer) -> None:
    for session in ("/v1/sessions/none", "/v1/sessions/%00"):
        async with connect_session(plain, session) as viewer:
            await viewer.problem("session_not_found")
            assert await viewer.closed() == (4404, "session_not_found")


@pytest.mark.parametrize("query", ["?after=x", "?after=-1", "?after=1e3", "?after=" + "9" * 30, "?key=secret"])
async def test_what_the_query_may_say(plain: RunningServer, query: str) -> None:
    session = await plain.session()
    async with connect_session(plain, session, query) as viewer:
        name = query[1:].partition("=")[0]
        assert (await viewer.problem("invalid_request"))["errors"][0]["pointer"] == f"/query/{name}"
        assert (await viewer.closed())[0] == 4400


async def test_a_deleted_session_ends_its_connections(sqlite_ready: str) -> None:
    async with start_server(server_settings(database_url=sqlite_ready), ServerLimits(gone_seconds=0.0)) as strict:
        session = await strict.session()
        async with connect_session(strict, session, "?after=1") as viewer:
            await strict.delete(session)
            await viewer.problem("session_not_found")
            assert (await viewer.closed())[0] == 4404


async def refused_handshake(service: RunningServer, session: str, query: str = "", **options: Any) -> tuple[int, str]:
    """The status and the code of the answer to a handshake that makes no connection."""
    with pytest.raises(InvalidStatus) as refused:
        await connect_session(service, session, query, **options).__aenter__()
    answer = refused.value.response
    assert answer.headers["content-type"] == "application/problem+json"
    names = {401: "WWW-Authenticate", 429: "Retry-After"}
    assert answer.status_code not in names or answer.headers[names[answer.status_code]]
    return answer.status_code, json.loads(answer.body or b"")["code"]


async def test_excess_handshake_makes_no_connection(sqlite_ready: str, caplog: pytest.LogCaptureFixture) -> None:
    async with start_server(server_settings(database_url=sqlite_ready, rate_limit_per_minute=1)) as service:
        session = await service.session()
        assert await refused_handshake(service, session) == (429, "rate_limited")
    # A refusal is no error of the server's.
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


ORIGINS: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"origin": "http://{host}"}, True),
    ({"origin": "https://partner.example"}, True),
    ({"origin": "https://evil.example"}, False),
    ({"origin": "null"}, False),
    ({"additional_headers": {"Host": "evil.example"}}, False),
]


@pytest.mark.parametrize(("options", "welcome"), ORIGINS)
@pytest.mark.parametrize("locked", [False, True])
async def test_other_sites_pages_get_no_connection(
    sqlite_ready: str, options: dict[str, Any], welcome: bool, locked: bool
) -> None:
    async with start_server(
        server_settings(database_url=sqlite_ready, cors_origins="https://partner.example")
    ) as service:
        given = json.loads(json.dumps(options).replace("{host}", service.url.removeprefix("http://")))
        if locked:
            # Whoever has a key may call the server by any name.
            key = await create_key(service, "default")
            service.client.headers.update(key)
            given["additional_headers"] = given.get("additional_headers", {}) | key
            welcome = welcome or "origin" not in options
        session = await service.session()
        if welcome:
            async with connect_session(service, session, **given) as viewer:
                assert (await viewer.next()).event == "session.created"
            return
        assert await refused_handshake(service, session, **given) == (403, "forbidden")


async def test_key_shown_in_header_or_subprotocol(plain: RunningServer) -> None:
    secret = (key := await create_key(plain, "acme"))["Authorization"].removeprefix("Bearer ")
    await plain.post("/v1/sessions", {"id": "s"}, headers=key)
    for options in ({"additional_headers": key}, {"subprotocols": ["swarmkeep", f"bearer.{secret}"]}):
        async with connect_session(plain, "/v1/sessions/s", **options) as viewer:
            assert (await viewer.next()).event == "session.created"
            assert viewer.socket.subprotocol == ("swarmkeep" if "subprotocols" in options else None)
    wrong: list[dict[str, Any]] = [
        {}, {"subprotocols": ["swarmkeep"]}, {"subprotocols": ["swarmkeep", "bearer.swk_x"]},
        {"subprotocols": [f"bearer.{secret}"], "additional_headers": key},
    ]  # fmt: skip
    for options in wrong:
        assert await refused_handshake(plain, "/v1/sessions/s", **options) == (401, "unauthenticated")
        # Before anything is said of what there is.
        assert await refused_handshake(plain, "/v1/sessions/none", "?after=x", **options) == (401, "unauthenticated")
    async with connect_session(plain, "/v1/sessions/s", additional_headers=await create_key(plain, "other")) as viewer:
        await viewer.problem("session_not_found")
        assert (await viewer.closed())[0] == 4404


async def test_a_reader_watches_and_commands_nothing(plain: RunningServer) -> None:
    writer, reader = await create_key(plain, "acme"), await create_key(plain, "acme", role="read")
    await plain.post("/v1/sessions", {"id": "s"}, headers=writer)
    async with connect_session(plain, "/v1/sessions/s", additional_headers=reader) as viewer:
        assert (await viewer.next()).event == "session.created"
        for command in ({"type_": "run.create", "input": "x"}, {"type_": "run.cancel", "run_id": "run_none"}):
            refused = await viewer.answer(**command)
            assert (refused.event, refused.data["code"], "`run`" in refused.data["detail"]) == (
                "error",
                "forbidden",
                True,
            )
        assert (await plain.post("/v1/sessions/s/runs", {"input": "hi"}, headers=writer)).status_code == 200
        await viewer.until("done")


async def test_a_connection_ends_with_its_key(plain: RunningServer) -> None:
    made, secret = await key_store(plain).create("acme")
    await plain.post("/v1/sessions", {"id": "s"}, headers=bearer_headers(secret))
    async with connect_session(plain, "/v1/sessions/s", additional_headers=bearer_headers(secret)) as viewer:
        await viewer.until("session.created")
        await key_store(plain).revoke(made.id)
        await viewer.problem("unauthenticated")
        assert (await viewer.closed())[0] == 4401


async def test_commands_are_counted(sqlite_ready: str) -> None:
    async with start_server(server_settings(database_url=sqlite_ready, rate_limit_per_minute=3)) as service:
        session = await service.session()
        async with connect_session(service, session) as viewer:
            assert (await viewer.answer("run.create", input="hello")).event == "accepted"
            answer = await viewer.answer("run.create", input="hello")
            assert (answer.event, answer.data["code"]) == ("error", "rate_limited")


async def test_offered_subprotocol_is_named(plain: RunningServer) -> None:
    session = await plain.session()
    async with connect_session(plain, session, subprotocols=["swarmkeep"]) as viewer:
        assert viewer.socket.subprotocol == "swarmkeep"


async def test_unreading_viewer_blocks_no_others(service: RunningServer, model: ScriptedModel) -> None:
    model.say(["x" * 1000] * 2000)
    session = await service.session()
    # Little is buffered on this side, so that the server's writes have to wait.
    async with connect_session(service, session, max_queue=1, compression=None) as idle:
        async with connect_session(service, session) as viewer:
            await viewer.send("run.create", input="hi")
            text = content_of(await viewer.until("done"))
        assert len(text) <= 2_000_000
        events = durable_frames(await idle.until("run.completed"))
        assert [frame.data for frame in events] == await service.events(session)


async def test_stopping_server_asks_to_reconnect(service: RunningServer, model: ScriptedModel) -> None:
    model.hang("It is ", then="never heard")
    session = await service.session()
    async with connect_session(service, session) as viewer:
        await viewer.send("run.create", input="hi")
        await viewer.until("message.delta")
        drain = asyncio.create_task(service.service.drain())
        await viewer.until("run.interrupted")
        await drain
        assert (await viewer.closed())[0] == 1012
    await model.wait_for_disconnects_async(1)


@pytest.mark.long
async def test_passing_connections_leave_nothing(plain: RunningServer) -> None:
    session = await plain.session()

    async def visit() -> None:
        async with connect_session(plain, session) as viewer:
            await viewer.next()

    before = len(asyncio.all_tasks())
    for _ in range(5):
        await asyncio.gather(*(visit() for _ in range(20)))
    await wait_until_nobody_reads(plain)
    await wait_until(lambda: len(asyncio.all_tasks()) <= before)


async def test_client_breaking_off_is_let_go(plain: RunningServer) -> None:
    session = await plain.session()
    # At once, not when the garbage is collected the next time.
    gc.disable()
    try:
        async with connect_session(plain, session) as viewer:
            viewer.socket.transport.abort()
            with pytest.raises(ConnectionClosed):
                await viewer.until("nothing more")
        await wait_until_nobody_reads(plain)
    finally:
        gc.enable()
