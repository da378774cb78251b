"""The index of archived sessions: whose events are in object storage, and what is there that is not needed any more.

A session that is archived keeps its head row, its first event, labels, usage and words, so that lists, sums and
searches find it as before. Its other events, texts and files are in one object, which its digest and the head's hash
prove. Rows are deleted only where the object was read back, in one transaction with the record of it; brought back,
they are as they were. Either the database or the object has a session's events, and in between both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, TypeVar

import msgspec
from sqlalchemy import Connection, delete, exists, func, select, update

from swarmkeep.store.audit import record_action
from swarmkeep.store.contents import discard_copies, insert_file, list_archived
from swarmkeep.store.records import ArchiveUnavailable, AuditAction, SealedBatch, SessionKey
from swarmkeep.store.statements import OnDatabase, prepare_insert_if_absent
from swarmkeep.store.tables import (
    IS_FIRST,
    IS_SOUND,
    archives,
    blobs,
    events,
    files,
    of_session,
    person_keys,
    session_columns,
    sessions,
)
from swarmkeep.store.usage import Growth, count_change, measure_session
from swarmkeep.store.writes import make_event_rows

T = TypeVar("T")

ArchiveState = Literal["uploading", "archived", "copy", "garbage"]
"""`uploading`: a process is writing the object, or has died while it did. `archived`: the events are only there.
`copy`: here, too. `garbage`: the object is to be deleted."""

_FIRST_SEQ = 1


class ArchivedSession(msgspec.Struct, frozen=True, kw_only=True):
    """An object of the archive: the session up to event `seq`, whose hash that is. `sha256` and `size` are the
    object's, `at` the time of the last change of its state."""

    key: SessionKey
    name: str
    seq: int
    hash: bytes
    sha256: bytes
    size: int
    state: ArchiveState
    at: str


class ArchivableSession(msgspec.Struct, frozen=True):
    """A session that nothing has happened in for long, and where the next page of them begins."""

    key: SessionKey
    seq: int
    hash: bytes
    active_at: str


class ArchiveOutage:
    """For who does something with many sessions: once the archive did not answer, it is not asked again, since each
    attempt may take a minute."""

    def __init__(self, store: SqlArchives) -> None:
        self._store = store
        self.error: ArchiveUnavailable | None = None

    async def attempt(self, key: SessionKey, work: Callable[[], Awaitable[T]]) -> T:
        """Do what may need the archive. Raises ArchiveUnavailable, and from then on for each session that is in it."""
        if self.error is not None and await self._store.find_archived(key) is not None:
            raise ArchiveUnavailable(str(self.error))
        try:
            return await work()
        except ArchiveUnavailable as error:
            self.error = error
            raise


class SqlArchives(OnDatabase):
    """The objects of the archive, by their sessions. Several processes may archive and bring back at once."""

    async def find_archived(self, key: SessionKey) -> ArchivedSession | None:
        """The object that has the session's events, if the database has not."""
        found = await self.database.read(lambda connection: _list(connection, key, "archived"))
        return found[0] if found else None

    async def find_copy(self, key: SessionKey) -> ArchivedSession | None:
        """The object that a session was brought back from."""
        found = await self.database.read(lambda connection: _list(connection, key, "copy"))
        return found[0] if found else None

    async def has_archived(self) -> bool:
        """Tell if any session of any tenant is archived."""
        query = select(archives.c.name).where(archives.c.state == "archived").limit(1)
        return await self.database.read(lambda connection: connection.scalar(query)) is not None

    async def list_archivable(
        self, tenant: str, before: str, *, after: ArchivableSession | None = None, copied_before: str, limit: int
    ) -> list[ArchivableSession]:
        """Idle sessions in which nothing has happened since a time, the longest first; not those that were brought back
        since `copied_before`, nor damaged ones, nor those of people who were erased."""
        return await self.database.read(
            lambda connection: _list_archivable(connection, tenant, before, after, copied_before, limit)
        )

    async def begin_upload(self, record: ArchivedSession) -> bool:
        """Note down that an object is being written, so that none is forgotten. False if another process does so."""
        row = {**session_columns(record.key), **_list_values(record), "state": "uploading"}
        return await self.database.write(
            lambda connection: prepare_insert_if_absent(archives, connection.dialect.name).execute(connection, row) > 0
        )

    async def archive(self, record: ArchivedSession, action: AuditAction) -> bool:
        """Remove the rows of a session that the object has, which was uploaded or is a copy. False if the session has
        changed since, or was archived by another process: then an object that was uploaded is garbage."""
        return await self.database.write(lambda connection: _archive(connection, record, action), erases=True)

    async def put_back(self, record: ArchivedSession, batches: Iterable[SealedBatch], at: str) -> None:
        """Insert the rows again, unless another process has. Until the next change the object is a copy of them."""
        held = list(batches)
        await self.database.write(lambda connection: _put_back(connection, record, held, at))

    async def list_garbage(self, abandoned_before: str, limit: int) -> list[ArchivedSession]:
        """Objects to be deleted: of sessions that were deleted, redacted or archived again since, and those whose
        upload began before that time and never ended."""
        abandoned = update(archives).where(archives.c.state == "uploading", archives.c.at < abandoned_before)
        await self.database.write(lambda connection: connection.execute(abandoned.values(state="garbage")).rowcount)
        query = select(archives).where(archives.c.state == "garbage").limit(limit)
        return await self.database.read(lambda connection: [_read(row) for row in connection.execute(query)])

    async def forget_object(self, record: ArchivedSession) -> None:
        """Forget an object that was deleted."""
        gone = delete(archives).where(*of_session(archives, record.key), archives.c.name == record.name)
        gone = gone.where(archives.c.state == "garbage")
        await self.database.write(lambda connection: connection.execute(gone).rowcount)

    async def list_archived_family(self, key: SessionKey) -> list[SessionKey]:
        """The archived sessions that begin with the same event: forks of this one, or what it was forked from."""
        first = select(events.c.hash).where(*of_session(events, key), events.c.seq == _FIRST_SEQ).scalar_subquery()
        family = select(events.c.session_id).where(events.c.tenant == key.tenant, IS_FIRST, events.c.hash == first)
        return await self.database.read(
            lambda connection: list_archived(connection, key.tenant, connection.scalars(family).all())
        )


