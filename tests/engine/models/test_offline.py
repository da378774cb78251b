"""The offline model, asked through the openai package's own clients."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI, OpenAI

from swarmkeep.domain.codec import Json
from swarmkeep.engine.models.offline import (
    OFFLINE_MODEL,
    OfflineTransport,
    make_offline_client,
    make_sync_offline_client,
)
from swarmkeep.engine.models.offline.answer import DISCLAIMER
from swarmkeep.engine.models.offline.message_rules import find_message_problems
from swarmkeep.engine.models.offline.request_rules import find_request_problems

T = TypeVar("T")


def make_tool(name: str, description: str = "", required: str = "", /, **properties: Any) -> Json:
    declared = {key: value if isinstance(value, dict) else {"type": value} for key, value in properties.items()}
    parameters = {"type": "object", "properties": declared, "required": required.split()}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def allow(*names: str, mode: str = "required") -> Json:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


WEATHER = make_tool(
    "get_weather",
    "Get the current weather in a given location. Location MUST be a city.",
    "location",
    location="string",
    time="string",
)
EMAIL = make_tool(
    "send_email", "Send an email.", "recipient subject body", recipient="string", subject="string", body="string"
)
TO_SALES = make_tool("transfer_to_sales")
TO_REFUNDS = make_tool("transfer_to_refunds")
REFUND = make_tool("process_refund", "Refund an item.", "item_id", item_id="string", reason="string")
DISCOUNT = make_tool("apply_discount", "Apply a discount to the user's cart.")
BACK = make_tool(
    "transfer_back_to_triage",
    "Call this function if a user is asking about a topic that is not handled by the current agent.",
)


class MiniatureRun:
    """A run in miniature: calls are answered from `results`, and a handoff changes the agent."""

    def __init__(self, client: OpenAI, tools: list[Json], instructions: str = "You are a helpful agent.") -> None:
        self.client = client
        self.tools = tools
        self.messages: list[Any] = [{"role": "system", "content": instructions}]
        self.results: dict[str, str] = {}
        self.agents: dict[str, tuple[str, str, list[Json]]] = {}
        self.called: list[tuple[str, Json]] = []

    def ask(self, **options: Any) -> Any:
        if self.tools:
            options["tools"] = self.tools
        return self.client.chat.completions.create(model="gpt-4o", messages=self.messages, **options).choices[0].message

    def say(self, text: str) -> str:
        """The last words, after at most eight turns; the calls made are in `called`."""
        self.messages.append({"role": "user", "content": text})
        self.called = []
        for _ in range(8):
            message = self.ask()
            if not message.tool_calls:
                self.messages.append({"role": "assistant", "content": message.content})
                return str(message.content)
            (call,) = message.tool_calls
            self.messages.append({"role": "assistant", "content": None, "tool_calls": [call.model_dump()]})
            self.called.append((call.function.name, json.loads(call.function.arguments)))
            self.messages.append({"role": "tool", "tool_call_id": call.id, "content": self._run(call.function.name)})
        raise AssertionError(f"it goes on and on: {self.called}")

    def _run(self, name: str) -> str:
        if name not in self.agents:
            return self.results.get(name, "done")
        agent, instructions, self.tools = self.agents[name]
        self.messages[0] = {"role": "system", "content": instructions}
        return json.dumps({"assistant": agent})


@pytest.fixture
def client() -> Iterator[OpenAI]:
    with make_sync_offline_client() as made:
        yield made


@pytest.fixture
async def async_client() -> AsyncIterator[AsyncOpenAI]:
    async with make_offline_client() as made:
        yield made


@pytest.fixture
def shop(client: OpenAI) -> MiniatureRun:
    conversation = MiniatureRun(client, [TO_SALES, TO_REFUNDS], "Find out who can help, and hand over.")
    conversation.agents = {
        "transfer_to_sales": ("Sales Agent", "Be enthusiastic about bees.", [BACK]),
        "transfer_to_refunds": ("Refunds Agent", "You are a refunds agent.", [REFUND, DISCOUNT, BACK]),
        "transfer_back_to_triage": ("Triage Agent", "Find out who can help.", [TO_SALES, TO_REFUNDS]),
    }
    return conversation


def find_call(client: OpenAI, tools: list[Json], text: str, **options: Any) -> tuple[str, Json] | None:
    """The call that a first message leads to."""
    conversation = MiniatureRun(client, tools)
    conversation.messages.append({"role": "user", "content": text})
    calls = conversation.ask(**options).tool_calls
    return (calls[0].function.name, json.loads(calls[0].function.arguments)) if calls else None


# Choosing a function.


def test_words_choose_the_function_and_its_arguments(client: OpenAI) -> None:
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


def test_a_handoff_is_made_when_its_words_fit_better(client: OpenAI) -> None:
    tools = [make_tool("list_flights", "List all flights."), make_tool("transfer_to_lost_baggage")]
    assert find_call(client, tools, "my luggage from the last flight is lost") == ("transfer_to_lost_baggage", {})
    assert find_call(client, tools, "which flights are there?") == ("list_flights", {})


def test_an_own_function_goes_before_a_handoff_that_fits_alike(client: OpenAI) -> None:
    assert find_call(client, [make_tool("transfer_to_billing"), make_tool("get_billing")], "billing") == (
        "get_billing",
        {},
    )


def test_another_language_can_be_what_a_handoff_is_for(client: OpenAI) -> None:
    spanish = make_tool("transfer_to_spanish_agent", "Transfer spanish speaking users immediately.")
    assert find_call(client, [spanish], "Hola. ¿Como estás?") == ("transfer_to_spanish_agent", {})


def test_a_single_letter_can_name_an_agent(client: OpenAI) -> None:
    tools = [make_tool("transfer_to_agent_b"), make_tool("transfer_to_agent_c")]
    assert find_call(client, tools, "I want to talk to agent C.") == ("transfer_to_agent_c", {})


def test_without_a_fitting_function_it_says_what_it_is_and_can(client: OpenAI) -> None:
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


# Arguments.


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


HOTEL = make_tool(
    "book_room",
    "Book a hotel room.",
    "city nights arrival_date",
    city="string",
    nights="integer",
    arrival_date={"type": "string", "format": "date"},
    room={"enum": ["single", "double_bed"], "type": "string"},
    breakfast={"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    budget="number",
)


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


def test_ids_are_told_apart_by_their_names(client: OpenAI) -> None:
    refund = make_tool("refund_item", "", "user_id item_id", user_id="integer", item_id="integer")
    assert find_call(client, [refund], "refund item 3 for user 1") == ("refund_item", {"user_id": 1, "item_id": 3})


def test_addresses_subjects_and_quotes_are_found(client: OpenAI) -> None:
    assert find_call(client, [EMAIL], 'Send an email to bob@example.org about lunch saying "see you at one"') == (
        "send_email",
        {"recipient": "bob@example.org", "subject": "lunch", "body": "see you at one"},
    )


def test_free_text_is_the_users_own_words(client: OpenAI) -> None:
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


def test_missing_arguments_are_asked_for_by_name_and_taken_from_the_answer(client: OpenAI) -> None:
    conversation = MiniatureRun(client, [WEATHER, REFUND])
    answer = conversation.say("Will it rain?")
    assert conversation.called == []
    assert "the location" in answer
    assert answer.endswith("?")
    conversation.say("it's oslo")
    assert conversation.called == [("get_weather", {"location": "oslo"})]


def test_an_answer_may_bring_more_than_was_asked_for(client: OpenAI) -> None:
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


def test_a_follow_up_repeats_the_last_request_with_another_argument(client: OpenAI) -> None:
    conversation = MiniatureRun(client, [WEATHER])
    conversation.say("How is the weather in Rome?")
    conversation.say("and in Paris?")
    assert conversation.called == [("get_weather", {"location": "Paris"})]


@pytest.mark.parametrize("schema", [{}, {"type": 5}, {"anyOf": 1}, {"enum": "x"}, {"$ref": "#/no/where"}, {"items": 3}])
def test_odd_schemas_do_no_harm(client: OpenAI, schema: Json) -> None:
    assert find_call(client, [make_tool("frobnicate", "", "x", x=schema)], "frobnicate 12 things") is not None


# After results.


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


def test_a_new_agent_goes_on_with_the_same_message(shop: MiniatureRun) -> None:
    shop.say("I want a refund for item_4")
    assert shop.called == [("transfer_to_refunds", {}), ("process_refund", {"item_id": "item_4"})]


def test_a_new_agent_with_nothing_to_do_greets_by_name(shop: MiniatureRun) -> None:
    answer = shop.say("I would like to buy something")
    assert shop.called == [("transfer_to_sales", {})]
    assert answer.startswith("Hello, this is Sales Agent.")


def test_what_an_agent_cannot_do_goes_back_to_where_it_came_from(shop: MiniatureRun) -> None:
    shop.say("I want to buy a bee")
    shop.say("I want my money back for item_9")
    assert [name for name, _ in shop.called] == ["transfer_back_to_triage", "transfer_to_refunds", "process_refund"]


def test_agents_do_not_pass_a_message_round_in_circles(shop: MiniatureRun) -> None:
    shop.say("I want to buy a bee")
    shop.say("Sing me a song about triage")
    assert len(shop.called) <= 2


def test_the_same_call_is_not_made_twice_for_one_message(client: OpenAI) -> None:
    conversation = MiniatureRun(client, [make_tool("ping", "Ping the server.")])
    conversation.agents["ping"] = ("The same again", "You are the same.", conversation.tools)
    conversation.say("ping the server")
    assert conversation.called == [("ping", {})]
    conversation.say("ping the server")
    assert conversation.called == [("ping", {})]


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


def test_a_named_function_is_called_whatever_was_said(client: OpenAI) -> None:
    choice = {"type": "function", "function": {"name": "book_room"}}
    assert find_call(client, [WEATHER, HOTEL], "weather in Rome", tool_choice=choice) == (
        "book_room",
        {"city": "Rome", "nights": 0, "arrival_date": "1970-01-01"},
    )


def test_of_allowed_tools_only_these_are_called(client: OpenAI) -> None:
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


def test_a_forced_choice_does_not_go_on_for_ever(client: OpenAI) -> None:
    conversation = MiniatureRun(client, [DISCOUNT])
    conversation.messages.append({"role": "user", "content": "cheaper, please"})
    message = conversation.ask(tool_choice="required")
    conversation.messages += [
        {"role": "assistant", "content": None, "tool_calls": [message.tool_calls[0].model_dump()]},
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "11 % off"},
    ]
    assert "11 % off" in conversation.ask(tool_choice="required").content


# The wire.


def test_responses_say_who_answered_and_how_much_was_said(client: OpenAI) -> None:
    completion = client.chat.completions.create(
        model="gpt-4o",
        messages=[{"role": "system", "content": "one two"}, {"role": "user", "content": "three four five"}],
    )
    assert completion.model == OFFLINE_MODEL
    assert "offline" in str(completion.system_fingerprint)
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == 5
    assert completion.usage.completion_tokens == len(str(completion.choices[0].message.content).split(" "))
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens


def test_a_stream_says_what_a_whole_answer_says(client: OpenAI) -> None:
    ask: Json = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hello you"}], "tools": [WEATHER]}
    whole = client.chat.completions.create(**ask)
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert len(chunks) > 10
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1


async def test_calls_stream_in_pieces(async_client: AsyncOpenAI) -> None:
    ask: Json = {"messages": [{"role": "user", "content": "weather in San Francisco tomorrow"}], "tools": [WEATHER]}
    fragments = []
    reasons = []
    async for chunk in await async_client.chat.completions.create(model="gpt-4o", **ask, stream=True):
        assert chunk.usage is None
        fragments += chunk.choices[0].delta.tool_calls or []
        reasons.append(chunk.choices[0].finish_reason)
    assert reasons[-1] == "tool_calls"
    assert len(fragments) > 2
    assert fragments[0].function is not None
    assert (fragments[0].index, fragments[0].function.name) == (0, "get_weather")
    arguments = "".join(str(piece.function.arguments) for piece in fragments if piece.function)
    assert json.loads(arguments) == {"location": "San Francisco", "time": "tomorrow"}


async def test_the_asynchronous_client_answers_alike(async_client: AsyncOpenAI, client: OpenAI) -> None:
    ask: Json = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}], "tools": [WEATHER]}
    answers = [await async_client.chat.completions.create(**ask), client.chat.completions.create(**ask)]
    assert answers[0].choices[0].message == answers[1].choices[0].message
    assert [model.id for model in (await async_client.models.list()).data] == [OFFLINE_MODEL]


def test_the_raw_stream_ends_with_done() -> None:
    with httpx2.Client(transport=OfflineTransport(), base_url="http://x") as http:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        with http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = [line for line in response.iter_lines() if line]
    assert response.headers["content-type"] == "text/event-stream"
    assert lines[-1] == "data: [DONE]"
    assert all(line.startswith("data: ") for line in lines)


def test_ids_are_never_used_twice_and_are_the_same_in_another_process() -> None:
    def ids() -> list[tuple[str, str]]:
        with make_sync_offline_client() as client:
            ask: Json = {"messages": [{"role": "user", "content": "weather in Rome"}], "tools": [WEATHER]}
            completions = [client.chat.completions.create(model="gpt-4o", **ask) for _ in range(3)]
        return [(one.id, (one.choices[0].message.tool_calls or [])[0].id) for one in completions]

    first = ids()
    assert first == ids()
    assert len({completion for completion, _ in first}) == len({call for _, call in first}) == 3
    assert all(len(call) <= 40 for _, call in first)


def test_the_delay_between_chunks_is_read_at_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    assert OfflineTransport().delay == 0
    monkeypatch.setenv("SWARMKEEP_OFFLINE_DELAY", "0.001")
    assert OfflineTransport().delay == 0.001
    assert OfflineTransport(delay=0).delay == 0
    with make_sync_offline_client() as client:
        ask: Json = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        started = time.perf_counter()
        chunks = len(list(client.chat.completions.create(**ask, stream=True)))
        assert time.perf_counter() - started > 0.001 * chunks


@pytest.mark.parametrize("delay", ["soon", "-1", "nan", "inf"])
def test_a_senseless_delay_is_refused(monkeypatch: pytest.MonkeyPatch, delay: str) -> None:
    monkeypatch.setenv("SWARMKEEP_OFFLINE_DELAY", delay)
    with pytest.raises(ValueError, match="SWARMKEEP_OFFLINE_DELAY"):
        OfflineTransport()


def test_a_long_history_costs_little() -> None:
    def seconds(rounds: int) -> float:
        turn = [{"role": "user", "content": "and now?"}, {"role": "assistant", "content": "Nothing has changed."}]
        body = {"model": "m", "messages": [*turn * rounds, {"role": "user", "content": "weather in Rome"}]}
        request = httpx2.Request("POST", "http://x/v1/chat/completions", json={**body, "tools": [WEATHER]})
        request.read()
        transport = OfflineTransport()
        taken = []
        for _ in range(5):
            started = time.process_time()
            assert transport.handle_request(request).status_code == 200
            taken.append(time.process_time() - started)
        return min(taken)

    assert seconds(2500) < 0.1


def test_of_what_references_make_of_a_schema_little_is_looked_at(client: OpenAI) -> None:
    def make_object(name: str, inner: Json) -> Json:
        names = [f"{name}{number}" for number in range(20)]
        return {"type": "object", "properties": dict.fromkeys(names, inner), "required": names}

    within = {"$defs": {"y": make_object("y", {"type": "string"}), "x": make_object("x", {"$ref": "#/$defs/y"})}}
    parameters = {**make_object("a", {"$ref": "#/$defs/x"}), **within}
    found = find_call(
        client,
        [{"type": "function", "function": {"name": "refund", "parameters": parameters}}],
        "refund it",
        tool_choice="required",
    )
    assert found is not None
    assert json.dumps(found[1]).count(":") <= 100


class HeldThreads(ThreadPoolExecutor):
    """Of a loop: what is given to them waits until it may go on. `asked` is done once there is something."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.get_running_loop().create_future()
        self.go_on = threading.Event()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        def go_on() -> T:
            self.go_on.wait(60)
            return fn(*args, **kwargs)

        if not self.asked.done():
            self.asked.set_result(None)
        return super().submit(go_on)


