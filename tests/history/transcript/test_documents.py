"""Documents for people: whole, readable, and dull however hostile or long the conversation was."""

from __future__ import annotations

from contextlib import aclosing
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from sqlalchemy import text

from swarmkeep.decide.commands import create_session
from swarmkeep.decide.drafts import draft_events
from swarmkeep.describe import Change, TimelineEntry
from swarmkeep.events.codec import digest
from swarmkeep.events.errors import EventNotFound, SessionNotFound
from swarmkeep.events.facts import ApprovalDecided, ApprovalRequested, MessageAdded, RunStarted
from swarmkeep.events.records import CompletionRecord, RequestRecord, RunOptions
from swarmkeep.events.state import State
from swarmkeep.history.transcript import TranscriptFormat, open_transcript, quote_text
from swarmkeep.history.transcript import write_html_entry as as_html
from swarmkeep.history.transcript import write_markdown_entry as as_markdown
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey, StoreUnavailable
from tests.golden.make import FORK, SHOP, fill_store
from tests.support.loop_watch import measure_limit, watch_callbacks

pytestmark = pytest.mark.one_database

REFUND = {"id": "c1", "type": "function", "function": {"name": "refund", "arguments": "{}"}}
HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</pre></div></article><h1>Not the end</h1>",
    '" onmouseover="alert(1)',
    "</title><script src=https://evil.example/x.js></script>",
    "<!-- --!> <![CDATA[ x ]]> <?php ?>",
    "&lt;b&gt; &amp; &#60;script&#62;",
    "[click](javascript:alert(1)) ![x](https://evil.example/pixel.png) <https://evil.example>",
    "https://evil.example/ www.evil.example mailto:a@evil.example",
    "```\n# heading\n```\n~~~\n",
    "> quoted\n- list\n1. one\n1) one\n===\n---\n| a | b |\n|---|---|\n    code\n\ttab",
    "# heading\n## another\n* star\n+ plus\n**bold** _it_ ~~no~~ `code` \\",
    "[ref]: https://evil.example\n\n[ref]",
    "\x00\x1b[31m\u202eabc\u2066 \ud800 \ufeff \u2028 \x85",
    "line one\r\nline two\rline three",
    "$x$ $$y$$ {{ template }} <%= erb %>",
]
TAGS = {
    "html", "head", "meta", "title", "style", "body", "header", "h1", "p", "main", "article", "h2", "bdi", "span",
    "time", "div", "pre", "details", "summary", "table", "tr", "th", "td", "footer",
}  # fmt: skip
ATTRIBUTES = {"lang", "charset", "http-equiv", "content", "name", "class", "scope"}


