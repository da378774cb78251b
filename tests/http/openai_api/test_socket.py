"""Responses over a WebSocket: by OpenAI's client, and by hand where more is looked at than that shows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from swarmkeep.http.metrics import ServerLimits
from tests.http.auth.keys import bearer_headers, create_key, key_store
from tests.http.openai_api.open_responses import TERMINAL, SocketError, check_events
from tests.http.openai_api.test_conformance import WEATHER, message
from tests.http.server import PATIENCE_SECONDS, RunningServer, scripted, server_settings, start_server
from tests.http.test_streams import wait_until_nobody_reads
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

Json = dict[str, Any]
PATH = "/openai/v1/responses"


class Client:
    """One connection, strict about what it is sent."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": "response.create", "model": "Front", **fields}))

    async def next(self) -> Json:
        async with asyncio.timeout(PATIENCE_SECONDS):
            text = await self.socket.recv()
        assert isinstance(text, str), "text frames only"
        found: Json = json.loads(text)
        return found

    async def until(self, kind: str) -> list[Json]:
        found = [await self.next()]
        while found[-1]["type"] != kind:
            found.append(await self.next())
        return found

    async def rest(self) -> Json:
        """The response that the events from here on end with."""
        events = [await self.next()]
        while events[-1]["type"] not in TERMINAL:
            assert events[-1]["type"] != "error", events[-1]
            events.append(await self.next())
        return check_events(events)

    async def respond(self, **fields: Any) -> Json:
        await self.send(**fields)
        return await self.rest()

    async def error(self) -> Json:
        """The next frame, which refuses something."""
        frame = await self.next()
        SocketError.model_validate(frame)
        found: Json = frame["error"]
        return found

    async def refused(self, **fields: Any) -> tuple[str, str | None]:
        await self.send(**fields)
        error = await self.error()
        return error["code"], error["param"]

    async def closed(self) -> int:
        with pytest.raises(ConnectionClosed) as end:
            await self.until("nothing more")
        assert end.value.rcvd is not None, "the connection broke"
        return end.value.rcvd.code


@asynccontextmanager
async def open_socket(service: RunningServer, query: str = "", **options: Any) -> AsyncIterator[Client]:
    url = f"{service.url.replace('http', 'ws', 1)}{PATH}{query}"
    async with connect(url, **{"max_size": None, "max_queue": None, "proxy": None, **options}) as socket:
        yield Client(socket)


def say_text(response: Json) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


# By OpenAI's client


async def test_openai_client_gets_sequential_responses(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    async with openai.responses.connect() as connection:
        previous = None
        for said in ("one", "two"):
            model.say([said[0], said[1:]])
            await connection.response.create(
                model="Front", input="Count.", **({} if previous is None else {"previous_response_id": previous})
            )
            text = ""
            async for event in connection:
                if event.type == "response.output_text.delta":
                    text += event.delta
                if event.type == "response.completed":
                    previous = event.response.id
                    break
            assert text == said
        assert previous is not None
        assert (await openai.responses.retrieve(previous)).output_text == "two"
    assert [said["content"] for said in model.requests[1]["messages"][1:]] == ["Count.", "one", "Count."]


async def test_openais_client_is_told_errors(openai: AsyncOpenAI) -> None:
    async with openai.responses.connect() as connection:
        await connection.response.create(model="nobody", input="Hello?")
        event = await connection.recv()
        assert event.type == "error"
        assert (event.status, event.error.code, event.error.param) == (404, "model_not_found", "model")


# It connects in a way that its own library advises against.
@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")
async def test_openais_synchronous_client_calls_its_function(plain: RunningServer) -> None:
    await asyncio.to_thread(call_function, plain.url)


def call_function(url: str) -> None:
    with OpenAI(base_url=f"{url}/openai/v1", api_key="none") as client, client.responses.connect() as connection:
        tools: Any = [WEATHER]
        connection.response.create(input="How does it look outside at the place Rome?", tools=tools)
        for event in connection:
            if event.type == "response.completed":
                break
        assert event.type == "response.completed"
        [call] = event.response.output
        assert call.type == "function_call"
        output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "all blue"}]
        connection.response.create(input=output, previous_response_id=event.response.id, tools=tools)
        for event in connection:
            if event.type == "response.completed":
                break
        assert event.type == "response.completed"
        assert "all blue" in event.response.output_text


