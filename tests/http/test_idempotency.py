"""The same request sent again: one effect, the same answer."""

from __future__ import annotations

import asyncio
from uuid import NAMESPACE_URL, uuid5

import pytest
from sqlalchemy import Connection, update

from swarmkeep.events.codec import Json
from swarmkeep.store.reading import decode_event
from swarmkeep.store.tables import SESSION_TABLES, sessions
from tests.http.server import RunningServer
from tests.support.calls import count_calls
from tests.support.scripted import ScriptedModel

KEY = {"Idempotency-Key": "key-1"}


async def test_session_made_once_per_key(service: RunningServer) -> None:
    body = {"context_variables": {"a": 1}}
    answers = [await service.post("/v1/sessions", body, headers=KEY) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [201, 201, 201]
    assert answers[0].json() == answers[1].json() == answers[2].json()
    assert len((await service.get("/v1/sessions")).json()["data"]) == 1


async def test_immediate_and_background_run_share_key(service: RunningServer, model: ScriptedModel) -> None:
    model.say("Done.")
    session = await service.session()
    sent = [service.post(f"{session}/runs", {"input": "hi"}, headers=KEY) for _ in range(5)]
    answers = [answer.json() for answer in await asyncio.gather(*sent)]
    answers.append((await service.post(f"{session}/runs", {"input": "hi"}, headers=KEY)).json())
    assert [answer["output_text"] for answer in answers] == ["Done."] * 6
    assert all(answer == answers[0] for answer in answers)
    started = (await service.get(f"{session}/events?type=run.started")).json()["data"]
    assert [event["data"]["idempotency_key"] for event in started] == ["key-1"]


async def test_retry_gets_first_answer_always(service: RunningServer, model: ScriptedModel) -> None:
    model.calls([("refund", {"order": "1"}, "c1"), ("refund", {"order": "2"}, "c2")])
    model.say("Done.")
    session = await service.session()
    sent: list[tuple[str, Json, Json]] = []

    async def post(path: str, body: Json) -> Json:
        headers = {"Idempotency-Key": f"key-{len(sent)}"}
        answer = (await service.post(path, body, headers=headers)).json()
        sent.append((path, body, answer))
        return answer

    run = await post(f"{session}/runs", {"input": "Refund both."})
    resume = f"{session}/runs/{run['id']}/resume"
    for call in ("c1", "c2"):
        answer = await post(resume, {"approvals": [{"tool_call_id": call, "decision": "approve"}]})
    assert [run["status"], sent[1][2]["status"], answer["status"]] == ["waiting", "waiting", "completed"]
    await post(f"{session}/runs/{run['id']}/cancel", {})
    for number, (path, body, answer) in enumerate(sent):
        again = await service.post(path, body, headers={"Idempotency-Key": f"key-{number}"})
        assert again.json() == answer


async def test_retry_reads_only_its_own_run(service: RunningServer, model: ScriptedModel) -> None:
    session = await service.session()

    async def run(**headers: str) -> Json:
        model.say("Done.")
        return (await service.post(f"{session}/runs", {"input": "hi"}, headers=headers)).json()

    answer, counts = await run(**KEY), []
    for _ in range(2):
        for _ in range(5):
            await run()
        with count_calls() as counted:
            again = await service.post(f"{session}/runs", {"input": "hi"}, headers=KEY)
        assert again.json() == answer
        counts.append(counted[decode_event.__code__])
    # Each of the others has four events.
    assert counts[1] < counts[0] + 10


async def test_background_run_retold_as_begun(service: RunningServer, model: ScriptedModel) -> None:
    model.say("Done.")
    session = await service.session()
    body = {"input": "hi", "background": True}
    first = await service.post(f"{session}/runs", body, headers=KEY)
    run = first.json()
    assert (first.status_code, run["status"]) == (202, "running")
    joined = await service.read_stream(f"{session}/runs/{run['id']}/stream")
    assert joined[-1].data["status"] == "completed"
    again = await service.post(f"{session}/runs", body, headers=KEY)
    assert (again.status_code, again.json()) == (202, run)


async def test_retry_joins_streamed_run(service: RunningServer, model: ScriptedModel) -> None:
    model.say("Done.")
    session = await service.session()
    run = (await service.post(f"{session}/runs", {"input": "hi"}, headers=KEY)).json()
    mismatch = await service.post(f"{session}/runs", {"input": "hi", "stream": True}, headers=KEY)
    assert (mismatch.status_code, mismatch.json()["code"]) == (422, "idempotency_mismatch")
    assert (await service.get(f"{session}/runs")).json()["data"] == [run]


async def test_patch_made_once_despite_outdated_condition(service: RunningServer) -> None:
    session = await service.session()
    headers = {**KEY, "If-Match": '"1"'}
    answers = [await service.patch(session, {"metadata": {"a": 1}}, headers=headers) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    await service.patch(session, {"metadata": {"a": 2}})
    assert (await service.patch(session, {"metadata": {"a": 1}}, headers=headers)).json() == answers[0].json()
    assert (await service.get(session)).json()["metadata"] == {"a": 2}
    other = await service.patch(session, {"metadata": {"a": 1}}, headers={**KEY, "If-Match": '"2"'})
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")


async def test_fork_made_once_per_key(service: RunningServer) -> None:
    session = await service.session()
    first = await service.post(f"{session}/fork", {}, headers=KEY)
    await service.patch(session, {"metadata": {"later": 1}})
    second = await service.post(f"{session}/fork", {}, headers=KEY)
    assert (first.status_code, first.json()) == (second.status_code, second.json())


async def rename_session(service: RunningServer, session_id: str, name: str) -> None:
    def rename(connection: Connection) -> None:
        for table, column in [*((each, each.c.session_id) for each in SESSION_TABLES), (sessions, sessions.c.id)]:
            connection.execute(update(table).where(column == session_id).values({column: name}))

    await service.engine.store.database.write(rename)  # type: ignore[attr-defined]


@pytest.mark.parametrize("made_by", ["create", "fork"])
async def test_key_still_finds_longer_old_ids(service: RunningServer, made_by: str) -> None:
    path = await make_source(service, made_by)
    first = (await service.post(path, {}, headers=KEY)).json()
    older = "sess_" + uuid5(NAMESPACE_URL, "default/key-1").hex
    assert len(first["id"]) < len(older)
    await rename_session(service, first["id"], older)
    again = await service.post(path, {}, headers=KEY)
    assert (again.status_code, again.json()["id"]) == (201, older)
    refused = await service.post(path, {"metadata": {"a": 1}}, headers=KEY)
    assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_mismatch")


async def make_source(service: RunningServer, made_by: str) -> str:
    """Where sessions are made: the list of them, or an existing one's forks."""
    return "/v1/sessions" if made_by == "create" else f"{await service.session()}/fork"


@pytest.mark.parametrize("made_by", ["create", "fork"])
async def test_key_makes_one_session_despite_ids(service: RunningServer, made_by: str) -> None:
    path = await make_source(service, made_by)
    first = await service.post(path, {"id": "one"}, headers=KEY)
    assert first.status_code == 201
    for body in ({"id": "two"}, {}, {"id": "one", "metadata": {"a": 1}}):
        refused = await service.post(path, body, headers=KEY)
        assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_mismatch")
    assert (await service.get("/v1/sessions/two")).status_code == 404
    again = await service.post(path, {"id": "one"}, headers=KEY)
    assert (again.status_code, again.json()) == (201, first.json())


@pytest.mark.parametrize("made_by", ["create", "fork"])
async def test_key_without_id_refused_with_one(service: RunningServer, made_by: str) -> None:
    path = await make_source(service, made_by)
    assert (await service.post(path, {}, headers=KEY)).status_code == 201
    refused = await service.post(path, {"id": "two"}, headers=KEY)
    assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_mismatch")


async def test_key_freed_by_session_deletion(service: RunningServer) -> None:
    await service.post("/v1/sessions", {"id": "one"}, headers=KEY)
    assert (await service.delete("/v1/sessions/one")).status_code == 204
    assert (await service.post("/v1/sessions", {"id": "two"}, headers=KEY)).status_code == 201


async def test_malformed_key_refused(service: RunningServer) -> None:
    refused = await service.post("/v1/sessions", {}, headers={"Idempotency-Key": "x" * 256})
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request")
    assert refused.json()["errors"][0]["pointer"] == "/header/Idempotency-Key"
