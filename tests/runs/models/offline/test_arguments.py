"""The offline model finds a call's arguments in what was said, and asks for those that are missing."""

from __future__ import annotations

import pytest
from openai import OpenAI

from swarmkeep.events.codec import Json
from tests.runs.models.offline.tools import (
    DISCOUNT,
    EMAIL,
    HOTEL,
    REFUND,
    WEATHER,
    MiniatureRun,
    find_call,
    make_tool,
)


@pytest.mark.parametrize(
    ("text", "order_id"),
    [
        ("where is order ORD-123?", "ORD-123"),
        ("where is my order #123?", "123"),
        ("where is order number 42", "42"),
        ("order status for 0815 please", "0815"),
    ],
)
def test_order_ids_are_found(client: OpenAI, text: str, order_id: str) -> None:
    status = make_tool("get_order_status", "Look up where an order is.", "order_id", order_id="string")
    assert find_call(client, [status], text) == ("get_order_status", {"order_id": order_id})


def test_each_type_of_argument_is_found(client: OpenAI) -> None:
    text = "Book a room with a double bed in San José for 3 nights from 2025-05-01 without breakfast, budget 99.50"
    assert find_call(client, [HOTEL], text) == (
        "book_room",
        {
            "city": "San José",
            "nights": 3,
            "arrival_date": "2025-05-01",
            "room": "double_bed",
            "breakfast": False,
            "budget": 99.5,
        },
    )


def test_ids_are_distinguished_by_name(client: OpenAI) -> None:
    refund = make_tool("refund_item", "", "user_id item_id", user_id="integer", item_id="integer")
    assert find_call(client, [refund], "refund item 3 for user 1") == ("refund_item", {"user_id": 1, "item_id": 3})


def test_addresses_subjects_and_quotes_are_found(client: OpenAI) -> None:
    assert find_call(client, [EMAIL], 'Send an email to bob@example.org about lunch saying "see you at one"') == (
        "send_email",
        {"recipient": "bob@example.org", "subject": "lunch", "body": "see you at one"},
    )


def test_free_text_keeps_user_words(client: OpenAI) -> None:
    ticket = make_tool("submit_ticket", "Open a ticket.", "description", description="string")
    assert find_call(client, [ticket], "Submit a ticket: the door squeaks") == (
        "submit_ticket",
        {"description": "Submit a ticket: the door squeaks"},
    )


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
