"""Clocks that differ, or jump, are told in the log: once each."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from swarmkeep.runs.watcher import ClockWatch, subtract_clocks
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import utc_now
from tests.runs.cluster import wait_until

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


async def test_differing_clock_is_reported_once(ready_url: str, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(ready_url)
    ahead = timedelta(hours=1)
    watch = ClockWatch(store, clock=lambda: utc_now() + ahead)
    await watch.compare()
    await watch.compare()
    assert 3590 < watch.ahead_seconds <= 3610
    ahead = timedelta(0)
    await watch.compare()
    assert abs(watch.ahead_seconds) < 1
    ahead = timedelta(days=-365)
    await watch.compare()
    await store.close()
    # Connecting may take seconds, which do not count as a difference.
    beginnings = [
        r"this machine's clock is 3[56]\d\d s ahead of the database's",
        "this machine's clock was set back by 3600 s",
        "this machine's clock agrees with the database's again",
        "this machine's clock was set back by 31536000 s",
        r"this machine's clock is 315360\d\d s behind the database's",
    ]
    assert len(caplog.messages) == len(beginnings)
    assert all(map(re.match, beginnings, caplog.messages))


async def test_unexpected_error_does_not_end_watch(
    ready_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(ready_url)
    errors = [RuntimeError("no clock")]

    async def read_clock(self: SqlStore) -> datetime:
        if errors:
            raise errors.pop()
        return utc_now() - timedelta(hours=1)

    monkeypatch.setattr(SqlStore, "read_clock", read_clock)
    watch = ClockWatch(store, pause_seconds=0.001)
    watch.start()
    await wait_until(lambda: watch.ahead_seconds)
    await watch.stop()
    await store.close()
    assert caplog.messages[0] == "the clocks could not be compared; trying again"


@pytest.mark.parametrize(("before", "after", "ahead"), [(-3, 4, 0), (2, 5, 2), (-5, -2, -2)])
def test_lookup_time_is_no_clock_difference(before: int, after: int, ahead: int) -> None:
    assert subtract_clocks(NOON + timedelta(seconds=before), NOON, NOON + timedelta(seconds=after)) == ahead
