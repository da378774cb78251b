"""The hash chain, made once more from the rows as an auditor would, without the store's own code."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from swarmkeep.events.errors import InvalidRequest
from swarmkeep.events.facts import ContextUpdated, EventDraft
from swarmkeep.events.state import State
from swarmkeep.store.hashing import (
    AUDIT_LOG,
    FORMATS,
    GENESIS,
    MAX_PAYLOAD_DEPTH,
    commitment_of,
    find_format,
    header_of,
    link,
    random_salts,
    seal,
)
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.tables import events as table
from tests.store.sessions import (
    KEY,
    OTHER,
    begin_session,
    draft_creation,
    draft_fork,
    draft_run_start,
    draft_user_messages,
)


def hash_parts(name: str, *parts: bytes) -> bytes:
    every = (name.encode(), *parts)
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in every)).digest()


def compute_chain(rows: list[Any]) -> list[str]:
    """The hash of each row, from the words of the docstring."""
    previous, hashes = bytes(32), []
    for row in rows:
        commitment = hash_parts("swarmkeep payload v2", row.salt, row.payload.encode("utf-8"))
        fields = [row.seq, row.type, row.version, row.run_id, row.agent, row.recorded_at]
        lone = any("\ud800" <= char <= "\udfff" for text in fields if isinstance(text, str) for char in text)
        header = json.dumps(fields, ensure_ascii=lone, separators=(",", ":")).encode("utf-8")
        previous = hash_parts("swarmkeep event v2", previous, header, commitment)
        hashes.append(previous.hex())
    return hashes


async def read_rows(store: SqlStore, id: str) -> list[Any]:
    query = select(table).where(table.c.session_id == id).order_by(table.c.seq)
    return list(await store.database.read(lambda connection: connection.execute(query).all()))


async def test_chain_is_reproducible_from_rows(store: SqlStore) -> None:
    state = await begin_session(store, metadata={"é": "NUL \0 \ud800"})
    state = (await store.append(KEY, state, draft_run_start(state))).state
    for agent in ("Ünïcødé 😀", "\ud800", 'tab\t"quote" \\ \x01 \x7f \u2028 \b\f\n\r/', "NUL \0"):
        state = (await store.append(KEY, state, [EventDraft(ContextUpdated(patch={"a": agent}), agent, agent)])).state
    events = await store.read(KEY)
    assert compute_chain(await read_rows(store, KEY.id)) == [event.hash for event in events]
    assert events[-1].hash == state.hash


async def test_a_fork_continues_the_same_chain(store: SqlStore) -> None:
    state = await begin_session(store)
    fork = await store.fork(KEY, state, OTHER, draft_fork(state))
    assert compute_chain(await read_rows(store, OTHER.id)) == [state.hash, fork.state.hash]


async def test_auditors_get_the_hash_inputs(store: SqlStore) -> None:
    state = await begin_session(store)
    await store.append(KEY, state, draft_user_messages("a", "b", "c"))
    rows = await read_rows(store, KEY.id)
    first, second = await store.read_sealed(KEY, limit=2), await store.read_sealed(KEY, after=2)
    assert [one.event for one in first + second] == await store.read(KEY)
    assert [(one.salt, one.commitment) for one in first + second] == [(row.salt, row.commitment) for row in rows]


def test_a_golden_chain() -> None:
    """Figures that no release may change."""
    salts = [bytes([number]) * 16 for number in range(3)]
    drafts = [*draft_creation({"team": "é"}, {"n": -0.0}), *draft_user_messages("hello", "\ud800")]
    sealed = seal("any id", State(), drafts, at="2026-01-02T03:04:05.000006Z", salts=lambda count: salts[:count])
    assert [one.event.hash for one in sealed] == GOLDEN


def test_first_format_golden_chain() -> None:
    """What was recorded before hashes had sizes in them is read for ever."""
    drafts = [*draft_creation({"team": "é"}, {"n": -0.0}), *draft_user_messages("hello", "\ud800")]
    sealed = seal("any id", State(), drafts, at="2026-01-02T03:04:05.000006Z")
    previous = GENESIS
    for number, (one, expected) in enumerate(zip(sealed, GOLDEN_FIRST_FORMAT, strict=True)):
        event = one.event
        header = header_of(event.seq, event.type, event.version, event.run_id, event.agent, event.at)
        commitment = commitment_of(bytes([number]) * 16, event.payload, 1)
        hash = link(previous, header, commitment, 1)
        assert hash.hex() == expected
        assert find_format(previous, header, commitment, hash) == 1
        previous = hash


PART = st.binary(max_size=4)


@given(st.lists(PART, min_size=3, max_size=3), st.lists(PART, min_size=3, max_size=3))
def test_different_parts_hash_differently(some: list[bytes], others: list[bytes]) -> None:
    hashes = [link(*parts, format) for parts in (some, others) for format in FORMATS]
    assert hashes[0] != hashes[1], "no two formats give the same hash"
    assert (hashes[0] == hashes[2]) == (some == others)


def test_hash_belongs_to_one_chain() -> None:
    parts = (GENESIS, b"[]", bytes(32))
    assert len({link(*parts), link(*parts, chain=AUDIT_LOG), link(*parts, 1)}) == 3
    assert find_format(*parts, link(*parts, chain=AUDIT_LOG)) is None


GOLDEN = [
    "4cc0e29e029fb4ec9ec2815fdc009e6e870c821cb488ab257abe2af6e0c77969",
    "c20c953dbd1562c4aa4e3b17cf317b89f73e53e7a23b3c2d02c42944a7241ccf",
    "798b4c56e06af043a51d9e12013df276cd2c4eb31c8717fff60978343929cbc7",
]

GOLDEN_FIRST_FORMAT = [
    "f9a1c0cda210ce034a29cfa48cbbe5da988bc8da92cafc7299d449261368d90c",
    "9aa222bae2b228b27ed888ec8710c8af33f25f8f8c803f0ac20caf4abcacca27",
    "da2b417c24c543a25405a76b38b84c39abcf79089420005c5c76632f6efab80e",
]


def test_equal_payloads_have_unequal_commitments() -> None:
    one, two = seal("s", State(), draft_user_messages("yes", "yes"), at="2026-01-02T03:04:05.000006Z")
    assert one.event.payload == two.event.payload
    assert one.commitment != two.commitment


def test_salts_are_random_and_full_length() -> None:
    salts = random_salts(100)
    assert len(set(salts)) == 100
    assert {len(salt) for salt in salts} == {16}
    assert random_salts(0) == []


def test_payload_depth_is_limited_breadth_is_not() -> None:
    def seal_patch(value: Any) -> None:
        seal("s", State(), [EventDraft(ContextUpdated(patch={"a": value}), None, "A")], at="")

    value: Any = []
    # The payload and the patch are levels, too, and the empty list is one.
    for _ in range(MAX_PAYLOAD_DEPTH - 3):
        value = [value]
    seal_patch(value)
    seal_patch([[]] * 10 * MAX_PAYLOAD_DEPTH)
    with pytest.raises(InvalidRequest, match=f"nested more than {MAX_PAYLOAD_DEPTH} levels deep"):
        seal_patch([value])
