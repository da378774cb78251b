"""Automations of OpenAI's Agents API, asked by OpenAI's own client: what is due begins one run, on any server."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI, NotFoundError, UnprocessableEntityError

from swarmkeep.events.errors import InvalidRequest, SessionNotFound
from swarmkeep.runs.automations import Automations, Schedule, read_invocation
from swarmkeep.store.automations import KEPT_INVOCATIONS, StoredAutomation
from swarmkeep.store.keys import parse_key_id
from tests.history.replay.test_replay import damage
from tests.history.test_redact import dump_database
from tests.http.auth.keys import create_key, key_store
from tests.http.openai_api.test_errors import check_error
from tests.http.server import RunningServer
from tests.support.hypothesis_profiles import examples
from tests.support.scripted import ScriptedModel

URL = "/openai/v1/agents/automations"
NEW: Any = {
    "type": "new_session",
    "agent_id": "Front",
    "environment": {"type": "none"},
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "Report."}]}],
    "metadata": {"made": "by itself"},
}
DAILY: Any = {"type": "periodic", "name": "Daily", "expression": "0 9 * * *", "timezone": "Europe/Berlin"}


class Clock:
    """A time that the test sets."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC).replace(microsecond=0)

    async def __call__(self) -> datetime:
        return self.now


async def open_scheduler(service: RunningServer, clock: Clock) -> Automations:
    """What another server looks after automations with; that of the server itself is stopped."""
    engine = service.engine
    await engine.automations.stop()
    return Automations(engine.store, engine.reader, engine.sessions, engine.runs, engine.limits, clock=clock)


async def list_invocations(client: AsyncOpenAI, automation_id: str) -> list[Any]:
    return [each async for each in client.beta.agents.automations.invocations.list(automation_id, order="asc")]


async def wait_for(client: AsyncOpenAI, automation_id: str, status: str) -> Any:
    """The last invocation, once it has come to that."""
    async with asyncio.timeout(20):
        while True:
            found = await list_invocations(client, automation_id)
            if found and found[-1].status == status:
                return found[-1]
            await asyncio.sleep(0.05)


async def test_automation_is_made_changed_and_deleted(client: AsyncOpenAI) -> None:
    automations = client.beta.agents.automations
    made: Any = await automations.create(**DAILY, target=NEW, metadata={"team": "a"})
    assert (made.status, made.expression, made.timezone) == ("active", "0 9 * * *", "Europe/Berlin")
    assert (made.target.agent_id, made.target.input[0].content[0].text) == ("Front", "Report.")
    inline: Any = {**NEW, "agent": {"model": "Front", "instructions": "Be brief."}}
    del inline["agent_id"]
    later = int((datetime.now(UTC) + timedelta(days=1)).timestamp())
    once: Any = await automations.create(type="once", name="Once", run_at=later, target=inline)
    assert (once.run_at, once.target.agent.instructions) == (later, "Be brief.")
    assert [each async for each in automations.list(limit=1, order="asc")] == sorted(
        [made, once], key=lambda each: (each.created_at, each.id)
    )
    assert await automations.retrieve(made.id) == made
    changed: Any = await automations.update(made.id, name="Weekly", expression="0 9 * * MON", metadata={})
    assert (changed.name, changed.expression, changed.metadata) == ("Weekly", "0 9 * * MON", {})
    assert (await automations.pause(made.id)).status == "paused"
    assert (await automations.resume(made.id)).status == "active"
    assert (await automations.delete(made.id)).deleted
    for gone in (automations.retrieve(made.id), automations.delete(made.id), automations.pause(made.id)):
        with pytest.raises(NotFoundError, match="there is no automation"):
            await gone


async def test_invocation_makes_a_session(client: AsyncOpenAI, model: ScriptedModel, service: RunningServer) -> None:
    model.say("All is well.")
    made = await client.beta.agents.automations.create(**DAILY, target=NEW)
    asked = await client.beta.agents.automations.invocations.create(made.id)
    assert (asked.source.type, asked.scheduled_at) == ("manual", None)
    done = await wait_for(client, made.id, "completed")
    assert await client.beta.agents.automations.invocations.retrieve(done.id, automation_id=made.id) == done
    stream = await client.beta.agents.sessions.events.stream(done.session_id, extra_query={"after": "evt_1-0-0"})
    async for event in stream:
        if event.type == "agent.session.idle":
            assert event.session.metadata == {"made": "by itself"}
            break
    items: list[Any] = [item async for item in client.beta.agents.sessions.items.list(done.session_id, order="asc")]
    assert [item.content[0].text for item in items] == ["Report.", "All is well."]
    found = (await service.get(f"/v1/sessions/{done.session_id}/verify")).json()
    assert (found["valid"], found["problems"]) == (True, [])


