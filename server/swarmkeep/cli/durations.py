"""Durations and times as people write them in options."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import typer

# Up to 99999 weeks: with more, the calendar ends before the duration does.
_DURATION = re.compile(r"([1-9][0-9]{0,4})([mhdw])", re.ASCII)
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def parse_duration(text: str, option: str) -> timedelta:
    """A duration such as 90d. Raises BadParameter."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise typer.BadParameter("write a number and m, h, d or w, as in 90d", param_hint=f"'{option}'")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def parse_end(text: str, option: str) -> datetime:
    """A time: so long from now, a date (its beginning, UTC), or a time with its zone. Raises BadParameter."""
    if _DURATION.fullmatch(text):
        return datetime.now(UTC) + parse_duration(text, option)
    try:
        at = datetime.fromisoformat(f"{text}T00:00:00Z" if _DAY.fullmatch(text) else text)
    except ValueError:
        at = datetime.min
    if at.tzinfo is None:
        detail = "write how long, as in 30d, or when, as in 2026-12-31 or 2026-12-31T00:00:00Z"
        raise typer.BadParameter(detail, param_hint=f"'{option}'")
    return at
