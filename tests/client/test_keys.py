"""The client's calls about API keys and quotas, and how their answers are read; the real server answers them alike."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from swarmkeep_client import ApiKeyNotFound, AsyncClient, Client, Forbidden
from tests.client import samples
from tests.client.stub_server import StubServer, make_json_reply
from tests.http.auth.keys import create_key
from tests.http.server import server_settings, start_server

KEY = {"id": "key_1", "tenant": "t", "name": "n", "role": "read", "created_at": "now", "expires_at": "then"}
QUOTAS = {
    "sessions": {"used": 3, "limit": 10},
    "stored_bytes": {"used": 5, "limit": 100},
    "tokens_today": {"used": 7, "limit": None},
    "day_ends_in_seconds": 60,
}
COUNTS = {"status": {"waiting": {"count": 2, "more": False}}, "last_run": {"failed": {"count": 1000, "more": True}}}
ME = {
    "tenant": "acme",
    "key": {"id": "key_1", "name": "n", "expires_at": None},
    "role": "read",
    "permissions": ["read"],
}


def script_answers(server: StubServer) -> None:
    server.script(
        make_json_reply({**KEY, "key": "swk_secret"}),
        make_json_reply(samples.make_page([KEY])),
        make_json_reply({**KEY, "revoked_at": "later"}),
        make_json_reply(QUOTAS),
        make_json_reply(COUNTS),
        make_json_reply({"currency": "EUR", "data": [{"model": "m*", "input": 2, "cached_input": 1, "output": 3}]}),
        make_json_reply(ME),
    )


def test_the_answers_are_values(server: StubServer, client: Client) -> None:
    script_answers(server)
    ends = datetime(2026, 12, 31, tzinfo=UTC)
    made = client.keys.create(name="n", role="read", expires_at=ends)
    assert (made.id, made.key, made.expires_at) == ("key_1", "swk_secret", "then")
    assert "swk_secret" not in f"{made} {made!r}"
    assert [key.name for key in client.keys.list(page_size=5)] == ["n"]
    assert client.keys.revoke("key_1").revoked_at == "later"
    assert client.quotas().tokens_today.limit is None
    counts = client.sessions.counts(children=True)
    assert (counts.status["waiting"].count, counts.last_run["failed"].more) == (2, True)
    prices = client.prices()
    assert (prices.currency, prices.data[0].model, prices.data[0].cached_input) == ("EUR", "m*", 1.0)
    me = client.me()
    assert me.key is not None
    assert (me.tenant, me.key.name, me.role, me.permissions) == ("acme", "n", "read", ["read"])
    assert server.lines == [
        "POST /v1/keys",
        "GET /v1/keys?limit=5",
        "POST /v1/keys/key_1/revoke",
        "GET /v1/quotas",
        "GET /v1/counts?children=true",
        "GET /v1/prices",
        "GET /v1/me",
    ]
    assert server.received[0].json == {"name": "n", "role": "read", "expires_at": "2026-12-31T00:00:00+00:00"}
    assert server.received[0].headers["idempotency-key"]


async def test_async_answers_are_values_too(server: StubServer, async_client: AsyncClient) -> None:
    script_answers(server)
    assert (await async_client.keys.create(idempotency_key="k")).key == "swk_secret"
    assert [key.role async for key in async_client.keys.list()] == ["read"]
    assert (await async_client.keys.revoke("key_1")).revoked_at == "later"
    assert (await async_client.quotas()).sessions.used == 3
    assert (await async_client.sessions.counts()).status["waiting"].count == 2
    assert (await async_client.prices()).currency == "EUR"
    assert (await async_client.me()).tenant == "acme"
    assert server.received[0].headers["idempotency-key"] == "k"


def test_time_without_zone_refused_before_sending(server: StubServer, client: Client) -> None:
    with pytest.raises(ValueError, match="time zone"):
        client.keys.create(expires_at=datetime(2026, 12, 31))
    assert server.lines == []


async def test_a_server_makes_and_ends_keys(sqlite_ready: str) -> None:
    async with start_server(server_settings(database_url=sqlite_ready)) as service:
        headers = await create_key(service, "acme", role="admin")
        admin = AsyncClient(service.url, api_key=headers["Authorization"].removeprefix("Bearer "))
        async with admin:
            tomorrow = datetime.now(UTC) + timedelta(days=1)
            made = await admin.keys.create(name="reader", role="read", expires_at=tomorrow, idempotency_key="once")
            again = await admin.keys.create(name="reader", role="read", expires_at=tomorrow, idempotency_key="once")
            assert (again.id, again.key) == (made.id, None)
            assert [key.name async for key in admin.keys.list(page_size=1)][1:] == ["reader"]
            assert (await admin.quotas()).sessions.used == 0
            async with AsyncClient(service.url, api_key=made.key) as reader:
                assert [session.id async for session in reader.sessions.list()] == []
                with pytest.raises(Forbidden):
                    await reader.keys.create()
            assert (await admin.keys.revoke(made.id)).revoked_at is not None
            with pytest.raises(ApiKeyNotFound):
                await admin.keys.revoke("key_none")
