"""One tenant can neither read, change nor count what is another's: every route of the document, every kind of id."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from tests.http.auth.keys import Headers, create_key, key_store
from tests.http.operations import Operation, read_operations
from tests.http.server import RunningServer, check_problem, server_settings, start_server
from tests.support.pictures import hash_content, make_inline_picture, make_message, make_png

pytestmark = pytest.mark.one_database

SECRET = "the canary of the victim"


@dataclass(frozen=True)
class TwoTenants:
    """A victim with a session and two of its runs, and somebody else, with a session, who knows all the ids."""

    service: RunningServer
    victim: Headers
    other: Headers
    ids: dict[str, str]
    own: dict[str, str]

    async def ask(
        self,
        operation: Operation,
        values: dict[str, str],
        query: dict[str, str] | None = None,
        *,
        form: str = "application/json",
        caller: Headers | None = None,
    ) -> httpx2.Response:
        needed = {name: values.get(ID_KINDS.get(name, ""), example) for name, example in operation.needed.items()}
        return await self.service.client.request(
            operation.method,
            operation.url(values),
            json=operation.body,
            params=needed | (query or {}),
            headers=(caller or self.other) | {"Accept": form},
        )


@pytest.fixture
async def offline(ready_url: str) -> AsyncIterator[RunningServer]:
    """A server with the offline model, which has an answer to everything, on each kind of database in turn."""
    async with start_server(server_settings(database_url=ready_url)) as running:
        yield running


@pytest.fixture
async def two(offline: RunningServer) -> TwoTenants:
    service = offline
    victim = await create_key(service, "victim", role="admin")
    other = await create_key(service, "other", role="admin")
    ids, own = {}, {}
    for headers, session_id, text, into in ((victim, "theirs", SECRET, ids), (other, "own", "mine", own)):
        body = {"id": session_id, "metadata": {"team": text}, "context_variables": {"name": text}}
        assert (await service.post("/v1/sessions", body, headers=headers)).status_code == 201
        picture = make_png(100, len(text))
        said = [make_message(make_inline_picture(picture), text=text)]
        answer = await service.post(f"/v1/sessions/{session_id}/runs", {"input": said}, headers=headers)
        assert answer.json()["status"] == "completed"
        into |= {
            "session_id": session_id,
            "run_id": answer.json()["id"],
            "seq": "4",
            "name": "Front",
            "consumer": "crm",
        }
        into["hash"] = hash_content(picture)
        assert (await service.get("/v1/checkpoint", headers=headers)).status_code == 200
        place = (await service.get("/v1/events?after=end", headers=headers)).json()["next_cursor"]
        kept = await service.client.put("/v1/consumers/crm", json={"cursor": place}, headers=headers)
        assert kept.status_code == 200
        hook = await service.post("/v1/webhooks", {"url": "https://example.com/", "types": ["none"]}, headers=headers)
        into |= {"webhook_id": hook.json()["id"], "place": "1-1"}
    for tenant, into in (("victim", ids), ("other", own)):
        # One that nobody sends requests with.
        into["key_id"] = (await key_store(service).create(tenant))[0].id
    return TwoTenants(service, victim, other, ids, own)


# What in a path or a query names something of a tenant, and what a request can say that names nothing.
ABSENT_IDS = {
    "session_id": "absent",
    "run_id": "run_00000000000000000000000000000000",
    "key_id": "key_0000000000000000",
    "hash": "0" * 64,
    "webhook_id": "wh_0000000000000000",
}
ID_KINDS = {
    "session_id": "session_id",
    "run_id": "run_id",
    "key_id": "key_id",
    "hash": "hash",
    "webhook_id": "webhook_id",
    "id": "session_id",
    "with": "session_id",
    "session": "session_id",
}
# Parameters that narrow a list down: what they name need not be there.
FILTERS = {"session"}
TENANT_FREE_PARAMETERS = {
    "seq", "name", "limit", "cursor", "at", "before", "after", "head", "type", "agent", "status", "force", "as",
    "dry_run", "group_by", "from", "to", "model", "format", "reason", "include", "tool_call_id", "last_run", "order",
    "children", "q", "active_after", "active_before", "damaged", "redacted", "assignee", "feedback",
    "checkpoint", "number", "since", "size", "wait", "consumer", "place", "state",
    "stop_reason", "error", "created_after", "created_before", "sort",
}  # fmt: skip
READING_POSTS = {"POST /v1/sessions/{session_id}/replay"}
# Fields of bodies that name what is to be made, in the caller's own tenant, or a run of the session in the path.
NEW_ID_FIELDS = {"id", "run_id"}


def without_id(answer: httpx2.Response, shown: str) -> tuple[int, dict[str, str], str]:
    """An answer without the id that was asked for, which it may quote, and without the request's own."""
    own = ("date", "content-length", "x-request-id")
    headers = {name: value for name, value in answer.headers.items() if name not in own}
    return answer.status_code, headers, answer.text.replace(shown, "…")


