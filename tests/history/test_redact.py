"""Redacted or deleted content is gone from every place where it could be read; the chain still verifies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import msgspec
import pytest
from sqlalchemy import text

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import Json, digest, encode_text
from swarmkeep.events.errors import EventNotFound, IdempotencyMismatch, InvalidRequest, SessionBusy, SessionNotFound
from swarmkeep.events.facts import (
    ApprovalDecided,
    ApprovalRequested,
    CompactionFailed,
    CompactionStarted,
    CompactionSummarised,
    ContextUpdated,
    GuardrailTripped,
    ListedTool,
    MessageAdded,
    PendingCall,
    RunCompleted,
    RunError,
    RunFailed,
    RunQueued,
    RunResumed,
    RunStarted,
    RunWaiting,
    SessionCreated,
    SessionEvent,
    SessionHandedBack,
    SessionRedacted,
    SessionUpdated,
    ToolsListed,
    ToolStarted,
)
from swarmkeep.events.records import CompletionRecord, ContextChange, RequestRecord, RunOptions, ToolRecord
from swarmkeep.events.state import State
from swarmkeep.history.checkpoints import verify_audit_log
from swarmkeep.history.redact import COPIES, MAX_SEQS, redact
from swarmkeep.history.verify import Head, verify, verify_all
from swarmkeep.runs.runs import IdempotentRequest
from swarmkeep.runs.sessions import delete_session, fork_session
from swarmkeep.store import schema
from swarmkeep.store.hashing import commitment_of
from swarmkeep.store.index import SessionFilter
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import IdempotencyRecord, SessionKey
from swarmkeep.store.tables import SEARCH_TABLES, SESSION_TABLES, audit_log, events, idempotency, sessions
from swarmkeep.store.urls import PostgresServer, locate
from tests.golden.make import FORK, SHOP, fill_store
from tests.history.verify.rows import change_row, make_other_value, read_rows, remove_row
from tests.store.sessions import KEY, OTHER, begin_session, draft_run_start, draft_user_messages, make_picture_part
from tests.support.postgres import private_postgres

# The index of words has this by itself.
WORD = "7f3a9c"
CANARY = f"canary-{WORD}"
LONG = f"{CANARY} " * 500
# A key makes one session of a tenant.
MADE_BY = {KEY: "make", OTHER: "make the other"}


async def put_canary_everywhere(store: SqlStore, key: SessionKey = KEY) -> State:
    """A session with the canary in every place where people and models write text."""
    instructions = f"You know {LONG}"
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": f'{{"a":"{CANARY}"}}'}}]
    request = RequestRecord(instructions=digest(instructions), params={"model": "m", "note": CANARY})
    completion = CompletionRecord(id=CANARY, usage={"note": CANARY}, request=request)
    first = draft_events(
        "A", [SessionCreated(agent="A", context_variables={"a": LONG, CANARY: 1}, metadata={"m": CANARY})], None
    )
    state = (
        await store.append(key, State(), first, idempotency=IdempotencyRecord(key=MADE_BY[key], digest=digest(CANARY)))
    ).state
    picture = make_picture_part(LONG.encode())
    said = [{"type": "text", "text": LONG}, {**picture, "blob": {**picture["blob"], "name": CANARY}}]
    story = [
        RunQueued(options=RunOptions(model=f"{CANARY} x"), messages=({"role": "user", "content": LONG},)),
        RunStarted(options=RunOptions(), idempotency_key=CANARY),
        MessageAdded(message={"role": "user", "content": said, "sender": CANARY, "name": CANARY}),
        MessageAdded(message={"role": "assistant", "content": LONG, "tool_calls": calls}, completion=completion),
        ToolStarted(tool_call_id="c1", name="f", arguments=LONG),
        MessageAdded(
            message={"role": "tool", "tool_call_id": "c1", "content": LONG}, tool=ToolRecord(name="f", status="ok")
        ),
        ContextUpdated(patch={"b": LONG}, tool_call_id="c1"),
        SessionUpdated(metadata={"m": f"{CANARY} too", f"{CANARY} key": 1}),
        ApprovalDecided(tool_call_id="c1", decision="deny", reason=LONG, by=CANARY),
        RunCompleted(stop_reason="error", error=RunError(code="x", message=LONG)),
    ]
    drafts = draft_events("A", story, "r1")
    mark = IdempotencyRecord(key=CANARY, digest=digest(LONG), run_id="r1")
    blobs = {digest(instructions): instructions, picture["blob"]["sha256"]: LONG.encode()}
    state = (await store.append(key, state, drafts, blobs=blobs, idempotency=mark)).state
    await store.index_some()
    return state


async def dump_database(store: SqlStore) -> str:
    """All that a query can find, as a dump of the database has it."""

    def read(connection: Any) -> str:
        kind = connection.dialect.name
        names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name <> 'search_index'"
        if kind == "postgresql":
            names = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        tables = [row[0] for row in connection.execute(text(names))]
        return repr([connection.execute(text(f'SELECT * FROM "{name}"')).all() for name in tables])

    return await store.database.read(read)


async def test_redacted_content_is_unreadable(store: SqlStore) -> None:
    state = await put_canary_everywhere(store)
    assert WORD in await dump_database(store)
    hashes = [event.hash for event in await store.read(KEY)]
    done = await redact(store, KEY, range(1, state.seq + 1), "asked for", by="Lee")
    assert (done.seqs, done.seq, done.forks) == (list(range(1, state.seq + 1)), state.seq + 1, [])
    assert WORD not in await dump_database(store)
    # Nor guessed: the salts are gone, and no digest of it is left.
    assert digest(CANARY) not in await dump_database(store)
    assert {row["salt"] for row in (await read_rows(store, events))[:-1]} == {None}
    assert [event.hash for event in await store.read(KEY)][:-1] == hashes
    assert (await verify(store, KEY)).problems == []
    told = (await store.read(KEY))[-1].fact
    assert isinstance(told, SessionRedacted)
    assert (told.reason, told.by, told.seqs) == ("asked for", "Lee", tuple(done.seqs))
    page = await store.list_sessions(SessionFilter("default", metadata={"m": f"{CANARY} too"}))
    assert page.sessions == []


async def test_file_holds_no_redacted_data(sqlite_ready: str) -> None:
    path = Path(sqlite_ready.removeprefix("sqlite:///"))

    def holding() -> list[str]:
        return [file.name for file in path.parent.iterdir() if WORD.encode() in file.read_bytes()]

    store = open_store(sqlite_ready)
    state = await put_canary_everywhere(store)
    assert holding()
    await redact(store, KEY, range(1, state.seq + 1), "asked for")
    assert holding() == []
    await store.close()
    assert holding() == []


async def test_only_what_was_named_is_gone(store: SqlStore) -> None:
    state = await begin_session(store)
    state = (await store.append(KEY, state, draft_user_messages("one", "two", "three"))).state
    await redact(store, KEY, [3, 3], "asked for")
    texts = [entry.message["content"] for entry in (await store.state(KEY)).messages]
    assert texts == ["one", "[redacted]", "three"]
    # In the past, too.
    assert (await store.state(KEY, at=3)).messages[-1].message["content"] == "[redacted]"
    again = await redact(store, KEY, [3, 2], "asked again")
    assert (again.seqs, again.seq) == ([2], 6)
    nothing = await redact(store, KEY, [2, 3], "asked again")
    assert (nothing.seqs, nothing.seq, nothing.session.seq) == ([], None, 6)
    assert (await verify(store, KEY)).valid
    # And the conversation goes on.
    state = await store.state(KEY)
    assert (await store.append(KEY, state, draft_user_messages("four"))).state.seq == 7


async def test_run_options_redacted_with_it(store: SqlStore) -> None:
    options = RunOptions(instructions=CANARY)
    question: Json = {"role": "user", "content": "one"}
    events = [
        RunQueued(options=options, messages=(question,)),
        RunStarted(options=options),
        MessageAdded(message=question),
        RunResumed(reason="tool_results", options=options),
        RunCompleted(stop_reason="end_turn"),
    ]
    first = draft_events("A", [SessionCreated(agent="A")], None)
    await store.append(KEY, State(), [*first, *draft_events("A", events, "r1"), *draft_events("A", events, "r2")])
    assert (await redact(store, KEY, [3], "asked for")).seqs == [2, 3, 5]
    assert (await redact(store, KEY, [9], "asked for")).seqs == [7, 9]
    assert "one" not in (await store.read(KEY, after=6, upto=7))[0].payload
    assert (await store.read(KEY, after=7, upto=8))[0].payload.count(CANARY) == 1


async def test_other_processes_drop_redacted_cache(kind: str, store: SqlStore, request: Any) -> None:
    url = request.getfixturevalue(f"{kind}_ready")
    other = open_store(url)
    state = await begin_session(store, context={"note": CANARY})
    await store.append(KEY, state, draft_user_messages(CANARY))
    for at in (None, 2):
        assert CANARY in repr(await other.state(KEY, at=at))
    await redact(store, KEY, [1, 2], "asked for")
    for reader in (store, other):
        for at in (1, 2, 3, None):
            assert CANARY not in repr(await reader.state(KEY, at=at))
        assert CANARY not in repr(await reader.state(KEY, fresh=False))
    await other.close()


async def test_busy_session_is_not_redacted(store: SqlStore) -> None:
    state = await begin_session(store)
    await store.append(KEY, state, draft_run_start(state))
    with pytest.raises(SessionBusy):
        await redact(store, KEY, [1], "asked for")


async def test_unredactable_refused_without_loss(store: SqlStore) -> None:
    await begin_session(store)
    with pytest.raises(EventNotFound):
        await redact(store, KEY, [1, 2], "asked for")
    with pytest.raises(SessionNotFound):
        await redact(store, OTHER, [1], "asked for")
    for seqs, reason in (([], "x"), ([1], ""), ([1], "x" * 1001), ([1] * (MAX_SEQS + 1), "x")):
        with pytest.raises(InvalidRequest):
            await redact(store, KEY, seqs, reason)
    assert [row["salt"] is None for row in await read_rows(store, events)] == [False]


async def test_used_key_request_refused_and_not_repeated(store: SqlStore) -> None:
    """Its digest is gone, so nobody can say whether it is the same; so is one whose key was redacted as well."""
    state = await put_canary_everywhere(store)
    await redact(store, KEY, [4], "asked for")
    assert {row["digest"] for row in await read_rows(store, idempotency)} == {""}
    records = await read_rows(store, idempotency)
    await redact(store, KEY, [3], "the key itself")
    for record in records:
        used = IdempotencyRecord(key=record["key"], digest=digest(CANARY))
        with pytest.raises(IdempotencyMismatch):
            await store.append(KEY, await store.state(KEY), draft_user_messages("x"), idempotency=used)
    kept = [row["key"] for row in await read_rows(store, idempotency)]
    assert (len(kept), [key for key in kept if CANARY in key]) == (len(records), [])
    # Others are as good as ever.
    new = IdempotencyRecord(key="new", digest=digest("new"))
    await store.append(KEY, await store.state(KEY), draft_user_messages("x"), idempotency=new)
    assert (await verify(store, KEY)).valid
    assert state.seq == 11


async def test_repeated_redaction_is_done_once(store: SqlStore) -> None:
    await begin_session(store)
    once = IdempotentRequest("key", "d" * 64)
    first = await redact(store, KEY, [1], "asked for", idempotency=once)
    assert await redact(store, KEY, [1], "asked for", idempotency=once) == first
    assert (await store.state(KEY)).seq == 2
    with pytest.raises(IdempotencyMismatch):
        await redact(store, KEY, [1], "asked for", idempotency=IdempotentRequest("key", "e" * 64))
    assert (await verify(store, KEY)).valid


async def test_a_reason_can_be_redacted(store: SqlStore) -> None:
    state = await begin_session(store)
    await store.append(KEY, state, draft_user_messages("x"))
    await redact(store, KEY, [2], CANARY, by="Lee")
    await redact(store, KEY, [3], "names a person", by="Kim")
    assert CANARY not in await dump_database(store)
    told = [event.fact for event in await store.read(KEY, types=["session.redacted"])]
    assert [(fact.by, fact.reason) for fact in told if isinstance(fact, SessionRedacted)] == [
        ("Lee", "[redacted]"),
        ("Kim", "names a person"),
    ]
    assert (await verify(store, KEY)).valid


async def test_payload_stand_in_is_checked(store: SqlStore) -> None:
    state = await begin_session(store)
    await store.append(KEY, state, draft_user_messages("one", "two"))
    await redact(store, KEY, [2], "asked for")
    row = (await read_rows(store, events))[1]
    await change_row(store, events, row, payload=row["payload"].replace("[redacted]", "I agree."))
    assert (await verify(store, KEY)).problems[0].code == "stand_in_differs"
    salt = b"x" * 16
    forged = {"payload": "{}", "salt": salt, "commitment": commitment_of(salt, "{}")}
    await change_row(store, events, row, **forged)
    codes = {problem.code for problem in (await verify(store, KEY)).problems}
    assert {"redaction_undone", "hash_differs"} <= codes


async def test_silently_removed_payload_is_found(store: SqlStore) -> None:
    await begin_session(store)
    row = (await read_rows(store, events))[0]
    await change_row(store, events, row, salt=None)
    codes = [problem.code for problem in (await verify(store, KEY)).problems]
    assert codes == ["stand_in_differs", "payload_missing"]


# Forks.


async def make_forks(store: SqlStore) -> tuple[SessionKey, SessionKey]:
    """A fork of KEY, and one of that."""
    state = await begin_session(store, context={"note": CANARY})
    await store.append(KEY, state, draft_user_messages(CANARY, "x"))
    one, two = SessionKey("default", "one"), SessionKey("default", "two")
    await fork_session(store, KEY, session_id="one")
    await fork_session(store, one, at=2, session_id="two")
    return one, two


async def test_sessions_sharing_events_are_named(store: SqlStore) -> None:
    await make_forks(store)
    done = await redact(store, KEY, [2, 3], "asked for")
    assert [(copy.session_id, copy.seqs, copy.redacted) for copy in done.forks] == [
        ("one", [2, 3], False),
        ("two", [2], False),
    ]
    assert CANARY in await dump_database(store)


@pytest.mark.parametrize("start", [KEY.id, "one", "two"])
async def test_forks_and_origins_redacted_together(store: SqlStore, start: str) -> None:
    await make_forks(store)
    if start == "two":
        # The session between them may be gone.
        await store.delete(SessionKey("default", "one"))
    done = await redact(store, SessionKey("default", start), [1, 2], "asked for", by="Lee", include_forks=True)
    assert done.forks
    assert all(copy.redacted for copy in done.forks)
    assert CANARY not in await dump_database(store)
    assert all([verification.valid async for _, verification in verify_all(store)])
    again = await redact(store, SessionKey("default", start), [1, 2], "asked for", include_forks=True)
    assert (again.seqs, again.forks) == ([], [])


async def test_fork_with_only_copies_is_redacted(store: SqlStore) -> None:
    state = await begin_session(store)
    message: Json = {"role": "user", "content": CANARY}
    queued = RunQueued(options=RunOptions(), messages=(message,))
    state = (await store.append(KEY, state, draft_events(state.agent, [queued], "r1"))).state
    await fork_session(store, KEY, at=2, session_id="early")
    facts = (RunStarted(options=RunOptions()), MessageAdded(message=message), RunCompleted(stop_reason="end_turn"))
    await store.append(KEY, state, draft_events(state.agent, facts, "r1"))
    planned = await redact(store, KEY, [4], "asked for", dry_run=True)
    assert [(copy.session_id, copy.seqs) for copy in planned.forks] == [("early", [2])]
    await redact(store, KEY, [4], "asked for")
    # Asked for later, it is still known which event was a copy of that.
    done = await redact(store, KEY, [4], "asked for", include_forks=True)
    assert [(copy.session_id, copy.seqs, copy.redacted) for copy in done.forks] == [("early", [2], True)]
    assert CANARY not in await dump_database(store)


async def test_busy_fork_named_and_left(store: SqlStore) -> None:
    one, _ = await make_forks(store)
    state = await store.state(one)
    await store.append(one, state, draft_run_start(state))
    done = await redact(store, KEY, [2], "asked for", include_forks=True)
    assert [(copy.session_id, copy.redacted) for copy in done.forks] == [("one", False), ("two", True)]


async def test_fork_of_past_tells_removals(store: SqlStore) -> None:
    state = await begin_session(store)
    await store.append(KEY, state, draft_user_messages(CANARY, "x"))
    await redact(store, KEY, [2], "asked for")
    for at in (1, 2, 3, 4):
        fork = SessionKey("default", f"fork-{at}")
        await fork_session(store, KEY, at=at, session_id=fork.id)
        assert (await verify(store, fork)).problems == []
        told = [event.seq for event in await store.read(fork, types=["session.redacted"])]
        assert told == {1: [], 2: [4], 3: [5], 4: [4]}[at]
    await store.delete(KEY)
    assert all([verification.valid async for _, verification in verify_all(store)])


# Deleting.


async def test_deletion_shown_in_audit_log(store: SqlStore) -> None:
    await fill_store(store)
    earlier = await store.read_audit_log("default")
    head = await store.state(SHOP)
    await delete_session(store, SHOP, by="Lee", reason="asked for")
    await delete_session(store, FORK)
    first, second = await store.read_audit_log("default", after=len(earlier))
    assert (first.seq, first.type, first.by) == (len(earlier) + 1, "session.deleted", "Lee")
    assert head.hash in first.payload
    assert (second.seq, second.by) == (len(earlier) + 2, None)
    assert await store.read_audit_log("other") == []
    found = await verify_audit_log(store, "default")
    assert (found.valid, found.events, found.head) == (
        True,
        second.seq,
        Head(seq=second.seq, hash=second.hash.hex()),
    )
    assert await store.list_audit_log_tenants() == ["default"]


async def test_audit_log_change_is_found(store: SqlStore) -> None:
    for name in ("one", "two", "three"):
        await begin_session(store, SessionKey("default", name))
        await delete_session(store, SessionKey("default", name), by="Lee", reason="why")
    noted = (await verify_audit_log(store, "default")).head
    for row in await read_rows(store, audit_log):
        for column in audit_log.c:
            changed = {**row, column.name: make_other_value(column, row[column.name])}
            await change_row(store, audit_log, row, **{column.name: changed[column.name]})
            found = [await verify_audit_log(store, tenant) for tenant in await store.list_audit_log_tenants()]
            last = row["seq"] == 3 and column.name == "tenant"
            assert last or not all(verification.valid for verification in found), (row["seq"], column.name)
            await change_row(store, audit_log, changed, **{column.name: row[column.name]})
    assert noted is not None
    assert (await verify_audit_log(store, "default", noted=noted)).valid
    other = Head(seq=noted.seq, hash="0" * 64)
    rewritten = await verify_audit_log(store, "default", noted=other)
    assert [(problem.code, problem.seq) for problem in rewritten.problems] == [("rewritten", 3)]
    await remove_row(store, audit_log, (await read_rows(store, audit_log))[-1])
    assert (await verify_audit_log(store, "default")).valid
    found_at = await verify_audit_log(store, "default", noted=noted)
    assert [(problem.code, problem.seq) for problem in found_at.problems] == [("truncated", 3)]


async def test_concurrent_deletions_all_told(store: SqlStore) -> None:
    import asyncio

    keys = [SessionKey("default", f"s{number}") for number in range(16)]
    for key in keys:
        await begin_session(store, key)
    await asyncio.gather(*(delete_session(store, key) for key in keys))
    assert [entry.seq for entry in await store.read_audit_log("default", limit=100)] == list(range(1, 17))
    assert (await verify_audit_log(store, "default")).valid


async def test_deletion_leaves_nothing_readable(store: SqlStore) -> None:
    await put_canary_everywhere(store)
    await delete_session(store, KEY)
    assert CANARY not in await dump_database(store)


class RedactedMeanwhile:
    """A store in which an event is redacted once a state was read for the first time."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._is_redacted = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def sound_state(self, key: SessionKey, *, at: int | None = None) -> State:
        state = await self._store.sound_state(key, at=at)
        if not self._is_redacted:
            self._is_redacted = True
            await redact(self._store, key, [2], "asked for")
        return state


