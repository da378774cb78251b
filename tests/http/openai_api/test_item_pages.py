"""Pages of a conversation's items: together they are all of them, and each costs what it shows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI

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
from swarmkeep.openai.items import ItemPlace, parse_item_id, show_input_content, show_output_text
from swarmkeep.openai.output_items import ItemOrder, SessionItems, list_session_page
from swarmkeep.openai.problems import Refused
from tests.http.server import RunningServer
from tests.support.calls import count_calls, count_steps
from tests.support.hypothesis_profiles import examples
from tests.support.logs import Dice, DrawnDice, any_logs
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

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
        page = list_session_page(SessionItems("s", state), limit=limit, order=order, after=after, max_bytes=max_bytes)
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
            page = list_session_page(SessionItems("s", state), limit=3, order=order, after=item_id, max_bytes=10**9)
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
        list_session_page(items, limit=1, order="asc", after=f"msg_s{seq}.s", max_bytes=1)


@pytest.mark.parametrize("run_id", ["run_1", "run_s5", "run_", "run", "", "run_é-7", "run_" + "a" * 500, "\ud800"])
def test_run_item_found_by_its_id(run_id: str) -> None:
    place = ItemPlace("conv_1", run_id=run_id, turn=3)
    assert parse_item_id(place.make_id("msg")) == ("msg", place)
    assert parse_item_id(place.at_call(2).make_id("fc")) == ("fc", place.at_call(2))


async def test_conversation_page_reads_only_shown(
    openai: AsyncOpenAI, service: RunningServer, model: ScriptedModel
) -> None:
    said: list[Any] = []
    for number in range(100):
        call = {"type": "function_call", "call_id": f"c{number}", "name": "look", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": f"c{number}", "output": "42"}
        said += [{"role": "user", "content": "Look."}, call, output, {"role": "assistant", "content": "42."}]
    made = await openai.conversations.create(items=said)
    for _ in range(3):
        model.call("get_weather", {"city": "Rome"})
        model.say("Sunny.")
        await openai.responses.create(model="Front", input="Weather?", conversation=made.id)

    async def read(ask: Callable[[], Awaitable[Any]]) -> Any:
        with count_calls() as counted:
            answer = await ask()
        contents = counted[show_input_content.__code__] + counted[show_output_text.__code__]
        assert contents <= 12
        # Of the messages that are not shown, none is looked into.
        assert counted[read_tool_calls.__code__] <= 25
        return answer

    items = openai.conversations.items
    await items.list(made.id, limit=1)
    newest = await read(lambda: items.list(made.id, limit=10))
    oldest = await read(lambda: items.list(made.id, limit=10, order="asc"))
    middle = await read(lambda: items.list(made.id, limit=10, order="asc", after=oldest.last_id))
    assert [item.type for item in middle.data].count("function_call_output") == 3
    for item in (newest.data[1], middle.data[2]):
        assert await read(lambda item=item: items.retrieve(item.id, conversation_id=made.id)) == item  # type: ignore[misc]
    added = await read(lambda: items.create(made.id, items=[{"role": "user", "content": "And?"}]))
    assert (await read(lambda: items.list(made.id, limit=1))).data == added.data
    await read(lambda: items.delete(middle.data[2].id, conversation_id=made.id))
    after = await read(lambda: items.list(made.id, limit=10, order="asc", after=middle.data[2].id))
    assert middle.data[-1].id in [item.id for item in after.data]
    named: Any = [{"type": "item_reference", "id": item.id} for item in oldest.data[:4]]
    model.say("Right.")
    await read(lambda: openai.responses.create(model="Front", input=[*named, {"role": "user", "content": "Right?"}]))


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
