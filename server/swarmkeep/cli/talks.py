"""A conversation to take part in, wherever it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from swarmkeep_client import Approval, Client, Message, Run, RunOptions, StreamItem


class Talk(Protocol):
    """One session, spoken with. Each stream of items ends with the run's Done."""

    session_id: str

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

    def latest(self) -> Run | None:
        """The newest run, whatever has become of it."""
        ...

    def cancel(self) -> None:
        """End the active run, if there is one; what it produced stays."""
        ...

    def close(self) -> None:
        """Leave; the session stays as it is."""
        ...


class ServerTalk:
    """A session on a server. A run goes on there whether or not anybody follows it."""

    def __init__(self, client: Client, session_id: str | None, agent: str | None) -> None:
        if session_id is not None:
            self._session = client.sessions.get(session_id)
            if agent is not None:
                self._session.update(agent=agent)
        else:
            self._session = client.sessions.create(agent=agent)
        self.session_id = self._session.id

    def say(self, said: str | Sequence[Message], options: RunOptions | None = None) -> Iterator[StreamItem]:
        return self._session.stream(said, **(options or {}))

    def join(self, run_id: str) -> Iterator[StreamItem]:
        return self._session.join(run_id)

    def decide(self, run_id: str, approvals: Sequence[Approval]) -> Iterator[StreamItem]:
        return self._session.resume_stream(run_id, approvals=approvals)

    def active(self) -> Run | None:
        run_id = self._session.refresh().active_run_id
        return None if run_id is None else self._session.get_run(run_id)

    def latest(self) -> Run | None:
        return next(self._session.runs(), None)

    def cancel(self) -> None:
        self._session.cancel()

    def close(self) -> None:
        """Nothing to do: whoever opened the client closes it."""