async def test_once_begins_at_its_time(client: AsyncOpenAI, model: ScriptedModel) -> None:
    model.say("Now.")
    soon = int(datetime.now(UTC).timestamp()) + 2
    made = await client.beta.agents.automations.create(type="once", name="Soon", run_at=soon, target=NEW)
    done = await wait_for(client, made.id, "completed")
    assert (done.scheduled_at, done.source.type) == (soon, "automation")
    assert (await client.beta.agents.automations.retrieve(made.id)).status == "completed"


async def test_existing_session_is_told(client: AsyncOpenAI, model: ScriptedModel, service: RunningServer) -> None:
    model.say("Hello.")
    sessions = client.beta.agents.sessions
    session = await sessions.create(
        environment={"type": "none"}, agent={"model": "Front", "instructions": "Be brief."}, input="Hi."
    )
    target: Any = {"type": "existing_session", "session_id": session.id, "instructions": "Look again."}
    made = await client.beta.agents.automations.create(**DAILY, target=target)
    assert [each.id async for each in client.beta.agents.automations.list(session_id=session.id)] == [made.id]
    assert [each async for each in client.beta.agents.automations.list(session_id="other")] == []
    model.say("Nothing new.")
    await client.beta.agents.automations.invocations.create(made.id)
    assert (await wait_for(client, made.id, "completed")).session_id == session.id
    await model.wait_for_requests_async(2)
    # What the session's agent is to be like holds for this turn, too.
    assert "Be brief." in model.requests[-1]["messages"][0]["content"]
    assert model.requests[-1]["messages"][-1]["content"] == "Look again."
    await damage(service.engine, f"UPDATE sessions SET head_seq = head_seq - 1 WHERE id = '{session.id}'")
    clock = Clock()
    scheduler = await open_scheduler(service, clock)
    clock.now += timedelta(days=2)
    await scheduler.look()
    [_, failed] = await list_invocations(client, made.id)
    assert (failed.status, failed.error.code) == ("failed", "history_damaged")
    paused = await client.beta.agents.automations.retrieve(made.id)
    assert (paused.status, paused.pause_reason) == ("paused", "target_session_failed")


async def test_automations_go_with_their_session(
    client: AsyncOpenAI, model: ScriptedModel, service: RunningServer
) -> None:
    """What it told before it was changed goes, too, and what tells others stays."""
    automations = client.beta.agents.automations
    paths = [await service.session(id=id) for id in ("gone", "kept")]

    def tell(session_id: str) -> Any:
        return {"type": "existing_session", "session_id": session_id, "instructions": f"To {session_id}."}

    gone, changed, kept = [await automations.create(**DAILY, target=tell(id)) for id in ("gone", "gone", "kept")]
    model.say("Well.")
    await automations.invocations.create(changed.id)
    await wait_for(client, changed.id, "completed")
    await automations.update(changed.id, target=tell("kept"))
    while (await service.get(paths[0])).json()["status"] != "idle":
        pass
    assert (await service.delete(paths[0])).status_code == 204
    assert {each.id async for each in automations.list()} == {changed.id, kept.id}
    assert await list_invocations(client, changed.id) == []
    assert "To gone." not in await dump_database(service.engine.store)
    with pytest.raises(SessionNotFound):
        await service.engine.store.add_automation(StoredAutomation("default", "late", "{}", session_id="gone"))
    with pytest.raises(NotFoundError):
        await automations.retrieve(gone.id)


async def test_each_time_begins_one_run_among_servers(
    client: AsyncOpenAI, model: ScriptedModel, service: RunningServer
) -> None:
    clock = Clock()
    schedulers = [await open_scheduler(service, clock) for _ in range(4)]
    made = await client.beta.agents.automations.create(**DAILY, target=NEW)
    for number in range(3):
        model.say(f"Day {number}.")
        clock.now += timedelta(days=1)
        await asyncio.gather(*(scheduler.look() for scheduler in schedulers for _ in range(3)))
    await model.wait_for_requests_async(3)
    found = await list_invocations(client, made.id)
    assert [each.status for each in found] == ["completed"] * 3
    assert len({each.session_id for each in found}) == 3
    hours = {datetime.fromtimestamp(each.scheduled_at, UTC).hour for each in found}
    assert hours <= {7, 8}
    assert len([each async for each in client.beta.agents.sessions.list()]) == 3


async def test_times_that_passed_become_one(client: AsyncOpenAI, model: ScriptedModel, service: RunningServer) -> None:
    clock = Clock()
    scheduler = await open_scheduler(service, clock)
    made = await client.beta.agents.automations.create(**DAILY, target=NEW)
    clock.now += timedelta(days=10)
    model.say("Late.")
    await scheduler.look()
    await scheduler.look()
    await model.wait_for_requests_async(1)
    assert [each.status for each in await list_invocations(client, made.id)] == ["completed"]
    await client.beta.agents.automations.pause(made.id)
    clock.now += timedelta(days=10)
    await scheduler.look()
    assert len(await list_invocations(client, made.id)) == 1


