"""`swarmkeep export`: sessions as a file that leaves nothing out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from io import SEEK_END
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import TYPE_CHECKING, Annotated, BinaryIO, cast, get_args

import typer

from swarmkeep.cli.completing import complete_agent, complete_session
from swarmkeep.cli.configure import load_settings
from swarmkeep.cli.opening import open_source, warn_if_damaged
from swarmkeep.cli.options import (
    Commands,
    FirstSession,
    JsonOutput,
    LabelFilter,
    Output,
    Quiet,
    parse_labels,
)
from swarmkeep.cli.output import open_input, write_output
from swarmkeep.cli.sources import FileForm, SourceOptions, Walk
from swarmkeep.cli.terminal import (
    INTERRUPTED,
    Progress,
    Refused,
    TrackedFile,
    end_early,
    is_terminal,
    put,
    put_json,
    say,
    show_progress,
)
from swarmkeep.events.wording import pluralize
from swarmkeep.store.urls import PostgresServer, SqliteFile, locate

if TYPE_CHECKING:
    from swarmkeep.cli.opening import Source
    from swarmkeep_client import ImportReport


commands = Commands()


@commands.add("""
    swarmkeep export order-4711 --output order-4711.jsonl
    swarmkeep export --all --output backup.jsonl
    swarmkeep export --all --from order-4711 --output rest.jsonl    (where Ctrl-C ended it)
    swarmkeep export order-4711 --format html --output order-4711.html
    swarmkeep export --all --metadata team=sales | gzip > sales.jsonl.gz
""")
def export(
    where: SourceOptions,
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
    output: Output = None,
    quiet: Quiet = False,
) -> None:
    """Export sessions as JSON lines: every event as it was recorded, and everything else that an import needs.

    With --format, export one session as a document for people. The output file appears once it is complete. Ctrl-C ends
    an export of a database after the current session: the file is complete up to there, and --from exports the rest.
    Sessions that the archive does not give back are named; then the exit code is 1.
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
    if everything:
        _export_all(where, _Filters(agent, status, labels), first, output, quiet=quiet)
        return
    _export_named(where, ids, form, output)


def _export_named(where: SourceOptions, ids: Sequence[str], form: str, output: Path | None) -> None:
    missing: dict[str, str] = {}
    with open_source(where) as source:
        if form == "jsonl":
            pieces = _note_missing(source.export(ids, agent=None, status=None, metadata={}, walk=Walk()), missing)
        else:
            pieces = source.transcript(ids[0], "html" if form == "html" else "markdown")
        _write(pieces, output)
        for session_id in dict.fromkeys(ids):
            if session_id not in missing:
                warn_if_damaged(source, session_id)
    _end(missing)


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
        missing: dict[str, str] = {}
        _write(count(_note_missing(pieces, missing)), output)
    if asked.is_set() and walk.next is not None:
        exported = pluralize(walk.done, "session was", "sessions were")
        say(f"interrupted: {exported} exported completely; continue with --all --from {walk.next}")
        _end(missing, INTERRUPTED)
    _end(missing)


# The beginning of a line for a session that the archive did not give back.
_MISSING = b'{"record":"missing",'
_MAX_NAMED = 20


def _note_missing(pieces: Iterable[bytes], found: dict[str, str]) -> Iterator[bytes]:
    """The same pieces; notes the sessions that they say are missing, and why."""
    from swarmkeep.events.codec import decode

    begun = b""
    for piece in pieces:
        yield piece
        *lines, begun = (begun + piece).split(b"\n")
        for one in (decode(line) for line in lines if line.startswith(_MISSING)):
            found[one["session_id"]] = one["detail"]
        # Of others there is no need to keep what may be large.
        begun = begun if begun.startswith(_MISSING[: len(begun)]) else b"-"


def _end(missing: Mapping[str, str], code: int = 0) -> None:
    """End with this exit code, or 1 if sessions are missing, which are named."""
    for session_id, why in islice(missing.items(), _MAX_NAMED):
        say(f"session {session_id} is missing: {why}")
    if len(missing) > _MAX_NAMED:
        say(f"and {len(missing) - _MAX_NAMED} more sessions are missing")
    if code or missing:
        raise typer.Exit(code or 1)


def _describe_interruption(output: Path | None) -> str:
    result = "the output is incomplete" if output is None else f"nothing was written to {output}"
    return f"{result}; another export starts from the beginning"


def _write(pieces: Iterable[bytes], output: Path | None) -> None:
    write_output(pieces, output)
    if output is None and is_terminal(sys.stdout):
        say("use --output FILE to write to a file")


# `swarmkeep import`: sessions from a file, if all of it proves to be sound.

_MAX_SHOWN = 20
_MAX_LISTED = 1_000
_AUTO = "auto"


