"""Times as text: UTC with a `Z`, as events and rows carry them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_FORM = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)


def to_timestamp(at: datetime, *, timespec: str = "microseconds") -> str:
    """With microseconds, texts are in the order of their times. `auto` leaves out a fraction that is zero."""
    return at.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def make_timestamp() -> str:
    """The present."""
    return to_timestamp(datetime.now(UTC))


def parse_timestamp(text: str) -> datetime | None:
    """The time that an event has, or tells. None for a text in any other form than `to_timestamp` writes: what one
    place took for a time and another did not would be due for ever.
    """
    if _FORM.fullmatch(text) is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
