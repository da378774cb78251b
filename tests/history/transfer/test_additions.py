"""Conversations that have grown since they were imported: what is new is added, and nothing is said twice."""

from __future__ import annotations

import asyncio
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from swarmkeep.decide.commands import add_messages, create_session, update_session
from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import SessionExists
from swarmkeep.events.facts import SessionForked, SessionImported
from swarmkeep.events.state import State
from swarmkeep.history.archives import Archive, ObjectStore
from swarmkeep.history.conversations import import_conversations
from swarmkeep.history.erasure import erase_person
from swarmkeep.history.import_export import ImportReport
from swarmkeep.history.redact import redact
from swarmkeep.history.verify import verify
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import SessionKey
from tests.history.transfer.test_formats import PIXEL, chatgpt_node, import_recognised, make_chatgpt
from tests.support.object_storage import open_object_storage

TENANT = "default"
KEY = SessionKey(TENANT, "c-1")
U1 = chatgpt_node("u1", "root", "user", "Hi")
A1 = chatgpt_node("a1", "u1", "assistant", "Hello")
U2 = chatgpt_node("u2", "a1", "user", "And then?")
A2 = chatgpt_node("a2", "u2", "assistant", "The end.")
FIRST = make_chatgpt(U1, A1)
GROWN = make_chatgpt(U1, A1, U2, A2, title="Stories", update_time=1756000900.0)


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest) -> str:
    """The database that `store` is on."""
    return str(request.getfixturevalue(f"{kind}_ready"))


def make_chat(*texts: str, id: str = "c-1", **more: Any) -> Json:
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]
    return {"id": id, "messages": messages, **more}


async def import_chat(store: SqlStore, *chats: Json, **options: Any) -> ImportReport:
    lines = "".join(f"{json.dumps(chat)}\n" for chat in chats).encode()
    return await import_conversations(store, TENANT, io.BytesIO(lines), "chat", **{"agent": "Ann", **options})


async def say_here(store: SqlStore, key: SessionKey, *texts: str) -> None:
    """Have it go on here, by a message of its own kind."""
    state = await store.state(key)
    facts = add_messages(state, [{"role": "user", "content": text} for text in texts])
    await store.append(key, state, draft_events(state.agent, facts, None))


async def read_texts(store: SqlStore, id: str = "c-1") -> list[Any]:
    key = SessionKey(TENANT, id)
    assert (await verify(store, key)).problems == []
    return [entry.message["content"] for entry in (await store.state(key)).messages]


async def read_types(store: SqlStore, id: str = "c-1") -> list[str]:
    return [event.type for event in await store.read(SessionKey(TENANT, id))]


def count(report: ImportReport) -> tuple[int, int, int, int]:
    return report.imported, report.extended, report.present, report.forks


async def test_new_messages_are_added(store: SqlStore) -> None:
    await import_recognised(store, [FIRST])
    other = make_chatgpt(U1, conversation_id="c-2")
    tried = await import_recognised(store, [other, GROWN], dry_run=True)
    assert (count(tried), await read_texts(store)) == ((1, 1, 0, 0), ["Hi", "Hello"])
    report = await import_recognised(store, [other, GROWN], by="key_1 (Ann)")
    assert count(report) == (1, 1, 0, 0)
    assert {session.id: session.outcome for session in report.sessions} == {"c-2": "imported", "c-1": "extended"}
    assert await read_texts(store) == ["Hi", "Hello", "And then?", "The end."]
    events = await store.read(KEY)
    assert [event.type for event in events[4:]] == [
        "session.updated", "message.added", "message.added", "session.imported",
    ]  # fmt: skip
    assert isinstance(events[-1].fact, SessionImported)
    assert (events[-1].fact.last_seq, events[-1].fact.by) == (7, "key_1 (Ann)")
    assert {(one.id, one.seq, one.hash) for one in report.sessions} >= {("c-1", 8, events[-1].hash)}
    assert report.events == 4 + 3
    state = await store.state(KEY)
    assert (state.metadata["title"], state.metadata["imported"]["updated_at"]) == ("Stories", "2025-08-24T02:01:40Z")
    told = [json.loads(entry.payload) for entry in await store.read_audit_log(TENANT, limit=10)]
    assert [(entry["session_id"], entry["seq"]) for entry in told] == [("c-1", 4), ("c-2", 3), ("c-1", 8)]
    assert len({entry["digest"] for entry in told[1:]}) == 1
    again = await import_recognised(store, [other, GROWN])
    assert (count(again), len(await store.read(KEY))) == ((0, 0, 2, 0), 8)
    # An older file has nothing new, and sets nothing back.
    older = await import_recognised(store, [FIRST])
    assert (count(older), (await store.state(KEY)).metadata["title"]) == ((0, 0, 1, 0), "Stories")


