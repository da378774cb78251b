"""An outage of the database in the log: two lines, however many it concerns."""

from __future__ import annotations

import logging

import pytest

from swarmkeep.events.errors import Overloaded
from swarmkeep.logs import OutageLog, current_fields, log_fields
from swarmkeep.store.records import StoreUnavailable

GONE = StoreUnavailable("cannot connect to the database")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def outages(clock: Clock) -> OutageLog:
    return OutageLog(settled_seconds=1.5, reminder_seconds=60, clock=clock)


def test_many_who_notice_are_two_lines(outages: OutageLog, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(1500):
        outages.note(GONE, "streams broken off")
    outages.note(GONE, "requests refused")
    clock.now += 30
    outages.note(GONE)
    outages.note_answer()
    clock.now += 2
    outages.note_answer()
    outages.note_answer()
    assert caplog.messages == [
        "the database cannot be used: cannot connect to the database",
        "the database answers again, after 30 s; requests refused: 1, streams broken off: 1,500",
    ]


def test_readable_unwritable_database_is_away(
    outages: OutageLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(61):
        outages.note(GONE, "changes delayed" if clock.now == 1000 else None)
        outages.note_answer()
        clock.now += 1
    assert caplog.messages[1:] == [
        "the database cannot be used, for 60 s now: cannot connect to the database; changes delayed: 1"
    ]


def test_the_next_outage_begins_anew(outages: OutageLog, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    outages.note(GONE, "requests refused")
    clock.now += 2
    outages.note_answer()
    outages.note(Overloaded(), "changes delayed")
    clock.now += 2
    outages.note_answer()
    assert caplog.messages[2:] == [
        "the database does not keep up: too many writes are waiting; try again",
        "the database answers again, after 0 s; changes delayed: 1",
    ]


def test_it_is_about_no_session(outages: OutageLog, caplog: pytest.LogCaptureFixture) -> None:
    found: list[dict[str, str | int]] = []
    caplog.handler.addFilter(lambda record: found.append(dict(current_fields())) is None)
    with caplog.at_level(logging.ERROR), log_fields(session_id="s1", tenant="t"):
        outages.note(GONE)
        assert current_fields() == {"session_id": "s1", "tenant": "t"}
    assert found == [{}]
