"""`swarmkeep feed`: the events of all sessions, by a database and by a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command_line import CommandLine, wait_for_line
from tests.cli.conftest import RecordedSession, serve_copy


def read_lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_feed_of_database(db: CommandLine, recorded: RecordedSession) -> None:
    assert "no places are kept" in db("feed", "--consumers").err
    found = read_lines(db("feed", "--json").out)
    alone = db("events", recorded.session_id, "--json").json
    assert [{**event, "cursor": None} for event in found] == [{**event, "cursor": None} for event in alone]
    assert read_lines(db("feed", "--json", "--after", str(found[2]["cursor"])).out) == found[3:]
    assert db("feed", "--json", "--after", "end").out == ""
    shown = db("feed", "--type", "message.added", "--agent", str(found[0]["agent"])).out.splitlines()
    assert shown
    assert all(line.startswith(recorded.session_id) for line in shown)
    assert "there are no such events" in db("feed", "--metadata", "a=b").err
    # A consumer goes on where it was.
    assert read_lines(db("feed", "--json", "--consumer", "crm").out) == found
    assert db("feed", "--json", "--consumer", "crm").out == ""
    assert db("sessions", "fork", recorded.session_id, "--id", "one").code == 0
    [kept] = db("feed", "--consumers", "--json").json
    assert (kept["name"], kept["lag"]) == ("crm", 1)
    assert "crm" in db("feed", "--consumers").out
    assert [event["type"] for event in read_lines(db("feed", "--json", "--consumer", "crm").out)] == ["session.forked"]
    # What it does not want is behind it, too.
    assert "there are no such events" in db("feed", "--consumer", "crm", "--type", "session.held").err
    assert db("feed", "--consumers", "--json").json[0]["lag"] == 0
    assert "no place is kept for crm" in db("feed", "--forget", "crm").err
    assert "there is no consumer 'crm'" in db.expect_refusal("feed", "--forget", "crm")
    assert "behind the end" in db.expect_refusal("feed", "--after", "99-0")
    assert "must be the `cursor`" in db.expect_refusal("feed", "--after", "x")
    assert db("feed", "--after", "1-0", "--consumer", "crm").code == 2


@pytest.mark.long
def test_feed_of_server(process: CommandLine, recorded: RecordedSession, tmp_path: Path) -> None:
    with serve_copy(recorded, tmp_path) as server:
        at = ["--url", server.url]
        found = read_lines(process("feed", "--json", *at).out)
        assert found == read_lines(process("feed", "--json", "--database-url", server.database_url).out)
        with process.running("feed", "--json", "--follow", "--consumer", "crm", *at) as running:
            for number, event in enumerate(found):
                assert json.loads(wait_for_line(running, number)) == event
            assert process("sessions", "fork", recorded.session_id, "--id", "one", *at).code == 0
            assert json.loads(wait_for_line(running, len(found)))["session_id"] == "one"
            running.kill()
        [kept] = process("feed", "--consumers", "--json", *at).json
        assert kept["name"] == "crm"
        assert process("feed", "--forget", "crm", *at).code == 0
