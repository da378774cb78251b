"""What a key may do: nothing of another tenant, and of its own what its role says, on every route of the document."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, get_args

import httpx2
import pytest

from swarmkeep.store.keys import Role
from tests.http.auth.keys import Headers, create_key, key_store
from tests.http.operations import Operation, read_operations
from tests.http.server import RunningServer, check_problem, scripted, server_settings, start_server
from tests.http.websocket.client import connect_session
from tests.support.pictures import hash_content, make_inline_picture, make_message, make_png
from tests.support.scripted import ScriptedModel

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


# What a key may do follows from its role.


ROLES: dict[Role, set[str]] = {
    "read": {"read"},
    "run": {"read", "run"},
    "approve": {"read", "approve"},
    "support": {"read", "run", "approve"},
    "audit": {"read", "audit"},
    "write": {"read", "run", "approve", "audit", "write"},
    "admin": {"read", "run", "approve", "audit", "write", "keys", "webhooks"},
}

# What each operation needs; `S` is a session's path. Here a run is resumed with an empty body; see below.
NEEDED = {
    name.replace("S/", "/v1/sessions/{session_id}/"): set(permissions.split())
    for permissions, names in {
        "run": [
            "POST /v1/sessions", "PATCH /v1/sessions/{session_id}", "POST S/fork", "POST S/compact",
            "POST S/takeover", "POST S/answer", "POST S/handback", "POST S/assign", "POST S/notes", "POST S/feedback",
            "DELETE S/messages/{seq}", "POST S/messages", "POST S/runs", "POST S/runs/{run_id}/cancel",
            "POST S/runs/{run_id}/resume",
        ],
        "read": [
            "GET /v1/sessions", "GET /v1/sessions/{session_id}", "GET S/forks", "GET S/messages", "GET S/events",
            "GET S/events/{seq}/request", "GET S/verify", "GET S/proof", "GET S/blobs/{hash}", "GET S/diff",
            "GET S/compare", "GET S/transcript", "GET S/case", "POST S/replay", "GET S/runs", "GET S/runs/{run_id}",
            "GET S/runs/{run_id}/stream", "GET /v1/runs", "GET /v1/runs/figures", "GET /v1/agents",
            "GET /v1/agents/{name}", "GET /v1/usage", "GET /v1/quotas", "GET /v1/prices", "GET /v1/counts",
            "GET /v1/export", "GET /v1/evidence", "GET /v1/me", "GET /v1/events", "GET /v1/consumers",
            "GET /v1/consumers/{consumer}", "GET /v1/retention",
        ],
        "write": [
            "DELETE /v1/sessions/{session_id}", "POST S/redact", "PUT S/hold", "DELETE S/hold", "POST /v1/import",
            "POST /v1/people/erase",
        ],
        "keys": [
            "GET /v1/keys", "POST /v1/keys", "POST /v1/keys/{key_id}/revoke",
        ],
        "audit": [
            "GET /v1/audit", "GET /v1/audit/verify", "GET /v1/checkpoint", "GET /v1/checkpoint/leaves",
        ],
        "audit run": [
            "PUT /v1/consumers/{consumer}", "DELETE /v1/consumers/{consumer}",
        ],
        "webhooks": [
            "GET /v1/webhooks", "POST /v1/webhooks", "GET /v1/webhooks/{webhook_id}",
            "PATCH /v1/webhooks/{webhook_id}", "DELETE /v1/webhooks/{webhook_id}",
            "POST /v1/webhooks/{webhook_id}/rotate", "POST /v1/webhooks/{webhook_id}/test",
            "GET /v1/webhooks/{webhook_id}/deliveries", "POST /v1/webhooks/{webhook_id}/deliveries/{place}/resend",
        ],
    }.items()
    for name in names
}  # fmt: skip
ABSENT = {
    "session_id": "absent", "run_id": "run_none", "seq": "1", "name": "Nobody",
    "consumer": "crm", "webhook_id": "wh_none", "place": "1-1", "key_id": "key_none", "hash": "none",
}  # fmt: skip


async def test_every_route_asks_listed_permission(plain: RunningServer) -> None:
    operations = await read_operations(plain)
    assert {operation.name for operation in operations} == NEEDED.keys()
    assert set(get_args(Role)) == ROLES.keys()
    for role, permissions in ROLES.items():
        key = await create_key(plain, "acme", role=role)
        for operation in operations:
            answer = await plain.client.request(
                operation.method, operation.url(ABSENT), params=operation.needed, json={}, headers=key
            )
            allowed = bool(NEEDED[operation.name] & permissions)
            assert (answer.status_code != 403) == allowed, f"{role}: {operation.name}: {answer.text}"
            if not allowed:
                detail = check_problem(answer, 403, "forbidden")["detail"]
                assert f"`{role}`" in detail
                assert all(f"`{name}`" in detail for name in NEEDED[operation.name])


async def start_waiting_run(service: RunningServer, writer: Headers, session_id: str) -> str:
    """The path of a run that waits for a decision on the call `c1`."""
    await service.post("/v1/sessions", {"id": session_id}, headers=writer)
    run = (await service.post(f"/v1/sessions/{session_id}/runs", {"input": "refund"}, headers=writer)).json()
    assert run["status"] == "waiting"
    return f"/v1/sessions/{session_id}/runs/{run['id']}"


APPROVE = {"approvals": [{"tool_call_id": "c1", "decision": "approve"}]}
RESULT = {"tool_results": [{"tool_call_id": "c1", "content": "done"}]}


@pytest.mark.parametrize(
    ("role", "body", "allowed"),
    [
        ("run", APPROVE, False),
        ("run", RESULT, True),
        ("run", {}, True),
        ("run", APPROVE | RESULT, False),
        ("approve", APPROVE, True),
        ("approve", RESULT, False),
        ("approve", {}, False),
        ("support", APPROVE, True),
        ("approve", APPROVE | RESULT, False),
        ("audit", APPROVE, False),
        ("write", APPROVE, True),
        ("write", APPROVE | RESULT, True),
    ],
)
@pytest.mark.parametrize("live", [False, pytest.param(True, marks=pytest.mark.long)])
async def test_resuming_needs_what_its_body_does(
    service: RunningServer, model: ScriptedModel, role: Role, body: dict[str, Any], allowed: bool, live: bool
) -> None:
    model.call("refund", {"order": "1"}, id="c1")
    writer, key = await create_key(service, "acme", role="run"), await create_key(service, "acme", role=role)
    run = await start_waiting_run(service, writer, "s")
    if allowed and body == APPROVE:
        model.say("Done.")
    if live:
        async with connect_session(service, "/v1/sessions/s", additional_headers=key) as viewer:
            code = (await viewer.answer("run.resume", run_id=run.rpartition("/")[2], **body)).data.get("code")
    else:
        code = (await service.post(f"{run}/resume", body, headers=key)).json().get("code")
    assert (code != "forbidden") == allowed
    if not allowed:
        assert (await service.get(run, headers=key)).json()["status"] == "waiting"
    elif body == APPROVE:
        async with service.stream(f"{run}/stream", **key) as frames:
            await frames.until("done")


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("queued", [False, True])
async def test_run_starter_may_not_approve_if_configured(
    ready_url: str, model: ScriptedModel, separate: bool, queued: bool
) -> None:
    async with start_server(scripted(ready_url, model, separate_approvers=separate)) as service:
        starter, other = await create_key(service, "acme", name="Ann"), await create_key(service, "acme")
        await service.post("/v1/sessions", {"id": "s"}, headers=starter)
        if queued:
            # Somebody else's run is before it.
            model.say("first")
            model.hang(then="second")
            await service.post("/v1/sessions/s/runs", {"input": "x"}, headers=other)
            first = await service.post("/v1/sessions/s/runs", {"input": "x", "background": True}, headers=other)
            await model.wait_for_requests_async(2)
        model.call("refund", {"order": "1"}, id="c1")
        body = {"input": "refund", "on_busy": "queue", "background": True}
        run = (await service.post("/v1/sessions/s/runs", body, headers=starter)).json()
        path = f"/v1/sessions/s/runs/{run['id']}"
        if queued:
            assert first.json()["status"] == "running"
            model.release()
        async with service.stream(f"{path}/stream", **starter) as frames:
            await frames.until("run.waiting")
        (key,) = [key for key in await key_store(service).list_keys() if key.name == "Ann"]
        events = (await service.get("/v1/sessions/s/events?type=run.started", headers=other)).json()["data"]
        assert events[-1]["data"]["by"] == key.label
        if separate:
            refused = await service.post(f"{path}/resume", APPROVE, headers=starter)
            assert "started" in check_problem(refused, 403, "forbidden")["detail"]
            async with connect_session(service, "/v1/sessions/s", additional_headers=starter) as viewer:
                answer = await viewer.answer("run.resume", run_id=run["id"], **APPROVE)
                assert answer.data["code"] == "forbidden"
        model.say("Done.")
        answer = await service.post(f"{path}/resume", APPROVE, headers=other if separate else starter)
        assert answer.json()["output_text"] == "Done."


async def test_audit_log_names_decision_makers(service: RunningServer, model: ScriptedModel) -> None:
    writer = await create_key(service, "acme", name="Ann")
    (key,) = await key_store(service).list_keys()
    model.call("refund", {"order": "1"}, id="c1")
    run = await start_waiting_run(service, writer, "s")
    model.say("Done.")
    decision = {"tool_call_id": "c1", "decision": "approve", "reason": "the canary"}
    forged = await service.post(f"{run}/resume", {"approvals": [{**decision, "by": "me"}]}, headers=writer)
    check_problem(forged, 400, "invalid_request")
    assert (await service.post(f"{run}/resume", {"approvals": [decision]}, headers=writer)).status_code == 200
    body = {"seqs": [1], "reason": "the canary"}
    assert (await service.post("/v1/sessions/s/redact", body, headers=writer)).status_code == 200
    listed = await service.get("/v1/audit", headers=writer)
    decided, redacted = listed.json()["data"][1:]
    events = (await service.get("/v1/sessions/s/events?limit=200", headers=writer)).json()["data"]
    recorded = {event["type"]: event for event in events}
    assert recorded["approval.decided"]["data"]["by"] == key.label
    # Of a decision the name is a part of the event, which can be redacted; the id stays.
    for entry, type_, by, more in (
        (decided, "approval.decided", key.id, {"run_id": run.rpartition("/")[2], "decision": "approve"}),
        (redacted, "session.redacted", key.label, {"seqs": [1]}),
    ):
        assert (entry["type"], entry["by"]) == (type_, by)
        place = {"session_id": "s", "seq": recorded[type_]["seq"], "hash": recorded[type_]["hash"]}
        assert entry["data"] == {**place, **more, "reason": None}
    # Reasons stand in the session, and go with it.
    assert "canary" not in listed.text
    assert (await service.get("/v1/audit/verify", headers=writer)).json()["valid"]
