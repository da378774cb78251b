"""The offline model chooses a function, finds its arguments, and goes on after results and handoffs."""

from __future__ import annotations

import json

import openai
import pytest
from openai import OpenAI

from swarmkeep.events.codec import Json
from swarmkeep.models.offline.answers import DISCLAIMER
from swarmkeep.models.offline.server import make_sync_offline_client
from tests.runs.models.offline.tools import (
    DISCOUNT,
    EMAIL,
    HOTEL,
    REFUND,
    TO_SALES,
    WEATHER,
    MiniatureRun,
    allow,
    find_call,
    make_tool,
)

STATUS = make_tool("get_order_status", "Look up where an order is.", "order_id", order_id="string")
FLIGHTS = [make_tool("list_flights", "List all flights."), make_tool("transfer_to_lost_baggage")]
BILLING = [make_tool("transfer_to_billing"), make_tool("get_billing")]
SPANISH = make_tool("transfer_to_spanish_agent", "Transfer spanish speaking users immediately.")
LETTERS = [make_tool("transfer_to_agent_b"), make_tool("transfer_to_agent_c")]
TICKET = make_tool("submit_ticket", "Open a ticket.", "description", description="string")
REFUND_ITEM = make_tool("refund_item", "", "user_id item_id", user_id="integer", item_id="integer")
LONG_STAY = "Book a room with a double bed in San José for 3 nights from 2025-05-01 without breakfast, budget 99.50"
CHOICES: list[tuple[list[Json], str, str, Json]] = [
    ([EMAIL, WEATHER], "What's the weather in New York?", "get_weather", {"location": "New York"}),
    # Synonyms, and other forms of a word.
    ([WEATHER, TO_SALES, DISCOUNT], "I'm thinking of buying a bee", "transfer_to_sales", {}),
    ([TO_SALES, REFUND], "Refunding item_7, please", "process_refund", {"item_id": "item_7"}),
    # Handoffs: the one that fits better, but a function of one's own before an equal one; by language, or a letter.
    (FLIGHTS, "my luggage from the last flight is lost", "transfer_to_lost_baggage", {}),
    (FLIGHTS, "which flights are there?", "list_flights", {}),
    (BILLING, "billing", "get_billing", {}),
    ([SPANISH], "Hola. ¿Como estás?", "transfer_to_spanish_agent", {}),
    (LETTERS, "I want to talk to agent C.", "transfer_to_agent_c", {}),
    # Arguments: ids, values of each type, ids told apart by name, addresses and quotes, and free text.
    ([STATUS], "where is order ORD-123?", "get_order_status", {"order_id": "ORD-123"}),
    ([STATUS], "where is my order #123?", "get_order_status", {"order_id": "123"}),
    ([STATUS], "where is order number 42", "get_order_status", {"order_id": "42"}),
    ([STATUS], "order status for 0815 please", "get_order_status", {"order_id": "0815"}),
    (
        [HOTEL],
        LONG_STAY,
        "book_room",
        {"city": "San José", "nights": 3, "arrival_date": "2025-05-01", "room": "double_bed", "breakfast": False,
         "budget": 99.5},
    ),
    ([REFUND_ITEM], "refund item 3 for user 1", "refund_item", {"user_id": 1, "item_id": 3}),
    (
        [EMAIL],
        'Send an email to bob@example.org about lunch saying "see you at one"',
        "send_email",
        {"recipient": "bob@example.org", "subject": "lunch", "body": "see you at one"},
    ),
    ([TICKET], "Submit a ticket: a squeak", "submit_ticket", {"description": "Submit a ticket: a squeak"}),
]  # fmt: skip


@pytest.mark.parametrize(("tools", "text", "name", "arguments"), CHOICES, ids=[text for _, text, _, _ in CHOICES])
def test_words_choose_function_and_arguments(
    client: OpenAI, tools: list[Json], text: str, name: str, arguments: Json
) -> None:
    assert find_call(client, tools, text) == (name, arguments)


