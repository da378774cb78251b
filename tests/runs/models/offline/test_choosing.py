"""The offline model chooses a function: by its words, by what a handoff is for, and by the tool_choice."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import OpenAI

from swarmkeep.models.offline.answers import DISCLAIMER
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


def test_words_choose_function_and_arguments(client: OpenAI) -> None:
    assert find_call(client, [EMAIL, WEATHER], "What's the weather in New York?") == (
        "get_weather",
        {"location": "New York"},
    )


def test_synonyms_and_word_forms_count(client: OpenAI) -> None:
    assert find_call(client, [WEATHER, TO_SALES, DISCOUNT], "I'm thinking of buying a bee") == ("transfer_to_sales", {})
    assert find_call(client, [TO_SALES, REFUND], "Refunding item_7, please") == (
        "process_refund",
        {"item_id": "item_7"},
    )


def test_better_fitting_handoff_is_made(client: OpenAI) -> None:
    tools = [make_tool("list_flights", "List all flights."), make_tool("transfer_to_lost_baggage")]
    assert find_call(client, tools, "my luggage from the last flight is lost") == ("transfer_to_lost_baggage", {})
    assert find_call(client, tools, "which flights are there?") == ("list_flights", {})


def test_own_function_beats_equal_handoff(client: OpenAI) -> None:
    assert find_call(client, [make_tool("transfer_to_billing"), make_tool("get_billing")], "billing") == (
        "get_billing",
        {},
    )


def test_handoff_may_fit_by_language(client: OpenAI) -> None:
    spanish = make_tool("transfer_to_spanish_agent", "Transfer spanish speaking users immediately.")
    assert find_call(client, [spanish], "Hola. ¿Como estás?") == ("transfer_to_spanish_agent", {})


def test_single_letter_can_name_agent(client: OpenAI) -> None:
    tools = [make_tool("transfer_to_agent_b"), make_tool("transfer_to_agent_c")]
    assert find_call(client, tools, "I want to talk to agent C.") == ("transfer_to_agent_c", {})


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


def test_tool_choice_none_calls_nothing(client: OpenAI) -> None:
    assert find_call(client, [WEATHER], "weather in Rome", tool_choice="none") is None


def test_only_allowed_tools_are_called(client: OpenAI) -> None:
    tools = [WEATHER, EMAIL, DISCOUNT]
    forced = find_call(client, tools, "weather in Rome", tool_choice=allow("apply_discount"))
    assert forced is not None
    assert forced[0] == "apply_discount"
    assert find_call(client, tools, "weather in Rome", tool_choice=allow("apply_discount", mode="auto")) is None


def test_tool_choice_required_calls_something(client: OpenAI) -> None:
    assert find_call(client, [EMAIL, DISCOUNT], "hm", tool_choice="required") is not None


def test_named_function_is_always_called(client: OpenAI) -> None:
    choice = {"type": "function", "function": {"name": "book_room"}}
    assert find_call(client, [WEATHER, HOTEL], "weather in Rome", tool_choice=choice) == (
        "book_room",
        {"city": "Rome", "nights": 0, "arrival_date": "1970-01-01"},
    )


def test_allowed_tools_list_restricts_calls(client: OpenAI) -> None:
    def allow(mode: str, name: str) -> dict[str, Any]:
        tools = [{"type": "function", "function": {"name": name}}]
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}

    offered = [WEATHER, HOTEL]
    called = find_call(client, offered, "weather in Rome", tool_choice=allow("required", "book_room"))
    assert called is not None
    assert called[0] == "book_room"
    weather = WEATHER["function"]["name"]
    called = find_call(client, offered, "weather in Rome", tool_choice=allow("auto", weather))
    assert called is not None
    assert called[0] == weather
    assert find_call(client, offered, "hm", tool_choice=allow("auto", weather)) is None
    with pytest.raises(openai.BadRequestError, match=r"tool_choice\.allowed_tools"):
        find_call(client, offered, "weather in Rome", tool_choice=allow("auto", "unknown"))


def test_forced_choice_eventually_ends(client: OpenAI) -> None:
    conversation = MiniatureRun(client, [DISCOUNT])
    conversation.messages.append({"role": "user", "content": "cheaper, please"})
    message = conversation.ask(tool_choice="required")
    conversation.messages += [
        {"role": "assistant", "content": None, "tool_calls": [message.tool_calls[0].model_dump()]},
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "11 % off"},
    ]
    assert "11 % off" in conversation.ask(tool_choice="required").content
