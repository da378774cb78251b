"""`swarmkeep backup`: the whole database as one file, while servers use it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from swarmkeep.cli.configure import load_settings
from swarmkeep.cli.options import DatabaseUrl, JsonOutput, Quiet
from swarmkeep.cli.output import STANDARD, open_atomically
from swarmkeep.cli.progress import show_progress
from swarmkeep.cli.terminal import put_json, say
from swarmkeep.domain.wording import pluralize


def register(app: typer.Typer) -> None:
    app.command(
        "backup",
        epilog="""
        \b
        Examples:
          swarmkeep backup swarmkeep-monday.backup
          docker compose exec -T server swarmkeep backup - > today.backup
          swarmkeep backup /backups/today.backup --database-url postgresql://user@host/swarmkeep
        """,
    )(backup)


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
    from swarmkeep.domain.timestamps import to_timestamp
    from swarmkeep.store.backup import write_backup

    if as_json and str(output) == STANDARD:
        raise typer.BadParameter(
            "the backup goes to standard output, so there can be no JSON; name a file", param_hint="'--json'"
        )
    url = load_settings(database_url=database_url).database_url
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