@pytest.mark.parametrize("at", [None, 3])
async def test_late_fork_of_redacted_is_clean(store: SqlStore, at: int | None) -> None:
    state = await begin_session(store, KEY)
    await store.append(KEY, state, draft_user_messages(CANARY, "more", "and more"))
    meanwhile: Any = RedactedMeanwhile(store)
    forked = await fork_session(meanwhile, KEY, at=at, session_id=OTHER.id)
    assert CANARY not in encode_text(forked)
    assert (await verify(store, OTHER)).valid
    assert CANARY not in repr(await store.state(OTHER))


async def test_concurrent_fork_named_or_clean(store: SqlStore) -> None:
    import asyncio

    for number in range(8):
        key = SessionKey("default", f"source-{number}")
        state = await begin_session(store, key)
        await store.append(key, state, draft_user_messages(CANARY, *["x"] * 50))
        done, forked = await asyncio.gather(
            redact(store, key, [2], "asked for"), fork_session(store, key, session_id=f"fork-{number}")
        )
        texts = [entry.message["content"] for entry in (await store.state(SessionKey("default", forked.id))).messages]
        assert CANARY not in texts or [copy.session_id for copy in done.forks] == [forked.id]
        assert (await verify(store, SessionKey("default", forked.id))).valid


# Every copy that the server makes of a text goes with it, from whichever copy is redacted.

