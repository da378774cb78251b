"""Runs of AG-UI clients: text, calls, state, histories that are sent again, clients that join, servers that die."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from ag_ui_validate import PatchOk, apply_patch
from hypothesis import given
from hypothesis import strategies as st

from swarmkeep.agui.routes import RunEvents, make_patch
from swarmkeep.events.codec import Json
from swarmkeep.events.facts import EventDraft, MessageAdded
from swarmkeep.events.records import CompletionRecord
from swarmkeep.events.state import State
from swarmkeep.runs.hub import Item, MessageDeltas, MessageStarted
from tests.chaos.cluster import ServerCluster
from tests.chaos.plans import call_step, make_plan, say_step
from tests.http.agui.client import (
    apply_events,
    check_events,
    find_event,
    list_types,
    make_input,
    open_stream,
    run,
    user,
)
from tests.http.server import RunningServer
from tests.support.logs.recording import record_draft
from tests.support.npm import NODE, install_packages
from tests.support.pictures import encode_content, hash_content, make_png
from tests.support.processes import ServerProcess
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


async def test_text_comes_in_pieces(service: RunningServer, model: ScriptedModel) -> None:
    model.say(["Hel", "lo."])
    events = await run(service, "t", [user("Hi.", "u1")], state={"name": "Ann"})
    assert list_types(events) == [
        "RUN_STARTED", "STATE_SNAPSHOT", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END", "RUN_FINISHED",
    ]  # fmt: skip
    assert events[0]["threadId"] == "t"
    assert events[0]["protocolVersion"] == "1.0"
    assert events[1]["snapshot"] == {"name": "Ann"}
    assert [event["delta"] for event in events if "delta" in event] == ["Hel", "lo."]
    assert events[-1]["outcome"] == {"type": "success"}
    assert events[-1]["usage"][0]["totalTokens"] > 0
    run_id = events[0]["metadata"]["swarmkeep"]["runId"]
    recorded = (await service.get(f"/v1/sessions/t/runs/{run_id}")).json()
    assert (recorded["status"], recorded["output_text"]) == ("completed", "Hello.")
    assert model.requests[0]["messages"] == [
        {"role": "system", "content": "Help Ann."},
        {"role": "user", "content": "Hi."},
    ]


async def test_calls_results_and_state(service: RunningServer, model: ScriptedModel) -> None:
    model.calls(
        [("get_weather", {"city": "Rome"}, "c1"), ("remember", {"key": "a/b", "value": "x"}, "c2")], text="Let me see."
    )
    model.say("Sunny.")
    events = await run(service, "t", [user("Weather?", "u1")], state={"name": None, "old": 1})
    assert [event["toolCallName"] for event in events if event["type"] == "TOOL_CALL_START"] == [
        "get_weather",
        "remember",
    ]
    results = [event for event in events if event["type"] == "TOOL_CALL_RESULT"]
    assert [(result["toolCallId"], result["content"]) for result in results] == [
        ("c1", "sunny in Rome"),
        ("c2", "kept"),
    ]
    assert find_event(events, "STATE_DELTA")["delta"] == [{"op": "add", "path": "/a~1b", "value": "x"}]
    held = apply_events(events, [user("Weather?", "u1")])
    assert [message["role"] for message in held] == ["user", "assistant", "tool", "tool", "assistant"]
    # What the client has now is what the server has: nothing has to be shown again.
    model.say("Bye.")
    more = await run(service, "t", [*held, user("Thanks.", "u2")], state={"name": "Ann"})
    assert "MESSAGES_SNAPSHOT" not in list_types(more)
    assert find_event(more, "STATE_SNAPSHOT")["snapshot"] == {"name": "Ann", "old": 1, "a/b": "x"}
    assert [message["role"] for message in model.requests[2]["messages"]] == [
        "system", "user", "assistant", "tool", "tool", "assistant", "user",
    ]  # fmt: skip


async def test_history_begins_a_session_and_is_not_repeated(service: RunningServer, model: ScriptedModel) -> None:
    earlier = [
        {"id": "s1", "role": "system", "content": "Be brief."},
        user("Hi.", "u1"),
        {"id": "a1", "role": "assistant", "content": "Hello."},
        {"id": "x1", "role": "activity", "activityType": "plan", "content": {"a": 1}},
        {"id": "r1", "role": "reasoning", "content": "hm"},
    ]
    model.say("Fine.")
    await run(service, "t", [*earlier, user("How are you?", "u2")], state={"name": "Ann"})
    said = [message["content"] for message in model.requests[0]["messages"]]
    assert said == ["Help Ann.", "Be brief.", "Hi.", "Hello.", "How are you?"]
    model.say("Good.")
    # Another answer than the server's, with another id, changes nothing.
    again = [*earlier, user("How are you?", "u2"), {"id": "a2", "role": "assistant", "content": "Bad."}]
    events = await run(service, "t", [*again, user("Good?", "u3")])
    assert [message["content"] for message in model.requests[1]["messages"]] == [*said, "Fine.", "Good?"]
    shown = find_event(events, "MESSAGES_SNAPSHOT")["messages"]
    assert [message["content"] for message in shown] == [*said[1:], "Fine.", "Good?"]
    assert [message["id"] for message in shown if message["role"] == "user"] == ["u1", "u2", "u3"]


async def test_request_sent_again_joins_its_run(service: RunningServer, model: ScriptedModel) -> None:
    model.say("Hello.")
    body = make_input("t", [user("Hi.", "u1")], state={"name": "Ann"})
    async with open_stream(service, body) as stream:
        first = await stream.read_rest()
    async with open_stream(service, body) as stream:
        second = await stream.read_rest()
    assert list_types(second) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "RUN_FINISHED"]
    assert apply_events(second, []) == apply_events(first, [user("Hi.", "u1")])
    other = await service.post("/agui/Front", body | {"messages": [user("Ho.", "u2")]})
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")


async def test_client_joins_in_the_middle_of_a_message(service: RunningServer, model: ScriptedModel) -> None:
    model.call("get_weather", {"city": "Rome"}, id="c1", text="Let me see.")
    model.hang("Sun", then="ny.")
    async with open_stream(service, make_input("t", [user("Weather?", "u1")], state={"name": "Ann"})) as stream:
        await stream.until("TOOL_CALL_RESULT")
        await stream.until("TEXT_MESSAGE_CONTENT")
        async with open_stream(service, make_input("t", [])) as joined:
            early = list(await joined.until("TEXT_MESSAGE_CONTENT"))
            assert early[-1]["delta"] == "Sun"
            model.release()
            second = await joined.read_rest()
        first = await stream.read_rest()
    assert list_types(second)[:3] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT"]
    assert apply_events(second, []) == apply_events(first, [user("Weather?", "u1")])
    assert len(apply_events(second, [])) == 4
    assert second[-1]["outcome"] == {"type": "success"}


async def test_missing_thread_has_nothing_to_do(service: RunningServer) -> None:
    events = await run(service, "t", [])
    assert list_types(events) == ["RUN_STARTED", "STATE_SNAPSHOT", "RUN_FINISHED"]
    assert (await service.get("/v1/sessions/t")).status_code == 404


async def test_input_waits_for_the_active_run(service: RunningServer, model: ScriptedModel) -> None:
    model.hang("First", then=".")
    model.say("Second.")
    async with open_stream(service, make_input("t", [user("One.", "u1")], state={"name": "Ann"})) as first:
        await first.until("TEXT_MESSAGE_CONTENT")
        async with open_stream(service, make_input("t", [user("One.", "u1"), user("Two.", "u2")])) as second:
            await second.until("STATE_SNAPSHOT")
            model.release()
            await first.read_rest()
            later = await second.read_rest()
    held = apply_events(later, [user("One.", "u1"), user("Two.", "u2")])
    assert [message["content"] for message in held] == ["One.", "First.", "Two.", "Second."]


async def test_handoff_stays_while_clients_name_the_same_agent(service: RunningServer, model: ScriptedModel) -> None:
    model.call("transfer_to_sales", id="c1")
    model.say("Sales here.")
    events = await run(service, "t", [user("Buy.", "u1")], state={"name": "Ann"})
    held = apply_events(events, [user("Buy.", "u1")])
    assert held[-1]["name"] == "Sales / EU ☃"
    model.say("Still sales.")
    await run(service, "t", [*held, user("More.", "u2")])
    assert model.requests[2]["model"] == "sales-model"
    model.say("Sales again.")
    await run(service, "other", [user("Hi.", "u1")], agent="Sales%20%2F%20EU%20%E2%98%83")
    assert model.requests[3]["model"] == "sales-model"


async def test_context_follows_the_instructions(service: RunningServer, model: ScriptedModel) -> None:
    model.say("Hello.")
    context = [{"description": "The open page", "value": "cart"}]
    await run(service, "t", [user("Hi.", "u1")], state={"name": "Ann"}, context=context)
    assert model.requests[0]["messages"][0]["content"] == "Help Ann.\n\nThe open page:\ncart"


async def test_failed_run_ends_with_an_error(service: RunningServer, model: ScriptedModel) -> None:
    model.fail(400, message="no such model")
    events = await run(service, "t", [user("Hi.", "u1")], state={"name": "Ann"})
    assert events[-1]["type"] == "RUN_ERROR"
    assert "no such model" in events[-1]["message"]
    # The same messages are no new input.
    again = await run(service, "t", [user("Hi.", "u1")])
    assert list_types(again) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "RUN_ERROR"]
    model.say("Here.")
    events = await run(service, "t", [user("Hi.", "u1"), user("Hello?", "u2")])
    assert events[-1]["outcome"] == {"type": "success"}


async def test_cancelled_run(service: RunningServer, model: ScriptedModel) -> None:
    model.hang("Hel", then="lo.")
    async with open_stream(service, make_input("t", [user("Hi.", "u1")], state={"name": "Ann"})) as stream:
        events = await stream.until("TEXT_MESSAGE_CONTENT")
        run_id = events[0]["metadata"]["swarmkeep"]["runId"]
        await service.post(f"/v1/sessions/t/runs/{run_id}/cancel")
        events = await stream.read_rest()
    assert events[-1]["outcome"] == {"type": "cancelled"}
    model.release()


async def test_pictures_are_kept_once_and_shown_by_address(service: RunningServer, model: ScriptedModel) -> None:
    png = make_png(2000)
    source = {"type": "data", "value": encode_content(png), "mimeType": "image/png"}
    message = user([{"type": "text", "text": "What is it?"}, {"type": "image", "source": source}], "u1")
    model.say("A picture.")
    await run(service, "t", [message], state={"name": "Ann"})
    assert model.requests[0]["messages"][1]["content"][1]["image_url"]["url"].startswith("data:image/png;base64,")
    joined = await run(service, "t", [])
    shown = find_event(joined, "MESSAGES_SNAPSHOT")["messages"][0]["content"][1]["source"]
    assert shown["value"] == f"/v1/sessions/t/blobs/{hash_content(png)}"
    assert (await service.get(shown["value"])).content == png


async def test_cut_call_is_shown_with_json_arguments(service: RunningServer, model: ScriptedModel) -> None:
    model.call("get_weather", '{"city": "Ro', id="c1", finish_reason="length")
    model.say("I was cut off.")
    events = await run(service, "t", [user("Weather?", "u1")], state={"name": "Ann"})
    assert find_event(events, "TOOL_CALL_ARGS")["delta"] == "{}"
    assert find_event(events, "TOOL_CALL_RESULT")["metadata"]["swarmkeep"]["status"] == "error"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("a/~", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/~", max_size=2), inner, max_size=3),
    max_leaves=12,
)
STATES = st.dictionaries(st.text("ab/~", max_size=2), VALUES, max_size=4)


@given(before=STATES, after=STATES)
def test_patch_leads_from_one_state_to_the_other(before: Json, after: Json) -> None:
    applied: Any = apply_patch(before, make_patch(before, after))
    assert isinstance(applied, PatchOk)
    assert applied.result == after


# What was shown by a server that dies is mended, and the same request joins the run elsewhere.


def record_reply(text: str) -> Item:
    """A reply as the log has it."""
    message = {"role": "assistant", "content": text, "sender": "Front"}
    fact = MessageAdded(message=message, completion=CompletionRecord())
    return record_draft(EventDraft(fact, "run_1", "Front"), 2, "")


def test_empty_reply_is_mended_at_the_end() -> None:
    events = RunEvents("t", "r", {})
    seen = read_frames(events.begin(None))
    started = MessageStarted("run_1", "Front", 2)
    said = [MessageDeltas("run_1", "Front", 2, [{"content": text}]) for text in ("Once upon", "Twice")]
    for items in ([started, said[0]], [started, said[1]], [record_reply("Twice.")]):
        seen += read_frames(events.write(items)[0])
    assert events.is_behind
    seen += read_frames(events.finish(State(), None))
    names = [event["messageId"] for event in check_events(seen) if event["type"] == "TEXT_MESSAGE_START"]
    assert names == ["run_1.0", "run_1.0.1"]
    assert apply_events(seen[:-2], [])[-1]["content"] == "Twice."
    assert list_types(seen)[-2:] == ["MESSAGES_SNAPSHOT", "RUN_FINISHED"]


def test_reply_other_than_what_was_shown() -> None:
    events = RunEvents("t", "r", {})
    seen = read_frames(events.begin(None))
    said = MessageDeltas("run_1", "Front", 2, [{"content": "No"}])
    seen += read_frames(events.write([said, record_reply("Yes.")])[0])
    seen += read_frames(events.finish(State(), None))
    assert [message["content"] for message in apply_events(check_events(seen)[:-2], [])] == ["No", "Yes."]


def read_frames(frames: bytes) -> list[Json]:
    return [json.loads(frame.removeprefix("data: ")) for frame in frames.decode().split("\n\n") if frame]


def read_events(server: ServerProcess, body: Json, until: str = "") -> list[Json]:
    """The events of a stream, up to the first of a kind, or to its end."""
    seen: list[Json] = []
    with httpx2.stream("POST", f"{server.url}/agui/Clerk", json=body, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line[6:]))
                if seen[-1]["type"] == until:
                    break
    return seen


@pytest.mark.long
def test_repeated_request_joins_run_on_another_server(cluster: ServerCluster) -> None:
    plan = make_plan(call_step(("put", {"what": "it"})), say_step("One word, and another, and the last.", pause="gate"))
    first, second = cluster.server(), cluster.server()
    body = make_input("t", [user(plan, "u1")])
    seen = read_events(first, body, until="TEXT_MESSAGE_CONTENT")
    first.kill()
    rest = check_events(read_events(second, body))
    assert list_types(rest)[:3] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT"]
    assert rest[-1]["outcome"] == {"type": "success"}
    held = apply_events(rest, [])
    assert [message["role"] for message in held] == ["user", "assistant", "tool", "assistant"]
    assert held[-1]["content"] == "One word, and another, and the last."
    # What the first server showed of the reply has the same id.
    assert held[-1]["id"] == seen[-1]["messageId"]
    assert cluster.effects.count("end").total() == 1
    cluster.read_checked_log("t")


# AG-UI's own client for JavaScript, under Node: it refuses streams that break the protocol.


RUN_SECONDS = 60


async def converse(folder: Path, url: str) -> dict[str, Json]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(NODE, "conversation.mjs", url, cwd=folder, stdout=pipe, stderr=pipe)
    async with asyncio.timeout(RUN_SECONDS):
        output, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()
    found = [json.loads(line) for line in output.splitlines()]
    return {part["name"]: part for part in found}


def list_roles(part: Json) -> list[str]:
    return [message["role"] for message in part["messages"]]


@pytest.mark.long
async def test_conversation(
    service: RunningServer, model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = await asyncio.to_thread(install_packages, tmp_path_factory.getbasetemp())
    if folder is None:
        pytest.skip("npm cannot install packages here")
    model.calls([("get_weather", {"city": "Rome"}, "c1"), ("remember", {"key": "city", "value": "Rome"}, "c2")])
    model.say(["Sun", "ny."])
    model.call("refund", {"order": "1"}, id="c3", text="I will.")
    model.say("Paid.")
    model.call("open_door", {}, id="c4")
    model.say("Come in.")
    model.fail(400)
    said = await converse(folder, service.url)
    assert said["failed"]["warnings"] == []
    first = ["user", "assistant", "tool", "tool", "assistant"]
    assert list_roles(said["calls"]) == first
    assert said["calls"]["messages"][-1]["content"] == "Sunny."
    assert said["calls"]["state"] == {"name": "Ann", "city": "Rome"}
    assert said["interrupt"]["asked"] == [{"reason": "tool_call", "toolCallId": "c3"}]
    assert said["joined"]["same"]
    assert said["joined"]["messages"] == said["interrupt"]["messages"]
    assert said["joined"]["state"] == said["calls"]["state"]
    assert said["resumed"]["open"] == 0
    assert list_roles(said["resumed"]) == [*first, "user", "assistant", "tool", "assistant"]
    assert said["resumed"]["messages"][-2]["content"] == "refunded 1"
    assert [len(message.get("toolCalls", ())) for message in said["resumed"]["messages"]] == [0, 2, 0, 0, 0, 0, 1, 0, 0]
    assert list_roles(said["own function"])[9:] == ["user", "assistant", "tool", "assistant"]
    assert said["rejoined"]["messages"] == said["own function"]["messages"]
    assert said["rejoined"]["state"] == said["own function"]["state"]
    assert list_roles(said["failed"]) == ["user"]
