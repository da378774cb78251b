"""Times as text: UTC with a `Z`, as events and rows carry them."""

from __future__ import annotations

from datetime import UTC, datetime


def to_timestamp(at: datetime, *, timespec: str = "microseconds") -> str:
    """With microseconds, texts are in the order of their times. `auto` leaves out a fraction that is zero."""
    return at.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def make_timestamp() -> str:
    """The present."""
    return to_timestamp(datetime.now(UTC))