async def test_foreign_objects_look_nonexistent_everywhere(two: TwoTenants) -> None:
    before = await read_everything(two)
    asked = 0
    for operation in await read_operations(two.service):
        for name in (*operation.parameters, *operation.query):
            assert name in ID_KINDS.keys() | TENANT_FREE_PARAMETERS, (
                f"{operation.name}: is {name} of a tenant? say it here"
            )
            if name in TENANT_FREE_PARAMETERS:
                continue
            kind = ID_KINDS[name]
            for form in operation.forms:
                asked += 1
                if name in operation.query:
                    theirs = await two.ask(operation, two.own, {name: two.ids[kind]}, form=form)
                    nobodys = await two.ask(operation, two.own, {name: ABSENT_IDS[kind]}, form=form)
                else:
                    # With the run that is in their session, too.
                    foreign = two.own | (two.ids if kind == "session_id" else {name: two.ids[kind]})
                    theirs = await two.ask(operation, foreign, form=form)
                    nobodys = await two.ask(operation, two.own | {name: ABSENT_IDS[kind]}, form=form)
                assert theirs.status_code == (200 if name in FILTERS else 404), f"{operation.name}: {theirs.text}"
                assert without_id(theirs, two.ids[kind]) == without_id(nobodys, ABSENT_IDS[kind]), operation.name
        named = {field for field in operation.fields if field == "id" or field.endswith("_id") or "session" in field}
        assert named <= NEW_ID_FIELDS, f"{operation.name}: what do {named - NEW_ID_FIELDS} name?"
    assert asked > 20
    assert await read_everything(two) == before


async def read_everything(two: TwoTenants) -> list[Any]:
    paths = ("/v1/sessions", "/v1/sessions/theirs", "/v1/sessions/theirs/runs", "/v1/sessions/theirs/events")
    return [(await two.service.get(path, headers=two.victim)).json() for path in paths]


async def test_no_route_leaks_other_tenants_data(two: TwoTenants) -> None:
    for operation in await read_operations(two.service):
        if operation.method == "DELETE":
            continue
        answer = await two.ask(operation, two.own)
        assert answer.status_code < 500, operation.name
        assert SECRET not in answer.text, operation.name
        assert two.ids["run_id"] not in answer.text, operation.name


async def test_lists_filters_and_cursors_are_tenants(two: TwoTenants) -> None:
    service = two.service
    for number in range(3):
        for headers in (two.victim, two.other):
            await service.post("/v1/sessions", {"id": f"s{number}", "metadata": {"n": "1"}}, headers=headers)
    page = (await service.get("/v1/sessions?limit=1", headers=two.victim)).json()
    assert [one["id"] for one in page["data"]] == ["s2"]
    # It says from when on, and nothing about whose.
    cursor = page["next_cursor"]
    assert cursor
    for query in ({"cursor": cursor}, {}, {"agent": "Front"}, {"status": "idle"}):
        found = (await service.get("/v1/sessions", params=query, headers=two.other)).json()["data"]
        assert {one["id"] for one in found} <= {"s0", "s1", "s2", "own"}
        assert SECRET not in str(found)
    for query in ({"metadata.team": SECRET}, {"metadata.team": SECRET, "cursor": cursor}):
        assert (await service.get("/v1/sessions", params=query, headers=two.other)).json()["data"] == []
    usage = (await service.get("/v1/usage?group_by=session", headers=two.other)).json()["data"]
    assert [row["session_id"] for row in usage] == ["own"]
    assert len((await service.get("/v1/sessions?metadata.n=1", headers=two.other)).json()["data"]) == 3


