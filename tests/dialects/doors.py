"""The ways into a server: each holds the conversation as its programs do, whole or streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import httpx2
from openai import APIConnectionError, AsyncOpenAI

from swarmkeep.events.codec import Json
from tests.dialects.conversation import CRASH, FORK, REFUND, RULES, THANKS, WEATHER, Script
from tests.http.server import RunningServer

Open = Callable[[], Awaitable[RunningServer]]
Kill = Callable[[], Awaitable[None]]
Crash = Callable[[Awaitable[Any]], Awaitable[RunningServer]]
"""Starts a request, kills its server once the model is asked after the function, and gives another server."""


def make_crash(script: Script, kill: Kill, open_another: Open) -> Crash:
    async def crash(request: Awaitable[Any]) -> RunningServer:
        task = asyncio.ensure_future(request)
        try:
            assert await asyncio.to_thread(script.crashing.wait, 60)
            await kill()
        finally:
            script.released.set()
            task.cancel()
            # It may have ended with its server already.
            with suppress(asyncio.CancelledError, httpx2.HTTPError, APIConnectionError):
                await task
        return await open_another()

    return crash


def go_on(server: RunningServer) -> Crash:
    """No crash, where it is about something else."""

    async def wait(request: Awaitable[Any]) -> RunningServer:
        await request
        return server

    return wait


class Conversation:
    """The sessions that a door made: the one with everything, and the fork."""

    def __init__(self, session: str, fork: str, rest: str | None = None) -> None:
        self.session = session
        self.fork = fork
        self.rest = rest
        """Where the last words are, if not in the first session."""


async def wait_until_idle(service: RunningServer, session: str) -> Json:
    """The session once its last run has ended."""
    async with asyncio.timeout(60):
        while True:
            found: Json = (await service.get(session)).json()
            if found["status"] == "idle":
                return found
            await service.read_stream(f"{session}/runs/{found['active_run_id']}/stream")


async def fork(service: RunningServer, session: str, at: int, name: str) -> None:
    answer = await service.post(f"{session}/fork", {"at": at, "id": name})
    assert answer.status_code == 201, answer.text


async def compact(service: RunningServer, session: str) -> None:
    answer = await service.post(f"{session}/compact", {"keep_turns": 1})
    assert answer.status_code == 200, answer.text
    assert (answer.json()["error"], bool(answer.json()["summary"])) == (None, True)


async def converse_natively(first: RunningServer, crash: Crash, stream: bool) -> Conversation:
    """On /v1."""

    async def say(service: RunningServer, session: str, text: Any, **more: Any) -> None:
        if stream:
            body = {"input": text, "stream": True}
            run = (await service.read_stream(f"{session}/runs", body, method="POST"))[-1].data
        else:
            run = await service.run(session, text)
        assert (run["status"], run["error"]) == ("completed", None)

    session = await first.session(id="main", agent="Triage")
    await say(first, session, [{"role": "system", "content": RULES}, {"role": "user", "content": WEATHER}])
    await say(first, session, REFUND)
    at = (await first.get(session)).json()["seq"]
    second = await crash(say(first, session, CRASH))
    await wait_until_idle(second, session)
    await fork(second, session, at, "fork")
    await say(second, "/v1/sessions/fork", FORK)
    await compact(second, session)
    await say(second, session, THANKS)
    return Conversation("main", "fork")


def open_client(service: RunningServer) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{service.url}/openai/v1", api_key="none", max_retries=0)


async def converse_by_completions(first: RunningServer, crash: Crash, stream: bool) -> Conversation:
    """On chat completions. Each request has the caller's rules again, as programs send them."""

    async def say(client: AsyncOpenAI, session: str, text: str) -> None:
        messages: Any = [{"role": "system", "content": RULES}, {"role": "user", "content": text}]
        asked: Any = {"model": "Triage", "messages": messages, "extra_headers": {"X-Session-Id": session}}
        if stream:
            chunks = [chunk async for chunk in await client.chat.completions.create(**asked, stream=True)]
            assert chunks[-1].choices[0].finish_reason == "stop"
        else:
            assert (await client.chat.completions.create(**asked)).choices[0].finish_reason == "stop"

    async with open_client(first) as client:
        await say(client, "main", WEATHER)
        await say(client, "main", REFUND)
        at = (await first.get("/v1/sessions/main")).json()["seq"]
        second = await crash(say(client, "main", CRASH))
    async with open_client(second) as client:
        await wait_until_idle(second, "/v1/sessions/main")
        await fork(second, "/v1/sessions/main", at, "fork")
        await say(client, "fork", FORK)
        await compact(second, "/v1/sessions/main")
        await say(client, "main", THANKS)
    return Conversation("main", "fork")


async def converse_by_responses(first: RunningServer, crash: Crash, stream: bool) -> Conversation:
    """On responses: the fork is a second answer to an earlier response, the summary the input of a new one."""

    ids: list[str] = []

    async def say(client: AsyncOpenAI, text: Any, previous: str | None = None, **more: Any) -> str:
        asked: Any = {"model": "Triage", "input": text, **more}
        if previous is not None:
            asked["previous_response_id"] = previous
        response: Any = None
        if stream:
            async for event in await client.responses.create(**asked, stream=True):
                response = getattr(event, "response", response)
                ids.append(response.id)
        else:
            response = await client.responses.create(**asked)
            ids.append(response.id)
        assert response.error is None
        assert response.status == "completed" or "background" in more
        return ids[-1]

    rules: Any = {"role": "system", "content": RULES}
    async with open_client(first) as client:
        one = await say(client, [rules, {"role": "user", "content": WEATHER}])
        two = await say(client, REFUND, one)
        session = two.partition(".")[2]
        second = await crash(say(client, CRASH, two, background=True))
        three = ids[-1]
    async with open_client(second) as client:
        await wait_until_idle(second, f"/v1/sessions/{session}")
        other = await say(client, FORK, two)
        made = await second.post("/openai/v1/responses/compact", {"model": "Triage", "previous_response_id": three})
        assert made.status_code == 200, made.text
        rest = await say(client, [*made.json()["output"], {"role": "user", "content": THANKS}])
    return Conversation(session, other.partition(".")[2], rest.partition(".")[2])


DOORS = {
    "v1": converse_natively,
    "completions": converse_by_completions,
    "responses": converse_by_responses,
}
