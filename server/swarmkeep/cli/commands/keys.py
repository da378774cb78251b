"""`swarmkeep keys`: API keys, in the database itself: a user who can write to it needs no key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import msgspec
import typer

from swarmkeep.cli.configure import load_settings
from swarmkeep.cli.opening import run_on_store
from swarmkeep.cli.options import Commands, DatabaseUrl, JsonOutput, refuse_empty
from swarmkeep.cli.output import parse_end
from swarmkeep.cli.sources import name_operator
from swarmkeep.cli.terminal import put, put_json, put_rows, say
from swarmkeep.store.urls import SqliteFile, locate

if TYPE_CHECKING:
    from swarmkeep.store.keys import SqlApiKeys


T = TypeVar("T")

commands = Commands()
group = commands.add_group(
    "keys",
    "Make, list and revoke the API keys in a database. As soon as there is one, servers on that database require "
    "keys. They notice new and revoked keys within two seconds.",
)


@group.add("""
    swarmkeep keys create --tenant acme --name "the shop's backend"
    swarmkeep keys create --tenant acme --name auditor --role read --expires 30d
    swarmkeep keys create --json
""")
def create(
    tenant: Annotated[
        str | None,
        typer.Option(
            "--tenant",
            metavar="NAME",
            callback=refuse_empty,
            help="The tenant whose sessions it gives access to; by default `default`.",
        ),
    ] = None,
    name: Annotated[str, typer.Option("--name", metavar="TEXT", help="Who or what uses it; kept in events.")] = "",
    role: Annotated[
        Literal["read", "run", "approve", "support", "audit", "write", "admin"],
        typer.Option("--role", help="What it may do; `write`: everything but making keys; `read`: change nothing."),
    ] = "write",
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="WHEN", help="When it expires: 30d, 2026-12-31, 2026-12-31T12:00:00Z."),
    ] = None,
    as_json: JsonOutput = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Make a key and print it, once: only its digest is kept. Makes a SQLite file if there is none.

    From the first key on, every request under /v1 needs one, for good.
    """
    from swarmkeep.store.records import DEFAULT_TENANT

    ends = None if expires is None else parse_end(expires, "--expires")
    made, secret = _use_keys(
        database_url,
        lambda keys: keys.create(tenant or DEFAULT_TENANT, name=name, role=role, expires_at=ends, by=name_operator()),
        makes=True,
    )
    if as_json:
        put_json({"id": made.id, "key": secret, **msgspec.to_builtins(made)})
    else:
        put(secret)
    say(f"key {made.id} of tenant {made.tenant} ({made.role}); it is not shown again")


@group.add(
    """
    swarmkeep keys list
    swarmkeep keys list --tenant acme --json
    """,
    name="list",
)
def list_keys(
    tenant: Annotated[
        str | None,
        typer.Option("--tenant", metavar="NAME", callback=refuse_empty, help="Only those of this tenant."),
    ] = None,
    as_json: JsonOutput = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List the keys of all tenants, oldest first, including revoked ones. The keys themselves are not shown."""

    found = _use_keys(database_url, lambda keys: keys.list_keys(tenant=tenant), read_only=True)
    if as_json:
        put_json(found)
        return
    rows = [
        (
            one.id, one.tenant, one.role, one.created_at, one.last_used_at or "never", one.expires_at or "never",
            one.revoked_at or "no", one.name,
        )
        for one in found
    ]  # fmt: skip
    put_rows(
        ("ID", "TENANT", "ROLE", "CREATED", "LAST USED", "ENDS", "REVOKED", "NAME"), rows, none="there are no keys"
    )


@group.add("""
    swarmkeep keys revoke key_0123456789abcdef
""")
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The key's id, as in `keys list`.")],
    as_json: JsonOutput = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Revoke a key, for good; every server refuses it within two seconds. A key that is revoked already stays as it
    is."""
    ended = _use_keys(database_url, lambda keys: keys.revoke(key_id, by=name_operator()))
    if as_json:
        put_json(ended)
    say(f"key {ended.id} is revoked since {ended.revoked_at}")


def _use_keys(
    database_url: str | None,
    work: Callable[[SqlApiKeys], Awaitable[T]],
    *,
    makes: bool = False,
    read_only: bool = False,
) -> T:
    """Do something with the keys in the database that is meant. `makes` a SQLite file that is not there yet."""
    from swarmkeep.store.keys import SqlApiKeys
    from swarmkeep.store.schema import upgrade

    url = load_settings(database_url=database_url).database_url
    location = locate(url)
    if makes and isinstance(location, SqliteFile) and not location.path.exists():
        upgrade(url)

    return run_on_store(url, lambda store: work(SqlApiKeys(store.database)), read_only=read_only)
