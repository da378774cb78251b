"""Many small sessions in one file: a few share a transaction, and each is there as a whole or not at all."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.errors import InvalidImport, QuotaExceeded
from swarmkeep.events.facts import SessionCreated
from swarmkeep.history.conversations import import_conversations
from swarmkeep.history.import_export import ImportReport, import_export
from swarmkeep.store.index import SessionFilter
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import AuditAction, Restoration, SessionHead, SessionKey, StorageQuota
from swarmkeep.store.usage import recount_totals
from tests.history.exports import export_sessions

COUNT = 150
CREATED = SessionCreated(agent="A")


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest) -> str:
    """The database that `store` is on."""
    return str(request.getfixturevalue(f"{kind}_ready"))


def write_chats(count: int = COUNT) -> bytes:
    chats = [
        {"id": f"chat-{number:03}", "metadata": {"team": "a"}, "messages": [{"role": "user", "content": f"{number}"}]}
        for number in range(count)
    ]
    return b"".join(json.dumps(chat).encode() + b"\n" for chat in chats)


async def import_chats(store: SqlStore, tenant: str, text: bytes, **options: Any) -> ImportReport:
    return await import_conversations(store, tenant, io.BytesIO(text), "chat", agent="Ann", **options)


@contextmanager
def counted(what: str = "commit") -> Iterator[list[int]]:
    found: list[int] = []

    def note(_: object) -> None:
        found.append(1)

    event.listen(Engine, what, note)
    try:
        yield found
    finally:
        event.remove(Engine, what, note)


async def check_counts(store: SqlStore, tenant: str, count: int) -> None:
    """Each session was recorded once: by the counters, the audit log and the index of words."""
    assert await recount_totals(store.database, mend=False) == []
    assert (await store.read_totals(tenant)).sessions == count
    told = await store.read_audit_log(tenant, limit=1000)
    assert [entry.seq for entry in told] == list(range(1, count + 1))
    names = [json.loads(entry.payload)["session_id"] for entry in told]
    assert len(set(names)) == count
    assert await store.count_sessions_behind(None) >= count


async def test_many_small_sessions_take_few_transactions(store: SqlStore) -> None:
    with counted() as commits:
        report = await import_chats(store, "from", write_chats())
    assert (report.imported, report.present) == (COUNT, 0)
    assert len(commits) <= COUNT // 20
    await check_counts(store, "from", COUNT)
    assert len((await store.list_sessions(SessionFilter("from", metadata={"team": "a"}), limit=200)).sessions) == COUNT

    exported = await export_sessions(store, tenant="from")
    with counted() as commits:
        report = await import_export(store, "to", io.BytesIO(exported))
    assert (report.imported, report.present) == (COUNT, 0)
    assert len(commits) <= COUNT // 20
    again = await import_export(store, "to", io.BytesIO(exported))
    assert (again.imported, again.present) == (0, COUNT)


async def test_quota_ends_import_at_excess_session(store: SqlStore) -> None:
    quota = StorageQuota(max_sessions=70, max_bytes=10**9)
    with pytest.raises(QuotaExceeded):
        await import_chats(store, "from", write_chats(), quota=quota)
    found = [session.id for session in (await store.list_sessions(SessionFilter("from"), limit=200)).sessions]
    assert sorted(found) == [f"chat-{number:03}" for number in range(70)]
    await check_counts(store, "from", 70)
    report = await import_chats(store, "from", write_chats())
    assert (report.imported, report.present) == (COUNT - 70, 70)
    await check_counts(store, "from", COUNT)


async def test_sessions_before_error_are_recorded(store: SqlStore) -> None:
    def give_sessions() -> Iterator[Restoration]:
        for number in range(3):
            yield Restoration(SessionKey("from", f"s{number}"), list, lambda _: draft_events("A", [CREATED], None))
        raise InvalidImport("the rest of the file is gone")

    with pytest.raises(InvalidImport, match="gone"):
        await store.restore(give_sessions(), action=AuditAction(type="session.imported"))
    await check_counts(store, "from", 3)


async def test_session_deleted_during_lookup_is_imported(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for tenant in ("from", "to"):
        await import_chats(store, tenant, write_chats(2))
    exported = await export_sessions(store, tenant="from")
    read_heads = SqlStore.read_heads

    async def read_and_delete(self: SqlStore, keys: Sequence[SessionKey]) -> dict[SessionKey, SessionHead]:
        found = await read_heads(self, keys)
        await self.delete(keys[0])
        return found

    monkeypatch.setattr(SqlStore, "read_heads", read_and_delete)
    report = await import_chats(store, "to", write_chats(2))
    assert [session.outcome for session in report.sessions] == ["imported", "present"]
    report = await import_export(store, "from", io.BytesIO(exported))
    assert [session.outcome for session in report.sessions] == ["imported", "present"]


async def test_concurrent_imports_record_sessions_once(store: SqlStore, url: str) -> None:
    await import_chats(store, "from", write_chats())
    exported = await export_sessions(store, tenant="from")
    second = open_store(url)
    try:
        reports = await asyncio.gather(
            *(import_chats(one, "to", write_chats()) for one in (store, second)),
            *(import_export(one, "other", io.BytesIO(exported)) for one in (store, second)),
        )
    finally:
        await second.close()
    assert [sum(report.imported for report in pair) for pair in (reports[:2], reports[2:])] == [COUNT, COUNT]
    assert all(report.imported + report.present == COUNT for report in reports)
    for tenant in ("to", "other"):
        await check_counts(store, tenant, COUNT)


async def test_concurrent_audit_entries_undo_nothing(store: SqlStore, url: str) -> None:
    """Or short transactions would keep a long one from ever being done."""
    second = open_store(url)
    try:
        with counted("rollback") as rollbacks:
            await asyncio.gather(
                *(one.record_action("t", AuditAction(type=f"a{n}")) for n in range(30) for one in (store, second))
            )
    finally:
        await second.close()
    assert rollbacks == []
    assert [entry.seq for entry in await store.read_audit_log("t")] == list(range(1, 61))
