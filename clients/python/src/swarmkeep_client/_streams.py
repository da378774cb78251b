"""Streams that survive broken connections: each durable event once, in order.

A stream knows which request opens it next and what the bytes of the answer mean. Senders do the reading and waiting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from httpx2 import ServerSentEvent

from swarmkeep_client import _calls as calls
from swarmkeep_client._json import decode
from swarmkeep_client._requests import accept_stream
from swarmkeep_client._retries import Retries
from swarmkeep_client._wire import Answer, Outcome, Request, make_failure, make_unexpected
from swarmkeep_client.errors import check_completed
from swarmkeep_client.models import (
    Done,
    Event,
    FeedEvent,
    MessageDelta,
    MessageStarted,
    Run,
    SessionChanges,
    StreamItem,
)

T = TypeVar("T")

# A connection that stood this long, or brought a new event, was a good one: its end resets the count of failures.
# Anything less and a server that accepts and drops at once would be asked for ever.
GOOD_AFTER_SECONDS = 10.0
# A run whose server died is taken over within 17 seconds, 15 of them its lease. A stream that stood outlives that.
OUTAGE_SECONDS = 20.0
_FIRST_EVENT_TYPES = ("run.queued", "run.started")


class Stream(Generic[T]):
    """One stream over as many connections as it takes. Subclasses say what is asked for and what is given."""

    finished = False

    def __init__(self, retries: Retries, *, after: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._retries = retries
        self._clock = clock
        self._last_seq = after
        self._last_hash: str | None = None
        self._last_id = ""
        self._opened_at: float | None = None
        self._has_stood = False

    @property
    def request(self) -> Request:
        """The request that opens the next connection."""
        raise NotImplementedError

    def accept(self, status: int, content_type: str) -> bool:
        """Begin to read an answer, if it is a stream at all; if not, its whole body goes to `handle_interruption`."""
        if status != 200 or not content_type.startswith("text/event-stream"):
            return False
        self._last_id = ""
        self._opened_at = self._clock()
        self._has_stood = True
        return True

    def read_frame(self, frame: ServerSentEvent) -> Iterator[T]:
        """The items that a frame brings. Raises the server's refusal if it tells one in mid-stream."""
        try:
            yield from self._read_frame(frame)
        except (ValueError, RecursionError) as error:
            raise make_unexpected(self.request, _frame_to_answer(frame), str(error)) from error

    def handle_interruption(self, outcome: Outcome) -> float:
        """The seconds to wait before `request` is sent again.

        Raises the refusal, or ConnectionFailed, when it is of no use.
        """
        if self._opened_at is not None and self._clock() - self._opened_at >= GOOD_AFTER_SECONDS:
            self._retries.reset()
        self._opened_at = None
        patience = OUTAGE_SECONDS if self._has_stood else 0.0
        pause = self._retries.pause_after(self.request, outcome, outlive_seconds=patience)
        if pause is None:
            raise make_failure(self.request, outcome)
        return pause

    def _read_frame(self, frame: ServerSentEvent) -> Iterator[T]:
        # A frame without an id has the one before it: only recorded events bring their own, and the last frame.
        if frame.id == self._last_id or frame.event == "done":
            yield from self._read_passing(frame)
            return
        self._last_id = frame.id
        event = decode(frame.data, Event)
        if self._is_new(event):
            self._last_seq, self._last_hash = event.seq, event.hash
            self._retries.reset()
            yield from self._read_durable(event)

    def _is_new(self, event: Event) -> bool:
        return self._last_seq is None or event.seq > self._last_seq

    def _read_durable(self, event: Event) -> Iterator[T]:
        raise NotImplementedError

    def _read_passing(self, frame: ServerSentEvent) -> Iterator[T]:
        if frame.event == "error":
            raise make_failure(self.request, _frame_to_answer(frame))
        yield from ()


