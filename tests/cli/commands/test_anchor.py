"""`swarmkeep anchor`, and what its checkpoints show of a database that was changed by who may do anything with it."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from swarmkeep.store.keys import SqlApiKeys
from swarmkeep.store.opening import open_store
from swarmkeep.store.records import SessionKey
from tests.cli.command_line import CommandLine, wait_for_line
from tests.cli.conftest import RecordedSession, serve_copy
from tests.store.sessions import begin_session, draft_user_messages
from tests.support.anchors import StampAuthority, Witness, compress, serving
from tests.support.signing import write_keys

pytestmark = pytest.mark.long

SESSION_TABLES = ("events", "blobs", "files", "idempotency", "creations", "session_labels", "usage")


@pytest.fixture
def db(db: CommandLine, recorded: RecordedSession) -> CommandLine:
    """A database with a session and a fork, and the log's key; a checkpoint was kept elsewhere."""
    assert db("sessions", "fork", recorded.session_id, "--id", "one").code == 0
    write_keys(db.folder, "key")
    assert anchor(db, "kept.txt").code == 0
    return db


def anchor(cli: CommandLine, name: str, *options: str, key: str = "key.pem") -> object:
    env = {"SWARMKEEP_SIGNING_KEY": key, "SWARMKEEP_LOG_ORIGIN": "example.com/desk"}
    return cli("anchor", "-o", name, *options, env=env)


def check(cli: CommandLine, *options: str, name: str = "kept.txt") -> tuple[int, str]:
    found = cli("verify", "--checkpoint", name, "--public-key", "key.pub", *options)
    return found.code, found.out + found.err


def expect_told(cli: CommandLine, words: str, *options: str, name: str = "kept.txt") -> str:
    """The check says that something was changed, in these words."""
    code, said = check(cli, *options, name=name)
    assert (code, words in said) == (1, True), said
    return said


def change(cli: CommandLine, *statements: str) -> None:
    with closing(sqlite3.connect(cli.folder / "swarmkeep.db")) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def remove(cli: CommandLine, session_id: str) -> None:
    change(cli, *(f"DELETE FROM {table} WHERE session_id = '{session_id}'" for table in SESSION_TABLES))
    change(cli, f"DELETE FROM sessions WHERE id = '{session_id}'")


def record(cli: CommandLine, session_id: str, *texts: str, at: datetime | None = None) -> None:
    """Another history, by the product itself: every hash in it is right."""

    async def work() -> None:
        clock = (lambda: at) if at is not None else (lambda: datetime.now(UTC))
        store = open_store(f"sqlite:///{cli.folder / 'swarmkeep.db'}", clock=clock)
        key = SessionKey("default", session_id)
        await store.append(key, await begin_session(store, key), draft_user_messages(*texts))
        await store.close()

    asyncio.run(work())


def forget_log(cli: CommandLine) -> None:
    """The operator makes the log of heads again, and signs it with the right key."""
    change(cli, "DELETE FROM log_leaves", "DELETE FROM log_checkpoints")
    assert anchor(cli, "new.txt").code == 0


def rewrite(cli: CommandLine) -> None:
    remove(cli, "one")
    record(cli, "one", "something else", *("more" for _ in range(30)))


def leave_out(cli: CommandLine) -> None:
    remove(cli, "one")


def roll_back(cli: CommandLine) -> None:
    change(cli, "DELETE FROM events WHERE session_id = 'one' AND seq > 5")
    change(cli, "UPDATE sessions SET head_seq = 5 WHERE id = 'one'")


def reorder(cli: CommandLine) -> None:
    for old, new in ((3, 1003), (4, 3), (1003, 4)):
        change(cli, f"UPDATE events SET seq = {new} WHERE session_id = 'one' AND seq = {old}")


def exchange_ids(cli: CommandLine) -> None:
    record(cli, "other", "hello")
    for old, new in (("one", "aside"), ("other", "one"), ("aside", "other")):
        for table in SESSION_TABLES:
            change(cli, f"UPDATE {table} SET session_id = '{new}' WHERE session_id = '{old}'")
        change(cli, f"UPDATE sessions SET id = '{new}' WHERE id = '{old}'")


