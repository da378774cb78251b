"""Finding sessions by words: what is found, by whom, and what is not any more."""

from __future__ import annotations

import asyncio
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, delete, insert, select
from sqlalchemy import text as sql
from sqlalchemy.exc import DBAPIError

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events import facts
from swarmkeep.events.redaction import redact_payload
from swarmkeep.events.state import State
from swarmkeep.events.words import list_words, make_snippet, parse_terms
from swarmkeep.store import schema
from swarmkeep.store.index import SessionFilter
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import Claim, SessionKey, StoreUnavailable
from swarmkeep.store.schema import Leftovers, mend_leftovers
from swarmkeep.store.search import read_parts, store_words, work_out, write_query
from swarmkeep.store.tables import search, search_marks
from tests.store.conftest import Opener
from tests.store.sessions import begin_session, draft_run_start, draft_user_messages
from tests.support.calls import count_calls


def key(name: str, tenant: str = "default") -> SessionKey:
    return SessionKey(tenant, name)


async def index_all(store: SqlStore) -> None:
    while await store.index_some():
        pass
    assert await store.count_sessions_behind() == 0


async def find(store: SqlStore, text: str, tenant: str = "default", **filters: Any) -> list[str]:
    page = await store.list_sessions(SessionFilter(tenant, terms=parse_terms(text), order="activity", **filters))
    return [one.id for one in page.sessions]


async def say(store: SqlStore, name: str, *texts: str, tenant: str = "default", **labels: Any) -> State:
    state = await begin_session(store, key(name, tenant), metadata=labels)
    return (await store.append(key(name, tenant), state, draft_user_messages(*texts))).state


async def test_sessions_are_found_by_words_and_names(store: SqlStore) -> None:
    await say(store, "order-4711", "Where is my Refund?", "I paid with a Crédit card", team="Größe & Sons")
    await say(store, "other", "東京都の天気はどうですか", 'drop table sessions; -- "OR" NEAR(a b) *')
    await say(store, "theirs", "Where is my refund?", tenant="another")
    assert await find(store, "refund") == [], "the index follows behind"
    assert [await store.count_sessions_behind(most) for most in (2, 3, None)] == [2, 3, 3]
    await index_all(store)
    for text in ("refund", "REF my", "credit", "crédit card", "4711", "order-47", "grosse sons", "team"):
        assert await find(store, text) == ["order-4711"], text
    for text in ("京都の天", "都", "か", "tab drop", 'OR" near', "near(a", "NEAR *"):
        assert await find(store, text) == ["other"], text
    # All words in one message, each from its beginning, and no sign means anything.
    for text in ("refund card", "efund", "京天", "都京", '"', "*", "-", "' OR 1=1", "refund NOT card", "x" * 5000):
        assert await find(store, text) == [], text
    assert await find(store, "refund", tenant="another") == ["theirs"]
    assert await find(store, "refund", agent="Nobody") == []
    assert await find(store, "refund", metadata={"team": "Größe & Sons"}) == ["order-4711"]


async def test_each_hit_says_where(store: SqlStore) -> None:
    state = await say(
        store, "a", "x " * 300 + "the refund, then a refunded\norder " + "y " * 300, title="Refund of Ann"
    )
    await index_all(store)
    [found] = (await store.list_sessions(SessionFilter("default", terms=parse_terms("refund")))).sessions
    label, message = found.matches  # type: ignore[misc]
    assert (label.seq, message.seq) == (None, state.seq)
    assert [message.snippet[begin:end] for begin, end in message.ranges] == ["refund", "refund"]
    assert len(message.snippet) == 160
    assert "\n" not in message.snippet
    assert [label.snippet[begin:end] for begin, end in label.ranges] == ["Refund"]
    assert found.title == "Refund of Ann"


