"""A transcript in Markdown that renders alike everywhere: no raw HTML, no links, no markup in what was said."""

from __future__ import annotations

import re

from swarmkeep.audit.narrate import Scene
from swarmkeep.audit.transcript_text import closing, figures, in_short, is_said, plain, sides, when
from swarmkeep.domain.state import State

_MARKUP = re.compile(r"[\\`*_\[\]<>&#|~!$]")
# What begins a list, a heading underline, a table, a rule or a quotation where a line begins.
_AT_START = re.compile(r"^(\s*(?:\d{1,9}(?=[.)]))?)([-+=:.)])")
_ADDRESS = re.compile(r"(?i)\b(https?|ftp|mailto|www)(:|\.)")


def begin(session_id: str, warning: str | None) -> str:
    warned = f"\n**Warning:** {escaped(warning)}\n" if warning else ""
    return f"# Session {escaped(session_id)}\n\nAll times are UTC.\n{warned}"


def shown(scene: Scene) -> str:
    headline, calls = (scene.headline, scene.calls) if is_said(scene) else in_short(scene)
    parts = ["\n", _heading(scene, headline)]
    if scene.warning:
        parts.append(f"\n**Warning:** {escaped(scene.warning)}\n")
    if scene.text:
        is_result = is_said(scene) and headline
        parts.append(f"\n{fenced(scene.text) if is_result else quoted(scene.text)}")
    parts += [f"\n{fenced(call)}" for call in calls]
    for change in scene.changes:
        path, before, after = sides(change)
        parts.append(f"\n{fenced(f'{path}: {before} → {after}')}")
    return "".join(parts)


def _heading(scene: Scene, headline: str) -> str:
    took = figures(scene)
    tail = f"{when(scene.at)}, event {scene.seq}" + (f", {took}" if took else "")
    said = " ".join(escaped(part) for part in (scene.speaker, headline) if part)
    if is_said(scene):
        return f"## {said}\n\n*{escaped(tail)}*\n"
    return f"*{said}* — {escaped(tail)}\n"


def end(session_id: str, state: State) -> str:
    rows = "".join(f"| {escaped(name)} | {escaped(value)} |\n" for name, value in closing(state))
    return f"\n---\n\n| Session | {escaped(session_id)} |\n|---|---|\n{rows}"


def escaped(text: str) -> str:
    """Text on one line, none of which is markup."""
    return _escaped(" ".join(plain(text).split()))


def _escaped(line: str) -> str:
    line = _MARKUP.sub(lambda found: f"\\{found[0]}", line)
    # Addresses become links by themselves in many readers; a word joiner is not seen, and keeps them text.
    line = _ADDRESS.sub("\\1\u2060\\2", line)
    return _AT_START.sub(r"\1\\\2", line)


def quoted(text: str) -> str:
    """Text as a quotation, line by line."""
    lines = []
    for line in plain(text).split("\n"):
        body = line.lstrip(" \t")
        # More than three blanks would begin a block of code.
        indent = "\u00a0" * len(line[: len(line) - len(body)].expandtabs(4))
        lines.append(f"> {indent}{_escaped(body)}".rstrip())
    return "  \n".join(lines) + "\n"


def fenced(text: str) -> str:
    """Text as a block of code that nothing in it can end."""
    body = plain(text)
    longest = max((len(run) for run in re.findall(r"`+", body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{body}\n{fence}\n"
