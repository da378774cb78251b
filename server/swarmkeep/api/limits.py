"""Time limits for clients, and how soon the server reacts to what it can only look for."""

from __future__ import annotations

import msgspec


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """These are promised of every server, so there are no settings for them; tests pass smaller ones."""

    # Until a request's head has arrived, and then its body; a file may take longer, by its size.
    head_seconds: float = 30.0
    body_seconds: float = 60.0
    # Until a reader that takes nothing is disconnected, and what waits for all slow readers of a process together.
    stalled_seconds: float = 60.0
    unsent_bytes: int = 100_000_000
    # Of silence on a stream. Half of what is promised, because an idle stream looks at the clock only now and then.
    ping_seconds: float = 7.5
    # Until a stream notices that its session was deleted, which nothing else tells, or that its key was revoked.
    gone_seconds: float = 2.0
    # Between two checks of the key of a stream that stands still, and from a refusal until it is cut off.
    refused_seconds: float = 4.0
    # Until a replay stops and says how far it came, and how many of a tenant wait while one is made.
    replay_seconds: float = 60.0
    waiting_replays: int = 8
    # Until a request that waits for a run begins to watch whether its client is still there.
    leaving_seconds: float = 1.0
    # Of a conversation that is not stored, on one WebSocket: its frames, files included, and the responses to them.
    unstored_bytes: int = 100_000_000
