"""`swarmkeep archive`, and what commands and servers say of sessions that are archived."""

from __future__ import annotations

import asyncio
import io
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from swarmkeep.history import swarmkeep_verify
from swarmkeep.store.opening import open_store
from swarmkeep.store.records import SessionKey
from swarmkeep.store.schema import upgrade
from tests.cli.command_line import ACME, CommandLine
from tests.store.sessions import begin_session, draft_user_messages
from tests.support.processes import ServerProcess


async def make_sessions(url: str) -> None:
    store = open_store(url, clock=lambda: datetime.now(UTC) - timedelta(days=100))
    for tenant, name in (("default", "order-1"), ("default", "order-2"), ("other", "theirs")):
        state = await begin_session(store, SessionKey(tenant, name))
        await store.append(SessionKey(tenant, name), state, draft_user_messages("hello"))
    await store.close()


@pytest.fixture
def db(cli: CommandLine) -> CommandLine:
    """A database with sessions that are a hundred days old."""
    url = f"sqlite:///{cli.folder / 'swarmkeep.db'}"
    upgrade(url)
    asyncio.run(make_sessions(url))
    return cli


def test_archive_and_bring_back(db: CommandLine, tmp_path: Path) -> None:
    env = {"SWARMKEEP_ARCHIVE": f"file://{tmp_path / 'archive'}"}
    assert "does not say where" in db.expect_refusal("archive", "--older-than", "90d")
    assert db("archive", env=env).code == 2
    for option, wrong, why in (
        ("--older-than", "long", "as in 90d"),
        ("--to", "ftp://x", "begin it with one of s3://"),
    ):
        refused = db("archive", "--older-than", "90d", option, wrong, env=env)
        assert (refused.code, f"Invalid value for '{option}'" in refused.err, why in refused.err) == (2, True, True)
        assert "SWARMKEEP" not in refused.err
    assert "SWARMKEEP_ARCHIVE_AFTER: write" in db.expect_refusal(
        "archive", env={**env, "SWARMKEEP_ARCHIVE_AFTER": "long"}
    )
    shown = db("archive", "--older-than", "90d", "--dry-run", env=env)
    assert [line.split()[0] for line in shown.out.splitlines()] == ["order-1", "order-2", "theirs"]
    assert "3 sessions to be moved" in shown.err
    shown = db("archive", "--dry-run", "--tenant", "other", env={**env, "SWARMKEEP_ARCHIVE_AFTER": "90d"})
    assert shown.out.startswith("theirs")
    before = db("events", "order-1", "--json").json
    assert "0 sessions moved" in db("archive", "--older-than", "1y", env=env).err
    assert db("archive", "--older-than", "90d", "--tenant", "other", env=env).code == 2
    assert "3 sessions moved" in db("archive", "--older-than", "90d", env=env).err
    # A command that only reads says what to do; the list is as before.
    assert [session["id"] for session in db("sessions", "list", "--json").json] == ["order-2", "order-1"]
    assert "set SWARMKEEP_ARCHIVE" in db.expect_refusal("events", "order-1")
    assert "swarmkeep archive --bring-back order-1" in db.expect_refusal("events", "order-1", env=env)
    assert "1 session brought back" in db("archive", "--bring-back", "order-1", env=env).err
    assert "0 sessions brought back" in db("archive", "--bring-back", "order-1", env=env).err
    assert "no session 'nobody'" in db.expect_refusal("archive", "--bring-back", "nobody", env=env)
    assert "1 session brought back" in db("archive", "--bring-back", "theirs", "--tenant", "other", env=env).err
    assert db("events", "order-1", "--json").json == before
    assert db("verify", "order-1").code == 0
    told = [entry["type"] for entry in db("audit", "--json").json]
    assert told == ["session.archived"] * 2
    assert "session.archived" in db("audit").out
    # What cannot be brought back would be lost with the table.
    assert "archived" in db.expect_refusal("db", "downgrade", "0017")


