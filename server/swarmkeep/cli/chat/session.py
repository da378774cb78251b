"""One session to chat with: on a server, here, or in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from swarmkeep_client import Approval, Client, Message, Run, RunOptions, StreamItem


class ChatSession(Protocol):
    """One session, spoken with. Each stream of items ends with the run's Done.

    A new session is not made before `begin`: whoever leaves without a word leaves nothing behind. `place` says where
    it is.
    """

    session_id: str | None
    place: str

    def begin(self) -> str:
        """Make the session, if it is a new one that was not made yet; its id."""
        ...

    def say(self, said: str | Sequence[Message], options: RunOptions | None = None) -> Iterator[StreamItem]:
        """Start a run on this input, and follow it."""
        ...

    def join(self, run_id: str) -> Iterator[StreamItem]:
        """Follow a run that is under way."""
        ...

    def decide(self, run_id: str, approvals: Sequence[Approval]) -> Iterator[StreamItem]:
        """Go on with a run that waits, or without approvals with one that was interrupted, and follow it."""
        ...

    def active(self) -> Run | None:
        """The run that is under way or waits, if there is one."""
        ...

    def find_latest_run(self) -> Run | None:
        """The newest run, whatever has become of it."""
        ...

    def open_below(self, session_id: str) -> ChatSession:
        """A session in which an agent of this one asks another; it is this one's to close."""
        ...

    def cancel(self) -> None:
        """End the active run, if there is one; what it produced stays."""
        ...

    def close(self) -> None:
        """Leave; the session stays as it is."""
        ...


class ServerChatSession:
    """A session on a server. A run goes on there whether or not anybody follows it."""

    def __init__(self, client: Client, session_id: str | None, agent: str | None) -> None:
        self.place = f"on {client.base_url}"
        self.session_id = session_id
        self._client = client
        self._agent = agent
        if session_id is not None:
            self._session = client.sessions.get(session_id)
            if agent is not None:
                self._session.update(agent=agent)
        elif agent is not None:
            client.agents.get(agent)
        else:
            # A server that asks for a key is better found out now than after the first message.
            client.agents.list()

    def begin(self) -> str:
        if self.session_id is None:
            self._session = self._client.sessions.create(agent=self._agent)
            self.session_id = self._session.id
        return self.session_id

    def say(self, said: str | Sequence[Message], options: RunOptions | None = None) -> Iterator[StreamItem]:
        return self._session.stream(said, **(options or {}))

    def join(self, run_id: str) -> Iterator[StreamItem]:
        return self._session.join(run_id)

    def decide(self, run_id: str, approvals: Sequence[Approval]) -> Iterator[StreamItem]:
        return self._session.resume_stream(run_id, approvals=approvals)

    def active(self) -> Run | None:
        if self.session_id is None:
            return None
        run_id = self._session.refresh().active_run_id
        return None if run_id is None else self._session.get_run(run_id)

    def find_latest_run(self) -> Run | None:
        return None if self.session_id is None else next(self._session.runs(), None)

    def open_below(self, session_id: str) -> ServerChatSession:
        return ServerChatSession(self._client, session_id, None)

    def cancel(self) -> None:
        if self.session_id is not None:
            self._session.cancel()

    def close(self) -> None:
        """Nothing to do: whoever opened the client closes it."""
