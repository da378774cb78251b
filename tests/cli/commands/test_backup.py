"""A database is backed up while a server has it, and restored elsewhere, verified."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from swarmkeep.cli.output import write_atomically
from tests.cli.command_line import CommandLine
from tests.cli.conftest import RecordedSession
from tests.support.processes import POLL_SECONDS, Process


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


def test_it_goes_through_pipes(recorded: RecordedSession, tmp_path: Path) -> None:
    # As out of a container that cannot write.
    database = f"sqlite:///{recorded.file}"
    swarmkeep = f'"{sys.executable}" -m swarmkeep'
    command = f'{swarmkeep} backup - --database-url "{database}" | {swarmkeep} restore -'
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "restored 1 session," in done.stderr
    assert [file.name for file in tmp_path.glob("*") if not file.name.startswith("swarmkeep.db")] == []


@pytest.mark.parametrize("output", ["out", os.devnull])
def test_planted_name_is_not_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    """Folders such as /tmp are everybody's, and it can be guessed which process writes next."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    target = Path(output) if output == os.devnull else tmp_path / output
    victim = tmp_path / "victim"
    victim.write_bytes(b"as it was")
    laid_out = tmp_path / f".{target.name}.{os.getpid()}.part"
    laid_out.symlink_to(victim)
    write_atomically(target, [b"all that was said"])
    assert victim.read_bytes() == b"as it was"
    laid_out.unlink(missing_ok=True)
    # Nor into a file that others may read.
    laid_out.touch(mode=0o666)
    with laid_out.open("rb") as theirs:
        write_atomically(target, [b"all that was said"])
        assert theirs.read() == b""
    assert output == os.devnull or target.read_bytes() == b"all that was said"


def test_earlier_verification_failure_told(cli: CommandLine, recorded: RecordedSession, tmp_path: Path) -> None:
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
    assert "not a backup" in cli.expect_refusal("restore", "x.backup")
    assert [file.name for file in tmp_path.iterdir()] == ["x.backup"]


@pytest.mark.long
def test_killed_backup_removed_by_next(cli: CommandLine, recorded: RecordedSession, tmp_path: Path) -> None:
    large = tmp_path / "large.db"
    shutil.copy(recorded.file, large)
    with sqlite3.connect(large) as connection:
        # Nothing that can be compressed, so that it takes its time.
        rows = [("default", recorded.session_id, f"{number:064}", os.urandom(500_000).hex()) for number in range(30)]
        connection.executemany("INSERT INTO blobs (tenant, session_id, hash, text) VALUES (?, ?, ?, ?)", rows)
    connection.close()
    backups = tmp_path / "backups"
    backups.mkdir()
    command = [sys.executable, "-m", "swarmkeep", "backup", str(backups / "b"), "--database-url", f"sqlite:///{large}"]
    process = Process(command, folder=tmp_path)
    process.start()
    while not any(file.stat().st_size for file in backups.iterdir()):
        assert process.returncode is None, process.output()
        time.sleep(POLL_SECONDS)
    process.signal(signal.SIGKILL)
    assert process.wait(20) == -signal.SIGKILL
    (left,) = backups.iterdir()
    assert left.name == f".b.{process.pid}.part"
    others = [backups / name for name in (f".b.{os.getpid()}0.part.txt", ".other.1.part", f".b.{os.getppid()}.part")]
    for other in others:
        other.touch()
    assert cli("backup", str(backups / "b"), *recorded.options).code == 0
    assert {file.name for file in backups.iterdir()} == {"b", *(other.name for other in others)}


def test_file_being_written_elsewhere_is_left(cli: CommandLine, recorded: RecordedSession, tmp_path: Path) -> None:
    # A process of another machine: here its number is nobody's.
    part = tmp_path / ".b.999999999.part"
    with part.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert cli("backup", "b", *recorded.options).code == 0
        assert part.exists()
    assert cli("backup", "b", *recorded.options).code == 0
    assert not part.exists()