def _list(connection: Connection, key: SessionKey, state: ArchiveState) -> list[ArchivedSession]:
    found = select(archives).where(*of_session(archives, key), archives.c.state == state)
    return [_read(row) for row in connection.execute(found)]


def _list_values(record: ArchivedSession) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(record).items() if name != "key"}


def _read(row: Any) -> ArchivedSession:
    return ArchivedSession(
        key=SessionKey(row.tenant, row.session_id),
        name=row.name,
        seq=row.seq,
        hash=row.hash,
        sha256=row.sha256,
        size=row.size,
        state=row.state,
        at=row.at,
    )


def _list_archivable(
    connection: Connection,
    tenant: str,
    before: str,
    after: ArchivableSession | None,
    copied_before: str,
    limit: int,
) -> list[ArchivableSession]:
    columns = sessions.c
    is_away = exists().where(
        archives.c.tenant == columns.tenant,
        archives.c.session_id == columns.id,
        (archives.c.state == "archived") | ((archives.c.state == "copy") & (archives.c.at >= copied_before)),
    )
    # One value for each session: as a join PostgreSQL would read the keys of all people.
    erased_at = select(person_keys.c.erased_at).where(person_keys.c.id == columns.person_key).scalar_subquery()
    begin = ("", "") if after is None else (after.active_at, after.key.id)
    page = (
        select(columns.id, columns.head_seq, columns.head_hash, columns.active_at)
        .where(columns.tenant == tenant, columns.active_at < before, columns.active_at >= begin[0])
        .where((columns.active_at > begin[0]) | (columns.id > begin[1]))
        .where(columns.status == "idle", columns.head_seq > _FIRST_SEQ, IS_SOUND, ~is_away)
        .where(func.coalesce(erased_at, "") == "")
        .order_by(columns.active_at, columns.id)
        .limit(limit)
    )
    return [
        ArchivableSession(SessionKey(tenant, row.id), row.head_seq, row.head_hash, row.active_at)
        for row in connection.execute(page)
        if row.active_at
    ]


def _archive(connection: Connection, record: ArchivedSession, action: AuditAction) -> bool:
    key, columns = record.key, sessions.c
    is_same = (columns.head_seq == record.seq, columns.head_hash == record.hash, columns.status == "idle", IS_SOUND)
    here = select(columns.head_seq).where(*of_session(sessions, key), *is_same)
    this = (*of_session(archives, key), archives.c.name == record.name)
    taken = update(archives).where(*this, archives.c.state.in_(("uploading", "copy")))
    if connection.scalar(here.with_for_update()) is None or _list(connection, key, "archived"):
        connection.execute(taken.where(archives.c.state == "uploading").values(state="garbage"))
        return False
    discard_copies(connection, key, but=record.name)
    if not connection.execute(taken.values(state="archived", at=record.at)).rowcount:
        return False
    before = measure_session(connection, key)
    connection.execute(delete(events).where(*of_session(events, key), events.c.seq > _FIRST_SEQ))
    for table in (blobs, files):
        connection.execute(delete(table).where(*of_session(table, key)))
    count_change(connection, key, Growth(bytes=measure_session(connection, key) - before))
    told = {"session_id": key.id, "seq": record.seq, "hash": record.hash.hex(), "object": record.name}
    record_action(connection, key.tenant, action, told, record.at)
    return True


def _put_back(connection: Connection, record: ArchivedSession, batches: Iterable[SealedBatch], at: str) -> None:
    key = record.key
    # Against a deletion at the same moment, which would leave what is inserted here.
    here = select(sessions.c.head_seq).where(*of_session(sessions, key))
    if connection.scalar(here.with_for_update(read=True, key_share=True)) is None:
        return
    change = update(archives).where(*of_session(archives, key), archives.c.name == record.name)
    # The second of them finds it changed.
    if not connection.execute(change.where(archives.c.state == "archived").values(state="copy", at=at)).rowcount:
        return
    before = measure_session(connection, key)
    dialect = connection.dialect.name
    for batch in batches:
        rows = [row for row in make_event_rows(key, batch.events) if row["seq"] > _FIRST_SEQ]
        if rows:
            prepare_insert_if_absent(events, dialect).insert_many(connection, rows)
        texts = [{**session_columns(key), "hash": name, "text": text} for name, text in batch.blobs.items()]
        if texts:
            prepare_insert_if_absent(blobs, dialect).insert_many(connection, texts)
        for name, content in batch.files.items():
            insert_file(connection, key, name, content)
    count_change(connection, key, Growth(bytes=measure_session(connection, key) - before))
