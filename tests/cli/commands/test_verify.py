"""`swarmkeep verify`, in a database and on a server."""

from __future__ import annotations

import json

from tests.cli.command_line import CommandLine
from tests.cli.conftest import RecordedSession


def test_a_sound_session_is_valid(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    session = cli("sessions", "show", recorded.session_id, "--json", *place).json
    head = f"{session['seq']}:{session['hash']}"
    checked = cli("verify", recorded.session_id, "--head", head, *place)
    assert (checked.code, checked.lines) == (
        0,
        [f"{recorded.session_id}: valid, {session['seq']} events, head {head}"],
    )
    everything = cli("verify", "--all", *place)
    assert everything.code == 0
    assert "all valid" in everything.err
    assert any(recorded.session_id in line for line in everything.lines)


def test_vanished_head_is_missed(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    checked = cli("verify", recorded.session_id, "--head", f"1000:{'0' * 64}", "--json", *place)
    assert checked.code == 1
    found = json.loads(checked.out)
    assert (found["session_id"], found["valid"]) == (recorded.session_id, False)
    assert [problem["code"] for problem in found["problems"]] == ["truncated"]


def test_a_changed_event_is_named(db: CommandLine, recorded: RecordedSession) -> None:
    db.change_database("UPDATE events SET payload = replace(payload, 'lantern', 'diamond') WHERE seq = 3")
    checked = db("verify", recorded.session_id)
    assert checked.code == 1
    assert checked.lines[0].startswith(f"{recorded.session_id}: NOT VALID")
    assert "       3  payload_differs: event 3 (message.added)" in checked.out
    assert db("verify", "--all").code == 1
    # What there is is shown, with a warning.
    for command in (["events"], ["sessions", "show"], ["export"], ["export", "--format", "markdown"]):
        shown = db(*command, recorded.session_id)
        assert shown.code == 0
        assert "diamond" in shown.out
        assert "does not verify" in shown.err
        assert "event 3" in shown.err


def test_a_database_stays_as_it_is(cli: CommandLine, recorded: RecordedSession) -> None:
    before = recorded.file.read_bytes(), sorted(path.name for path in recorded.file.parent.iterdir())
    assert cli("verify", "--all", *recorded.options).code == 0
    assert (recorded.file.read_bytes(), sorted(path.name for path in recorded.file.parent.iterdir())) == before


def test_missing_session_refused(cli: CommandLine, place: list[str]) -> None:
    assert "nobody" in cli.expect_refusal("verify", "nobody", *place)


def test_wrong_use_is_told(cli: CommandLine) -> None:
    assert "--all" in cli.expect_usage_error("verify")
    assert "leave out the name, or --all" in cli.expect_usage_error("verify", "one", "--all")
    assert "standard input" in cli.expect_usage_error("verify", "-", "--checkpoint", "-")
    assert "cannot read one.jsonl: No such file" in cli.expect_refusal("verify", "./one.jsonl")
    assert "--head" in cli.expect_usage_error("verify", "--all", "--head", f"1:{'0' * 64}")
    assert "cannot read heads.jsonl: No such file" in cli.expect_refusal(
        "verify", "--checkpoint", "heads.jsonl", "--url", "http://127.0.0.1:9"
    )
    assert "SEQ:HASH" in cli.expect_usage_error("verify", "one", "--head", "1")