async def test_both_have_gone_on(store: SqlStore) -> None:
    await import_recognised(store, [FIRST])
    await say_here(store, KEY, "Here")
    report = await import_recognised(store, [GROWN])
    assert count(report) == (1, 0, 1, 1)
    fork = next(session.id for session in report.sessions if session.outcome == "imported")
    assert await read_texts(store) == ["Hi", "Hello", "Here"]
    assert await read_texts(store, fork) == ["Hi", "Hello", "And then?", "The end."]
    assert count(await import_recognised(store, [GROWN])) == (0, 0, 1, 0)
    # The fork is found again when the conversation has grown once more.
    more = make_chatgpt(U1, A1, U2, A2, chatgpt_node("u3", "a2", "user", "More!"))
    report = await import_recognised(store, [more])
    assert (count(report), report.sessions[-1].id) == ((0, 1, 1, 0), fork)
    assert await read_texts(store, fork) == ["Hi", "Hello", "And then?", "The end.", "More!"]


async def test_another_answer_becomes_a_fork(store: SqlStore) -> None:
    await import_recognised(store, [FIRST])
    again = chatgpt_node("a9", "u1", "assistant", "Good morning")
    file = [make_chatgpt(U1, A1, again)]
    report = await import_recognised(store, file)
    # The other way in the file, to the first answer, is what is here.
    assert count(report) == (1, 0, 2, 1)
    assert await read_texts(store) == ["Hi", "Hello"]
    assert await read_texts(store, report.sessions[-1].id) == ["Hi", "Good morning"]
    forks = await store.list_forks(KEY, limit=10)
    assert [one.id for one in forks.sessions] == [report.sessions[-1].id]
    assert count(await import_recognised(store, file)) == (0, 0, 2, 0)


async def test_another_question_becomes_a_fork(store: SqlStore) -> None:
    await import_recognised(store, [FIRST])
    asked = chatgpt_node("u9", "root", "user", "Good evening")
    report = await import_recognised(store, [make_chatgpt(U1, A1, asked)])
    assert count(report) == (1, 0, 2, 1)
    assert await read_texts(store, report.sessions[-1].id) == ["Good evening"]


async def test_forks_of_a_grown_session(store: SqlStore) -> None:
    await import_recognised(store, [FIRST])
    await import_recognised(store, [GROWN])
    other = chatgpt_node("a8", "u2", "assistant", "To be continued.")
    report = await import_recognised(store, [make_chatgpt(U1, A1, U2, A2, other, current="a2")])
    assert (count(report), report.sessions[1].id) == ((1, 0, 1, 1), "c-1:a8")
    assert await read_texts(store, "c-1:a8") == ["Hi", "Hello", "And then?", "To be continued."]
    # What was imported first, and the fork's own import, are not confused.
    fork = await store.read(SessionKey(TENANT, "c-1:a8"))
    [forked] = [event.fact for event in fork if isinstance(event.fact, SessionForked)]
    trunk = await store.read(KEY)
    assert [event.hash for event in fork[: forked.from_seq]] == [event.hash for event in trunk[: forked.from_seq]]


async def test_redacted_messages_stay_so(store: SqlStore) -> None:
    await import_recognised(store, [FIRST])
    await redact(store, KEY, [3], "asked for")
    assert count(await import_recognised(store, [FIRST])) == (0, 0, 1, 0)
    assert count(await import_recognised(store, [GROWN])) == (0, 1, 0, 0)
    texts = await read_texts(store)
    assert (texts[0], texts[2:]) == ("Hi", ["And then?", "The end."])
    assert not any("Hello" in event.payload for event in await store.read(KEY))


async def test_changes_made_here_stay(store: SqlStore) -> None:
    await import_chat(store, make_chat("a", "b", context_variables={"n": 1, "m": None}, metadata={"team": "x"}))
    state = await store.state(KEY)
    changes = update_session(state, metadata={"team": "y"}, context_variables={"k": 2}, agent="Bea")
    await store.append(KEY, state, draft_events("Ann", changes, None))
    chat = make_chat("a", "b", "c", context_variables={"n": None, "m": 3}, metadata={"team": "x"}, task="t")
    # For another agent, too: who speaks is no other conversation.
    assert count(await import_chat(store, chat, agent="Cy")) == (0, 1, 0, 0)
    state = await store.state(KEY)
    assert state.context_variables == {"n": None, "m": 3, "k": 2}
    assert (state.agent, state.metadata["team"], state.metadata["imported"]["task"]) == ("Bea", "y", "t")


