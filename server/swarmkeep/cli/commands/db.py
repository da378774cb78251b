"""`swarmkeep db`: the database's schema."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, TypeVar, cast

import typer

from swarmkeep.cli.configure import load_settings
from swarmkeep.cli.opening import open_source, run_on_store
from swarmkeep.cli.options import Commands, DatabaseUrl, JsonOutput, Quiet
from swarmkeep.cli.output import STANDARD, open_atomically, open_input
from swarmkeep.cli.sources import SourceOptions
from swarmkeep.cli.terminal import Progress, Refused, TrackedFile, put, put_json, say, show_progress
from swarmkeep.events.codec import to_timestamp
from swarmkeep.events.wording import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from swarmkeep.store.opening import SqlStore


T = TypeVar("T")

commands = Commands()
group = commands.add_group(
    "db",
    "Migrate the database's schema up or down, show and check it, and rebuild counters and the search index.",
)


@group.add("""
    swarmkeep db upgrade
    swarmkeep db upgrade --database-url postgresql://user@host/swarmkeep
""")
def upgrade(
    revision: Annotated[str, typer.Argument(metavar="REVISION", help="Up to this revision.")] = "head",
    as_json: JsonOutput = False,
    quiet: Quiet = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Migrate the database up, by default to this release's schema; makes a SQLite file if there is none."""
    from swarmkeep.store import schema

    _migrate(schema.upgrade, revision, _resolve_url(database_url), quiet=quiet, as_json=as_json)


