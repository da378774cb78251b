"""Conversations and pages of their items by OpenAI's client: each is a session, and each session is one."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI, BadRequestError, ConflictError, NotFoundError

from swarmkeep.decide.drafts import apply_drafts
from swarmkeep.decide.people import remove_message
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import DomainError
from swarmkeep.events.facts import (
    ApprovalDecided,
    ApprovalRequested,
    EventDraft,
    MessageAdded,
    MessageRemoved,
    RecordedEvent,
    RunStarted,
    SessionCreated,
)
from swarmkeep.events.fold import fold
from swarmkeep.events.messages import read_tool_calls
from swarmkeep.events.records import CompletionRecord, RunOptions
from swarmkeep.events.state import State
from swarmkeep.openai.items import ItemPlace, parse_item_id
from swarmkeep.openai.output_items import ItemOrder, PageQuery, SessionItems
from swarmkeep.openai.problems import Refused
from tests.http.server import RunningServer
from tests.support.calls import count_steps
from tests.support.hypothesis_profiles import examples
from tests.support.logs import Dice, DrawnDice, any_logs
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


def said(role: str, text: str) -> Any:
    return {"type": "message", "role": role, "content": text}


async def test_a_conversation_is_a_session(openai: AsyncOpenAI, service: RunningServer, model: ScriptedModel) -> None:
    made = await openai.conversations.create(metadata={"team": "a", "old": "x"}, items=[said("user", "Hi.")])
    assert made.id.startswith("conv_")
    assert made.metadata == {"team": "a", "old": "x"}
    assert await openai.conversations.retrieve(made.id) == made
    changed = await openai.conversations.update(made.id, metadata={"team": "b"})
    assert changed.metadata == {"team": "b"}
    session = (await service.get(f"/v1/sessions/{made.id}")).json()
    assert (session["metadata"], session["message_count"]) == ({"team": "b"}, 1)
    model.say("Hello.")
    response = await openai.responses.create(model="Front", input="Well?", conversation=made.id)
    assert response.conversation is not None
    assert response.conversation.id == made.id
    assert [message["content"] for message in model.requests[0]["messages"][1:]] == ["Hi.", "Well?"]
    gone = await openai.conversations.delete(made.id)
    assert (gone.deleted, gone.object) == (True, "conversation.deleted")
    with pytest.raises(NotFoundError):
        await openai.conversations.retrieve(made.id)


async def test_any_session_is_a_conversation(openai: AsyncOpenAI, service: RunningServer, model: ScriptedModel) -> None:
    model.say("one")
    session = await service.session(id="desk:7")
    await service.run(session, "1")
    items = [item async for item in openai.conversations.items.list("desk:7", order="asc")]
    assert [item.type for item in items] == ["message", "message"]
    model.say("two")
    response = await openai.responses.create(model="Front", input="2", conversation="desk:7")
    assert response.output[0].id == (await openai.conversations.items.list("desk:7", limit=1)).data[0].id
    assert (await service.get(f"{session}/verify")).json()["valid"]


async def test_items_added_paged_and_fetched(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    made = await openai.conversations.create()
    call: Any = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    output: Any = {"type": "function_call_output", "call_id": "c1", "output": "42"}
    added = await openai.conversations.items.create(
        made.id, items=[said("user", "Look."), said("assistant", "I look."), call, output, said("assistant", "42.")]
    )
    assert [item.type for item in added.data] == [
        "message", "message", "function_call", "function_call_output", "message",
    ]  # fmt: skip
    ids = [item.id async for item in openai.conversations.items.list(made.id, limit=2, order="asc")]
    assert ids == [item.id for item in added.data]
    newest = [item.id async for item in openai.conversations.items.list(made.id, limit=2)]
    assert newest == ids[::-1]
    found = await openai.conversations.items.retrieve(str(ids[1]), conversation_id=made.id)
    assert found == added.data[1]
    model.say("Yes.")
    await openai.responses.create(model="Front", input="Sure?", conversation=made.id)
    roles = [message["role"] for message in model.requests[0]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]


async def test_a_call_may_have_no_arguments(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    """Models write nothing at all where a function takes nothing, and chat completions take it so, too."""
    call: Any = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": ""}
    output: Any = {"type": "function_call_output", "call_id": "c1", "output": "42"}
    model.say("Yes.")
    await openai.responses.create(model="Front", input=[said("user", "Look."), call, output, said("user", "Sure?")])
    [sent] = [message["tool_calls"] for message in model.requests[0]["messages"] if message["role"] == "assistant"]
    assert sent[0]["function"] == {"name": "look", "arguments": "{}"}


async def test_what_cannot_be_added_is_refused(
    openai: AsyncOpenAI, service: RunningServer, model: ScriptedModel
) -> None:
    made = await openai.conversations.create()
    stray: Any = {"type": "function_call_output", "call_id": "c9", "output": "x"}
    with pytest.raises(BadRequestError, match="no open call 'c9'"):
        await openai.conversations.items.create(made.id, items=[stray])
    odd: Any = {"type": "web_search_call", "id": "ws_1"}
    with pytest.raises(BadRequestError, match="web_search_call") as refused:
        await openai.conversations.items.create(made.id, items=[odd])
    assert refused.value.param == "items[0].type"
    model.hang()
    run = await service.run(f"/v1/sessions/{made.id}", background=True)
    await model.wait_for_requests_async(1)
    with pytest.raises(ConflictError, match="still running"):
        await openai.conversations.items.create(made.id, items=[said("user", "Hi.")])
    model.release()
    async with service.stream(f"/v1/sessions/{made.id}/runs/{run['id']}/stream") as frames:
        await frames.until("done")
    with pytest.raises(NotFoundError):
        await openai.conversations.items.list("conv_nobody")
    with pytest.raises(NotFoundError):
        await openai.conversations.items.retrieve("msg_s1.x", conversation_id=made.id)


async def test_deleted_call_item_takes_its_result(
    openai: AsyncOpenAI, model: ScriptedModel, service: RunningServer
) -> None:
    made = await openai.conversations.create()
    model.call("get_weather", {"city": "Rome"}, id="c1")
    model.say("one")
    await openai.responses.create(model="Front", input="1", conversation=made.id)
    listed = [item async for item in openai.conversations.items.list(made.id, order="asc")]
    assert [item.type for item in listed] == ["message", "mcp_call", "message"]
    conversation = await openai.conversations.items.delete(str(listed[1].id), conversation_id=made.id)
    assert conversation.id == made.id
    rest = [item async for item in openai.conversations.items.list(made.id, order="asc")]
    assert rest == [listed[0], listed[2]]
    with pytest.raises(NotFoundError):
        await openai.conversations.items.retrieve(str(listed[1].id), conversation_id=made.id)
    model.say("two")
    second = await openai.responses.create(model="Front", input="2", conversation=made.id)
    assert [message["content"] for message in model.requests[2]["messages"][1:]] == ["1", "one", "2"]
    last = (await openai.conversations.items.list(made.id, limit=1)).data[0]
    assert last.id == second.output[0].id
    events = await service.events(f"/v1/sessions/{made.id}")
    assert [event["data"]["message"]["role"] for event in events if event["type"] == "message.added"].count("tool") == 1
    assert (await service.get(f"/v1/sessions/{made.id}/verify")).json()["valid"]


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_conversation_is_emptied_page_by_page(
    openai: AsyncOpenAI, model: ScriptedModel, order: Literal["asc", "desc"]
) -> None:
    door: Any = {"type": "function", "name": "open_door", "parameters": {"type": "object", "properties": {}}}
    made = await openai.conversations.create()
    model.call("open_door", {}, id="c1")
    await openai.responses.create(model="Front", input="1", conversation=made.id, tools=[door])
    output: Any = {"type": "function_call_output", "call_id": "c1", "output": "open"}
    model.say("one")
    await openai.responses.create(model="Front", input=[output], conversation=made.id)
    shown = []
    # Each page comes after an item that has been deleted; the output has gone with its call, or the call with it.
    async for item in openai.conversations.items.list(made.id, order=order, limit=1):
        await openai.conversations.items.delete(str(item.id), conversation_id=made.id)
        shown.append(item)
    assert [item.type for item in shown if item.type != "message"] == [
        "function_call" if order == "asc" else "function_call_output"
    ]
    assert (await openai.conversations.items.list(made.id)).data == []
    for item in shown:
        await openai.conversations.items.delete(str(item.id), conversation_id=made.id)
    with pytest.raises(NotFoundError):
        await openai.conversations.items.list(made.id, after=f"msg_s99.{made.id}")
    with pytest.raises(NotFoundError):
        await openai.conversations.items.delete(f"msg_s99.{made.id}", conversation_id=made.id)


async def test_deleted_response_is_not_found(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    model.say("one")
    made = await openai.responses.create(model="Front", input="1")
    await openai.responses.delete(made.id)
    with pytest.raises(NotFoundError):
        await openai.responses.retrieve(made.id)
    with pytest.raises(BadRequestError, match="to continue from"):
        await openai.responses.create(model="Front", input="2", previous_response_id=made.id)


async def test_reply_text_deleted_without_its_calls(
    openai: AsyncOpenAI, model: ScriptedModel, service: RunningServer
) -> None:
    made = await openai.conversations.create()
    model.call("get_weather", {"city": "Rome"}, id="c1", text="I look.")
    model.say("one")
    await openai.responses.create(model="Front", input="1", conversation=made.id)
    listed = [item async for item in openai.conversations.items.list(made.id, order="asc")]
    assert [item.type for item in listed] == ["message", "message", "mcp_call", "message"]
    await openai.conversations.items.delete(str(listed[1].id), conversation_id=made.id)
    rest = [item async for item in openai.conversations.items.list(made.id, order="asc")]
    assert rest == [listed[0], listed[2], listed[3]]
    with pytest.raises(NotFoundError):
        await openai.conversations.items.retrieve(str(listed[1].id), conversation_id=made.id)
    model.say("two")
    await openai.responses.create(model="Front", input="2", conversation=made.id)
    sent = model.requests[2]["messages"]
    assert [(message["role"], message["content"]) for message in sent[1:]] == [
        ("user", "1"), ("assistant", None), ("tool", "sunny in Rome"), ("assistant", "one"), ("user", "2"),
    ]  # fmt: skip
    removed = [e["data"] for e in await service.events(f"/v1/sessions/{made.id}") if e["type"] == "message.removed"]
    assert [(data["content"], data["seqs"]) for data in removed] == [(True, [])]
    # With its last call the reply itself is gone.
    await openai.conversations.items.delete(str(listed[2].id), conversation_id=made.id)
    rest = [item async for item in openai.conversations.items.list(made.id, order="asc", limit=2)]
    assert rest[:2] == [listed[0], listed[3]]
    model.say("three")
    await openai.responses.create(model="Front", input="3", conversation=made.id)
    roles = [message["role"] for message in model.requests[3]["messages"][1:]]
    assert roles == ["user", "assistant", "user", "assistant", "user"]
    assert (await service.get(f"/v1/sessions/{made.id}/verify")).json()["valid"]


async def test_deleting_part_of_run_spares_others(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    tools: Any = [{"type": "function", "name": "open_door", "parameters": {"type": "object", "properties": {}}}]
    model.call("open_door", {}, id="c1")
    first = await openai.responses.create(model="Front", input="Open it.", tools=tools)
    model.call("open_door", {}, id="c2")
    output: Any = {"type": "function_call_output", "output": "open"}
    second = await openai.responses.create(
        model="Front", input=[{**output, "call_id": "c1"}], previous_response_id=first.id, tools=tools
    )
    # While the run goes on, what it did before can be deleted.
    await openai.responses.delete(first.id)
    with pytest.raises(NotFoundError):
        await openai.responses.retrieve(first.id)
    assert await openai.responses.retrieve(second.id) == second
    model.say("Both are open.")
    third = await openai.responses.create(
        model="Front", input=[{**output, "call_id": "c2"}], previous_response_id=second.id, tools=tools
    )
    await openai.responses.delete(third.id)
    with pytest.raises(NotFoundError):
        await openai.responses.retrieve(third.id)
    assert await openai.responses.retrieve(second.id) == second
    await openai.responses.delete(second.id)
    with pytest.raises(NotFoundError):
        await openai.responses.retrieve(second.id)


def decide(request_id: str, approve: bool, **more: Any) -> Any:
    return {"type": "mcp_approval_response", "approval_request_id": request_id, "approve": approve, **more}


async def test_approvals_and_decisions_are_items(
    openai: AsyncOpenAI, model: ScriptedModel, service: RunningServer
) -> None:
    made = await openai.conversations.create()
    model.call("refund", {"order": "A-1"}, id="r1", text="I ask.")
    first = await openai.responses.create(model="Front", input="Refund A-1.", conversation=made.id)
    request = first.output[1]
    assert request.type == "mcp_approval_request"
    listed = [item async for item in openai.conversations.items.list(made.id, order="asc")]
    assert [item.id for item in listed[1:]] == [item.id for item in first.output]
    with pytest.raises(BadRequestError, match="delete its call") as refused:
        await openai.conversations.items.delete(request.id, conversation_id=made.id)
    assert refused.value.param == "item_id"
    model.say("No refund.")
    answer = decide(request.id, False, reason="too late")
    second = await openai.responses.create(model="Front", input=[answer], previous_response_id=first.id)
    given = (await openai.responses.input_items.list(second.id)).data
    assert [item.to_dict() for item in given] == [{**answer, "id": request.id.replace("mcpr_", "mcpa_")}]
    listed = [item async for item in openai.conversations.items.list(made.id, order="asc")]
    kinds = [item.type for item in listed]
    assert kinds == [
        "message", "message", "mcp_approval_request", "mcp_approval_response", "mcp_call", "message",
    ]  # fmt: skip
    assert listed[2].to_dict() == request.to_dict()
    assert listed[3] == await openai.conversations.items.retrieve(str(listed[3].id), conversation_id=made.id)
    # The call is the same, wherever it is shown.
    assert listed[4].to_dict() == second.output[0].to_dict()
    for place in (2, 3):
        with pytest.raises(BadRequestError, match="delete its call"):
            await openai.conversations.items.delete(str(listed[place].id), conversation_id=made.id)
    await openai.conversations.items.delete(str(listed[4].id), conversation_id=made.id)
    rest = [item async for item in openai.conversations.items.list(made.id, order="asc")]
    assert rest == [listed[0], listed[1], listed[5]]
    assert (await service.get(f"/v1/sessions/{made.id}/verify")).json()["valid"]


async def test_past_approvals_may_be_resent(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    made = await openai.conversations.create()
    model.call("refund", {"order": "A-1"}, id="r1")
    first = await openai.responses.create(model="Front", input="Refund A-1.", conversation=made.id)
    model.say("Done.")
    answer = decide(first.output[0].id, True)
    await openai.responses.create(model="Front", input=[answer], conversation=made.id)
    listed = [item.to_dict() async for item in openai.conversations.items.list(made.id, order="asc")]
    model.say("Welcome.")
    history: Any = [*listed, said("user", "Thanks.")]
    again = await openai.responses.create(model="Front", input=history)
    assert again.output_text == "Welcome."
    roles = [message["role"] for message in model.requests[2]["messages"][1:]]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]
    model.say("Welcome again.")
    named: Any = [{"type": "item_reference", "id": item["id"]} for item in listed]
    assert (await openai.responses.create(model="Front", input=[*named, said("user", "Thanks.")])).output


async def test_held_conversation_is_not_deleted(openai: AsyncOpenAI, service: RunningServer) -> None:
    made = await openai.conversations.create()
    await service.client.put(f"/v1/sessions/{made.id}/hold", json={"reason": "case 12"})
    with pytest.raises(ConflictError, match="on hold") as refused:
        await openai.conversations.delete(made.id)
    assert refused.value.code == "on_hold"
    assert (await openai.conversations.retrieve(made.id)).id == made.id


# Pages of a conversation's items: together they are all of them, and each costs what it shows.

ORDERS: tuple[ItemOrder, ...] = ("asc", "desc")


def list_all(state: State, order: ItemOrder = "asc") -> list[Json]:
    return [listed.item for listed in SessionItems("s", state).walk(order)]


def take_out(state: State, dice: Dice) -> State:
    """Without some of its messages, calls and words, as far as the session lets them go."""
    for _ in range(dice.pick(range(6))):
        entry = dice.pick(state.messages or [None])
        calls = [] if entry is None else [call_id for call_id, _, _ in read_tool_calls(entry.message)]
        try:
            seq = 1 if entry is None else entry.seq
            drafts = remove_message(state, seq, dice.pick((None, *calls)), content_only=dice.chance(30))
        except DomainError:
            continue
        state = apply_drafts(state, drafts)
    return state


def read_pages(state: State, order: ItemOrder, limit: int, max_bytes: int) -> list[Json]:
    """All pages, one after the other, as a client asks for them."""
    found: list[Json] = []
    after = None
    while True:
        page = PageQuery(limit, order, after, max_bytes).take_items(SessionItems("s", state))
        assert len(page["data"]) <= limit
        found += page["data"]
        if not page["has_more"]:
            return found
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
        after = page["last_id"]


@settings(max_examples=examples(120))
@given(any_logs(), st.data())
def test_pages_cover_all_items_after_any(log: list[RecordedEvent], data: st.DataObject) -> None:
    dice = DrawnDice(data.draw)
    state = take_out(fold(log), dice)
    shown = list_all(state)
    assert list_all(state, "desc") == shown[::-1]
    for order, all_items in zip(ORDERS, (shown, shown[::-1]), strict=True):
        limit, max_bytes = dice.pick((1, 2, 3, 7, 100)), dice.pick((1, 600, 10**9))
        assert read_pages(state, order, limit, max_bytes) == all_items
    # What was taken out keeps its place: as if it were still there.
    every = list_all(fold(event for event in log if not isinstance(event.fact, MessageRemoved)))
    places = {item["id"]: place for place, item in enumerate(every)}
    assert len(places) == len(every)
    assert shown == [item for item in every if item["id"] in {item["id"] for item in shown}]
    for item_id, place in places.items():
        for order, all_items in zip(ORDERS, (shown, shown[::-1]), strict=True):
            page = PageQuery(3, order, item_id, 10**9).take_items(SessionItems("s", state))
            later = [i for i in all_items if (places[i["id"]] > place if order == "asc" else places[i["id"]] < place)]
            assert (page["data"], page["has_more"]) == (later[:3], len(later) > 3)


@given(any_logs())
def test_every_item_found_by_unique_id(log: list[RecordedEvent]) -> None:
    state = fold(log)
    items = SessionItems("s", state)
    for listed in items.walk():
        assert items.find(listed.item["id"]) == listed
        assert SessionItems("other", state).find(listed.item["id"]) is None
    seq = state.seq + 1
    others = ("", "x", f"msg_s{seq}.s", "msg_s1-7.s", "fc_1-99-0.s", "fco_1-0-99.s", "mcpr_s2-9.s", "resp_1.s")
    assert not [name for name in others if items.find(name) is not None]
    with pytest.raises(Refused, match="there is no item"):
        PageQuery(1, "asc", f"msg_s{seq}.s", 1).take_items(items)


@pytest.mark.parametrize("run_id", ["run_1", "run_s5", "run_", "run", "", "run_é-7", "run_" + "a" * 500, "\ud800"])
def test_run_item_found_by_its_id(run_id: str) -> None:
    place = ItemPlace("conv_1", run_id=run_id, turn=3)
    assert parse_item_id(place.make_id("msg")) == ("msg", place)
    assert parse_item_id(place.at_call(2).make_id("fc")) == ("fc", place.at_call(2))


def list_decided_again(count: int) -> State:
    """A session out of a file in which one call was asked about and decided many times."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    said = MessageAdded(message={"role": "assistant", "tool_calls": [call]}, completion=CompletionRecord())
    asked = ApprovalRequested(tool_call_id="c", name="f", arguments="{}")
    decided = ApprovalDecided(tool_call_id="c", decision="deny")
    facts = [SessionCreated(agent="A"), RunStarted(options=RunOptions()), said, *[asked, decided] * count]
    return apply_drafts(State(), [EventDraft(fact, "r", "A") for fact in facts])


def test_repeatedly_decided_call_shown_once_cheaply() -> None:
    costs = []
    for count in (20, 80):
        state = list_decided_again(count)
        with count_steps() as counted:
            items = list_all(state)
        assert [item["type"] for item in items] == ["mcp_approval_request", "mcp_approval_response"]
        costs.append(counted.total())
    assert costs[1] < 6 * costs[0]
