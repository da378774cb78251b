"""A transcript in Markdown that renders alike everywhere: no raw HTML, no links, no markup in what was said."""

from __future__ import annotations

import re

from swarmkeep.describe import TimelineEntry, list_figures
from swarmkeep.events.state import State
from swarmkeep.history.entries import (
    format_change,
    format_time,
    is_message,
    list_closing_facts,
    show_controls,
    summarize,
)

_MARKUP = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>&#|~!$"})
# What begins a list, a heading underline, a table, a rule or a quotation where a line begins. It is looked for behind
# line breaks, in all lines at once: a text may have half a million.
_MARKS = "-+=:.)"
_NUMBER = re.compile(r"\n\d{1,9}(?=[.)])")
_INDENTED = re.compile(r"\n(?=[^\S\n])([ \t]*)([^\S\n]*)(\d{1,9}(?=[.)]))?(?=([-+=:.)])?)")
# A set of letters comes first, for which a text is searched fast.
_ADDRESS = re.compile(r"[hfmwHFMW](?<=\b.)(?i:(?<=h)ttps?|(?<=f)tp|(?<=m)ailto|(?<=w)ww)(?=[:.])")


def write_head(session_id: str, warning: str | None) -> str:
    warned = f"\n**Warning:** {escape_line(warning)}\n" if warning else ""
    return f"# Session {escape_line(session_id)}\n\nAll times are UTC.\n{warned}"


def write_entry(entry: TimelineEntry) -> str:
    headline, calls = (entry.headline, entry.calls) if is_message(entry) else summarize(entry)
    parts = ["\n", _write_heading(entry, headline)]
    if entry.warning:
        parts.append(f"\n**Warning:** {escape_line(entry.warning)}\n")
    if entry.text:
        is_result = is_message(entry) and headline
        parts.append(f"\n{fence_text(entry.text) if is_result else quote_text(entry.text)}")
    parts += [f"\n{fence_text(call)}" for call in calls]
    for change in entry.changes:
        path, before, after = format_change(change)
        parts.append(f"\n{fence_text(f'{path}: {before} → {after}')}")
    return "".join(parts)


def _write_heading(entry: TimelineEntry, headline: str) -> str:
    took = show_controls(", ".join(list_figures(entry)))
    tail = f"{format_time(entry.at)}, event {entry.seq}" + (f", {took}" if took else "")
    said = " ".join(escape_line(part) for part in (entry.speaker, headline) if part)
    if is_message(entry):
        return f"## {said}\n\n*{escape_line(tail)}*\n"
    return f"*{said}* — {escape_line(tail)}\n"


def write_foot(session_id: str, state: State) -> str:
    rows = "".join(f"| {escape_line(name)} | {escape_line(value)} |\n" for name, value in list_closing_facts(state))
    return f"\n---\n\n| Session | {escape_line(session_id)} |\n|---|---|\n{rows}"


def escape_line(text: str) -> str:
    """Text on one line, none of which is markup."""
    return _escape_markup(" ".join(show_controls(text).split()))[1:]


def _escape_markup(text: str) -> str:
    """Lines with a line break before each."""
    # Addresses become links by themselves in many readers; a word joiner is not seen, and keeps them text.
    text = "\n" + _ADDRESS.sub("\\g<0>\u2060", text.translate(_MARKUP))
    for mark in _MARKS:
        text = text.replace(f"\n{mark}", f"\n\\{mark}")
    return _NUMBER.sub(r"\g<0>\\", text)


def quote_text(text: str) -> str:
    """Text as a quotation, line by line."""
    lines = "\n".join([line.rstrip() for line in show_controls(text).split("\n")])
    quoted = _INDENTED.sub(_write_indent, _escape_markup(lines)).replace("\n", "  \n> ").replace(">   \n", ">  \n")
    return f"{quoted[3:].rstrip()}\n"


def _write_indent(found: re.Match[str]) -> str:
    blanks, others, number, mark = found.groups("")
    # More than three blanks would begin a block of code.
    return "\n" + "\u00a0" * len(blanks.expandtabs(4)) + others + number + ("\\" if mark else "")


def fence_text(text: str) -> str:
    """Text as a block of code that nothing in it can end."""
    body = show_controls(text)
    longest = max((len(run) for run in re.findall(r"`+", body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{body}\n{fence}\n"