def give_away(cli: CommandLine) -> None:
    for table in (*SESSION_TABLES, "sessions", "trail", "log_leaves", "log_checkpoints"):
        change(cli, f"UPDATE {table} SET tenant = 'another'")


@pytest.mark.parametrize(
    ("attack", "outcome", "with_log"),
    [
        (rewrite, "one: REWRITTEN", "the log was rewritten"),
        (leave_out, "one: VANISHED", "the log was cut off"),
        (roll_back, "one: TRUNCATED", "the log was rewritten"),
        (reorder, "one: INVALID", None),
        (exchange_ids, "one: TRUNCATED", None),
        (give_away, "the log was cut off: it has 0 leaves", None),
    ],
)
def test_change_is_told(
    db: CommandLine, attack: Callable[[CommandLine], None], outcome: str, with_log: str | None
) -> None:
    assert check(db)[0] == 0
    attack(db)
    expect_told(db, outcome)
    if with_log is not None:
        forget_log(db)
        expect_told(db, with_log)


def test_older_database_is_told(db: CommandLine) -> None:
    shutil.copy(db.folder / "swarmkeep.db", db.folder / "old.db")
    record(db, "two", "hello")
    anchor(db, "later.txt")
    shutil.copy(db.folder / "old.db", db.folder / "swarmkeep.db")
    assert check(db)[0] == 0
    expect_told(db, "the log was cut off: it has", name="later.txt")


def test_history_between_checkpoints_is_told(db: CommandLine) -> None:
    """Who keeps only the later checkpoint sees that an earlier one was of another history."""
    rewrite(db)
    anchor(db, "later.txt")
    expect_told(db, "one: REWRITTEN", name="later.txt")


def test_what_is_allowed_is_no_change(db: CommandLine, recorded: RecordedSession) -> None:
    db("sessions", "redact", recorded.session_id, "--seq", "3", "--reason", "a name")
    db("sessions", "delete", "one")
    record(db, "two", "hello")
    code, said = check(db)
    assert code == 0, said
    assert "one: deleted" in said
    assert "redacted" in said
    code, said = check(db, recorded.session_id)
    assert (code, "one" in said) == (0, False)
    assert db.expect_refusal("verify", "two", "--checkpoint", "kept.txt").count("no head of session two") == 1


def test_forged_checkpoint_is_refused(db: CommandLine) -> None:
    write_keys(db.folder, "other")
    assert anchor(db, "forged.txt", key="other.pem").code == 0
    refused = db.expect_refusal("verify", "--checkpoint", "forged.txt", "--public-key", "key.pub")
    assert "is not signed with this key" in refused
    text = (db.folder / "kept.txt").read_text()
    (db.folder / "changed.txt").write_text(text.replace("\n3\n", "\n2\n", 1))
    refused = db.expect_refusal("verify", "--checkpoint", "changed.txt", "--public-key", "key.pub")
    assert "signature is not valid" in refused
    (db.folder / "cut.txt").write_text(text[:40])
    assert "not a checkpoint, or was cut off" in db.expect_refusal("verify", "--checkpoint", "cut.txt")


@pytest.fixture
def witness() -> Iterator[tuple[Witness, list[str]]]:
    one = Witness()
    with serving(one.answer) as url:
        yield one, ["--witness", url, "--witness-key", one.verifier_key]


def test_witness_signs_one_history_only(db: CommandLine, witness: tuple[Witness, list[str]]) -> None:
    one, options = witness
    assert anchor(db, "signed.txt", *options).code == 0
    required = ["--witness", one.verifier_key]
    assert check(db, *required, name="signed.txt")[0] == 0
    assert "is not signed by witness.example" in db.expect_refusal("verify", "--checkpoint", "kept.txt", *required)
    # Another auditor is to see another history.
    shutil.copy(db.folder / "swarmkeep.db", db.folder / "mine.db")
    record(db, "two", "for the one")
    assert anchor(db, "signed.txt", *options).code == 0
    shutil.copy(db.folder / "mine.db", db.folder / "swarmkeep.db")
    record(db, "two", "for the other")
    refused = anchor(db, "split.txt", *options)
    assert (refused.code, "did not sign" in refused.err) == (1, True), refused.err
    expect_told(db, "the log was rewritten", *required, name="signed.txt")
    change(db, "DELETE FROM log_leaves", "DELETE FROM log_checkpoints")
    remove(db, "one")
    refused = anchor(db, "split.txt", *options)
    assert "has signed a larger log" in refused.err


