"""The log of heads: for each tenant an append-only Merkle tree (RFC 6962) over the ends of its sessions.

A leaf says where a session, or the tenant's audit log, ended when a checkpoint was made. A turn writes nothing here:
the sessions that have changed since the last checkpoint become leaves when the next one is made. Each leaf's row keeps
the hashes of all complete subtrees that end with it, so that a root or a proof of any size takes a few dozen rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from sqlalchemy import BigInteger, Connection, bindparam, exists, func, select

from swarmkeep.events.codec import encode
from swarmkeep.events.errors import LogDamaged
from swarmkeep.store.records import SessionKey
from swarmkeep.store.statements import OnDatabase, PreparedStatement, prepare_insert_if_absent, split_parameters
from swarmkeep.store.tables import (
    Verbatim,
    as_bytes,
    as_text,
    audit_log,
    log_checkpoints,
    log_leaves,
    sessions,
    unescape,
)

T = TypeVar("T")
Node = Callable[[int, int], bytes]
"""The hash of the complete subtree with 2 ** level leaves that is the index-th of its level."""

_HASH_BYTES = 32
_LEAVES_AT_ONCE = 500
_ZEROS = bytes(_HASH_BYTES)


def hash_leaf(data: bytes) -> bytes:
    return hashlib.sha256(b"\0" + data).digest()


def hash_children(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


def find_root(size: int, node: Node) -> bytes:
    """The root of the first `size` leaves (RFC 6962, section 2.1)."""
    return _hash_range(0, size, node) if size else hashlib.sha256().digest()


def prove_inclusion(index: int, size: int, node: Node) -> list[bytes]:
    """The audit path of a leaf in the first `size` leaves (RFC 6962, section 2.1.1)."""
    path = []
    low, high = 0, size
    while high - low > 1:
        middle = low + _split(high - low)
        if index < middle:
            path.append(_hash_range(middle, high, node))
            high = middle
        else:
            path.append(_hash_range(low, middle, node))
            low = middle
    return path[::-1]


def prove_consistency(old: int, new: int, node: Node) -> list[bytes]:
    """The proof that the first `old` leaves are the beginning of the first `new` (RFC 6962, section 2.1.2)."""
    if old in (0, new):
        return []
    path = []
    low, high = 0, new
    while high != old:
        middle = low + _split(high - low)
        if old <= middle:
            path.append(_hash_range(middle, high, node))
            high = middle
        else:
            path.append(_hash_range(low, middle, node))
            low = middle
    # A tree that is a subtree of the new one is known to who asks: it is the old root.
    return [*([_hash_range(low, high, node)] if low else []), *path[::-1]]


def _split(size: int) -> int:
    """The greatest power of two below a size."""
    return 1 << ((size - 1).bit_length() - 1)


def _hash_range(low: int, high: int, node: Node) -> bytes:
    size = high - low
    if size & (size - 1) == 0:
        return node(size.bit_length() - 1, low // size)
    middle = low + _split(size)
    return hash_children(_hash_range(low, middle, node), _hash_range(middle, high, node))


class HeadLeaf(msgspec.Struct, frozen=True, kw_only=True):
    """A leaf: where a session ended, or, with `session_id` None, the tenant's audit log."""

    index: int
    session_id: str | None
    seq: int
    hash: bytes

    @property
    def data(self) -> bytes:
        """The leaf's bytes, of which its hash is made."""
        return encode({"session_id": self.session_id, "seq": self.seq, "hash": self.hash.hex()})


class LogCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of the log: the root of its first `size` leaves, and the note that says and signs it."""

    number: int
    size: int
    root: bytes
    at: str
    note: str


class SqlHeadLog(OnDatabase):
    """The log of heads of each tenant. Several processes may add to it at once."""

    async def add_heads(self, tenant: str) -> None:
        """Add a leaf for each session, and then for the audit log, that ends elsewhere than its last leaf says.

        They are looked for where no one waits, and added in slices. Deletions are in the audit log, which comes last.
        """
        after: str | None = ""
        while after is not None:
            last = after
            found = await self.database.read_snapshot(lambda connection: _find_changed(connection, tenant, last))  # noqa: B023
            await self._add(tenant, found)
            after = found.heads[-1][0] if len(found.heads) == _LEAVES_AT_ONCE else None
        await self._add(tenant, await self.database.read(lambda connection: _find_audit_head(connection, tenant)))

    async def _add(self, tenant: str, found: _Changed) -> None:
        if found.heads:
            await self.database.write(lambda connection: _add_leaves(connection, tenant, found))

    async def add_checkpoint(
        self, tenant: str, at: str, write_note: Callable[[int, bytes], str], is_current: Callable[[str], bool]
    ) -> LogCheckpoint:
        """The checkpoint of all leaves: the last one, if it is of all of them and its note is current, or a new one.

        `write_note` makes the text for a size and a root; it may be called more than once. Raises LogDamaged.
        """
        last = await self.read_checkpoint(tenant)
        if last is not None and is_current(last.note):
            # Nearly always nothing is to be written.
            size = await self.database.read(lambda connection: _count_leaves(connection, tenant))
            if size == last.size:
                return last
        return await self.database.write(
            lambda connection: _add_checkpoint(connection, tenant, at, write_note, is_current)
        )

    async def read_checkpoint(self, tenant: str, number: int | None = None) -> LogCheckpoint | None:
        """A checkpoint by its number, from 1; by default the last one."""
        return await self.database.read(lambda connection: _read_checkpoint(connection, tenant, number))

    async def find_leaf(self, key: SessionKey, size: int) -> HeadLeaf | None:
        """A session's last leaf among the first `size`."""
        row = {"tenant_": key.tenant, "session_id_": key.id, "size": size}
        found = await self.database.read(lambda connection: _FIND_LEAF.fetch_all(connection, row))
        return _read_leaf(found[0]) if found else None

    async def read_leaves(self, tenant: str, *, after: int, limit: int) -> list[HeadLeaf]:
        """Leaves with a greater index, the first ones first."""
        row = {"tenant_": tenant, "after": after, "limit_": limit}
        found = await self.database.read(lambda connection: _LEAVES.fetch_all(connection, row))
        return [_read_leaf(one) for one in found]

    async def compute_from_tree(self, tenant: str, compute: Callable[[Node], T]) -> T:
        """What `compute` makes of the tree's hashes. It is called twice: first to see which it needs.

        Raises LogDamaged.
        """
        return await self.database.read(lambda connection: _compute(connection, tenant, compute))


