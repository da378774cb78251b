"""A database is backed up while a server has it, and restored elsewhere, verified."""

from __future__ import annotations

import shutil
import sqlite3
import stat
from pathlib import Path

from tests.cli.command_line import CommandLine
from tests.cli.conftest import RecordedSession


def test_a_backup_is_restored_and_verified(cli: CommandLine, recorded: RecordedSession, tmp_path: Path) -> None:
    done = cli("backup", "today.backup", *recorded.options, "--json")
    assert done.code == 0
    assert done.json["rows"]["sessions"] == 1
    assert stat.S_IMODE((tmp_path / "today.backup").stat().st_mode) == 0o600
    restored = cli("restore", "today.backup", "--json")
    assert restored.code == 0
    assert (restored.json["rows"], restored.json["invalid"]) == (done.json["rows"], [])
    assert "all valid" in restored.err
    # The very same file as an export: the same events, hashes and salts.
    assert cli("export", recorded.session_id).out == cli("export", recorded.session_id, *recorded.options).out


def test_what_did_not_verify_before_is_told(cli: CommandLine, recorded: RecordedSession, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.db"
    shutil.copy(recorded.file, damaged)
    with sqlite3.connect(damaged) as connection:
        connection.execute("UPDATE events SET payload = '{}' WHERE seq = 3")
    connection.close()
    assert cli("backup", "x.backup", "--database-url", f"sqlite:///{damaged}").code == 0
    restored = cli("restore", "x.backup", "--json")
    assert restored.code == 1
    assert restored.json["invalid"] == [f"default/{recorded.session_id}"]
    assert "not valid: 1" in restored.err


def test_refusals_leave_nothing_behind(cli: CommandLine, recorded: RecordedSession, tmp_path: Path) -> None:
    assert "no database" in cli.expect_refusal("backup", "x.backup")
    assert "cannot write" in cli.expect_refusal("backup", "none/x.backup", *recorded.options)
    assert "cannot read" in cli.expect_refusal("restore", "x.backup")
    (tmp_path / "x.backup").write_text("no backup")
    assert "damaged or was cut off" in cli.expect_refusal("restore", "x.backup")
    assert [file.name for file in tmp_path.iterdir()] == ["x.backup"]
