"""`swarmkeep import`: sessions from a file, if all of it proves to be sound."""

from __future__ import annotations

from io import SEEK_END
from typing import TYPE_CHECKING, Annotated, BinaryIO, cast, get_args

import typer

from swarmkeep.cli.completing import complete_agent
from swarmkeep.cli.input import open_input
from swarmkeep.cli.options import ApiKey, DatabaseUrl, JsonOutput, Quiet, ServerUrl, Tenant
from swarmkeep.cli.progress import Progress, TrackedFile, show_progress
from swarmkeep.cli.sources.opening import open_source
from swarmkeep.cli.sources.options import SourceOptions
from swarmkeep.cli.sources.source import FileForm
from swarmkeep.cli.terminal import put, put_json, say
from swarmkeep.domain.wording import pluralize

if TYPE_CHECKING:
    from swarmkeep_client import ImportReport

_MAX_SHOWN = 20


def register(app: typer.Typer) -> None:
    app.command(
        "import",
        epilog="""
        \b
        Examples:
          swarmkeep import backup.jsonl --dry-run
          swarmkeep import backup.jsonl
          swarmkeep import order-4711.jsonl --as order-4711-copy
          swarmkeep import thread.json --from assistants --agent "Sales Agent"
          gunzip -c sales.jsonl.gz | swarmkeep import -
        """,
    )(import_sessions)


def import_sessions(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file; - is standard input.")],
    as_id: Annotated[
        str | None,
        typer.Option("--as", "--id", metavar="NEW_ID", help="The id for the session, if the file has only one."),
    ] = None,
    form: Annotated[
        str,
        typer.Option("--from", metavar="KIND", help="What the file is: export, chat, swarm or assistants."),
    ] = "export",
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
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Import sessions that were exported, or conversations that were kept elsewhere.

    The whole file is verified before anything is recorded. Existing sessions are left as they are, so an interrupted
    import can be repeated.
    """
    chosen = next((known for known in get_args(FileForm) if known == form), None)
    if chosen is None:
        raise typer.BadParameter(f"it must be one of {', '.join(get_args(FileForm))}", param_hint="'--from'")
    if agent is not None and chosen == "export":
        raise typer.BadParameter("an export already names the active agent; leave --agent out", param_hint="'--agent'")
    where = SourceOptions(url, database_url, tenant, api_key)
    with open_input(file) as opened, open_source(where, writes=True, creates=not dry_run) as source:
        # A server reads it once as it is sent; here it is verified first, and read again to be recorded.
        is_verified_first = where.server_url is None and not dry_run and chosen == "export"
        size = _measure(opened) * (2 if is_verified_first else 1)

        def tell(progress: Progress) -> str:
            if dry_run or (is_verified_first and progress.done <= size // 2):
                return "nothing was recorded"
            return "what was recorded stays; repeat the import to continue"

        with show_progress("importing", "byte", size, quiet=quiet, on_interrupt=tell) as progress:
            tracked = cast(BinaryIO, TrackedFile(opened, progress))
            report = source.import_sessions(tracked, form=chosen, agent=agent, as_id=as_id, dry_run=dry_run)
    if as_json:
        put_json(report)
    else:
        _put_report(report)


def _measure(file: BinaryIO) -> int:
    size = file.seek(0, SEEK_END)
    file.seek(0)
    return size


def _put_report(report: ImportReport) -> None:
    for session in report.sessions[:_MAX_SHOWN]:
        there = "exists already" if session.outcome == "present" else pluralize(session.seq, "event")
        put(f"{session.id}: {there}")
    left = report.imported + report.present - min(len(report.sessions), _MAX_SHOWN)
    if left:
        say(f"and {left} more; --json shows up to a thousand")
    said = "would be imported" if report.dry_run else "imported"
    say(f"{pluralize(report.imported, 'session')} {said}, {report.present} existed already")
