"""The schema: up, down, where it is and whether it fits, on both databases."""

from __future__ import annotations

from sqlalchemy import text

from swarmkeep.store import schema
from swarmkeep.store.revision import LATEST_REVISION
from tests.cli.command_line import ACME, CommandLine


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


def test_counters_are_counted_anew_and_mended(cli: CommandLine, database_url: str) -> None:
    where = ["--database-url", database_url]
    assert cli("db", "upgrade", *where).code == 0
    assert cli("db", "recount", *where).err == "0 tenants were counted wrong\n"
    talk = cli("chat", "--offline", "--agents", ACME, *where, text="Hello\n")
    assert talk.code == 0, talk
    assert cli("db", "recount", "--json", *where).json == {"mended": False, "tenants": []}
    schema.change_at_once(database_url, lambda found: found.execute(text("UPDATE totals SET sessions = 7, bytes = 1")))
    found = cli("db", "recount", "--dry-run", "--json", *where).json
    assert (found["mended"], found["tenants"][0]["counted_sessions"], found["tenants"][0]["sessions"]) == (False, 7, 1)
    mended = cli("db", "recount", *where)
    assert mended.out.startswith("'default': 7 sessions counted, 1 there; ")
    assert mended.err == "1 tenants were counted wrong; that is mended\n"
    assert cli("db", "recount", "--json", *where).json == {"mended": False, "tenants": []}


def test_a_session_is_kept_in_either_database(cli: CommandLine, database_url: str) -> None:
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
