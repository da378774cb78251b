"""Link a session to the call that asks an agent in it: a name that follows from the call, so that it is found again."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import string
from collections.abc import Iterable
from contextvars import ContextVar

from msgspec import UNSET

from swarmkeep.events.facts import Parent, RecordedEvent, ToolStarted
from swarmkeep.events.state import CHILD_PREFIX, Run, State, find_finished_runs
from swarmkeep.store.records import SessionKey

# Ids that the server makes: short, because a turn writes its session's and its run's some twenty times.

_DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_PAIRS = [first + second for first in _DIGITS for second in _DIGITS]
_LENGTH = 16
# Of those that belong to a name: it must lead to what was made in databases that there are.
_DERIVED_LENGTH = 20


def make_id(kind: str) -> str:
    """Make a new id that cannot be guessed: 95 random bits."""
    return f"{kind}_{_spell(os.urandom(12), _LENGTH)}"


def derive_id(kind: str, name: str) -> str:
    """The id that belongs to a name: the same each time."""
    return f"{kind}_{_spell(hashlib.sha256(name.encode(errors='surrogatepass')).digest()[:16], _DERIVED_LENGTH)}"


def _spell(value: bytes, length: int) -> str:
    number = int.from_bytes(value, "big")
    pairs = []
    for _ in range(length // 2):
        number, pair = divmod(number, len(_PAIRS))
        pairs.append(_PAIRS[pair])
    return "".join(pairs)


# How many agents may ask one another, one below the other: an agent that asks itself ends somewhere.
MOST_DEPTH = 8


def derive_child(key: SessionKey, state: State, run_id: str, call_id: str) -> SessionKey:
    """The session of a call. A session that is recreated under its id, and a fork, have other ones."""
    name = "\n".join((key.tenant, key.id, state.created_at, run_id, call_id))
    return SessionKey(key.tenant, derive_id(CHILD_PREFIX, name))


def derive_child_run(child: SessionKey) -> str:
    """Derive the run in which a child session is asked; callers who continue the conversation may add others."""
    return derive_id("run", f"{child.tenant}\n{child.id}")


def make_parent(key: SessionKey, state: State, run_id: str, call_id: str) -> Parent:
    return Parent(session_id=key.id, run_id=run_id, tool_call_id=call_id, depth=find_depth(state) + 1)


def find_depth(state: State) -> int:
    return 0 if state.parent is None else state.parent.depth


def is_child_of(state: State, run_id: str, call_id: str) -> bool:
    """Tell if a session was made for that call. Where its first event is redacted, it does not name the session."""
    parent = state.parent
    return parent is not None and (parent.run_id, parent.tool_call_id) == (run_id, call_id)


def list_open_children(key: SessionKey, state: State, run: Run) -> list[SessionKey]:
    """The sessions of a run's calls that have no result."""
    asked = (call for call in run.open_calls if call.session_id is not None)
    return [derive_child(key, state, run.id, call.id) for call in asked]


def find_replaced_run(state: State, run_id: str) -> Run | None:
    """Return the run before this one, if only interrupted: now that another has followed, it cannot be resumed."""
    places = find_finished_runs(state.finished).find(run_id)
    at = places[-1] if places else len(state.finished)
    return state.finished[at - 1] if at and state.finished[at - 1].status == "interrupted" else None


def list_children(key: SessionKey, state: State, starts: Iterable[RecordedEvent]) -> dict[SessionKey, RecordedEvent]:
    """All sessions that were made for calls of this one, each with the first start of its call, among the `starts`;
    those of the session that it is a fork of are not its own."""
    found: dict[SessionKey, RecordedEvent] = {}
    for event in starts:
        fact = event.fact
        if isinstance(fact, ToolStarted) and fact.session_id is not UNSET:
            child = derive_child(key, state, event.run_id or "", fact.tool_call_id)
            if child.id == fact.session_id:
                found.setdefault(child, event)
    return found


# Failpoints: named places where crash tests kill the process; armed through the environment only.

REQUEST_PARSED = "request.parsed"
MODEL_SENT = "model.sent"
MODEL_DELTA = "model.delta"
TOOL_DONE = "tool.done"
CHILD_ENDED = "child.ended"
ANSWER_READY = "answer.ready"
INVOCATION_READY = "invocation.ready"
RUN_BEGUN = "run.begun"


def _read_visits(armed: str) -> dict[tuple[str, str], int]:
    """Read how often each point is still to be reached, by session, of which an empty one is any."""
    visits = {}
    for entry in filter(None, armed.split(",")):
        place, _, count = entry.partition(":")
        session_id, _, point = place.rpartition("@")
        visits[session_id, point] = int(count or 1)
    return visits


armed_points = _read_visits(os.environ.get("SWARMKEEP_KILL_AT", ""))
"""The points that are still to be reached, so and so often. Where it is empty, `reach` need not be called."""
_session_id: ContextVar[str] = ContextVar("session_id", default="")
_never = asyncio.Event()


async def reach(point: str, session_id: str = "", *, visits: int = 1) -> None:
    """Die here if this is an armed point and its turn has come; without a session it is the last one's of this task."""
    if not armed_points:
        return
    if session_id:
        _session_id.set(session_id)
    for place in (("", point), (_session_id.get(), point)):
        if place in armed_points:
            await _count_visits(place, visits)


async def _count_visits(place: tuple[str, str], visits: int) -> None:
    armed_points[place] -= visits
    if armed_points[place] > 0:
        return
    del armed_points[place]
    if not armed_points:
        os.kill(os.getpid(), signal.SIGKILL)
    await _never.wait()
