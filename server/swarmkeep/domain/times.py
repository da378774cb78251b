"""Points in time as events carry them."""

from __future__ import annotations

from datetime import UTC, datetime


def format_time(at: datetime) -> str:
    """In UTC, always with the same number of digits, so that texts sort as times do."""
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def make_timestamp() -> str:
    """The present."""
    return format_time(datetime.now(UTC))
