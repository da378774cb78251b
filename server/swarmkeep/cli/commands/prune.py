"""`swarmkeep prune`: delete sessions that have not been used for a long time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from swarmkeep.cli.completing import complete_agent
from swarmkeep.cli.durations import parse_duration
from swarmkeep.cli.options import (
    ApiKey,
    DatabaseUrl,
    JsonOutput,
    Labels,
    Quiet,
    ServerUrl,
    SourceOptions,
    Tenant,
    parse_labels,
)
from swarmkeep.cli.progress import show_progress
from swarmkeep.cli.sources.opening import open_source
from swarmkeep.cli.terminal import put, put_json, say


def register(app: typer.Typer) -> None:
    app.command(
        "prune",
        epilog="""
        \b
        Examples:
          swarmkeep prune --older-than 90d --dry-run
          swarmkeep prune --older-than 90d --metadata team=sales
        """,
    )(prune)


def prune(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Untouched for that long: 30m, 12h, 90d, 8w.")
    ],
    agent: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only those with this active agent.", autocompletion=complete_agent),
    ] = None,
    metadata: Labels = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which ones.")] = False,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why, for the audit log.")] = None,
    as_json: JsonOutput = False,
    quiet: Quiet = False,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Delete sessions that nobody has touched for long, for good. Those with a run that has not ended are left."""
    from swarmkeep.cli.refusals import find_refusal
    from swarmkeep.domain.timestamps import to_timestamp

    before = to_timestamp(datetime.now(UTC) - parse_duration(older_than, "--older-than"))
    why = reason or f"pruned: untouched for {older_than}"
    gone, left = [], []
    with open_source(SourceOptions(url, database_url, tenant, api_key), writes=not dry_run) as found:
        sessions = found.sessions(agent=agent, status="idle", metadata=parse_labels(metadata))
        with show_progress("looking for old sessions", "sessions", quiet=quiet) as looked:
            old = [session for session in looked.track(sessions) if session.updated_at < before]
        told = "{} would be deleted; nothing was" if dry_run else "{} were deleted; the others are as they were"
        with show_progress(
            "deleting", "sessions", len(old), quiet=quiet, on_interrupt=lambda done: told.format(done)
        ) as progress:
            for session in progress.track(old):
                try:
                    if not dry_run:
                        # Only as it was when it was found to be old.
                        found.delete(session.id, reason=why, if_match=session.seq)
                    gone.append(session)
                except Exception as error:
                    refused = find_refusal(error)
                    if refused is None:
                        raise
                    left.append((session.id, refused.sentence))
    if as_json:
        put_json({"deleted": [session.id for session in gone], "kept": [name for name, _ in left], "dry_run": dry_run})
    else:
        for session in gone:
            put(f"{session.id}  untouched since {session.updated_at}")
    for name, sentence in left:
        say(f"kept {name}: {sentence}")
    say(f"{len(gone)} sessions {'would be' if dry_run else 'were'} deleted")
    if left:
        raise typer.Exit(1)
