"""The table of the store's statements: calls that run all of them, and what bounds those that no index bounds alone.

A place of `store` that runs a statement which no case reaches fails `test_plans.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import pytest
from benchmarks.large_database import AGENT, RARE_AGENT, TENANT
from sqlalchemy import update

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import digest
from swarmkeep.events.errors import DomainError
from swarmkeep.events.facts import (
    EventDraft,
    MessageAdded,
    RunInterrupted,
    RunResumed,
    RunStarted,
    SessionForked,
    SessionRedacted,
    SessionUpdated,
)
from swarmkeep.events.records import CompletionRecord, RequestRecord, RunOptions, UsageQuery
from swarmkeep.events.redaction import redact_payload
from swarmkeep.events.run_table import FiguresQuery, RunFilter, RunQuery, RunSort
from swarmkeep.events.state import State
from swarmkeep.events.words import parse_terms
from swarmkeep.store.archives import ArchivedSession
from swarmkeep.store.automations import Due, StoredAutomation, StoredInvocation
from swarmkeep.store.contents import MARKS, SLICE_BYTES, copy_slice, delete_slice, insert_file
from swarmkeep.store.feed import FeedCursor, FeedFilter
from swarmkeep.store.head_log import prove_inclusion
from swarmkeep.store.index import SessionFilter
from swarmkeep.store.integrity import IntegrityKeys
from swarmkeep.store.keys import SqlApiKeys
from swarmkeep.store.made_agents import MadeAgent
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import (
    AuditAction,
    Claim,
    IdempotencyRecord,
    IdempotencyRecordExists,
    Lease,
    Restoration,
    SealedBatch,
    SessionKey,
    encode_cursor,
    make_session_cursor,
)
from swarmkeep.store.schema import mend_leftovers
from swarmkeep.store.tables import of_session, search_marks, sessions, totals
from swarmkeep.store.usage import recount_totals
from swarmkeep.store.webhooks import Delivery, DeliveryReport, Webhook
from tests.store.calls import REPLY, make_tool_result
from tests.store.sessions import draft_creation, draft_run_start, draft_user_messages, make_picture_part, new_key

BY_SESSION = "what one session has"
BY_PAGE = "what a page shows"


class Case(msgspec.Struct, frozen=True):
    """A call. `sorts` and `filters` say what bounds the rows that are sorted, or read and left out again."""

    run: Callable[[SqlStore], Awaitable[Any]]
    sorts: str = ""
    filters: str = ""
    in_order: str = ""
    """Why an index is read by the tenant alone: a page of it, in its order."""
    across: str = ""
    """Why rows of several tenants may be read."""
    whole: str = ""
    """Why whole tables may be read."""


# A session among the many, and pages from the middle of lists.
KEY = SessionKey(TENANT, "s000000001")
MIDDLE = encode_cursor(("2026-01-01T06:00:00.000000Z", "s"))
LATER = make_session_cursor(("2026-01-01T06:00:00.000000Z", "s"), "activity")
LONGEST = make_session_cursor(("2026-01-01T06:00:00.000000Z", "s"), "oldest_activity")
LEASES = {
    SessionKey(TENANT if number % 2 else "other", f"s{number:09d}"): Lease("another-server", 1) for number in range(250)
}


AUTOMATION = StoredAutomation(TENANT, "a", "{}", 0, 0)

# A file that a message refers to.
PICTURE = b"picture"
# The texts that a request was made of, which a fork copies.
TEXT = "Be kind."
REQUEST = RequestRecord(instructions=digest(TEXT))


def _list(cursor: str | None = None, **filters: Any) -> Callable[[SqlStore], Awaitable[Any]]:
    return lambda store: store.list_sessions(SessionFilter(TENANT, **filters), cursor=cursor)


def _sum(*by: Any, **query: Any) -> Callable[[SqlStore], Awaitable[Any]]:
    return lambda store: store.sum_usage(TENANT, UsageQuery(by=by, **query))


_SOME = "500 sessions of the walked range"
_WALKED: Mapping[str, Any] = {"sorts": _SOME, "filters": _SOME}
_SOME_CALLS = "the calls that the filters leave; SWARMKEEP_READ_SECONDS ends it"
_PART: Mapping[str, Any] = {"sorts": _SOME_CALLS, "filters": _SOME_CALLS, "in_order": _SOME_CALLS}
_DAYS = "a row for each day, agent and model, in 8 parts"
_OPEN = "the sessions that run, or are due"
_FEW: Mapping[str, Any] = {"sorts": _OPEN, "filters": _OPEN, "across": _OPEN}
_ACTIVE: Mapping[str, Any] = {**_FEW, "sorts": f"{_OPEN}, and the calls of the runs of a page"}

_BELOW = "the sessions of asked agents among those of the page, passed over in the index"

LISTS: Mapping[str, Case] = {
    "without children": Case(_list(children=False), filters=_BELOW, in_order=BY_PAGE),
    "without children, a later page": Case(_list(children=False, cursor=MIDDLE), filters=_BELOW, in_order=BY_PAGE),
    "agent, without children": Case(_list(children=False, agent=AGENT), filters=_BELOW),
    "waiting, without children": Case(_list(children=False, status="waiting", cursor=MIDDLE), filters=_BELOW),
    "label, without children": Case(_list(children=False, metadata={"common": "yes"}), filters=_BELOW),
    "all filters, without children": Case(
        _list(children=False, metadata={"common": "yes", "often": "yes"}, agent=AGENT, status="idle"), **_WALKED
    ),
    "list": Case(_list(), in_order=BY_PAGE),
    "list, a later page": Case(_list(cursor=MIDDLE), in_order=BY_PAGE),
    "agent": Case(_list(agent=AGENT)),
    "agent, a later page": Case(_list(agent=AGENT, cursor=MIDDLE)),
    "running": Case(_list(status="running"), **_FEW),
    "active runs": Case(lambda store: _list_active_runs(store), **_ACTIVE),
    "waiting, a later page": Case(_list(status="waiting", cursor=MIDDLE)),
    "idle": Case(_list(status="idle"), **_WALKED, in_order=BY_PAGE),
    "agent and running": Case(_list(agent=AGENT, status="running"), **_FEW),
    "agent and waiting, a later page": Case(_list(agent=AGENT, status="waiting", cursor=MIDDLE)),
    "agent and idle": Case(_list(agent=AGENT, status="idle"), **_WALKED),
    "label": Case(_list(metadata={"common": "yes"})),
    "label, a later page": Case(_list(metadata={"common": "yes"}, cursor=MIDDLE)),
    "two labels": Case(_list(metadata={"common": "yes", "often": "yes"}), **_WALKED),
    "a rare label": Case(_list(metadata={"common": "yes", "rare": "yes"}), **_WALKED),
    "label and status": Case(_list(metadata={"common": "yes"}, status="waiting"), **_WALKED),
    "label and idle": Case(_list(metadata={"common": "yes"}, status="idle", cursor=MIDDLE), **_WALKED),
    "label and agent": Case(_list(metadata={"common": "yes"}, agent=RARE_AGENT), **_WALKED),
    "failed": Case(_list(last_run="failed")),
    "interrupted, a later page": Case(_list(last_run="interrupted", cursor=MIDDLE)),
    "counts": Case(lambda store: store.count_sessions(TENANT), **_FEW),
    "completed": Case(_list(last_run="completed"), **_WALKED, in_order=BY_PAGE),
    "damaged": Case(_list(damaged=True), in_order=BY_PAGE),
    "not damaged": Case(_list(damaged=False), **_WALKED, in_order=BY_PAGE),
    "of an owner": Case(_list(assignee="billing"), in_order=BY_PAGE),
    "not found good": Case(_list(feedback="down"), in_order=BY_PAGE),
    "not found good, by activity": Case(_list(feedback="down", order="activity"), **_WALKED, in_order=BY_PAGE),
    "not found good, of no owner": Case(_list(feedback="down", assignee="none"), **_WALKED, in_order=BY_PAGE),
    "of no owner": Case(_list(assignee="none"), **_WALKED, in_order=BY_PAGE),
    "failed of an agent": Case(_list(last_run="failed", agent=AGENT), **_WALKED),
    "by activity": Case(_list(order="activity"), in_order=BY_PAGE),
    "by activity, a later page": Case(_list(order="activity", cursor=LATER), in_order=BY_PAGE),
    "by activity, of an agent": Case(_list(order="activity", agent=AGENT), **_WALKED, in_order=BY_PAGE),
    "by activity, of a rare agent": Case(_list(order="activity", agent=RARE_AGENT), **_WALKED),
    "by activity, of a few": Case(lambda store: _list_few(store), sorts=BY_SESSION, filters=BY_SESSION),
    "waiting for longest": Case(_list(order="oldest_activity", status="waiting"), in_order=BY_PAGE),
    "waiting for longest, a later page": Case(
        _list(order="oldest_activity", status="waiting", cursor=LONGEST), in_order=BY_PAGE
    ),
    "waiting for longest, of an agent": Case(
        _list(order="oldest_activity", status="waiting", agent=AGENT), **_WALKED, in_order=BY_PAGE
    ),
    "the oldest": Case(_list(order="oldest_activity"), in_order=BY_PAGE),
    "by activity, waiting and labelled": Case(
        _list(order="activity", status="waiting", metadata={"rare": "yes"}), **_WALKED
    ),
    "all filters": Case(_list(metadata={"common": "yes", "often": "yes"}, agent=AGENT, status="idle"), **_WALKED),
}
USAGE: Mapping[str, Case] = {
    "sum": Case(_sum(), sorts=_DAYS),
    "day": Case(_sum("day"), sorts=_DAYS),
    "days": Case(_sum("day", first_day="2026-01-01", last_day="2026-01-02"), sorts=_DAYS),
    "agent": Case(_sum("agent", only={"model": "model"}), sorts=_DAYS, filters=_DAYS),
    "model, a later page": Case(_sum("model", cursor=encode_cursor(("a",))), sorts=_DAYS, filters=_DAYS),
    "session": Case(_sum("session"), sorts=BY_PAGE, in_order=BY_PAGE),
    "session, a later page": Case(_sum("session", cursor=encode_cursor((KEY.id,))), sorts=BY_PAGE),
    "run": Case(_sum("run"), sorts=BY_PAGE, in_order=BY_PAGE),
    "run, a later page": Case(_sum("run", cursor=encode_cursor(("run_0005",))), sorts=BY_PAGE),
    "session and run": Case(_sum("session", "run"), sorts=BY_PAGE, in_order=BY_PAGE),
    "runs of a session": Case(_sum("run", only={"session": KEY.id}), sorts=BY_SESSION, filters=BY_SESSION),
    "sessions of a day": Case(_sum("session", first_day="2026-01-02"), **_PART),
    "runs of an agent": Case(_sum("run", only={"agent": AGENT}), **_PART),
    "shares of days": Case(_sum("day", with_shares=True), sorts=_DAYS),
    "shares of sessions": Case(_sum("session", with_shares=True), sorts=BY_PAGE, in_order=BY_PAGE),
    "shares of a run": Case(
        _sum(only={"session": KEY.id, "run": "run_0005"}, with_shares=True), sorts=BY_SESSION, filters=BY_SESSION
    ),
}
_LOOKED_AT = "1,000 runs, or those of one session"
_RUNS: Mapping[str, Any] = {"sorts": _LOOKED_AT, "filters": _LOOKED_AT}
_SOME_RUNS = "the runs that the filters leave; SWARMKEEP_READ_SECONDS ends it"
_SINCE = RunFilter(created_after="2026-01-02T00:00:00.000000Z", created_before="2026-01-03T00:00:00.000000Z")


def _list_runs(sort: RunSort = "created_at", cursor: str | None = None, **only: Any) -> Any:
    query = RunQuery(only=RunFilter(**only), sort=sort, cursor=cursor)
    return lambda store: store.list_ended_runs(TENANT, query)


RUNS: Mapping[str, Case] = {
    "all": Case(_list_runs(), in_order=BY_PAGE),
    "a later page": Case(
        _list_runs(cursor=encode_cursor(["created_at", "2026-01-02T00:00:00.000000Z", "s", "1"])), in_order=BY_PAGE
    ),
    "of a time": Case(lambda store: store.list_ended_runs(TENANT, RunQuery(only=_SINCE)), in_order=BY_PAGE),
    "of an agent": Case(_list_runs(agent=AGENT)),
    "of a model": Case(_list_runs(model="model"), **_RUNS, in_order=_LOOKED_AT),
    "failed": Case(_list_runs(status="failed")),
    "completed": Case(_list_runs(status="completed"), **_RUNS, in_order=_LOOKED_AT),
    "failed of an agent": Case(_list_runs(status="failed", agent=AGENT), **_RUNS),
    "with an error": Case(_list_runs(error="provider_failed"), **_RUNS, in_order=_LOOKED_AT),
    "of a session": Case(_list_runs(session=KEY.id, sort="latency_ms"), **_RUNS),
    "slowest": Case(_list_runs(sort="latency_ms"), in_order=BY_PAGE),
    "slow to begin, a later page": Case(
        _list_runs(sort="first_token_ms", cursor=encode_cursor(["first_token_ms", "100.5", "s", "1"])),
        in_order=BY_PAGE,
    ),
    "largest of an agent": Case(_list_runs(sort="total_tokens", agent=AGENT), **_RUNS, in_order=_LOOKED_AT),
    "largest of a rare agent": Case(_list_runs(sort="total_tokens", agent=RARE_AGENT), **_RUNS),
    "with shares": Case(
        lambda store: _list_shares(store), sorts=BY_PAGE, in_order=BY_PAGE,
        filters="calls of the same runs in other sessions",
    ),
    "figures": Case(
        lambda store: store.sum_runs(TENANT, FiguresQuery(only=_SINCE, by=("day", "agent", "model"))),
        sorts=_SOME_RUNS, filters=_SOME_RUNS, in_order=_SOME_RUNS,
    ),
}  # fmt: skip
LEASING: Mapping[str, Case] = {
    "abandoned": Case(lambda store: store.find_abandoned(), **_FEW),
    "due": Case(lambda store: store.find_due(), **_FEW),
    "renew": Case(lambda store: store.renew(LEASES, lease_seconds=15), **_FEW),
    "heads": Case(lambda store: store.read_heads(LEASES)),
    "ask for what is being said": Case(lambda store: store.ask_for_partial(KEY, "me"), **_FEW),
    "answer": Case(lambda store: store.answer_partial(KEY, Lease("o", 1), "{}"), filters=BY_SESSION),
    "clock": Case(lambda store: store.read_clock()),
}
READING: Mapping[str, Case] = {
    "state": Case(lambda store: _refused(store.state(SessionKey(TENANT, "none"), at=3))),
    "events": Case(lambda store: store.read(KEY, after=1, upto=3, limit=2, max_bytes=100)),
    "events of a type": Case(
        lambda store: store.read(KEY, types=["run.started"], limit=2, max_bytes=100), filters=BY_SESSION
    ),
    "sealed events": Case(lambda store: store.read_sealed(KEY, max_bytes=100)),
    "blobs": Case(lambda store: store.read_blobs(KEY, ["x", "y"])),
    "files": Case(lambda store: store.read_files(KEY, ["x", "y"])),
    "redacted payloads": Case(lambda store: store.read_redacted_payloads(KEY), filters=BY_SESSION),
    "idempotency key": Case(lambda store: store.find_idempotency_record(KEY, "k")),
    "rows of a session": Case(
        lambda store: store.read_snapshot(lambda db: (db.read_session_rows(KEY), db.find_replaced_tables())),
        sorts=BY_SESSION,
        filters=BY_SESSION,
    ),
    "usage of a session": Case(lambda store: store.read_snapshot(lambda db: db.read_usage_rows(KEY, after=0, upto=9))),
    "forks": Case(lambda store: store.find_copies(KEY, {1: b"x", 2: b"y"}), filters=BY_SESSION),
    "forks that there are": Case(lambda store: _find_forks(store), filters=BY_SESSION),
    "forks with large files": Case(
        lambda store: _copy_large_files(store),
        filters=BY_SESSION,
        across="once at the start of a server, a step for each tenant",
    ),
    "list of forks": Case(
        lambda store: _list_forks(store), filters=BY_SESSION, sorts="those that begin with the same event"
    ),
    "audit log": Case(lambda store: store.read_audit_log(TENANT, after=1)),
    "a check": Case(lambda store: _check(store), sorts=BY_SESSION, filters=BY_SESSION),
    "a part": Case(lambda store: _refused(store.sound_state(KEY, at=1)), sorts=BY_SESSION, filters=BY_SESSION),
    "what was found": Case(lambda store: store.find_damaged_seq(KEY)),
    "no stamp": Case(lambda store: store.has_unstamped(), across="the first of any", whole="the first of any"),
    "tenants": Case(lambda store: store.list_audit_log_tenants(), across="an offline command, a step for each tenant"),
    "all sessions": Case(
        lambda store: store.list_session_keys(), across="an offline command; pages in the order of the key"
    ),
    "all sessions, a later page": Case(
        lambda store: store.list_session_keys(after=KEY), across="an offline command; pages in the order of the key"
    ),
    "sessions of a tenant": Case(lambda store: store.list_session_keys(TENANT, after=KEY)),
}
KEYS: Mapping[str, Case] = {
    "make": Case(lambda store: SqlApiKeys(store.database).create(TENANT, name="k")),
    "make once": Case(lambda store: _twice(lambda: SqlApiKeys(store.database).create_once(TENANT, "k"))),
    "use": Case(lambda store: SqlApiKeys(store.database).note_use("key_1"), filters="one key"),
    "are there any": Case(lambda store: SqlApiKeys(store.database).has_keys(), across="the first of any"),
    "keys": Case(lambda store: _list_keys(store), filters=BY_PAGE),
    "keys of all tenants": Case(
        lambda store: SqlApiKeys(store.database).list_keys(), across="an offline command", sorts="an offline command"
    ),
    "revoke": Case(lambda store: _revoke(store), filters="one key"),
}
COUNTING: Mapping[str, Case] = {
    "totals": Case(lambda store: store.read_totals(TENANT)),
    "totals of all tenants": Case(lambda store: store.list_totals(), across="an offline command, 64 rows a tenant"),
    "recount": Case(
        lambda store: _recount(store), across="an offline command", whole="it counts everything", filters="one row"
    ),
    "leftovers": Case(
        lambda store: _mend_leftovers(store),
        across="an offline command",
        sorts="an offline command",
        whole="it looks at everything",
        filters="an offline command",
    ),
}
CHANGES: Mapping[str, Case] = {
    "runs": Case(lambda store: _end_run_twice(store), filters=BY_SESSION),
    "session": Case(lambda store: _change_session(store), sorts=BY_SESSION, filters=BY_SESSION),
}
_FOUND = "the messages that have the words, 50,000 at most; SWARMKEEP_READ_SECONDS ends it"
_MARKED = "rows are found by words, each of which begins with its tenant's mark"
_BEHIND = "the sessions that are behind"
SEARCHING: Mapping[str, Case] = {
    "index": Case(
        lambda store: _index(store), sorts=BY_SESSION, filters=_BEHIND, across=_BEHIND, whole="one row, by its index"
    ),
    "words": Case(lambda store: _search(store), sorts=_FOUND, filters=_FOUND, across=_MARKED),
    "words, with filters": Case(
        _list(
            terms=parse_terms("words"),
            agent=AGENT,
            metadata={"common": "yes"},
            active_after="2026",
            active_before="2027",
            cursor=MIDDLE,
        ),
        sorts=_FOUND,
        filters=_FOUND,
        across=_MARKED,
    ),
    "no words": Case(_list(terms=())),
    "a time": Case(_list(active_after="2026", active_before="2027", order="activity"), in_order=BY_PAGE),
    "index anew": Case(
        lambda store: store.void_search_index(),
        across="an offline command",
        whole="it indexes everything",
        filters="an offline command",
    ),
}
HEAD_LOG: Mapping[str, Case] = {
    "add": Case(
        lambda store: _add_heads(store),
        filters="sessions whose last leaf is where they end",
        in_order="pages of the tenant's sessions, when a checkpoint is made",
    ),
    "checkpoint": Case(
        lambda store: store.add_checkpoint(TENANT, "2026-01-01T00:00:00.000000Z", lambda *_: "note", lambda _: True)
    ),
    "find": Case(
        lambda store: store.find_leaf(KEY, 1000),
        sorts="the leaves of a session, one for each checkpoint that found it changed",
        filters="leaves of later checkpoints",
    ),
    "list": Case(lambda store: store.read_leaves(TENANT, after=5, limit=50), sorts=BY_PAGE),
    # There are not so many leaves, which is found out by looking for them.
    "prove": Case(
        lambda store: _refused(store.compute_from_tree(TENANT, lambda node: prove_inclusion(3, 10**9, node)))
    ),
}

_PLACE = FeedCursor(1, 0)
_CONSUMER = "crm"


async def _read_feed(store: SqlStore) -> None:
    for wanted in (
        FeedFilter(),
        FeedFilter(types=["message.added", "run.completed"], agents=[AGENT], metadata={"customer": "c1"}),
    ):
        await store.read_feed(TENANT, _PLACE, wanted, limit=50, max_bytes=100_000)


async def _publish(store: SqlStore) -> None:
    await store.append(new_key("fed", TENANT), State(), draft_creation())
    await store.publish(TENANT, seconds=0.5)


FEED: Mapping[str, Case] = {
    "publish": Case(
        _publish,
        filters="sessions that are published whole",
        in_order="pages of the tenant's sessions, when its feed is read for the first time",
        sorts="what was published of a few sessions",
    ),
    "publish more": Case(
        lambda store: store.publish(TENANT, ids=[KEY.id], since="2026-01-01T00:00:00.000000Z", seconds=0.5),
        filters="sessions that are published whole, of those in which something happened last",
        in_order="pages of the tenant's sessions",
        sorts="what was published of a few sessions",
    ),
    "read": Case(_read_feed, filters="events of other kinds, up to a bound", sorts=BY_PAGE),
    "end": Case(lambda store: store.find_feed_end(TENANT)),
    "move": Case(lambda store: store.move_consumer(TENANT, _CONSUMER, _PLACE, "2026-01-01T00:00:00.000000Z")),
    "consumer": Case(lambda store: store.read_consumer(TENANT, _CONSUMER)),
    "consumers": Case(lambda store: store.list_consumers(TENANT), sorts="by name, up to 1,000"),
    "lags": Case(
        lambda store: store.list_consumers(),
        whole="the places of all consumers, up to 1,000",
        sorts="by tenant and name",
        filters="the ends of feeds",
        across="for the metrics of a server",
    ),
    "forget": Case(lambda store: store.delete_consumer(TENANT, _CONSUMER)),
}

_NOW = "2026-01-01T00:00:00.000000Z"

_HOOK = Webhook(
    tenant=TENANT, id="wh", url="https://example.com/", wanted=FeedFilter(types=["run.completed"]), secrets=(),
    state="enabled", created_at=_NOW, updated_at=_NOW, cursor=_PLACE, failures=3,
)  # fmt: skip
_DEAD = Delivery(cursor=FeedCursor(1, 1), session_id=KEY.id, next_at=None)
_WAITING = Delivery(cursor=FeedCursor(2, 2), session_id=KEY.id)
_CHANGED = AuditAction(type="webhook.updated")


async def _send(store: SqlStore) -> None:
    """A webhook from its beginning to its end."""
    await store.create_webhook(_HOOK, most=9, by=None)
    await store.claim_webhooks("me", lease_seconds=30.0)
    report = DeliveryReport(failures=0, sent=[_DEAD], kept=[_DEAD, _WAITING], is_delivered=True, is_gone=True)
    assert await store.settle_webhook(_HOOK, "me", report, cursor=_PLACE, at="2026-01-02T00:00:00Z")
    await store.list_deliveries(TENANT, _HOOK.id, dead=True, after=_PLACE, limit=50)
    await store.resend_delivery(TENANT, _HOOK.id, _DEAD.cursor, by=None, at=_NOW)
    assert await store.list_due_deliveries(_HOOK, _NOW, limit=50)
    assert await store.count_waiting(_HOOK, [KEY.id]) == (2, {KEY.id})
    await store.change_webhook(
        TENANT, _HOOK.id, lambda one: msgspec.structs.replace(one, state="paused"), _CHANGED, _NOW
    )
    await store.change_webhook(
        TENANT, _HOOK.id, lambda one: msgspec.structs.replace(one, state="enabled"), _CHANGED, _NOW
    )
    await store.release_webhooks("me")
    await store.delete_webhook(TENANT, _HOOK.id, by=None, at=_NOW)


WEBHOOKS: Mapping[str, Case] = {
    "send": Case(
        _send,
        filters="webhooks that others send; deliveries that were given up, or are of other sessions",
        whole="the webhooks of all tenants, by the server that sends them",
        across="a server sends those of every tenant",
        in_order="the end of the audit log",
        sorts="deliveries of a session that wait, up to a page",
    ),
    "list": Case(lambda store: store.list_webhooks(TENANT), sorts="by age, up to the most"),
    "lags": Case(
        lambda store: store.list_webhook_lags(),
        whole="the webhooks of all tenants, up to 1,000",
        sorts="by tenant and id",
        filters="the ends of feeds",
        across="for the metrics of a server",
    ),
}


def _make_archived(key: SessionKey, state: State) -> ArchivedSession:
    return ArchivedSession(
        key=key, name="object", seq=state.seq, hash=bytes.fromhex(state.hash), sha256=b"", size=1, state="archived",
        at=_NOW,
    )  # fmt: skip


async def _archive(store: SqlStore) -> None:
    """A session there and back."""
    key = new_key("archived", TENANT)
    state = (await store.append(key, State(), draft_creation())).state
    state = (await store.append(key, state, draft_user_messages("hello"), blobs={digest(TEXT): TEXT})).state
    rows = await store.read_sealed(key)
    record = _make_archived(key, state)
    await store.begin_upload(record)
    await store.archive(record, AuditAction(type="session.archived"))
    await store.archive(record, AuditAction(type="session.archived"))
    assert await store.find_archived(key) is not None
    assert await store.list_archived_family(key) == [key]
    await store.put_back(record, [SealedBatch(rows, {digest(TEXT): TEXT}, {"f": b"file"})], _NOW)
    await store.forget_object(record)


ARCHIVE: Mapping[str, Case] = {
    "list": Case(
        lambda store: store.list_archivable(TENANT, "2027", copied_before="2026", limit=5),
        in_order="pages of the tenant's sessions, the longest unused first",
        filters="sessions that are busy, or archived",
        sorts=BY_PAGE,
    ),
    "there and back": Case(
        _archive, filters="other states of a session's objects", in_order="the end of the audit log"
    ),
    "copy": Case(lambda store: store.find_copy(KEY), filters="other states of a session's objects"),
    "any": Case(lambda store: store.has_archived(), across="at the start of a server"),
    "family": Case(
        lambda store: store.list_archived_family(KEY), filters="forks that are not archived", sorts=BY_SESSION
    ),
    "garbage": Case(
        lambda store: store.list_garbage(_NOW, 5), across="objects of every tenant", filters="uploads that go on"
    ),
    "feed": Case(
        lambda store: store.list_archived_in_feed(TENANT, FeedCursor(1, 0)), filters="a part of the feed", sorts=BY_PAGE
    ),
}


async def _erase_person(store: SqlStore) -> None:
    """A session of a person's, whose key is looked up and erased."""
    key, store.person = new_key("person", TENANT), "customer"
    try:
        state = (await store.append(key, State(), draft_creation(metadata={"customer": key.id}))).state
        await store.append(key, state, draft_user_messages("hello"))
        [id] = await store.find_person_keys(TENANT, key.id)
        await store.refuse_erased(key)
        store.keyring.forget(id)
        assert (
            await store.list_encrypted(TENANT, id) == await store.list_encrypted(TENANT, id, unredacted=True) == [key]
        )
        log = await store.read_sealed(key)
        stand_ins = {one.event.seq: redact_payload(one.event) for one in log}
        await store.redact(key, log, stand_ins, draft_redaction(1), erases=True)
        assert await store.erase_person_key(id, AuditAction(type="person.erased"), 1)
    finally:
        store.person = None


