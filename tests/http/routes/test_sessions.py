"""Sessions over HTTP: made once, listed, found by words, changed by key, forked, deleted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from swarmkeep.events.codec import Json
from tests.http.server import PATIENCE_SECONDS, RunningServer, check_problem, server_settings, start_server
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


async def test_new_session_has_location_and_seq(service: RunningServer) -> None:
    body = {"id": "s1", "agent": "Sales / EU ☃", "context_variables": {"a": [1, None]}, "metadata": {"team": "x"}}
    answer = await service.post("/v1/sessions", body)
    assert (answer.status_code, answer.headers["location"], answer.headers["etag"]) == (201, "/v1/sessions/s1", '"1"')
    session = answer.json()
    assert session == {
        **body,
        "status": "idle",
        "seq": 1,
        "hash": session["hash"],
        "active_run_id": None,
        "message_count": 0,
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "model_calls": 0},
        "forked_from": None,
        "created_at": session["created_at"],
        "updated_at": session["created_at"],
        "last_run_status": None,
        "title": None,
    }
    again = await service.get("/v1/sessions/s1")
    assert (again.json(), again.headers["etag"]) == (session, '"1"')


async def test_same_session_recreated_different_refused(service: RunningServer) -> None:
    body = {"id": "s1", "metadata": {"a": 1, "of": {"b": True, "c": "é\0"}}}
    first = await service.post("/v1/sessions", body)
    await service.patch("/v1/sessions/s1", {"metadata": {"b": 2}})
    second = await service.post("/v1/sessions", body)
    assert (second.status_code, second.json()) == (200, first.json())
    assert "location" not in second.headers
    # The order of keys says nothing in JSON; 1 and 1.0 are not written alike.
    turned = {"metadata": {"of": {"c": "é\0", "b": True}, "a": 1}, "id": "s1"}
    assert (await service.post("/v1/sessions", turned)).json() == first.json()
    other = {"id": "s1", "metadata": {"a": 1.0, "of": {"b": True, "c": "é\0"}}}
    check_problem(await service.post("/v1/sessions", other), 409, "session_exists")
    check_problem(await service.post("/v1/sessions", {"id": "s1"}), 409, "session_exists")


async def test_new_session_fields_are_optional(service: RunningServer) -> None:
    for content in (b"", b"{}", b'{"id": null, "agent": null, "messages": null}'):
        answer = await service.client.post("/v1/sessions", content=content)
        assert (answer.status_code, answer.json()["agent"]) == (201, "Front")


async def test_lists_newest_first_filtered_paged(service: RunningServer) -> None:
    for number in range(5):
        await service.session(id=f"s{number}", metadata={"even": number % 2 == 0, "q": "a&b=c"}, agent="Front")
    await service.session(id="other", agent="Sales / EU ☃")

    async def ids(**params: str | int) -> list[str]:
        answer = await service.get("/v1/sessions", params=params)
        assert answer.status_code == 200, answer.text
        return [session["id"] for session in answer.json()["data"]]

    assert await ids() == ["other", "s4", "s3", "s2", "s1", "s0"]
    assert await ids(agent="Sales / EU ☃") == ["other"]
    assert await ids(status="running") == []
    assert await ids(**{"metadata.even": "true"}) == ["s4", "s2", "s0"]
    assert await ids(**{"metadata.even": "true", "metadata.q": "a&b=c", "agent": "Front"}) == ["s4", "s2", "s0"]
    assert await ids(**{"metadata.even": "\x00", "metadata.'; --": "x"}) == []
    seen, cursor = [], None
    while True:
        params = {"limit": 4} | ({} if cursor is None else {"cursor": cursor})
        page = (await service.get("/v1/sessions", params=params)).json()
        seen.append([session["id"] for session in page["data"]])
        if (cursor := page["next_cursor"]) is None:
            break
    assert seen == [["other", "s4", "s3", "s2"], ["s1", "s0"]]


async def test_sessions_listed_by_activity_and_outcome(service: RunningServer, model: ScriptedModel) -> None:
    for name in ("first", "second", "third", "fourth"):
        await service.post("/v1/sessions", {"id": name})

    async def list_ids(query: str) -> list[str]:
        answer = await service.get(f"/v1/sessions?{query}")
        assert answer.status_code == 200, answer.text
        return [session["id"] for session in answer.json()["data"]]

    model.say("Well.")
    await service.post("/v1/sessions/second/runs", {"input": "hello"})
    model.fail(401)
    await service.post("/v1/sessions/first/runs", {"input": "hello"})
    await service.patch("/v1/sessions/third", {"metadata": {"title": "changed"}})
    assert await list_ids("order=created") == await list_ids("") == ["fourth", "third", "second", "first"]
    assert await list_ids("order=activity") == ["third", "first", "second", "fourth"]
    assert await list_ids("order=oldest_activity") == ["fourth", "second", "first", "third"]
    assert await list_ids("last_run=failed") == await list_ids("last_run=failed&order=activity") == ["first"]
    assert await list_ids("last_run=completed&order=activity") == ["second"]
    counts = (await service.get("/v1/counts")).json()
    none, one = {"count": 0, "more": False}, {"count": 1, "more": False}
    last_run = {"failed": one, "interrupted": none}
    assert counts == {"status": {"running": none, "waiting": none}, "last_run": last_run, "damaged": none}
    assert await list_ids("last_run=cancelled") == await list_ids("last_run=failed&status=waiting") == []
    pages: list[str] = []
    query = "order=activity&limit=2"
    while query:
        page = (await service.get(f"/v1/sessions?{query}")).json()
        pages += [session["id"] for session in page["data"]]
        query = f"order=activity&limit=2&cursor={page['next_cursor']}" if page["next_cursor"] else ""
    assert pages == ["third", "first", "second", "fourth"]
    other = (await service.get("/v1/sessions?order=activity&limit=2")).json()["next_cursor"]
    check_problem(await service.get(f"/v1/sessions?cursor={other}"), 400, "invalid_request")
    check_problem(await service.get("/v1/sessions?last_run=running"), 400, "invalid_request")
    shown = {one["id"]: one["last_run_status"] for one in (await service.get("/v1/sessions")).json()["data"]}
    assert shown == {"first": "failed", "second": "completed", "third": None, "fourth": None}
    # While it goes on, its last run is the one that is active.
    model.say("Better.")
    model.hang("Now", then=".")
    await service.post("/v1/sessions/first/runs", {"input": []})
    assert await list_ids("last_run=failed") == []
    begun = await service.post("/v1/sessions/second/runs", {"input": "again", "background": True})
    assert begun.status_code == 202
    await model.wait_for_requests_async(4)
    assert (await service.get("/v1/sessions/second")).json()["last_run_status"] == "running"
    assert await list_ids("last_run=completed&order=activity") == ["first"]
    assert await list_ids("order=activity") == ["second", "first", "third", "fourth"]
    model.release()


async def test_the_active_agent_can_be_changed(service: RunningServer) -> None:
    session = await service.session()
    assert (await service.patch(session, {"agent": "Sales / EU ☃"})).json()["agent"] == "Sales / EU ☃"
    found = check_problem(await service.patch(session, {"agent": "Nobody"}), 404, "agent_not_found")
    assert found["known_agents"] == ["Front", "Sales / EU ☃"]


async def test_conditional_change_needs_matching_state(service: RunningServer) -> None:
    session = await service.session()
    change = {"metadata": {"a": 1}}
    assert (await service.patch(session, change, headers={"If-Match": '"1"'})).headers["etag"] == '"2"'
    found = check_problem(await service.patch(session, change, headers={"If-Match": '"1"'}), 412, "seq_mismatch")
    assert found["seq"] == 2
    assert (await service.patch(session, change, headers={"If-Match": "*"})).status_code == 200
    # What a proxy makes of the ETag of an answer that it compresses.
    assert (await service.patch(session, change, headers={"If-Match": 'W/"2"'})).status_code == 200
    check_problem(await service.patch(session, change, headers={"If-Match": 'W/"1"'}), 412, "seq_mismatch")
    for wrong in ("2", '""', '"x"', '"-1"', '"99999999999999999999999"', 'W/"x"'):
        found = check_problem(await service.patch(session, change, headers={"If-Match": wrong}), 400, "invalid_request")
        assert found["errors"][0]["pointer"] == "/header/If-Match"
    for name in ("If-Match", "Idempotency-Key"):
        twice = await service.client.patch(session, json=change, headers=[(name, '"2"'), (name, '"3"')])
        assert check_problem(twice, 400, "invalid_request")["errors"][0]["pointer"] == f"/header/{name}"


async def test_fork_shares_history_and_hashes(service: RunningServer) -> None:
    session = await service.session(id="s1", metadata={"a": 1})
    await service.patch(session, {"context_variables": {"x": 1}})
    answer = await service.post(f"{session}/fork", {"at": 1, "id": "f1", "metadata": {"b": 2}})
    assert (answer.status_code, answer.headers["location"]) == (201, "/v1/sessions/f1")
    events = await service.events(session)
    fork = answer.json()
    assert fork["forked_from"] == {"session_id": "s1", "seq": 1, "hash": events[0]["hash"]}
    assert (fork["metadata"], fork["context_variables"]) == ({"a": 1, "b": 2}, {})
    assert (await service.events("/v1/sessions/f1"))[0]["hash"] == events[0]["hash"]
    check_problem(await service.post(f"{session}/fork", {"id": "f1"}), 409, "session_exists")
    check_problem(await service.post(f"{session}/fork", {"at": 9}), 404, "event_not_found")
    whole = await service.client.post(f"{session}/fork")
    assert (whole.status_code, whole.json()["context_variables"]) == (201, {"x": 1})


@pytest.mark.parametrize("session_id", ["nobody", "%00", "%ff", "a%20b", "☃", "x" * 129, "a" * 5000, "'", "%2e%2e%5c"])
async def test_unknown_session_id_not_found(plain: RunningServer, session_id: str) -> None:
    for path in ("", "/messages", "/events", "/runs", "/runs/r", "/events/1/request", "/runs/r/stream"):
        check_problem(await plain.get(f"/v1/sessions/{session_id}{path}"), 404, "session_not_found")
    check_problem(await plain.patch(f"/v1/sessions/{session_id}", {}), 404, "session_not_found")
    check_problem(await plain.delete(f"/v1/sessions/{session_id}"), 404, "session_not_found")
    for path, body in (("/fork", {}), ("/runs", {"input": "x"}), ("/runs/r/cancel", None), ("/runs/r/resume", {})):
        check_problem(await plain.post(f"/v1/sessions/{session_id}{path}", body), 404, "session_not_found")


@pytest.mark.parametrize("session_id", ["", "a b", "a/b", "☃", "x" * 129, "\x00", ".", "..", "a\n"])
async def test_impossible_session_id_refused(plain: RunningServer, session_id: str) -> None:
    session = await plain.session()
    for path in ("/v1/sessions", f"{session}/fork"):
        found = check_problem(await plain.post(path, {"id": session_id}), 400, "invalid_request")
        assert found["errors"][0]["pointer"] == "/id"


@pytest.mark.parametrize("session_id", ["x" * 128, "...", "a.b_c:d-E9"])
async def test_unusual_ids_lead_to_their_session(plain: RunningServer, session_id: str) -> None:
    assert await plain.session(id=session_id) == f"/v1/sessions/{session_id}"
    assert (await plain.get(f"/v1/sessions/{session_id}")).json()["id"] == session_id


async def test_label_filters_limited_to_twenty(service: RunningServer) -> None:
    labels = {f"k{n}": "v" for n in range(20)}
    session = await service.session(metadata=labels)
    query = {f"metadata.{key}": value for key, value in labels.items()}
    found = (await service.get("/v1/sessions", params=query)).json()["data"]
    assert [f"/v1/sessions/{item['id']}" for item in found] == [session]
    for more in ({"metadata.k20": "v"}, {f"metadata.x{n}": "v" for n in range(400)}):
        problem = check_problem(await service.get("/v1/sessions", params=query | more), 400, "invalid_request")
        assert problem["errors"][0]["pointer"] == f"/query/{next(iter(more))}"
    # The same one many times is many, too.
    many = "&".join(["metadata.k0=v"] * 21)
    check_problem(await service.get(f"/v1/sessions?{many}"), 400, "invalid_request")


async def test_lists_omit_contexts_unless_asked(service: RunningServer) -> None:
    session = await service.session(context_variables={"a": [1, None]}, metadata={"team": "x"})
    whole = (await service.get(session)).json()
    [listed] = (await service.get("/v1/sessions")).json()["data"]
    assert listed == {name: value for name, value in whole.items() if name != "context_variables"}
    [listed] = (await service.get("/v1/sessions?include=context_variables")).json()["data"]
    assert listed == whole


@pytest.mark.parametrize("asked", ["metadata", "", "context_variables,metadata"])
async def test_unknown_list_include_refused(plain: RunningServer, asked: str) -> None:
    found = check_problem(await plain.get("/v1/sessions", params={"include": asked}), 400, "invalid_request")
    assert found["errors"][0]["pointer"] == "/query/include"


# Finding sessions: while the server indexes behind, with filters, and where it is turned off.


async def find(server: RunningServer, **params: Any) -> list[Json]:
    answer = await server.get("/v1/sessions", params=params)
    assert answer.status_code == 200, answer.text
    found: list[Json] = answer.json()["data"]
    return found


async def wait_until_found(server: RunningServer, words: str, count: int = 1) -> list[Json]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found := await find(server, q=words)) != count:
            await server.get("/health/ready")
    return found


async def test_search_follows_rename_redaction_and_deletion(service: RunningServer, model: ScriptedModel) -> None:
    assert service.engine.indexing.sessions_behind == 0
    model.say("The zebra is on its way.")
    session = (await service.post("/v1/sessions", {"metadata": {"team": "a"}})).json()
    assert session["title"] is None
    path = f"/v1/sessions/{session['id']}"
    assert (await service.post(f"{path}/runs", {"input": "Where is\nmy   zebra?"})).json()["status"] == "completed"
    (found,) = await wait_until_found(service, "zebr")
    assert (found["id"], found["title"]) == (session["id"], "Where is my zebra?")
    assert (await service.get(path)).json()["title"] == found["title"]
    for match in found["matches"]:
        assert [match["snippet"][begin:end] for begin, end in match["ranges"]] == ["zebr"]
    events = (await service.get(f"{path}/events", params={"type": "message.added"})).json()["data"]
    assert [match["seq"] for match in found["matches"]] == [event["seq"] for event in reversed(events)]
    # With the other filters.
    last = found["updated_at"]
    for params, count in (
        ({"last_run": "completed", "metadata.team": "a", "active_after": last}, 1),
        ({"last_run": "failed"}, 0),
        ({"metadata.team": "b"}, 0),
        ({"active_before": last}, 0),
        ({"active_after": "2999-01-01"}, 0),
        ({"q": "  "}, 1),
        ({"q": '"; *'}, 0),
    ):
        assert len(await find(service, **{"q": "zebra", **params})) == count, params
    assert "matches" not in (await find(service))[0]
    # Another title, and nothing of it any more.
    assert (await service.patch(path, {"metadata": {"title": " A  striped horse "}})).json()[
        "title"
    ] == "A striped horse"
    (found,) = await wait_until_found(service, "striped")
    assert found["matches"][0]["seq"] is None
    await service.post(f"{path}/redact", {"seqs": [event["seq"] for event in events], "reason": "asked for"})
    assert await find(service, q="zebra") == []
    assert (await service.delete(path, params={"reason": "asked"})).status_code == 204
    assert await find(service, q="striped") == []
    entries = (await service.get("/v1/audit")).json()["data"]
    assert entries[-1]["data"]["reason"] == "asked"


@pytest.mark.parametrize(
    "params",
    [{"q": "x" * 201}, {"active_after": "yesterday"}, {"active_before": "2026-13-01"}, {"q": "a", "cursor": "xyz"}],
    ids=str,
)
async def test_invalid_search_refused(plain: RunningServer, params: Json) -> None:
    answer = await plain.get("/v1/sessions", params=params)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


async def test_search_disabled_server_says_so(sqlite_ready: str) -> None:
    async with start_server(server_settings(database_url=sqlite_ready, search="off")) as server:
        await server.post("/v1/sessions", {"id": "a"})
        answer = await server.get("/v1/sessions", params={"q": "a"})
        assert (answer.status_code, answer.json()["code"]) == (501, "search_off")
        assert [one["id"] for one in await find(server)] == ["a"]
    # What was recorded meanwhile is found once it is on again.
    async with start_server(server_settings(database_url=sqlite_ready)) as server:
        await wait_until_found(server, "a")
