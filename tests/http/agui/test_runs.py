"""Runs of AG-UI clients: text, calls, state, histories that are sent again, and clients that join."""

from __future__ import annotations

from typing import Any

import pytest
from ag_ui_validate import PatchOk, apply_patch
from hypothesis import given
from hypothesis import strategies as st

from swarmkeep.agui.routes import make_patch
from swarmkeep.events.codec import Json
from tests.http.agui.client import (
    apply_events,
    find_event,
    list_types,
    make_input,
    open_stream,
    run,
    user,
)
from tests.http.server import RunningServer
from tests.support.pictures import encode_content, hash_content, make_png
from tests.support.scripted import ScriptedModel

OPEN_DOOR = {"name": "open_door", "description": "Open a door.", "parameters": {"type": "object", "properties": {}}}


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


async def test_wordless_reply_has_message_for_its_calls(service: RunningServer, model: ScriptedModel) -> None:
    model.call("get_weather", {"city": "Rome"}, id="c1")
    model.say("Sunny.")
    events = await run(service, "t", [user("Weather?", "u1")], state={"name": "Ann"})
    held = apply_events(events, [user("Weather?", "u1")])
    assert (held[1]["content"], held[1]["toolCalls"][0]["id"]) == ("", "c1")


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


pytestmark = pytest.mark.one_database
