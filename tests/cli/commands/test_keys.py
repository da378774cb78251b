"""`swarmkeep keys`, and the other commands with a key, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import get_args

import pytest

from swarmkeep.cli.sources import name_operator
from swarmkeep.store.keys import Role
from tests.cli.command_line import ACME, CommandLine
from tests.support.processes import ServerProcess


def test_key_made_listed_and_revoked(cli: CommandLine, where: list[str]) -> None:
    made = cli("keys", "create", "--tenant", "acme", "--name", "the shop", "--role", "read", "--json", *where).json
    assert " ".join(made) == "id key tenant name role created_at last_used_at revoked_at expires_at"
    assert (made["tenant"], made["name"], made["role"]) == ("acme", "the shop", "read")
    plain = cli("keys", "create", *where)
    # Only the key is on standard output, so that a script can take it from there.
    (secret,) = plain.lines
    assert "tenant default" in plain.err
    listed = cli("keys", "list", "--json", *where)
    assert [one["id"] for one in listed.json] == [made["id"], f"key_{secret.split('_')[1]}"]
    assert made["key"] not in listed.out
    assert secret not in listed.out
    assert [one["id"] for one in cli("keys", "list", "--tenant", "acme", "--json", *where).json] == [made["id"]]
    revoked = cli("keys", "revoke", made["id"], "--json", *where).json
    assert revoked["revoked_at"]
    assert cli("keys", "revoke", made["id"], "--json", *where).json == revoked
    entries = cli("audit", "--tenant", "acme", "--json", *where).json
    assert [(one["type"], one["by"]) for one in entries] == [
        ("key.created", name_operator()),
        ("key.revoked", name_operator()),
    ]
    table = cli("keys", "list", *where)
    assert revoked["revoked_at"] in table.out
    assert table.lines[2].split()[1:3] == ["default", "write"]


def test_what_cannot_be_done_is_said(cli: CommandLine, where: list[str]) -> None:
    said = cli.expect_refusal("keys", "revoke", "swk_0123_secret", *where)
    assert "keys list" in said
    assert "secret" not in said
    assert "A-Z" in cli.expect_refusal("keys", "create", "--tenant", "a b", *where)
    # As of `--tenant "$TENANT"` in a script: it is not the tenant `default` that was meant.
    cli.expect_usage_error("keys", "create", "--tenant", "", *where)
    cli.expect_usage_error("keys", "list", "--tenant=", *where)
    said = cli.expect_usage_error("keys", "create", "--role", "owner", *where)
    assert "Invalid value for '--role': 'owner' is not one of 'read'" in said
    past = ("--expires", "2020-01-01T00:00:00Z")
    assert "in the future" in cli.expect_refusal("keys", "create", *past, *where)
    assert cli("keys", "list", "--json", *where).json == []
    empty = cli("keys", "list", *where)
    assert (empty.out, empty.err) == ("", "there are no keys\n")


@pytest.mark.parametrize("role", get_args(Role))
def test_key_has_one_role(cli: CommandLine, where: list[str], role: Role) -> None:
    assert cli("keys", "create", "--role", role, "--json", *where).json["role"] == role
    assert [one["role"] for one in cli("keys", "list", "--json", *where).json] == [role]


@pytest.mark.parametrize("wanted", ["30d", "2999-12-31T00:00:00Z", "2999-12-31T01:00:00+01:00", "2999-12-31"])
def test_key_may_have_end_date(cli: CommandLine, where: list[str], wanted: str) -> None:
    made = cli("keys", "create", "--expires", wanted, "--json", *where).json
    if wanted == "30d":
        made_at, ends = (datetime.fromisoformat(made[name]) for name in ("created_at", "expires_at"))
        assert timedelta(days=30) - timedelta(minutes=1) < ends - made_at <= timedelta(days=30)
    else:
        assert made["expires_at"] == "2999-12-31T00:00:00.000000Z"
    assert made["expires_at"] in cli("keys", "list", *where).out


@pytest.mark.parametrize(
    "wanted", ["", "30", "30y", "-1d", "soon", "2999-13-01", "9" * 30 + "d", "2999-12-31T00:00:00"]
)
def test_invalid_end_date_refused(cli: CommandLine, where: list[str], wanted: str) -> None:
    assert "'--expires'" in cli.expect_usage_error("keys", "create", "--expires", wanted, *where)


def test_only_first_key_makes_the_file(cli: CommandLine) -> None:
    for command in (["keys", "list"], ["keys", "revoke", "key_x"]):
        assert "no database at" in cli.expect_refusal(*command)
    assert list(cli.folder.iterdir()) == []
    assert cli("keys", "create").code == 0
    assert len(cli("keys", "list", "--json").json) == 1


def test_tenant_sessions_reached_in_database(cli: CommandLine) -> None:
    for tenant in ("acme", "other"):
        talk = cli("chat", "--offline", "--agents", ACME, "--tenant", tenant, text="Hello!\n")
        assert talk.code == 0, talk
    (session,) = cli("sessions", "list", "--tenant", "acme", "--json").json
    assert cli("events", session["id"], "--tenant", "acme").code == 0
    assert session["id"] in cli.expect_refusal("sessions", "show", session["id"], "--tenant", "other")
    assert cli("sessions", "list", "--json").json == []


def test_a_key_is_for_a_server(cli: CommandLine) -> None:
    for options in (["--database-url", "sqlite:///x.db"], []):
        assert "'--api-key'" in cli.expect_usage_error("sessions", "list", "--api-key", "swk_x", *options)
    assert "'--tenant'" in cli.expect_usage_error("sessions", "list", "--url", "http://127.0.0.1:1", "--tenant", "acme")
    said = cli.expect_usage_error("sessions", "list", "--url", "http://127.0.0.1:1", "--api-key", "a secret")
    assert "a secret" not in said


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, str]]:
    """A server on all addresses, which needs a key, and one."""
    folder = tmp_path_factory.mktemp("locked")
    cli = CommandLine(folder)
    url = f"sqlite:///{folder / 'swarmkeep.db'}"
    key = cli("keys", "create", "--tenant", "acme", "--database-url", url).out.strip()
    with ServerProcess(folder, database_url=url, agents=[ACME], env={"SWARMKEEP_HOST": "0.0.0.0"}) as server:
        yield server, key


def test_commands_send_their_key(cli: CommandLine, locked: tuple[ServerProcess, str], tmp_path: Path) -> None:
    server, key = locked
    assert "SWARMKEEP_API_KEY" in cli.expect_refusal("sessions", "list", "--url", server.url)
    assert "the API key is not valid" in cli.expect_refusal(
        "sessions", "list", "--url", server.url, "--api-key", f"{key}x"
    )
    talk = cli("chat", "--url", server.url, "--api-key", key, text="Hello!\n")
    assert talk.code == 0, talk
    environment = {"SWARMKEEP_URL": server.url, "SWARMKEEP_API_KEY": key}
    (session,) = cli("sessions", "list", "--json", env=environment).json
    assert cli("events", session["id"], "--url", server.url, "--api-key", key).code == 0
    assert cli("sessions", "fork", session["id"], "--id", "fork", "--api-key", key, env={"SWARMKEEP_URL": server.url})
    for command in (["compare", session["id"], "fork"], ["diff", "fork", "1", "2"], ["request", "fork", "4"]):
        assert cli(*command, "--url", server.url, "--api-key", key).code == 0
    assert cli("whatif", "fork", "--at", "3", "--url", server.url, "--api-key", key).code == 0
    assert cli("check", "fork", "--url", server.url, "--api-key", key).code == 0
    assert cli("sessions", "delete", "fork", "--url", server.url, "--api-key", key).code == 0
