"""`swarmkeep archive`: unused sessions to object storage, and back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from swarmkeep.cli.opening import run_on_store
from swarmkeep.cli.options import Commands, DatabaseUrl, Tenant
from swarmkeep.cli.sources import name_operator
from swarmkeep.cli.terminal import Refused, put, say
from swarmkeep.events.wording import pluralize

if TYPE_CHECKING:
    from swarmkeep.history.archives import Archive
    from swarmkeep.store.opening import SqlStore


commands = Commands()


@commands.add("""
    swarmkeep archive --older-than 90d --dry-run
    swarmkeep archive --older-than 90d
    swarmkeep archive --bring-back order-4711
""")
def archive(
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="TIME",
            help="Those in which nothing has happened for so long: 90d, 2y. [env: SWARMKEEP_ARCHIVE_AFTER]",
        ),
    ] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="URL", help="The archive. [env: SWARMKEEP_ARCHIVE]")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the sessions that would be moved.")] = False,
    bring_back: Annotated[
        list[str] | None,
        typer.Option("--bring-back", metavar="ID", help="Bring this session back instead; may be given again."),
    ] = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
) -> None:
    """Move sessions to the archive in which nothing has happened for long: of all tenants, as servers do by
    themselves, every hour. They are listed as before, and come back by themselves when somebody reads or uses them.
    """
    from swarmkeep.cli.configure import load_settings
    from swarmkeep.history.archives import open_archive, read_age
    from swarmkeep.store.records import DEFAULT_TENANT

    settings = load_settings(database_url=database_url, archive=to)
    if tenant is not None and not (bring_back or dry_run):
        raise typer.BadParameter("all tenants' sessions are moved; leave it out", param_hint="'--tenant'")

    async def carry_out(store: SqlStore) -> int:
        found, age = open_archive(store, settings), read_age(older_than or settings.archive_after)
        if found is None:
            raise Refused("SWARMKEEP_ARCHIVE does not say where sessions are archived")
        if bring_back:
            return await _bring_back(store, found, tenant or DEFAULT_TENANT, bring_back)
        if age is None:
            raise typer.BadParameter("say how old; SWARMKEEP_ARCHIVE_AFTER is not set", param_hint="'--older-than'")
        if dry_run:
            return await _list_due(store, found, tenant, age)
        return await found.archive_due(age, by=name_operator())

    count = run_on_store(settings.database_url, carry_out, **settings.store_options)
    done = "brought back" if bring_back else "to be moved" if dry_run else "moved"
    say(f"{pluralize(count, 'session')} {done}")


async def _bring_back(store: SqlStore, archive: Archive, tenant: str, ids: Sequence[str]) -> int:
    from swarmkeep.events.errors import SessionNotFound
    from swarmkeep.store.records import SessionKey

    count = 0
    for session_id in ids:
        key = SessionKey(tenant, session_id)
        if await store.read_head(key) is None:
            raise SessionNotFound(session_id)
        count += await archive.bring_back(key)
    return count


async def _list_due(store: SqlStore, archive: Archive, tenant: str | None, age: timedelta) -> int:
    count = 0
    for name in [tenant] if tenant else await store.list_totals():
        last = None
        while page := await archive.list_due(name, age, after=last):
            for session in page:
                put(f"{session.key.id}  {session.active_at}")
            count, last = count + len(page), page[-1]
    return count
