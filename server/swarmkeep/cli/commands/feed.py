"""`swarmkeep feed`: the events of all sessions, as they are or as they come, and how far their readers are."""

from __future__ import annotations

from typing import Annotated

import typer

from swarmkeep.cli.opening import open_source
from swarmkeep.cli.options import Commands, EventAgents, EventTypes, Follow, LabelFilter, parse_labels
from swarmkeep.cli.sources import FeedChoice, Source, SourceOptions
from swarmkeep.cli.terminal import put, put_json, put_json_line, put_rows, say

commands = Commands()


@commands.add("""
    swarmkeep feed --type run.failed
    swarmkeep feed --follow --after end
    swarmkeep feed --consumer warehouse --json >> events.jsonl
    swarmkeep feed --consumers
""")
def feed(
    where: SourceOptions,
    follow: Follow = False,
    after: Annotated[
        str | None, typer.Option("--after", metavar="CURSOR", help="Only those behind this place; `end`: from now on.")
    ] = None,
    types: EventTypes = None,
    agents: EventAgents = None,
    metadata: LabelFilter = None,
    consumer: Annotated[
        str | None,
        typer.Option("--consumer", metavar="NAME", help="Go on from the place kept by this name, and keep it there."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, one event per line, each with its cursor.")
    ] = False,
    consumers: Annotated[
        bool, typer.Option("--consumers", help="List the places that are kept, and how much is left behind each.")
    ] = False,
    forget: Annotated[
        str | None, typer.Option("--forget", metavar="NAME", help="Keep no place by this name any more.")
    ] = None,
) -> None:
    """Show the events of all sessions in one order, in which none is passed over.

    With --consumer the place is kept once events are printed: who is stopped goes on there, and may print the last ones
    again.
    """
    if after is not None and consumer is not None:
        raise typer.BadParameter("a consumer goes on at its own place; leave one out", param_hint="'--after'")
    choice = FeedChoice(after, consumer, tuple(types or ()), tuple(agents or ()), parse_labels(metadata))
    # To read is to publish what was recorded since.
    with open_source(where, writes=True) as source:
        if forget is not None:
            source.forget_consumer(forget)
            say(f"no place is kept for {forget} any more")
        elif consumers:
            _list_consumers(source, as_json)
        else:
            _show(source, choice, follow=follow, as_json=as_json)


def _list_consumers(source: Source, as_json: bool) -> None:
    kept = source.consumers()
    if as_json:
        put_json(kept)
        return
    rows = [(one.name, str(one.lag), one.cursor, one.updated_at) for one in kept]
    put_rows(("CONSUMER", "BEHIND", "CURSOR", "CONFIRMED"), rows, none="no places are kept")


def _show(source: Source, choice: FeedChoice, *, follow: bool, as_json: bool) -> None:
    from swarmkeep.cli.render import format_event_line

    count = 0
    for page in source.feed(choice, follow=follow):
        for event in page:
            if as_json:
                put_json_line(event)
            else:
                put(f"{event.session_id}  {format_event_line(event)}")
        count += len(page)
        if choice.consumer is not None and page:
            source.confirm(choice.consumer, page[-1].cursor)
    if not count and not as_json:
        say("there are no such events")
