"""Store the contents that events name by a hash, once per session and content: texts in `blobs`, files and pictures in
`files`."""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec
from cachetools import LRUCache
from sqlalchemy import Column, Connection, Table, delete, exists, func, insert, literal, select, update
from sqlalchemy.exc import IntegrityError

from swarmkeep.events.codec import digest
from swarmkeep.events.errors import SeqConflict
from swarmkeep.events.files import list_file_names
from swarmkeep.events.messages import list_result_references
from swarmkeep.events.state import State
from swarmkeep.store.heads import is_head
from swarmkeep.store.person_keys import Erased, about_file, about_text, read_content, read_key_id, read_text
from swarmkeep.store.records import SealedBatch, SessionKey, StoreUnavailable
from swarmkeep.store.statements import (
    Database,
    OnDatabase,
    PreparedStatement,
    prepare_insert_if_absent,
    split_parameters,
)
from swarmkeep.store.tables import (
    archives,
    as_bytes,
    as_text,
    blobs,
    files,
    of_bound_session,
    of_session,
    session_columns,
    sessions,
    totals,
    unescape,
)

# The content of files that were read last: a conversation sends its pictures with every turn.

# What the names and the place in the cache take beside it: most of what there is of small files.
_BYTES_PER_FILE = 500


def _count_bytes(content: bytes) -> int:
    return len(content) + _BYTES_PER_FILE


class FileCache:
    """Content by session and hash, bounded by the memory that it takes. What is in it is what its hash names."""

    def __init__(self, max_bytes: int) -> None:
        self._contents: LRUCache[tuple[SessionKey, str], bytes] = LRUCache(maxsize=max_bytes, getsizeof=_count_bytes)

    def get_all(self, key: SessionKey, names: Sequence[str]) -> dict[str, bytes]:
        found = ((name, self._contents.get((key, name))) for name in names)
        return {name: content for name, content in found if content is not None}

    def put_all(self, key: SessionKey, contents: Mapping[str, bytes]) -> None:
        for name, content in contents.items():
            if _count_bytes(content) <= self._contents.maxsize:
                self._contents[key, name] = content

    def drop(self, key: SessionKey) -> None:
        """Forget what a session has had: it may have been removed."""
        for place in [place for place in self._contents if place[0] == key]:
            self._contents.pop(place, None)


T = TypeVar("T")
OnArchived = Callable[[SessionKey], Awaitable[bool]]
OnReadArchived = Callable[[SessionKey], Awaitable[Sequence[SealedBatch] | None]]

FILE_CACHE_BYTES = 32 * 1024 * 1024
# So many are hashed in a fraction of a millisecond.
_MANY_BYTES = 256 * 1024


class SqlContents(OnDatabase):
    """Reads of the texts and files that events name."""

    def __init__(self, database: Database) -> None:
        OnDatabase.__init__(self, database)
        self._files = FileCache(FILE_CACHE_BYTES)
        self.on_archived: OnArchived | None = None
        """Brings a session back that is archived. Without it such a session cannot be read."""
        self.on_read_archived: OnReadArchived | None = None
        """Reads a session in the archive, and leaves it there."""

    async def bring_back(self, key: SessionKey) -> bool:
        """Have the database hold a session's events, texts and files again, if they are archived. False if not.

        Raises StoreUnavailable, and HistoryDamaged if what is in the archive is not the session.
        """
        return self.on_archived is not None and await self.on_archived(key)

    async def read_archived(self, key: SessionKey) -> Sequence[SealedBatch] | None:
        """A session in the archive, proven by its last hash, which stays there; None if it is not there.

        Raises StoreUnavailable, and HistoryDamaged.
        """
        if self.on_read_archived is None:
            raise StoreUnavailable(f"session {key.id!r} is archived; set SWARMKEEP_ARCHIVE to where it is")
        return await self.on_read_archived(key)

    async def require_present(self, key: SessionKey) -> None:
        """`bring_back`, where it is archived. Raises StoreUnavailable where that cannot be done."""
        if self.on_archived is None:
            detail = "set SWARMKEEP_ARCHIVE to where it is"
            raise StoreUnavailable(f"session {key.id!r} is archived; {detail}")
        await self.on_archived(key)

    async def read_present(
        self, key: SessionKey, query: Callable[[Connection], T], *, at_one_moment: bool = False
    ) -> T:
        """Run a query for a session's events, texts or files, which are brought back first if they are archived."""
        if self.on_archived is None:
            return await (self.database.read_at_one_moment if at_one_moment else self.database.read)(query)

        def look(connection: Connection) -> tuple[bool, T | None]:
            # At one moment: another process may be moving them.
            return (True, None) if is_archived(connection, key) else (False, query(connection))

        while True:
            away, found = await self.database.read_at_one_moment(look)
            if not away:
                return cast(T, found)
            await self.on_archived(key)

    async def read_blobs(self, key: SessionKey, hashes: Sequence[str]) -> dict[str, str]:
        """The texts that are stored for a session under these content hashes."""
        return await self.read_present(key, lambda connection: _find_contents(connection, blobs.c.text, key, hashes))

    async def read_files(self, key: SessionKey, hashes: Sequence[str], *, fresh: bool = True) -> dict[str, bytes]:
        """The content of a session's files by hash, as it is stored. With `fresh=False` it may be from memory, for what
        a state names, and is only what its hash names."""
        known = {} if fresh else self._files.get_all(key, hashes)
        missing = [name for name in hashes if name not in known]
        if not missing:
            return known
        found = await self.read_present(
            key, lambda connection: _find_contents(connection, files.c.content, key, missing)
        )
        if not fresh:
            found = await _keep_sound(found)
            self._files.put_all(key, found)
        return known | found