@group.add("""
    swarmkeep db downgrade 0001
    swarmkeep db downgrade base     (drops every table)
""")
def downgrade(
    revision: Annotated[
        str, typer.Argument(metavar="REVISION", help="Down to this revision; `base` drops every table.")
    ],
    as_json: JsonOutput = False,
    quiet: Quiet = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Migrate the database down to an older revision. What that one cannot hold is lost."""
    from swarmkeep.store import schema

    _migrate(schema.downgrade, revision, _resolve_url(database_url), quiet=quiet, as_json=as_json)


@group.add("""
    swarmkeep db current
    swarmkeep db current --json
""")
def current(as_json: JsonOutput = False, database_url: DatabaseUrl = None) -> None:
    """Show which revision the database is at, and which one this release has."""
    from swarmkeep.store import schema

    _put_revision(schema.current(_resolve_url(database_url)), as_json)


@group.add("""
    swarmkeep db check
    swarmkeep db check --database-url sqlite:///swarmkeep.db --json
""")
def check(as_json: JsonOutput = False, database_url: DatabaseUrl = None) -> None:
    """Compare the database's tables with this release's. Exit code 1 if they differ."""
    from swarmkeep.store import schema

    differences: Sequence[str] = schema.check(_resolve_url(database_url))
    if as_json:
        put_json({"matches": not differences, "differences": list(differences)})
    for difference in () if as_json else differences:
        put(difference)
    if differences:
        say(f"error: the schema differs in {pluralize(len(differences), 'place')}; run `swarmkeep db upgrade`")
        raise typer.Exit(1)
    say("the schema is that of this release")


@group.add("""
    swarmkeep db recount
    swarmkeep db recount --dry-run
""")
def recount(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what is wrong.")] = False,
    as_json: JsonOutput = False,
    quiet: Quiet = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Recount the sessions and bytes of every tenant, and correct the counters that quotas use.

    Servers keep the counters up to date, so they are wrong only after an older release or another program has changed
    the database. What else such a release leaves undone is corrected, too: sessions in the wrong place in lists,
    sessions that searches do not find, and files and words of deleted sessions. This reads the whole database; servers
    keep running meanwhile.
    """
    from swarmkeep.store.schema import mend_leftovers
    from swarmkeep.store.usage import COUNTED, recount_totals

    url = _resolve_url(database_url)
    with show_progress(
        "looking for what older releases left undone", "session", quiet=quiet, on_interrupt=_describe_mending
    ) as progress:
        left = run_on_store(
            url, lambda store: mend_leftovers(store, mend=not dry_run, on_step=progress.reach), read_only=dry_run
        )
    with show_progress("counting", "table", len(COUNTED), quiet=quiet, on_interrupt=_describe_mending) as progress:
        found = run_on_store(
            url,
            lambda store: recount_totals(store.database, mend=not dry_run, on_table=progress.advance),
            read_only=dry_run,
        )
    has_left = left.sessions + left.files + left.words > 0
    mended = not dry_run and (bool(found) or has_left)
    if as_json:
        put_json(
            {
                "mended": mended,
                "tenants": found,
                "sessions": left.sessions,
                "files": left.files,
                "words": left.words,
            }
        )
    for one in () if as_json else found:
        put(
            f"{one.tenant!r}: the counters say {pluralize(one.counted_sessions, 'session')} and "
            f"{pluralize(one.counted_bytes, 'byte')}; really there are {one.sessions} and {one.bytes}"
        )
    if has_left:
        say(
            f"{pluralize(left.sessions, 'session was', 'sessions were')} in the wrong place in lists, and "
            f"{pluralize(left.files, 'file')} belonged to deleted sessions"
        )
    if left.words:
        say(f"{pluralize(left.words, 'deleted session')} had words in the search index")
    say(f"{pluralize(len(found), 'tenant')} had wrong counters" + ("; this is corrected" if mended else ""))


def _describe_mending(progress: Progress) -> str:
    """A recount is one transaction a session, and one for all counters."""
    return f"{progress} so far; nothing is half done, and the rest can be corrected later"


@group.add("""
    swarmkeep db stamp --unstamped     (once, when the first key is set)
    swarmkeep db stamp                 (when a key was put before another one)
""")
def stamp(
    unstamped: Annotated[
        bool, typer.Option("--unstamped", help="Also those without a stamp, which are from before the first key.")
    ] = False,
    as_json: JsonOutput = False,
    quiet: Quiet = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Sign the end of each session's log with the first key of SWARMKEEP_INTEGRITY_KEY, so that older keys can go.

    Each session is verified first. Those that do not verify, or have a stamp of no key that is set, are named and
    left as they are; exit code 1 then. A session whose stamp was removed gets a new one by --unstamped, so use
    that once, when the first key is set. Servers keep running meanwhile.
    """
    from swarmkeep.store.integrity import IntegrityKeys
    from swarmkeep.store.schema import stamp_sessions

    settings = load_settings(database_url=database_url)
    if not IntegrityKeys(settings.integrity_keys or ""):
        raise Refused("set SWARMKEEP_INTEGRITY_KEY to the key that is to sign")
    with show_progress("stamping", "session", quiet=quiet) as progress:
        done = run_on_store(
            settings.database_url,
            lambda store: stamp_sessions(store, unstamped=unstamped, on_step=progress.advance),
            **settings.store_options,
        )
    names = [f"{key.tenant}/{key.id}" for key in done.refused]
    if as_json:
        put_json({"stamped": done.stamped, "kept": done.kept, "refused": names})
    for name in () if as_json else names:
        put(f"{name}: not stamped, as it does not verify, or its stamp is missing or wrong")
    say(f"stamped: {done.stamped}; already current: {done.kept}; left as they are: {len(names)}")
    if names:
        raise typer.Exit(1)


@group.add("""
    swarmkeep db reindex
    swarmkeep db reindex --missing
""")
def reindex(
    missing: Annotated[bool, typer.Option("--missing", help="Only add what is not in the index yet.")] = False,
    as_json: JsonOutput = False,
    quiet: Quiet = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Rebuild the index that searches for sessions use.

    Servers keep it up to date, so this is for an index that was damaged, or for a database without a server with
    SWARMKEEP_SEARCH=on. Until it is done, searches find less; servers keep running meanwhile.
    """
    url = _resolve_url(database_url)
    with show_progress(
        "indexing",
        "session",
        quiet=quiet,
        on_interrupt=lambda done: f"{done} so far; servers index the rest, or `swarmkeep db reindex --missing`",
    ) as progress:
        done = run_on_store(url, lambda store: _reindex(store, progress, is_anew=not missing))
    if as_json:
        put_json({"sessions": done})
    say(f"indexed {pluralize(done, 'session')}")


async def _reindex(store: SqlStore, progress: Progress, *, is_anew: bool) -> int:
    if is_anew:
        await store.void_search_index()
    else:
        await store.add_missing_marks()
    progress.total = await store.count_sessions_behind(None)
    while count := await store.index_some():
        progress.advance(count)
    return progress.done


def _migrate(change: Callable[..., str | None], revision: str, url: str, *, quiet: bool, as_json: bool) -> None:
    with show_progress(
        "migrating", "revision", quiet=quiet, on_interrupt=lambda _: _describe_migration(url)
    ) as progress:
        reached = change(url, revision, on_step=progress.reach)
    _put_revision(reached, as_json)


def _describe_migration(url: str) -> str:
    """Describe the state in which a migration that was broken off has left the database: it happens whole or not at
    all."""
    from swarmkeep.store import schema

    try:
        return f"the database is intact, at revision {schema.current(url) or 'none'}"
    except Exception:
        return "the database is intact; `swarmkeep db current` shows its revision"


def _resolve_url(database_url: str | None) -> str:
    return load_settings(database_url=database_url).database_url


def _put_revision(revision: str | None, as_json: bool) -> None:
    from swarmkeep.store.tables import LATEST_REVISION

    if as_json:
        put_json({"revision": revision, "head": LATEST_REVISION, "current": revision == LATEST_REVISION})
    else:
        put(revision or "no schema")
        say(_compare_with_release(revision))


def _compare_with_release(revision: str | None) -> str:
    from swarmkeep.store.tables import LATEST_REVISION, is_known

    if revision == LATEST_REVISION:
        return "this is the schema of this release"
    if revision is None or is_known(revision):
        return f"this release's schema is {LATEST_REVISION}"
    return f"this release's schema is {LATEST_REVISION}; the database is from a later release: upgrade swarmkeep"


# `swarmkeep restore`: a database from a backup.


@commands.add("""
    swarmkeep restore swarmkeep-monday.backup --database-url sqlite:///restored.db
    swarmkeep restore today.backup --database-url postgresql://user@host/swarmkeep
""")
def restore(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A file that `swarmkeep backup` wrote; - is standard input.")
    ],
    as_json: JsonOutput = False,
    quiet: Quiet = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Fill an empty database from a backup, of either kind of database, and verify every session in it.

    If the file is incomplete or the database is not empty, nothing is restored, and the exit code is 1. It is also 1 if
    a session does not verify; such a session did not verify when the backup was made.
    """
    from swarmkeep.store.backup import restore_backup

    url = _resolve_url(database_url)
    with open_input(file) as opened:
        size = os.fstat(opened.fileno()).st_size
        with show_progress(
            "restoring", "byte", size, quiet=quiet, on_interrupt=lambda _: _describe_interruption(url)
        ) as progress:
            done = restore_backup(url, cast(BinaryIO, TrackedFile(opened, progress)))
    with show_progress(
        "verifying", "session", done.rows.get("sessions", 0), quiet=quiet,
        on_interrupt=lambda verified: f"restored, and {verified} verified; `swarmkeep verify --all` verifies all",
    ) as progress:  # fmt: skip
        bad = _find_invalid_logs(url, progress)
    if as_json:
        put_json({"revision": done.revision, "rows": done.rows, "invalid": bad})
    else:
        for name in bad:
            put(f"{name}: NOT VALID")
    sessions, events = done.rows.get("sessions", 0), done.rows.get("events", 0)
    say(
        f"restored {pluralize(sessions, 'session')}, {pluralize(events, 'event')}; "
        + (f"not valid: {len(bad)}" if bad else "all valid")
    )
    if bad:
        raise typer.Exit(1)


def _describe_interruption(url: str) -> str:
    """Tell if it was too late to break it off: it happens whole or not at all."""
    from swarmkeep.store import schema
    from swarmkeep.store.records import StoreUnavailable

    try:
        is_there = schema.current(url) is not None
    except StoreUnavailable:
        # A file that was made for it is gone with it.
        is_there = False
    if not is_there:
        return "nothing was restored"
    return "everything was restored; `swarmkeep verify --all` verifies it"


def _find_invalid_logs(url: str, progress: Progress) -> list[str]:
    """The sessions and audit logs that do not verify."""
    with open_source(SourceOptions(None, url, None, None)) as source:
        sessions = [name for name, verification in progress.track(source.verify_all()) if not verification.valid]
        audits = [f"(audit log of {tenant})" for tenant, checked in source.verify_audit() if not checked.valid]
        return sessions + audits


# `swarmkeep backup`: the whole database as one file, while servers use it.


@commands.add("""
    swarmkeep backup swarmkeep-monday.backup
    docker compose exec -T server swarmkeep backup - > today.backup
    swarmkeep backup /backups/today.backup --database-url postgresql://user@host/swarmkeep
""")
def backup(
    output: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The file to write, which appears once it is complete; - is standard output."
        ),
    ],
    as_json: JsonOutput = False,
    quiet: Quiet = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Write a whole database to a file, as of one moment, while servers keep running.

    The file has the sessions of all tenants, the audit logs, and the digests of API keys. `swarmkeep restore` puts it
    into an empty database.
    """
    from swarmkeep.store.backup import write_backup

    if as_json and str(output) == STANDARD:
        raise typer.BadParameter(
            "the backup goes to standard output, so there can be no JSON; name a file", param_hint="'--json'"
        )
    url = _resolve_url(database_url)
    unwritten = f"nothing was written to {output}"
    with (
        show_progress("writing", "row", quiet=quiet, on_interrupt=lambda _: unwritten) as progress,
        open_atomically(output) as file,
    ):
        done = write_backup(url, file, to_timestamp(datetime.now(UTC)), on_row=progress.advance)
    if as_json:
        put_json(done)
    sessions, events = done.rows.get("sessions", 0), done.rows.get("events", 0)
    say(f"{output}: {pluralize(sessions, 'session')}, {pluralize(events, 'event')}")