OPTIONS = RunOptions(instructions=CANARY)
INSTRUCTIONS, PLAIN = f"You are A. {CANARY}", "You are A."
TOOLS = f'[{{"description":"{CANARY}"}}]'
END = RunCompleted(stop_reason="end_turn")


def ask(text: str = CANARY) -> MessageAdded:
    return MessageAdded(message={"role": "user", "content": text})


def reply(text: str | None = None, *, arguments: str = "", request: RequestRecord | None = None) -> MessageAdded:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message: dict[str, Any] = {"role": "assistant", "content": text, **({"tool_calls": [call]} if arguments else {})}
    return MessageAdded(message=message, completion=CompletionRecord(request=request))


def result(text: str, status: str = "ok", **more: Any) -> MessageAdded:
    message = {"role": "tool", "tool_call_id": "c1", "content": text}
    return MessageAdded(message=message, tool=ToolRecord(name="f", status=status, **more))


def start(arguments: str = CANARY) -> ToolStarted:
    return ToolStarted(tool_call_id="c1", name="f", arguments=arguments)


def make_request(tools: str | None = None) -> RequestRecord:
    return RequestRecord(
        instructions=digest(PLAIN if tools else INSTRUCTIONS), params={"model": "m"}, tools=tools and digest(tools)
    )


