"""How long a client may take, and how soon one that waits is told something."""

from __future__ import annotations

import msgspec


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What is promised of every server, so that nobody sets it; tests have no patience and pass less.

    `head_seconds` and `body_seconds`: for a request to arrive, a file longer by its size. `stalled_seconds`: until a
    reader that takes nothing is let go. `unsent_bytes`: so much waits for slow readers together, in each process.
    `ping_seconds`: of silence on a stream, half of what is promised, because an idle stream looks at the clock only now
    and then. `gone_seconds`: how soon a reader learns that the session was deleted, for nothing else tells when rows
    are simply gone, and how soon one whose key was revoked hears no more.
    `refused_seconds`: between two looks at a key whose stream stands still, and until that is cut off by force.
    `replay_seconds`: of a replay, after which it says how far it came. `waiting_replays`: so many of a tenant wait
    while one is made. `leaving_seconds`: until a request that waits for a run looks whether its client is there still.
    """

    head_seconds: float = 30.0
    body_seconds: float = 60.0
    stalled_seconds: float = 60.0
    unsent_bytes: int = 100_000_000
    ping_seconds: float = 7.5
    gone_seconds: float = 2.0
    refused_seconds: float = 4.0
    replay_seconds: float = 60.0
    waiting_replays: int = 8
    leaving_seconds: float = 1.0
