"""The timeline of a conversation on the terminal: in colour there, and the same as plain text elsewhere."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from swarmkeep.audit.transcript.entry import TimelineEntry
from swarmkeep.cli.render.changes import format_change
from swarmkeep.cli.terminal import escape_controls, has_colours, is_terminal

StyledPart = tuple[str, str]
StyledLine = list[StyledPart]

_TONE_STYLES = {"plain": "", "good": "green", "notice": "cyan", "bad": "red"}


class TimelinePrinter:
    """Shows scenes one below the other: seq, time, and what happened."""

    def __init__(self) -> None:
        self._terminal = is_terminal(sys.stdout)
        self._console = Console(
            file=sys.stdout,
            color_system="auto" if has_colours(sys.stdout) else None,
            width=shutil.get_terminal_size().columns if self._terminal else None,
            highlight=False,
            markup=False,
            emoji=False,
        )

    def show(self, scene: TimelineEntry) -> None:
        lines = list(format_lines(scene))
        if self._terminal:
            self._console.print(_build_row(scene, lines))
        else:
            _print_plain(scene, lines)
        sys.stdout.flush()


def _build_row(scene: TimelineEntry, lines: list[StyledLine]) -> Table:
    row = Table.grid(padding=(0, 2))
    row.add_column(justify="right", style="dim", no_wrap=True, width=5)
    row.add_column(style="dim", no_wrap=True, width=8)
    row.add_column(overflow="fold")
    told = Text("\n").join(Text.assemble(*((escape_controls(text), style) for text, style in line)) for line in lines)
    row.add_row(str(scene.seq), scene.at[11:19], told)
    return row


def _print_plain(scene: TimelineEntry, lines: list[StyledLine]) -> None:
    indent = " " * 17
    for number, line in enumerate(lines):
        start = f"{scene.seq:>5}  {scene.at[11:19]:<8}  " if number == 0 else indent
        text = escape_controls("".join(text for text, _ in line))
        print((start + text.replace("\n", f"\n{indent}")).rstrip())


def format_lines(scene: TimelineEntry) -> Iterator[StyledLine]:
    """What is said of a scene, line by line, each in parts with their styles."""
    tone = _TONE_STYLES[scene.tone]
    first: StyledLine = [(scene.speaker, "bold blue")] if scene.speaker else []
    rest: list[StyledLine] = [[(f"  {call}", "magenta")] for call in scene.calls]
    speaks = scene.type == "message.added" and not scene.headline
    if speaks and scene.text:
        first.append((f": {scene.text}", ""))
    elif scene.headline or speaks:
        headline = scene.headline or ("asks for" if scene.calls else "says nothing")
        first.append((f" {headline}" if first else headline, tone or "dim"))
        if len(rest) == 1 and not scene.text:
            first.append((f" {scene.calls[0]}", "magenta"))
            rest = []
    if first:
        yield first
    if scene.text and not speaks:
        yield [(f"  {scene.text}", tone)]
    yield from rest
    for change in scene.changes:
        yield [(f"  {format_change(change.path, change.before, change.after)}", "green")]
    if figures := format_figures(scene):
        yield [(f"  {figures}", "dim")]
    if scene.warning:
        yield [(f"  ! {scene.type}: {scene.warning}", "yellow")]


def format_figures(scene: TimelineEntry) -> str:
    """What it cost: the model, tokens, and time."""
    parts = [scene.model] if scene.model else []
    usage = scene.usage
    if usage is not None and usage.total_tokens:
        parts.append(f"{usage.prompt_tokens} + {usage.completion_tokens} tokens")
    if usage is not None and usage.model_calls > 1:
        parts.append(f"{usage.model_calls} model calls")
    if scene.duration_ms is not None:
        parts.append(
            f"{scene.duration_ms / 1000:.1f} s" if scene.duration_ms >= 1000 else f"{scene.duration_ms:.0f} ms"
        )
    return " · ".join(parts)