PEOPLE: Mapping[str, Case] = {
    "": Case(
        _erase_person,
        sorts="the sessions of a person",
        filters="one person's keys and sessions",
        in_order="the end of the audit log",
    ),
    "elsewhere": Case(
        lambda store: store.has_keys_elsewhere(),
        across="as a server starts",
        whole="as a server starts",
        filters="erased ones, and those here",
    ),
}

_KEPT = "the last 200 of an automation"
_TOGETHER = "what is due in the same second"
_DUE = Due(TENANT, "a", 1, 0)

AUTOMATIONS: Mapping[str, Case] = {
    "make": Case(lambda store: _twice(lambda: store.add_automation(AUTOMATION))),
    "make, told": Case(
        lambda store: _refused(store.add_automation(StoredAutomation(TENANT, "b", "{}", session_id="none")))
    ),
    "find": Case(lambda store: store.find_automation(TENANT, "a")),
    "list": Case(lambda store: store.list_automations(TENANT)),
    "change": Case(lambda store: store.change_automation(TENANT, "a", lambda known: known)),
    "invoke": Case(
        lambda store: store.invoke_automation(TENANT, "a", lambda known, _: (known, "{}", 0)), filters=_KEPT
    ),
    "invocations": Case(lambda store: store.list_invocations(TENANT, "a")),
    "forget": Case(lambda store: store.delete_invocations(TENANT, "a", [1])),
    "due": Case(lambda store: store.list_due_automations(1, 9), across="each server begins what is due"),
    "due, invocations": Case(lambda store: store.list_due_invocations(1, 9), across="each server begins what is due"),
    "postpone": Case(lambda store: store.postpone(Due(TENANT, "a", 0, 0), 1), filters=_TOGETHER),
    "postpone, invocation": Case(lambda store: store.postpone(_DUE, 1), filters=_TOGETHER),
    "due, read": Case(lambda store: store.find_due_invocation(_DUE), filters=_TOGETHER),
    "finish": Case(lambda store: store.finish_invocation(StoredInvocation(TENANT, "a", 1, "{}", 0)), filters=_TOGETHER),
    "delete": Case(lambda store: store.delete_automation(TENANT, "a")),
}

