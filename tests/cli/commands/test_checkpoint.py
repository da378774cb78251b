"""`swarmkeep checkpoint` and `verify --checkpoint`: what became of every log since."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from swarmkeep.history import swarmkeep_verify
from tests.cli.command_line import CommandLine
from tests.cli.conftest import RecordedSession
from tests.support.signing import write_keys

pytestmark = pytest.mark.long

Rows = list[dict[str, Any]]


@pytest.fixture
def db(db: CommandLine, recorded: RecordedSession) -> CommandLine:
    """A database with a session, two forks, and one that was deleted."""
    for name in ("one", "two", "gone"):
        assert db("sessions", "fork", recorded.session_id, "--id", name).code == 0
    assert db("sessions", "delete", "gone").code == 0
    return db


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return write_keys(tmp_path, "key")


def compare(cli: CommandLine, *options: str) -> dict[str | None, str]:
    found = cli("verify", "--checkpoint", "heads.jsonl", "--json", *options)
    rows: Rows = [json.loads(line) for line in found.lines]
    outcomes = {row["session_id"]: row["outcome"] for row in rows}
    good = not set(outcomes.values()) - {"unchanged", "redacted", "deleted"}
    assert found.code == (0 if good else 1), found
    return outcomes


def test_extended_logs_are_unchanged(db: CommandLine, recorded: RecordedSession) -> None:
    assert db("checkpoint", "-o", "heads.jsonl").code == 0
    assert db("sessions", "fork", "one", "--id", "three").code == 0
    assert compare(db) == dict.fromkeys((recorded.session_id, "one", "two", None), "unchanged")
    assert "4 unchanged" in db("verify", "--checkpoint", "heads.jsonl").err
    heads = (db.folder / "heads.jsonl").read_text()
    assert "4 unchanged" in db("verify", "--checkpoint", "-", text=heads).err


def test_later_redacted_events_named(db: CommandLine, recorded: RecordedSession) -> None:
    # Exit code 1: the other sessions hold the same events.
    assert db("sessions", "redact", "two", "--seq", "3", "--reason", "x").code == 1
    assert db("checkpoint", "-o", "heads.jsonl").code == 0
    for seqs in (("1", "4"), ("2",)):
        chosen = [option for seq in seqs for option in ("--seq", seq)]
        assert db("sessions", "redact", "one", *chosen, "--reason", "x").code == 1
    outcomes = {recorded.session_id: "unchanged", "one": "redacted", "two": "unchanged", None: "unchanged"}
    assert compare(db) == outcomes
    said = db("verify", "--checkpoint", "heads.jsonl")
    assert "redacted: 1, 2, 4" in said.out
    assert "1 redacted, 3 unchanged" in said.err
    assert "  redacted: 3\n" in db("verify", "two").out


def test_import_not_mistaken_for_deletion(db: CommandLine, recorded: RecordedSession) -> None:
    assert db("export", "one", "-o", "one.jsonl").code == 0
    assert db("import", "one.jsonl", "--as", "brought").code == 0
    assert db("checkpoint", "-o", "heads.jsonl").code == 0
    remove(db, "brought")
    assert compare(db)["brought"] == "vanished"


@pytest.mark.parametrize("removal", ["DELETE FROM trail WHERE seq = 1", "DELETE FROM trail"])
def test_database_without_its_audit_log_is_no_other_one(db: CommandLine, removal: str) -> None:
    assert db("checkpoint", "-o", "heads.jsonl").code == 0
    remove(db, "one")
    db.change_database(removal)
    assert db("keys", "create").code == 0
    outcomes = compare(db)
    assert (outcomes["one"], outcomes["two"]) == ("vanished", "unchanged")
    assert outcomes[None] != "not contained"


def test_deletion_of_former_session_is_none_of_this_one(db: CommandLine) -> None:
    assert db("sessions", "fork", "one", "--id", "again").code == 0
    assert db("sessions", "delete", "again").code == 0
    assert db("sessions", "fork", "one", "--id", "again").code == 0
    assert db("checkpoint", "-o", "heads.jsonl").code == 0
    remove(db, "again")
    assert compare(db)["again"] == "vanished"


def remove(cli: CommandLine, session_id: str) -> None:
    """What an administrator of the database does, who leaves nothing behind."""
    cli.change_database(f"DELETE FROM sessions WHERE id = '{session_id}'")
    with closing(sqlite3.connect(cli.folder / "swarmkeep.db")) as connection, connection:
        for table in ("events", "blobs", "usage", "runs", "idempotency", "session_labels"):
            connection.execute(f"DELETE FROM {table} WHERE session_id = '{session_id}'")


def test_outcome_of_each_log_told(db: CommandLine, recorded: RecordedSession) -> None:
    for name in ("anew", "removed"):
        assert db("sessions", "fork", "one", "--id", name).code == 0
    assert db("checkpoint", "-o", "heads.jsonl").code == 0
    assert db("sessions", "delete", "anew", "--reason", "why").code == 0
    assert db("sessions", "delete", "removed").code == 0
    assert db("sessions", "fork", recorded.session_id, "--id", "anew").code == 0
    remove(db, "one")
    with closing(sqlite3.connect(db.folder / "swarmkeep.db")) as connection, connection:
        (last,) = connection.execute("SELECT max(seq) FROM events WHERE session_id = 'two'").fetchone()
        connection.execute("DELETE FROM events WHERE session_id = 'two' AND seq = ?", [last])
    assert compare(db) == {
        recorded.session_id: "unchanged",
        "anew": "deleted",
        "one": "vanished",
        "removed": "deleted",
        "two": "truncated",
        None: "unchanged",
    }
    shown = db("verify", "--checkpoint", "heads.jsonl")
    assert "one: VANISHED" in shown.out
    assert "anew: deleted" in shown.out
    assert "why, and created again" in shown.out


def test_cut_off_redaction_is_told_as_that(db: CommandLine) -> None:
    """What else is wrong then, such as a payload that no event explains, does not stand for what was cut off."""
    assert db("sessions", "redact", "one", "--seq", "3", "--reason", "a name", "--include-forks").code == 0
    assert db("checkpoint", "-o", "heads.jsonl").code == 0
    db.change_database("DELETE FROM events WHERE session_id = 'one' AND type = 'session.redacted'")
    shown = db("verify", "--checkpoint", "heads.jsonl").out
    assert "one: TRUNCATED, the log ends with event" in shown


def test_rewritten_or_damaged_log_told(db: CommandLine, recorded: RecordedSession) -> None:
    assert db("checkpoint", "-o", "heads.jsonl").code == 0
    db.change_database(
        "UPDATE events SET hash = x'00' WHERE session_id = 'one' AND type = 'session.forked'",
        "UPDATE events SET payload = '{}' WHERE session_id = 'two' AND seq = 2",
    )
    found = compare(db)
    assert (found["one"], found["two"], found[recorded.session_id]) == ("rewritten", "invalid", "unchanged")
    db.change_database("DELETE FROM trail")
    assert compare(db)[None] == "truncated"


def test_a_server_can_be_asked(cli: CommandLine, place: list[str]) -> None:
    assert cli("checkpoint", "-o", "heads.jsonl", *place).code == 0
    assert set(compare(cli, *place).values()) == {"unchanged"}


def test_signed_checkpoint_checked_against_key(db: CommandLine, keys: tuple[Path, Path]) -> None:
    private, public = keys
    assert "signed" in db("checkpoint", "--signing-key", str(private), "-o", "heads.jsonl").err
    assert set(compare(db, "--public-key", str(public)).values()) == {"unchanged"}
    assert "use --public-key to check" in db("verify", "--checkpoint", "heads.jsonl").err
    seal = json.loads((db.folder / "heads.jsonl").read_text().splitlines()[-1])
    assert (len(seal["public_key"]), len(seal["signature"])) == (64, 128)
    out = db("checkpoint", env={"SWARMKEEP_SIGNING_KEY": str(private)}).lines
    assert json.loads(out[-1])["public_key"] == seal["public_key"]


def expect_refusal(cli: CommandLine, *options: str) -> str:
    return cli.expect_refusal("verify", "--checkpoint", "heads.jsonl", *options)


def test_a_changed_checkpoint_is_refused(db: CommandLine, keys: tuple[Path, Path]) -> None:
    private, public = keys
    file = db.folder / "heads.jsonl"
    assert db("checkpoint", "--signing-key", str(private), "-o", str(file)).code == 0
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    trusted = ("--public-key", str(public))
    for changed in (
        whole[:-5],
        b"".join(lines[:-1]),
        b"".join(lines[1:]),
        b"".join([*lines[:1], *lines[2:]]),
        whole.replace(b'"seq":', b'"seq":1', 1),
        whole + b"\n",
        whole + lines[-1],
        b"",
        b"{}\n",
        b"\xff\n",
        b"x" * 300_000,
    ):
        file.write_bytes(changed)
        assert "checkpoint" in expect_refusal(db, *trusted) or "last line" in expect_refusal(db, *trusted)
        assert expect_refusal(db)
    # With another digest, nobody has signed it.
    seal = json.loads(lines[-1])
    body = [lines[0], *lines[2:-1]]
    seal |= {"lines": len(body), "sha256": hashlib.sha256(b"".join(body)).hexdigest()}
    file.write_bytes(b"".join(body) + json.dumps(seal).encode() + b"\n")
    assert "signature is not valid" in expect_refusal(db)
    seal |= {"public_key": None, "signature": None}
    file.write_bytes(b"".join(body) + json.dumps(seal).encode() + b"\n")
    assert "not signed" in expect_refusal(db, *trusted)
    assert set(compare(db).values()) == {"unchanged"}


def test_another_key_is_refused(db: CommandLine, keys: tuple[Path, Path], tmp_path: Path) -> None:
    private, public = write_keys(tmp_path, "other")
    assert db("checkpoint", "--signing-key", str(private), "-o", "heads.jsonl").code == 0
    assert "another key" in expect_refusal(db, "--public-key", str(keys[1]))
    assert set(compare(db, "--public-key", str(public)).values()) == {"unchanged"}


def test_unusable_keys_told(db: CommandLine, tmp_path: Path) -> None:
    none = serialization.NoEncryption()
    wrong = tmp_path / "wrong.pem"
    wrong.write_bytes(
        X25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption_algorithm=none
        )
    )
    junk = tmp_path / "junk.pem"
    junk.write_text("nothing")
    for key in (wrong, junk, tmp_path / "absent.pem", tmp_path):
        assert "key" in db.expect_refusal("checkpoint", "--signing-key", str(key), "-o", "heads.jsonl")
        assert not (db.folder / "heads.jsonl").exists()
        assert list(db.folder.glob("*.part")) == []


def test_missing_checkpoint_told(db: CommandLine) -> None:
    assert "absent.jsonl" in db.expect_refusal("verify", "--checkpoint", "absent.jsonl")
    assert "--checkpoint" in db.expect_usage_error("verify", "--public-key", "x", "--all")
    assert "--all" in db.expect_usage_error("verify", "--all", "--checkpoint", "heads.jsonl")


@pytest.fixture
def files(db: CommandLine, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """An export of two of the sessions and a signed checkpoint of all, in a folder without a database."""
    assert db("export", "one", "two", "--output", "two.jsonl").code == 0
    assert db("checkpoint", "--signing-key", str(keys[0]), "--output", "heads.jsonl").code == 0
    (db.folder / "swarmkeep.db").rename(db.folder / "away.db")
    return db


def test_export_is_verified_without_database(files: CommandLine, keys: tuple[Path, Path]) -> None:
    alone = files("verify", "two.jsonl")
    assert alone.code == 0
    assert [line.partition(":")[0] for line in alone.out.splitlines()] == ["one", "two"]
    beside = files("verify", "two.jsonl", "--checkpoint", "heads.jsonl", "--public-key", str(keys[1]))
    assert (beside.code, beside.out) == (0, "")
    assert "not contained, 2 unchanged" in beside.err
    dry = files("import", "two.jsonl", "--dry-run")
    assert (dry.code, dry.out) == (0, "one: 26 events\ntwo: 26 events\n")
    assert not (files.folder / "swarmkeep.db").exists()


def test_export_is_verified_from_pipe_and_compressed_one_is_named(files: CommandLine) -> None:
    export = files.folder / "two.jsonl"
    alone = files("verify", "two.jsonl").out
    piped = files("verify", "-", text=export.read_text())
    assert (piped.code, piped.out) == (0, alone), piped.err
    os.mkfifo(files.folder / "pipe")
    with ThreadPoolExecutor(1) as writer:
        writer.submit((files.folder / "pipe").write_bytes, export.read_bytes())
        piped = files("verify", "./pipe")
    assert (piped.code, piped.out) == (0, alone), piped.err
    (files.folder / "two.jsonl.gz").write_bytes(gzip.compress(export.read_bytes()))
    packed = files("verify", "two.jsonl.gz")
    assert (packed.code, "it first (gunzip)" in packed.out) == (1, True)


def test_export_without_sessions_says_so(files: CommandLine) -> None:
    seal = {"record": "end", "sessions": 0, "events": 0, "sha256": hashlib.sha256().hexdigest()}
    (files.folder / "none.jsonl").write_text(json.dumps(seal, separators=(",", ":")) + "\n")
    found = files("verify", "none.jsonl")
    assert (found.code, "the file has no sessions" in found.err) == (0, True)
    alone = [sys.executable, swarmkeep_verify.__file__, "none.jsonl"]
    assert subprocess.check_output(alone, cwd=files.folder, text=True) == "the file has no sessions\n"


def test_changed_export_is_refused_by_line(files: CommandLine) -> None:
    text = (files.folder / "two.jsonl").read_text()
    (files.folder / "two.jsonl").write_text(text.replace('"role":"user"', '"role":"usar"', 1))
    found = files("verify", "two.jsonl", "--checkpoint", "heads.jsonl")
    assert found.code == 1
    assert "NOT VALID, line 3: event 3 (message.added)" in found.out


def test_export_older_or_newer_than_checkpoint(files: CommandLine) -> None:
    lines = (files.folder / "heads.jsonl").read_text().splitlines()
    heads = [json.loads(line) for line in lines[1:-1]]
    for seq, hash, outcome in ((40, "0" * 64, "TRUNCATED"), (5, "0" * 64, "REWRITTEN"), (None, None, "NOT COVERED")):
        changed = [
            {**head, "seq": seq, "hash": hash} if head["session_id"] == "one" else head
            for head in heads
            if seq is not None or head["session_id"] != "one"
        ]
        write_heads(files.folder / "other.jsonl", lines[0], changed)
        found = files("verify", "two.jsonl", "--checkpoint", "other.jsonl")
        assert found.code == 1
        assert f"one: {outcome}" in found.out


def test_tenants_may_use_one_id(db: CommandLine) -> None:
    """An export does not name its tenant: the head of its history counts, and the others are not taken for it."""
    assert db("export", "one", "-o", "one.jsonl").code == 0
    assert db("import", "one.jsonl", "--as", "two", "--tenant", "other").code == 0
    assert db("checkpoint", "-o", "heads.jsonl").code == 0
    for tenant in ("default", "other"):
        assert db("export", "two", "-o", "two.jsonl", "--tenant", tenant).code == 0
        found = db("verify", "two.jsonl", "--checkpoint", "heads.jsonl", "--json")
        outcomes = [head["outcome"] for head in map(json.loads, found.out.splitlines()) if head["session_id"] == "two"]
        assert (found.code, sorted(outcomes)) == (0, ["not contained", "unchanged"]), found
        alone = [sys.executable, swarmkeep_verify.__file__, "two.jsonl", "--checkpoint", "heads.jsonl"]
        subprocess.run(alone, cwd=db.folder, check=True)
    lines = (db.folder / "heads.jsonl").read_text().splitlines()
    heads = [{**json.loads(line), "hash": "0" * 64} for line in lines[1:-1]]
    write_heads(db.folder / "heads.jsonl", lines[0], heads)
    assert db("verify", "two.jsonl", "--checkpoint", "heads.jsonl").code == 1
    assert subprocess.run(alone, cwd=db.folder, check=False).returncode == 1


def write_heads(file: Path, first: str, heads: Rows) -> None:
    body = "".join(f"{line}\n" for line in (first, *map(json.dumps, heads)))
    seal = {"lines": len(heads) + 1, "sha256": hashlib.sha256(body.encode()).hexdigest()}
    file.write_text(f"{body}{json.dumps(seal)}\n")


def test_other_database_need_not_hold_all(files: CommandLine) -> None:
    assert files("import", "two.jsonl").code == 0
    found = files("verify", "--checkpoint", "heads.jsonl", "--json")
    outcomes = {head["session_id"]: head["outcome"] for head in map(json.loads, found.out.splitlines())}
    assert found.code == 0
    assert {outcomes.pop("one"), outcomes.pop("two")} == {"unchanged"}
    assert set(outcomes.values()) == {"not contained"}
    assert files("verify", "one", "--checkpoint", "heads.jsonl").code == 0
    missing = files("verify", next(iter(set(outcomes) - {None})), "--checkpoint", "heads.jsonl")
    assert (missing.code, "NOT CONTAINED" in missing.err) == (1, True)
    assert "no head of session other" in files("verify", "other", "--checkpoint", "heads.jsonl").err


@pytest.mark.parametrize("optimised", [(), ("-O",)])
def test_stranger_verifies_with_python_alone(
    files: CommandLine, keys: tuple[Path, Path], optimised: tuple[str, ...]
) -> None:
    seal = json.loads((files.folder / "heads.jsonl").read_text().splitlines()[-1])

    def check(name: str, key: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", "-S", *optimised, swarmkeep_verify.__file__, name]
        command += ["--checkpoint", "heads.jsonl", "--public-key", key]
        return subprocess.run(command, cwd=files.folder, env={}, capture_output=True, text=True, check=False)

    found = check("two.jsonl", seal["public_key"])
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.count(": valid, 26 events, head 26:") == 2
    assert check("two.jsonl", "00" * 32).returncode == 1
    assert check("nowhere.jsonl", seal["public_key"]).returncode == 2
    text = (files.folder / "two.jsonl").read_bytes()
    (files.folder / "other.jsonl").write_bytes(text.replace(b'"role":"user"', b'"role":"usar"', 1))
    changed = check("other.jsonl", seal["public_key"])
    assert (changed.returncode, changed.stdout) == (1, "")
    assert changed.stderr == "NOT VALID: line 3: event 3 of one says something else\n"
    heads = (files.folder / "heads.jsonl").read_text()
    (files.folder / "heads.jsonl").write_text(heads.replace(seal["signature"], "00" * 64))
    assert "the signature is not valid" in check("two.jsonl", seal["public_key"]).stderr
    # The name of a key is no signature, and what is given is never left out.
    (files.folder / "heads.jsonl").write_text(heads.replace(f'"{seal["signature"]}"', "null"))
    assert "the checkpoint is not signed" in check("two.jsonl", seal["public_key"]).stderr
    (files.folder / "heads.jsonl").write_text("")
    program = [sys.executable, *optimised, swarmkeep_verify.__file__, "two.jsonl"]
    for options, code in ((["--checkpoint", "heads.jsonl"], 1), (["--public-key", seal["public_key"]], 2)):
        assert subprocess.run([*program, *options], cwd=files.folder, check=False).returncode == code
        assert files("verify", "two.jsonl", *options).code in (1, 2)


def test_head_is_read_alike(files: CommandLine) -> None:
    """In Python `True == 1`, and a list of heads may be made by anyone who makes its digest."""
    lines = (files.folder / "heads.jsonl").read_text().splitlines()
    events = map(json.loads, (files.folder / "two.jsonl").read_text().splitlines()[:-1])
    first = {event["session_id"]: event["hash"] for event in events if event["seq"] == 1}
    alone = [sys.executable, swarmkeep_verify.__file__, "two.jsonl", "--checkpoint", "other.jsonl"]
    for seq, upper, code in (
        (1, False, 0),
        (True, False, 1),
        (1.0, False, 1),
        ("1", False, 1),
        (0, False, 1),
        (1, True, 1),
    ):
        heads = [
            {"tenant": None, "session_id": name, "seq": seq, "hash": hash.upper() if upper else hash}
            for name, hash in first.items()
        ]
        write_heads(files.folder / "other.jsonl", lines[0], heads)
        found = files("verify", "two.jsonl", "--checkpoint", "other.jsonl")
        assert (found.code, "Traceback" in found.err) == (code, False), (seq, found)
        assert subprocess.run(alone, cwd=files.folder, check=False).returncode == code