# What is not stored


async def test_unstored_response_continues_on_its_connection(service: RunningServer, model: ScriptedModel) -> None:
    async with open_socket(service) as client:
        model.say("OK.")
        first = await client.respond(store=False, input="Remember: cobalt.")
        model.say("cobalt")
        second = await client.respond(store=False, input="What was it?", previous_response_id=first["id"])
        model.say("still cobalt")
        await client.respond(store=False, input="And now?", previous_response_id=second["id"])
        assert [said["content"] for said in model.requests[2]["messages"][1:]] == [
            "Remember: cobalt.", "OK.", "What was it?", "cobalt", "And now?",
        ]  # fmt: skip
        assert second["previous_response_id"] == first["id"]
        # It went on from there; what it was before is nowhere.
        lost = ("previous_response_not_found", "previous_response_id")
        assert await client.refused(store=False, input="Well?", previous_response_id=first["id"]) == lost
    assert (await service.get("/v1/sessions")).json()["data"] == []
    assert (await service.get(f"{PATH}/{second['id']}")).status_code == 404


async def test_unstored_response_continues_nowhere_else(service: RunningServer, model: ScriptedModel) -> None:
    lost = ("previous_response_not_found", "previous_response_id")
    async with open_socket(service) as client, open_socket(service) as other:
        model.say("OK.")
        first = await client.respond(store=False, input="Remember: copper.")
        for store in (False, True):
            asked: Json = {"store": store, "input": "What was it?", "previous_response_id": first["id"]}
            assert await other.refused(**asked) == lost
            answer = await service.post(PATH, {"model": "Front", **asked})
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "previous_response_not_found")
        model.say("recovered")
        assert say_text(await other.respond(store=False, input=[message("user", "Anew.")])) == "recovered"
        model.say("copper")
        assert say_text(await client.respond(store=False, input="And?", previous_response_id=first["id"])) == "copper"


@pytest.mark.parametrize(
    "wrong",
    [
        {"input": [{"type": "function_call_output", "call_id": "call_none", "output": "x"}]},
        {"temperature": 9},
        {"store": True},
        {"model": "nobody"},
    ],
)
async def test_failed_continuation_forgets_its_origin(
    service: RunningServer, model: ScriptedModel, wrong: Json
) -> None:
    async with open_socket(service) as client:
        model.say("OK.")
        first = await client.respond(store=False, input="Remember: ember.")
        went_on = {"store": False, "input": "Go on.", "previous_response_id": first["id"]}
        code, _ = await client.refused(**{**went_on, **wrong})
        assert code != "previous_response_not_found"
        assert (await client.refused(**went_on))[0] == "previous_response_not_found"


async def test_unstored_response_continues_up_to_size(sqlite_ready: str, model: ScriptedModel) -> None:
    settings, limits = scripted(sqlite_ready, model), ServerLimits(unstored_bytes=20_000)
    async with start_server(settings, limits) as service, open_socket(service) as client:
        for _ in range(3):
            model.say("OK.")
        # One that goes on from nothing may be as large as a frame may be.
        await client.respond(store=False, input="x" * 21_000)
        first = await client.respond(store=False, input="x" * 6_000)
        second = await client.respond(store=False, input="x" * 6_000, previous_response_id=first["id"])
        goes_on: Json = {"store": False, "previous_response_id": second["id"]}
        assert await client.refused(input="x" * 6_000, **goes_on) == ("too_large", None)
        assert await client.refused(input="x", **goes_on) == ("previous_response_not_found", "previous_response_id")


async def test_failing_model_forgets_its_origin(service: RunningServer, model: ScriptedModel) -> None:
    async with open_socket(service) as client:
        model.say("OK.")
        first = await client.respond(store=False, input="Remember: ember.")
        model.fail(400)
        went_on = {"store": False, "input": "Go on.", "previous_response_id": first["id"]}
        assert (await client.respond(**went_on))["status"] == "failed"
        assert (await client.refused(**went_on))[0] == "previous_response_not_found"