async def test_what_is_gone_is_not_found(store: SqlStore) -> None:
    first = await say(store, "a", "canary one", "canary two")
    await index_all(store)
    assert await find(store, "canary two") == ["a"]
    removed = draft_events("Ann", [facts.MessageRemoved(message_seq=first.seq, seqs=(first.seq,))], None)
    state = (await store.append(key("a"), first, removed)).state
    copied = draft_events(
        "Ann", [facts.SessionForked(from_session_id="a", from_seq=state.seq, from_hash=state.hash)], None
    )
    fork = (await store.fork(key("a"), state, key("copy"), copied)).state
    await index_all(store)
    assert await find(store, "canary two") == []
    assert await find(store, "canary one") == ["copy", "a"]
    # What was read before a redaction is not written after it.
    await redact_all(store, "a")
    assert await find(store, "canary") == ["copy"]
    await index_all(store)
    assert await find(store, "canary") == ["copy"]
    assert await find(store, "redacted") == []
    await store.delete(key("copy"), expected=fork)
    assert await find(store, "canary") == []
    rows = await store.database.read(lambda connection: list(connection.execute(select(search.c.session_id))))
    assert {row.session_id for row in rows} == {"a"}


@pytest.mark.parametrize("is_waiting", [True, False])
async def test_message_removed_mid_run_is_not_found(store: SqlStore, is_waiting: bool) -> None:
    first = await say(store, "a", "canary one")
    begun = (await store.append(key("a"), first, draft_run_start(first), lease=Claim("w", 30.0))).state
    waits = draft_events(
        "Ann", [facts.RunWaiting(pending=())] if is_waiting else [facts.ContextUpdated(patch={"a": 1})], "r1"
    )
    before = (await store.append(key("a"), begun, waits)).state
    await index_all(store)
    removed = draft_events("Ann", [facts.MessageRemoved(message_seq=first.seq, seqs=(first.seq,))], None)
    await store.append(key("a"), before, removed)
    await index_all(store)
    assert await find(store, "canary") == []


async def redact_all(store: SqlStore, name: str) -> None:
    """Remove what all messages say."""
    log = await store.read_sealed(key(name))
    stand_ins = {one.event.seq: redact_payload(one.event) for one in log if one.event.type == "message.added"}
    draft = facts.EventDraft(facts.SessionRedacted(seqs=tuple(stand_ins), reason="r", by="me"), None, "Ann")
    await store.redact(key(name), log, stand_ins, draft)


@pytest.mark.parametrize("changed", ["redacted", "deleted and made anew"])
async def test_words_read_before_change_are_discarded(store: SqlStore, changed: str) -> None:
    state = await say(store, "a", "canary")
    read = store.database.read_snapshot

    async def change_in_between(query: Any) -> Any:
        parts = await read(query)
        if parts and await store.database.read(lambda db: db.scalar(select(search_marks.c.round))) == 0:
            if changed == "redacted":
                await redact_all(store, "a")
            else:
                await store.delete(key("a"), expected=state)
                await say(store, "a", "another")
        return parts

    store.database.read_snapshot = change_in_between  # type: ignore[method-assign]
    await store.index_some()
    assert await find(store, "canary") == []
    store.database.read_snapshot = read  # type: ignore[method-assign]
    await index_all(store)
    assert await find(store, "canary") == []
    assert await find(store, "another") == ([] if changed == "redacted" else ["a"])


async def test_reported_failure_stops_everything(store: SqlStore) -> None:
    for name in "abc":
        await say(store, name, "canary")
    write, writing = store.database.write, 0

    async def fail_at_first(job: Any) -> Any:
        nonlocal writing
        writing += 1
        if writing == 1:
            raise StoreUnavailable("gone")
        return await write(job)

    store.database.write = fail_at_first  # type: ignore[method-assign, assignment]
    before = asyncio.all_tasks()
    with pytest.raises(StoreUnavailable, match="gone"):
        await store.index_some()
    assert asyncio.all_tasks() == before
    store.database.write = write  # type: ignore[method-assign]
    await index_all(store)
    assert sorted(await find(store, "canary")) == ["a", "b", "c"]


