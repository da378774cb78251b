"""`swarmkeep restore`: a database from a backup."""

from __future__ import annotations

import os
from typing import Annotated, BinaryIO, cast

import typer

from swarmkeep.cli.configure import load_settings
from swarmkeep.cli.input import open_input
from swarmkeep.cli.options import DatabaseUrl, JsonOutput, Quiet
from swarmkeep.cli.progress import Progress, TrackedFile, show_progress
from swarmkeep.cli.sources.opening import open_source
from swarmkeep.cli.sources.options import SourceOptions
from swarmkeep.cli.terminal import Refused, put, put_json, say
from swarmkeep.domain.wording import pluralize


def register(app: typer.Typer) -> None:
    app.command(
        "restore",
        epilog="""
        \b
        Examples:
          swarmkeep restore swarmkeep-monday.backup --database-url sqlite:///restored.db
          swarmkeep restore today.backup --database-url postgresql://user@host/swarmkeep
        """,
    )(restore)


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
    from swarmkeep.store.backup import BadBackup, restore_backup

    url = load_settings(database_url=database_url).database_url
    try:
        with open_input(file) as opened:
            size = os.fstat(opened.fileno()).st_size
            with show_progress(
                "restoring", "byte", size, quiet=quiet, on_interrupt=lambda _: _describe_interruption(url)
            ) as progress:
                done = restore_backup(url, cast(BinaryIO, TrackedFile(opened, progress)))
    except BadBackup as error:
        raise Refused(str(error)) from None
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
    """Whether it was too late to break it off: it happens whole or not at all."""
    from swarmkeep.store import schema
    from swarmkeep.store.ports import StoreUnavailable

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