async def test_function_answered_without_log(service: RunningServer, model: ScriptedModel) -> None:
    async with open_socket(service) as client:
        model.call("look_outside", {"place": "Rome"}, id="c1")
        first = await client.respond(store=False, input="Weather?", tools=[WEATHER])
        model.say("Blue.")
        output = [{"type": "function_call_output", "call_id": "c1", "output": "blue"}]
        went_on = {"store": False, "tools": [WEATHER], "previous_response_id": first["id"], "input": output}
        assert say_text(await client.respond(**went_on)) == "Blue."
    assert model.requests[1]["messages"][-1] == {"role": "tool", "tool_call_id": "c1", "content": "blue"}


async def test_unstored_turn_continues_from_stored_response(service: RunningServer, model: ScriptedModel) -> None:
    async with open_socket(service) as client:
        model.say("stored")
        first = await client.respond(input="1")
        model.say("not stored")
        second = await client.respond(store=False, input="2", previous_response_id=first["id"])
        model.say("nor this")
        await client.respond(store=False, input="3", previous_response_id=second["id"])
        model.say("stored again")
        await client.respond(input="4", previous_response_id=first["id"])
    assert [said["content"] for said in model.requests[2]["messages"][1:]] == ["1", "stored", "2", "not stored", "3"]
    assert [said["content"] for said in model.requests[3]["messages"][1:]] == ["1", "stored", "4"]


# One at a time, and no bad frames


async def test_one_response_at_a_time(service: RunningServer, model: ScriptedModel) -> None:
    model.hang("It is ", then="done")
    async with open_socket(service) as client:
        await client.send(input="Tell me.")
        await client.until("response.output_text.delta")
        await client.send(input="And that?")
        error = await client.error()
        assert error["code"] == "response_in_progress"
        model.release()
        last = (await client.until("response.completed"))[-1]
        assert say_text(last["response"]) == "It is done"
        model.say("more")
        assert say_text(await client.respond(input="More?")) == "more"


BAD_FRAMES: list[tuple[str | bytes, str | None]] = [
    ("", None), ("not json", None), ("[]", None), ("5", None), ("{}", "type"), ('{"type": "response.cancel"}', "type"),
    ('{"type": ["response.create"]}', "type"), (b"\xff\xfe", None), ("[" * 100_000, None),
    ('{"type": "response.create", "stream": false}', "stream"),
    ('{"type": "response.create", "background": true}', "background"),
    ('{"type": "response.create", "generate": false}', "generate"),
    ('{"type": "response.create", "stream_id": "a"}', "stream_id"),
    ('{"type": "response.create", "input": 5}', "input"),
    ('{"type": "response.create", "response": {"input": "x"}}', "response"),
    ('{"type": "response.create", "previous_response_id": "resp_missing_1", "input": "x"}', "previous_response_id"),
    ('{"type": "response.create", "conversation": "nowhere", "input": "x"}', "conversation"),
]  # fmt: skip


async def test_bad_frame_answered_and_connection_continues(service: RunningServer, model: ScriptedModel) -> None:
    async with open_socket(service) as client:
        for text, param in BAD_FRAMES:
            await client.socket.send(text)
            error = await client.error()
            assert error["type"] in ("invalid_request_error",), (text[:80], error)
            assert param is None or error["param"] == param, (text[:80], error)
        model.say("hello")
        # What HTTP alone needs may be said where it changes nothing.
        assert say_text(await client.respond(input="Hi.", stream=True, background=False, tools=[])) == "hello"


async def test_oversized_frame_refused_by_name(sqlite_ready: str) -> None:
    settings = server_settings(database_url=sqlite_ready, max_body_bytes=20_000)
    async with start_server(settings) as service, open_socket(service) as client:
        assert (await client.refused(input="x" * 20_000))[0] == "too_large"
        assert (await client.respond(input="Hello!"))["status"] == "completed"


@pytest.mark.parametrize("query", ["?model=Front", "?after=1"])
async def test_a_query_says_nothing(plain: RunningServer, query: str) -> None:
    async with open_socket(plain, query) as client:
        assert (await client.error())["param"] == query[1:].partition("=")[0]
        assert await client.closed() == 4400


# Who may