async def test_words_of_deleted_session_do_not_stay(postgres_ready: str) -> None:
    store, other = open_store(postgres_ready), open_store(postgres_ready)
    state = await say(store, "a", "canary")
    [part] = await store.database.read_snapshot(read_parts)
    deleting: list[asyncio.Task[Any]] = []

    def index(connection: Connection) -> None:
        """Write the words, and commit once the deletion waits for that."""
        store_words(connection, [work_out(part)])
        deletion = other.delete(key("a"), expected=state)
        deleting.append(asyncio.get_running_loop().create_task(deletion))
        while not connection.scalar(WAITING_FOR_THIS):
            pass

    await store.database.write(index)
    await asyncio.gather(*deleting)
    rows = await store.database.read(lambda connection: list(connection.scalars(select(search.c.seq))))
    assert rows == []
    await store.close()
    await other.close()


WAITING_FOR_THIS = sql(
    "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
)


async def test_database_errors_hide_given_values(store: SqlStore) -> None:
    wrong = sql("SELECT no_such_function(CAST(:said AS text))")
    for run in (store.database.read, store.database.write):
        with pytest.raises(DBAPIError, match="no_such_function") as failed:
            await run(lambda connection: connection.execute(wrong, {"said": "canary"}))
        error: BaseException | None = failed.value
        while error is not None:
            assert "canary" not in str(error)
            error = error.__cause__ or error.__context__


async def test_changed_metadata_and_a_new_index(store: SqlStore) -> None:
    state = await say(store, "a", "hello", title="Before")
    await index_all(store)
    renamed = draft_events("Ann", [facts.SessionUpdated(metadata={"title": "After"})], None)
    state = (await store.append(key("a"), state, renamed)).state
    # What happens in a run is found once it is over.
    await store.append(key("a"), state, draft_run_start(state), lease=Claim("me", 60))
    await index_all(store)
    assert (await find(store, "before"), await find(store, "after")) == ([], ["a"])
    await store.void_search_index()
    assert await find(store, "after") == []
    await index_all(store)
    assert await find(store, "hello") == ["a"]


@pytest.mark.parametrize("mend", ["recount", "reindex"])
async def test_index_unaware_leftovers_are_mended(store: SqlStore, mend: str) -> None:
    await say(store, "deleted", "canary")
    await index_all(store)
    await store.delete(key("deleted"), expected=None)
    await say(store, "made", "hello")

    def leave(connection: Connection) -> None:
        connection.execute(delete(search_marks))
        connection.execute(insert(search).values(tenant="t", session_id="deleted", seq=2, number=9, words="canary"))
        connection.execute(insert(search_marks).values(tenant="t", session_id="deleted", seq=2, done=2, round=0))

    await store.database.write(leave)
    if mend == "recount":
        assert await mend_leftovers(store, mend=False) == Leftovers(sessions=0, files=0, words=1)
        await mend_leftovers(store, mend=True)
    else:
        await store.void_search_index()
    await index_all(store)
    assert await find(store, "hello") == ["made"]
    for table in (search, search_marks):
        names = await store.database.read(lambda db, table=table: set(db.scalars(select(table.c.session_id))))
        assert names == {"made"}


async def test_words_of_earlier_releases_are_found_and_forgotten(url: str, opener: Opener) -> None:
    store = opener()
    for name in ("kept", "deleted"):
        await say(store, name, f"Where is my order, {name}?", tenant="ü")
    await index_all(store)
    await store.close()
    await asyncio.to_thread(schema.downgrade, url, "0026")
    await asyncio.to_thread(schema.upgrade, url)
    store = opener()
    assert sorted(await find(store, "order where", "ü")) == ["deleted", "kept"]
    await store.delete(key("deleted", "ü"), expected=None)
    await say(store, "new", "An order", tenant="ü")
    await index_all(store)
    assert sorted(await find(store, "order", "ü")) == ["kept", "new"]
    if url.startswith("sqlite"):
        indexed = sql("SELECT count(*) FROM search_index WHERE search_index MATCH :word")
        word = write_query("sqlite", "ü", parse_terms("deleted"))
        assert await store.database.read(lambda db: db.scalar(indexed, {"word": word})) == 0