STARTED = RunStarted(options=RunOptions())
PENDING = PendingCall(tool_call_id="c1", name="f", arguments=CANARY, reason="approval")
QUEUED = RunQueued(options=RunOptions(), messages=({"role": "user", "content": "hi"},))
SUMMARY = CompactionSummarised(first_seq=2, last_seq=3, summary="short", characters=9)

# What is recorded, and the places of what is redacted; by default each that has the canary, one after the other.
STORIES: dict[str, tuple[list[SessionEvent], list[int] | None]] = {
    "messages in a summary": (
        [ask(), reply("Yes."), CompactionStarted(reason="asked", keep_turns=1, last_seq=3),
         msgspec.structs.replace(SUMMARY, summary=CANARY)],
        [0],
    ),
    "a compaction's instructions in its requests": (
        [ask("hi"), reply("Yes."), CompactionStarted(reason="asked", keep_turns=1, last_seq=3, instructions=CANARY),
         msgspec.structs.replace(SUMMARY, completion=CompletionRecord(request=make_request()))],
        [2],
    ),
    "a change of the context in the result that held it": (
        [STARTED, reply(arguments="{}"), result("ok", context=ContextChange(patch={"a": CANARY})),
         ContextUpdated(patch={"a": CANARY}, tool_call_id="c1")],
        None,
    ),
    "a run's options in each event that it begins or goes on with, and in its answers' requests": (
        [RunQueued(options=OPTIONS, messages=()), RunStarted(options=OPTIONS), ask("hi"),
         ask("ho"), RunResumed(reason="approval", options=OPTIONS),
         reply("Yes.", request=make_request())],
        None,
    ),
    "a queued run's input": (
        [msgspec.structs.replace(QUEUED, messages=({"role": "user", "content": CANARY},)), STARTED, ask()], None,
    ),
    "a queued run's context variables": (
        [msgspec.structs.replace(QUEUED, context_variables={"a": CANARY}), STARTED,
         ContextUpdated(patch={"a": CANARY}), ask("hi")],
        None,
    ),
    "a call's arguments in its approval, its waits, its start, and in what is wrong with them": (
        [STARTED, reply(arguments=CANARY), ApprovalRequested(tool_call_id="c1", name="f", arguments=CANARY),
         RunWaiting(pending=(PENDING,)), ApprovalDecided(tool_call_id="c1", decision="approve"),
         RunResumed(reason="approval"), start(), result(f"Error: {CANARY} is no number", "error")],
        [1, 2, 3, 6],
    ),
    "arguments that a person has changed": (
        [STARTED, reply(arguments="{}"), ApprovalRequested(tool_call_id="c1", name="f", arguments="{}"),
         ApprovalDecided(tool_call_id="c1", decision="approve", arguments=CANARY), start(), result(f"with {CANARY}")],
        None,
    ),
    "the reason of a denial in the result": (
        [STARTED, reply(arguments="{}"), ApprovalRequested(tool_call_id="c1", name="f", arguments="{}"),
         ApprovalDecided(tool_call_id="c1", decision="deny", reason=CANARY),
         result(f"Denied. Reason: {CANARY}", "denied")],
        None,
    ),
    "a note for the agent": (
        [SessionHandedBack(by="Lee", note=CANARY), 
         MessageAdded(message={"role": "user", "content": CANARY}, person="L")],
        None,
    ),
    "a guardrail's refusal": (
        [STARTED, ask("hi"), GuardrailTripped(stage="input", name="g", message=CANARY, messages=(3,)),
         MessageAdded(message={"role": "assistant", "content": CANARY}, guardrail="g"), END],
        None,
    ),
    "an answer in what is wrong with it": (
        [STARTED, reply(CANARY), MessageAdded(message={"role": "user", "content": f"not {CANARY}"}, correction=1),
         reply(CANARY),
         RunFailed(stop_reason="error", error=RunError(code="output_invalid", message=f"not {CANARY}"))],
        [[1, 3]],
    ),
    "all that was said before in an error": (
        [ask(), reply("Yes."), CompactionStarted(reason="asked", keep_turns=1, last_seq=3),
         CompactionFailed(code="provider_rejected", message=f"the server said {CANARY}"), STARTED, ask("hi"),
         GuardrailTripped(stage="output", name="g", message="No.", error=f"ValueError: {CANARY}"),
         RunFailed(stop_reason="error", error=RunError(code="x", message=f"the server said {CANARY}"))],
        [0],
    ),
    "a server's tools in each of its lists": (
        [ToolsListed(server="s", tools=(ListedTool(name="t"),), schemas=digest(TOOLS)), STARTED, ask("hi"),
         reply("Yes.", request=make_request(TOOLS)),
         ToolsListed(server="s", tools=(ListedTool(name="t"),), schemas=digest(f"{TOOLS} "))],
        [0, 4],
    ),
}  # fmt: skip


