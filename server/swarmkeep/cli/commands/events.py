"""`swarmkeep events`, `feed`, `blob`, `request`: the log of a session, or of all of them, as it is or as it grows."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from swarmkeep.cli.completing import complete_run
from swarmkeep.cli.opening import open_source, warn_if_damaged
from swarmkeep.cli.options import (
    Commands,
    EventAgents,
    EventTypes,
    Follow,
    LabelFilter,
    Output,
    SessionId,
    parse_labels,
)
from swarmkeep.cli.output import write_output
from swarmkeep.cli.sources import FeedChoice, SourceOptions
from swarmkeep.cli.terminal import is_terminal, put, put_bytes, put_json, put_json_line, put_rows, say
from swarmkeep.events.codec import decode

if TYPE_CHECKING:
    from swarmkeep.cli.opening import Source
    from swarmkeep_client import Event


commands = Commands()


@commands.add("""
    swarmkeep events order-4711
    swarmkeep events order-4711 --follow
    swarmkeep events order-4711 --run run_0123456789abcdef
    swarmkeep events order-4711 --after 40 --type handoff.made --type context.updated
    swarmkeep events order-4711 --json
""")
def events(
    where: SourceOptions,
    session_id: SessionId,
    follow: Follow = False,
    after: Annotated[int, typer.Option("--after", metavar="SEQ", min=0, help="Only those after this seq.")] = 0,
    types: EventTypes = None,
    run_id: Annotated[
        str | None, typer.Option("--run", metavar="ID", help="Only those of this run.", autocompletion=complete_run)
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: a list, or with --follow one event per line.")
    ] = False,
) -> None:
    """Show the events of a session: seq, time, type, agent and content."""
    from swarmkeep.cli.render import format_event_line

    with open_source(where) as source:
        chosen = tuple(types or ())
        if not follow:
            warn_if_damaged(source, session_id)
            recorded = _choose_run(source.events(session_id, after=after, types=chosen), run_id)
            if as_json:
                put_json([*recorded])
                return
        else:
            recorded = _choose_run(source.follow(session_id, after=after, types=chosen), run_id)
        is_empty = True
        for event in recorded:
            put_json_line(event) if as_json else put(format_event_line(event))
            is_empty = False
        if is_empty:
            say("there are no such events")


def _choose_run(events: Iterable[Event], run_id: str | None) -> Iterator[Event]:
    return (event for event in events if run_id in (None, event.run_id))


# `swarmkeep blob`: a file or picture out of a session.


@commands.add("""
    swarmkeep blob order-4711 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 -o cat.png
""")
def blob(
    where: SourceOptions,
    session_id: SessionId,
    sha256: Annotated[str, typer.Argument(metavar="HASH", help="The `sha256` that the message names: 64 hex digits.")],
    output: Output = None,
) -> None:
    """Get the content of a file or picture in a session's message.

    `swarmkeep events ID --json` shows the hashes. The output file appears once it is complete.
    """
    if not re.fullmatch(r"[0-9a-f]{64}", sha256, re.ASCII):
        raise typer.BadParameter("it must be 64 hex digits, in lower case", param_hint="'HASH'")
    if output is None and is_terminal(sys.stdout):
        raise typer.BadParameter(
            "the content is not printed to a terminal: give -o FILE, or pipe it to another program", param_hint="'-o'"
        )
    with open_source(where) as source:
        content = source.blob(session_id, sha256)
    write_output([content], output)


# `swarmkeep request`: what a model was sent.


@commands.add("""
    swarmkeep request order-4711 4
    swarmkeep request order-4711 4 --raw | sha256sum
    swarmkeep request order-4711 4 --redacted
""")
def request(
    where: SourceOptions,
    session_id: SessionId,
    seq: Annotated[int, typer.Argument(metavar="SEQ", min=1, help="The event that is the model's answer.")],
    raw: Annotated[
        bool, typer.Option("--raw", help="The exact bytes that were sent, instead of indented JSON.")
    ] = False,
    redacted: Annotated[
        bool,
        typer.Option(
            "--redacted", help="What is left of a request of which a part was redacted or is lost, marked as inexact."
        ),
    ] = False,
) -> None:
    """Show the exact Chat Completions request behind a model's answer, rebuilt from the log."""
    if raw and redacted:
        raise typer.BadParameter("of a request that is not exact there are no exact bytes", param_hint="'--redacted'")
    with open_source(where) as source:
        body = source.request(session_id, seq, redacted=redacted)
    if raw:
        put_bytes([body])
        return
    shown = decode(body)
    put_json(shown)
    if redacted and not shown["exact"]:
        say(f"{shown['note']}: {'; '.join(shown['missing'])}")


# `swarmkeep feed`: the events of all sessions, as they are or as they come, and how far their readers are.


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
    confirmed = ""
    for page in source.feed(choice, follow=follow):
        for event in page.data:
            if as_json:
                put_json_line(event)
            else:
                put(f"{event.session_id}  {format_event_line(event)}")
        count += len(page.data)
        # Also where none of its events is wanted: they are not looked through again.
        if choice.consumer is not None and page.next_cursor != confirmed:
            confirmed = page.next_cursor
            source.confirm(choice.consumer, confirmed)
    if not count and not as_json:
        say("there are no such events")