async def _keep_sound(found: Mapping[str, bytes]) -> dict[str, bytes]:
    """Those files that are what their hashes name."""

    def keep() -> dict[str, bytes]:
        return {name: content for name, content in found.items() if hashlib.sha256(content).hexdigest() == name}

    return await asyncio.to_thread(keep) if sum(map(len, found.values())) > _MANY_BYTES else keep()


class NamedContents(msgspec.Struct, frozen=True):
    """The contents that a session's events refer to, by content hashes in order."""

    texts: Sequence[str]
    files: Sequence[str]


def collect_named(state: State, forgotten: Collection[str] = ()) -> NamedContents:
    """Without the texts that are `forgotten` now. Of a long session that takes its time, and is done before any
    transaction begins."""
    records = [entry.completion.request for entry in state.messages if entry.completion is not None]
    names = {name for record in records if record is not None for name in (record.instructions, record.tools)}
    given = {found.sha256 for entry in state.messages for found in list_result_references(entry.tool)}
    sent = list_file_names(entry.message for entry in state.messages)
    return NamedContents(
        texts=sorted(({name for name in names if name is not None} | set(state.other_texts)).difference(forgotten)),
        files=sorted({*sent, *given, *state.queued_files}),
    )


def insert_file(connection: Connection, key: SessionKey, name: str, content: bytes) -> int:
    """Keep content under its hash; gives the bytes that were added, 0 if it was there."""
    row = {**session_columns(key), "hash": name, "content": content}
    added = prepare_insert_if_absent(files, connection.dialect.name).execute(connection, row)
    return len(content) if added else 0


def copy_named(connection: Connection, source: SessionKey, target: SessionKey, named: NamedContents) -> None:
    """Copy what a session's events refer to, but for what was copied ahead; that belongs to the target from here on."""
    # First: a process that removes abandoned copies waits here, or was quicker, and then they are copied now.
    delete_mark(connection, target)
    _copy(connection, blobs.c.text, source, target, named.texts)
    _copy(connection, files.c.content, source, target, named.files)


def _copy(
    connection: Connection, content: Column[Any], source: SessionKey, target: SessionKey, hashes: Sequence[str]
) -> None:
    table: Any = content.table
    there = table.alias()
    for some in split_parameters(hashes):
        rows = select(
            literal(target.tenant, table.c.tenant.type),
            literal(target.id, table.c.session_id.type),
            table.c.hash,
            content,
        ).where(
            *of_session(table, source),
            table.c.hash.in_(some),
            ~exists().where(
                there.c.tenant == target.tenant, there.c.session_id == target.id, there.c.hash == table.c.hash
            ),
        )
        connection.execute(insert(table).from_select([column.name for column in table.c], rows))


