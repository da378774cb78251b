"""Looking at sessions, forking and deleting them: alike in a database and on a server."""

from __future__ import annotations

import os
from typing import Any

import pytest

from swarmkeep.cli.commands.sessions import put_messages
from swarmkeep.events.errors import SessionDamaged
from tests.cli.command_line import ACME, CommandLine, wait_for_line
from tests.cli.conftest import RecordedSession


def test_a_list_shows_each_session(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    sessions = {session["id"]: session for session in cli("sessions", "list", "--json", *place).json}
    session = sessions[recorded.session_id]
    assert session["agent"] == "Sales Agent"
    assert session["status"] == "idle"
    assert "context_variables" not in session
    headings, *rows = cli("sessions", "list", *place).lines
    assert headings.split() == ["ID", "STATUS", "AGENT", "MESSAGES", "SEQ", "UPDATED"]
    (row,) = [row for row in rows if recorded.session_id in row]
    assert row.startswith(f"{recorded.session_id}  idle    Sales Agent  {session['message_count']} ")


def test_a_session_is_renamed_and_found(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    cli("sessions", "fork", recorded.session_id, "--id", "renamed", *place)
    began = cli("sessions", "rename", "renamed", *place).out.strip()
    assert began == cli("sessions", "show", "renamed", "--json", *place).json["title"]
    assert cli("sessions", "rename", "renamed", "A striped horse", *place).out == "A striped horse\n"
    if place[0] == "--database-url":
        # Without a server nobody else does.
        assert cli("db", "reindex", "--missing", *place).code == 0
        assert cli("db", "reindex", "--json", *place).json["sessions"] >= 2
    while not (found := cli("sessions", "list", "--search", "STRIPED hor", "--json", *place).json):
        assert place[0] == "--url"
    assert [(one["id"], one["title"]) for one in found] == [("renamed", "A striped horse")]
    headings, row = cli("sessions", "list", "--search", "striped", *place).lines
    assert headings.split() == ["ID", "UPDATED", "TITLE", "SEQ", "FOUND"]
    assert "title: A striped horse" in row
    assert cli("sessions", "list", "--search", "nothing of the kind", *place).out == ""


def test_a_list_can_be_narrowed(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    for name in ("one", "two"):
        labels = ("--metadata", f"name={name}", "--metadata", "team=sales")
        assert cli("sessions", "fork", recorded.session_id, "--id", name, *labels, *place).out == f"{name}\n"

    def ids(*filters: str) -> list[str]:
        listed = cli("sessions", "list", "--json", "--metadata", "team=sales", *filters, *place)
        return [session["id"] for session in listed.json]

    assert ids() == ["two", "one"]
    assert ids("--metadata", "name=one") == ["one"]
    assert ids("--agent", "Sales Agent", "--status", "idle") == ["two", "one"]
    assert ids("--agent", "Nobody") == []
    assert ids("--status", "running") == []
    counted = cli("sessions", "counts", "--json", *place).json
    assert counted["status"]["running"] == counted["last_run"]["failed"] == {"count": 0, "more": False}
    headings, running, *_ = cli("sessions", "counts", *place).lines
    assert (headings.split(), running.split()) == (["SESSIONS", "COUNT"], ["running", "0"])
    assert ids("--limit", "1") == ["two"]
    assert ids("--limit", "0") == ["two", "one"]
    assert "--limit 0" in cli("sessions", "list", "--limit", "1", *place).err


def test_session_shown_with_messages(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    shown = cli("sessions", "show", recorded.session_id, "--json", *place).json
    assert shown["id"] == recorded.session_id
    assert shown["context_variables"]["cart"] == []
    assert [message["role"] for message in shown["messages"][:2]] == ["user", "assistant"]
    assert shown["messages"][-1]["sender"] == "Sales Agent"
    text = cli("sessions", "show", recorded.session_id, *place).out
    assert "user: Hello, I'd like to buy a lantern" in text
    assert "Triage Agent: transfer_to_sales()" in text
    assert shown["hash"] in text


def test_session_shown_at_past_seq(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    then = cli("sessions", "show", recorded.session_id, "--at", "3", "--json", *place).json
    assert (then["seq"], then["agent"], then["status"]) == (3, "Triage Agent", "running")
    assert [message["role"] for message in then["messages"]] == ["user"]
    assert cli("sessions", "show", recorded.session_id, "--at", "9999", *place).code == 1


def test_fork_shares_history_to_event(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    fork = cli("sessions", "fork", recorded.session_id, "--at", "7", "--json", *place).json
    assert fork["forked_from"] == {
        "session_id": recorded.session_id,
        "seq": 7,
        "hash": cli("sessions", "show", recorded.session_id, "--at", "7", "--json", *place).json["hash"],
    }
    assert "exists" in cli.expect_refusal("sessions", "fork", recorded.session_id, "--id", recorded.session_id, *place)


def test_message_removed_but_logged(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    fork = cli("sessions", "fork", recorded.session_id, *place).out.strip()
    before = cli("sessions", "show", fork, "--json", *place).json
    calling = next(message for message in before["messages"] if message.get("tool_calls"))
    call = calling["tool_calls"][0]["id"]
    taken = cli("sessions", "remove-message", fork, str(calling["seq"]), "--call", call, *place)
    assert (taken.code, taken.out) == (0, "")
    assert fork in taken.err
    after = cli("sessions", "show", fork, "--json", *place).json
    assert call not in str(after["messages"])
    assert after["message_count"] < before["message_count"]
    assert call in cli("events", fork, *place, "--json").out
    assert "takes out" in cli("replay", fork, *place).out
    unknown = cli.expect_refusal("sessions", "remove-message", fork, str(calling["seq"]), "--call", "nobody", *place)
    assert "neither asks for the call" in unknown
    assert cli("verify", fork, *place).code == 0


def test_a_deleted_session_is_gone(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    doomed = cli("sessions", "fork", recorded.session_id, "--metadata", "doomed=yes", *place).out.strip()
    deleted = cli("sessions", "delete", doomed, *place)
    assert (deleted.code, deleted.out) == (0, "")
    assert doomed in deleted.err
    assert cli("sessions", "list", "--json", "--metadata", "doomed=yes", *place).json == []
    assert doomed in cli.expect_refusal("sessions", "delete", doomed, *place)


def test_events_tell_what_happened_in_order(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    events = cli("events", recorded.session_id, "--json", *place).json
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[0]["type"] == "session.created"
    lines = cli("events", recorded.session_id, *place).lines
    none = cli("events", recorded.session_id, "--type", "run.failed", *place)
    assert (none.code, none.out, none.err) == (0, "", "there are no such events\n")
    assert len(lines) == len(events)
    handoff = next(line for line in lines if "handoff.made" in line)
    assert handoff.endswith("Triage Agent → Sales Agent")


def test_events_can_be_narrowed(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    every = cli("events", recorded.session_id, "--json", *place).json

    def asked(*filters: str) -> list[dict[str, object]]:
        return list(cli("events", recorded.session_id, "--json", *filters, *place).json)

    assert asked("--after", "5") == every[5:]
    assert asked("--type", "handoff.made") == [event for event in every if event["type"] == "handoff.made"]
    both = ("handoff.made", "context.updated")
    assert asked("--type", both[0], "--type", both[1]) == [event for event in every if event["type"] in both]
    assert asked("--type", "no.such.type") == []


def test_database_and_server_output_agree(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    for command in (["sessions", "show", recorded.session_id], ["events", recorded.session_id]):
        assert cli(*command, *place) == cli(*command, *recorded.options)
        assert cli(*command, "--json", *place).json == cli(*command, "--json", *recorded.options).json


def test_reading_leaves_database_unchanged(db: CommandLine, recorded: RecordedSession) -> None:
    before = {path.name: path.read_bytes() for path in db.folder.iterdir()}
    for command in (["sessions", "list"], ["sessions", "show", recorded.session_id], ["events", recorded.session_id]):
        assert db(*command).code == 0
    assert {path.name: path.read_bytes() for path in db.folder.iterdir()} == before


def test_another_tenants_sessions_are_not_there(cli: CommandLine, recorded: RecordedSession) -> None:
    other = [*recorded.options, "--tenant", "other"]
    assert cli("sessions", "list", "--json", *other).json == []
    assert recorded.session_id in cli.expect_refusal("sessions", "show", recorded.session_id, *other)


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_new_event_shown_as_it_comes(
    cli: CommandLine, process: CommandLine, recorded: RecordedSession, place: list[str], options: list[str]
) -> None:
    fork = cli("sessions", "fork", recorded.session_id, "--json", *place).json
    here = [] if place[0] == "--url" else ["--offline", "--agents", ACME]
    following = process.running("events", fork["id"], "--follow", "--after", str(fork["seq"] - 1), *options, *place)
    with following:
        assert "session.forked" in wait_for_line(following, 0)
        talk = cli("chat", "--session", fork["id"], *here, *place, text="Thank you.\n")
        assert talk.code == 0, talk
        assert "run.started" in wait_for_line(following, 1)
        assert "Thank you." in wait_for_line(following, 2)


def test_departing_reader_is_no_error(process: CommandLine, recorded: RecordedSession) -> None:
    gone, pipe = os.pipe()
    os.close(gone)
    try:
        told = process.to(pipe, "events", recorded.session_id, *recorded.options)
    finally:
        os.close(pipe)
    assert "Traceback" not in told.err


def test_list_ordered_by_activity_and_outcome(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    def list_ids(*options: str) -> list[str]:
        return [session["id"] for session in cli("sessions", "list", "--json", *options, *place).json]

    assert recorded.session_id in list_ids("--last-run", "completed", "--order", "activity")
    assert list_ids("--last-run", "failed") == []
    assert sorted(list_ids("--order", "activity")) == sorted(list_ids())
    assert cli("sessions", "list", "--last-run", "running", *place).code == 2


def test_session_taken_over_answered_handed_back(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    assert cli("sessions", "fork", recorded.session_id, "--id", "taken", *place).code == 0
    if place[0] != "--url":
        pytest.skip("it needs a server")
    assert "took session taken over" in cli("sessions", "takeover", "taken", "--note", "asks for one", *place).out
    assert cli("sessions", "show", "taken", "--json", *place).json["taken_over"]["note"] == "asks for one"
    assert "taken over" in cli("sessions", "show", "taken", *place).out
    assert "Hello there." in cli("sessions", "answer", "taken", "Hello there.", *place).out
    assert "back" in cli("sessions", "handback", "taken", "--note", "go on", *place).out
    assert cli("sessions", "show", "taken", "--json", *place).json["taken_over"] is None
    assert "nobody has taken" in cli.expect_refusal("sessions", "handback", "taken", *place)
    shown = cli("events", "taken", *place).out
    assert "go on" in shown


def test_session_assigned_and_noted(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    assert cli("sessions", "fork", recorded.session_id, "--id", "case", *place).code == 0

    def list_ids(name: str) -> list[str]:
        return [session["id"] for session in cli("sessions", "list", "--json", "--assignee", name, *place).json]

    assert (list_ids("billing"), "case" in list_ids("none")) == ([], True)
    if place[0] != "--url":
        pytest.skip("it needs a server")
    assert "to billing" in cli("sessions", "assign", "case", "billing", "--reason", "an invoice", *place).out
    assert (list_ids("billing"), "case" in list_ids("none")) == (["case"], False)
    assert "billing" in cli("sessions", "show", "case", *place).out
    assert "noted as event" in cli("sessions", "note", "case", "Refunded twice.", *place).out
    shown = cli("events", "case", *place).out
    assert "an invoice" in shown
    assert "Refunded twice." in shown
    events = cli("events", "case", "--json", *place).json
    said = next(event["seq"] for event in events if event["data"].get("message", {}).get("role") == "assistant")
    assert cli("sessions", "list", "--feedback", "down", "--json", *place).json == []
    remark = ("--comment", "The price is wrong.")
    assert "recorded as event" in cli("sessions", "feedback", "case", str(said), "down", *remark, *place).out
    (found,) = cli("sessions", "list", "--feedback", "down", "--json", *place).json
    assert (found["id"], found["feedback"]) == ("case", {"up": 0, "down": 1})
    assert "0 up, 1 down" in cli("sessions", "show", "case", *place).out
    assert "The price is wrong." in cli("replay", "case", *place).out
    assert "no one" in cli("sessions", "assign", "case", "none", *place).out
    assert list_ids("billing") == []


@pytest.mark.parametrize(
    "command",
    [
        ["compact"],
        ["takeover"],
        ["answer", "Hello."],
        ["handback"],
        ["assign", "billing"],
        ["note", "A note."],
        ["feedback", "4", "up"],
    ],
    ids="-".join,
)
def test_server_only_commands_say_so(cli: CommandLine, command: list[str]) -> None:
    name, *more = command
    assert "name one with --url" in cli.expect_refusal("sessions", name, "anyone", *more)


class _Chain:
    """Sessions of which each says that the next was asked in it; the last one is damaged."""

    def __init__(self, length: int) -> None:
        self.length = length

    def messages(self, session_id: str) -> list[Any]:
        number = int(session_id)
        if number == self.length:
            raise SessionDamaged(session_id)
        said = {"seq": 1, "created_at": "2026-01-01T00:00:00.000000Z", "agent": "A", "run_id": "r", "role": "tool"}
        return [{**said, "tool_call_id": "c", "content": f"of {number}", "session_id": str(number + 1)}]


@pytest.mark.parametrize(("length", "lines"), [(2000, 9), (3, 4)])
def test_what_was_said_below_ends_somewhere(capsys: pytest.CaptureFixture[str], length: int, lines: int) -> None:
    source: Any = _Chain(length)
    put_messages(source, source.messages("0"), {"0"})
    shown = [line for line in capsys.readouterr().out.splitlines() if "of " in line or "cannot be shown" in line]
    assert len(shown) == lines
    assert ("3 cannot be shown" in shown[-1]) is (length == 3)
