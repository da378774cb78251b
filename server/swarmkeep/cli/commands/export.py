"""`swarmkeep export`: sessions as a file that leaves nothing out."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from swarmkeep.cli.options import ApiKey, DatabaseUrl, Labels, ServerUrl, SourceOptions, Tenant, parse_labels
from swarmkeep.cli.output import write_atomically
from swarmkeep.cli.sources.damage import warn_if_damaged
from swarmkeep.cli.sources.opening import open_source
from swarmkeep.cli.terminal import is_terminal, say


def register(app: typer.Typer) -> None:
    app.command(
        "export",
        epilog="""
        \b
        Examples:
          swarmkeep export order-4711 --output order-4711.jsonl
          swarmkeep export --all --output backup.jsonl
          swarmkeep export order-4711 --format html --output order-4711.html
          swarmkeep export --all --metadata team=sales | gzip > sales.jsonl.gz
        """,
    )(export)


def export(
    session_ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="The sessions' ids.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All sessions, or all that the filters leave.")] = False,
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --all: only those with this active agent.")
    ] = None,
    status: Annotated[
        str | None, typer.Option(metavar="STATUS", help="With --all: only those that are idle, running or waiting.")
    ] = None,
    metadata: Labels = None,
    form: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="jsonl for an import; markdown or html for people.")
    ] = "jsonl",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here instead of standard output.")
    ] = None,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Export sessions in JSON lines: every event as it was recorded, and what else an import needs.

    Or one session as a document for people, with --format. A FILE appears once it is complete.
    """
    ids, labels = session_ids or [], parse_labels(metadata)
    if bool(ids) == everything:
        raise typer.BadParameter("name sessions, or give --all", param_hint="'ID'")
    if ids and (agent or status or labels):
        raise typer.BadParameter("filters go with --all", param_hint="'ID'")
    if status not in (None, "idle", "running", "waiting"):
        raise typer.BadParameter("it is idle, running or waiting", param_hint="'--status'")
    if form not in ("jsonl", "markdown", "html"):
        raise typer.BadParameter("it is jsonl, markdown or html", param_hint="'--format'")
    if form != "jsonl" and len(ids) != 1:
        raise typer.BadParameter("a document holds one session", param_hint="'--format'")
    with open_source(SourceOptions(url, database_url, tenant, api_key)) as found:
        if form == "jsonl":
            pieces = found.export(ids, agent=agent, status=status, metadata=labels)
        else:
            pieces = found.transcript(ids[0], "html" if form == "html" else "markdown")
        if output is None:
            _write_to_stdout(pieces)
        else:
            write_atomically(output, pieces)
        for session_id in dict.fromkeys(ids):
            warn_if_damaged(found, session_id)


def _write_to_stdout(pieces: Iterable[bytes]) -> None:
    binary = sys.stdout.buffer
    for piece in pieces:
        binary.write(piece)
    binary.flush()
    if is_terminal(sys.stdout):
        say("use --output FILE to write to a file")
