"""`swarmkeep db`: the database's schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from swarmkeep.cli.configure import load_settings
from swarmkeep.cli.options import JsonOutput, StoreUrl
from swarmkeep.cli.terminal import put, put_json, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from swarmkeep.store.ports.totals import TotalsDrift

group = typer.Typer(
    help="Bring the database's schema up to this release, or back; say where it is.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="db")


@group.command(
    "upgrade",
    epilog="""
    \b
    Examples:
      swarmkeep db upgrade
      swarmkeep db upgrade --database-url postgresql://user@host/swarmkeep
    """,
)
def upgrade(
    revision: Annotated[str, typer.Argument(metavar="REVISION", help="Up to this revision.")] = "head",
    as_json: JsonOutput = False,
    database_url: StoreUrl = None,
) -> None:
    """Migrate the database up, by default to this release's schema; makes a SQLite file if there is none."""
    from swarmkeep.store import schema

    _put_revision(schema.upgrade(_resolve_url(database_url), revision), as_json)


@group.command(
    "downgrade",
    epilog="""
    \b
    Examples:
      swarmkeep db downgrade 0001
      swarmkeep db downgrade base     (drops every table)
    """,
)
def downgrade(
    revision: Annotated[str, typer.Argument(metavar="REVISION", help="Down to this one; `base` is without tables.")],
    as_json: JsonOutput = False,
    database_url: StoreUrl = None,
) -> None:
    """Migrate the database down to an older revision. What that one cannot hold is lost."""
    from swarmkeep.store import schema

    _put_revision(schema.downgrade(_resolve_url(database_url), revision), as_json)


@group.command(
    "current",
    epilog="""
    \b
    Examples:
      swarmkeep db current
      swarmkeep db current --json
    """,
)
def current(as_json: JsonOutput = False, database_url: StoreUrl = None) -> None:
    """Show which revision the database is at, and which one this release has."""
    from swarmkeep.store import schema

    _put_revision(schema.current(_resolve_url(database_url)), as_json)


@group.command(
    "check",
    epilog="""
    \b
    Examples:
      swarmkeep db check
      swarmkeep db check --database-url sqlite:///swarmkeep.db --json
    """,
)
def check(as_json: JsonOutput = False, database_url: StoreUrl = None) -> None:
    """Compare the database's tables with this release's. Exit code 1 if they differ."""
    from swarmkeep.store import schema

    differences: Sequence[str] = schema.check(_resolve_url(database_url))
    if as_json:
        put_json({"matches": not differences, "differences": list(differences)})
    for difference in () if as_json else differences:
        put(difference)
    if differences:
        say(f"error: the schema differs in {len(differences)} places; run `swarmkeep db upgrade`")
        raise typer.Exit(1)
    say("the schema is this release's")


@group.command(
    "recount",
    epilog="""
    \b
    Examples:
      swarmkeep db recount
      swarmkeep db recount --dry-run
    """,
)
def recount(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what is wrong.")] = False,
    as_json: JsonOutput = False,
    database_url: StoreUrl = None,
) -> None:
    """Count the sessions and bytes of every tenant anew, and mend the counters that quotas go by.

    They move with what they count, so this finds something only after a release that does not know them, or another
    program, has changed the database. It reads all of it; servers go on meanwhile.
    """
    found = _recount(_resolve_url(database_url), mend=not dry_run)
    if as_json:
        put_json({"mended": bool(found) and not dry_run, "tenants": found})
    for one in () if as_json else found:
        put(
            f"{one.tenant!r}: {one.counted_sessions} sessions counted, {one.sessions} there; "
            f"{one.counted_bytes} bytes counted, {one.bytes} there"
        )
    say(f"{len(found)} tenants were counted wrong" + ("" if dry_run or not found else "; that is mended"))


def _recount(url: str, *, mend: bool) -> Sequence[TotalsDrift]:
    import asyncio

    from swarmkeep.store.opening import open_store
    from swarmkeep.store.sql.counting.recount import recount_totals

    async def carry_out() -> Sequence[TotalsDrift]:
        store = open_store(url, read_only=not mend)
        try:
            await store.ping()
            return await recount_totals(store.database, mend=mend)
        finally:
            await store.close()

    return asyncio.run(carry_out())


def _resolve_url(database_url: str | None) -> str:
    return load_settings(database_url=database_url).database_url


def _put_revision(revision: str | None, as_json: bool) -> None:
    from swarmkeep.store.revision import LATEST_REVISION

    if as_json:
        put_json({"revision": revision, "head": LATEST_REVISION, "current": revision == LATEST_REVISION})
    else:
        put(revision or "no schema")
        say(
            "this is the schema of this release"
            if revision == LATEST_REVISION
            else f"this release's schema is {LATEST_REVISION}"
        )
