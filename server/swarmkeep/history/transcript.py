"""A session as a document for people: Markdown, or a page of HTML that needs nothing else.

Every message is shown as text and never as markup: a transcript of a hostile conversation is a dull document.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, NamedTuple

from msgspec import UNSET

from swarmkeep.describe import Change, TimelineEntry, build_entry, format_tokens, list_figures
from swarmkeep.events.codec import encode_text, replace_surrogates
from swarmkeep.events.errors import EventNotFound
from swarmkeep.events.facts import CompactionSummarised, MessageAdded, RecordedEvent
from swarmkeep.events.fold import evolve
from swarmkeep.events.messages import list_text_hashes
from swarmkeep.events.state import State
from swarmkeep.history.verify import Verification, verify
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey, StoreUnavailable
from swarmkeep.store.threads import free_state_aside

# Words and figures of both forms.

# What a reader would obey rather than show, and marks that reorder the text around them.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")


def show_controls(text: str) -> str:
    """The text with everything in it visible; line breaks and tabs stay."""
    whole = text.replace("\r\n", "\n").replace("\r", "\n")
    return str(replace_surrogates(_CONTROLS.sub(_show_control, whole)))


def _show_control(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else f"[U+{code:04X}]"


def is_message(entry: TimelineEntry) -> bool:
    """Tell if the entry is a message or an answer; the others are events in between."""
    return entry.type == "message.added"


def summarize(entry: TimelineEntry) -> tuple[str, tuple[str, ...]]:
    """The line about something that happened, and the calls to show with it.

    Of a tool that starts only the name: the message before has shown the whole call.
    """
    if entry.type == "tool.started" and entry.calls:
        return f"{entry.headline} {entry.calls[0].partition('(')[0]}", ()
    return entry.headline or ("" if entry.speaker else entry.type), entry.calls


def format_time(at: str) -> str:
    """A time as people read it, in UTC."""
    return show_controls(f"{at[:10]} {at[11:19]}")


def format_change(change: Change) -> tuple[str, str, str]:
    """Return the place, the old value and the new one; a side that has nothing is a dash."""
    before, after = (
        "–" if value is UNSET else show_controls(encode_text(replace_surrogates(value)))
        for value in (change.before, change.after)
    )
    return show_controls(change.path) or "/", before, after


Roles = Mapping[str, str]
"""What is known of API keys, by id."""


def list_closing_facts(state: State, roles: Roles) -> list[tuple[str, str]]:
    """List the facts at the end: how far this goes, by what that can be proved, and who the keys were."""
    return [
        ("Status", state.status),
        ("Active agent", show_controls(state.agent)),
        ("Messages", str(state.message_count)),
        ("Model calls", f"{state.usage.model_calls}, {format_tokens(state.usage)}"),
        ("Last event", f"{state.seq}, at {format_time(state.updated_at)} UTC"),
        ("Its hash", state.hash),
        *((name, show_controls(role)) for name, role in roles.items()),
    ]


_VERIFIED = "The session was verified when this was written."


def describe_instructions(event: RecordedEvent, instructions: str | None) -> TimelineEntry:
    """The entry before an answer whose model had other instructions than the agent's last one."""
    return TimelineEntry(
        seq=event.seq,
        at=event.at,
        type="",
        speaker=event.agent,
        headline="has no instructions" if instructions == "" else "has these instructions",
        text=instructions or "",
        warning="they are missing" if instructions is None else "",
    )


# Markdown that renders alike everywhere: no raw HTML, no links, no markup in what was said.

_MARKUP = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>&#|~!$"})
# What begins a list, a heading underline, a table, a rule or a quotation where a line begins. It is looked for behind
# line breaks, in all lines at once: a text may have half a million.
_MARKS = "-+=:.)"
_NUMBER = re.compile(r"\n\d{1,9}(?=[.)])")
_INDENTED = re.compile(r"\n(?=[^\S\n])([ \t]*)([^\S\n]*)(\d{1,9}(?=[.)]))?(?=([-+=:.)])?)")
# A set of letters comes first, for which a text is searched fast.
_ADDRESS = re.compile(r"[hfmwHFMW](?<=\b.)(?i:(?<=h)ttps?|(?<=f)tp|(?<=m)ailto|(?<=w)ww)(?=[:.])")


def write_markdown_head(session_id: str, warning: str | None) -> str:
    warned = f"\n\n**Warning:** {escape_line(warning)}\n" if warning else f" {_VERIFIED}\n"
    return f"# Session {escape_line(session_id)}\n\nAll times are UTC.{warned}"


def write_markdown_entry(entry: TimelineEntry) -> str:
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


def write_markdown_foot(session_id: str, state: State, roles: Roles) -> str:
    facts = list_closing_facts(state, roles)
    rows = "".join(f"| {escape_line(name)} | {escape_line(value)} |\n" for name, value in facts)
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


# One page of HTML: no script, no link, no image, nothing from outside; light or dark as one likes.

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