async def test_run_that_cannot_begin_yet_is_tried_again(
    client: AsyncOpenAI, model: ScriptedModel, service: RunningServer
) -> None:
    clock = Clock()
    scheduler = await open_scheduler(service, clock)
    made = await client.beta.agents.automations.create(**DAILY, target=NEW)
    clock.now += timedelta(days=1)
    service.engine.runs.is_draining = True
    await scheduler.look()
    clock.now += timedelta(days=1)
    await scheduler.look()
    first, second = await list_invocations(client, made.id)
    assert (first.status, second.status, second.skip_reason) == ("queued", "skipped", "pending_delivery")
    service.engine.runs.is_draining = False
    clock.now += timedelta(minutes=1)
    model.say("At last.")
    await scheduler.look()
    await model.wait_for_requests_async(1)
    assert [each.status for each in await list_invocations(client, made.id)] == ["completed", "skipped"]


async def test_idempotency_keys(client: AsyncOpenAI, model: ScriptedModel) -> None:
    automations = client.beta.agents.automations
    headers = {"Idempotency-Key": "once"}
    made = [await automations.create(**DAILY, target=NEW, extra_headers=headers) for _ in range(2)]
    assert made[0] == made[1]
    with pytest.raises(UnprocessableEntityError):
        await automations.create(**{**DAILY, "name": "Other"}, target=NEW, extra_headers=headers)
    model.say("Once.")
    asked = await asyncio.gather(*(automations.invocations.create(made[0].id, extra_headers=headers) for _ in range(5)))
    assert len({each.id for each in asked}) == 1
    await wait_for(client, made[0].id, "completed")


async def test_revoked_key_begins_no_more_runs(service: RunningServer, model: ScriptedModel) -> None:
    writer, reader = await create_key(service, "acme"), await create_key(service, "acme", role="read")
    clock = Clock()
    scheduler = await open_scheduler(service, clock)
    url = f"{URL}/{(await service.post(URL, {**DAILY, 'target': NEW}, headers=writer)).json()['id']}"
    model.say("Still.")
    clock.now += timedelta(days=1)
    await scheduler.look()
    await model.wait_for_requests_async(1)
    await key_store(service).revoke(parse_key_id(writer["Authorization"].removeprefix("Bearer ")) or "")
    clock.now += timedelta(days=1)
    await scheduler.look()
    found = (await service.get(url, headers=reader)).json()
    assert (found["status"], found["pause_reason"]) == ("paused", None)
    invocations = (await service.get(f"{url}/invocations", headers=reader)).json()["data"]
    assert [each["status"] for each in invocations] == ["failed", "completed"]
    assert invocations[0]["error"]["code"] == "unauthenticated"


async def test_open_servers_automation_ends_with_first_key(client: AsyncOpenAI, service: RunningServer) -> None:
    clock = Clock()
    scheduler = await open_scheduler(service, clock)
    made = await client.beta.agents.automations.create(**DAILY, target=NEW)
    await create_key(service, "default")
    clock.now += timedelta(days=1)
    await scheduler.look()
    [stored] = await service.engine.store.list_automations("default")
    assert (stored.id, stored.due_at) == (made.id, None)
    [invocation] = await service.engine.store.list_invocations("default", made.id)
    assert read_invocation(invocation).status == "failed"


@pytest.mark.one_database
async def test_tenants_and_roles(service: RunningServer) -> None:
    runner, reader = await create_key(service, "acme", role="run"), await create_key(service, "acme", role="read")
    other, support = await create_key(service, "other"), await create_key(service, "acme", role="support")
    body = {**DAILY, "target": NEW}
    for key in (reader, support):
        check_error(await service.post(URL, body, headers=key), 403, "forbidden")
    made = (await service.post(URL, body, headers=runner)).json()
    url = f"{URL}/{made['id']}"
    assert (await service.get(url, headers=reader)).json() == made
    assert (await service.get(URL, headers=other)).json()["data"] == []
    for path in ("", "/invocations", f"/invocations/{made['id']}.1"):
        check_error(await service.get(f"{url}{path}", headers=other), 404, "not_found")
    for path, body in (("", {"name": "Mine"}), ("/pause", None), ("/resume", None), ("/invocations", None)):
        check_error(await service.post(f"{url}{path}", body, headers=other), 404, "not_found")
        check_error(await service.post(f"{url}{path}", body, headers=reader), 403, "forbidden")
    check_error(await service.delete(url, headers=other), 404, "not_found")
    check_error(await service.delete(url, headers=runner), 403, "forbidden")
    session = (await service.post("/v1/sessions", {}, headers=runner)).json()["id"]
    target = {"type": "existing_session", "session_id": session, "instructions": "Tell me all."}
    refused = await service.post(URL, {**DAILY, "target": target}, headers=other)
    check_error(refused, 404, "not_found", "target")