def test_backdated_session_is_told(db: CommandLine, witness: tuple[Witness, list[str]]) -> None:
    one, options = witness
    assert anchor(db, "signed.txt", *options).code == 0
    record(db, "late", "hello")
    db("sessions", "fork", "one", "--id", "copy")
    db("export", "one", "-o", "one.jsonl")
    db("import", "one.jsonl", "--as", "imported")
    assert check(db, "--witness", one.verifier_key, name="signed.txt")[0] == 0
    record(db, "early", "hello", at=datetime.now(UTC) - timedelta(days=2))
    said = expect_told(db, "early: BACKDATED, event 1 says", "--witness", one.verifier_key, name="signed.txt")
    assert said.count("BACKDATED") == 1


def test_backdated_entry_of_audit_log_is_told(db: CommandLine, witness: tuple[Witness, list[str]]) -> None:
    one, options = witness
    assert anchor(db, "signed.txt", *options).code == 0
    assert db("keys", "create").code == 0
    required = ["--witness", one.verifier_key]
    assert check(db, *required, name="signed.txt")[0] == 0

    async def work() -> None:
        store = open_store(f"sqlite:///{db.folder / 'swarmkeep.db'}")
        await SqlApiKeys(store.database, clock=lambda: datetime.now(UTC) - timedelta(days=2)).create("default")
        await store.close()

    asyncio.run(work())
    expect_told(db, "audit log default: BACKDATED, entry ", *required, name="signed.txt")


def test_backdated_session_under_known_id_is_told(db: CommandLine, witness: tuple[Witness, list[str]]) -> None:
    """A session that was deleted says nothing of the times of another one that has its id, however long that is."""
    one, options = witness
    assert anchor(db, "signed.txt", *options).code == 0
    assert db("sessions", "delete", "one").code == 0
    record(db, "one", "hello", at=datetime.now(UTC) - timedelta(days=2))
    expect_told(db, "one: BACKDATED, event 1 says", "--witness", one.verifier_key, name="signed.txt")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="it needs openssl for a time stamp authority")
def test_time_stamp_is_of_its_checkpoint(db: CommandLine, tmp_path: Path) -> None:
    authority = StampAuthority(tmp_path / "tsa")
    with serving(authority.answer) as url:
        assert anchor(db, "stamped.txt", "--tsa", url).code == 0
        record(db, "two", "hello")
        assert anchor(db, "later.txt", "--tsa", url).code == 0
    required = ["--tsa", str(authority.root)]
    assert check(db, *required, name="stamped.txt")[0] == 0
    # Without a database, and without any Swarmkeep.
    assert db("evidence", "one", "-o", "case.zip", "--checkpoint", "stamped.txt").code == 0
    assert db("verify", "case.zip", "--checkpoint", "stamped.txt", "--public-key", "key.pub", *required).code == 0
    command = f"openssl ts -verify -data stamped.txt -in stamped.txt.tsr -CAfile {authority.root}"
    assert b"OK" in subprocess.run(command.split(), cwd=db.folder, check=True, capture_output=True).stdout
    record(db, "early", "hello", at=datetime.now(UTC) - timedelta(days=2))
    expect_told(db, "early: BACKDATED", *required, name="stamped.txt")
    # An authority that stamps something else, with the right nonce.
    with serving(lambda path, body: authority.answer(path, body[:40] + bytes(40) + body[80:])) as url:
        refused = anchor(db, "again.txt", "--tsa", url)
    assert (refused.code, "gave no time stamp of this request" in refused.err) == (1, True), refused
    # A stamp of another time, and one of another authority.
    shutil.copy(db.folder / "later.txt.tsr", db.folder / "stamped.txt.tsr")
    refused = db.expect_refusal("verify", "--checkpoint", "stamped.txt", *required)
    assert "the time stamp is not one of this checkpoint" in refused
    other = StampAuthority(tmp_path / "other")
    refused = db.expect_refusal("verify", "--checkpoint", "later.txt", "--tsa", str(other.root))
    assert "the time stamp is not one of this checkpoint" in refused


