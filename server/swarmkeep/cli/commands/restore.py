"""`swarmkeep restore`: a database from a backup."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swarmkeep.cli.configure import load_settings
from swarmkeep.cli.options import JsonOutput, SourceOptions, StoreUrl
from swarmkeep.cli.sources.opening import open_source
from swarmkeep.cli.terminal import Refused, put, put_json, say


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
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `swarmkeep backup` wrote.")],
    as_json: JsonOutput = False,
    database_url: StoreUrl = None,
) -> None:
    """Fill an empty database from a backup, of either kind of database, and verify every session in it.

    Exit code 1, and nothing restored, if the file is not whole or the database not empty; exit code 1 as well if a
    session does not verify, which then did not when the backup was made.
    """
    from swarmkeep.store.backup import BadBackup, restore_backup

    url = load_settings(database_url=database_url).database_url
    try:
        with file.open("rb") as opened:
            done = restore_backup(url, opened)
    except OSError as error:
        raise Refused(f"cannot read {file}: {error.strerror or error}") from None
    except BadBackup as error:
        raise Refused(str(error)) from None
    bad = _find_invalid_logs(url)
    if as_json:
        put_json({"revision": done.revision, "rows": done.rows, "invalid": bad})
    else:
        for name in bad:
            put(f"{name}: NOT VALID")
    say(
        f"restored {done.rows.get('sessions', 0)} sessions, {done.rows.get('events', 0)} events; "
        + (f"not valid: {len(bad)}" if bad else "all valid")
    )
    if bad:
        raise typer.Exit(1)


def _find_invalid_logs(url: str) -> list[str]:
    """The sessions and audit logs that do not verify."""
    with open_source(SourceOptions(None, url, None, None)) as found:
        sessions = [name for name, verification in found.verify_all() if not verification.valid]
        audits = [f"(audit log of {tenant})" for tenant, checked in found.verify_audit() if not checked.valid]
        return sessions + audits