async def test_sessions_from_elsewhere_are_left(store: SqlStore) -> None:
    facts = create_session("Ann", {}, {}, make_chat("a")["messages"])
    await store.append(KEY, State(), draft_events("Ann", facts, None))
    with pytest.raises(SessionExists):
        await import_chat(store, make_chat("new", id="c-2"), make_chat("a", "b"))
    await import_chat(store, make_chat("x", id="c-3"))
    with pytest.raises(SessionExists):
        await import_chat(store, make_chat("new", id="c-2"), make_chat("y", id="c-3"))
    assert await read_types(store, "c-2") == []
    assert await read_texts(store) == ["a"]


async def test_persons_get_nothing_after_erasure_or_of_others(url: str, tmp_path: Path) -> None:
    store = open_store(url, person="customer", person_keys=str(tmp_path / "keys"))
    await import_chat(store, make_chat("a", "b", metadata={"customer": "anna"}))
    new = make_chat("new", id="c-2")
    for metadata in ({"customer": "bob"}, {}):
        with pytest.raises(SessionExists, match="another customer"):
            await import_chat(store, new, make_chat("a", "b", "c", metadata=metadata))
    assert await read_types(store, "c-2") == []
    grown = make_chat("a", "b", "canary", metadata={"customer": "anna"})
    assert count(await import_chat(store, grown)) == (0, 1, 0, 0)
    stored = await store.database.read(lambda connection: connection.execute(text("SELECT payload FROM events")).all())
    assert not any("canary" in str(row) for row in stored)
    await erase_person(store, TENANT, "anna", "asked for")
    erased = await read_types(store)
    # What else is in the file is taken nevertheless.
    for chat in (make_chat("a", "b", "canary", "d", metadata={"customer": "anna"}), make_chat("a", "z")):
        expected = (1, 0, 1, 0) if await read_types(store, "c-2") == [] else (0, 0, 2, 0)
        assert count(await import_chat(store, new, chat)) == expected
        assert await read_types(store) == erased
    await store.close()


async def test_archived_sessions_are_added_to(store: SqlStore, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old = open_store(url, clock=lambda: datetime.now(UTC) - timedelta(days=365))
    await import_chat(old, make_chat("a", "b"), make_chat("x", "y", id="c-2"))
    await old.close()
    with open_object_storage() as storage:
        for name, value in storage.environment.items():
            monkeypatch.setenv(name, value)
        assert await Archive(store, ObjectStore(storage.make_bucket())).archive_due(timedelta(days=90)) == 2
        file = [make_chat("a", "b", "c"), make_chat("x", "z", id="c-2")]
        assert count(await import_chat(store, *file)) == (1, 1, 1, 1)
        assert await read_texts(store) == ["a", "b", "c"]
        assert await read_texts(store, "c-2") == ["x", "y"]
        assert count(await import_chat(store, *file)) == (0, 0, 2, 0)


async def test_many_messages_are_added_in_slices(store: SqlStore) -> None:
    first = [f"{number}" for number in range(3)]
    await import_chat(store, make_chat(*first))
    chat = make_chat(*first, *(f"{number}" for number in range(3, 500)))
    picture = [{"type": "image_url", "image_url": {"url": PIXEL}}]
    chat["messages"] += [{"role": "user", "content": picture}]
    report = await import_chat(store, chat)
    assert count(report) == (0, 1, 0, 0)
    types = await read_types(store)
    assert (types.count("message.added"), types.count("session.imported")) == (501, 4)
    assert len(types) == report.sessions[0].seq == 5 + report.events
    texts = await read_texts(store)
    assert texts[:-1] == [f"{number}" for number in range(500)]
    assert texts[-1][0]["type"] == "image_url"
    assert count(await import_chat(store, chat)) == (0, 0, 1, 0)
    # An older file that says less, and says it otherwise.
    assert count(await import_chat(store, make_chat(*first, task="t"))) == (0, 0, 1, 0)


async def test_imports_at_once_add_once(store: SqlStore, url: str) -> None:
    chats = [make_chat("a", id=f"c-{number}") for number in range(8)]
    await import_chat(store, *chats)
    grown = [make_chat("a", "b", "c", id=chat["id"]) for chat in chats]
    second = open_store(url)
    try:
        reports = await asyncio.gather(*(import_chat(one, *grown) for one in (store, second, store)))
    finally:
        await second.close()
    assert sum(report.events for report in reports) == 8 * 3
    for chat in chats:
        assert await read_texts(store, chat["id"]) == ["a", "b", "c"]
