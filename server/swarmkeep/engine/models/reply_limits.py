"""How much of a model's answer is read and kept, whoever sends it: a provider may be broken, or not who it says."""

from __future__ import annotations

import msgspec


class ReplyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`stream_bytes`: all that a stream sends until it is assembled; `bytes`: an answer that comes whole, one line of a
    stream, and what is kept of it, in characters; `calls`: tool calls in one reply."""

    stream_bytes: int = 64_000_000
    bytes: int = 8_000_000
    calls: int = 128
