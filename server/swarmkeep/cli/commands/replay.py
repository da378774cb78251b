"""`swarmkeep replay`: a conversation shown event by event."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated

import typer

from swarmkeep.cli.opening import open_source
from swarmkeep.cli.options import ApiKey, DatabaseUrl, JsonOutput, ServerUrl, SessionId, Tenant
from swarmkeep.cli.sources import SourceOptions, warn_if_damaged
from swarmkeep.cli.terminal import is_terminal, put_json, say
from swarmkeep.events.wording import pluralize

if TYPE_CHECKING:
    from swarmkeep.describe import TimelineEntry


def register(app: typer.Typer) -> None:
    app.command(
        "replay",
        epilog="""
        \b
        Examples:
          swarmkeep replay order-4711
          swarmkeep replay order-4711 --at 12
          swarmkeep replay order-4711 --step
          swarmkeep replay order-4711 --json
        """,
    )(replay)


def replay(
    session_id: SessionId,
    at: Annotated[int | None, typer.Option("--at", metavar="SEQ", min=1, help="Only up to this event.")] = None,
    step: Annotated[bool, typer.Option("--step", help="One event per key; q ends it.")] = False,
    as_json: JsonOutput = False,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Show a conversation as it happened: who spoke, calls and their results, handoffs, context changes,
    approvals, what it cost, what failed. Nothing is run: it needs no agents, no model and no key.
    """
    from swarmkeep.history.entries import build_timeline

    if step and as_json:
        raise typer.BadParameter("--step shows one event at a time, --json all at once", param_hint="'--step'")
    with open_source(SourceOptions(url, database_url, tenant, api_key)) as source:
        warn_if_damaged(source, session_id)
        if at is not None:
            source.session(session_id, at=at)
        events = takewhile(lambda event: at is None or event.seq <= at, source.events(session_id))
        entries = build_timeline(events)
        if as_json:
            put_json(list(entries))
        else:
            _show_timeline(entries, step=step)


def _show_timeline(entries: Iterable[TimelineEntry], *, step: bool) -> None:
    from swarmkeep.cli.timeline import TimelinePrinter

    printer = TimelinePrinter()
    warned = shown = 0
    with _open_keyboard() if step else nullcontext() as press:
        for entry in entries:
            if press is not None and shown and press() in _STOP_KEYS:
                break
            printer.show(entry)
            shown += 1
            warned += bool(entry.warning)
    if warned:
        say(f"warning: {warned} of {pluralize(shown, 'event')} could not be shown in full")


# The end of the input, q, Ctrl-D and Escape.
_STOP_KEYS = ("", "q", "Q", "q\n", "\x04", "\x1b")


@contextmanager
def _open_keyboard() -> Iterator[Callable[[], str]]:
    """Wait for a key; if there is no keyboard, for a line."""
    if not is_terminal(sys.stdin):
        yield sys.stdin.readline
        return
    try:
        import termios
        import tty
    except ImportError:  # not a system with terminals of this kind
        yield typer.getchar
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    # All the while: a key that is pressed between two events would be lost.
    tty.setcbreak(keyboard, termios.TCSADRAIN)
    try:
        yield lambda: os.read(keyboard, 16).decode(errors="replace")
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
