"""Headers that tell browsers what not to do with an answer. The pages have their own, which go before these."""

from __future__ import annotations

from swarmkeep.http.metrics import Message

_ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    # Other sites' pages may not load it as a picture or a script, and read from that whether it is there.
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    # Sessions' texts are kept by no cache on the way.
    (b"cache-control", b"no-store"),
)


def add_security_headers(message: Message) -> None:
    """Add what the beginning of an answer does not say itself."""
    if message["type"] == "http.response.start":
        named = {name.lower() for name, _ in message["headers"]}
        message["headers"] += [header for header in _ALWAYS if header[0] not in named]
