"""Proofs from the log of heads: signed checkpoints of a few lines, and what they show of one session or of all.

A checkpoint is a signed note (C2SP tlog-checkpoint and signed-note): the log's name, how many leaves it is of, and the
root of the Merkle tree over them. Anyone who keeps one can tell later whether anything of before was changed, left out
or rolled back; any witness of C2SP's can sign it, too.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple
from urllib.parse import quote, unquote

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.events.codec import MalformedJson, decode, to_timestamp
from swarmkeep.events.errors import CheckpointNotFound, InvalidRequest, NotInCheckpoint
from swarmkeep.history.checkpoints import BadCheckpoint, Signer, check_ed25519
from swarmkeep.store.head_log import (
    HeadLeaf,
    LogCheckpoint,
    find_root,
    hash_children,
    hash_leaf,
    prove_consistency,
    prove_inclusion,
)
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey, utc_now

DEFAULT_ORIGIN = "swarmkeep"
"""The log's name where none is set: no witness knows it."""
ED25519, COSIGNATURE = b"\x01", b"\x04"
"""Kinds of signatures, as key ids and names of keys (`vkey`) have them."""
MAX_NOTE_BYTES = 100_000
MAX_LEAVES = 2**63 - 1
_DASH = "— "


# Notes (c2sp.org/signed-note and c2sp.org/tlog-checkpoint).


class Signature(NamedTuple):
    """A line below a note: who signed it, by which key (4 bytes), and what."""

    name: str
    key_id: bytes
    content: bytes

    @property
    def line(self) -> str:
        return f"{_DASH}{self.name} {base64.b64encode(self.key_id + self.content).decode()}"


class Note(NamedTuple):
    """A checkpoint as it is written; `text` is what is signed."""

    origin: str
    size: int
    root: bytes
    text: str
    signatures: tuple[Signature, ...]

    @property
    def tenant(self) -> str:
        return unquote(self.origin.rpartition("/")[2])


def make_key_id(name: str, kind: bytes, public: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + kind + public).digest()[:4]


def write_note(origin: str, size: int, root: bytes, signer: Signer | None) -> str:
    text = f"{origin}\n{size}\n{base64.b64encode(root).decode()}\n"
    if signer is None:
        return text + "\n"
    signed = make_key_id(origin, ED25519, signer.public) + signer.sign(text.encode())
    return f"{text}\n{_DASH}{origin} {base64.b64encode(signed).decode()}\n"


def is_note(beginning: bytes) -> bool:
    """Tell a note from a list of heads, by how the file begins."""
    return not beginning.startswith(b"{")


def parse_note(content: bytes) -> Note:
    """Raises BadCheckpoint."""
    try:
        if len(content) > MAX_NOTE_BYTES:
            raise ValueError
        text, blank, below = content.decode().rpartition("\n\n")
        lines = text.split("\n")
        origin, size, root = lines[:3]
        if not (blank and origin and size.isascii() and size.isdecimal() and str(int(size)) == size):
            raise ValueError
        if int(size) > MAX_LEAVES:
            raise ValueError
        signatures = parse_signatures(below)
        if not all(lines) or len(decoded := _decode(root)) != 32:
            raise ValueError
    except (ValueError, UnicodeDecodeError):
        raise BadCheckpoint("the file is not a checkpoint, or was cut off") from None
    return Note(origin, int(size), decoded, text + "\n", signatures)


def parse_signatures(text: str) -> tuple[Signature, ...]:
    """The lines below a note. Raises ValueError."""
    *lines, rest = text.split("\n")
    if rest:
        raise ValueError
    return tuple(map(_parse_signature, lines))


def _parse_signature(line: str) -> Signature:
    name, _, content = line.removeprefix(_DASH).partition(" ")
    if not (line.startswith(_DASH) and name) or len(decoded := _decode(content)) < 5:
        raise ValueError
    return Signature(name, decoded[:4], decoded[4:])


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError from None


