"""Which session is made for a call that asks an agent: a name that follows from the call, so that it is found again."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET

from swarmkeep.domain.checking.inputs import CHILD_PREFIX
from swarmkeep.domain.checking.known_ids import find_finished_runs
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import Parent, ToolStarted
from swarmkeep.domain.state import Run, State
from swarmkeep.engine.ids import derive_id
from swarmkeep.store.ports import SessionKey

# How many agents may ask one another, one below the other: an agent that asks itself ends somewhere.
MOST_DEPTH = 8


def derive_child(key: SessionKey, state: State, run_id: str, call_id: str) -> SessionKey:
    """The session of a call. A session that is made anew under its id, and a fork, have other ones."""
    name = "\n".join((key.tenant, key.id, state.created_at, run_id, call_id))
    return SessionKey(key.tenant, derive_id(CHILD_PREFIX, name))


def derive_child_run(child: SessionKey) -> str:
    """The run in which a child session is asked; others may follow it, by whoever goes on with that conversation."""
    return derive_id("run", f"{child.tenant}\n{child.id}")


def make_parent(key: SessionKey, state: State, run_id: str, call_id: str) -> Parent:
    return Parent(session_id=key.id, run_id=run_id, tool_call_id=call_id, depth=find_depth(state) + 1)


def find_depth(state: State) -> int:
    return 0 if state.parent is None else state.parent.depth


def is_child_of(state: State, run_id: str, call_id: str) -> bool:
    """Whether a session was made for that call. Where its first event is redacted, it does not name the session."""
    parent = state.parent
    return parent is not None and (parent.run_id, parent.tool_call_id) == (run_id, call_id)


def list_open_children(key: SessionKey, state: State, run: Run) -> list[SessionKey]:
    """The sessions of a run's calls that have no result."""
    asked = (call for call in run.open_calls if call.session_id is not None)
    return [derive_child(key, state, run.id, call.id) for call in asked]


def find_replaced_run(state: State, run_id: str) -> Run | None:
    """The run before this one, if it was only interrupted: now that another has followed, nobody can resume it."""
    places = find_finished_runs(state.finished).find(run_id)
    at = places[-1] if places else len(state.finished)
    return state.finished[at - 1] if at and state.finished[at - 1].status == "interrupted" else None


def list_children(key: SessionKey, state: State, starts: Iterable[RecordedEvent]) -> list[SessionKey]:
    """All sessions that were made for calls of this one, by the `starts` of its calls; those of the session that it is
    a fork of are not its own."""
    found: dict[SessionKey, None] = {}
    for event in starts:
        fact = event.fact
        if isinstance(fact, ToolStarted) and fact.session_id is not UNSET:
            child = derive_child(key, state, event.run_id or "", fact.tool_call_id)
            if child.id == fact.session_id:
                found[child] = None
    return list(found)
