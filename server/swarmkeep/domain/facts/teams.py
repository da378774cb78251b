"""Where a session comes from that was made for a call of an agent to another one."""

from __future__ import annotations

import msgspec


class Parent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The call that a session was made for. `depth`: how many sessions lie above it, one asked by the other."""

    session_id: str
    run_id: str
    tool_call_id: str
    depth: int = 1