def test_without_fitting_function_it_introduces_itself(client: OpenAI) -> None:
    conversation = MiniatureRun(client, [WEATHER, EMAIL])
    first = conversation.say("Hello!")
    assert DISCLAIMER in first
    assert "not an LLM" in first
    assert "get weather or send email" in first
    second = conversation.say("tell me a joke")
    assert DISCLAIMER not in second
    assert "get weather" in second


def test_without_any_function_it_still_answers(client: OpenAI) -> None:
    assert DISCLAIMER in MiniatureRun(client, []).say("hi")


# The tool_choice.


def test_tool_choice_none_or_required_holds(client: OpenAI) -> None:
    assert find_call(client, [WEATHER], "weather in Rome", tool_choice="none") is None
    assert find_call(client, [EMAIL, DISCOUNT], "hm", tool_choice="required") is not None


def test_named_function_is_always_called(client: OpenAI) -> None:
    choice = {"type": "function", "function": {"name": "book_room"}}
    assert find_call(client, [WEATHER, HOTEL], "weather in Rome", tool_choice=choice) == (
        "book_room",
        {"city": "Rome", "nights": 0, "arrival_date": "1970-01-01"},
    )


@pytest.mark.parametrize(
    ("mode", "name", "text", "called"),
    [
        ("required", "apply_discount", "weather in Rome", "apply_discount"),
        ("auto", "apply_discount", "weather in Rome", None),
        ("auto", "get_weather", "weather in Rome", "get_weather"),
        ("auto", "get_weather", "hm", None),
    ],
)
def test_allowed_tools_list_restricts_calls(
    client: OpenAI, mode: str, name: str, text: str, called: str | None
) -> None:
    found = find_call(client, [WEATHER, EMAIL, DISCOUNT], text, tool_choice=allow(name, mode=mode))
    assert (found and found[0]) == called


def test_unknown_allowed_tool_is_refused(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"tool_choice\.allowed_tools"):
        find_call(client, [WEATHER], "weather in Rome", tool_choice=allow("unknown", mode="auto"))


def test_forced_choice_eventually_ends(client: OpenAI) -> None:
    conversation = MiniatureRun(client, [DISCOUNT])
    conversation.messages.append({"role": "user", "content": "cheaper, please"})
    message = conversation.ask(tool_choice="required")
    conversation.messages += [
        {"role": "assistant", "content": None, "tool_calls": [message.tool_calls[0].model_dump()]},
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "11 % off"},
    ]
    assert "11 % off" in conversation.ask(tool_choice="required").content


# The offline model finds a call's arguments in what was said, and asks for those that are missing.


