"""The timeline of a conversation on the terminal: in colour there, and the same as plain text elsewhere."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from swarmkeep.audit.transcript.entry import TimelineEntry
from swarmkeep.cli.render.changes import format_change
from swarmkeep.cli.render.console import make_console
from swarmkeep.cli.terminal import is_terminal
from swarmkeep.domain.wording import escape_controls

StyledPart = tuple[str, str]
StyledLine = list[StyledPart]

_TONE_STYLES = {"plain": "", "good": "green", "notice": "cyan", "bad": "red"}


class TimelinePrinter:
    """Shows entries one below the other: seq, time, and what happened, and in a line of its own where a day begins."""

    def __init__(self) -> None:
        self._day = ""
        self._terminal = is_terminal(sys.stdout)
        self._console = make_console(width=shutil.get_terminal_size().columns if self._terminal else None)

    def show(self, entry: TimelineEntry) -> None:
        lines = list(format_lines(entry))
        if entry.at[:10] not in ("", self._day):
            self._day = entry.at[:10]
            self._console.print(f"{'':7}{self._day} UTC", style="dim")
        if self._terminal:
            self._console.print(_build_row(entry, lines))
        else:
            _print_plain(entry, lines)
        sys.stdout.flush()


def _build_row(entry: TimelineEntry, lines: list[StyledLine]) -> Table:
    row = Table.grid(padding=(0, 2))
    row.add_column(justify="right", style="dim", no_wrap=True, width=5)
    row.add_column(style="dim", no_wrap=True, width=8)
    row.add_column(overflow="fold")
    told = Text("\n").join(Text.assemble(*((escape_controls(text), style) for text, style in line)) for line in lines)
    row.add_row(str(entry.seq), entry.at[11:19], told)
    return row


def _print_plain(entry: TimelineEntry, lines: list[StyledLine]) -> None:
    indent = " " * 17
    for number, line in enumerate(lines):
        start = f"{entry.seq:>5}  {entry.at[11:19]:<8}  " if number == 0 else indent
        text = escape_controls("".join(text for text, _ in line))
        print((start + text.replace("\n", f"\n{indent}")).rstrip())


def format_lines(entry: TimelineEntry) -> Iterator[StyledLine]:
    """What is said of an entry, line by line, each in parts with their styles."""
    tone = _TONE_STYLES[entry.tone]
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
    if figures := format_figures(entry):
        yield [(f"  {figures}", "dim")]
    if entry.warning:
        yield [(f"  ! {entry.type}: {entry.warning}", "yellow")]


def format_figures(entry: TimelineEntry) -> str:
    """What it cost: the model, tokens, and time."""
    parts = [entry.model] if entry.model else []
    usage = entry.usage
    if usage is not None and usage.total_tokens:
        parts.append(f"{usage.prompt_tokens} + {usage.completion_tokens} tokens")
    if usage is not None and usage.model_calls > 1:
        parts.append(f"{usage.model_calls} model calls")
    if entry.duration_ms is not None:
        parts.append(
            f"{entry.duration_ms / 1000:.1f} s" if entry.duration_ms >= 1000 else f"{entry.duration_ms:.0f} ms"
        )
    return " · ".join(parts)