def list_named(name: str) -> list[list[int]]:
    """The places that are redacted, in one session each."""
    story, places = STORIES[name]
    if places is None:
        places = [place for place, fact in enumerate(story) if CANARY in str(fact)]
    return [place if isinstance(place, list) else [place] for place in places]


CASES = [(name, named) for name in COPIES for named in list_named(name)]


async def tell(store: SqlStore, name: str) -> None:
    """Record a story: from seq 2 on, in one run where it begins one."""
    await store.append(KEY, State(), draft_events("A", [SessionCreated(agent="A")], None))
    story, _ = STORIES[name]
    in_run = any(isinstance(fact, RunStarted) for fact in story)
    drafts = draft_events("A", story, "r1" if in_run else None)
    if in_run and not any(isinstance(fact, RunCompleted | RunFailed) for fact in story):
        drafts += draft_events("A", [END], "r1")
    blobs = {digest(text): text for text in (INSTRUCTIONS, PLAIN, TOOLS, f"{TOOLS} ")}
    named = {fact.schemas for fact in story if isinstance(fact, ToolsListed)} | {
        hash_
        for fact in story
        if isinstance(fact, MessageAdded | CompactionSummarised) and fact.completion and fact.completion.request
        for hash_ in (fact.completion.request.instructions, fact.completion.request.tools)
    }
    kept = {hash_: text for hash_, text in blobs.items() if hash_ in named}
    await store.append(KEY, await store.state(KEY), drafts, blobs=kept)
    await store.index_some()


