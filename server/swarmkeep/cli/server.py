"""Sessions on a server, asked for over HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import typer

from swarmkeep_client import Client, Event, Message, Session, SessionState

Json = dict[str, Any]


def client_for(url: str, *, max_retries: int = 2) -> Client:
    """A client of the server at `url`; the key comes from SWARMKEEP_API_KEY."""
    try:
        return Client(url, max_retries=max_retries)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--url'") from None


class ServerSource:
    def __init__(self, url: str) -> None:
        self._client = client_for(url)

    def sessions(self, *, agent: str | None, status: str | None, metadata: Mapping[str, str]) -> Iterator[SessionState]:
        for session in self._client.sessions.list(agent=agent, status=status, metadata=metadata):
            yield _fields(session)

    def session(self, session_id: str, *, at: int | None = None) -> SessionState:
        session = self._client.sessions.get(session_id)
        return _fields(session) if at is None else session.state(at=at)

    def messages(self, session_id: str, *, at: int | None = None) -> list[Message]:
        return self._client.sessions.get(session_id).messages(at=at)

    def events(self, session_id: str, *, after: int = 0, types: Sequence[str] = ()) -> Iterator[Event]:
        events = self._client.sessions.get(session_id).events(after=after, type=_only(types))
        return (event for event in events if not types or event.type in types)

    def follow(self, session_id: str, *, after: int = 0, types: Sequence[str] = ()) -> Iterator[Event]:
        events = self._client.sessions.get(session_id).follow(after=after, type=_only(types))
        return (event for event in events if not types or event.type in types)

    def fork(self, session_id: str, *, at: int | None, new_id: str | None, metadata: Json | None) -> SessionState:
        return _fields(self._client.sessions.get(session_id).fork(at, id=new_id, metadata=metadata))

    def delete(self, session_id: str, *, force: bool) -> None:
        self._client.sessions.get(session_id).delete(force=force)

    def close(self) -> None:
        self._client.close()


def _fields(session: Session) -> SessionState:
    return msgspec.convert(session, SessionState, from_attributes=True)


def _only(types: Sequence[str]) -> str | None:
    """What the server can sort out by itself: one type or all."""
    return types[0] if len(types) == 1 else None
