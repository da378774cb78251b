"""`swarmkeep export`: sessions as a file that leaves nothing out."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Annotated

import typer

from swarmkeep.cli.completing import complete_agent, complete_session
from swarmkeep.cli.options import (
    ApiKey,
    DatabaseUrl,
    FirstSession,
    LabelFilter,
    Quiet,
    ServerUrl,
    Tenant,
    parse_labels,
)
from swarmkeep.cli.output import write_atomically
from swarmkeep.cli.progress import INTERRUPTED, end_early, show_progress
from swarmkeep.cli.sources.damage import warn_if_damaged
from swarmkeep.cli.sources.opening import open_source
from swarmkeep.cli.sources.options import SourceOptions
from swarmkeep.cli.sources.source import Walk
from swarmkeep.cli.terminal import is_terminal, put_bytes, say
from swarmkeep.domain.wording import pluralize


def register(app: typer.Typer) -> None:
    app.command(
        "export",
        epilog="""
        \b
        Examples:
          swarmkeep export order-4711 --output order-4711.jsonl
          swarmkeep export --all --output backup.jsonl
          swarmkeep export --all --from order-4711 --output rest.jsonl    (where Ctrl-C ended it)
          swarmkeep export order-4711 --format html --output order-4711.html
          swarmkeep export --all --metadata team=sales | gzip > sales.jsonl.gz
        """,
    )(export)


def export(
    session_ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="The sessions' ids.", autocompletion=complete_session)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All sessions, or those that the filters select.")] = False,
    agent: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="With --all: only those with this active agent.", autocompletion=complete_agent
        ),
    ] = None,
    status: Annotated[
        str | None, typer.Option(metavar="STATUS", help="With --all: only those that are idle, running or waiting.")
    ] = None,
    metadata: LabelFilter = None,
    form: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="jsonl for an import; markdown or html for people.")
    ] = "jsonl",
    first: FirstSession = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here instead of standard output.")
    ] = None,
    quiet: Quiet = False,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Export sessions as JSON lines: every event as it was recorded, and everything else that an import needs.

    With --format, export one session as a document for people. The output file appears once it is complete. Ctrl-C ends
    an export of a database after the current session: the file is complete up to there, and --from exports the rest.
    """
    ids, labels = session_ids or [], parse_labels(metadata)
    if bool(ids) == everything:
        raise typer.BadParameter("name sessions, or give --all", param_hint="'ID'")
    if ids and (agent or status or labels):
        raise typer.BadParameter("--agent, --status and --metadata need --all", param_hint="'ID'")
    if status not in (None, "idle", "running", "waiting"):
        raise typer.BadParameter("it must be idle, running or waiting", param_hint="'--status'")
    if form not in ("jsonl", "markdown", "html"):
        raise typer.BadParameter("it must be jsonl, markdown or html", param_hint="'--format'")
    if form != "jsonl" and len(ids) != 1:
        raise typer.BadParameter("a document has one session; name exactly one", param_hint="'--format'")
    if first is not None and not everything:
        raise typer.BadParameter("it needs --all", param_hint="'--from'")
    where = SourceOptions(url, database_url, tenant, api_key)
    if everything:
        _export_all(where, _Filters(agent, status, labels), first, output, quiet=quiet)
        return
    with open_source(where) as source:
        if form == "jsonl":
            pieces = source.export(ids, agent=None, status=None, metadata={}, walk=Walk())
        else:
            pieces = source.transcript(ids[0], "html" if form == "html" else "markdown")
        _write(pieces, output)
        for session_id in dict.fromkeys(ids):
            warn_if_damaged(source, session_id)


@dataclass(frozen=True)
class _Filters:
    agent: str | None
    status: str | None
    metadata: dict[str, str]


def _export_all(
    where: SourceOptions, filters: _Filters, first: str | None, output: Path | None, *, quiet: bool
) -> None:
    with ExitStack() as stack:
        # A server's export cannot be made whole in the middle of it.
        asked = stack.enter_context(end_early()) if where.server_url is None else Event()
        found = stack.enter_context(open_source(where))
        walk = Walk(first, asked.is_set)
        filtered = bool(first or filters.agent or filters.status or filters.metadata)
        progress = stack.enter_context(
            show_progress(
                "exporting",
                "session" if where.server_url is None else "byte",
                None if filtered or where.server_url is not None else found.count_sessions,
                quiet=quiet or (output is None and is_terminal(sys.stdout)),
                on_interrupt=lambda _: _describe_interruption(output),
            )
        )

        def count(pieces: Iterable[bytes]) -> Iterator[bytes]:
            for piece in pieces:
                yield piece
                progress.done = walk.done if where.server_url is None else progress.done + len(piece)

        pieces = found.export([], agent=filters.agent, status=filters.status, metadata=filters.metadata, walk=walk)
        _write(count(pieces), output)
    if asked.is_set() and walk.next is not None:
        exported = pluralize(walk.done, "session was", "sessions were")
        say(f"interrupted: {exported} exported completely; continue with --all --from {walk.next}")
        raise typer.Exit(INTERRUPTED)


def _describe_interruption(output: Path | None) -> str:
    result = "the output is incomplete" if output is None else f"nothing was written to {output}"
    return f"{result}; another export starts from the beginning"


def _write(pieces: Iterable[bytes], output: Path | None) -> None:
    if output is None:
        _write_to_stdout(pieces)
    else:
        write_atomically(output, pieces)


def _write_to_stdout(pieces: Iterable[bytes]) -> None:
    put_bytes(pieces)
    if is_terminal(sys.stdout):
        say("use --output FILE to write to a file")