async def test_others_do_not_wait_for_a_large_request(async_client: AsyncOpenAI) -> None:
    wanted = {f"field_{number}": "string" for number in range(100)}
    tools = [make_tool("refund_order", "", " ".join(wanted), **wanted)]
    said = [{"role": "user", "content": "please refund the order " * 160}] * 9
    hello = [{"role": "user", "content": "hi"}]
    # The client itself asks another thread once, for the platform.
    await async_client.chat.completions.create(model="small", messages=hello)
    threads = HeldThreads()
    asyncio.get_running_loop().set_default_executor(threads)
    asking = asyncio.create_task(async_client.chat.completions.create(model="large", messages=said, tools=tools))
    try:
        await asyncio.wait({asking, threads.asked}, return_when=asyncio.FIRST_COMPLETED)
        await async_client.chat.completions.create(model="small", messages=hello)
        assert not asking.done()
    finally:
        threads.go_on.set()
    assert (await asking).choices


# Refusals.


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/chat/completions", 405), ("POST", "/v1/models", 405), ("POST", "/v1/embeddings", 404)],
)
def test_other_requests_are_refused(method: str, path: str, status: int) -> None:
    with httpx2.Client(transport=OfflineTransport(), base_url="http://x") as http:
        response = http.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"[" * 20_000, b'{"model": "m"}', b'{"messages": "\\ud800"}'])
