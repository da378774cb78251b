"""Replays, differences and comparisons over HTTP."""

from __future__ import annotations

import asyncio
import threading

import pytest

from swarmkeep import Agent
from tests.http.server import RunningServer, check_problem
from tests.http.team import front
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


async def create_talk(service: RunningServer, model: ScriptedModel) -> str:
    """A session in which something was looked up, kept and answered."""
    session = await service.session(context_variables={"name": "Kim"})
    model.call("get_weather", {"city": "Oslo"})
    model.call("remember", {"key": "name", "value": "Robin"})
    model.say("Sunny.")
    await service.run(session)
    return session


async def test_unchanged_agents_match_their_recording(service: RunningServer, model: ScriptedModel) -> None:
    session = await create_talk(service, model)
    answer = await service.post(f"{session}/replay")
    last = (await service.events(session))[-1]["seq"]
    assert (answer.status_code, answer.json()) == (
        200,
        {"matches": True, "turns": 3, "last_seq": last, "divergences": [], "redacted": []},
    )


async def test_difference_is_told_and_ignorable(
    service: RunningServer, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await create_talk(service, model)
    events = await service.events(session)
    monkeypatch.setattr(front, "instructions", "Hinder them.")
    answer = (await service.post(f"{session}/replay", {})).json()
    assert answer["matches"] is False
    assert [(found["kind"], found["recorded"], found["actual"]) for found in answer["divergences"]] == [
        ("instructions", "Help Kim.", "Hinder them."),
        ("instructions", "Help Robin.", "Hinder them."),
    ]
    assert answer["divergences"][0]["seq"] == 4
    assert (await service.post(f"{session}/replay", {"ignore": ["instructions"]})).json()["matches"] is True
    check_problem(await service.post(f"{session}/replay", {"ignore": ["colour"]}), 400, "invalid_request")
    check_problem(await service.post("/v1/sessions/nobody/replay"), 404, "session_not_found")
    assert await service.events(session) == events


async def test_tenant_replays_run_sequentially(
    service: RunningServer, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await create_talk(service, model)
    at_once: list[int] = [0, 0]

    def instructions() -> str:
        at_once[0] += 1
        at_once[1] = max(at_once)
        # Long enough for the other one to come in between, if it could.
        threading.Event().wait(0.05)
        at_once[0] -= 1
        return "Hinder them."

    monkeypatch.setattr(front, "instructions", instructions)
    answers = await asyncio.gather(*[service.post(f"{session}/replay") for _ in range(3)])
    assert [answer.json()["turns"] for answer in answers] == [3, 3, 3]
    assert at_once == [0, 1]


async def test_idempotency_key_is_harmless_to_replay(service: RunningServer, model: ScriptedModel) -> None:
    session = await create_talk(service, model)
    answers = [await service.post(f"{session}/replay", headers={"Idempotency-Key": "k"}) for _ in range(2)]
    assert answers[0].json() == answers[1].json()


async def test_diff_shows_changes_between_two_events(service: RunningServer, model: ScriptedModel) -> None:
    session = await create_talk(service, model)
    last = (await service.events(session))[-1]["seq"]
    found = (await service.get(f"{session}/diff", params={"before": 1, "after": last})).json()
    assert (found["before"], found["after"]) == (1, last)
    places = {change["path"]: (change["before"], change["after"]) for change in found["changes"]}
    assert places["/context_variables/name"] == ("Kim", "Robin")
    assert places["/usage/model_calls"] == (0, 3)
    assert [message["role"] for message in found["messages"]] == [
        "user", "assistant", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert [(run["before"], run["after"]) for run in found["runs"]] == [(None, "completed")]
    whole = (await service.get(f"{session}/diff", params={"before": 0, "after": 1})).json()
    assert {"path": "/agent", "after": "Front"} in whole["changes"]
    same = (await service.get(f"{session}/diff", params={"before": 3, "after": 3})).json()
    assert (same["changes"], same["messages"], same["runs"]) == ([], [], [])


async def test_diff_of_missing_events_refused(plain: RunningServer) -> None:
    session = await plain.session()
    check_problem(await plain.get(f"{session}/diff?before=1&after=9"), 404, "event_not_found")
    check_problem(await plain.get(f"{session}/diff?before=2&after=1"), 400, "invalid_request")
    check_problem(await plain.get(f"{session}/diff?before=1"), 400, "invalid_request")
    check_problem(await plain.get("/v1/sessions/nobody/diff?before=1&after=1"), 404, "session_not_found")


async def test_changed_fork_compared_with_original(service: RunningServer, model: ScriptedModel) -> None:
    session = await create_talk(service, model)
    forked = await service.post(f"{session}/fork", {"at": 1, "agent": "Sales / EU ☃"})
    assert (forked.status_code, forked.json()["agent"]) == (201, "Sales / EU ☃")
    fork = f"/v1/sessions/{forked.json()['id']}"
    model.say("Buy.")
    await service.run(fork, model="other-model")
    assert model.requests[-1]["model"] == "other-model"
    shared = [event["hash"] for event in await service.events(session)][:1]
    assert [event["hash"] for event in await service.events(fork)][:1] == shared
    found = (await service.get(f"{session}/compare", params={"with": forked.json()["id"]})).json()
    assert (found["shared_seq"], found["shared_hash"], found["identical"]) == (1, shared[0], False)
    assert [call["name"] for call in found["a"]["calls"]] == ["get_weather", "remember"]
    assert (found["a"]["calls"][0]["arguments"], found["a"]["calls"][0]["status"]) == ('{"city": "Oslo"}', "ok")
    assert found["b"]["calls"] == []
    assert [side["messages"][-1]["content"] for side in (found["a"], found["b"])] == ["Sunny.", "Buy."]
    assert [side["usage"]["model_calls"] for side in (found["a"], found["b"])] == [3, 1]
    assert {"path": "/agent", "before": "Front", "after": "Sales / EU ☃"} in found["changes"]


async def test_session_matches_itself_strangers_share_nothing(plain: RunningServer) -> None:
    one, other = await plain.session(id="one"), await plain.session(id="other")
    itself = (await plain.get(f"{one}/compare?with=one")).json()
    assert (itself["identical"], itself["shared_seq"], itself["changes"]) == (True, 1, [])
    strangers = (await plain.get(f"{other}/compare?with=one")).json()
    assert (strangers["identical"], strangers["shared_seq"], strangers["shared_hash"]) == (False, 0, None)
    for path in (f"{one}/compare?with=nobody", "/v1/sessions/nobody/compare?with=one"):
        check_problem(await plain.get(path), 404, "session_not_found")
    check_problem(await plain.get(f"{one}/compare"), 400, "invalid_request")


async def test_fork_with_missing_agent_refused(plain: RunningServer) -> None:
    session = await plain.session()
    check_problem(await plain.post(f"{session}/fork", {"agent": Agent(name="Nobody").name}), 404, "agent_not_found")


async def test_redacted_request_says_so(service: RunningServer, model: ScriptedModel) -> None:
    session = await create_talk(service, model)
    await service.engine.store.database.write(  # type: ignore[attr-defined]
        lambda connection: connection.exec_driver_sql("DELETE FROM blobs")
    )
    found = check_problem(await service.get(f"{session}/events/4/request"), 409, "request_not_kept")
    assert "instructions" in found["detail"]
    left = (await service.get(f"{session}/events/4/request?redacted=true")).json()
    assert (left["exact"], left["missing"][0]) == (False, "the instructions that were sent are not stored any more")
    assert left["request"]["messages"][0]["content"].startswith("[redacted] (SHA-256 ")


async def test_redacted_request_shows_what_is_left(service: RunningServer, model: ScriptedModel) -> None:
    session = await create_talk(service, model)
    exact = (await service.get(f"{session}/events/4/request")).json()
    whole = (await service.get(f"{session}/events/4/request?redacted=true")).json()
    assert (whole["exact"], whole["missing"], whole["request"]) == (True, [], exact)
    events = (await service.get(f"{session}/events")).json()["data"]
    said = next(event["seq"] for event in events if event["type"] == "message.added")
    check_problem(await service.get(f"{session}/events/{said}/request?redacted=true"), 404, "event_not_found")
    await service.post(f"{session}/redact", {"seqs": [said], "reason": "a name"})
    left = (await service.get(f"{session}/events/4/request?redacted=true")).json()
    assert (left["exact"], left["missing"]) == (False, [f"event {said} was redacted, or cannot be read"])
    assert left["request"] == {**exact, "messages": [exact["messages"][0], {"role": "user", "content": "[redacted]"}]}
    await service.post(f"{session}/redact", {"seqs": [4], "reason": "a name"})
    left = (await service.get(f"{session}/events/4/request?redacted=true")).json()
    assert left["request"]["messages"][0] == {"role": "system", "content": "[redacted]"}
    assert left["request"]["messages"][1] == {"role": "user", "content": "[redacted]"}
