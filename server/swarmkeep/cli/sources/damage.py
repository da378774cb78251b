"""Say where a session is not what was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarmkeep.cli.terminal import say

if TYPE_CHECKING:
    from swarmkeep.cli.sources.source import Source


def warn_if_damaged(found: Source, session_id: str) -> None:
    """For commands that show a log as far as it goes: say where it is not what was recorded."""
    verification = found.verify(session_id)
    if not verification.valid:
        first = verification.problems[0]
        say(
            f"warning: this session does not verify: {first.detail} ({first.code}); "
            f"`swarmkeep verify {session_id}` says more"
        )