async def refuse_handshake(service: RunningServer, **options: Any) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as refused:
        await open_socket(service, **options).__aenter__()
    answer = refused.value.response
    assert answer.headers["content-type"] == "application/json"
    error = json.loads(answer.body or b"")["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return answer.status_code, error["code"]


async def test_only_who_may_comes_in(sqlite_ready: str) -> None:
    async with start_server(server_settings(database_url=sqlite_ready)) as service:
        key = await create_key(service, "acme")
        reader = await create_key(service, "acme", role="read")
        assert await refuse_handshake(service) == (401, "unauthenticated")
        assert await refuse_handshake(service, additional_headers={"Authorization": "Bearer swk_x"}) == (
            401, "unauthenticated",
        )  # fmt: skip
        secret = key["Authorization"].removeprefix("Bearer ")
        for options in ({"additional_headers": key}, {"subprotocols": ["swarmkeep", f"bearer.{secret}"]}):
            async with open_socket(service, **options) as client:
                assert (await client.respond(input="Hello!"))["status"] == "completed"
        async with open_socket(service, additional_headers=reader) as client:
            assert (await client.refused(input="Hello!"))[0] == "forbidden"


async def test_other_sites_pages_get_no_connection(plain: RunningServer) -> None:
    assert await refuse_handshake(plain, origin="https://evil.example") == (403, "forbidden")


async def test_requests_are_counted(sqlite_ready: str) -> None:
    async with start_server(server_settings(database_url=sqlite_ready, rate_limit_per_minute=2)) as service:
        async with open_socket(service) as client:
            assert (await client.respond(input="Hello!"))["status"] == "completed"
            await client.send(input="Hello!")
            error = await client.error()
            assert error["code"] == "rate_limited"
            assert int(error["headers"]["Retry-After"]) > 0
        assert await refuse_handshake(service) == (429, "rate_limited")


@pytest.mark.long
@pytest.mark.parametrize("busy", [True, False])
async def test_a_connection_ends_with_its_key(sqlite_ready: str, model: ScriptedModel, busy: bool) -> None:
    async with start_server(
        scripted(sqlite_ready, model), ServerLimits(gone_seconds=0.1, refused_seconds=0.1)
    ) as service:
        made, secret = await key_store(service).create("acme")
        async with open_socket(service, additional_headers=bearer_headers(secret)) as client:
            if busy:
                model.hang("It is ", then="never heard here")
                await client.send(input="Tell me.")
                await client.until("response.output_text.delta")
            await key_store(service).revoke(made.id)
            assert (await client.until("error"))[-1]["error"]["code"] == "unauthenticated"
            assert await client.closed() == 4401
        model.release()


# Those that leave, and those that do not read


async def test_leaving_client_keeps_stored_response(
    service: RunningServer, openai: AsyncOpenAI, model: ScriptedModel
) -> None:
    model.hang("It is ", then="done all the same")
    async with open_socket(service) as client:
        await client.send(input="Tell me.")
        made = (await client.until("response.output_text.delta"))[0]["response"]["id"]
    await wait_until_nobody_reads(service)
    model.release()
    stream = await openai.responses.retrieve(made, stream=True)
    last = [event async for event in stream][-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "It is done all the same"


async def test_leaving_client_ends_unstored_response(service: RunningServer, model: ScriptedModel) -> None:
    model.hang("It is ", then="never heard")
    async with open_socket(service) as client:
        await client.send(input="Tell me.", store=False)
        await client.until("response.output_text.delta")
    await model.wait_for_disconnects_async(1)


async def test_stopping_server_asks_to_reconnect(service: RunningServer, model: ScriptedModel) -> None:
    model.hang("It is ", then="never heard")
    async with open_socket(service) as client, open_socket(service) as idle:
        await client.send(input="Tell me.")
        await client.until("response.output_text.delta")
        drain = asyncio.create_task(service.service.drain())
        assert (await client.until("response.failed"))[-1]["response"]["status"] == "failed"
        await drain
        assert await client.closed() == 1012
        assert await idle.closed() == 1012


async def test_a_deleted_session_ends_its_response(sqlite_ready: str, model: ScriptedModel) -> None:
    model.hang("It is ", then="never heard")
    settings, limits = scripted(sqlite_ready, model), ServerLimits(gone_seconds=0.0)
    async with start_server(settings, limits) as service, open_socket(service) as client:
        await client.send(input="Tell me.")
        made = (await client.until("response.output_text.delta"))[0]["response"]["id"]
        answer = await service.delete(f"/v1/sessions/{made.partition('.')[2]}?force=true")
        assert answer.status_code == 204, answer.text
        assert (await client.until("error"))[-1]["error"]["code"] == "not_found"
        model.release()
