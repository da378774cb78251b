"""`swarmkeep erase`, and servers whose sessions are encrypted by the keys of people."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from swarmkeep_client import Client, InvalidRequest, PersonErased, PersonNotFound
from tests.cli.command_line import ACME, CommandLine
from tests.support.processes import ServerProcess

CANARY = "canary-7f3a9c"


def list_files_with(folder: Path, text: str) -> list[str]:
    return [file.name for file in folder.glob("swarmkeep.db*") if text.encode() in file.read_bytes()]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"SWARMKEEP_PERSON": "customer", "SWARMKEEP_PERSON_KEYS": str(tmp_path / "keys")}


@pytest.mark.long
def test_person_is_erased_everywhere(cli: CommandLine, env: dict[str, str], tmp_path: Path) -> None:
    with ServerProcess(cli.folder, agents=[ACME], env=env) as server, Client(server.url) as client:
        session = client.sessions.create(metadata={"customer": "c-17"})
        assert session.run(f"My name is {CANARY}.").status == "completed"
        other = client.sessions.create(metadata={"customer": "c-18"})
        other.run("Hello.")
        assert CANARY in str(session.messages())
        assert list_files_with(cli.folder, CANARY) == []
        with pytest.raises(InvalidRequest):
            session.update(metadata={"customer": "c-18"})
        assert list(client.sessions.list(q=CANARY)) == []
        assert cli("backup", str(tmp_path / "copy"), env=env).code == 0
        assert client.erase_person("c-17", "asked for", dry_run=True).sessions == [session.id]
        assert CANARY in str(session.messages())
        done = client.erase_person("c-17", "asked for")
        assert (done.sessions, done.erased) == ([session.id], True)
        assert CANARY not in str(client.sessions.get(session.id).messages())
        with pytest.raises(PersonErased):
            session.run("And now?")
        with pytest.raises(PersonNotFound):
            client.erase_person("c-19", "asked for")
        assert session.verify().valid
        # The server's other command line says the same, and a second time nothing is left.
        assert (
            "erased the person in 1 session" in cli("erase", "c-17", "--reason", "x", "--url", server.url, env=env).out
        )
        assert [entry.type for entry in client.audit.list()].count("person.erased") == 1
        told = next(line for line in cli("audit", "--url", server.url, env=env).lines if "person.erased" in line)
        assert "1 session" in told
        assert other.run("Still there?").status == "completed"
    # Without the keys it does not begin to answer.
    without = cli("serve", "--offline", "--agents", ACME, "--port", "0")
    assert (without.code, "set SWARMKEEP_PERSON_KEYS" in without.err) == (1, True)
    restored = cli.folder / "restored.db"
    url = f"sqlite:///{restored}"
    assert cli("restore", str(tmp_path / "copy"), "--database-url", url, env=env).code == 0
    assert CANARY not in cli("events", session.id, "--json", "--database-url", url, env=env).out
    assert cli("verify", "--all", "--database-url", url, env=env).code == 0


def test_commands_say_what_is_missing(cli: CommandLine, env: dict[str, str], tmp_path: Path) -> None:
    cli("db", "upgrade", env=env)
    assert "there is no key of this person" in cli.expect_refusal("erase", "c-17", "--reason", "x", env=env)
    wrong = {**env, "SWARMKEEP_PERSON_KEYS": "nothing:here"}
    assert "SWARMKEEP_PERSON_KEYS" in cli.expect_refusal("erase", "c-17", "--reason", "x", env=wrong, code=2)
    shown = cli("doctor", env={**env, "SWARMKEEP_PERSON_KEYS": "database"}).out
    assert "erasing one leaves it in backups" in shown


def test_schema_with_encrypted_sessions_is_not_taken_back(cli: CommandLine, env: dict[str, str]) -> None:
    cli("db", "upgrade", env=env)
    with sqlite3.connect(cli.folder / "swarmkeep.db") as database:
        columns = (
            "tenant, id, head_seq, head_hash, agent, status, created_at, updated_at, view, lease_epoch, person_key"
        )
        database.execute(f"INSERT INTO sessions ({columns}) VALUES ('t', 's', 1, x'', '', 'idle', '', '', '', 0, 'k')")
    assert "encrypted by people's keys" in cli.expect_refusal("db", "downgrade", "0019", env=env)