_MADE = MadeAgent(tenant=TENANT, id="a", data="{}", created_at=0, updated_at=0)
MADE_AGENTS: Mapping[str, Case] = {
    "make": Case(lambda store: _twice(lambda: store.add_made_agent(_MADE, by=None))),
    "find": Case(lambda store: store.find_made_agent(TENANT, "a")),
    "find, a version": Case(lambda store: store.find_made_agent(TENANT, "a", 1)),
    "list": Case(lambda store: store.list_made_agents(TENANT), sorts="at most 1,000 of a tenant"),
    "read": Case(lambda store: store.read_made_agents(TENANT, ["a", "b"])),
    "change": Case(lambda store: store.change_made_agent(_MADE, "[]", at=1, by=None), filters="the last 100 versions"),
    "delete": Case(lambda store: store.delete_made_agent(TENANT, "a", by=None)),
}

CASES: Mapping[str, Mapping[str, Case]] = {
    "people": PEOPLE,
    "automations": AUTOMATIONS,
    "made agents": MADE_AGENTS,
    "archive": ARCHIVE,
    "feed": FEED,
    "webhooks": WEBHOOKS,
    "head log": HEAD_LOG,
    "lists": LISTS,
    "usage": USAGE,
    "runs": RUNS,
    "leases": LEASING,
    "reading": READING,
    "keys": KEYS,
    "counting": COUNTING,
    "changes": CHANGES,
    "searching": SEARCHING,
}