def test_a_senseless_body_is_a_bad_request(body: bytes) -> None:
    with httpx2.Client(transport=OfflineTransport(), base_url="http://x") as http:
        assert http.post("/v1/chat/completions", content=body).status_code == 400


def test_an_invalid_conversation_is_a_bad_request(client: OpenAI) -> None:
    wrong: Any = [{"role": "user", "content": "hi", "sender": "Bob"}]
    with pytest.raises(openai.BadRequestError, match="unknown key 'sender'") as refused:
        client.chat.completions.create(model="m", messages=wrong)
    assert refused.value.param == "messages"


def make_call(id: object = "call_1", name: object = "look", arguments: object = "{}") -> Json:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def make_asking(*calls: object, **more: object) -> Json:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


def make_result(id: object = "call_1", content: object = "seen") -> Json:
    return {"role": "tool", "tool_call_id": id, "content": content}


KEYS = [*make_asking(), *make_result(), *make_call(), *make_call()["function"], "refusal", "text", "description"]
USER: Json = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [{"role": "system", "content": "Be kind."}, {"role": "developer", "content": "Be brief."}, USER],
        [{"role": "user", "name": "Ann", "content": [{"type": "text", "text": "hi"}]}],
        [USER, {"role": "assistant", "content": ""}],
        [USER, {"role": "assistant", "content": None, "refusal": "No."}],
        [USER, make_asking(make_call()), make_result(), USER],
        [
            USER,
            make_asking(make_call("a"), make_call("b")),
            make_result("b"),
            make_result("a"),
            make_asking(make_call("a")),
            make_result("a", ""),
        ],
        [USER, {"role": "assistant", "tool_calls": [make_call(arguments="{broken")]}, make_result()],
        [USER, make_asking(make_call()), make_result(content=[{"type": "text", "text": "seen"}])],
    ],
)
def test_valid_messages_have_no_problems(messages: list[Json]) -> None:
    assert find_message_problems(messages) == []


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "at least one"),
        ([USER, 5], r"messages\[1\]: must be an object"),
        ([{"role": "robot", "content": "hi"}], "'robot' is not one of"),
        ([{"role": ["user"], "content": "hi"}], "is not one of"),
        ([{"content": "hi"}], "None is not one of"),
        ([{"role": "user"}], "content: must be a string, not absent"),
        ([{"role": "user", "content": None}], "content: must be a string, not null"),
        ([{"role": "user", "content": 5}], "content: must be a string or a list of parts"),
        ([{"role": "user", "content": []}], "must not be empty"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\].text: must be a string"),
        ([{"role": "system", "content": [{"type": "image_url", "image_url": {}}]}], "must be a part of type text"),
        ([{"role": "user", "content": "hi", "name": "Ann Lee"}], "name: must be"),
        ([{"role": "user", "content": "hi", "sender": "Ann"}], "unknown key 'sender'"),
        ([USER, {"role": "assistant", "content": None}], "needs content or tool_calls"),
        ([USER, {"role": "assistant", "content": "hi", "sender": "Bot"}], "unknown key 'sender'"),
        ([USER, {"role": "assistant", "content": "hi", "refusal": 1}], "refusal: must be a string or null"),
        ([USER, {"role": "assistant", "content": "hi", "tool_calls": []}], "at least one call"),
        ([USER, {"role": "assistant", "content": "hi", "tool_calls": None}], "at least one call"),
        ([USER, make_asking(make_call())], "'call_1' is not followed by a tool message"),
        ([USER, make_asking(make_call()), USER], "'call_1' is not followed by a tool message"),
        ([USER, make_asking(make_call()), USER, make_result()], "answers no call"),
        ([USER, make_asking(make_call("a"), make_call("b")), make_result("a"), USER], "'b' is not followed"),
        ([USER, make_asking(make_call()), make_result(), make_result()], "a second tool message"),
        ([USER, make_result()], "answers no call"),
        ([USER, make_asking(make_call()), make_result(), USER, make_result()], "answers no call"),
        ([USER, make_asking(make_call()), make_result(5)], "tool_call_id: must be a non-empty string"),
        ([USER, make_asking(make_call()), {**make_result(), "tool_name": "look"}], "unknown key 'tool_name'"),
        ([USER, make_asking(make_call()), make_result(content=None)], "content: must be a string, not null"),
        ([USER, make_asking(make_call("a"), make_call("a")), make_result("a")], "used twice"),
        ([USER, make_asking(make_call(id=""))], "id: must be a non-empty string"),
        ([USER, make_asking(make_call(name="look up")), make_result()], "name: must be 1 to 64"),
        ([USER, make_asking(make_call(name="")), make_result()], "name: must be 1 to 64"),
        ([USER, make_asking(make_call(arguments={})), make_result()], "arguments: must be a string"),
        ([USER, make_asking({**make_call(), "index": 0}), make_result()], "exactly the keys id, type and function"),
        ([USER, make_asking({**make_call(), "type": "code"}), make_result()], "type: must be 'function'"),
        ([USER, make_asking({**make_call(), "function": None}), make_result()], "function: must be an object"),
        ([USER, make_asking(3)], r"tool_calls\[0\]: must be an object"),
    ],
)
def test_invalid_messages_have_a_problem_that_names_the_place(messages: list[Any], problem: str) -> None:
    found = find_message_problems(messages)
    assert any(re.search(problem, one) for one in found), found


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["", "user", "assistant", "tool", "function", "call_1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)


@given(JSON)
def test_the_checker_takes_anything(value: Any) -> None:
    assert isinstance(find_message_problems(value), list)
    assert isinstance(find_request_problems({"messages": value, "tools": value, "tool_choice": value}), list)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"model": ""}, "model: must be"),
        ({"tools": []}, "tools: must be a list with at least one"),
        ({"tools": [{"type": "function"}]}, r"tools\[0\]: must be an object"),
        ({"tools": [make_tool("look up")]}, r"tools\[0\].function.name"),
        ({"tools": [make_tool("a"), make_tool("a")]}, "used twice"),
        ({"tool_choice": "auto"}, "tool_choice: only allowed when tools"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls: only allowed when tools"),
        ({"tools": [make_tool("a")], "tool_choice": "any"}, "tool_choice: must be"),
        (
            {"tools": [make_tool("a")], "tool_choice": {"type": "function", "function": {"name": "b"}}},
            "must name one of",
        ),
        ({"tools": [make_tool("a")], "tool_choice": allow("b")}, "must name some of"),
        ({"tools": [make_tool("a")], "tool_choice": allow()}, "must name one of"),
        ({"stream": "yes"}, "stream: must be a boolean"),
        ({"stream_options": {"include_usage": True}}, "only allowed when stream is true"),
    ],
)
def test_options_are_checked_too(options: Json, problem: str) -> None:
    (found,) = find_request_problems({"model": "m", "messages": [USER], **options})
    assert re.search(problem, found)


def test_words_are_put_into_the_form_that_is_asked_for() -> None:
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
