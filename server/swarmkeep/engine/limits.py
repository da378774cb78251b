"""How long things may take, and how much."""

from __future__ import annotations

import msgspec

from swarmkeep.domain.decisions.sizes import SizeLimits


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds. `max_recoveries`: take-overs of one turn before a run is given up as interrupted.

    `max_messages`: of a new session's history, and of a run's input. `loop_turns` and `history_turns` are written into
    each run's options. The last six are nobody's to set:
    `unserved_seconds`, how long a run whose agent is not served here is left to servers that may have it;
    `interrupt_seconds`, because a database that cannot be reached does not keep a server from stopping;
    `recovery_sessions`, how many abandoned sessions are looked at in one go; `feed_characters`, how far a reader may be
    behind before it is sent to the log; `page_events`, how many events a reader takes from there at once;
    `page_bytes`, after how many bytes a page of them, or of any list, ends early.
    """

    lease_seconds: float = 15.0
    grace_seconds: float = 10.0
    run_seconds: float | None = None
    tool_seconds: float | None = 300.0
    approval_seconds: float | None = None
    poll_seconds: float = 0.5
    max_recoveries: int = 5
    loop_turns: int | None = None
    history_turns: int | None = None
    max_messages: int = 10_000
    max_context_bytes: int = SizeLimits().max_context_bytes
    max_metadata_bytes: int = SizeLimits().max_metadata_bytes
    max_message_bytes: int = SizeLimits().max_message_bytes
    unserved_seconds: float = 3.0
    interrupt_seconds: float = 5.0
    recovery_sessions: int = 100
    feed_characters: int = 1_000_000
    page_events: int = 200
    page_bytes: int = 4_000_000

    @property
    def sizes(self) -> SizeLimits:
        return msgspec.convert(self, SizeLimits, from_attributes=True)