async def test_times_narrow_search_and_list(store: SqlStore) -> None:
    first = await say(store, "a", "hello")
    second = await say(store, "b", "hello")
    await index_all(store)
    for order in ("created", "activity"):
        for terms in (None, parse_terms("hello")):
            pages = [
                await store.list_sessions(SessionFilter("default", order=order, terms=terms, **times))  # type: ignore[arg-type]
                for times in (
                    {"active_after": second.updated_at},
                    {"active_before": second.updated_at},
                    {"active_after": first.updated_at, "metadata": {}},
                )
            ]
            assert [[one.id for one in page.sessions] for page in pages] == [["b"], ["a"], ["b", "a"]]
    page = await store.list_sessions(SessionFilter("default", terms=parse_terms("hello"), order="activity"), limit=1)
    assert [one.id for one in page.sessions] == ["b"]
    rest = await store.list_sessions(
        SessionFilter("default", terms=parse_terms("hello"), order="activity"), limit=1, cursor=page.next_cursor
    )
    assert ([one.id for one in rest.sessions], rest.next_cursor) == (["a"], None)


async def test_surrogate_metadata_hides_no_other_session(store: SqlStore) -> None:
    await say(store, "half", "hello", label=["\ud800 half"])
    await say(store, "whole", "hello")
    await index_all(store)
    assert await find(store, "hello") == ["whole", "half"]
    assert await find(store, "half") == ["half"]


@pytest.mark.long
async def test_long_search_is_bounded_and_off_loop(store: SqlStore) -> None:
    text = "lorem ipsum " * 16_000 + "zebra"
    for number in range(5):
        await say(store, f"s{number}", *[text] * 3)
    await index_all(store)
    with count_calls() as here:
        page = await store.list_sessions(SessionFilter("default", terms=parse_terms("zebra"), order="activity"))
    assert make_snippet.__code__ not in here
    matches = [match for one in page.sessions for match in one.matches or ()]
    assert len(matches) == 15
    assert [bool(match.snippet) for match in matches] == [True] * 10 + [False] * 5


def test_odd_rows_are_indexed_in_pieces() -> None:
    # As one piece these take minutes, in which nothing else of the process goes on.
    accents = "a" + "\u0301\u0316" * 100_000
    assert list_words(accents) == ["a"]
    assert make_snippet("x " + accents, parse_terms("a")) is not None
    assert list_words("\ufdfa" * 199_000 + " Ende") == [parse_terms("\ufdfa" * 200)[0].text, "ende"]
    assert make_snippet("\ufdfa" * 200_000, parse_terms("\ufdfa" * 100)) is not None
    # What is joined to the character before it is not cut off.
    for text in ("e\u0301 " * 2000, "\u1112\u1161\u11ab" * 2000):
        assert list_words("x" + text) == list_words("x" + unicodedata.normalize("NFC", text))


@given(st.text(st.characters(max_codepoint=127), max_size=200) | st.text("aB1", min_size=60, max_size=70))
def test_plain_text_is_found_anywhere(text: str) -> None:
    # One letter that is not ASCII, and all of it goes the long way.
    assert list_words(f"{text} \u0436") == [*list_words(text), "\u0436"]


def test_terms_in_one_word_are_found() -> None:
    for text, wanted, shown in (
        ("the refund", "ref refund", ["refund"]),
        ("\u6771\u4eac\u306e\u5929\u6c17", "\u5929\u6c17 \u6771\u4eac", ["\u6771\u4eac", "\u5929\u6c17"]),
    ):
        found = make_snippet(text, parse_terms(wanted))
        assert [found.text[begin:end] for begin, end in found.ranges] == shown


def test_words_in_one_piece_are_shown_together() -> None:
    for text, wanted, shown in (
        ("a refund for a parcel: A-118, at once", "A-118", ["A", "118"]),
        ("a refund for a parcel: A-118, at once", "refund A-118", ["refund", "A", "118"]),
        ("a refund for 118", "A-118", ["a", "118"]),
        ("a refund for order A-118", "a refund", ["a", "refund", "A"]),
    ):
        found = make_snippet(text, parse_terms(wanted))
        assert [found.text[begin:end] for begin, end in found.ranges] == shown


def test_snippets_of_scripts_without_spaces() -> None:
    found = make_snippet("今日は東京都へ行く", parse_terms("東京都"))
    assert [found.text[begin:end] for begin, end in found.ranges] == ["東京都"]
    assert make_snippet("京都と東京", parse_terms("東京都")) is None
