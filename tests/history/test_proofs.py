"""The log of heads: its proofs, its notes, and several processes that add to it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmkeep.events.errors import CheckpointNotFound, LogDamaged, NotInCheckpoint, SessionNotFound
from swarmkeep.history.checkpoints import BadCheckpoint, load_signer
from swarmkeep.history.proofs import (
    Checkpoint,
    HeadLog,
    Proof,
    TreeHash,
    check_note,
    compute_root,
    is_consistent,
    parse_note,
    write_note,
)
from swarmkeep.history.redact import redact
from swarmkeep.runs.sessions import delete_session
from swarmkeep.store.head_log import find_root, hash_children, hash_leaf, prove_consistency, prove_inclusion
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import SessionKey
from swarmkeep.store.tables import log_leaves
from tests.store.sessions import KEY, OTHER, begin_session, draft_user_messages
from tests.support.signing import write_keys


def plain_root(leaves: list[bytes]) -> bytes:
    """RFC 6962, section 2.1, word for word."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    return hashlib.sha256(b"\x01" + plain_root(leaves[:half]) + plain_root(leaves[half:])).digest()


def tree_of(leaves: list[bytes]) -> dict[tuple[int, int], bytes]:
    nodes = {(0, index): hash_leaf(leaf) for index, leaf in enumerate(leaves)}
    for level in range(len(leaves).bit_length()):
        for index in range(len(leaves) >> level + 1):
            nodes[level + 1, index] = hash_children(nodes[level, 2 * index], nodes[level, 2 * index + 1])
    return nodes


@given(
    st.integers(1, 70).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1), st.integers(0, size)))
)
def test_proofs_hold_for_their_tree_only(drawn: tuple[int, int, int]) -> None:
    size, index, old = drawn
    leaves = [b"%d" % number for number in range(size)]
    nodes = tree_of(leaves)

    def node(level: int, place: int) -> bytes:
        return nodes[level, place]

    root, old_root = plain_root(leaves), plain_root(leaves[:old])
    assert (find_root(size, node), find_root(old, node)) == (root, old_root)
    tree = TreeHash()
    for leaf in leaves:
        tree.add(leaf)
    assert tree.root == root
    path = prove_inclusion(index, size, node)
    assert compute_root(hash_leaf(leaves[index]), index, size, path) == root
    for wrong in (path[:-1], [*path, root], [bytes(32), *path[1:]]):
        assert wrong == path or compute_root(hash_leaf(leaves[index]), index, size, wrong) != root
    assert compute_root(hash_leaf(b"another"), index, size, path) != root
    assert compute_root(hash_leaf(leaves[index]), size, size, path) is None
    shown = prove_consistency(old, size, node)
    assert is_consistent(old, old_root, size, root, shown)
    assert not is_consistent(old, old_root, size, root, [*shown, root])
    assert not is_consistent(size + 1, root, size, root, shown)
    if old:
        assert not is_consistent(old, plain_root([b"x", *leaves[1:old]]), size, root, shown)
        assert not is_consistent(old, old_root, size, plain_root([*leaves, b"x"]), shown)


def test_note_is_signed_as_c2sp_has_it(tmp_path: Path) -> None:
    private, _ = write_keys(tmp_path, "key")
    signer = load_signer(private)
    note = write_note("example.com/log", 7, bytes(range(32)), signer)
    assert note.startswith("example.com/log\n7\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n\n— example.com/log ")
    found = parse_note(note.encode())
    assert (found.origin, found.size, found.root) == ("example.com/log", 7, bytes(range(32)))
    check_note(found, signer.public)
    key_id = hashlib.sha256(b"example.com/log\n\x01" + signer.public).digest()[:4]
    assert base64.b64decode(note.split()[-1])[:4] == key_id
    with pytest.raises(BadCheckpoint, match="not signed with this key"):
        check_note(found, bytes(32))
    changed = parse_note(note.replace("\n7\n", "\n8\n").encode())
    with pytest.raises(BadCheckpoint, match="not valid"):
        check_note(changed, signer.public)
    unsigned = parse_note(write_note("a/b", 0, bytes(32), None).encode())
    with pytest.raises(BadCheckpoint, match="not signed"):
        check_note(unsigned, signer.public)


@given(st.binary(max_size=60) | st.text().map(lambda text: f"a\n1\n{text}\n\n".encode()))
def test_foreign_note_is_refused(content: bytes) -> None:
    with pytest.raises(BadCheckpoint):
        parse_note(content)


def check(proof: Proof) -> None:
    """Check a proof as whoever asked for it does."""
    leaf = hash_leaf(proof.leaf.encode())
    old, new = proof.checkpoint, proof.newest
    assert f'"hash":"{proof.hash}"' in proof.leaf
    assert compute_root(leaf, proof.index, old.size, hashes(proof.inclusion)) == bytes.fromhex(old.root)
    assert is_consistent(
        old.size, bytes.fromhex(old.root), new.size, bytes.fromhex(new.root), hashes(proof.consistency)
    )


