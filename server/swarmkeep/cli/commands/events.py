"""`swarmkeep events`: the log of a session, as it is or as it grows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from swarmkeep.cli.completing import complete_run
from swarmkeep.cli.options import ApiKey, DatabaseUrl, ServerUrl, SessionId, Tenant
from swarmkeep.cli.sources.damage import warn_if_damaged
from swarmkeep.cli.sources.opening import open_source
from swarmkeep.cli.sources.options import SourceOptions
from swarmkeep.cli.terminal import put, put_json, put_json_line, say

if TYPE_CHECKING:
    from swarmkeep.domain.envelope import RecordedEvent


def register(app: typer.Typer) -> None:
    app.command(
        "events",
        epilog="""
        \b
        Examples:
          swarmkeep events order-4711
          swarmkeep events order-4711 --follow
          swarmkeep events order-4711 --run run_0123456789abcdef
          swarmkeep events order-4711 --after 40 --type handoff.made --type context.updated
          swarmkeep events order-4711 --json
        """,
    )(events)


def events(
    session_id: SessionId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Then show each new event as it is recorded, until Ctrl-C.")
    ] = False,
    after: Annotated[int, typer.Option("--after", metavar="SEQ", min=0, help="Only those after this seq.")] = 0,
    types: Annotated[
        list[str] | None, typer.Option("--type", metavar="TYPE", help="Only this type; may be given again.")
    ] = None,
    run_id: Annotated[
        str | None, typer.Option("--run", metavar="ID", help="Only those of this run.", autocompletion=complete_run)
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: a list, or with --follow one event per line.")
    ] = False,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Show the events of a session: seq, time, type, agent and content."""
    from swarmkeep.cli.render.event_summary import format_event_line
    from swarmkeep.cli.sources.conversion import to_client_event

    with open_source(SourceOptions(url, database_url, tenant, api_key)) as source:
        chosen = tuple(types or ())
        if not follow:
            warn_if_damaged(source, session_id)
            recorded = _choose(source.events(session_id, after=after, types=chosen), run_id)
            if as_json:
                put_json([*map(to_client_event, recorded)])
                return
            is_empty = True
            for event in recorded:
                put(format_event_line(event))
                is_empty = False
            if is_empty:
                say("there are no such events")
            return
        for event in _choose(source.follow(session_id, after=after, types=chosen), run_id):
            if as_json:
                put_json_line(to_client_event(event))
            else:
                put(format_event_line(event))


def _choose(recorded: Iterable[RecordedEvent], run_id: str | None) -> Iterator[RecordedEvent]:
    return (event for event in recorded if run_id in (None, event.run_id))
