"""The schema: up, down, where it is and whether it fits, on both databases."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, text

from swarmkeep.store import schema
from swarmkeep.store.tables import LATEST_REVISION
from tests.cli.command_line import ACME, CommandLine


@pytest.mark.long
def test_a_database_goes_up_and_down(cli: CommandLine, database_url: str) -> None:
    where = ["--database-url", database_url]
    up = cli("db", "upgrade", *where)
    assert (up.code, up.out) == (0, f"{LATEST_REVISION}\n")
    assert cli("db", "current", "--json", *where).json == {
        "revision": LATEST_REVISION,
        "head": LATEST_REVISION,
        "current": True,
    }
    assert cli("db", "check", *where).code == 0
    assert cli("db", "check", "--json", *where).json == {"matches": True, "differences": []}
    down = cli("db", "downgrade", "base", *where)
    assert (down.code, down.out) == (0, "no schema\n")
    assert cli("db", "current", "--json", *where).json == {"revision": None, "head": LATEST_REVISION, "current": False}
    differs = cli("db", "check", *where)
    assert differs.code == 1
    assert "swarmkeep db upgrade" in differs.err
    assert "sessions" in differs.out
    assert cli("db", "check", "--json", *where).json["matches"] is False
    assert cli("db", "upgrade", "--json", *where).json["current"] is True


@pytest.mark.long
def test_counters_are_counted_anew_and_mended(cli: CommandLine, database_url: str) -> None:
    where = ["--database-url", database_url]
    assert cli("db", "upgrade", *where).code == 0
    assert cli("db", "recount", *where).err == "0 tenants had wrong counters\n"
    talk = cli("chat", "--offline", "--agents", ACME, *where, text="Hello\n")
    assert talk.code == 0, talk
    nothing = {"mended": False, "tenants": [], "sessions": 0, "files": 0, "words": 0}
    assert cli("db", "recount", "--json", *where).json == nothing
    schema.change_at_once(database_url, lambda found: found.execute(text("UPDATE totals SET sessions = 7, bytes = 1")))
    found = cli("db", "recount", "--dry-run", "--json", *where).json
    assert (found["mended"], found["tenants"][0]["counted_sessions"], found["tenants"][0]["sessions"]) == (False, 7, 1)
    mended = cli("db", "recount", *where)
    assert mended.out.startswith("'default': the counters say 7 sessions and ")
    assert mended.err == "1 tenant had wrong counters; this is corrected\n"
    assert cli("db", "recount", "--json", *where).json == nothing


@pytest.mark.long
def test_previous_release_leftovers_are_mended(cli: CommandLine, database_url: str) -> None:
    where = ["--database-url", database_url]
    assert cli("db", "upgrade", *where).code == 0
    assert cli("chat", "--offline", "--agents", ACME, *where, text="Hello\n").code == 0
    stale = [
        "UPDATE sessions SET active_at = '', last_run = 'failed'",
        "INSERT INTO files (tenant, session_id, hash, content) SELECT tenant, id || '-deleted', 'a', ''  FROM sessions",
        "INSERT INTO files (tenant, session_id, hash, content) SELECT tenant, id, 'b', '' FROM sessions",
        "INSERT INTO search_marks SELECT tenant, id || '-deleted', 9, 0, 0 FROM sessions",
    ]

    def leave(connection: Connection) -> None:
        for statement in stale:
            connection.execute(text(statement))

    schema.change_at_once(database_url, leave)
    assert cli("verify", "--all", *where).code == 1
    found = {"mended": False, "tenants": [], "sessions": 1, "files": 1, "words": 1}
    assert cli("db", "recount", "--dry-run", "--json", *where).json == found
    mended = cli("db", "recount", *where)
    assert mended.err == (
        "1 session was in the wrong place in lists, and 1 file belonged to deleted sessions\n"
        "1 deleted session had words in the search index\n"
        "0 tenants had wrong counters; this is corrected\n"
    )
    assert cli("db", "recount", "--dry-run", "--json", *where).json == found | {"sessions": 0, "files": 0, "words": 0}
    assert cli("verify", "--all", *where).code == 0
    (session,) = cli("sessions", "list", "--json", *where).json
    assert session["last_run_status"] == "completed"


@pytest.mark.long
def test_session_kept_in_either_database(cli: CommandLine, database_url: str) -> None:
    where = ["--database-url", database_url]
    assert cli("db", "upgrade", *where).code == 0
    talk = cli("chat", "--offline", "--agents", ACME, *where, text="Hello, I'd like to buy a lantern.\n")
    assert talk.code == 0, talk
    (session,) = cli("sessions", "list", "--json", *where).json
    assert cli("sessions", "show", session["id"], "--json", *where).json["context_variables"]["cart"]
    events = cli("events", session["id"], "--json", *where).json
    assert len(events) == session["seq"]
    assert cli("sessions", "fork", session["id"], "--id", "fork", *where).out == "fork\n"
    assert cli("sessions", "delete", "fork", *where).code == 0
    assert [found["id"] for found in cli("sessions", "list", "--json", *where).json] == [session["id"]]


def test_the_environment_says_which_database(cli: CommandLine) -> None:
    assert cli("db", "upgrade", env={"SWARMKEEP_DATABASE_URL": "sqlite:///mine.db"}).code == 0
    assert (cli.folder / "mine.db").exists()
    (cli.folder / ".env").write_text("SWARMKEEP_DATABASE_URL=sqlite:///mine.db\n")
    assert cli("db", "current").out == f"{LATEST_REVISION}\n"
