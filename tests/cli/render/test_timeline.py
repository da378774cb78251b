"""A timeline on a terminal: in colour, and broken at its width; elsewhere as plain text."""

from __future__ import annotations

import io
import re
import sys

import pytest
from rich.cells import cell_len

from swarmkeep.cli.commands.replay import TimelinePrinter
from swarmkeep.describe import TimelineEntry
from tests.cli.pseudo_terminal import TtyText

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def make_entry(text: str, seq: int = 7) -> TimelineEntry:
    return TimelineEntry(
        seq=seq, type="message.added", at="2026-11-24T02:23:32.084Z", agent="Sales", speaker="Sales", text=text
    )


def show(patch: pytest.MonkeyPatch, screen: io.StringIO, *entries: TimelineEntry) -> str:
    patch.setenv("TERM", "xterm-256color")
    patch.setenv("COLUMNS", "40")
    patch.delenv("NO_COLOR", raising=False)
    patch.setattr(sys, "stdout", screen)
    printer = TimelinePrinter()
    for entry in entries:
        printer.show(entry)
    return screen.getvalue()


def test_terminal_lines_wrap_with_indentation(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"A lantern for the hut.\nA tent,\tand 寝袋寝袋寝袋寝袋寝袋寝袋寝袋寝袋 {'x' * 30}"
    shown = show(monkeypatch, TtyText(), make_entry(text))
    day, *lines = ESCAPES.sub("", shown).splitlines()
    assert day == "       2026-11-24 UTC"
    assert lines[:2] == ["    7  02:23:32  Sales: A lantern for", "                 the hut."]
    assert all(cell_len(line) <= 40 and line.startswith(" " * 17) for line in lines[1:])
    assert "".join("".join(lines).split()).endswith("寝袋" * 8 + "x" * 30)
    assert "\x1b[1;34mSales\x1b[0m: A lantern" in shown


def test_piped_lines_have_full_length(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = show(monkeypatch, io.StringIO(), make_entry(f"one\n{'x' * 100}"))
    assert shown.splitlines()[1:] == ["    7  02:23:32  Sales: one", " " * 17 + "x" * 100]


def test_long_session_seq_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "1234567  02:23:32  Sales: hello" in ESCAPES.sub(
        "", show(monkeypatch, TtyText(), make_entry("hello", 1234567))
    )


def test_colourless_terminal_has_same_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    coloured = show(monkeypatch, TtyText(), make_entry("A lantern for the hut."))
    monkeypatch.setattr(sys, "stdout", screen := TtyText())
    monkeypatch.setenv("NO_COLOR", "1")
    TimelinePrinter().show(make_entry("A lantern for the hut."))
    assert screen.getvalue() == ESCAPES.sub("", coloured)
