"""API keys over HTTP: when they are needed, whose they are, and how soon they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
from msgspec.structs import replace

from swarmkeep.events.errors import Overloaded
from swarmkeep.http.auth import CACHE_SECONDS, MAX_BUCKETS, Keyring, Principal, RateLimited, RateLimiter
from swarmkeep.http.metrics import ServerLimits
from swarmkeep.http.streams import StreamCheck
from swarmkeep.runs.reader import LONGEST_SILENCE_SECONDS
from swarmkeep.store.keys import SqlApiKeys, StoredApiKey
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import StoreUnavailable
from tests.http.auth.keys import bearer_headers, create_key, key_store
from tests.http.server import PATIENCE_SECONDS, RunningServer, check_problem, server_settings, start_server
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def wait_until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await holds():
            pass


@pytest.mark.long
async def test_running_server_notices_key_changes(service: RunningServer) -> None:
    session = await service.session(id="before")
    assert (await service.get(session)).status_code == 200
    made, secret = await key_store(service).create("default", name="desk")
    headers = bearer_headers(secret)

    async def locked() -> bool:
        return (await service.get(session)).status_code == 401

    await wait_until(locked)
    # What was made while the server was open belongs to the tenant `default`.
    assert (await service.get(session, headers=headers)).status_code == 200
    assert (await service.get("/health/ready")).status_code == 200
    for path in ("/docs", "/openapi.json", "/health/live"):
        assert (await service.get(path)).status_code == 200
    # It asks for a key now, so that it may be called by any name.
    assert (await service.get(session, headers=headers | {"Host": "agents.example"})).status_code == 200
    await key_store(service).revoke(made.id)

    async def revoked() -> bool:
        return (await service.get(session, headers=headers)).status_code == 401

    await wait_until(revoked)
    # Nobody has a valid key any more; that opens nothing.
    check_problem(await service.get(session), 401, "unauthenticated")


@pytest.mark.long
async def test_stream_ends_on_revocation_or_locking(plain: RunningServer) -> None:
    session = await plain.session()
    async with plain.stream(f"{session}/events") as opened:
        await opened.next()
        made, secret = await key_store(plain).create("default")
        assert await opened.read_rest() == []
    async with plain.stream(f"{session}/events", **bearer_headers(secret)) as opened:
        await opened.next()
        await key_store(plain).revoke(made.id)
        assert await opened.read_rest() == []


async def test_ended_key_refused_and_streams_end(sqlite_ready: str) -> None:
    limits = ServerLimits(gone_seconds=0.0, ping_seconds=0.05)
    async with start_server(server_settings(database_url=sqlite_ready), limits) as service:
        ends = datetime(2027, 1, 1, tzinfo=UTC)
        now = ends - timedelta(seconds=1)
        service.service.keyring = Keyring(key_store(service), now=lambda: now)
        _, secret = await key_store(service).create("acme", expires_at=ends)
        headers = bearer_headers(secret)
        await service.post("/v1/sessions", {"id": "s"}, headers=headers)
        async with service.stream("/v1/sessions/s/events", **headers) as opened:
            await opened.next()
            now = ends
            await opened.read_rest()
        check_problem(await service.get("/v1/sessions/s", headers=headers), 401, "unauthenticated")


@pytest.mark.parametrize(
    "shown",
    [
        "{}",
        "Basic {}",
        "Bearer",
        "Bearer {}x",
        "Bearer {} {}",
        "Token {}",
        "Bearer swk_0000000000000000_{}",
    ],
)
async def test_only_whole_key_in_place_counts(plain: RunningServer, shown: str) -> None:
    secret = (await create_key(plain, "acme"))["Authorization"].removeprefix("Bearer ")
    check_problem(
        await plain.get("/v1/sessions", headers={"Authorization": shown.format(secret, secret)}), 401, "unauthenticated"
    )
    for scheme in ("Bearer", "bearer", "BEARER "):
        answer = await plain.get("/v1/sessions", headers={"Authorization": f"{scheme} {secret}"})
        assert answer.status_code == 200
    answer = await plain.get("/v1/sessions", headers=[("Authorization", f"Bearer {secret}")] * 2)
    check_problem(answer, 401, "unauthenticated")
    assert (await plain.get(f"/v1/agents?api_key={secret}")).status_code == 401


async def test_malformed_keys_break_nothing(plain: RunningServer) -> None:
    await create_key(plain, "acme")
    host = plain.url.removeprefix("http://")
    for junk in (b"\xff\xfe", b"swk_" + b"a" * 20_000, b"\t", b"swk_0123456789abcdef_" + b"\xc3\xa4" * 43):
        head = (
            b"GET /v1/sessions HTTP/1.1\r\nHost: " + host.encode() + b"\r\nAuthorization: Bearer " + junk + b"\r\n\r\n"
        )
        assert (await plain.raw(head)).startswith(b"HTTP/1.1 401 ")


async def test_missing_routes_hidden_without_key(plain: RunningServer) -> None:
    missing = (
        ("GET", "/v1", 404),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/sessions/s/events/x/request", 404),
        ("PUT", "/v1/sessions", 405),
        ("HEAD", "/v1/nothing", 404),
        ("POST", "/openai/v1/nothing", 404),
    )
    headers = await create_key(plain, "acme")
    for method, path, status in missing:
        refused = await plain.client.request(method, path)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Bearer")
        assert (await plain.client.request(method, path, headers=headers)).status_code == status
    check_problem(await plain.get("/v1/nothing"), 401, "unauthenticated")
    assert (await plain.client.post("/openai/v1/nothing")).json()["error"]["code"] == "unauthenticated"
    for path in ("/nothing", "/v10", "/health/nothing"):
        assert (await plain.get(path)).status_code == 404


async def test_use_noted_without_failing_requests(plain: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = await create_key(plain, "acme")
    assert (await plain.get("/v1/agents", headers=headers)).status_code == 200
    (found,) = await key_store(plain).list_keys()
    assert found.last_used_at is not None

    async def busy(*args: object, **options: object) -> None:
        raise Overloaded

    other = await create_key(plain, "acme")
    monkeypatch.setattr(key_store(plain)._database, "write", busy)
    assert (await plain.get("/v1/agents", headers=other)).status_code == 200


async def test_whoever_decides_is_named(service: RunningServer, model: ScriptedModel) -> None:
    headers = await create_key(service, "acme", name="Maria")
    (key,) = await key_store(service).list_keys()
    await service.post("/v1/sessions", {"id": "s"}, headers=headers)
    model.call("refund", {"order": "1"}, id="c1")
    model.say("Done.")
    run = (await service.post("/v1/sessions/s/runs", {"input": "refund"}, headers=headers)).json()
    decided = {"approvals": [{"tool_call_id": "c1", "decision": "approve"}]}
    path = f"/v1/sessions/s/runs/{run['id']}/resume"
    check_problem(
        await service.post(path, {"approvals": [{**decided["approvals"][0], "by": "me"}]}, headers=headers),
        400, "invalid_request",
    )  # fmt: skip
    assert (await service.post(path, decided, headers=headers)).json()["status"] == "completed"
    events = (await service.get("/v1/sessions/s/events?type=approval.decided", headers=headers)).json()["data"]
    assert [event["data"]["by"] for event in events] == [f"{key.id} (Maria)"]


# The ring itself, by a clock.


async def test_database_asked_every_two_seconds(plain: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, clock = key_store(plain), Clock()
    ring = Keyring(keys, clock=clock)
    assert not await ring.is_locked()
    made, secret = await keys.create("acme")
    assert not await ring.is_locked()
    clock.now += CACHE_SECONDS
    assert await ring.is_locked()
    assert await ring.find_key(secret) is not None
    await keys.revoke(made.id)
    clock.now += CACHE_SECONDS - 0.001
    assert await ring.is_valid(made)
    clock.now += 0.001
    assert not await ring.is_valid(made)
    assert not await ring.is_valid(replace(made, id="never made"))
    assert await ring.find_key(secret) is None

    async def gone(*args: object) -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(keys, "find", gone)
    clock.now += CACHE_SECONDS
    with pytest.raises(StoreUnavailable):
        await ring.find_key(secret)
    assert await ring.is_locked()


async def test_simultaneous_equal_lookups_ask_once(plain: RunningServer) -> None:
    keys = CountingKeys(cast(SqlStore, plain.engine.store).database)
    ring = Keyring(keys)
    assert await asyncio.gather(*(ring.is_locked() for _ in range(50))) == [False] * 50
    assert keys.asked == 1
    made, _ = await keys.create("acme")
    keys.asked = 0
    assert await asyncio.gather(*(ring.is_valid(made) for _ in range(50))) == [True] * 50
    assert keys.asked == 1


async def test_leaving_caller_cancels_no_others_answer(plain: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = key_store(plain)
    ring = Keyring(keys)
    first, second = (asyncio.create_task(ring.is_locked()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second is False
    assert (await asyncio.gather(first, return_exceptions=True))[0].__class__ is asyncio.CancelledError

    async def gone(*args: object) -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(keys, "has_keys", gone)
    ring = Keyring(keys)
    answers = await asyncio.gather(*(ring.is_locked() for _ in range(3)), return_exceptions=True)
    assert [str(answer) for answer in answers] == ["gone"] * 3
    monkeypatch.undo()
    # A question that failed is asked again.
    assert await ring.is_locked() is False


async def test_answer_counts_from_asking_time(plain: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, clock = key_store(plain), Clock()
    ring = Keyring(keys, clock=clock)
    made, _ = await keys.create("acme")
    find, asked, answered = keys.find, asyncio.Event(), asyncio.Event()

    async def find_slowly(key_id: str) -> StoredApiKey | None:
        found = await find(key_id)
        asked.set()
        await answered.wait()
        return found

    monkeypatch.setattr(keys, "find", find_slowly)
    early = asyncio.create_task(ring.is_valid(made))
    await asked.wait()
    monkeypatch.undo()
    await keys.revoke(made.id)
    clock.now += CACHE_SECONDS
    late = asyncio.create_task(ring.is_valid(made))
    await asyncio.sleep(0)
    answered.set()
    assert (await early, await late) == (True, False)
    assert not await ring.is_valid(made)


async def test_stream_rechecks_its_key_in_time(plain: RunningServer) -> None:
    check = StreamCheck(Principal(plain.service, None), None, stop=plain.service.drained)
    # Of the five seconds there are those for which a key is known, and those of the silence that may follow.
    assert check.due_at <= time.monotonic() + 5 - CACHE_SECONDS - LONGEST_SILENCE_SECONDS


# Rates.


def test_bucket_holds_minute_and_refills() -> None:
    clock = Clock()
    rates = RateLimiter(3, clock=clock)
    for _ in range(3):
        rates.count("a")
    with pytest.raises(RateLimited) as refused:
        rates.count("a")
    assert refused.value.retry_after_seconds == 20
    rates.count("b")
    clock.now += 19
    with pytest.raises(RateLimited) as refused:
        rates.count("a")
    assert refused.value.retry_after_seconds == 1
    clock.now += 1
    rates.count("a")
    clock.now += 3600
    for _ in range(3):
        rates.count("a")
    with pytest.raises(RateLimited):
        rates.count("a")


async def test_keys_limited_separately_health_unlimited(sqlite_ready: str) -> None:
    async with start_server(server_settings(database_url=sqlite_ready, rate_limit_per_minute=2)) as service:
        one, two = await create_key(service, "acme"), await create_key(service, "acme")
        for headers in (one, two):
            for _ in range(2):
                assert (await service.get("/v1/agents", headers=headers)).status_code == 200
            answer = await service.post("/v1/sessions", {"id": "s"}, headers=headers)
            check_problem(answer, 429, "rate_limited")
            assert 0 < int(answer.headers["retry-after"]) <= 30
        # Those who have none share the measure of their address.
        for status in (401, 401, 429):
            assert (await service.get("/v1/agents")).status_code == status
        assert (await service.get("/v1/agents", headers=one)).status_code == 429
        assert (await service.get("/health/live")).status_code == 200
        assert (await service.get("/docs")).status_code == 200


async def test_an_open_server_counts_by_address(sqlite_ready: str) -> None:
    async with start_server(server_settings(database_url=sqlite_ready, rate_limit_per_minute=1)) as service:
        assert (await service.get("/v1/agents")).status_code == 200
        check_problem(await service.get("/v1/agents"), 429, "rate_limited")


class CountingKeys(SqlApiKeys):
    """Counts how often the database is asked for a key, and whether there are any."""

    asked = 0

    async def has_keys(self) -> bool:
        self.asked += 1
        return await super().has_keys()

    async def find(self, key_id: str) -> StoredApiKey | None:
        self.asked += 1
        return await super().find(key_id)


async def test_tried_out_keys_have_limited_lookups(ready_url: str) -> None:
    async with start_server(server_settings(database_url=ready_url, rate_limit_per_minute=3)) as service:
        keys = CountingKeys(cast(SqlStore, service.engine.store).database)
        service.service.keyring = Keyring(keys)
        _, secret = await keys.create("default")
        assert (await service.get("/v1/agents", headers=bearer_headers(secret))).status_code == 200
        keys.asked = 0
        tried = [f"swk_{n:016x}_{secret[21:]}" for n in range(40)]
        answers = [(await service.get("/v1/agents", headers=bearer_headers(one))).status_code for one in tried]
        assert answers == [401] * 3 + [429] * 37
        assert keys.asked == 3
        # One that is in use is not held up by what others try from its address.
        assert (await service.get("/v1/agents", headers=bearer_headers(secret))).status_code == 200


async def test_made_up_addresses_evict_no_key(sqlite_ready: str) -> None:
    async with start_server(server_settings(database_url=sqlite_ready, rate_limit_per_minute=1)) as service:
        headers = await create_key(service, "acme")
        assert (await service.get("/v1/agents", headers=headers)).status_code == 200
        for number in range(MAX_BUCKETS):
            service.service.count_request(None, f"2001:db8::{number:x}")
        check_problem(await service.get("/v1/agents", headers=headers), 429, "rate_limited")