async def _list_shares(store: SqlStore) -> None:
    await _end_run_twice(store)
    await store.list_ended_runs(TENANT, RunQuery(with_shares=True))


async def _end_run_twice(store: SqlStore) -> None:
    key, ended = new_key("ended", TENANT), RunInterrupted(stop_reason="interrupted")
    facts = [RunStarted(options=RunOptions()), ended]
    begun = await store.append(key, State(), [*draft_creation(), *draft_events(AGENT, facts, "r")])
    await store.append(key, begun.state, draft_events(AGENT, [RunResumed(reason="recovery"), ended], "r"))


async def _refused(call: Awaitable[Any]) -> None:
    with pytest.raises((DomainError, IdempotencyRecordExists)):
        await call


async def _twice(call: Callable[[], Awaitable[Any]]) -> None:
    await call()
    await call()


async def _add_heads(store: SqlStore) -> None:
    await store.append(new_key("headed", TENANT), State(), draft_creation())
    await store.append(new_key("headed", TENANT), State(), draft_creation())
    await store.record_action(TENANT, AuditAction(type="key.created"))
    await _twice(lambda: store.add_heads(TENANT))


async def _list_active_runs(store: SqlStore) -> None:
    key = new_key("active", TENANT)
    state = (await store.append(key, State(), draft_creation())).state
    await store.append(key, state, draft_run_start(state), lease=Claim("a", 60))
    assert (await store.list_active_runs(TENANT, "running")).runs
    await store.list_active_runs(TENANT, "waiting", cursor=MIDDLE)


