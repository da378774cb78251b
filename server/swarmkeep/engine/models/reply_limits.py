"""How much of a model's answer is read and kept, whoever sends it: a provider may be broken, or not who it says."""

from __future__ import annotations

import msgspec

from swarmkeep.domain.codec import has_more_values


class ReplyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`stream_bytes`: all that a stream sends until it is assembled; `bytes`: an answer that comes whole, one line of a
    stream, and what is kept of it, in characters; `calls`: tool calls in one reply; `values`: what JSON holds, in an
    answer, in a line, and in the arguments of a call, because each takes time."""

    stream_bytes: int = 64_000_000
    bytes: int = 8_000_000
    calls: int = 128
    values: int = 200_000


def has_excess_values(text: str | bytes, limits: ReplyLimits) -> bool:
    """Whether JSON text is not to be read."""
    # Nearly every text is shorter than that.
    if len(text) <= limits.values:
        return False
    return has_more_values(text.encode(errors="surrogatepass") if isinstance(text, str) else text, limits.values)
