"""What each role may do."""

from __future__ import annotations

from typing import Literal

from swarmkeep.store.ports.api_keys import Role

# `read`: look at sessions. `run`: make and change sessions, start and cancel runs, give results of tools. `approve`:
# decide on approvals. `audit`: read the audit log. `write`: delete, redact and import. `keys`: make and revoke keys.
Permission = Literal["read", "run", "approve", "audit", "write", "keys"]

_OF_SESSIONS: frozenset[Permission] = frozenset({"read", "run", "approve", "audit", "write"})

PERMISSIONS: dict[Role, frozenset[Permission]] = {
    "read": frozenset({"read"}),
    "run": frozenset({"read", "run"}),
    "approve": frozenset({"read", "approve"}),
    "support": frozenset({"read", "run", "approve"}),
    "audit": frozenset({"read", "audit"}),
    "write": _OF_SESSIONS,
    "admin": _OF_SESSIONS | {"keys"},
}
