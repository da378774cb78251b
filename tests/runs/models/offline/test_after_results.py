"""What the offline model makes of results and of handoffs."""

from __future__ import annotations

import json

from openai import OpenAI

from swarmkeep.models.offline.server import make_sync_offline_client
from tests.runs.models.offline.tools import WEATHER, MiniatureRun, make_tool


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
