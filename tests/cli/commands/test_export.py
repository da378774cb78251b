"""Exports and imports on the command line: from a database or a server, into either."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sqlite3
import stat
import sys
from contextlib import closing
from pathlib import Path

import pytest

from swarmkeep.cli.terminal import put_bytes
from swarmkeep.events.state import State
from swarmkeep.store.opening import open_store
from swarmkeep.store.records import SessionKey
from swarmkeep.store.schema import upgrade
from tests.cli.command_line import CommandLine
from tests.cli.conftest import RecordedSession
from tests.events.given import tool_call
from tests.history.transfer.test_checkpoints import execute, record
from tests.history.transfer.test_formats import CHATGPT
from tests.support.logs.cut_calls import draft_cut_calls


@pytest.mark.long
def test_what_is_exported_is_imported_elsewhere(
    cli: CommandLine, recorded: RecordedSession, place: list[str], tmp_path: Path
) -> None:
    assert cli("export", recorded.session_id, "--output", "one.jsonl", *place).code == 0
    file = tmp_path / "one.jsonl"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["one.jsonl"]
    assert cli("export", recorded.session_id, *place).out.encode() == file.read_bytes()
    # A database that is not there yet is made.
    done = cli("import", "one.jsonl")
    assert done.code == 0
    assert done.out == f"{recorded.session_id}: {len(file.read_bytes().splitlines())} events\n"
    assert "1 session imported, 0 existed already" in done.err
    again = cli("import", "one.jsonl", "--json").json
    assert (again["imported"], again["present"], again["sessions"][0]["outcome"]) == (0, 1, "present")
    recorded_lines = file.read_text().splitlines()
    *there, imported = cli("export", recorded.session_id).out.splitlines()
    assert there[1:] == recorded_lines[1:]
    told = json.loads(imported)
    assert (told["type"], told["data"]["source"], bool(told["data"]["by"])) == ("session.imported", "export", True)
    assert "session.imported" in cli("audit").out
    assert "imported events 1 to" in cli("replay", recorded.session_id).out
    *events, end = cli("export", "--all").out.splitlines()
    assert json.loads(end)["events"] == len(events)
    # And back, where it is known.
    assert cli("import", "one.jsonl", "--json", *place).json["present"] == 1


@pytest.mark.long
def test_import_may_be_tried_and_renamed(
    cli: CommandLine, recorded: RecordedSession, place: list[str], tmp_path: Path
) -> None:
    cli("export", recorded.session_id, "-o", "one.jsonl", *place)
    tried = cli("import", "one.jsonl", "--as", "tried", "--dry-run", *place)
    assert "1 session would be imported" in tried.err
    assert cli("sessions", "show", "tried", *place).code == 1
    assert cli("import", "one.jsonl", "--as", "renamed", *place).code == 0
    shown = cli("sessions", "show", "renamed", "--json", *place).json
    before = cli("sessions", "show", recorded.session_id, "--json", *place).json
    assert shown["seq"] == before["seq"] + 1
    assert cli("verify", "renamed", "--head", f"{before['seq']}:{before['hash']}", *place).code == 0
    cli("sessions", "delete", "renamed", *place)
    new = cli("import", "one.jsonl", "--dry-run", "--database-url", f"sqlite:///{tmp_path}/none.db")
    assert (new.code, "1 session would be imported" in new.err) == (0, True)
    assert not (tmp_path / "none.db").exists()


@pytest.mark.long
def test_unimportable_file_refused_in_one_line(
    cli: CommandLine, recorded: RecordedSession, place: list[str], tmp_path: Path
) -> None:
    text = cli("export", recorded.session_id, *place).out
    bad = tmp_path / "bad.jsonl"
    bad.write_text(text.replace("lantern", "Lantern", 1))
    refused = cli("import", "bad.jsonl", *place)
    assert refused.code == 1
    assert refused.err.startswith("error: line ")
    bad.write_text("".join(text.splitlines(keepends=True)[:-1]))
    assert "cut off" in cli("import", "bad.jsonl", *place).err
    assert "cannot read nothing.jsonl" in cli("import", "nothing.jsonl", *place).err
    assert cli("import", ".", *place).code == 1


SDK_SESSION = (Path(__file__).parents[2] / "history/transfer/foreign/agents_sdk.sql").read_text()


def test_export_names_its_source(cli: CommandLine, recorded: RecordedSession, place: list[str], tmp_path: Path) -> None:
    known = recorded.session_id
    for wrong in ([], [known, "--all"], [known, "--agent", "x"], ["--all", "--status", "x"]):
        assert cli("export", *wrong, *place).code == 2
    missing = cli("export", "nothing", "--output", "file.jsonl", *place)
    assert (missing.code, "nothing" in missing.err) == (1, True)
    assert os.listdir(tmp_path) == []
    assert len(cli("export", "--all", "--agent", "Nobody", *place).lines) == 1
    assert cli("export", "--all", "--output", "no/such/folder.jsonl", *place).code == 1
    assert cli("export", "--all", "--output", "/dev/null", *place).code == 0
    assert Path("/dev/null").is_char_device()


def test_an_export_goes_through_a_pipe(process: CommandLine, recorded: RecordedSession) -> None:
    text = process("export", "--all", *recorded.options).out
    assert process("import", "-", text=text).code == 0
    *there, _, end = process("export", "--all").out.splitlines()
    assert there[1:] == text.splitlines()[1:-1]
    assert json.loads(end)["events"] == len(there) + 1


@pytest.mark.long
def test_session_written_for_people(
    cli: CommandLine, recorded: RecordedSession, place: list[str], tmp_path: Path
) -> None:
    notes = cli("export", recorded.session_id, "--format", "markdown", *place)
    assert "buy a lantern" in notes.out
    assert cli("export", recorded.session_id, "--format", "html", "-o", "talk.html", *place).code == 0
    assert (tmp_path / "talk.html").read_text().startswith("<!doctype html>")
    assert cli("export", "--all", "--format", "html", *place).code == 2
    assert cli("export", recorded.session_id, "--format", "pdf", *place).code == 2
    assert cli("export", "nothing", "--format", "html", *place).code == 1


def test_a_conversation_from_elsewhere_is_imported(cli: CommandLine, place: list[str], tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(json.dumps([{"role": "user", "content": "Hi"}]))
    taken = cli("import", "old.json", "--from", "chat", "--agent", "Triage Agent", "--id", "old", *place)
    assert (taken.code, taken.out) == (0, "old: 3 events\n")
    assert cli("sessions", "show", "old", "--json", *place).json["agent"] == "Triage Agent"
    assert cli("sessions", "delete", "old", *place).code == 0
    assert cli("import", "old.json", "--from", "nowhere", *place).code == 2
    assert cli("import", "old.json", "--from", "export", "--agent", "Triage Agent", *place).code == 2
    refused = cli("import", "old.json", "--from", "assistants", *place)
    assert (refused.code, "not threads of OpenAI's Assistants API, but messages" in refused.err) == (1, True)


def test_formats_are_recognised_and_described(cli: CommandLine, place: list[str], tmp_path: Path) -> None:
    (tmp_path / "conversations.json").write_text(json.dumps([CHATGPT]))
    tried = cli("import", "conversations.json", "--agent", "Triage Agent", "--dry-run", *place)
    assert (tried.code, tried.out) == (0, "c-1: 9 events\nc-1:a3: 9 events\n")
    assert tried.err.splitlines() == [
        "read as ChatGPT's conversations.json (chatgpt)",
        "other branches became 1 fork",
        "not taken: files that the export only names (2), hidden messages (1), reasoning (1)",
        "2 sessions would be imported, 0 existed already",
    ]
    done = cli("import", "conversations.json", "--agent", "Triage Agent", "--json", *place).json
    assert (done["format"], done["imported"], done["forks"], done["left_out"]["reasoning"]) == ("chatgpt", 2, 1, 1)
    assert cli("verify", "c-1:a3", *place).code == 0
    (tmp_path / "twice.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 2)
    twice = cli("import", "twice.jsonl", "--agent", "Triage Agent", "--dry-run", *place)
    assert len(twice.out.splitlines()) == 1
    assert twice.err.splitlines()[1:] == ["1 session would be imported, 1 existed already"]
    (tmp_path / "notes.json").write_text('{"notes": []}')
    refused = cli("import", "notes.json", *place)
    assert (refused.code, "no known format" in refused.err, "chatgpt" in refused.err) == (1, True, True)


def test_changes_beside_a_database_are_imported(cli: CommandLine, place: list[str], tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "agents.db")) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(SDK_SESSION)
        # It is open, and its file has nothing yet of what was written.
        taken = cli("import", "agents.db", "--agent", "Triage Agent", *place)
    assert (taken.code, taken.out) == (0, "s1: 6 events\n")


def test_cut_calls_of_imports_stay_unrun(cli: CommandLine, place: list[str], tmp_path: Path) -> None:
    whole, cut = tool_call("c1", "refund", '{"order": "A-1"}'), tool_call("c2", "refund", '{"ord')

    async def record() -> None:
        store = open_store(old)
        for name, calls in (("waits", (whole, cut)), ("ends", (cut,))):
            await store.append(SessionKey("default", name), State(), draft_cut_calls("Triage Agent", *calls))
        await store.close()

    old = f"sqlite:///{tmp_path / 'old.db'}"
    upgrade(old)
    asyncio.run(record())
    (tmp_path / "old.jsonl").write_text(cli("export", "--all", "--database-url", old).out)
    assert cli("import", "old.jsonl", *place).code == 0
    shown = {name: cli("sessions", "show", name, "--json", *place).json for name in ("waits", "ends")}
    assert [session["status"] for session in shown.values()] == ["waiting", "idle"]
    for name in shown:
        events = cli("events", name, "--json", *place).json
        [told] = [event["data"]["message"] for event in events if event["data"].get("tool")]
        assert (told["tool_call_id"], "was not run" in told["content"]) == ("c2", True)
        asked = [event["data"]["tool_call_id"] for event in events if event["type"] == "approval.requested"]
        assert asked == (["c1", "c2", "c1"] if name == "waits" else ["c2"])


def test_terminal_control_text_escaped_only_there(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    # In a text of JSON these need no escapes; one of them comes in two pieces.
    said = [b'{"said":"\xc2', b"\x9b31m\xe2\x80", b'\xae\x7f \xc3\xa9"}']
    put_bytes(said)
    assert capfdbinary.readouterr().out == b"".join(said)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as screen:
        monkeypatch.setattr(sys, "stdout", screen)
        put_bytes(said)
        shown = os.read(ours, 1000)
    os.close(ours)
    assert shown.decode() == '{"said":"\\u009b31m\\u202e\\u007f é"}'


def test_conversation_that_has_grown_gets_what_is_new(cli: CommandLine, place: list[str], tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    for count, said in ((1, "1 session imported, 0 existed already"), (2, "0 sessions imported, 1 got what is new")):
        messages = [{"role": "user", "content": f"{number}"} for number in range(count)]
        file.write_text(json.dumps({"id": "talk", "messages": messages}))
        done = cli("import", str(file), "--agent", "Triage Agent", *place)
        assert (done.code, said in done.err) == (0, True)
    assert "talk: 5 events, with what is new" in done.out
    tried = cli("import", str(file), "--agent", "Triage Agent", "--dry-run", "--json", *place).json
    assert (tried["extended"], tried["present"]) == (0, 1)


@pytest.mark.long
def test_command_imports_from_postgresql(cli: CommandLine, place: list[str], postgres_url: str) -> None:
    asyncio.run(record(postgres_url))
    tried = cli("import", postgres_url, "--dry-run", "--agent", "Triage Agent", "--json", *place).json
    assert (tried["imported"], tried["format"], tried["dry_run"]) == (2, "langgraph", True)
    done = cli("import", postgres_url, "--agent", "Triage Agent", *place)
    assert (done.code, "2 sessions imported, 0 existed already" in done.err) == (0, True)
    again = cli("import", postgres_url, "--agent", "Triage Agent", "--from", "langgraph", "--json", *place).json
    assert (again["imported"], again["present"]) == (0, 2)
    assert "bye ☃" in cli("export", "t1", "--format", "markdown", *place).out
    away = cli("import", "postgresql://ann:s3cret@127.0.0.1:1/none")
    assert (away.code != 0, "s3cret" in away.out + away.err) == (True, False)
    assert "cannot connect to the database at postgresql://ann@127.0.0.1:1/none" in away.err
    asyncio.run(execute(postgres_url, "DROP TABLE checkpoints"))
    assert "LangGraph's PostgresSaver" in cli.expect_refusal("import", postgres_url)