class RunStream(Stream[StreamItem]):
    """The stream of one run, to its end.

    `start` opens it. Once the run is known, a broken connection is taken up by joining that run after the last event;
    until then `start` is sent again, with its idempotency key. `run_id` is the run that `start` resumes or joins: then
    only a durable event of it shows that `start` arrived, and from where on there is something to give.
    """

    def __init__(
        self,
        session_id: str,
        start: Request,
        retries: Retries,
        *,
        run_id: str | None = None,
        after: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(retries, after=after, clock=clock)
        self._session_id = session_id
        self._start = start
        self._existing_run_id = run_id
        self._run_id: str | None = None
        self._message_open = False

    @property
    def request(self) -> Request:
        if self._run_id is None:
            return self._start
        return calls.join_run(self._session_id, self._run_id, after=self._last_seq)

    def accept(self, status: int, content_type: str) -> bool:
        self._message_open = False
        return super().accept(status, content_type)

    def _read_durable(self, event: Event) -> Iterator[StreamItem]:
        # The first events of a stream may be another run's, which this one interrupted.
        if event.type in _FIRST_EVENT_TYPES if self._existing_run_id is None else event.run_id == self._existing_run_id:
            self._run_id = self._run_id or event.run_id
        yield event

    def _read_passing(self, frame: ServerSentEvent) -> Iterator[StreamItem]:
        match frame.event:
            case "message.started":
                started = decode(frame.data, MessageStarted)
                self._open_message(started.run_id)
                yield started
            case "message.delta":
                delta = decode(frame.data, MessageDelta)
                if not self._message_open:
                    # Joined in the middle of a message: what was shown of it on an earlier connection is void.
                    yield MessageStarted(run_id=delta.run_id, agent=delta.agent)
                self._open_message(delta.run_id)
                yield delta
            case "done":
                run = decode(frame.data, Run)
                self.finished = True
                yield Done(run=run)
                check_completed(run)
            case _:
                yield from super()._read_passing(frame)

    def _open_message(self, run_id: str) -> None:
        self._message_open = True
        if self._existing_run_id is None:
            self._run_id = self._run_id or run_id


class EventStream(Stream[Event]):
    """The events of a session after `after`, until the reader stops.

    A session that was deleted and made again under its id comes from its beginning: its seqs go back.
    """

    def __init__(
        self,
        session_id: str,
        retries: Retries,
        *,
        after: int,
        type: calls.EventTypes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(retries, after=after, clock=clock)
        self._session_id = session_id
        self._type = type

    @property
    def request(self) -> Request:
        return calls.follow_events(self._session_id, after=self._last_seq or 0, type=self._type)

    def _is_new(self, event: Event) -> bool:
        # Nothing is repeated but the last event; anything else from before it is of a session that was made again.
        return event.seq != self._last_seq or self._last_hash not in (None, event.hash)

    def _read_durable(self, event: Event) -> Iterator[Event]:
        yield event


class FeedStream(Stream[FeedEvent]):
    """The events of all sessions, until the reader stops: `start` opens it, and then each connection goes on behind the
    last event."""

    def __init__(self, start: Request, retries: Retries, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(retries, after=None, clock=clock)
        self._start = start
        self._cursor: str | None = None

    @property
    def request(self) -> Request:
        return accept_stream(self._start, self._cursor)

    def _read_frame(self, frame: ServerSentEvent) -> Iterator[FeedEvent]:
        if frame.id == self._last_id:
            yield from self._read_passing(frame)
            return
        event = decode(frame.data, FeedEvent)
        self._last_id = self._cursor = event.cursor
        self._retries.reset()
        yield event


class ChangeStream(Stream[SessionChanges]):
    """The sessions that change from now on, until the reader stops. Each connection begins with `more`."""

    @property
    def request(self) -> Request:
        return calls.follow_sessions()

    def _read_passing(self, frame: ServerSentEvent) -> Iterator[SessionChanges]:
        if frame.event != "sessions.changed":
            yield from super()._read_passing(frame)
            return
        changes = decode(frame.data, SessionChanges)
        # Each connection begins with one that has `more`, however soon it ends.
        if not changes.more:
            self._retries.reset()
        yield changes


def _frame_to_answer(frame: ServerSentEvent) -> Answer:
    """A frame as if it had been an answer of its own, with the status that it names."""
    try:
        status = decode(frame.data, dict[str, object]).get("status")
    except (ValueError, RecursionError):
        status = None
    return Answer(
        status if isinstance(status, int) else 200, {"content-type": "text/event-stream"}, frame.data.encode()
    )
