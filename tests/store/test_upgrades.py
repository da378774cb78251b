"""A database of every earlier revision, with rows in it, becomes one of this release and keeps them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, get_args

import pytest
from sqlalchemy import Connection, MetaData, insert, select, text

import swarmkeep_migrations
from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.facts import MessageAdded, RunError, RunFailed, RunStarted
from swarmkeep.events.records import CompletionRecord, RequestRecord, RunOptions
from swarmkeep.events.state import State
from swarmkeep.store import schema
from swarmkeep.store.archives import ArchivedSession
from swarmkeep.store.automations import StoredAutomation
from swarmkeep.store.feed import BEGINNING, FeedCursor, FeedFilter
from swarmkeep.store.keys import Role, SqlApiKeys
from swarmkeep.store.made_agents import MadeAgent
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.person_keys import take_key
from swarmkeep.store.records import IdempotencyRecord, SessionKey
from swarmkeep.store.usage import COUNTED, SUMS, recount_totals
from swarmkeep.store.webhooks import Delivery, DeliveryReport, Secret, Webhook
from tests.store.calls import REPLY, make_reply, make_tool_result, record_calls
from tests.store.conftest import Opener
from tests.store.sessions import draft_creation, draft_fork, draft_user_messages

Rows = dict[str, list[dict[str, Any]]]

# What the rows of an older table have in the columns that came later.
DEFAULTS: dict[str, dict[str, Any]] = {
    "sessions": {"due_at": None, "partial": None, "last_run": None},
    "api_keys": {"role": "write", "last_used_at": None, "expires_at": None},
}
# Made by the migrations that add them, from the events and from the rows of calls.
REBUILT = {"usage", "usage_days", "runs"}


def reflect(connection: Connection) -> dict[str, Any]:
    """The tables that there are, as the database describes them: values come as they are stored."""
    found = MetaData()
    # The index of words is made anew from the events.
    found.reflect(connection, only=lambda name, _: not name.startswith(("search", "alembic_")))
    return dict(found.tables)


def read_rows(connection: Connection) -> Rows:
    rows = {
        name: sorted((dict(row) for row in connection.execute(select(table)).mappings()), key=repr)
        for name, table in reflect(connection).items()
    }
    if "usage_days" in rows:
        rows["usage_days"] = merge_parts(rows["usage_days"])
    return rows


def merge_parts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sums are in several parts; what counts is what they come to."""
    merged: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        group = tuple(row[name] for name in ("tenant", "day", "agent", "model"))
        whole = merged.setdefault(group, {**row, "part": 0} | dict.fromkeys(SUMS, 0))
        for name in SUMS:
            whole[name] += row[name]
    return sorted(merged.values(), key=repr)


def insert_rows(connection: Connection, rows: Rows) -> dict[str, set[str]]:
    """Insert rows into the tables and columns that there are, and return those."""
    tables = reflect(connection)
    columns = {name: {column.name for column in table.c} for name, table in tables.items()}
    for name, table in tables.items():
        connection.execute(insert(table), [{column: row[column] for column in columns[name]} for row in rows[name]])
    return columns