REFUSED: list[tuple[Any, str]] = [
    ({"expression": "0 9 * *"}, "expression"),
    ({"expression": "* * * * * *"}, "expression"),
    ({"expression": "61 * * * *"}, "expression"),
    ({"expression": "0 9 31 2 *"}, "expression"),
    ({"expression": "0 0 */40 * 1#5"}, "expression"),
    ({"expression": "9" * 5000}, "expression"),
    ({"timezone": "Mars/Base"}, "timezone"),
    ({"timezone": "../../etc/passwd"}, "timezone"),
    ({"timezone": ""}, "timezone"),
    ({"run_at": 5}, "run_at"),
    ({"type": "once"}, "expression"),
    ({"name": ""}, "name"),
    ({"target": {**NEW, "agent_id": "Nobody"}}, "target.agent_id"),
    ({"target": {**NEW, "environment": {"type": "self_hosted"}}}, "target.environment.type"),
    ({"target": {**NEW, "input": []}}, "target.input"),
    ({"target": {**NEW, "vault_ids": ["v"]}}, "target.vault_ids"),
    ({"target": {**NEW, "stream": True}}, "target.stream"),
    ({"target": {"type": "existing_session", "session_id": "none", "instructions": "x"}}, "target"),
    ({"whatever": 1}, "whatever"),
]


@pytest.mark.one_database
@pytest.mark.parametrize(("change", "param"), REFUSED)
async def test_automation_refused_by_name(service: RunningServer, change: Any, param: str) -> None:
    answer = await service.post(URL, {**DAILY, "target": NEW, **change})
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["param"] == param, answer.text
    assert (await service.get(URL)).json()["data"] == []


@pytest.mark.one_database
async def test_limits(service: RunningServer) -> None:
    large = {**NEW, "input": "x" * 70_000}
    check_error(await service.post(URL, {**DAILY, "target": large}), 413, "too_large")
    check_error(
        await service.post(URL, {"type": "once", "name": "Past", "run_at": 1, "target": NEW}),
        400, "invalid_request", "run_at",
    )  # fmt: skip


async def test_last_invocations_are_kept(client: AsyncOpenAI, service: RunningServer) -> None:
    made = await client.beta.agents.automations.create(**DAILY, target=NEW)
    store = service.engine.store
    for _ in range(KEPT_INVOCATIONS + 3):
        await store.invoke_automation("default", made.id, lambda known, _: (known, "{}", None))
    kept = await store.list_invocations("default", made.id)
    assert [each.number for each in kept] == list(range(4, KEPT_INVOCATIONS + 4))


# Schedules by themselves.


def find_times(expression: str, timezone: str, start: str, count: int) -> list[str]:
    schedule, at = Schedule(expression=expression, timezone=timezone), datetime.fromisoformat(start)
    found: list[str] = []
    for _ in range(count):
        at = datetime.fromtimestamp(schedule.find_next(at) or 0, UTC)
        found.append(at.isoformat())
    return found


def test_schedules_follow_the_zones_clock() -> None:
    # On 29 March 2026 Berlin has no 2:30, on 25 October it has two.
    assert find_times("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00+00:00", 3) == [
        "2026-03-28T01:30:00+00:00",
        "2026-03-29T01:00:00+00:00",
        "2026-03-30T00:30:00+00:00",
    ]
    assert find_times("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00+00:00", 2) == [
        "2026-10-25T00:30:00+00:00",
        "2026-10-26T01:30:00+00:00",
    ]


@pytest.mark.parametrize(
    ("expression", "field"), [("61 * * * *", "minute"), ("0 9 31 2 *", "day-of-month"), ("0 9 * * MOO", "day-of-week")]
)
def test_refused_expression_names_its_field(expression: str, field: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{field}: no such value, or none that ever comes"):
        Schedule(expression=expression, timezone="UTC").check(datetime(2026, 11, 27, tzinfo=UTC))


@settings(max_examples=examples(100), deadline=None)
@given(st.text(alphabet="0123456789*/,-#L WMONJAN²", max_size=40), st.sampled_from(["UTC", "Asia/Kathmandu"]))
def test_any_expression_is_a_schedule_or_refused(expression: str, timezone: str) -> None:
    now = datetime(2026, 11, 27, tzinfo=UTC)
    try:
        due_at = Schedule(expression=expression, timezone=timezone).check(now)
    except InvalidRequest:
        return
    assert due_at > now.timestamp()
