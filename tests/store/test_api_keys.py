"""API keys: kept as digests, found by their ids, and never gone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from sqlalchemy import select

from swarmkeep.events.codec import to_timestamp
from swarmkeep.events.errors import ApiKeyNotFound, InvalidRequest
from swarmkeep.store.keys import SqlApiKeys, parse_key_id
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.tables import api_keys

NOW = datetime(2026, 11, 21, tzinfo=UTC)


class ManualClock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def keys(store: SqlStore, clock: ManualClock) -> SqlApiKeys:
    return SqlApiKeys(store.database, clock=clock)


async def test_key_opens_only_by_itself(keys: SqlApiKeys) -> None:
    assert not await keys.has_keys()
    made, secret = await keys.create("acme", name="the shop's ☃", role="read")
    other, another = await keys.create("acme")
    assert await keys.has_keys()
    assert parse_key_id(secret) == made.id
    found = await keys.find(made.id)
    assert found.key == made
    assert (made.tenant, made.name, made.role, made.label) == (
        "acme", "the shop's ☃", "read", f"{made.id} (the shop's ☃)",
    )  # fmt: skip
    assert other.label == other.id
    assert found.accepts(secret, at=NOW)
    for wrong in (another, secret[:-1], secret + "x", secret.upper(), made.id, ""):
        assert not found.accepts(wrong, at=NOW)
    assert await keys.find("key_0000000000000000") is None


async def test_key_ends_on_time(keys: SqlApiKeys, clock: ManualClock) -> None:
    ends = clock.now + timedelta(days=30)
    made, secret = await keys.create("acme", expires_at=ends)
    lasting, _ = await keys.create("acme")
    found = await keys.find(made.id)
    assert (found.key, made.expires_at, lasting.expires_at) == (made, to_timestamp(ends), None)
    assert found.accepts(secret, at=ends - timedelta(microseconds=1))
    assert not found.accepts(secret, at=ends)
    assert not made.is_valid(ends)
    assert lasting.is_valid(ends)
    # What nobody can read as a time has come already.
    assert not msgspec.structs.replace(made, expires_at="2999").is_valid(clock.now)


async def test_key_cannot_end_before_creation(keys: SqlApiKeys, clock: ManualClock) -> None:
    for ends in (clock.now, clock.now - timedelta(days=1)):
        with pytest.raises(InvalidRequest, match="in the future"):
            await keys.create("acme", expires_at=ends)
    assert await keys.list_keys() == []


@pytest.mark.parametrize(
    "text", ["", "swk_", "key_0123456789abcdef", "swk_0123456789ABCDEF_" + "a" * 43, "\u0660" * 64]
)
def test_impossible_key_has_no_id(text: str) -> None:
    assert parse_key_id(text) is None


async def test_key_itself_is_not_in_database(keys: SqlApiKeys, store: SqlStore) -> None:
    made, secret = await keys.create("acme", name="desk")
    rows = await store.database.read(lambda connection: connection.execute(select(api_keys)).all())
    # Its id is no secret; what follows may have an underscore in it.
    assert secret.partition(f"{made.id.removeprefix('key_')}_")[2][:20] not in str(rows)
    assert len({(await keys.create("acme"))[1] for _ in range(20)}) == 20


async def test_revoked_key_exists_but_opens_nothing(keys: SqlApiKeys, clock: ManualClock) -> None:
    made, secret = await keys.create("acme")
    ended = await keys.revoke(made.id)
    assert ended.revoked_at == "2026-11-21T00:00:00.000000Z"
    clock.now += timedelta(days=1)
    assert await keys.revoke(made.id) == ended
    found = await keys.find(made.id)
    assert not found.accepts(secret, at=NOW)
    assert await keys.has_keys()
    with pytest.raises(ApiKeyNotFound, match="keys list"):
        await keys.revoke("key_x")


async def test_keys_list_oldest_first_by_tenant(keys: SqlApiKeys, clock: ManualClock) -> None:
    made = []
    for tenant in ("b", "a", "b"):
        made.append((await keys.create(tenant))[0])
        clock.now += timedelta(seconds=1)
    assert await keys.list_keys() == made
    assert await keys.list_keys(tenant="b") == [made[0], made[2]]
    assert await keys.list_keys(tenant="none") == []


async def test_use_is_noted_once_a_minute(keys: SqlApiKeys, clock: ManualClock) -> None:
    made, _ = await keys.create("acme")
    seen = []
    for seconds in (0, 59, 60):
        clock.now = datetime(2026, 11, 21, tzinfo=UTC) + timedelta(seconds=seconds)
        await keys.note_use(made.id)
        (found,) = await keys.list_keys()
        seen.append(found.last_used_at)
    assert seen == ["2026-11-21T00:00:00.000000Z"] * 2 + ["2026-11-21T00:01:00.000000Z"]


@pytest.mark.parametrize(
    ("tenant", "name"), [("", ""), ("a/b", ""), ("a" * 129, ""), ("ä", ""), ("a", "x" * 201), ("a", "\n")]
)
async def test_names_that_are_none_are_refused(keys: SqlApiKeys, tenant: str, name: str) -> None:
    with pytest.raises(InvalidRequest):
        await keys.create(tenant, name=name)
    assert not await keys.has_keys()