async def _check(store: SqlStore) -> None:
    """A session that is found damaged, by its text and its file, and mended; and its stamp."""
    key = new_key("checked", TENANT)
    name = hashlib.sha256(PICTURE).hexdigest()
    made = await store.append(key, State(), draft_creation())
    reply = CompletionRecord(request=REQUEST)
    said = [EventDraft(MessageAdded(message={"role": "assistant", "content": "hi"}, completion=reply), None, "Triage")]
    drafts = [*draft_user_messages([make_picture_part(PICTURE)]), *said]
    await store.append(key, made.state, drafts, blobs={name: PICTURE, digest(TEXT): TEXT})
    await store.check(key)
    change = update(sessions).where(*of_session(sessions, key))
    for agent in ("Somebody", "Triage"):
        await store.database.write(lambda db, agent=agent: db.execute(change.values(agent=agent)))  # type: ignore[misc]
        await store.check(key)
    stamping = SqlStore(store.database, display="", integrity_keys=IntegrityKeys("a key"))
    assert await stamping.stamp(key, unstamped=True) == "stamped"
    await store.delete(key)


async def _list_few(store: SqlStore) -> None:
    await store.append(SessionKey(TENANT, "one-of-few"), State(), draft_creation(agent="Ann"))
    assert (await store.list_sessions(SessionFilter(TENANT, agent="Ann", order="activity"))).sessions