_Head = tuple[str, int, bytes]


class _Changed(msgspec.Struct, frozen=True):
    """Heads that the first `size` leaves do not have: of sessions, or, without a name, of the audit log."""

    size: int
    heads: list[_Head]


def _find_changed(connection: Connection, tenant: str, after: str) -> _Changed:
    size = _count_leaves(connection, tenant)
    rows = _CHANGED.fetch_all(connection, {"tenant_": tenant, "after": after, "limit_": _LEAVES_AT_ONCE})
    return _Changed(size, [(_as_name(name), seq, as_bytes(hash)) for name, seq, hash in rows])


def _find_audit_head(connection: Connection, tenant: str) -> _Changed:
    size = _count_leaves(connection, tenant)
    rows = _AUDIT_HEAD.fetch_all(connection, {"tenant_": tenant})
    heads = [("", seq, as_bytes(hash)) for seq, hash in rows]
    for name, seq, hash in heads:
        row = {"tenant_": tenant, "session_id_": name, "seq_": seq, "hash_": hash}
        if _HAS_LEAF.fetch_all(connection, row):
            return _Changed(size, [])
    return _Changed(size, heads)


def _add_leaves(connection: Connection, tenant: str, found: _Changed) -> None:
    insert = prepare_insert_if_absent(log_leaves, connection.dialect.name)
    while True:
        size = _count_leaves(connection, tenant)
        # What another process has added since they were looked for.
        row = {"tenant_": tenant, "after": found.size - 1, "limit_": size - found.size}
        known = {(_as_name(one[1]), one[2], as_bytes(one[3])) for one in _LEAVES.fetch_all(connection, row)}
        heads = [head for head in found.heads if head not in known]
        if not heads:
            return
        rows = _make_rows(connection, tenant, size, heads)
        # If another process has just added some, these come after those. Who has the first of them has the others, too:
        # each adds what comes next.
        if insert.execute(connection, rows[0]):
            insert.insert_many(connection, rows[1:])
            return


def _make_rows(connection: Connection, tenant: str, size: int, heads: Sequence[_Head]) -> list[dict[str, Any]]:
    peaks = _compute(connection, tenant, lambda node: _find_peaks(size, node))
    rows = []
    for index, (name, seq, hash) in enumerate(heads, start=size):
        ended = [hash_leaf(HeadLeaf(index=index, session_id=name or None, seq=seq, hash=hash).data)]
        while index >> len(ended) - 1 & 1:
            ended.append(hash_children(peaks.pop(), ended[-1]))
        peaks.append(ended[-1])
        row = {"tenant": tenant, "position": index, "session_id": name, "seq": seq, "hash": hash}
        rows.append({**row, "nodes": b"".join(ended)})
    return rows


def _find_peaks(size: int, node: Node) -> list[bytes]:
    """The complete subtrees that the first `size` leaves are made of, the largest first."""
    levels = [level for level in range(size.bit_length())[::-1] if size >> level & 1]
    return [node(level, (size >> level) - 1) for level in levels]


def _add_checkpoint(
    connection: Connection,
    tenant: str,
    at: str,
    write_note: Callable[[int, bytes], str],
    is_current: Callable[[str], bool],
) -> LogCheckpoint:
    add = prepare_insert_if_absent(log_checkpoints, connection.dialect.name)
    while True:
        size, last = _count_leaves(connection, tenant), _read_checkpoint(connection, tenant, None)
        if last is not None and last.size == size and is_current(last.note):
            return last
        root = _compute(connection, tenant, lambda node: find_root(size, node))  # noqa: B023
        made = LogCheckpoint(
            number=1 if last is None else last.number + 1, size=size, root=root, at=at, note=write_note(size, root)
        )
        if add.execute(connection, {"tenant": tenant, **msgspec.structs.asdict(made)}):
            return made


