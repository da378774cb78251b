"""Fold an import: whatever came out of the file, nobody has decided it here."""

from __future__ import annotations

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from swarmkeep.domain.chain import Chain
from swarmkeep.domain.folding.calls import make_undecided
from swarmkeep.domain.state import Run, State


def apply_session_imported(state: State, by: str | UnsetType) -> State:
    # The last run to end may be tried again, with its calls.
    if len(state.finished):
        last = mark_imported(state.finished[-1], by)
        state = replace(state, finished=state.finished.replace_at(-1, last))
    queue = tuple(replace(queued, fact=replace(queued.fact, by=by, traceparent=UNSET)) for queued in state.queue)
    run = None if state.run is None else mark_imported(state.run, by)
    # Whose call it was made for, and which tool of which server a name stands for, only the file says.
    return replace(
        state, compaction=None, listings=Chain(), queue=queue, run=run, parent=None, taken_over=None, handback_note=None
    )


def mark_imported(run: Run, by: str | UnsetType) -> Run:
    """The run without whatever was decided on its open calls, and without a trace.

    Who started it, only whoever imported it says.
    """
    calls = tuple(call if call.done else replace(make_undecided(call), imported=True) for call in run.calls)
    return replace(run, calls=calls, by=by, traceparent=UNSET)
