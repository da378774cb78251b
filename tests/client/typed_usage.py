"""A type checker's view of the client. Never run: `test_types` gives it to pyright."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import Any, Literal, assert_never, assert_type

import swarmkeep
import swarmkeep_client
from swarmkeep_client import (
    AsyncClient,
    AsyncSession,
    Client,
    Comparison,
    Done,
    Event,
    Health,
    MessageDelta,
    MessageStarted,
    Replay,
    Run,
    RunError,
    RunFailed,
    Session,
    SessionBusy,
    SessionState,
    StateDiff,
    StreamItem,
    Usage,
    Verification,
)


def use_client() -> None:
    with Client("http://127.0.0.1:8000", api_key=None) as client:
        session = client.sessions.create(agent="A", context_variables={"a": 1})
        assert_type(session, Session)
        assert_type(session.seq, int)
        assert_type(session.usage, Usage)
        assert_type(session.context_variables, dict[str, Any])
        assert_type(session.run("Hi", max_turns=3, on_busy="queue"), Run)
        assert_type(session.run("Hi", model_settings={"seed": 1}, response_format={"type": "text"}).output, Any)
        assert_type(session.stream("Hi"), Generator[StreamItem, None, None])
        assert_type(session.events(), Iterator[Event])
        assert_type(session.export(), Generator[bytes, None, None])
        assert_type(session.messages(), list[dict[str, Any]])
        assert_type(session.state(at=3), SessionState)
        assert_type(session.fork(at=3), Session)
        assert_type(session.verify(), Verification)
        assert_type(session.replay(ignore=["model"]), Replay)
        assert_type(session.diff(1, 2), StateDiff)
        assert_type(session.compare(session), Comparison)
        assert_type(session.cancel("r1"), Run)
        assert_type(session.cancel(), Run | None)
        assert_type(client.sessions.list(), Iterator[Session])
        assert_type(client.health(), Health)
        session.run("Hi", on_busy="never")  # pyright: ignore[reportArgumentType]
        session.run("Hi", modle="m")  # pyright: ignore[reportCallIssue]
        for item in session.stream("Hi"):
            show(item)


def misspell() -> None:
    swarmkeep.Agnet()  # type: ignore[attr-defined]
    swarmkeep_client.Clinet()  # type: ignore[attr-defined]


def show(item: StreamItem) -> None:
    match item:
        case Event():
            assert_type(item.seq, int)
        case MessageStarted():
            assert_type(item.type, Literal["message.started"])
        case MessageDelta():
            assert_type(item.content or "", str)
        case Done():
            assert_type(item.run, Run)
        case _:
            assert_never(item)


def catch_refusals(error: RunFailed | SessionBusy) -> None:
    if isinstance(error, RunFailed):
        assert_type(error.run, Run)
        assert_type(error.error, RunError)
    else:
        assert_type(error.active_run_id, str | None)


async def use_async_client() -> None:
    async with AsyncClient() as client:
        session = await client.sessions.get("s1")
        assert_type(session, AsyncSession)
        assert_type(await session.run("Hi"), Run)
        assert_type(session.stream("Hi"), AsyncGenerator[StreamItem, None])
        assert_type(session.follow(), AsyncGenerator[Event, None])
        assert_type(client.export(), AsyncGenerator[bytes, None])
        assert_type(client.sessions.list(), AsyncIterator[AsyncSession])
        assert_type(await session.messages(), list[dict[str, Any]])
        assert_type(await session.cancel(), Run | None)
        async for item in session.stream("Hi"):
            show(item)
