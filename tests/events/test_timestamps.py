"""Times as text, read in one form only."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmkeep.events.codec import make_timestamp, parse_timestamp, to_timestamp


@given(st.datetimes(timezones=st.just(UTC)))
def test_what_is_written_is_read(at: datetime) -> None:
    assert parse_timestamp(to_timestamp(at)) == at


def test_times_are_written_in_utc() -> None:
    at = datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    assert to_timestamp(at) == "2025-12-31T23:00:00.000000Z"
    assert parse_timestamp(make_timestamp()) is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-01-01",
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00.000000",
        "2026-01-01T00:00:00.000000+02:00",
        "2026-01-01T00:00:00.0000000Z",
        "2026-01-01T00:00:00.000000Z\n",
        "2026-02-30T00:00:00.000000Z",
        "2026-01-01T24:30:00.000000Z",
        "0000-01-01T00:00:00.000000Z",
        "٢٠٢٦-01-01T00:00:00.000000Z",
    ],
)
def test_any_other_text_is_no_time(text: str) -> None:
    assert parse_timestamp(text) is None