# The files of a fork that is being made are copied before it is recorded, a few at a time, so that others write in
# between; those of a session that is deleted are removed in the same way after it. Meanwhile no session has them, and a
# mark says so: a row that no session's files can be, since no id has such a character. What a process leaves that died
# meanwhile is found by it.
MARKS = "~copying"
SLICE_BYTES = 2_000_000


def plan_slices(connection: Connection, source: SessionKey, hashes: Sequence[str]) -> list[list[str]]:
    """The files in slices of some bytes each; a larger one is a slice of its own."""
    sizes: dict[str, int] = {}
    for some in split_parameters(hashes):
        query = select(files.c.hash, func.length(files.c.content)).where(
            *of_session(files, source), files.c.hash.in_(some)
        )
        sizes |= {row.hash: row[1] for row in connection.execute(query)}
    slices: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if size > room or not slices:
            slices.append([])
            room = SLICE_BYTES
        slices[-1].append(name)
        room -= size
    return slices


def copy_slice(connection: Connection, source: SessionKey, target: SessionKey, hashes: Sequence[str]) -> None:
    """Copy some files ahead. Raises SeqConflict if there is such a session."""
    if connection.scalar(select(sessions.c.head_seq).where(*of_session(sessions, target))) is not None:
        raise SeqConflict(target.id, 0)
    insert_mark(connection, target)
    _copy(connection, files.c.content, source, target, hashes)


def insert_mark(connection: Connection, target: SessionKey) -> None:
    insert_file(connection, SessionKey(target.tenant, MARKS), target.id, b"")


def plan_deletion(connection: Connection, target: SessionKey) -> list[list[str]]:
    """The files of a session in slices; none if one transaction may delete all."""
    slices = plan_slices(connection, target, _list_hashes(connection, files, target))
    return slices if len(slices) > 1 else []


def delete_slice(connection: Connection, target: SessionKey, hashes: Sequence[str]) -> None:
    """Delete some files of a session that is gone, unless there is another one of its id."""
    is_back = select(sessions.c.id).where(*of_session(sessions, target)).exists()
    for some in split_parameters(hashes):
        connection.execute(delete(files).where(*of_session(files, target), files.c.hash.in_(some), ~is_back))


def delete_mark(connection: Connection, target: SessionKey) -> bool:
    mark = of_session(files, SessionKey(target.tenant, MARKS))
    return connection.execute(delete(files).where(*mark, files.c.hash == target.id)).rowcount > 0


def list_marks(connection: Connection) -> list[SessionKey]:
    """The sessions that files were copied for and that are not recorded yet, or never."""
    tenants = connection.scalars(select(totals.c.tenant).distinct()).all()
    return [
        SessionKey(tenant, name)
        for tenant in tenants
        for name in connection.scalars(select(files.c.hash).where(*of_session(files, SessionKey(tenant, MARKS))))
    ]


def delete_copies(connection: Connection, target: SessionKey, state: State | None) -> None:
    """Remove what was copied ahead and no session has: the target's `state` is what it is, None if there is none.

    Raises SeqConflict if that has changed.
    """
    if state is None:
        _hold_id(connection, target)
    elif connection.scalar(select(sessions.c.head_seq).where(*of_session(sessions, target), is_head(state))) is None:
        raise SeqConflict(target.id, state.seq)
    if not delete_mark(connection, target):
        return
    if state is None:
        connection.execute(delete(files).where(*of_session(files, target)))
    else:
        delete_unnamed(connection, files, target, collect_named(state).files)


_NO_SESSION = {
    **dict.fromkeys(("head_seq", "lease_epoch"), 0),
    **dict.fromkeys(("agent", "status", "created_at", "updated_at", "view"), ""),
    "head_hash": b"",
}


def _hold_id(connection: Connection, key: SessionKey) -> None:
    """Have no such session made until the transaction ends: by a row that is made, and removed again. Raises
    SeqConflict if there is one."""
    try:
        connection.execute(insert(sessions).values(**_NO_SESSION, tenant=key.tenant, id=key.id))
    except IntegrityError:
        raise SeqConflict(key.id, 0) from None
    connection.execute(delete(sessions).where(*of_session(sessions, key)))


