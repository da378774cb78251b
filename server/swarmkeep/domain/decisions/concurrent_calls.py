"""Calls of one reply that run at once: which of them start together, and how what they change comes into their order.

A call's result is recorded when it ends, its change of the context after those of the calls before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec import UNSET, UnsetType

from swarmkeep.domain.codec import Json
from swarmkeep.domain.events import ContextChange, ContextUpdated
from swarmkeep.domain.patch import apply, apply_change, diff, has_effect
from swarmkeep.domain.state import Run, State, ToolCall

MAX_AT_ONCE = 16


def find_batch(
    run: Run, concurrent: Collection[str], guarded: Collection[str], *, max_calls: int = MAX_AT_ONCE
) -> tuple[ToolCall, ...]:
    """The calls that start together now: those to functions named in `concurrent` that come next, side by side.

    One that waits for an approval, or has yet to be approved because it is to a function named in `guarded`, is left
    out, and does not keep the others back. Any other function does: what comes after it starts once it is done.
    """
    batch: list[ToolCall] = []
    for call in run.own_open_calls:
        if call.name not in concurrent or len(batch) == max_calls:
            break
        needs_approval = call.imported or call.name in guarded
        if not call.attempts and (call.approval == "approve" or (call.approval is None and not needs_approval)):
            batch.append(call)
    return tuple(batch)


def hold_change(run: Run, call: ToolCall, change: ContextChange | None) -> ContextChange | UnsetType:
    """The change, if it has to wait for a call before this one."""
    return UNSET if change is None or call.id in _find_next_in_order(run) else change


def make_changes(
    state: State, run: Run, ended: ToolCall | None = None, change: ContextChange | None = None
) -> list[ContextUpdated]:
    """The changes of the context that wait for nothing any more now that this call has ended, its own among them; or,
    without one, all that wait."""
    pending = _list_changes(run, ended, change)
    if not pending:
        return []
    facts: list[ContextUpdated] = []
    context = state.context_variables
    free = None if ended is None else _find_next_in_order(run, ended.id)
    for call, made in pending:
        if free is not None and call.id not in free:
            break
        fact = _describe_change(context, call, made)
        nulls = () if fact.nulls is UNSET else fact.nulls
        # One that was held says that it is made, whether or not anything is different for it.
        if call.held is not None or has_effect(context, fact.patch, nulls):
            facts.append(fact)
        context = apply(context, fact.patch, nulls)
    return facts


def preview_contexts(state: State, run: Run, ended: ToolCall, change: ContextChange) -> Iterator[Json]:
    """The context after each of the changes that are known by now, with that of a call that has just ended."""
    context = state.context_variables
    for _, made in _list_changes(run, ended, change):
        context = apply_change(context, made)
        yield context


def _list_changes(
    run: Run, ended: ToolCall | None, change: ContextChange | None
) -> list[tuple[ToolCall, ContextChange]]:
    """The changes that have yet to be made, in the order of the calls."""
    found = ((call, change if ended is not None and call.id == ended.id else call.held) for call in run.calls)
    return [(call, made) for call, made in found if made is not None]


def _find_next_in_order(run: Run, ended: str = "") -> set[str]:
    """The calls with no other before them that is still to be carried out here; `ended` is not, any more."""
    still_open = {call.id for call in run.own_open_calls if call.id != ended}
    found: set[str] = set()
    for call in run.calls:
        found.add(call.id)
        if call.id in still_open:
            break
    return found


def _describe_change(context: Json, call: ToolCall, change: ContextChange) -> ContextUpdated:
    if change.values is UNSET:
        return ContextUpdated(patch=change.patch, tool_call_id=call.id, nulls=change.nulls)
    patch, nulls = diff(context, apply_change(context, change))
    return ContextUpdated(patch=patch, tool_call_id=call.id, nulls=nulls or UNSET)