def test_unreachable_and_wrong_anchors_are_told(db: CommandLine) -> None:
    one = Witness()
    refused = anchor(db, "x.txt", "--witness", "http://127.0.0.1:1", "--witness-key", one.verifier_key)
    assert (refused.code, "no answer from http://127.0.0.1:1" in refused.err) == (1, True)
    with serving(lambda path, body: (200, "text/plain", b"\xff not a signature")) as url:
        refused = anchor(db, "x.txt", "--witness", url, "--witness-key", one.verifier_key)
        assert "gave no signature of its key" in refused.err
        refused = anchor(db, "x.txt", "--tsa", url)
        assert "gave no time stamp" in refused.err
    assert "is not the key of a witness" in anchor(db, "x.txt", "--witness", "http://x", "--witness-key", "x").err
    assert anchor(db, "x.txt", "--witness", "http://x").code == 2
    assert anchor(db, "-", "--tsa", "http://x").code == 2
    assert "there is no such folder" in anchor(db, "none/").err
    assert not (db.folder / "x.txt").exists()


def test_server_makes_and_checks_checkpoints(recorded: RecordedSession, cli: CommandLine, tmp_path: Path) -> None:
    private, public = write_keys(tmp_path, "served")
    with serve_copy(recorded, tmp_path, env={"SWARMKEEP_SIGNING_KEY": str(private)}) as server:
        (tmp_path / "kept").mkdir()
        made = cli("anchor", "-o", str(tmp_path / "kept"), "--json", "--url", server.url)
        assert made.code == 0, made.err
        name = str(tmp_path / "kept" / "checkpoint-1.txt")
        assert made.json["note"] == Path(name).read_text()
        found = cli("verify", "--checkpoint", name, "--public-key", str(public), "--url", server.url, "--json")
        assert found.code == 0, found.err
        # The audit log, too, since the order was approved.
        assert [json.loads(line)["outcome"] for line in found.lines] == ["unchanged", "unchanged"]
    own = cli("verify", "--checkpoint", name, "--public-key", str(public), "--database-url", server.database_url)
    assert own.code == 0


def test_two_processes_anchor_one_log(db: CommandLine) -> None:
    """While one asks the witness, another has a newer checkpoint signed: that is no rollback."""
    one = Witness()
    others: list[object] = []

    def answer(path: str, body: bytes) -> tuple[int, str, bytes]:
        if not others:
            others.append(None)
            record(db, "two", "hello")
            env = {"SWARMKEEP_SIGNING_KEY": "key.pem", "SWARMKEEP_LOG_ORIGIN": "example.com/desk"}
            others[0] = CommandLine(db.folder)("anchor", "-o", "other.txt", *options, env=env)
        return one.answer(path, body)

    with serving(answer) as url:
        options = ["--witness", url, "--witness-key", one.verifier_key]
        made = anchor(db, "mine.txt", *options)
    assert (made.code, others[0].code) == (0, 0), (made, others)
    for name in ("mine.txt", "other.txt"):
        assert check(db, "--witness", one.verifier_key, name=name)[0] == 0


def test_compressed_answer_is_read(db: CommandLine) -> None:
    one = Witness()
    with serving(lambda path, body: compress(one.answer(path, body))) as url:
        made = anchor(db, "signed.txt", "--witness", url, "--witness-key", one.verifier_key)
    assert made.code == 0, made.err
    assert check(db, "--witness", one.verifier_key, name="signed.txt")[0] == 0


def test_timer_keeps_what_others_did_not_sign(db: CommandLine, witness: tuple[Witness, list[str]]) -> None:
    one, options = witness
    dead = ["--witness", "http://127.0.0.1:1", "--witness-key", Witness("other.example").verifier_key]
    (db.folder / "kept").mkdir()
    env = {"SWARMKEEP_SIGNING_KEY": "key.pem", "SWARMKEEP_LOG_ORIGIN": "example.com/desk"}
    with db.running("anchor", "-o", "kept", "--every", "1s", *dead, *options, env=env) as running:
        assert "one signature is missing: no answer from http://127.0.0.1:1" in wait_for_line(running, 0)
        assert "wrote kept/checkpoint-1.txt" in wait_for_line(running, 1)
        # What is not complete is tried again.
        assert "one signature is missing" in wait_for_line(running, 2)
    assert check(db, "--witness", one.verifier_key, name="kept/checkpoint-1.txt")[0] == 0