@commands.add(
    """
    swarmkeep import backup.jsonl --dry-run
    swarmkeep import backup.jsonl
    swarmkeep import order-4711.jsonl --as order-4711-copy
    swarmkeep import conversations.json --agent "Sales Agent" --dry-run
    gunzip -c sales.jsonl.gz | swarmkeep import -
    """,
    name="import",
)
def import_sessions(
    where: SourceOptions,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="The file, or the address of LangGraph's PostgreSQL database; - is standard input."
        ),
    ],
    as_id: Annotated[
        str | None,
        typer.Option("--as", "--id", metavar="NEW_ID", help="The id for the session, if the file has only one."),
    ] = None,
    form: Annotated[
        str,
        typer.Option("--from", metavar="FORMAT", help=f"The format: {', '.join(get_args(FileForm))}, or auto."),
    ] = _AUTO,
    agent: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="For files other than exports: the agent that is to continue.",
            autocompletion=complete_agent,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Verify and check only; record nothing.")] = False,
    as_json: JsonOutput = False,
    quiet: Quiet = False,
) -> None:
    """Import sessions that were exported, or conversations that were kept elsewhere.

    The whole file is verified before anything is recorded. Existing sessions are left as they are, so an interrupted
    import can be repeated; a conversation from elsewhere that has grown since gets what is new.
    """
    if form not in (_AUTO, *get_args(FileForm)):
        raise typer.BadParameter(f"it must be auto, {', '.join(get_args(FileForm))}", param_hint="'--from'")
    with _open_conversations(file, quiet=quiet) as opened:
        chosen = _choose_form(opened, form, agent)
        with _open_target(where, dry_run=dry_run) as source:
            # A server reads it once as it is sent; here it is verified and hashed first, and read again to be recorded.
            is_verified_first = where.server_url is None and not dry_run
            size = _measure(opened) * (3 if is_verified_first else 1)

            def tell(progress: Progress) -> str:
                if dry_run or (is_verified_first and progress.done <= size * 2 // 3):
                    return "nothing was recorded"
                return "what was recorded stays; repeat the import to continue"

            with show_progress("importing", "byte", size, quiet=quiet, on_interrupt=tell) as progress:
                tracked = cast(BinaryIO, TrackedFile(opened, progress))
                report = source.import_sessions(tracked, form=chosen, agent=agent, as_id=as_id, dry_run=dry_run)
    if as_json:
        put_json(report)
    else:
        _put_report(report)
    _end(report.missing)


def _choose_form(file: BinaryIO, form: str, agent: str | None) -> FileForm:
    """The format that was named, or else the one that the file has."""
    from swarmkeep.history.foreign.formats import recognise

    chosen: FileForm = recognise(file) if form == _AUTO else cast(FileForm, form)
    if agent is not None and chosen == "export":
        raise typer.BadParameter("an export already names the active agent; leave --agent out", param_hint="'--agent'")
    return chosen


@contextmanager
def _open_conversations(name: str, *, quiet: bool) -> Iterator[BinaryIO]:
    """Open a file; of a SQLite database whose last changes are in a file beside it, a copy that has these, too; and of
    LangGraph's PostgreSQL database one that has the ends of its threads."""
    import sqlite3

    if name.startswith(_POSTGRES):
        with _copy_checkpoints(name, quiet=quiet) as file:
            yield file
        return
    with open_input(name) as file:
        if not os.path.exists(f"{name}-wal") or not os.path.getsize(f"{name}-wal"):
            yield file
            return
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "copy.db"
        try:
            with (
                closing(sqlite3.connect(f"{Path(name).absolute().as_uri()}?mode=ro", uri=True)) as database,
                closing(sqlite3.connect(copy)) as target,
            ):
                database.backup(target)
        except sqlite3.Error as error:
            raise Refused(f"cannot read {name}: {error}") from None
        with copy.open("rb") as opened:
            yield opened


_POSTGRES = ("postgresql:", "postgres:")


@contextmanager
def _copy_checkpoints(url: str, *, quiet: bool) -> Iterator[BinaryIO]:
    import asyncio

    from swarmkeep.history.foreign.databases import copy_checkpoints

    server = locate(url)
    assert isinstance(server, PostgresServer)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoints.db"
        with show_progress("reading", "thread", quiet=quiet, on_interrupt=lambda _: "nothing was recorded") as progress:
            asyncio.run(copy_checkpoints(server, path, progress.reach))
        with path.open("rb") as opened:
            yield opened


@contextmanager
def _open_target(where: SourceOptions, *, dry_run: bool) -> Iterator[Source]:
    """Open where to import to. A dry run where there is no database is made on an empty one, which is thrown away."""
    if dry_run and where.server_url is None and _is_missing(where):
        with TemporaryDirectory() as folder:
            empty = replace(where, database_url=f"sqlite:///{folder}/empty.db")
            with open_source(empty, writes=True, creates=True) as source:
                yield source
        return
    with open_source(where, writes=True, creates=not dry_run) as source:
        yield source


def _is_missing(where: SourceOptions) -> bool:
    location = locate(load_settings(database_url=where.database_url).database_url)
    return isinstance(location, SqliteFile) and not location.path.exists()


def _measure(file: BinaryIO) -> int:
    size = file.seek(0, SEEK_END)
    file.seek(0)
    return size


def _put_report(report: ImportReport) -> None:
    for session in report.sessions[:_MAX_SHOWN]:
        there = "exists already" if session.outcome == "present" else pluralize(session.seq, "event")
        put(f"{session.id}: {there}{', with what is new' if session.outcome == 'extended' else ''}")
    # What stands in a file twice is listed once, and counts as present.
    listed = len(report.sessions)
    count = listed if listed < _MAX_LISTED else report.imported + report.extended + report.present
    left = count - min(listed, _MAX_SHOWN)
    if left:
        say(f"and {left} more; --json shows up to a thousand")
    if report.format != "export":
        _put_format(report)
    said = "would be imported" if report.dry_run else "imported"
    grown = f"{report.extended} {'would get' if report.dry_run else 'got'} what is new, " if report.extended else ""
    say(f"{pluralize(report.imported, 'session')} {said}, {grown}{report.present} existed already")


def _put_format(report: ImportReport) -> None:
    """Say what the file was read as, and what of it is not taken."""
    from swarmkeep.history.foreign.formats import find_title

    say(f"read as {find_title(report.format)} ({report.format})")
    if report.forks:
        say(f"other branches became {pluralize(report.forks, 'fork')}")
    if report.left_out:
        say(f"not taken: {', '.join(f'{what} ({count})' for what, count in report.left_out.items())}")
