"""Keys over HTTP: an admin makes, lists and revokes those of the own tenant, and the audit log tells of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from swarmkeep.events.codec import Json
from tests.http.auth.keys import bearer_headers, create_key, key_store
from tests.http.server import RunningServer, check_problem

pytestmark = pytest.mark.one_database

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


async def test_what_is_anothers_is_not_there(service: RunningServer) -> None:
    admin = await create_key(service, "acme", role="admin")
    await create_key(service, "other")
    (theirs,) = await key_store(service).list_keys(tenant="other")
    for key_id in (theirs.id, "key_0000000000000000", "x"):
        check_problem(await service.post(f"/v1/keys/{key_id}/revoke", headers=admin), 404, "key_not_found")
    assert await key_store(service).list_keys(tenant="other") == [theirs]


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
