"""A transcript as one page of HTML: no script, no link, no image, nothing from outside; light or dark as one likes."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

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

CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

# Longer results are folded.
_FOLD_ABOVE_CHARACTERS = 1200

_STYLE = """\
:root{color-scheme:light dark;--ink:#1c1e21;--soft:#5b6470;--paper:#fbfaf8;--card:#fff;--line:#dedbd5;--user:#e8f0fb;
--good:#2c6e49;--notice:#8a5a00;--bad:#a82a2a}
@media(prefers-color-scheme:dark){:root{--ink:#e6e6e3;--soft:#a2a9b3;--paper:#16181b;--card:#1f2226;--line:#363b42;
--user:#1e2c40;--good:#7fcf9f;--notice:#e0b050;--bad:#f08c8c}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main,header,footer{max-width:48rem;margin:0 auto;padding:1rem}
h1{font-size:1.4rem;margin:1rem 0 0;overflow-wrap:anywhere}
p{margin:.25rem 0}
.soft,time,.took{color:var(--soft);font-size:.8rem}
article{background:var(--card);border:1px solid var(--line);border-radius:.6rem;margin:.75rem 0;padding:.6rem .9rem}
article.user{background:var(--user);margin-left:2.5rem}
article.tool{margin-right:2.5rem;border-style:dashed}
article h2{display:flex;flex-wrap:wrap;gap:.25rem .6rem;align-items:baseline;font-size:1rem;margin:0 0 .25rem}
article h2 bdi{overflow-wrap:anywhere}
article h2 span,article h2 time{font-weight:400}
.said,pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.25rem 0;unicode-bidi:plaintext}
pre{font:.85rem/1.45 ui-monospace,monospace;background:var(--paper);border:1px solid var(--line);border-radius:.4rem;
padding:.4rem .6rem}
.event time::before{content:"· "}.event .took::before{content:"· "}
.event{color:var(--soft);font-size:.875rem;margin:.35rem .9rem;overflow-wrap:anywhere}
.good{color:var(--good)}.notice{color:var(--notice)}.bad,.warning{color:var(--bad)}
summary{cursor:pointer;color:var(--soft);font-size:.875rem}
table{border-collapse:collapse;width:100%;font-size:.875rem}
th,td{text-align:left;vertical-align:top;padding:.25rem .5rem .25rem 0;border-top:1px solid var(--line);
overflow-wrap:anywhere}
th{font-weight:600;white-space:nowrap}
footer{border-top:1px solid var(--line)}
@media print{article{break-inside:avoid}}
@media(max-width:32rem){article.user{margin-left:.75rem}article.tool{margin-right:.75rem}}
"""


def write_head(session_id: str, warning: str | None) -> str:
    title = _escape_text(f"Session {session_id}")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(CONTENT_SECURITY_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{_STYLE}</style>\n</head>\n<body>\n"
        f'<header>\n<h1>{title}</h1>\n<p class="soft">All times are UTC.</p>\n'
        f"{_write_warning(warning)}</header>\n<main>\n"
    )


def write_entry(entry: TimelineEntry) -> str:
    return _write_message(entry) if is_message(entry) else _write_event(entry)


def write_foot(session_id: str, state: State) -> str:
    rows = "".join(
        f'<tr><th scope="row">{_escape_text(name)}</th><td>{_escape_text(value)}</td></tr>\n'
        for name, value in list_closing_facts(state)
    )
    return f"</main>\n<footer>\n<table>\n{rows}</table>\n</footer>\n</body>\n</html>\n"


def _write_message(entry: TimelineEntry) -> str:
    kind = "user" if entry.speaker == "user" else "tool" if entry.headline else "agent"
    headline = f' <span class="{entry.tone}">{_escape_text(entry.headline)}</span>' if entry.headline else ""
    said = ""
    if entry.text:
        said = (
            f"<pre>{_escape_text(entry.text)}</pre>"
            if kind == "tool"
            else f'<div class="said">{_escape_text(entry.text)}</div>'
        )
        if kind == "tool" and len(entry.text) > _FOLD_ABOVE_CHARACTERS:
            said = f"<details><summary>{len(entry.text)} characters</summary>{said}</details>"
    return (
        f'<article class="{kind}">\n<h2><bdi>{_escape_text(entry.speaker)}</bdi>{headline} {_write_place(entry)}</h2>\n'
        f"{_write_warning(entry.warning)}{said}{_write_calls(entry.calls)}{_write_changes(entry)}\n</article>\n"
    )


def _write_event(entry: TimelineEntry) -> str:
    speaker = f"<bdi>{_escape_text(entry.speaker)}</bdi> " if entry.speaker else ""
    text = f'<div class="said">{_escape_text(entry.text)}</div>' if entry.text else ""
    headline, calls = summarize(entry)
    return (
        f'<div class="event">{speaker}<span class="{entry.tone}">{_escape_text(headline)}</span> '
        f"{_write_place(entry)}"
        f"{_write_warning(entry.warning)}{text}{_write_calls(calls)}{_write_changes(entry)}</div>\n"
    )


def _write_place(entry: TimelineEntry) -> str:
    took = show_controls(", ".join(list_figures(entry)))
    return f"<time>{_escape_text(format_time(entry.at))}, event {entry.seq}</time>" + (
        f' <span class="took">{_escape_text(took)}</span>' if took else ""
    )


def _write_calls(calls: Iterable[str]) -> str:
    return "".join(f"<pre>{_escape_text(call)}</pre>" for call in calls)


def _write_warning(warning: str | None) -> str:
    return f'<p class="warning">{_escape_text(warning)}</p>\n' if warning else ""


def _write_changes(entry: TimelineEntry) -> str:
    if not entry.changes:
        return ""
    rows = "".join(
        '<tr><th scope="row">{}</th><td>{}</td><td>{}</td></tr>'.format(*map(_escape_text, format_change(change)))
        for change in entry.changes
    )
    return f"<table>{rows}</table>"


def _escape_text(text: str) -> str:
    return escape(show_controls(text))