async def _list_keys(store: SqlStore) -> None:
    keys = SqlApiKeys(store.database)
    made, _ = await keys.create(TENANT)
    await keys.list_keys(tenant=TENANT, after=made.id, limit=50)


async def _revoke(store: SqlStore) -> None:
    keys = SqlApiKeys(store.database)
    made, _ = await keys.create(TENANT)
    await keys.revoke(made.id)


async def _search(store: SqlStore) -> None:
    page = await store.list_sessions(SessionFilter(TENANT, terms=parse_terms("whatever wordy")))
    assert [one.matches for one in page.sessions]


async def _index(store: SqlStore) -> None:
    key = new_key("searched", TENANT)
    state = (await store.append(key, State(), draft_creation(metadata={"a": "whatever wordy"}))).state
    await store.append(key, state, draft_user_messages("whatever wordy words"))
    assert await store.index_some()
    # As damage leaves it: up to an event that is not there.
    further = update(search_marks).where(*of_session(search_marks, key)).values(seq=search_marks.c.seq + 1)
    await store.database.write(lambda connection: connection.execute(further))
    while await store.index_some():
        pass
    assert await store.count_sessions_behind() == 0


async def _recount(store: SqlStore) -> None:
    await store.append(SessionKey(TENANT, "counted"), State(), draft_creation())
    await store.database.write(lambda connection: connection.execute(update(totals).values(bytes=0)))
    assert await recount_totals(store.database, mend=True)


