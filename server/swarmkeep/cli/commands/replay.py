"""`swarmkeep replay`: a conversation shown event by event, in colour on a terminal and as plain text elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import takewhile
from typing import Annotated

import typer
from rich.cells import cell_len
from rich.color import ColorSystem
from rich.style import Style
from rich.text import Text

from swarmkeep.cli.opening import open_source, warn_if_damaged
from swarmkeep.cli.options import Commands, JsonOutput, SessionId
from swarmkeep.cli.render import TONE_STYLES, format_change
from swarmkeep.cli.sources import SourceOptions
from swarmkeep.cli.terminal import is_terminal, make_console, put_json, say
from swarmkeep.describe import TimelineEntry, build_timeline, list_figures
from swarmkeep.events.wording import escape_controls, pluralize

StyledPart = tuple[str, str]
StyledLine = list[StyledPart]

# Seq and time, before what happened.
_INDENT = " " * 17
_MIN_TEXT_WIDTH = 10


class TimelinePrinter:
    """Shows entries one below the other: seq, time, and what happened, and in a line of its own where a day begins.

    A terminal has each line broken at its width, below its beginning. Lines are put together here: a table of rich's
    takes longer for each than all the rest of the command.
    """

    def __init__(self) -> None:
        self._day = ""
        self._console = make_console()
        self._has_colours = self._console.color_system is not None and not self._console.legacy_windows
        columns = shutil.get_terminal_size().columns
        self._width = max(columns - len(_INDENT), _MIN_TEXT_WIDTH) if is_terminal(sys.stdout) else None

    def show(self, entry: TimelineEntry) -> None:
        if entry.at[:10] not in ("", self._day):
            self._day = entry.at[:10]
            print(self._paint([(f"{'':7}{self._day} UTC", "dim")]))
        start = (f"{entry.seq:>5}  {entry.at[11:19]:<8}  ", "dim")
        for line in format_lines(entry):
            for row in self._break([(escape_controls(text), style) for text, style in line]):
                print(self._paint([start, *row]).rstrip())
                start = (_INDENT, "")
        sys.stdout.flush()

    def _break(self, line: StyledLine) -> Iterable[StyledLine]:
        """The lines of a line: those of its text, and at a terminal those that its width makes of them."""
        text = "".join(text for text, _ in line)
        if self._width is None:
            return [[(part, "")] for part in text.split("\n")]
        if cell_len(text) <= self._width and "\n" not in text and "\t" not in text:
            return [line]
        rows = Text.assemble(*line).wrap(self._console, self._width, overflow="fold")
        return [[(part.text, str(part.style or "")) for part in row.render(self._console)] for row in rows]

    def _paint(self, line: StyledLine) -> str:
        colours = ColorSystem.STANDARD if self._has_colours else None
        return "".join(Style.parse(style).render(text, color_system=colours) for text, style in line)


def format_lines(entry: TimelineEntry) -> Iterator[StyledLine]:
    """Format an entry line by line, each in parts with their styles."""
    tone = TONE_STYLES[entry.tone]
    first: StyledLine = [(entry.speaker, "bold blue")] if entry.speaker else []
    rest: list[StyledLine] = [[(f"  {call}", "magenta")] for call in entry.calls]
    speaks = entry.type == "message.added" and not entry.headline
    if speaks and entry.text:
        first.append((f": {entry.text}", ""))
    elif entry.headline or speaks:
        headline = entry.headline or ("asks for" if entry.calls else "says nothing")
        first.append((f" {headline}" if first else headline, tone or "dim"))
        if len(rest) == 1 and not entry.text:
            first.append((f" {entry.calls[0]}", "magenta"))
            rest = []
    if first:
        yield first
    if entry.text and not speaks:
        yield [(f"  {entry.text}", tone)]
    yield from rest
    for change in entry.changes:
        yield [(f"  {format_change(change.path, change.before, change.after)}", "green")]
    if figures := list_figures(entry):
        yield [(f"  {' · '.join(figures)}", "dim")]
    if entry.warning:
        yield [(f"  ! {entry.type}: {entry.warning}", "yellow")]


# `swarmkeep replay`: a conversation shown event by event.

commands = Commands()


@commands.add("""
    swarmkeep replay order-4711
    swarmkeep replay order-4711 --at 12
    swarmkeep replay order-4711 --step
    swarmkeep replay order-4711 --json
""")
def replay(
    where: SourceOptions,
    session_id: SessionId,
    at: Annotated[int | None, typer.Option("--at", metavar="SEQ", min=1, help="Only up to this event.")] = None,
    step: Annotated[bool, typer.Option("--step", help="One event per key; q ends it.")] = False,
    as_json: JsonOutput = False,
) -> None:
    """Show a conversation as it happened: who spoke, calls and their results, handoffs, context changes,
    approvals, what it cost, what failed. Nothing is run: it needs no agents, no model and no key.
    """
    if step and as_json:
        raise typer.BadParameter("--step shows one event at a time, --json all at once", param_hint="'--step'")
    with open_source(where) as source:
        warn_if_damaged(source, session_id)
        if at is not None:
            source.session(session_id, at=at)
        events = takewhile(lambda event: at is None or event.seq <= at, source.facts(session_id))
        entries = build_timeline(events)
        if as_json:
            put_json(list(entries))
        else:
            _show_timeline(entries, step=step)


def _show_timeline(entries: Iterable[TimelineEntry], *, step: bool) -> None:

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
