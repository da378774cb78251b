"""API keys over HTTP: when they are needed, who makes them, how soon they end, and who is told of refusals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from msgspec.structs import replace

from swarmkeep.events.codec import Json
from swarmkeep.events.errors import Overloaded
from swarmkeep.http.auth import CACHE_SECONDS, MAX_BUCKETS, Keyring, Principal, RateLimited, RateLimiter, RefusalLog
from swarmkeep.http.metrics import ServerLimits
from swarmkeep.http.streams import StreamCheck
from swarmkeep.runs.reader import LONGEST_SILENCE_SECONDS
from swarmkeep.store.keys import SqlApiKeys, StoredApiKey
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import StoreUnavailable
from tests.http.auth.keys import bearer_headers, create_key, key_store
from tests.http.server import PATIENCE_SECONDS, RunningServer, check_problem, server_settings, start_server

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
    "shown", ["{}", "Basic {}", "Bearer", "Bearer {}x", "Bearer {} {}", "Token {}", "Bearer swk_0000000000000000_{}"]
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


# An admin makes, lists and revokes the keys of the own tenant.


FIELDS = {"id", "tenant", "name", "role", "created_at", "last_used_at", "revoked_at", "expires_at"}


async def test_admin_makes_lists_and_revokes_keys(service: RunningServer) -> None:
    admin = await create_key(service, "acme", name="root", role="admin")
    answer = await service.post(
        "/v1/keys", {"name": "desk", "role": "run", "expires_at": "2999-01-01T01:00:00+01:00"}, headers=admin
    )
    assert answer.status_code == 201
    made: Json = answer.json()
    assert made.keys() == FIELDS | {"key"}
    assert (made["tenant"], made["name"], made["role"]) == ("acme", "desk", "run")
    assert made["expires_at"] == "2999-01-01T00:00:00.000000Z"
    desk = bearer_headers(made["key"])
    assert (await service.post("/v1/sessions", {"id": "s"}, headers=desk)).status_code == 201
    listed = await service.get("/v1/keys", headers=admin)
    assert made["key"] not in listed.text
    assert [one["name"] for one in listed.json()["data"]] == ["root", "desk"]
    assert all(one.keys() == FIELDS for one in listed.json()["data"])
    revoked = (await service.post(f"/v1/keys/{made['id']}/revoke", headers=admin)).json()
    assert revoked["revoked_at"]
    assert (await service.post(f"/v1/keys/{made['id']}/revoke", headers=admin)).json() == revoked

    by = f"{listed.json()['data'][0]['id']} (root)"
    entries = (await service.get("/v1/audit", headers=admin)).json()["data"]
    told = [(entry["type"], entry["by"], entry["data"]["key_id"]) for entry in entries]
    assert told[1:] == [("key.created", by, made["id"]), ("key.revoked", by, made["id"])]
    assert told[0][:2] == ("key.created", None)
    assert (entries[1]["data"]["role"], entries[1]["data"]["name"]) == ("run", "desk")
    assert entries[1]["data"]["expires_at"] == made["expires_at"]
    assert (await service.get("/v1/audit/verify", headers=admin)).json()["valid"]


async def test_a_list_of_keys_has_pages(service: RunningServer) -> None:
    admin = await create_key(service, "acme", name="0", role="admin")
    await create_key(service, "other", name="not theirs")
    for number in range(1, 5):
        await create_key(service, "acme", name=str(number))
    names, query = [], "?limit=2"
    while True:
        page = (await service.get(f"/v1/keys{query}", headers=admin)).json()
        assert len(page["data"]) <= 2
        names += [one["name"] for one in page["data"]]
        if page["next_cursor"] is None:
            break
        query = f"?limit=2&cursor={page['next_cursor']}"
    assert names == list("01234")
    check_problem(await service.get("/v1/keys?cursor=nothing", headers=admin), 400, "invalid_request")


async def test_foreign_key_cursor_refused_like_unknown(service: RunningServer) -> None:
    admin = await create_key(service, "acme", role="admin")
    theirs, _ = await key_store(service).create("other")
    await create_key(service, "acme", name="later")
    answers = [
        await service.get(f"/v1/keys?cursor={cursor}", headers=admin) for cursor in (theirs.id, "key_" + "0" * 16)
    ]
    assert [check_problem(answer, 400, "invalid_request") for answer in answers] == [answers[1].json()] * 2


async def test_repeated_key_creation_shows_nothing(service: RunningServer) -> None:
    admin = await create_key(service, "acme", role="admin")
    body = {"name": "desk", "role": "run"}
    again = admin | {"Idempotency-Key": "k"}
    answers = await asyncio.gather(*(service.post("/v1/keys", body, headers=again) for _ in range(4)))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert [answer.json()["key"] is not None for answer in answers].count(True) == 1
    assert len((await service.get("/v1/keys", headers=admin)).json()["data"]) == 2
    check_problem(await service.post("/v1/keys", body | {"role": "write"}, headers=again), 422, "idempotency_mismatch")
    # A key of another tenant that came with the same one is another.
    other = await create_key(service, "other", role="admin")
    answer = await service.post("/v1/keys", body, headers=other | {"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json()["tenant"]) == (201, "other")


@pytest.mark.parametrize(
    "body",
    [
        {"role": "owner"},
        {"name": "a\nb"},
        {"name": "x" * 201},
        {"expires_at": "2020-01-01T00:00:00Z"},
        {"expires_at": "2999-01-01T00:00:00"},
        {"expires_at": "30d"},
        {"tenant": "other"},
    ],
)
async def test_impossible_key_is_not_made(plain: RunningServer, body: dict[str, Any]) -> None:
    admin = await create_key(plain, "acme", role="admin")
    problem = check_problem(await plain.post("/v1/keys", body, headers=admin), 400, "invalid_request")
    (name,) = body
    assert [error["pointer"] for error in problem["errors"]] in ([f"/{name}"], [""])
    assert len(await key_store(plain).list_keys()) == 1


async def test_open_server_makes_no_keys(plain: RunningServer) -> None:
    for answer in (await plain.post("/v1/keys", {"role": "admin"}), await plain.get("/v1/keys")):
        assert "swarmkeep keys create" in check_problem(answer, 403, "forbidden")["detail"]
    assert await key_store(plain).list_keys() == []


async def test_open_server_tells_everyone_permissions(service: RunningServer) -> None:
    assert (await service.get("/v1/me")).json() == {
        "tenant": "default",
        "key": None,
        "role": None,
        "permissions": ["approve", "audit", "read", "run", "webhooks", "write"],
        "files": {
            "types": ["image/png", "image/jpeg", "image/gif", "image/webp", "audio/*", "text/*", "application/*"],
            "max_bytes": 5_000_000,
            # As much as fits into a request.
            "max_message_bytes": 7_425_000,
            "max_count": 100,
        },
    }


async def test_caller_learns_identity_and_permissions(service: RunningServer) -> None:
    desk = await create_key(service, "acme", name="desk", role="run")
    answer = await service.get("/v1/me", headers=desk)
    found = answer.json()
    assert desk["Authorization"].partition(" ")[2] not in answer.text
    assert found["key"].keys() == {"id", "name", "expires_at"}
    assert (found["tenant"], found["key"]["name"], found["role"]) == ("acme", "desk", "run")
    assert found["permissions"] == ["read", "run"]
    check_problem(await service.get("/v1/me"), 401, "unauthenticated")
    admin = await create_key(service, "acme", role="admin")
    assert "keys" in (await service.get("/v1/me", headers=admin)).json()["permissions"]


# Who runs a server sees in its log who was refused, and is not flooded by it.


def test_refusal_lines_limited_then_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    refusals = RefusalLog(2, clock=lambda: now)
    for _ in range(5):
        refusals.note(401, "192.0.2.1", "GET /v1/sessions")
    refusals.note(429, "192.0.2.2", "GET /v1/agents")
    now = 61.0
    refusals.note(403, "192.0.2.1", "DELETE /v1/sessions/s")
    assert caplog.messages == [
        "refused GET /v1/sessions as unauthenticated: 192.0.2.1",
        "refused GET /v1/sessions as unauthenticated: 192.0.2.1",
        "refused GET /v1/agents as too many requests: 192.0.2.2",
        "refused DELETE /v1/sessions/s as forbidden: 192.0.2.1; 3 more since the last such line",
    ]


async def test_a_server_tells_whom_it_refused(sqlite_ready: str, caplog: pytest.LogCaptureFixture) -> None:
    async with start_server(server_settings(database_url=sqlite_ready)) as service:
        key, secret = await key_store(service).create("default", role="read")
        wrong = secret[:-1] + ("a" if secret[-1] != "a" else "b")
        assert (await service.get("/v1/sessions")).status_code == 401
        assert (await service.get("/v1/sessions", headers=bearer_headers(wrong))).status_code == 401
        assert (await service.post("/v1/sessions", {}, headers=bearer_headers(secret))).status_code == 403
        assert (await service.get("/v1/sessions", headers=bearer_headers(secret))).status_code == 200
    told = [message for message in caplog.messages if message.startswith("refused ")]
    assert told == [
        "refused GET /v1/sessions as unauthenticated: 127.0.0.1",
        f"refused GET /v1/sessions by {key.id} as unauthenticated: 127.0.0.1",
        f"refused POST /v1/sessions by {key.id} as forbidden: 127.0.0.1",
    ]
    assert secret not in caplog.text
    assert wrong not in caplog.text