@pytest.mark.long
def test_server_brings_back_what_is_asked_for(db: CommandLine, tmp_path: Path) -> None:
    env = {"SWARMKEEP_ARCHIVE": f"file://{tmp_path / 'archive'}"}
    before = db("events", "order-1", "--json").json
    assert db("archive", "--older-than", "90d", env=env).code == 0
    database = f"sqlite:///{db.folder / 'swarmkeep.db'}"
    refused = db.expect_refusal("serve", "--offline", "--agents", ACME, "--port", "0", "--database-url", database)
    assert "set SWARMKEEP_ARCHIVE to where they are" in refused
    with ServerProcess(
        tmp_path, database_url=database, agents=[ACME], env={**env, "SWARMKEEP_ARCHIVE_AFTER": "90d"}
    ) as one:
        at = ["--url", one.url]
        assert db("events", "order-1", "--json", *at).json == before
        assert db("verify", "order-2", *at).code == 0


def test_export_names_what_the_archive_has_lost(db: CommandLine, tmp_path: Path) -> None:
    """The others are exported, archived or not; every reader of the file names the lost one, which can be added."""
    archive = tmp_path / "archive"
    env = {"SWARMKEEP_ARCHIVE": f"file://{archive}"}
    whole = ["export", "--all", "-o", "all.jsonl"]
    assert db(*whole).code == 0
    before = (db.folder / "all.jsonl").read_bytes()
    assert db("archive", "--older-than", "90d", env=env).code == 0
    assert db("archive", "--bring-back", "order-2", env=env).code == 0
    assert db(*whole, env=env).code == 0
    assert (db.folder / "all.jsonl").read_bytes() == before
    # A database that is only read stays as it is.
    assert "--bring-back order-1" in db.expect_refusal("events", "order-1", env=env)
    [lost] = archive.glob("default/order-1/*")
    content = lost.read_bytes()
    marker = archive / "README.txt"
    for spoil, why in (
        (lambda: lost.write_bytes(b"x"), "its object is not what was written there"),
        (lost.unlink, "its object is not there"),
        (marker.unlink, "the archive did not answer"),
    ):
        spoil()
        for names in (whole, ["export", "order-1", "order-2", "-o", "all.jsonl"]):
            found = db(*names, env=env)
            assert (found.code, f"order-1 is missing: the session is archived, and {why}" in found.err) == (1, True)
            verified = db("verify", "all.jsonl")
            assert (verified.code, verified.out.startswith("order-2: valid")) == (1, True), verified
            assert (f": the session is archived, and {why}" in verified.out, "order-1: NOT VALID" in verified.out) == (
                True,
                True,
            )
            with pytest.raises(swarmkeep_verify.Bad, match=rf"sessions are missing: .*order-1.*, and {why}"):
                list(swarmkeep_verify.read_export(io.BytesIO((db.folder / "all.jsonl").read_bytes())))
        assert db("export", "order-1", "-o", "one.jsonl", env=env).code == 1
    assert not (db.folder / "one.jsonl").exists()
    elsewhere = ["--database-url", f"sqlite:///{db.folder / 'elsewhere.db'}"]
    imported = db("import", "all.jsonl", *elsewhere)
    assert (imported.code, imported.out) == (1, "order-2: 2 events\n")
    assert "order-1 is missing" in imported.err
    assert "order-1' is missing" in db("check", "all.jsonl", env={"SWARMKEEP_AGENTS": ACME}).err
    # Once it is mended, its own export makes the other whole.
    lost.write_bytes(content)
    assert db("export", "order-1", "-o", "one.jsonl", env=env).code == 0
    both = b"".join((db.folder / name).read_bytes() for name in ("all.jsonl", "one.jsonl"))
    (db.folder / "both.jsonl").write_bytes(both)
    assert len(list(swarmkeep_verify.read_export(io.BytesIO(both)))) == 2
    assert db("verify", "both.jsonl").code == 0
    assert db("import", "both.jsonl", *elsewhere).code == 0
    # The last line vouches for that one, too.
    cut = b"".join(line for line in (db.folder / "all.jsonl").read_bytes().splitlines(True) if b"missing" not in line)
    (db.folder / "cut.jsonl").write_bytes(cut)
    assert "missing or changed" in db("verify", "cut.jsonl").out