async def _mend_leftovers(store: SqlStore) -> None:
    key = SessionKey(TENANT, "left")
    await store.append(key, State(), draft_creation())
    await store.database.write(
        lambda connection: connection.execute(update(sessions).where(*of_session(sessions, key)).values(active_at=""))
    )
    found = await mend_leftovers(store, mend=True)
    assert found.sessions == 1


async def _find_forks(store: SqlStore) -> None:
    key, other = SessionKey(TENANT, "origin"), SessionKey(TENANT, "copy")
    state = (await store.append(key, State(), draft_creation())).state
    forked = SessionForked(from_session_id=key.id, from_seq=state.seq, from_hash=state.hash)
    await store.fork(key, state, other, draft_events("Ann", [forked], None))
    await store.find_copies(key, {1: b"x"})


async def _copy_large_files(store: SqlStore) -> None:
    """A fork that is made, one that is refused, and one whose process died."""
    key, copy = SessionKey(TENANT, "large"), SessionKey(TENANT, "large-copy")
    state = (await store.append(key, State(), draft_creation())).state
    large = {hashlib.sha256(content).hexdigest(): content for content in (b"a" * SLICE_BYTES, b"b" * SLICE_BYTES)}
    shown = draft_user_messages([make_picture_part(content) for content in large.values()])
    state = (await store.append(key, state, shown, blobs=dict(large))).state
    forked = SessionForked(from_session_id=key.id, from_seq=state.seq, from_hash=state.hash)
    drafts = draft_events("Ann", [forked], None)
    await _refused(store.fork(key, state, copy, drafts, redacted=1))
    await store.database.write(lambda connection: copy_slice(connection, key, copy, list(large)))
    await store.remove_abandoned_copies()
    await store.fork(key, state, copy, drafts)
    await _refused(store.fork(key, state, copy, drafts))
    await store.database.write(lambda connection: delete_slice(connection, copy, list(large)))
    mark = SessionKey(TENANT, MARKS)
    await store.database.write(lambda connection: insert_file(connection, mark, copy.id, b""))
    await store.remove_abandoned_copies()