def write_html_head(session_id: str, warning: str | None) -> str:
    title = _escape_text(f"Session {session_id}")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(CONTENT_SECURITY_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{_STYLE}</style>\n</head>\n<body>\n"
        f'<header>\n<h1>{title}</h1>\n<p class="soft">All times are UTC.{"" if warning else f" {_VERIFIED}"}</p>\n'
        f"{_write_warning(warning)}</header>\n<main>\n"
    )


def write_html_entry(entry: TimelineEntry) -> str:
    return _write_message(entry) if is_message(entry) else _write_event(entry)


def write_html_foot(session_id: str, state: State, roles: Roles) -> str:
    rows = "".join(
        f'<tr><th scope="row">{_escape_text(name)}</th><td>{_escape_text(value)}</td></tr>\n'
        for name, value in list_closing_facts(state, roles)
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


# The document, piece by piece.

TranscriptFormat = Literal["markdown", "html"]
NO_ROLES: Roles = {}
MEDIA_TYPES: dict[TranscriptFormat, str] = {"markdown": "text/markdown", "html": "text/html"}
_PAGE_EVENTS = 50
_PAGE_BYTES = 1_000_000


class _Form(NamedTuple):
    write_head: Callable[[str, str | None], str]
    write_entry: Callable[[TimelineEntry], str]
    write_foot: Callable[[str, State, Roles], str]


_FORMS: dict[TranscriptFormat, _Form] = {
    "markdown": _Form(write_markdown_head, write_markdown_entry, write_markdown_foot),
    "html": _Form(write_html_head, write_html_entry, write_html_foot),
}


async def open_transcript(
    store: SqlStore, key: SessionKey, form: TranscriptFormat, *, at: int | None = None, roles: Roles = NO_ROLES
) -> AsyncGenerator[bytes]:
    """The document, piece by piece: the session now, or as it was after event `at`. It says whether the log verifies,
    and of each API key that did something what is known of it.

    Raises SessionNotFound, and EventNotFound when there is no event `at`.
    """
    # The head row may be damaged, or gone: a log is shown as far as it goes.
    newest = (await store.state(key)).seq
    last = newest if at is None else at
    if not 1 <= last <= newest:
        raise EventNotFound.out_of_range(key.id, newest, last)
    return _write_document(store, key, _FORMS[form], last, describe_damage(await verify(store, key)), roles)


def describe_damage(found: Verification) -> str | None:
    """Describe the damage to the reader of a log that does not verify."""
    if found.valid:
        return None
    first = found.problems[0]
    return f"this session does not verify: {first.detail} ({first.code})"


async def _write_document(
    store: SqlStore, key: SessionKey, form: _Form, last: int, warning: str | None, roles: Roles
) -> AsyncGenerator[bytes]:
    yield _encode(form.write_head(key.id, warning))
    progress = _Progress(State(), {}, set())
    while events := await store.read(
        key, after=progress.state.seq, upto=last, limit=_PAGE_EVENTS, max_bytes=_PAGE_BYTES
    ):
        changed = progress.find_new_instructions(events)
        texts = await store.read_blobs(key, list(set(changed.values()))) if changed else {}
        told = {seq: texts.get(name) for seq, name in changed.items()}
        # Messages may be long, and no other task waits until they are written.
        yield await asyncio.to_thread(_write_page, form, progress, events, told)
    if progress.state.seq < last:
        # No reader is to take this part for all of it.
        raise StoreUnavailable(f"session {key.id!r} was deleted while its transcript was written")
    known = {name: role for name, role in roles.items() if name in progress.actors}
    yield _encode(form.write_foot(key.id, progress.state, known))


@dataclass
class _Progress:
    """How far a document is: the state there, the instructions that each agent had last, and who did something."""

    state: State
    instructions: dict[str, str]
    actors: set[str]

    def find_new_instructions(self, events: Sequence[RecordedEvent]) -> dict[int, str]:
        """The events that were asked for with other instructions than the agent's last answer, with their hashes."""
        found = {}
        for event in events:
            fact = event.fact
            if not isinstance(fact, MessageAdded | CompactionSummarised):
                continue
            for name in list_text_hashes(fact)[:1]:
                if self.instructions.get(event.agent) != name:
                    found[event.seq] = self.instructions[event.agent] = name
        return found


def _write_page(
    form: _Form, progress: _Progress, events: Sequence[RecordedEvent], told: Mapping[int, str | None]
) -> bytes:
    """Write the descriptions of some events; `told` are the instructions to show before some of them."""
    pieces = []
    for event in events:
        if event.seq in told:
            pieces.append(form.write_entry(describe_instructions(event, told[event.seq])))
        progress.actors.add((getattr(event.fact, "by", None) or "").partition(" ")[0])
        before, progress.state = progress.state, evolve(progress.state, event)
        pieces.append(form.write_entry(build_entry(before, event, progress.state)))
    free_state_aside(progress.state)
    return _encode("".join(pieces))


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "replace")