async def record_everything(store: SqlStore) -> dict[SessionKey, State]:
    """A row in every table, and in the index of usage every kind of row that there can be."""
    keys = [SessionKey("default", "a"), SessionKey("tenant \0 two", '"b"'), SessionKey("default", "f")]
    details = {"prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 2}}
    request = RequestRecord(instructions="", params={"model": "asked"})
    odd = {"prompt_tokens": "9", "completion_tokens": True, "total_tokens": -4, "prompt_tokens_details": [1]}
    first = await record_calls(
        store,
        keys[0],
        make_reply("x", prompt_tokens=10, completion_tokens=5, total_tokens=15, **details),
        make_tool_result(),
        make_reply(None, ms=1e300, total_tokens=2**62),
        *(make_reply(name) for name in ("", "\0", '"quoted"', "\ud800 é", "😀", "a\tb")),
        MessageAdded(message=REPLY, completion=CompletionRecord(request=request)),
    )
    second = await record_calls(store, keys[1], make_reply(**odd), make_tool_result(-1.0), agent='"\udfff', run="\0")
    # More messages than the migration reads at once, some of which are no calls.
    await record_calls(store, SessionKey("default", "long"), *(make_reply(total_tokens=n) for n in range(1100)))
    fork = (await store.fork(keys[0], first, keys[2], draft_fork(first))).state
    drafts = draft_events("Ann", [make_reply("y", total_tokens=7)], "r2")
    record = IdempotencyRecord(key="k", digest="d", run_id="r2")
    forked = await store.append(keys[2], fork, drafts, idempotency=record, blobs={"name": "text \0", "file": b""})
    error = RunError(code='"odd \0', message="x")
    failed = RunFailed(stop_reason="\ud800", error=error)
    run = [RunStarted(options=RunOptions()), make_reply('"m"', total_tokens=2**62), make_tool_result(), failed]
    for key, state in ((keys[1], second), (keys[2], forked.state)):
        await store.append(key, state, draft_events('"\udfff', run, "\0 run"))
    made = IdempotencyRecord(key='"made', digest="d")
    begin = draft_creation(metadata={"k": "v"})
    plain = (await store.append(SessionKey("default", "m"), State(), begin, idempotency=made)).state
    await store.append(SessionKey("default", "m"), plain, draft_user_messages("hi"))
    await store.append(SessionKey("default", "gone"), State(), draft_creation())
    await store.delete(SessionKey("default", "gone"), by="me")
    for tenant in ("default", keys[1].tenant):
        await store.add_heads(tenant)
        await store.add_checkpoint(tenant, "2026-01-01T00:00:00Z", lambda *_: "note \0", lambda _: True)
        await store.publish(tenant)
        await store.move_consumer(tenant, "consumer", BEGINNING, "2026-01-01T00:00:00Z")
    hook = Webhook(
        tenant=keys[1].tenant, id="wh", url='"u', wanted=FeedFilter(metadata={"\0": "\ud800"}), secrets=(Secret("s"),),
        state="enabled", created_at="2026", updated_at="2026", cursor=BEGINNING, error="\0", delivered_at="2026",
    )  # fmt: skip
    await store.create_webhook(hook, most=1, by=None)
    await store.claim_webhooks("me", lease_seconds=30.0)
    waiting = [Delivery(cursor=FeedCursor(1, 1), session_id=keys[1].id, error="\ud800")]
    report = DeliveryReport(failures=1, kept=waiting)
    assert await store.settle_webhook(hook, "me", report, cursor=BEGINNING, at="2026-01-02T00:00:00Z")
    copy = ArchivedSession(
        key=keys[1], name="o \0", seq=1, hash=b"h", sha256=b"s", size=1, state="uploading", at="2026-01-01T00:00:00Z"
    )
    await store.begin_upload(copy)
    await store.database.write(lambda connection: take_key(connection, "default", b"a person", "2026-01-01T00:00:00Z"))
    key, _ = await SqlApiKeys(store.database).create("default", name="k", role="read")
    await SqlApiKeys(store.database).note_use(key.id)
    await store.add_automation(StoredAutomation("default", "a \0", "{}", 0, 1))
    await store.invoke_automation("default", "a \0", lambda known, _: (known, '"\ud800"', 1))
    await store.add_made_agent(
        MadeAgent(tenant="default", id="agent", data='"\ud800"', created_at=1, updated_at=1), by=None
    )
    due = text("UPDATE sessions SET due_at = 1.5 WHERE id = 'm'")
    await store.database.write(lambda connection: connection.execute(due).rowcount)
    return {key: await store.state(key) for key in keys}


class Recorded(NamedTuple):
    rows: Rows
    states: dict[SessionKey, State]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A row in every table of this release. Either kind of database has the same, as those of a backup show."""
    url = f"sqlite:///{tmp_path_factory.mktemp('recorded') / 'swarmkeep.db'}"
    schema.upgrade(url)

    async def record() -> Recorded:
        store = open_store(url)
        states = await record_everything(store)
        rows = await store.database.read(read_rows)
        await store.close()
        return Recorded(rows, states)

    found = asyncio.run(record())
    assert all(found.rows.values()), "a table without a row shows nothing"
    return found


@pytest.mark.parametrize(
    "revision",
    [
        pytest.param(revision, marks=pytest.mark.long)
        for revision in (*swarmkeep_migrations.REVISIONS[1:-1], *swarmkeep_migrations.STEPS)
    ]
    + [swarmkeep_migrations.REVISIONS[0]],
)
async def test_an_upgrade_keeps_the_rows(database_url: str, recorded: Recorded, revision: str) -> None:
    url, rows = database_url, dict(recorded.rows)
    await asyncio.to_thread(schema.upgrade, url, revision)
    older = open_store(url)
    columns = await older.database.write(lambda connection: insert_rows(connection, rows))
    await older.close()
    await asyncio.to_thread(schema.upgrade, url)

    upgraded = open_store(url)
    tables: list[None] = []
    assert await recount_totals(upgraded.database, mend=False, on_table=lambda: tables.append(None)) == []
    assert len(tables) == len(COUNTED)
    found = await upgraded.database.read(read_rows)
    # Counted again, all in one slice of each tenant.
    assert found.pop("totals")
    assert rows.pop("totals")
    assert found.keys() == rows.keys()
    for name, table in rows.items():
        added = {
            column: value for column, value in DEFAULTS.get(name, {}).items() if column not in columns.get(name, ())
        }
        kept = name in columns or name in REBUILT
        assert found[name] == sorted(({**row, **added} for row in table if kept), key=repr), name
    states = {key: await upgraded.state(key) for key in recorded.states}
    await upgraded.close()
    assert states == recorded.states
    assert schema.check(url) == []


async def test_filled_database_goes_down_and_up(url: str, opener: Opener, recorded: Recorded) -> None:
    store = opener()
    await store.database.write(lambda connection: insert_rows(connection, recorded.rows))
    await store.close()
    await asyncio.to_thread(schema.downgrade, url, "base")
    await asyncio.to_thread(schema.upgrade, url)
    found = await opener().database.read(read_rows)
    assert found.keys() == recorded.rows.keys()
    assert not any(found.values())
    assert schema.check(url) == []


async def test_downgrade_leaves_no_stronger_key(url: str, opener: Opener) -> None:
    store = opener()
    keys = SqlApiKeys(store.database)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    made: dict[str, str] = {}
    for role in get_args(Role):
        made[(await keys.create("default", role=role))[0].id] = role
    ending, _ = await keys.create("default", expires_at=tomorrow)
    await store.close()
    await asyncio.to_thread(schema.downgrade, url, "0005")
    await asyncio.to_thread(schema.upgrade, url)
    upgraded = opener()
    found = {key.id: key for key in await SqlApiKeys(upgraded.database).list_keys()}
    assert found.pop(ending.id).revoked_at == ending.expires_at
    lesser = {"run": "read", "approve": "read", "support": "read", "audit": "read", "admin": "write"}
    assert {id: key.role for id, key in found.items()} == {id: lesser.get(role, role) for id, role in made.items()}


DAMAGED = ("[" * 100_000, '{"message":{},"completion":1}', "", "[", "null", "[1]", '{"completion":null,"tool":[]}')


async def test_damaged_message_counts_no_call(url: str, opener: Opener) -> None:
    store = opener()
    sessions = {f"s{number}": payload for number, payload in enumerate(DAMAGED)}
    damage = text("UPDATE events SET payload = :payload WHERE seq = 2 AND session_id = :name")
    for name, payload in sessions.items():
        await record_calls(store, SessionKey("default", name), make_reply(total_tokens=5), make_tool_result())
        one = damage.bindparams(payload=payload, name=name)
        await store.database.write(lambda connection, one=one: connection.execute(one).rowcount)  # type: ignore[misc]
    await store.close()
    await asyncio.to_thread(schema.downgrade, url, "0003")
    await asyncio.to_thread(schema.upgrade, url)
    found: dict[str, list[Any]] = {name: [] for name in sessions}
    for row in (await opener().database.read(read_rows))["usage"]:
        found[row["session_id"]].append((row["seq"], row["tool_calls"], row["total_tokens"]))
    assert found == {name: [(3, 1, 0)] for name in sessions}