async def _list_forks(store: SqlStore) -> None:
    key, other = SessionKey(TENANT, "listed-origin"), SessionKey(TENANT, "listed-copy")
    state = (await store.append(key, State(), draft_creation())).state
    forked = SessionForked(from_session_id=key.id, from_seq=state.seq, from_hash=state.hash)
    await store.fork(key, state, other, draft_events("Ann", [forked], None))
    latest = make_session_cursor(("2999-01-01T00:00:00.000000Z", "s"), "created")
    for cursor in (None, latest):
        assert [one.id for one in (await store.list_forks(key, cursor=cursor)).sessions] == [other.id]


def draft_redaction(seq: int) -> EventDraft:
    return EventDraft(SessionRedacted(seqs=(seq,), reason="r", by="me"), None, "Ann")


async def _change_session(store: SqlStore) -> None:
    """One after the other, all that changes the rows of a session."""
    key, copy = SessionKey(TENANT, "changed"), SessionKey(TENANT, "changed-copy")
    made = IdempotencyRecord(key="made", digest="d")
    texts = {digest(TEXT): TEXT}
    files = {hashlib.sha256(PICTURE).hexdigest(): PICTURE}
    state = (await store.append(key, State(), draft_creation(), idempotency=made, blobs=texts)).state
    shown = draft_user_messages([make_picture_part(PICTURE)])
    state = (await store.append(key, state, shown, blobs=dict(files))).state
    shown_seq = state.seq
    await store.read_snapshot(lambda db: db.read_session_rows(key))
    await _refused(store.append(key, State(), draft_creation(), idempotency=made))
    await _refused(store.append(SessionKey(TENANT, "again"), State(), draft_creation(), idempotency=made))
    await _refused(store.append(key, State(), []))
    reply = MessageAdded(message=REPLY, completion=CompletionRecord(model="x", request=REQUEST))
    calls = draft_events("Ann", [reply, make_tool_result()], "r")
    stale = state
    state = (await store.append(key, state, calls, lease=Claim("me", 15.0))).state
    await _refused(store.append(key, stale, calls))
    await _refused(store.append(key, state, calls, lease=Lease("somebody", 7)))
    named = SessionUpdated(metadata={"team": "a"})
    used = IdempotencyRecord(key="used", digest="d")
    begun = RunStarted(options=RunOptions(), idempotency_key="used")
    state = (await store.append(key, state, draft_events("Ann", [named, begun], "r2"), idempotency=used)).state
    await _refused(store.append(key, state, draft_user_messages("x"), idempotency=used))
    forked = SessionForked(from_session_id=key.id, from_seq=state.seq, from_hash=state.hash)
    drafts = draft_events("Ann", [forked], None)
    await store.fork(key, state, copy, drafts, idempotency=IdempotencyRecord(key="fork", digest="d"))
    sealed = await store.read_sealed(copy)
    await store.delete(copy, by="me")
    await _refused(store.delete(copy))
    await _refused(store.delete(key, expected=stale))
    batches = [SealedBatch(sealed, texts, files)]
    own = await store.read_sealed(key)
    given = [SealedBatch(own)]
    copied = Restoration(copy, lambda: batches, lambda _: [])
    again = Restoration(SessionKey(key.tenant, "again"), lambda: given, lambda _: [])
    await store.restore([copied, again], action=AuditAction(type="session.imported"))
    log = await store.read_sealed(key)
    said = [one.event for one in log if one.event.type in ("message.added", "run.started")]
    assert {one.seq for one in said} > {shown_seq}, "one refers to the picture"
    await store.redact(key, log, {one.seq: redact_payload(one) for one in said}, draft_redaction(said[0].seq))
    await _refused(store.append(key, await store.state(key), draft_user_messages("x"), idempotency=used))
    await store.delete(key)
