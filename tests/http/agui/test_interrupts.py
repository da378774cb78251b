"""Interrupts of AG-UI's runs, and who may do what: approvals, calls of the client's functions, keys and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from swarmkeep.events.codec import Json
from tests.http.agui.client import apply_events, find_event, list_types, make_input, open_stream, run, user
from tests.http.auth.keys import create_key
from tests.http.server import RunningServer, check_problem, scripted, start_server
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

OPEN_DOOR = {
    "name": "open_door",
    "description": "Open a door.",
    "parameters": {"type": "object", "properties": {"door": {"type": "string"}}},
}
ASK = [user("Please.", "u1")]
STATE = {"name": "Ann"}


def answer(interrupt: Json, **payload: Any) -> Json:
    return {"interruptId": interrupt["id"], "status": "resolved", "payload": payload}


async def interrupt(service: RunningServer, model: ScriptedModel) -> tuple[list[Json], Json]:
    """A conversation that waits for an approval, as its client holds it, and the interrupt."""
    model.call("refund", {"order": "1"}, id="c1", text="I will.")
    events = await run(service, "t", ASK, state=STATE)
    assert list_types(events)[-2:] == ["MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    (found,) = events[-1]["outcome"]["interrupts"]
    return apply_events(events, ASK), found


async def test_approval_and_how_it_goes_on(service: RunningServer, model: ScriptedModel) -> None:
    held, asked = await interrupt(service, model)
    assert (asked["reason"], asked["toolCallId"]) == ("tool_call", "c1")
    assert asked["metadata"]["swarmkeep"]["arguments"] == '{"order": "1"}'
    digest = asked["metadata"]["swarmkeep"]["argumentsDigest"]
    model.say("Done.")
    events = await run(service, "t", held, resume=[answer(asked, approved=True, argumentsDigest=digest)])
    assert "TOOL_CALL_START" not in list_types(events)
    result = find_event(events, "TOOL_CALL_RESULT")
    assert (result["toolCallId"], result["content"]) == ("c1", "refunded 1")
    assert [message["role"] for message in apply_events(events, held)] == ["user", "assistant", "tool", "assistant"]
    assert apply_events(await run(service, "t", []), []) == apply_events(events, held)


async def test_denied_edited_and_cancelled(service: RunningServer, model: ScriptedModel) -> None:
    held, asked = await interrupt(service, model)
    model.call("refund", {"order": "2"}, id="c2")
    denied = await run(service, "t", held, resume=[answer(asked, approved=False, reason="Too late.")])
    assert "Too late." in find_event(denied, "TOOL_CALL_RESULT")["content"]
    (asked,) = denied[-1]["outcome"]["interrupts"]
    model.call("refund", {"order": "3"}, id="c3")
    edited = await run(service, "t", [], resume=[answer(asked, approved=True, editedArgs={"order": "9"})])
    assert find_event(edited, "TOOL_CALL_RESULT")["content"].endswith("refunded 9")
    (asked,) = edited[-1]["outcome"]["interrupts"]
    model.say("Well.")
    cancelled = await run(service, "t", [], resume=[{"interruptId": asked["id"], "status": "cancelled"}])
    assert find_event(cancelled, "TOOL_CALL_RESULT")["metadata"]["swarmkeep"]["status"] == "denied"


async def test_resume_sent_again_joins(service: RunningServer, model: ScriptedModel) -> None:
    held, asked = await interrupt(service, model)
    model.say("Done.")
    body = make_input("t", held, resume=[answer(asked, approved=True)])
    first = await service.post("/agui/Front", body)
    second = await service.post("/agui/Front", body)
    assert (first.status_code, second.status_code) == (200, 200)
    assert len(model.requests) == 2
    check_problem(await service.post("/agui/Front", body | {"runId": "another"}), 409, "run_not_waiting")


async def test_client_joins_a_run_that_waits(service: RunningServer, model: ScriptedModel) -> None:
    held, asked = await interrupt(service, model)
    joined = await run(service, "t", [])
    assert joined[-1]["outcome"]["interrupts"] == [asked]
    assert apply_events(joined, []) == held
    again = await run(service, "t", held)
    assert again[-1]["outcome"]["interrupts"] == [asked]


@pytest.mark.parametrize(
    ("changed", "pointer"),
    [
        ({"messages": [*ASK, user("Well?", "u2")]}, "/resume"),
        ({"resume": [{"interruptId": "run_x:c9", "status": "resolved", "payload": {}}]}, "/resume/0/interruptId"),
        ({"resume": [{"interruptId": "run_x:c9", "status": "cancelled"}] * 2}, "/resume"),
        ({"payload": True}, "/resume/0/payload"),
        ({"payload": {"approved": "yes"}}, "/resume/0/payload"),
        ({"payload": {"approved": True, "scope": "all"}}, "/resume/0/payload"),
    ],
)
async def test_wrong_answers_decide_nothing(
    service: RunningServer, model: ScriptedModel, changed: Json, pointer: str
) -> None:
    held, asked = await interrupt(service, model)
    body = make_input("t", held)
    if "payload" in changed:
        changed = {"resume": [{"interruptId": asked["id"], "status": "resolved", **changed}]}
    refused = check_problem(await service.post("/agui/Front", body | changed), 400, "invalid_request")
    assert refused["errors"][0]["pointer"] == pointer
    assert (await service.get("/v1/sessions/t")).json()["status"] == "waiting"


async def test_functions_of_the_client(service: RunningServer, model: ScriptedModel) -> None:
    model.calls([("get_weather", {"city": "Rome"}, "c1"), ("open_door", {"door": "1"}, "c2")])
    events = await run(service, "t", ASK, state=STATE, tools=[OPEN_DOOR])
    assert model.requests[0]["tools"][-1]["function"] == OPEN_DOOR
    assert events[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ["c2"]}
    held = [*apply_events(events, ASK), {"id": "r1", "role": "tool", "toolCallId": "c2", "content": "open"}]
    model.say("It is open.")
    events = await run(service, "t", held, tools=[OPEN_DOOR], state={"name": "Bob", "door": "open"})
    assert "TOOL_CALL_RESULT" not in list_types(events)
    assert find_event(events, "STATE_SNAPSHOT")["snapshot"] == {"name": "Bob", "door": "open"}
    held = apply_events(events, held)
    assert [message["role"] for message in held] == ["user", "assistant", "tool", "tool", "assistant"]
    assert [m["content"] for m in model.requests[1]["messages"] if m["role"] == "tool"] == ["sunny in Rome", "open"]
    model.say("Bye.")
    events = await run(service, "t", [*held, user("Bye.", "u2")], tools=[OPEN_DOOR])
    assert "MESSAGES_SNAPSHOT" not in list_types(events)


async def test_failed_function_of_the_client(service: RunningServer, model: ScriptedModel) -> None:
    model.call("open_door", {"door": "1"}, id="c1")
    events = await run(service, "t", ASK, state=STATE, tools=[OPEN_DOOR])
    failed = {"id": "r1", "role": "tool", "toolCallId": "c1", "content": "", "error": "jammed"}
    model.say("Pity.")
    await run(service, "t", [*apply_events(events, ASK), failed], tools=[OPEN_DOOR])
    assert model.requests[1]["messages"][-1]["content"] == "jammed"
    recorded = [event["data"].get("tool") for event in await service.events("/v1/sessions/t")]
    assert [tool["status"] for tool in recorded if tool] == ["error"]


async def test_application_goes_on_without_a_result(service: RunningServer, model: ScriptedModel) -> None:
    model.call("open_door", {"door": "1"}, id="c1")
    events = await run(service, "t", ASK, state=STATE, tools=[OPEN_DOOR])
    model.say("Never mind.")
    held = apply_events(events, ASK)
    events = await run(service, "t", [*held, user("Forget it.", "u2")], tools=[OPEN_DOOR])
    assert [message["role"] for message in model.requests[1]["messages"]][2:] == ["assistant", "tool", "user"]
    assert find_event(events, "TOOL_CALL_RESULT")["metadata"]["swarmkeep"]["status"] == "error"


async def test_approval_beside_a_function_of_the_client(service: RunningServer, model: ScriptedModel) -> None:
    model.calls([("refund", {"order": "1"}, "c1"), ("open_door", {"door": "1"}, "c2")])
    events = await run(service, "t", ASK, state=STATE, tools=[OPEN_DOOR])
    approval, result = events[-1]["outcome"]["interrupts"]
    assert (approval["toolCallId"], result["toolCallId"]) == ("c1", "c2")
    model.say("Done.")
    resume = [answer(approval, approved=True), answer(result, opened=True)]
    events = await run(service, "t", apply_events(events, ASK), tools=[OPEN_DOOR], resume=resume)
    results = {event["toolCallId"]: event["content"] for event in events if event["type"] == "TOOL_CALL_RESULT"}
    assert results == {"c1": "refunded 1", "c2": '{"opened":true}'}


async def test_result_of_an_unknown_call_is_refused(service: RunningServer, model: ScriptedModel) -> None:
    model.say("Hello.")
    held = apply_events(await run(service, "t", ASK, state=STATE), ASK)
    stray = {"id": "r1", "role": "tool", "toolCallId": "c9", "content": "x"}
    refused = await service.post("/agui/Front", make_input("t", [*held, stray, user("So?", "u2")]))
    assert check_problem(refused, 400, "invalid_request")["errors"][0]["pointer"] == "/messages/2"


async def test_interrupt_that_was_decided_elsewhere(service: RunningServer, model: ScriptedModel) -> None:
    held, asked = await interrupt(service, model)
    model.say("Done.")
    recorded = (await service.get("/v1/sessions/t")).json()["active_run_id"]
    decision = {"approvals": [{"tool_call_id": "c1", "decision": "approve"}]}
    assert (await service.post(f"/v1/sessions/t/runs/{recorded}/resume", decision)).json()["status"] == "completed"
    late = await service.post("/agui/Front", make_input("t", held, resume=[answer(asked, approved=False)]))
    check_problem(late, 409, "run_not_waiting")
    # Clients go on only once they have sent something for each interrupt that they know.
    model.say("Bye.")
    passed = {"interruptId": asked["id"], "status": "cancelled"}
    events = await run(service, "t", [*held, user("Bye.", "u2")], resume=[passed])
    held = apply_events(events, [*held, user("Bye.", "u2")])
    assert [message["content"] for message in held if message["role"] == "assistant"] == ["I will.", "Done.", "Bye."]


@pytest.mark.parametrize("digest", ["0" * 64, "0"])
async def test_decision_counts_for_the_arguments_that_were_shown(
    service: RunningServer, model: ScriptedModel, digest: str
) -> None:
    held, asked = await interrupt(service, model)
    resume = [answer(asked, approved=True, argumentsDigest=digest)]
    refused = await service.post("/agui/Front", make_input("t", held, resume=resume))
    check_problem(refused, *((409, "arguments_changed") if len(digest) > 1 else (400, "invalid_request")))


async def test_person_answers_in_the_place_of_the_agent(service: RunningServer, model: ScriptedModel) -> None:
    model.say("Hello.")
    held = apply_events(await run(service, "t", ASK, state=STATE), ASK)
    await service.post("/v1/sessions/t/takeover")
    asked = [*held, user("Is anybody there?", "u2")]
    events = await run(service, "t", asked)
    assert events[-1]["outcome"] == {"type": "success", "pendingToolCallIds": []}
    assert events[-1]["metadata"] == {"swarmkeep": {"stopReason": "person"}}
    waiting = await service.post("/agui/Front", make_input("t", [*asked, user("Well?", "u3")]))
    check_problem(waiting, 400, "invalid_request")
    await service.post("/v1/sessions/t/answer", {"content": "I am."})
    shown = find_event(await run(service, "t", asked), "MESSAGES_SNAPSHOT")["messages"]
    assert (shown[-1]["role"], shown[-1]["content"], shown[-1]["name"]) == ("assistant", "I am.", "person")


async def test_asked_agent_waits_for_an_approval(sqlite_ready: str, model: ScriptedModel) -> None:
    async with start_server(scripted(sqlite_ready, model, agents=["tests.http.asking_team"])) as service:
        model.call("ask_clerk", {"input": "Pay it."}, id="c1")
        model.call("pay", {"amount": 7}, id="p7")
        events = await run(service, "t", ASK, agent="Desk")
        (asked,) = events[-1]["outcome"]["interrupts"]
        assert (asked["reason"], asked["message"]) == ("confirmation", 'Clerk asks to call pay({"amount": 7})')
        model.say("Paid.")
        model.say("Seven are paid.")
        resume = [answer(asked, approved=True)]
        events = await run(service, "t", apply_events(events, ASK), agent="Desk", resume=resume)
        assert find_event(events, "TOOL_CALL_RESULT")["content"] == "Paid."
        assert apply_events(events, [])[-1]["content"] == "Seven are paid."


# Keys, roles, tenants, quotas and refusals: as for every other route.


async def test_key_is_needed_once_there_is_one(plain: RunningServer) -> None:
    reader, auditor = await create_key(plain, "acme", role="read"), await create_key(plain, "acme", role="audit")
    body = make_input("t", ASK, state=STATE)
    check_problem(await plain.post("/agui/Front", body), 401, "unauthenticated")
    check_problem(await plain.post("/agui", body), 401, "unauthenticated")
    for key in (reader, auditor):
        detail = check_problem(await plain.post("/agui/Front", body, headers=key), 403, "forbidden")["detail"]
        assert "`run` or `approve`" in detail


async def test_deciding_and_running_are_roles_of_their_own(service: RunningServer, model: ScriptedModel) -> None:
    runner, approver = await create_key(service, "acme", role="run"), await create_key(service, "acme", role="approve")
    check_problem(await service.post("/agui/Front", make_input("t", ASK), headers=approver), 403, "forbidden")
    model.call("refund", {"order": "1"}, id="c1")
    events = await run(service, "t", ASK, state=STATE, headers=runner)
    (asked,) = events[-1]["outcome"]["interrupts"]
    resume = [{"interruptId": asked["id"], "status": "resolved", "payload": {"approved": True}}]
    held = apply_events(events, ASK)
    refused = await service.post("/agui/Front", make_input("t", held, resume=resume), headers=runner)
    check_problem(refused, 403, "forbidden")
    # One who decides looks on, and changes nothing else.
    assert (await run(service, "t", [], headers=approver))[-1]["outcome"] == events[-1]["outcome"]
    model.say("Done.")
    done = await run(service, "t", held, resume=resume, state={"name": "Eve"}, headers=approver)
    assert done[-1]["outcome"] == {"type": "success"}
    session = (await service.get("/v1/sessions/t", headers=runner)).json()
    assert session["context_variables"] == STATE
    recorded = (await service.get("/v1/sessions/t/events", headers=runner)).json()["data"]
    (by,) = [event["data"]["by"] for event in recorded if event["type"] == "approval.decided"]
    assert by.startswith("key_")
    more = make_input("t", [*apply_events(done, held), user("And?", "u2")])
    check_problem(await service.post("/agui/Front", more, headers=approver), 403, "forbidden")


async def test_support_decides_without_speaking_as_user(service: RunningServer, model: ScriptedModel) -> None:
    runner, support = await create_key(service, "acme", role="run"), await create_key(service, "acme", role="support")
    refused = await service.post("/agui/Front", make_input("t", ASK), headers=support)
    assert "does not speak as the user" in check_problem(refused, 403, "forbidden")["detail"]
    model.call("refund", {"order": "1"}, id="c1")
    events = await run(service, "t", ASK, state=STATE, headers=runner)
    (asked,) = events[-1]["outcome"]["interrupts"]
    resume = [{"interruptId": asked["id"], "status": "resolved", "payload": {"approved": True}}]
    held = apply_events(events, ASK)
    more = make_input("t", [*held, user("And more.", "u2")], resume=resume)
    check_problem(await service.post("/agui/Front", more, headers=support), 403, "forbidden")
    model.say("Done.")
    done = await run(service, "t", held, resume=resume, headers=support)
    assert done[-1]["outcome"] == {"type": "success"}


async def test_threads_of_tenants_are_apart(service: RunningServer, model: ScriptedModel) -> None:
    acme, other = await create_key(service, "acme"), await create_key(service, "other")
    model.say("Hello, Acme.")
    body = make_input("t", ASK, state=STATE)
    assert (await service.post("/agui/Front", body, headers=acme)).status_code == 200
    assert list_types(await run(service, "t", [], headers=other)) == ["RUN_STARTED", "STATE_SNAPSHOT", "RUN_FINISHED"]
    model.say("Hello, Other.")
    assert "Acme" not in (await service.post("/agui/Front", body, headers=other)).text


async def test_quotas_hold(sqlite_ready: str, model: ScriptedModel) -> None:
    async with start_server(scripted(sqlite_ready, model, max_queued_runs=1)) as service:
        model.hang("First", then=".")
        model.say("Second.")
        body = make_input("t", [user("a", "1")], state=STATE)
        async with open_stream(service, body) as first:
            await first.until("TEXT_MESSAGE_CONTENT")
            async with open_stream(service, make_input("t", [user("b", "2")])) as second:
                await second.until("STATE_SNAPSHOT")
                refused = await service.post("/agui/Front", make_input("t", [user("c", "3")]))
                assert "SWARMKEEP_MAX_QUEUED_RUNS" in check_problem(refused, 429, "quota_exceeded")["detail"]
                model.release()
                await first.read_rest()
                await second.read_rest()


LONG = "x" * 300


@pytest.mark.parametrize(
    ("agent", "changed", "status", "pointer"),
    [
        ("Nobody", {}, 404, None),
        ("Front", {"threadId": "a b"}, 400, "/threadId"),
        ("Front", {"threadId": "subsess_1"}, 400, "/threadId"),
        ("Front", {"runId": ""}, 400, "/runId"),
        ("Front", {"runId": "a b"}, 400, "/runId"),
        ("Front", {"runId": "a\n"}, 400, "/runId"),
        ("Front", {"state": [1]}, 400, "/state"),
        ("Front", {"unknown": 1}, 400, "/unknown"),
        ("Front", {"messages": [{"role": "user", "content": "x"}]}, 400, "/messages/0/id"),
        ("Front", {"messages": [user("x", LONG)]}, 400, "/messages/0/id"),
        ("Front", {"messages": [{"id": "1", "role": "robot", "content": "x"}]}, 400, "/messages/0/role"),
        ("Front", {"messages": [{"id": "1", "role": ["user"], "content": "x"}]}, 400, "/messages/0/role"),
        ("Front", {"messages": [{"id": "1", "role": "user"}]}, 400, "/messages/0/content"),
        ("Front", {"messages": [user([{"type": "video"}], "1")]}, 400, "/messages/0/content/0"),
        ("Front", {"messages": [{"id": "1", "role": "activity"}, user([1], "2")]}, 400, "/messages/1/content/0"),
        (
            "Front",
            {"messages": [{"id": "1", "role": "assistant", "toolCalls": [{"id": "c"}]}]},
            400,
            "/messages/0/toolCalls/0",
        ),
        ("Front", {"messages": [{"id": "1", "role": "tool", "content": "x"}]}, 400, "/messages/0/tool_call_id"),
        ("Front", {"messages": [{"id": "1", "role": "tool", "content": "x", "toolCallId": "c"}]}, 400, "/messages/0"),
        ("Front", {"tools": [{"name": "a b", "description": ""}]}, 400, "/tools/0/function/name"),
        ("Front", {"tools": [{"name": "refund", "description": ""}]}, 400, "/tools/0"),
        ("Front", {"resume": [{"interruptId": "x", "status": "resolved"}]}, 400, "/resume/0/interruptId"),
        ("Front", {"resume": [{"interruptId": "x", "status": "perhaps"}]}, 400, "/resume/0/status"),
    ],
)
async def test_refusals_name_their_place(
    plain: RunningServer, agent: str, changed: Json, status: int, pointer: str | None
) -> None:
    answer: Any = await plain.post(f"/agui/{agent}", make_input("t", ASK) | changed)
    problem = check_problem(answer, status, "agent_not_found" if status == 404 else "invalid_request")
    assert pointer is None or problem["errors"][0]["pointer"] == pointer
    assert (await plain.get("/v1/sessions/t")).status_code == 404