def _read_checkpoint(connection: Connection, tenant: str, number: int | None) -> LogCheckpoint | None:
    found = _CHECKPOINT.fetch_all(connection, {"tenant_": tenant, "upto": 2**62 if number is None else number})
    if not found or (number is not None and found[0][0] != number):
        return None
    number, size, root, at, note = found[0]
    return LogCheckpoint(number=number, size=size, root=as_bytes(root), at=as_text(at), note=_as_name(note))


def _count_leaves(connection: Connection, tenant: str) -> int:
    [[last]] = _LAST_LEAF.fetch_all(connection, {"tenant_": tenant})
    return 0 if last is None else last + 1


def _compute(connection: Connection, tenant: str, compute: Callable[[Node], T]) -> T:
    wanted: set[tuple[int, int]] = set()

    def note(level: int, index: int) -> bytes:
        wanted.add((level, index))
        return _ZEROS

    compute(note)
    ends = {(level, index): (index + 1 << level) - 1 for level, index in wanted}
    rows: dict[int, bytes] = {}
    for some in split_parameters(sorted(set(ends.values()))):
        of_some = (log_leaves.c.tenant == tenant, log_leaves.c.position.in_(some))
        found = connection.execute(select(log_leaves.c.position, log_leaves.c.nodes).where(*of_some))
        rows.update((position, as_bytes(nodes)) for position, nodes in found)

    def get(level: int, index: int) -> bytes:
        found = rows.get(ends[level, index], b"")[level * _HASH_BYTES :][:_HASH_BYTES]
        if len(found) != _HASH_BYTES:
            raise LogDamaged(f"leaf {ends[level, index]} of the log of heads is missing, or not as it was written")
        return found

    return compute(get)


def _as_name(value: object) -> str:
    """Verbatim text, as prepared statements read it."""
    return unescape(as_text(value))


def _read_leaf(row: Sequence[Any]) -> HeadLeaf:
    position, name, seq, hash = row
    return HeadLeaf(index=position, session_id=_as_name(name) or None, seq=seq, hash=as_bytes(hash))


_TEXT, _NUMBER = Verbatim(), BigInteger()


def _bind(name: str, type_: Any = _TEXT) -> Any:
    return bindparam(name, type_=type_)


_OF_TENANT = log_leaves.c.tenant == _bind("tenant_")
_COLUMNS = (log_leaves.c.position, log_leaves.c.session_id, log_leaves.c.seq, log_leaves.c.hash)
_LAST_LEAF = PreparedStatement(select(func.max(log_leaves.c.position)).where(_OF_TENANT))
_LEAVES = PreparedStatement(
    select(*_COLUMNS)
    .where(_OF_TENANT, log_leaves.c.position > _bind("after", _NUMBER))
    .order_by(log_leaves.c.position)
    .limit(_bind("limit_", _NUMBER))
)
# The sums keep SQLite from reading all leaves of the tenant, in the order of the log. A later leaf may have a lower
# seq, where the session was deleted and its id used again.
_FIND_LEAF = PreparedStatement(
    select(*_COLUMNS)
    .where(
        _OF_TENANT, log_leaves.c.session_id == _bind("session_id_"), log_leaves.c.position + 0 < _bind("size", _NUMBER)
    )
    .order_by((log_leaves.c.position + 0).desc())
    .limit(1)
)
_CHANGED = PreparedStatement(
    select(sessions.c.id, sessions.c.head_seq, sessions.c.head_hash)
    .where(
        sessions.c.tenant == _bind("tenant_"),
        sessions.c.id > _bind("after"),
        ~exists().where(
            log_leaves.c.tenant == sessions.c.tenant,
            log_leaves.c.session_id == sessions.c.id,
            # It follows, and keeps PostgreSQL from reading the leaves of all sessions before.
            log_leaves.c.session_id > _bind("after"),
            log_leaves.c.seq == sessions.c.head_seq,
            log_leaves.c.hash == sessions.c.head_hash,
        ),
    )
    .order_by(sessions.c.id)
    .limit(_bind("limit_", _NUMBER))
)
_AUDIT_HEAD = PreparedStatement(
    select(audit_log.c.seq, audit_log.c.hash)
    .where(audit_log.c.tenant == _bind("tenant_"))
    .order_by(audit_log.c.seq.desc())
    .limit(1)
)
_HAS_LEAF = PreparedStatement(
    select(log_leaves.c.position)
    .where(
        _OF_TENANT,
        log_leaves.c.session_id == _bind("session_id_"),
        log_leaves.c.seq == _bind("seq_", _NUMBER),
        log_leaves.c.hash == _bind("hash_", log_leaves.c.hash.type),
    )
    .limit(1)
)
_CHECKPOINT = PreparedStatement(
    select(*(log_checkpoints.c[name] for name in ("number", "size", "root", "at", "note")))
    .where(log_checkpoints.c.tenant == _bind("tenant_"), log_checkpoints.c.number <= _bind("upto", _NUMBER))
    .order_by(log_checkpoints.c.number.desc())
    .limit(1)
)