def delete_unnamed(connection: Connection, table: Table, key: SessionKey, named: Collection[str]) -> None:
    """Remove what no event of the session refers to, from one of the two tables."""
    mine = of_session(table, key)
    stray = sorted(set(_list_hashes(connection, table, key)) - set(named))
    for some in split_parameters(stray):
        connection.execute(delete(table).where(*mine, table.c.hash.in_(some)))


# Objects of the archive that a session has beside these tables, or instead of them.


def is_archived(connection: Connection, key: SessionKey) -> bool:
    """Tell if a session's events, texts and files are in the archive only."""
    found = select(archives.c.name).where(*of_session(archives, key), archives.c.state == "archived")
    return connection.scalar(found.limit(1)) is not None


def list_archived(connection: Connection, tenant: str, names: Iterable[str]) -> list[SessionKey]:
    """Those of these sessions that are in the archive only."""
    found: list[SessionKey] = []
    for some in split_parameters(names):
        away = select(archives.c.session_id).where(
            archives.c.tenant == tenant, archives.c.session_id.in_(some), archives.c.state == "archived"
        )
        found += [SessionKey(tenant, name) for name in connection.scalars(away)]
    return found


def discard_copies(connection: Connection, key: SessionKey, *, but: str = "") -> None:
    """Have the session's objects deleted: what they hold was removed here, or has changed. One that is being uploaded
    is seen to by who does that."""
    theirs = update(archives).where(*of_session(archives, key), archives.c.name != but)
    connection.execute(theirs.where(archives.c.state.in_(("archived", "copy"))).values(state="garbage"))


def check_files(connection: Connection, key: SessionKey) -> Iterator[tuple[str, bool]]:
    """Each hash, and whether the content is what it names; one file at a time is in memory."""
    for name in _list_hashes(connection, files, key):
        stored = connection.scalar(select(files.c.content).where(*of_session(files, key), files.c.hash == name))
        content = decrypt_content(connection, name, stored)
        is_sound = content is not None and hashlib.sha256(as_bytes(content)).hexdigest() == name
        yield name, isinstance(content, Erased) or is_sound


def find_unsound(connection: Connection, key: SessionKey, named: NamedContents) -> dict[str, str]:
    """Those of these contents that are `missing`, or are what `differs` from their hash."""
    found = dict.fromkeys((*named.texts, *named.files), "missing")
    for name in named.texts:
        for text in _find_contents(connection, blobs.c.text, key, [name]).values():
            found[name] = "" if digest(text) == name else "differs"
    for name in named.files:
        for content in _find_contents(connection, files.c.content, key, [name]).values():
            found[name] = "" if hashlib.sha256(as_bytes(content)).hexdigest() == name else "differs"
    return {name: fault for name, fault in found.items() if fault}


def _find_contents(connection: Connection, content: Column[T], key: SessionKey, hashes: Sequence[str]) -> dict[str, T]:
    """Contents by their hashes; those that are not there are left out."""
    table: Any = content.table
    found: dict[str, T] = {}
    for some in split_parameters(hashes):
        query = select(table.c.hash, content).where(*of_session(table, key), table.c.hash.in_(some))
        found |= {row.hash: row[1] for row in connection.execute(query)}
    return {
        name: one
        for name, stored in found.items()
        if not isinstance(one := decrypt_content(connection, name, stored), Erased)
    }


def decrypt_content(connection: Connection, name: str, stored: Any) -> Any:
    """A text or a file as it was given; ERASED if its key is gone. What is named by its own hash is not encrypted, even
    if it begins like that."""
    if read_key_id(stored) is None:
        return stored
    if isinstance(stored, bytes):
        is_plain = hashlib.sha256(stored).hexdigest() == name
        return stored if is_plain else read_content(connection, stored, about_file(name))
    return stored if digest(stored) == name else read_text(connection, stored, about_text(name))


def _list_hashes(connection: Connection, table: Table, key: SessionKey) -> Sequence[str]:
    rows = _prepare_hashes(table).fetch_all(connection, session_columns(key))
    return [unescape(as_text(name)) for (name,) in rows]


@functools.cache
def _prepare_hashes(table: Table) -> PreparedStatement:
    return PreparedStatement(select(table.c.hash).where(*of_bound_session(table)).order_by(table.c.hash))