def test_timer_outlives_its_server(recorded: RecordedSession, cli: CommandLine, tmp_path: Path) -> None:
    arguments = ("anchor", "-o", "kept", "--every", "1s", "--url")
    with serve_copy(recorded, tmp_path) as server, cli.running(*arguments, server.url) as running:
        assert "wrote kept: checkpoint 1 of" in wait_for_line(running, 0)
        server.stop()
        assert f"Connection refused (at {server.url})" in wait_for_line(running, 1)
        assert "no checkpoint was kept" in wait_for_line(running, 2)


def test_log_is_known_by_its_name(db: CommandLine, witness: tuple[Witness, list[str]]) -> None:
    """The operator keeps a second log, for another auditor, with the same key and the same witness."""
    one, options = witness
    made = anchor(db, "mine.txt", *options, "--json")
    key = made.json["verifier_key"]
    assert key.startswith("example.com/desk/default+")
    required = ["--public-key", key, "--witness", one.verifier_key]
    found = db("verify", "--checkpoint", "mine.txt", *required)
    assert found.code == 0, found.err
    assert "checkpoint of the log example.com/desk/default, " in found.err
    assert "signed by witness.example at 2" in found.err
    env = {"SWARMKEEP_SIGNING_KEY": "key.pem", "SWARMKEEP_LOG_ORIGIN": "example.com/other"}
    assert db("anchor", "-o", "other.txt", *options, env=env).code == 0
    refused = db.expect_refusal("verify", "--checkpoint", "other.txt", *required)
    assert "is of the log example.com/other/default, not of example.com/desk/default" in refused
    wrong = key.replace("desk", "other")
    assert "is not the key of a log" in db.expect_refusal("verify", "--checkpoint", "mine.txt", "--public-key", wrong)


def test_id_used_again_is_no_rewriting(db: CommandLine) -> None:
    assert db("sessions", "delete", "one").code == 0
    record(db, "one", "hello")
    assert anchor(db, "later.txt").code == 0
    for name in ("kept.txt", "later.txt"):
        code, said = check(db, name=name)
        assert (code, "one: deleted" in said, "and created again" in said) == (0, True, True), said


def test_anchors_are_asked_for_or_refused(db: CommandLine, witness: tuple[Witness, list[str]]) -> None:
    """A list of heads, or an export beside one, is not accepted where a witness was asked for."""
    one, _ = witness
    assert db("checkpoint", "-o", "heads.jsonl").code == 0
    assert db("export", "one", "-o", "one.jsonl").code == 0
    for named in ([], ["one"], ["one.jsonl"]):
        for option in (["--witness", one.verifier_key], ["--tsa", "key.pub"]):
            result = db("verify", *named, "--checkpoint", "heads.jsonl", *option)
            assert (result.code, "a list of heads has no witnesses" in result.err) == (1, True), result


def test_absurd_input_is_refused(db: CommandLine) -> None:
    text = (db.folder / "kept.txt").read_text()
    (db.folder / "huge.txt").write_text(text.replace("\n3\n", f"\n{10**30}\n", 1))
    assert "not a checkpoint" in db.expect_refusal("verify", "--checkpoint", "huge.txt")
    assert "is not the key of a witness" in db.expect_refusal("verify", "--checkpoint", "kept.txt", "--witness", "x")
    (db.folder / "kept.txt.tsr").write_bytes(b"x")
    for bad in ("key.pub", "missing.pem"):
        refused = db.expect_refusal("verify", "--checkpoint", "kept.txt", "--tsa", bad)
        assert "cannot be used" in refused
    stdin = db("verify", "--checkpoint", "-", "--tsa", "key.pub", text=text)
    assert (stdin.code, "give --checkpoint a file" in stdin.err) == (1, True)
