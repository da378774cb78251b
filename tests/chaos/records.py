"""Reads what a crash left: the log, row by row, and the effects that tools had outside of it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from swarmkeep.events.codec import Json
from swarmkeep.events.fold import evolve
from swarmkeep.events.state import State
from swarmkeep.request.request import Profile, build_request
from swarmkeep.store.hashing import GENESIS, SealedEvent, commitment_of, header_of, link
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import DEFAULT_TENANT, SessionKey
from tests.support.rules import find_faults

PROFILE = Profile(name="Clerk", model="m", instructions="Do as you are told.")
ENDS = {"run.completed", "run.failed", "run.cancelled", "run.interrupted"}
PAGE_SIZE = 500


class LogRows:
    """A session's events as the database has them."""

    def __init__(self, session_id: str, rows: list[SealedEvent]) -> None:
        self.session_id = session_id
        self.rows = rows
        self.events = [row.event for row in rows]
        self.data: list[Json] = [json.loads(event.payload) for event in self.events]

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]

    @property
    def hashes(self) -> dict[int, str]:
        return {event.seq: event.hash for event in self.events}

    @property
    def run_ids(self) -> list[str]:
        """The runs in the order in which they were asked for."""
        return list(dict.fromkeys(event.run_id for event in self.events if event.run_id is not None))

    def of(self, *types: str, run_id: str | None = None) -> list[Json]:
        """The data of events of these types, perhaps of one run only."""
        return [
            data
            for event, data in zip(self.events, self.data, strict=True)
            if event.type in types and run_id in (None, event.run_id)
        ]

    def list_ends(self, run_id: str) -> list[str]:
        return [event.type for event in self.events if event.type in ENDS and event.run_id == run_id]

    def read_tool_status(self) -> dict[str, str]:
        """How each call ended that did, by its id."""
        results = [data for data in self.of("message.added") if data.get("tool")]
        ids = [data["message"]["tool_call_id"] for data in results]
        assert len(set(ids)) == len(ids), f"{self.session_id}: a call has two results: {ids}"
        return {data["message"]["tool_call_id"]: data["tool"]["status"] for data in results}

    def attempts(self) -> Counter[str]:
        """How often each call's start was recorded."""
        return Counter(data["tool_call_id"] for data in self.of("tool.started"))

    def problems(self, *, at_rest: bool = True) -> list[str]:
        """Whatever breaks a promise about logs; `at_rest`: every run should have ended or wait for somebody."""
        return [*self._chain(), *self._requests(), *self._runs(at_rest), *self._calls()]

    def _chain(self) -> Iterator[str]:
        previous = GENESIS
        for place, row in enumerate(self.rows, 1):
            event = row.event
            if event.seq != place:
                yield f"event {place} has the seq {event.seq}"
            assert row.salt is not None
            commitment = commitment_of(row.salt, event.payload)
            header = header_of(event.seq, event.type, event.version, event.run_id, event.agent, event.at)
            previous = link(previous, header, commitment)
            if commitment != row.commitment or previous.hex() != event.hash:
                yield f"event {event.seq} does not hash to what is stored"

    def _requests(self) -> Iterator[str]:
        state = State()
        for event in self.events:
            state = evolve(state, event)
            if wrong := find_faults(build_request(state, PROFILE).messages):
                yield f"after event {event.seq} the request is not valid: {wrong}"

    def _runs(self, at_rest: bool) -> Iterator[str]:
        where: dict[str, str] = {}
        for event in self.events:
            run_id = event.run_id
            after = _TRANSITIONS.get(event.type)
            if run_id is None or after is None:
                continue
            before = where.get(run_id, "new")
            if before not in after[0]:
                yield f"event {event.seq} is {event.type} of a run that is {before}"
            where[run_id] = after[1]
            active = [run for run, place in where.items() if place in ("running", "waiting")]
            if len(active) > 1:
                yield f"after event {event.seq} several runs are active: {active}"
        if at_rest:
            yield from (f"{run} is {place}" for run, place in where.items() if place in ("queued", "running"))

    def _calls(self) -> Iterator[str]:
        done: set[str] = set()
        for event, data in zip(self.events, self.data, strict=True):
            if event.type == "tool.started" and data["tool_call_id"] in done:
                yield f"event {event.seq} starts a call that has a result already"
            if event.type == "message.added" and data.get("tool"):
                call_id = data["message"]["tool_call_id"]
                if call_id in done:
                    yield f"event {event.seq} is a second result of {call_id}"
                done.add(call_id)


# From which places an event may move a run, and to which.
_TRANSITIONS = {
    "run.queued": ({"new"}, "queued"),
    "run.started": ({"new", "queued"}, "running"),
    "run.waiting": ({"running"}, "waiting"),
    "run.resumed": ({"running", "waiting", "run.interrupted"}, "running"),
    **{end: ({"queued", "running", "waiting"}, end) for end in ENDS},
}


def read_logs(url: str, session_ids: Iterable[str]) -> list[LogRows]:
    """Sessions' logs, past the server."""
    return asyncio.run(_read(url, session_ids))


async def _read(url: str, session_ids: Iterable[str]) -> list[LogRows]:
    store = open_store(url, read_only=True)
    try:
        return [LogRows(session_id, await _read_rows(store, session_id)) for session_id in session_ids]
    finally:
        await store.close()


async def _read_rows(store: SqlStore, session_id: str) -> list[SealedEvent]:
    key = SessionKey(DEFAULT_TENANT, session_id)
    rows: list[SealedEvent] = []
    while page := await store.read_sealed(key, after=len(rows), limit=PAGE_SIZE):
        rows += page
    return rows


class Effects:
    """The file that tools write to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[Json]:
        # The last line may still be being written.
        text = self.path.read_text() if self.path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def count(self, what: str = "begin", *tools: str) -> Counter[str]:
        """How often the calls of these tools (by default of all) began or ended, by id."""
        lines = [line for line in self.lines() if line["what"] == what]
        return Counter(line["id"] for line in lines if not tools or line["tool"] in tools)

    def list_repeated(self) -> list[str]:
        """Calls that began twice and must not have."""
        return [call_id for call_id, count in self.count("begin", "pay", "visit", "refund").items() if count > 1]