class Reader(HTMLParser):
    """Collects what a browser would show, and refuses anything that is more than text and boxes."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        assert {name for name, _ in attrs} <= ATTRIBUTES
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    def handle_pi(self, data: str) -> None:
        raise AssertionError(data)


def read_html(text: str) -> str:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader.text


def read_markdown(text: str) -> list[Token]:
    """What a Markdown reader with everything switched on makes of it."""
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(text)
    return [inner for token in tokens for inner in (token, *(token.children or ()))]


def make_entry(text: str, **more: Any) -> TimelineEntry:
    words = {"type": "message.added", "at": "2026-01-02T03:04:05.000006Z", "seq": 7, "speaker": text, "text": text}
    return TimelineEntry(**{**words, "calls": (text,), "model": text, "warning": text, **more})


KINDS = [
    {},
    {"headline": "answers"},
    {"type": "tool.started", "headline": "calls"},
    {"type": "context.updated", "changes": (Change(path="/a", before="<b>", after="**b**"),), "tone": "<x>"},
]


@given(st.text() | st.sampled_from(HOSTILE), st.sampled_from(KINDS))
def test_any_text_is_text(text: str, kind: dict[str, Any]) -> None:
    check_harmless(text, kind)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_text(text: str) -> None:
    for kind in KINDS:
        check_harmless(text, kind)


def check_harmless(text: str, kind: dict[str, Any]) -> None:
    """Neither form of document makes anything of it."""
    read_html(as_html(make_entry(text, **kind)))
    tokens = read_markdown(as_markdown(make_entry(text, **kind)))
    allowed = {
        "heading_open", "heading_close", "paragraph_open", "paragraph_close", "inline", "text", "text_special", "fence",
        "em_open", "em_close", "strong_open", "strong_close", "blockquote_open", "blockquote_close", "hardbreak",
        "softbreak",
    }  # fmt: skip
    assert {token.type for token in tokens} <= allowed
    assert sum(token.type == "heading_open" for token in tokens) == (kind.get("type") is None)
    assert sum(token.type == "em_open" for token in tokens) <= 1
    assert sum(token.type == "blockquote_open" for token in tokens) <= 1


def test_document_loses_no_spoken_text() -> None:
    text = "One <two>\n    three & *four*\n\n1. five"
    shown = read_html(as_html(make_entry(text)))
    assert text in shown
    said = "".join(
        token.content or ("\n" if token.type == "hardbreak" else "")
        for token in read_markdown(as_markdown(make_entry(text, speaker="a", calls=(), model=None, warning="")))
        if token.type in ("text", "text_special", "hardbreak")
    )
    for part in ("One <two>", "three & *four*", "1. five"):
        assert part in said.replace("\u00a0", " ")


async def read_document(store: SqlStore, key: SessionKey, form: TranscriptFormat, **options: Any) -> str:
    return b"".join([piece async for piece in await open_transcript(store, key, form, **options)]).decode()


async def test_every_event_appears_in_documents(store: SqlStore) -> None:
    await fill_store(store)
    for key in (SHOP, FORK):
        last = (await store.state(key)).seq
        page, notes = await read_document(store, key, "html"), await read_document(store, key, "markdown")
        shown = read_html(page)
        assert "http-equiv" in page
        for number in range(1, last + 1):
            assert f"event {number}" in shown
            assert f"event {number}" in notes
        assert (await store.state(key)).hash in shown


@pytest.mark.parametrize("form", ["markdown", "html"])
async def test_document_names_starter_and_approver(store: SqlStore, form: TranscriptFormat) -> None:
    key, name = SessionKey("default", "people"), "Ann <b>*of* desk</b>"
    facts = [
        *create_session("Front", {}, {}, []),
        RunStarted(options=RunOptions(), by=f"key_0123456789abcdef ({name})"),
        MessageAdded(message={"role": "assistant", "content": None, "tool_calls": [REFUND]}),
        ApprovalRequested(tool_call_id="c1", name="refund", arguments="{}"),
        ApprovalDecided(tool_call_id="c1", decision="approve", by="key_fedcba9876543210 (the boss)"),
    ]
    await store.append(key, State(), draft_events("Front", facts, "run_1"))
    document = await read_document(store, key, form)
    shown = read_html(document) if form == "html" else "".join(token.content for token in read_markdown(document))
    assert f"{name} (key_0123456789abcdef) starts a run" in " ".join(shown.split())
    assert "the boss (key_fedcba9876543210) approves" in " ".join(shown.split())


@pytest.mark.parametrize("form", ["markdown", "html"])
async def test_document_has_instructions_and_what_is_known_of_keys(store: SqlStore, form: TranscriptFormat) -> None:
    key, texts = SessionKey("default", "told"), ["Be <b>kind</b>.", "Be brief."]
    facts = [
        *create_session("Front", {}, {}, []),
        RunStarted(options=RunOptions(), by="key_0123456789abcdef (desk)"),
        *(
            MessageAdded(
                message={"role": "assistant", "content": "Hello"},
                completion=CompletionRecord(request=RequestRecord(instructions=digest(texts[number]))),
            )
            for number in (0, 0, 1)
        ),
    ]
    blobs = {digest(one): one for one in texts}
    await store.append(key, State(), draft_events("Front", facts, "run_1"), blobs=blobs)
    roles = {"key_0123456789abcdef": "desk, role run", "key_fedcba9876543210": "another"}
    document = await read_document(store, key, form, roles=roles)
    tokens = [token.content for token in read_markdown(document) if token.type != "inline"]
    shown = " ".join((read_html(document) if form == "html" else "".join(tokens)).split())
    assert "verified when this was written" in shown
    assert [shown.count(text) for text in ("has these instructions", *texts)] == [2, 1, 1]
    assert shown.index(texts[0]) < shown.index("event 4") < shown.index(texts[1])
    assert ("desk, role run" in shown, "another" in shown) == (True, False)
    await store.database.write(lambda connection: connection.execute(text("DELETE FROM blobs")))
    damaged = await read_document(store, key, form)
    assert "they are missing" in damaged
    assert "verified when" not in damaged


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET payload = '{}' WHERE seq = 3 AND session_id = :session",
        "DELETE FROM sessions WHERE id = :session",
    ],
)
async def test_damaged_log_document_says_so(store: SqlStore, statement: str) -> None:
    await fill_store(store)
    assert "does not verify" not in await read_document(store, SHOP, "markdown")
    await store.database.write(lambda connection: connection.execute(text(statement), {"session": SHOP.id}))
    for form in ("markdown", "html"):
        shown = await read_document(store, SHOP, form)
        assert "this session does not verify" in shown[:4000]
        assert "event 12" in shown


async def test_document_shows_past_and_refuses_invalid(store: SqlStore) -> None:
    key = SessionKey("default", "s")
    facts = create_session("Ann", {}, {}, [{"role": "user", "content": str(number)} for number in range(200)])
    await store.append(key, State(), draft_events("Ann", facts, None))
    then = await read_document(store, key, "markdown", at=120)
    assert "event 120" in then
    assert "event 121" not in then
    for at in (0, 202):
        with pytest.raises(EventNotFound):
            await open_transcript(store, key, "html", at=at)
    with pytest.raises(SessionNotFound):
        await open_transcript(store, SessionKey("other", "s"), "html")


async def test_deleted_session_document_has_no_end(store: SqlStore) -> None:
    key = SessionKey("default", "s")
    facts = create_session("Ann", {}, {}, [{"role": "user", "content": str(number)} for number in range(80)])
    await store.append(key, State(), draft_events("Ann", facts, None))
    pieces = await open_transcript(store, key, "markdown")
    begun = [await anext(pieces), await anext(pieces)]
    assert b"event 50" in b"".join(begun)
    await store.delete(key, by=None, reason=None)
    with pytest.raises(StoreUnavailable, match="was deleted while its transcript was written"):
        await anext(pieces)


@given(st.lists(st.text("a1-+=:.) \t\\*_<|http://www.x\u3000\x00é", max_size=12), max_size=6))
def test_each_line_is_quoted_as_if_alone(lines: list[str]) -> None:
    alone = [quote_text(line).removesuffix("\n") for line in lines or [""]]
    assert quote_text("\n".join(lines)) == "  \n".join(alone) + "\n"


# Documents of very long messages keep no other waiting.

KEY = SessionKey("default", "large")


@pytest.mark.long
@pytest.mark.parametrize("form", ["markdown", "html"])
async def test_long_message_document_blocks_no_others(store: SqlStore, form: TranscriptFormat) -> None:
    texts = ("\n" * 400_000, "`" * 800_000, "<\u202e" * 200_000)
    facts = create_session("A", {}, {}, [{"role": "user", "content": text} for text in texts])
    await store.append(KEY, State(), draft_events("A", facts, None))
    with watch_callbacks() as watch:
        async with aclosing(await open_transcript(store, KEY, form)) as pieces:
            size = sum([len(piece) async for piece in pieces])
    assert size > sum(map(len, texts))
    # On the loop each of these took far longer.
    assert watch.longest_seconds < 4 * measure_limit(), watch.longest
