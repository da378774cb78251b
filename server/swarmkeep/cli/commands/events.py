"""`swarmkeep events`: the log of a session, as it is or as it grows."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from swarmkeep.cli.commands.verify import warn_if_damaged
from swarmkeep.cli.sources.source import ApiKey, DatabaseUrl, ServerUrl, SessionId, SourceOptions, Tenant, open_source
from swarmkeep.cli.terminal import is_terminal, put, put_json, put_json_line

if TYPE_CHECKING:
    from swarmkeep_client import Event


def register(app: typer.Typer) -> None:
    app.command(
        "events",
        short_help="Show the events of a session.",
        epilog="""
        \b
        Examples:
          swarmkeep events order-4711
          swarmkeep events order-4711 --follow
          swarmkeep events order-4711 --after 40 --type handoff.made --type context.updated
          swarmkeep events order-4711 --json
        """,
    )(events)


def events(
    session_id: SessionId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Then show each new event as it is recorded, until Ctrl-C.")
    ] = False,
    after: Annotated[int, typer.Option("--after", metavar="SEQ", min=0, help="Only those after this one.")] = 0,
    types: Annotated[
        list[str] | None, typer.Option("--type", metavar="TYPE", help="Only this type; may be given again.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: a list, or with --follow one event per line.")
    ] = False,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Show the events of a session: seq, time, type, agent and what each says."""
    with open_source(SourceOptions(url, database_url, tenant, api_key)) as found:
        chosen = tuple(types or ())
        if not follow:
            warn_if_damaged(found, session_id)
            recorded = found.events(session_id, after=after, types=chosen)
            if as_json:
                put_json(list(recorded))
                return
            for event in recorded:
                put(format_event_line(event))
            return
        for event in found.follow(session_id, after=after, types=chosen):
            if as_json:
                put_json_line(event)
            else:
                put(format_event_line(event))


def format_event_line(event: Event, *, clock_only: bool = False) -> str:
    """An event as a line of the timeline; `clock_only` leaves the date out. Times are UTC."""
    from swarmkeep.cli.render.event_summary import MAX_LENGTH, summarize_event

    time = event.at[11:23] if clock_only else f"{event.at[:23]}Z"
    start = f"{event.seq:>4}  {time}  {event.agent or '':<24}  {event.type:<18}  "
    width = shutil.get_terminal_size((len(start) + MAX_LENGTH, 24)).columns if is_terminal(sys.stdout) else 0
    length = max(width - len(start), 40) if width else MAX_LENGTH
    return (start + summarize_event(event, length)).rstrip()
