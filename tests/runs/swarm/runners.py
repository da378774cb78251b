"""Programs run on Swarm and on AsyncSwarm alike, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI

from swarmkeep import Agent, AsyncSwarm, Response, Swarm
from swarmkeep.events.codec import Json


def open_sync(url: str, **options: Any) -> OpenAI:
    """The real client, without the certificates that it would spend most of a test on reading."""
    return OpenAI(
        **{"api_key": "test", "max_retries": 0, "base_url": url, **options},
        http_client=DefaultHttpxClient(verify=False),
    )


def open_async(url: str, **options: Any) -> AsyncOpenAI:
    settings = {"api_key": "test", "max_retries": 0, "base_url": url, **options}
    return AsyncOpenAI(**settings, http_client=DefaultAsyncHttpxClient(verify=False))


def make_answer(**message: Any) -> Json:
    """An assistant's message as Swarm gives it: the keys that programs read are there, null where there is nothing."""
    return {"role": "assistant", **dict.fromkeys(("content", "refusal", "function_call", "tool_calls")), **message}


class Runner(Protocol):
    """One of the two swarms; `run` and `stream` take the arguments of `Swarm.run`."""

    def run(self, agent: Agent, messages: str | Sequence[Json], **options: Any) -> Response: ...

    def stream(self, agent: Agent, messages: str | Sequence[Json], **options: Any) -> list[Json]: ...


class SyncRunner:
    def __init__(self, url: str) -> None:
        self._url = url

    def run(self, agent: Agent, messages: str | Sequence[Json], **options: Any) -> Response:
        with open_sync(self._url) as client:
            return Swarm(client).run(agent, make_messages(messages), **options)

    def stream(self, agent: Agent, messages: str | Sequence[Json], **options: Any) -> list[Json]:
        with open_sync(self._url) as client:
            return list(Swarm(client).run(agent, make_messages(messages), stream=True, **options))


class AsyncRunner:
    def __init__(self, url: str) -> None:
        self._url = url

    def run(self, agent: Agent, messages: str | Sequence[Json], **options: Any) -> Response:
        async def run() -> Response:
            async with open_async(self._url) as client:
                return await AsyncSwarm(client).run(agent, make_messages(messages), **options)

        return asyncio.run(run())

    def stream(self, agent: Agent, messages: str | Sequence[Json], **options: Any) -> list[Json]:
        async def stream() -> list[Json]:
            async with open_async(self._url) as client:
                frames = AsyncSwarm(client).run(agent, make_messages(messages), stream=True, **options)
                return [frame async for frame in frames]

        return asyncio.run(stream())


def make_messages(messages: str | Sequence[Json]) -> Sequence[Json]:
    """Messages; a text is one of the user's."""
    return [user_message(messages)] if isinstance(messages, str) else messages


def user_message(text: str) -> Json:
    return {"role": "user", "content": text}


def list_tool_texts(response: Response) -> list[str]:
    """The results that the model was sent, in order."""
    return [message["content"] for message in response.messages if message["role"] == "tool"]