def check_note(note: Note, public: bytes) -> None:
    """Raises BadCheckpoint unless the note is signed with the log's key, under the log's name."""
    key_id = make_key_id(note.origin, ED25519, public)
    for signature in note.signatures:
        if (signature.name, signature.key_id) == (note.origin, key_id):
            return check_ed25519(public, signature.content, note.text.encode())
    raise BadCheckpoint("the checkpoint is not signed with this key")


# Merkle proofs, as their reader checks them (RFC 9162, sections 2.1.3.2 and 2.1.4.2).


def compute_root(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes | None:
    """The root that follows from a leaf's hash and its path; None if the path has another length."""
    if not 0 <= index < size:
        return None
    found, place, last = leaf, index, size - 1
    for one in path:
        if last == 0:
            return None
        if place & 1 or place == last:
            found = hash_children(one, found)
            while place and not place & 1:
                place, last = place >> 1, last >> 1
        else:
            found = hash_children(found, one)
        place, last = place >> 1, last >> 1
    return found if last == 0 else None


def is_consistent(old_size: int, old_root: bytes, new_size: int, new_root: bytes, path: Sequence[bytes]) -> bool:
    """Tell if a proof shows that the first leaves of the new tree are those of the old one."""
    if old_size > new_size:
        return False
    if old_size in (0, new_size):
        return not path and (old_size == 0 or old_root == new_root)
    hashes = list(path)
    if old_size & (old_size - 1) == 0:
        hashes.insert(0, old_root)
    if not hashes:
        return False
    place, last = old_size - 1, new_size - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    old = new = hashes[0]
    for one in hashes[1:]:
        if last == 0:
            return False
        if place & 1 or place == last:
            old, new = hash_children(one, old), hash_children(one, new)
            while place and not place & 1:
                place, last = place >> 1, last >> 1
        else:
            new = hash_children(new, one)
        place, last = place >> 1, last >> 1
    return last == 0 and (old, new) == (old_root, new_root)


class TreeHash:
    """The root of a tree whose leaves come one after the other."""

    def __init__(self) -> None:
        self.size = 0
        self._nodes: dict[tuple[int, int], bytes] = {}

    def add(self, data: bytes) -> None:
        level, index, node = 0, self.size, hash_leaf(data)
        while index & 1:
            node = hash_children(self._nodes.pop((level, index - 1)), node)
            level, index = level + 1, index >> 1
        self._nodes[level, index] = node
        self.size += 1

    @property
    def root(self) -> bytes:
        return find_root(self.size, lambda level, index: self._nodes[level, index])


class _LeafText(msgspec.Struct, frozen=True):
    session_id: str | None
    seq: int
    hash: str


def check_proof(proof: Proof) -> tuple[Note, str, int, str]:
    """The note that a proof leads to, and the session, seq and hash that are proven. The note's signatures are not
    checked. Raises BadCheckpoint."""
    note = parse_note(proof.checkpoint.note.encode())
    try:
        found = decode(proof.leaf, _LeafText)
        leaf = HeadLeaf(
            index=proof.index, session_id=found.session_id, seq=found.seq, hash=bytes.fromhex(found.hash)
        ).data
        path = [bytes.fromhex(one) for one in proof.inclusion]
    except (MalformedJson, msgspec.ValidationError, ValueError):
        raise BadCheckpoint("the proof is not written as a server writes it") from None
    if leaf != proof.leaf.encode() or found.session_id is None:
        raise BadCheckpoint("the proof's leaf is not one that a server writes")
    if compute_root(hash_leaf(leaf), proof.index, note.size, path) != note.root:
        raise BadCheckpoint(f"the proof of {found.session_id} does not lead to its checkpoint")
    return note, found.session_id, found.seq, found.hash


def read_noted_heads(note: Note, leaves: Iterable[str]) -> dict[str | None, list[tuple[int, str]]]:
    """The heads (seq and hash) that the texts of a log's first leaves name, by session, oldest first, if they are those
    of the note.

    None is the audit log. Raises BadCheckpoint: the log was cut off, or rewritten, since the note was made.
    """
    tree, heads = TreeHash(), dict[str | None, list[tuple[int, str]]]()
    for leaf in islice(leaves, note.size):
        tree.add(leaf.encode())
        try:
            head = decode(leaf, _LeafText)
        except (MalformedJson, msgspec.ValidationError):
            raise BadCheckpoint(f"leaf {tree.size - 1} of the log is not one that a server writes") from None
        heads.setdefault(head.session_id, []).append((head.seq, head.hash))
    if tree.size < note.size:
        raise BadCheckpoint(f"the log was cut off: it has {tree.size} leaves, and the checkpoint is of {note.size}")
    if tree.root != note.root:
        raise BadCheckpoint(f"the log was rewritten: its first {note.size} leaves are not those of the checkpoint")
    return heads


# What a server, or a database, gives.


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of the log of heads. Hashes and keys are hexadecimal."""

    number: int
    """Its number."""
    origin: str
    """The log's name."""
    size: int
    """How many leaves it is of."""
    root: str
    """Their root."""
    at: str
    """When it was made."""
    note: str
    """What is signed, with all signatures: keep it."""
    public_key: str | None
    """Null where it is not signed with the server's key of today."""
    consistency: list[str] | UnsetType = UNSET
    """If it was asked for: the proof (RFC 6962, 2.1.2) that it goes on from the first `since` leaves."""


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """That a session's event is in a checkpoint, and that checkpoint in the newest one. By the hash chain, the event
    stands for all before it. Hashes are hexadecimal."""

    session_id: str
    """The session."""
    seq: int
    """The event."""
    hash: str
    """Its hash."""
    index: int
    """The leaf's place."""
    leaf: str
    """The leaf's text; its hash is the SHA-256 of a zero byte and the text."""
    checkpoint: Checkpoint
    """The checkpoint."""
    inclusion: list[str]
    """The hashes that lead from the leaf to its root (RFC 6962, 2.1.1)."""
    newest: Checkpoint
    """The newest checkpoint."""
    consistency: list[str]
    """The proof that it goes on from `checkpoint` (2.1.2)."""


class Leaf(msgspec.Struct, frozen=True, kw_only=True):
    """A leaf of the log: where a session ended, or the audit log."""

    index: int
    """Its place."""
    session_id: str | None
    """The session; null: the audit log."""
    seq: int
    """Its last event, or entry."""
    hash: str
    """The hash of that."""
    leaf: str
    """The leaf's exact text."""


def view_leaf(leaf: HeadLeaf) -> Leaf:
    return Leaf(
        index=leaf.index, session_id=leaf.session_id, seq=leaf.seq, hash=leaf.hash.hex(), leaf=leaf.data.decode()
    )


class HeadLog:
    """The log of heads of each tenant of a store: makes checkpoints, and proves from them.

    `origin` is the log's name for others, below which each tenant has one of its own. Without a `signer` checkpoints
    are not signed.
    """

    def __init__(self, store: SqlStore, *, origin: str, signer: Signer | None) -> None:
        self._store = store
        self._origin = origin
        self.signer = signer
        self._making: dict[str, asyncio.Task[Checkpoint]] = {}
        self._next: dict[str, asyncio.Task[Checkpoint]] = {}

    async def make(self, tenant: str) -> Checkpoint:
        """A checkpoint of all that was recorded before the call: a new one, unless the last is of all that already.

        Of those who ask at once, all that come while one is being made share the next. Raises LogDamaged.
        """
        task = self._next.get(tenant)
        if task is None:
            task = self._next[tenant] = asyncio.create_task(self._make_after(self._making.get(tenant), tenant))
        return await asyncio.shield(task)

    async def _make_after(self, before: asyncio.Task[Checkpoint] | None, tenant: str) -> Checkpoint:
        if before is not None:
            await asyncio.wait([before])
        task = self._making[tenant] = self._next.pop(tenant)
        try:
            return await self._make(tenant)
        finally:
            if self._making[tenant] is task:
                del self._making[tenant]

    async def _make(self, tenant: str) -> Checkpoint:
        # Before the sessions are looked at: all that was recorded by then is in it.
        at = to_timestamp(utc_now())
        await self._store.add_heads(tenant)
        origin = self.name_log(tenant)
        made = await self._store.add_checkpoint(
            tenant,
            at,
            lambda size, root: write_note(origin, size, root, self.signer),
            is_current=lambda note: self._is_of_today(parse_note(note.encode()), origin),
        )
        return self._view(made)

    def _is_of_today(self, note: Note, origin: str) -> bool:
        return note.origin == origin and self._is_ours(note)

    def _is_ours(self, note: Note) -> bool:
        """Tell if a note has the signature that one of today would have."""
        if self.signer is None:
            return not note.signatures
        return any(one.key_id == make_key_id(note.origin, ED25519, self.signer.public) for one in note.signatures)

    def name_log(self, tenant: str) -> str:
        """The name of a tenant's log, as notes have it: without spaces and plus signs."""
        return f"{self._origin}/{quote(tenant, safe='')}"

    async def read(self, tenant: str, number: int) -> Checkpoint:
        """An earlier checkpoint. Raises CheckpointNotFound."""
        return self._view(await self._find(tenant, number))

    async def add_consistency(self, tenant: str, found: Checkpoint, since: int) -> Checkpoint:
        """The checkpoint with the proof that it goes on from the first `since` leaves.

        Raises InvalidRequest if it has fewer, and LogDamaged.
        """
        if since > found.size:
            raise InvalidRequest(f"checkpoint {found.number} is of {found.size} leaves only", "/query/since")
        proof = await self._store.compute_from_tree(tenant, lambda node: prove_consistency(since, found.size, node))
        return msgspec.structs.replace(found, consistency=[one.hex() for one in proof])

    async def prove(self, key: SessionKey, number: int | None = None) -> Proof:
        """The proof of a session's last event that is in a checkpoint, by default in the newest that there is.

        Raises SessionNotFound, CheckpointNotFound, NotInCheckpoint and LogDamaged.
        """
        store = self._store
        chosen, newest = await self._find(key.tenant, number), await self._find(key.tenant, None)
        leaf = await store.find_leaf(key, chosen.size)
        if leaf is None:
            await store.state(key)
            raise NotInCheckpoint(key.id, chosen.number)
        index = leaf.index
        inclusion, consistency = await store.compute_from_tree(
            key.tenant,
            lambda node: (
                prove_inclusion(index, chosen.size, node),
                prove_consistency(chosen.size, newest.size, node),
            ),
        )
        return Proof(
            session_id=key.id,
            seq=leaf.seq,
            hash=leaf.hash.hex(),
            index=index,
            leaf=leaf.data.decode(),
            checkpoint=self._view(chosen),
            inclusion=[one.hex() for one in inclusion],
            newest=self._view(newest),
            consistency=[one.hex() for one in consistency],
        )

    async def find_number(self, tenant: str, size: int) -> int:
        """The number of the first checkpoint of so many leaves. Raises CheckpointNotFound."""
        low, high = 1, (await self._find(tenant, None)).number
        while low < high:
            middle = (low + high) // 2
            is_before = (await self._find(tenant, middle)).size < size
            low, high = (middle + 1, high) if is_before else (low, middle)
        if (await self._find(tenant, low)).size != size:
            raise CheckpointNotFound(None, size)
        return low

    async def _find(self, tenant: str, number: int | None) -> LogCheckpoint:
        found = await self._store.read_checkpoint(tenant, number)
        if found is None:
            raise CheckpointNotFound(number)
        return found

    def _view(self, found: LogCheckpoint) -> Checkpoint:
        note = parse_note(found.note.encode())
        # The key that it was signed with may not be today's.
        signer = self.signer if self._is_ours(note) else None
        return Checkpoint(
            number=found.number,
            origin=note.origin,
            size=found.size,
            root=found.root.hex(),
            at=found.at,
            note=found.note,
            public_key=None if signer is None else signer.public.hex(),
        )