async def test_tenants_share_ids_and_idempotency_keys(two: TwoTenants) -> None:
    service, once = two.service, {"Idempotency-Key": "k1"}
    made = [await service.post("/v1/sessions", {"metadata": {"of": n}}, headers=h | once)
            for n, h in (("a", two.victim), ("b", two.other))]  # fmt: skip
    assert [answer.status_code for answer in made] == [201, 201]
    assert made[0].json()["id"] != made[1].json()["id"]
    # An id that another has is free, and theirs stays as it is.
    answer = await service.post("/v1/sessions", {"id": "theirs"}, headers=two.other)
    assert (answer.status_code, answer.json()["seq"]) == (201, 1)
    path = "/v1/sessions/theirs/runs"
    run = (await service.post(path, {"input": "hello"}, headers=two.other | once)).json()
    assert run["status"] == "completed"
    answer = await service.get(f"{path}/{two.ids['run_id']}", headers=two.other)
    check_problem(answer, 404, "run_not_found")
    assert (await service.delete("/v1/sessions/theirs", headers=two.other)).status_code == 204
    assert (await service.get("/v1/sessions/theirs", headers=two.victim)).json()["message_count"] == 2


async def test_stream_shows_only_own_session(two: TwoTenants) -> None:
    service = two.service
    await service.post("/v1/sessions", {"id": "theirs"}, headers=two.other)
    async with service.stream("/v1/sessions/theirs/events", **two.other) as stream:
        await stream.until("session.created")
        for headers, text in ((two.victim, SECRET), (two.other, "mine")):
            await service.post("/v1/sessions/theirs/runs", {"input": text, "stream": True}, headers=headers)
        seen = await stream.until("run.completed")
    assert SECRET not in str([frame.lines for frame in seen])
    assert "mine" in str([frame.lines for frame in seen])


async def test_keyless_answers_do_not_reveal_existence(plain: RunningServer) -> None:
    key = await create_key(plain, "acme")
    assert (await plain.post("/v1/sessions", {"id": "there"}, headers=key)).status_code == 201
    wrong = key["Authorization"][:-1] + ("A" if key["Authorization"][-1] != "A" else "B")
    for operation in await read_operations(plain):
        values = {"run_id": "r", "seq": "1", "name": "Front", "consumer": "crm", "key_id": "k", "hash": "h"}
        values |= {"webhook_id": "wh", "place": "1-1"}
        # Where a path names no session, one request tells.
        names = ("there", "not-there") if "{session_id}" in operation.path else ("there",)
        for shown in ({}, {"Authorization": wrong}):
            answers = []
            for session_id in names:
                url = operation.url(values | {"session_id": session_id})
                # Refused before it is read: the body is no JSON, and the parameter unknown.
                answer = await plain.client.request(
                    operation.method, f"{url}?unknown=1", content=b"{", headers=shown | {"Content-Type": "text/plain"}
                )
                check_problem(answer, 401, "unauthenticated")
                assert answer.headers["www-authenticate"].startswith('Bearer realm="swarmkeep"')
                answers.append(without_id(answer, session_id))
            assert answers[0] == answers[-1]


async def test_read_only_key_changes_nothing(two: TwoTenants) -> None:
    reader = await create_key(two.service, "victim", role="read")
    before = await read_everything(two)
    for operation in await read_operations(two.service):
        answer = await two.ask(operation, two.ids, caller=reader)
        others = ("/v1/audit", "/v1/checkpoint", "/v1/keys", "/v1/webhooks")
        reads = operation.method == "GET" and not operation.path.startswith(others)
        if operation.name == "GET /v1/sessions/{session_id}/case":
            # The message of this session's run has a file, which no case holds.
            check_problem(answer, 400, "invalid_request")
        elif reads or operation.name in READING_POSTS:
            assert answer.status_code == 200, f"{operation.name}: {answer.text}"
        else:
            check_problem(answer, 403, "forbidden")
    assert await read_everything(two) == before
