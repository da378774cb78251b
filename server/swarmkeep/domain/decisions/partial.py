"""What a model has said of a message that is not complete."""

from __future__ import annotations

import msgspec

from swarmkeep.domain.state import Run, State


class PartialReply(msgspec.Struct, frozen=True, kw_only=True):
    """What the model of a run has said so far on the history up to `seq`, asked as `agent`; without text, nothing.

    `finish_reason`: what its provider said, if that ended it.
    """

    run_id: str = ""
    seq: int = 0
    agent: str = ""
    text: str = ""
    finish_reason: str | None = None

    def is_current(self, state: State, run: Run) -> bool:
        """Whether it has text, and that is not in the log yet: no reply of the run was recorded since it was begun."""
        if not self.text or self.run_id != run.id:
            return False
        for index in range(run.last_message - 1, run.first_message - 1, -1):
            entry = state.messages[index]
            if entry.seq <= self.seq:
                break
            if entry.completion is not None and entry.run_id == run.id:
                return False
        return True


NOTHING_SAID = PartialReply()