def test_every_kind_of_copy_is_told() -> None:
    assert list(STORIES) == list(COPIES)


@pytest.mark.parametrize(("name", "named"), CASES)
async def test_copies_go_with_any_of_them(store: SqlStore, name: str, named: list[int]) -> None:
    await tell(store, name)
    assert WORD in await dump_database(store)
    tried = await redact(store, KEY, [place + 2 for place in named], "private", dry_run=True)
    done = await redact(store, KEY, [place + 2 for place in named], "private")
    assert tried.seqs == done.seqs
    assert WORD not in await dump_database(store)
    assert (await verify(store, KEY)).problems == []


async def test_file_keeps_no_redacted_copy(sqlite_ready: str) -> None:
    path = Path(sqlite_ready.removeprefix("sqlite:///"))
    for name, named in CASES:
        store = open_store(sqlite_ready)
        await tell(store, name)
        await redact(store, KEY, [place + 2 for place in named], "private")
        await store.index_some()
        holding = [file.name for file in path.parent.iterdir() if WORD.encode() in file.read_bytes()]
        assert holding == [], name
        await store.delete(KEY)
        await store.close()


# PostgreSQL keeps the bytes of removed rows until its tables are rewritten; then they are gone from these.


async def _execute(url: str, *statements: str) -> str:
    server = locate(url)
    assert isinstance(server, PostgresServer)
    connection = await asyncpg.connect(server.dsn, user=server.user, password=server.password)
    try:
        for statement in statements:
            await connection.execute(statement)
        directory: str = await connection.fetchval("SHOW data_directory")
        return directory
    finally:
        await connection.close()


def find_canary_files(directory: Path) -> list[str]:
    """The files of tables that hold the canary. The write-ahead log has it until its files are used again."""
    found = []
    for file in (directory / "base").rglob("*"):
        try:
            if file.is_file() and WORD.encode() in file.read_bytes():
                found.append(file.name)
        except FileNotFoundError:
            continue
    return found


async def _remove_all(url: str) -> None:
    store = open_store(url)
    state = await put_canary_everywhere(store)
    await put_canary_everywhere(store, OTHER)
    await redact(store, KEY, range(1, state.seq + 1), "asked for")
    await delete_session(store, OTHER)
    await store.close()


@pytest.mark.long
def test_vacuumed_tables_hold_no_removed_data() -> None:
    with private_postgres() as server:
        url = server.url
        schema.upgrade(url)
        asyncio.run(_remove_all(url))
        tables = ", ".join(table.name for table in (sessions, *SESSION_TABLES, *SEARCH_TABLES))
        directory = Path(asyncio.run(_execute(url, f"VACUUM FULL {tables}", "CHECKPOINT")))
        assert find_canary_files(directory) == []