def hashes(texts: list[str]) -> list[bytes]:
    return [bytes.fromhex(text) for text in texts]


def make_log(store: SqlStore) -> HeadLog:
    return HeadLog(store, origin="example.com", signer=None)


async def test_sessions_are_proven_from_checkpoints(store: SqlStore) -> None:
    log = make_log(store)
    with pytest.raises(CheckpointNotFound):
        await log.prove(KEY)
    state = await begin_session(store)
    first = await log.make(KEY.tenant)
    assert (first.number, first.size, first.origin) == (1, 1, "example.com/default")
    assert await log.make(KEY.tenant) == first
    state = (await store.append(KEY, state, draft_user_messages("hello"))).state
    await begin_session(store, OTHER)
    second = await log.make(KEY.tenant)
    assert (second.number, second.size) == (2, 3)
    assert await log.read(KEY.tenant, 1) == first
    with pytest.raises(CheckpointNotFound):
        await log.read(KEY.tenant, 3)
    with pytest.raises(NotInCheckpoint):
        await log.prove(OTHER, 1)
    with pytest.raises(SessionNotFound):
        await log.prove(SessionKey(KEY.tenant, "none"))
    for key, number, seq in ((KEY, 1, 1), (KEY, 2, 2), (KEY, None, 2), (OTHER, 2, 1)):
        proof = await log.prove(key, number)
        assert (proof.seq, proof.newest) == (seq, second)
        check(proof)
    assert (await log.prove(KEY)).hash == state.hash
    # Another tenant has a log of its own.
    assert (await log.make("acme corp+")).origin == "example.com/acme%20corp%2B"


async def test_redaction_and_deletion_leave_proofs(store: SqlStore) -> None:
    log = make_log(store)
    await store.append(KEY, await begin_session(store), draft_user_messages("hello"))
    await log.make(KEY.tenant)
    before = await log.prove(KEY)
    await redact(store, KEY, [2], "a name")
    await log.make(KEY.tenant)
    assert (await log.prove(KEY, 1)).leaf == before.leaf
    await delete_session(store, KEY)
    last = await log.make(KEY.tenant)
    proof = await log.prove(KEY, 1)
    assert (proof.leaf, proof.newest) == (before.leaf, last)
    check(proof)
    leaves = await store.read_leaves(KEY.tenant, after=-1, limit=100)
    assert [(leaf.session_id, leaf.seq) for leaf in leaves] == [(KEY.id, 2), (KEY.id, 3), (None, 1), (None, 2)]


async def test_id_used_again_has_new_proof(store: SqlStore) -> None:
    log = make_log(store)
    await store.append(KEY, await begin_session(store), draft_user_messages("hello", "again"))
    await log.make(KEY.tenant)
    before = await log.prove(KEY)
    await delete_session(store, KEY)
    state = await begin_session(store)
    await log.make(KEY.tenant)
    assert (await log.prove(KEY)).hash == state.hash
    assert (await log.prove(KEY, 1)).hash == before.hash


async def test_processes_share_one_log(store: SqlStore, kind: str, request: pytest.FixtureRequest) -> None:
    stores = [store, open_store(request.getfixturevalue(f"{kind}_ready"))]
    logs = [make_log(store) for store in stores]
    keys = [SessionKey("default", f"s{number}") for number in range(40)]
    made: list[Checkpoint] = []

    async def record(place: int) -> None:
        for key in keys[place::2]:
            await begin_session(stores[place], key)
            made.append(await logs[place].make("default"))

    await asyncio.gather(record(0), record(1))
    last = await logs[0].make("default")
    tree = TreeHash()
    for leaf in await stores[0].read_leaves("default", after=-1, limit=1000):
        assert leaf.index == tree.size
        tree.add(leaf.data)
    assert (last.size, last.root) == (tree.size, tree.root.hex())
    for number in range(1, last.number + 1):
        name = (await stores[0].read_leaves("default", after=-1, limit=1))[0].session_id
        check(await logs[1].prove(SessionKey("default", name or ""), number))
    assert {one.number: one for one in made}.keys() <= set(range(1, last.number + 1))
    assert len({(one.number, one.root) for one in made}) == len({one.number for one in made})
    await stores[1].close()


async def test_checkpoints_asked_at_once_are_made_once(store: SqlStore) -> None:
    log = make_log(store)
    await begin_session(store)
    found = await asyncio.gather(*(log.make(KEY.tenant) for _ in range(20)))
    assert {one.number for one in found} == {1}


async def test_missing_leaf_is_told(store: SqlStore) -> None:
    log = make_log(store)
    for number in range(4):
        await begin_session(store, SessionKey("default", f"s{number}"))
    await log.make("default")
    await store.database.write(
        lambda connection: connection.execute(log_leaves.delete().where(log_leaves.c.position == 1))
    )
    with pytest.raises(LogDamaged):
        await log.prove(SessionKey("default", "s0"))
