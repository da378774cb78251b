"""Sessions share nothing: rows are keyed by tenant and session, and one transaction changes one session.

So the tables can be distributed by tenant and session. What is keyed otherwise is named here, with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import Connection, inspect, select

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.facts import SessionForked
from swarmkeep.events.redaction import redact_payload
from swarmkeep.events.state import State
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import AuditAction, Claim, IdempotencyRecord, Restoration, SealedBatch, SessionKey
from swarmkeep.store.tables import SEARCH_TABLES, SESSION_TABLES, metadata, sessions
from tests.store.calls import make_reply
from tests.store.plans.cases import CASES, draft_redaction
from tests.store.plans.explaining import recorded_statements
from tests.store.sessions import draft_creation

# Their keys begin with the tenant alone, or not even with that.
NOT_OF_A_SESSION = {
    "creations": "one request makes one session of a tenant, whatever id it was sent with: see `creations` itself",
    "trail": "a tenant's audit log tells of sessions that are gone",
    "log_leaves": "a tenant's log of heads is one tree over all its sessions",
    "log_checkpoints": "they are of that tree",
    "feed": "a tenant's feed is one order over all its sessions",
    "feed_positions": "how far that goes, and its consumers are",
    "webhook_deliveries": "what each webhook of a tenant could not deliver, of all its sessions",
    "usage_days": "sums over a tenant's sessions, in parts",
    "totals": "what a tenant's sessions come to, in slices",
    "person_keys": "a person's key is found by its id, which stands in what it encrypts",
    "invocations": "of an automation of a tenant, before there is a session",
    "made_agent_versions": "of an agent of a tenant, before there is a session",
    "api_keys": "a key is found by its id before anybody knows its tenant",
}
# What one transaction may change beside the rows of one session.
BESIDE = set(NOT_OF_A_SESSION)

SCOPES = ("session", "tenant", "all")
# The cases whose statements are about more than one session, and how much more.
WIDER: dict[str, tuple[str, str]] = {
    "lists": ("tenant", "a list is of a tenant"),
    "head log": ("tenant", "a log of heads is of a tenant"),
    "head log, find": ("session", "its own leaves"),
    "feed": ("tenant", "a feed is of a tenant"),
    "archive, there and back": ("tenant", "the last entry of the audit log"),
    "archive, feed": ("tenant", "a feed is of a tenant"),
    "archive, garbage": ("all", "objects of every tenant"),
    "archive, any": ("all", "at the start of a server"),
    "lists, without children": ("all", "keys of people are found by their ids"),
    "people, elsewhere": ("all", "at the start of a server"),
    "people": ("all", "a key is found by its id, and is that of all sessions of a person"),
    "webhooks": ("tenant", "events of all sessions of a tenant"),
    "webhooks, send": ("all", "a server sends those of every tenant"),
    "usage": ("tenant", "sums are of a tenant"),
    "runs": ("tenant", "a table of runs is of a tenant"),
    "runs, of a session": ("session", "it is asked for one"),
    "usage, runs of a session": ("session", "it is asked for one"),
    "automations": ("tenant", "they are a tenant's"),
    "automations, due": ("all", "each server begins what is due, of any tenant"),
    "automations, due, invocations": ("all", "each server begins what is due, of any tenant"),
    "made agents": ("tenant", "they are a tenant's"),
    "keys, make": ("tenant", "the last entry of the audit log"),
    "keys": ("all", "keys are found before their tenant is known"),
    "leases, abandoned": ("all", "whoever is free takes over any tenant's session"),
    "leases, due": ("all", "whoever is free goes on with any tenant's session"),
    "leases, renew": ("tenant", "one statement for all leases of a process; each row by itself is as good"),
    "leases, heads": ("tenant", "one statement for all sessions that are watched; each by itself is as good"),
    "reading, all sessions": ("all", "an offline command"),
    "reading, all sessions, a later page": ("all", "an offline command"),
    "reading, sessions of a tenant": ("tenant", "an offline command"),
    "reading, tenants": ("all", "an offline command"),
    "reading, audit log": ("tenant", "of a tenant"),
    "reading, forks": ("tenant", "a session and its forks begin with the same event"),
    "reading, forks that there are": ("tenant", "a session and its forks begin with the same event"),
    "reading, forks with large files": ("all", "the marks of every tenant, once at the start of a server"),
    "reading, list of forks": ("tenant", "a session and its forks begin with the same event"),
    "counting, totals": ("tenant", "they are a tenant's"),
    "counting": ("all", "offline commands"),
    "counting, leftovers": ("session", "one after the other"),
    "usage, shares of a run": ("session", "a run is in one"),
    "searching": ("all", "words are looked for in a tenant, and those of any tenant indexed"),
    "searching, words": ("tenant", "a list is of a tenant"),
    "searching, words, with filters": ("tenant", "a list is of a tenant"),
    "searching, no words": ("tenant", "a list is of a tenant"),
    "searching, a time": ("tenant", "a list is of a tenant"),
    "reading, a check": ("tenant", "the last entry of the audit log"),
    "reading, no stamp": ("all", "the keys are those of all tenants"),
    "changes, session": ("tenant", "the last entry of the audit log, which session a key made, and the sums"),
}


def test_primary_keys_start_with_tenant_and_session() -> None:
    found = {table.name: [column.name for column in table.primary_key][:2] for table in metadata.sorted_tables}
    others = {name for name, key in found.items() if key not in (["tenant", "id"], ["tenant", "session_id"])}
    assert others == set(NOT_OF_A_SESSION)
    assert {name for name in others if found[name][0] != "tenant"} == {"api_keys", "person_keys"}
    # Where a session's object is says nothing of the session, and outlives it.
    kept = {table.name for table in (sessions, *SESSION_TABLES, *SEARCH_TABLES)}
    kept |= {"archives", "webhooks", "automations", "made_agents"}
    assert kept == set(found) - others | {"creations"}


async def test_unique_keys_are_session_scoped(store: SqlStore) -> None:
    def read(connection: Connection) -> dict[str, list[list[str | None]]]:
        seen = inspect(connection)
        return {
            name: [one["column_names"] for one in seen.get_unique_constraints(name)]
            + [one["column_names"] for one in seen.get_indexes(name) if one["unique"]]
            for name in metadata.tables
        }

    unique = {name: columns for name, columns in (await store.database.read(read)).items() if columns}
    assert unique.pop("person_keys") == [["tenant", "person", "erased_at"]], "a person has one key at a time"
    assert set(unique) == {"api_keys"}
    assert all(columns == ["key_hash"] for columns in unique["api_keys"]), "no two keys are the same secret"


def find_scope(sql: str) -> str:
    # Values may have the names of tables.
    text = re.sub(r"'(?:[^']|'')*'", "?", " ".join(sql.split()))
    # What is found is left out by this, and not looked for.
    for name in ("tenant", "session_id"):
        text = text.replace(f"archives.{name} = search_marks.{name}", "TRUE")
    if not any(re.search(rf"\b{name}\b", text) for name in metadata.tables):
        return "session"
    if text.startswith("INSERT") and "SELECT" not in text:
        return "session"
    if not re.search(r"\btenant = ", text):
        return "all"
    # Beside one session's, several by their names are still as many statements of one.
    by_session = re.search(r"\b(session_id|sessions\.id) = ", text)
    return "session" if by_session and "sessions.tenant = named.tenant" not in text else "tenant"


async def test_statements_are_about_one_session(store: SqlStore) -> None:
    found: dict[str, str] = {}
    expected: dict[str, str] = {}
    for group, cases in CASES.items():
        for name, case in cases.items():
            with recorded_statements() as statements:
                await case.run(store)
            place = f"{group}, {name}"
            found[place] = max((find_scope(one.sql) for one in statements), key=SCOPES.index, default="session")
            expected[place] = (WIDER.get(place) or WIDER.get(group) or ("session", ""))[0]
    assert found == expected


Rows = dict[str, set[tuple[Any, ...]]]


def read_rows(connection: Connection) -> Rows:
    return {name: {tuple(row) for row in connection.execute(select(table))} for name, table in metadata.tables.items()}


def list_changed_sessions(before: Rows, after: Rows) -> set[SessionKey]:
    """The sessions of which any row was added, changed or removed."""
    changed = {name: before[name] ^ after[name] for name in metadata.tables if name not in BESIDE}
    return {SessionKey(*row[:2]) for rows in changed.values() for row in rows}


async def test_a_transaction_changes_one_session(store: SqlStore) -> None:
    key, other, copy = (SessionKey("default", name) for name in ("a", "other", "copy"))
    await store.append(other, State(), draft_creation(metadata={"team": "a"}), blobs={"name": "text"})
    state = State()

    async def changed_by(call: Callable[[], Awaitable[Any]]) -> Any:
        before = await store.database.read(read_rows)
        result = await call()
        assert list_changed_sessions(before, await store.database.read(read_rows)) == {expected}
        return result

    expected = key
    made = IdempotencyRecord(key="k", digest="d")
    begun = draft_creation(metadata={"team": "a"})
    state = (await changed_by(lambda: store.append(key, State(), begun, idempotency=made, blobs={"n": "t"}))).state
    calls = draft_events("Ann", [make_reply("x", total_tokens=1)], "r")
    state = (await changed_by(lambda: store.append(key, state, calls, lease=Claim("me", 15.0)))).state
    forked = SessionForked(from_session_id=key.id, from_seq=state.seq, from_hash=state.hash)
    drafts = draft_events("Ann", [forked], None)
    expected = copy
    await changed_by(lambda: store.fork(key, state, copy, drafts))
    sealed = await store.read_sealed(copy)
    await changed_by(lambda: store.delete(copy))
    action = AuditAction(type="session.imported")
    again = Restoration(copy, lambda: [SealedBatch(sealed)], lambda _: [])
    await changed_by(lambda: store.restore([again], action=action))
    expected = key
    log = await store.read_sealed(key)
    said = next(one.event for one in log if one.event.type == "message.added")
    await changed_by(lambda: store.redact(key, log, {said.seq: redact_payload(said)}, draft_redaction(said.seq)))
    await changed_by(lambda: store.delete(key))