def test_lists_references_and_objects_are_filled(client: OpenAI) -> None:
    order = make_tool(
        "place_order",
        "Place an order.",
        "lines priority address",
        lines={"type": "array", "items": {"type": "integer"}},
        priority={"$ref": "#/$defs/Priority"},
        address={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    )
    order["function"]["parameters"]["$defs"] = {"Priority": {"type": "string", "enum": ["low", "high"]}}
    assert find_call(client, [order], "Place a high priority order of 4, 8 and 15 to be sent to our shop in Oslo") == (
        "place_order",
        {"lines": [4, 8, 15], "priority": "high", "address": {"city": "Oslo"}},
    )


def test_missing_arguments_are_asked_and_taken(client: OpenAI) -> None:
    conversation = MiniatureRun(client, [WEATHER, REFUND])
    answer = conversation.say("Will it rain?")
    assert conversation.called == []
    assert "the location" in answer
    assert answer.endswith("?")
    conversation.say("it's oslo")
    assert conversation.called == [("get_weather", {"location": "oslo"})]


def test_answer_may_bring_extra_arguments(client: OpenAI) -> None:
    conversation = MiniatureRun(client, [REFUND, DISCOUNT])
    assert "the item id" in conversation.say("I want my money back")
    conversation.say("item_99, because it was too expensive")
    assert conversation.called == [("process_refund", {"item_id": "item_99", "reason": "it was too expensive"})]


def test_declining_drops_the_question(client: OpenAI) -> None:
    conversation = MiniatureRun(client, [REFUND])
    conversation.say("I want a refund")
    conversation.say("no, never mind")
    assert conversation.called == []


def test_arguments_may_come_from_earlier_messages(client: OpenAI) -> None:
    conversation = MiniatureRun(client, [REFUND, make_tool("track_item", "", "item_id", item_id="string")])
    conversation.say("where can I track item_12?")
    conversation.say("ok, then refund it")
    assert conversation.called == [("process_refund", {"item_id": "item_12"})]


def test_follow_up_repeats_request_with_new_argument(client: OpenAI) -> None:
    conversation = MiniatureRun(client, [WEATHER])
    conversation.say("How is the weather in Rome?")
    conversation.say("and in Paris?")
    assert conversation.called == [("get_weather", {"location": "Paris"})]


@pytest.mark.parametrize("schema", [{}, {"type": 5}, {"anyOf": 1}, {"enum": "x"}, {"$ref": "#/no/where"}, {"items": 3}])
def test_odd_schemas_do_no_harm(client: OpenAI, schema: Json) -> None:
    assert find_call(client, [make_tool("frobnicate", "", "x", x=schema)], "frobnicate 12 things") is not None


# What the offline model makes of results and of handoffs.


def test_results_are_quoted(client: OpenAI) -> None:
    conversation = MiniatureRun(client, [WEATHER])
    conversation.results["get_weather"] = '{"temp": 67}'
    assert '{"temp": 67}' in conversation.say("weather in Rome")


def test_several_results_are_all_quoted(client: OpenAI) -> None:
    conversation = MiniatureRun(client, [WEATHER])
    calls = [
        {"id": f"call_{n}", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}} for n in (1, 2)
    ]
    conversation.messages += [
        {"role": "user", "content": "weather in Rome and Oslo"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_2", "content": "rain in Oslo"},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "sun in Rome"}]},
    ]
    answer = conversation.ask().content
    assert "sun in Rome" in answer
    assert "rain in Oslo" in answer


def test_new_agent_continues_the_same_message(shop: MiniatureRun) -> None:
    shop.say("I want a refund for item_4")
    assert shop.called == [("transfer_to_refunds", {}), ("process_refund", {"item_id": "item_4"})]


def test_idle_new_agent_greets_by_name(shop: MiniatureRun) -> None:
    answer = shop.say("I would like to buy something")
    assert shop.called == [("transfer_to_sales", {})]
    assert answer.startswith("Hello, this is Sales Agent.")


def test_unfit_request_returns_to_previous_agent(shop: MiniatureRun) -> None:
    shop.say("I want to buy a bee")
    shop.say("I want my money back for item_9")
    assert [name for name, _ in shop.called] == ["transfer_back_to_triage", "transfer_to_refunds", "process_refund"]


def test_agents_do_not_pass_messages_in_circles(shop: MiniatureRun) -> None:
    shop.say("I want to buy a bee")
    shop.say("Sing me a song about triage")
    assert len(shop.called) <= 2


def test_call_is_made_once_per_message(client: OpenAI) -> None:
    conversation = MiniatureRun(client, [make_tool("ping", "Ping the server.")])
    conversation.agents["ping"] = ("The same again", "You are the same.", conversation.tools)
    conversation.say("ping the server")
    assert conversation.called == [("ping", {})]
    conversation.say("ping the server")
    assert conversation.called == [("ping", {})]


def test_words_fit_the_requested_format() -> None:
    schema = {
        "type": "object",
        "properties": {
            "email": {"type": "string", "format": "email"},
            "count": {"type": "integer"},
            "urgent": {"type": "boolean"},
            "inner": {"type": "object", "properties": {"kind": {"enum": ["a", "b"]}}, "required": ["kind"]},
            "more": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["email", "count", "urgent", "inner", "more"],
        "additionalProperties": False,
    }
    with make_sync_offline_client() as client:
        answer = client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "Send 3 to ann@example.com"}],
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}},
        )
        values = json.loads(answer.choices[0].message.content or "")
        assert isinstance(values.pop("more"), list)
        assert values == {"email": "ann@example.com", "count": 3, "urgent": False, "inner": {"kind": "a"}}
        words = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Hi"}], response_format={"type": "json_object"}
        )
        assert json.loads(words.choices[0].message.content or "")["answer"]
