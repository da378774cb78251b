"""Functions of the caller's program: the client describes them, calls them in their turn, and goes on by itself."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from pydantic import BaseModel, Field

from swarmkeep.agent import Tool, ToolArgumentsError
from swarmkeep_client import AsyncClient, Client, PendingCall
from swarmkeep_client._tools import CallerFunction, CallerTools, WrongArguments, carry_out, carry_out_async
from tests.http.server import RunningServer
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


def open_door(door: Literal["front", "back"], times: int = 1) -> dict[str, Any]:
    """Open a door."""
    return {"door": door, "times": times}


async def look(where: str) -> str:
    if where == "nowhere":
        raise LookupError("there is nothing")
    return f"all is well in {where}"


async def test_async_client_calls_functions_until_end(service: RunningServer, model: ScriptedModel) -> None:
    model.calls([("open_door", {"door": "front"}, "c1"), ("look", {"where": "nowhere"}, "c2")])
    model.calls([("open_door", {"door": "roof"}, "c3"), ("get_weather", {"city": "Rome"}, "c4")])
    model.say("Done.")
    async with AsyncClient(service.url) as client:
        session = await client.sessions.create()
        run = await session.run("Go.", tools=[open_door, look])
    assert run.output_text == "Done."
    results = {m["tool_call_id"]: m["content"] for m in model.requests[2]["messages"] if m["role"] == "tool"}
    assert results["c1"] == '{"door":"front","times":1}'
    assert results["c2"] == "Error: look failed: LookupError: there is nothing"
    assert "Invalid enum value 'roof'" in results["c3"]
    assert results["c4"] == "sunny in Rome"
    described = model.requests[0]["tools"][-2]["function"]
    assert described == {
        "name": "open_door",
        "description": "Open a door.",
        "parameters": {
            "type": "object",
            "properties": {"door": {"enum": ["back", "front"]}, "times": {"type": "integer"}},
            "required": ["door"],
            "additionalProperties": False,
        },
    }


async def test_plain_function_awaitable_is_awaited(service: RunningServer, model: ScriptedModel) -> None:
    def watch(where: str) -> Awaitable[str]:
        return look(where)

    model.call("watch", {"where": "town"}, id="c1")
    model.say("Done.")
    async with AsyncClient(service.url) as client:
        await (await client.sessions.create()).run("Go.", tools=[watch])

    def talk() -> None:
        model.call("watch", {"where": "town"}, id="c1")
        model.say("Done.")
        with Client(service.url) as client:
            client.sessions.create().run("Go.", tools=[watch])

    await asyncio.to_thread(talk)
    results = [model.requests[number]["messages"][-1]["content"] for number in (1, 3)]
    refused = "Error: watch failed: TypeError: it returned a coroutine, which the AsyncClient would await"
    assert results == ["all is well in town", refused]


async def test_stop_iteration_in_function_becomes_error() -> None:
    def find(name: str) -> str:
        return next(found for found in () if found == name)

    call = PendingCall(tool_call_id="c1", name="find", arguments='{"name":"Kim"}', reason="tool_results")
    result = await carry_out_async(call, CallerFunction(find))
    assert result == {"tool_call_id": "c1", "content": "Error: find failed: StopIteration: ", "is_error": True}


async def test_repeated_call_resumes_at_break(service: RunningServer, model: ScriptedModel) -> None:
    model.call("open_door", {"door": "back"}, id="c1")
    model.say("Done.")
    attempts: list[str] = []

    def open_door(door: str) -> str:
        attempts.append(door)
        if len(attempts) == 1:
            raise KeyboardInterrupt
        return "open"

    def talk(client: Client) -> str:
        return client.sessions.get("s").run("Go.", tools=[open_door], idempotency_key="once").output_text

    def talk_again() -> list[str]:
        with Client(service.url) as client:
            client.sessions.create(id="s")
            with pytest.raises(KeyboardInterrupt):
                talk(client)
            return [talk(client), talk(client)]

    assert await asyncio.to_thread(talk_again) == ["Done.", "Done."]
    assert attempts == ["back", "back"]
    async with AsyncClient(service.url) as client:
        again = await (await client.sessions.get("s")).run("Go.", tools=[open_door], idempotency_key="once")
    assert (again.output_text, attempts) == ("Done.", ["back", "back"])


async def test_blocking_client_refuses_async_functions(service: RunningServer) -> None:
    def talk() -> int:
        with Client(service.url) as client:
            session = client.sessions.create()
            with pytest.raises(TypeError, match="look is an async function: use the AsyncClient"):
                session.run("Go.", tools=[open_door, look])
            return session.refresh().seq

    assert await asyncio.to_thread(talk) == 1


async def test_described_only_functions_left_to_others(service: RunningServer, model: ScriptedModel) -> None:
    schema = {"type": "function", "function": {"name": "far_away", "parameters": {"type": "object"}}}
    model.calls([("far_away", {}, "c1"), ("open_door", {"door": "back"}, "c2")])
    async with AsyncClient(service.url) as client:
        session = await client.sessions.create()
        run = await session.run("Go.", tools=[schema, open_door])
        assert (run.status, [call.name for call in run.pending]) == ("waiting", ["far_away", "open_door"])


def test_undescribable_functions_refused() -> None:
    def anything(*words: str) -> None: ...

    with pytest.raises(TypeError, match="cannot be described"):
        CallerTools([anything])
    with pytest.raises(TypeError, match="has no name"):
        CallerTools([lambda: 1])


class Colour(Enum):
    RED = "red"


@dataclass
class Place:
    city: str
    floor: int = 0


class Order(BaseModel):
    id: str
    lines: list[int] = []


class Sensor(msgspec.Struct):
    id: str


HINTS = [
    int, float, bool, str, list, dict, list[int], set[str], dict[str, int], tuple[int, str], int | None, str | None,
    int | str, Literal["a", "b"], Literal[1, 2], Colour, Colour | None, Colour | str, date, Any,
    Annotated[int, Field(ge=3)], Annotated[int, "a number"], Place, list[Place], Order, Order | None, Place | Order,
]  # fmt: skip
VALUES = [
    5, 5.0, 5.5, "5", "5.0", " 5 ", "x", "", True, None, "yes", "null", 2**70, "a", "red", "2031-06-01", [], ["1", 2.0],
    {}, {"a": "1"}, {"city": 1, "floor": "2"}, {"id": 5, "lines": ["1", 2.0]}, [{"city": "Rome"}],
]  # fmt: skip


@pytest.mark.parametrize("hint", HINTS, ids=str)
def test_values_convert_as_for_agents_functions(hint: Any) -> None:
    def give(n): ...  # type: ignore[no-untyped-def]

    give.__annotations__ = {"n": hint}
    ours, agents = CallerFunction(give), Tool(give)
    for value in VALUES:
        text = json.dumps({"n": value})
        try:
            expected = agents.bind(text, context_variables={}, tool_call_id="c").keywords
        except ToolArgumentsError:
            with pytest.raises(WrongArguments, match=r"^n"):
                ours.bind(text)
        else:
            assert repr(ours.bind(text)) == repr(expected)


def test_unhinted_and_none_defaults_take_anything() -> None:
    def give(a, b: int = None, c="c"): ...  # type: ignore[no-untyped-def,assignment]  # noqa: RUF013

    assert CallerFunction(give).bind('{"a": [1], "b": null}') == {"a": [1], "b": None}
    assert CallerFunction(give).describe()["function"]["parameters"]["required"] == ["a"]
    assert CallerFunction(look_up_order).bind("null") == CallerFunction(look_up_order).bind(" ") == {}


def look_up_order() -> Order:
    """Take nothing."""
    return Order(id="A", lines=[1])


def test_pydantic_models_described_and_returned() -> None:
    def buy(order: Order, where: Place, colour: Colour = Colour.RED) -> list[Order]:
        return [order]

    described = CallerFunction(buy).describe()["function"]["parameters"]
    assert described["required"] == ["order", "where"]
    assert described["$defs"]["Order"]["properties"]["lines"]["items"] == {"type": "integer"}
    arguments = '{"order": {"id": "5"}, "where": {"city": "Rome"}, "colour": "red"}'
    call = PendingCall(tool_call_id="c1", name="buy", arguments=arguments, reason="tool_results")
    assert carry_out(call, CallerFunction(buy))["content"] == '[{"id":"5","lines":[]}]'
    assert carry_out(call, CallerFunction(look_up_order))["is_error"]


def test_structs_of_msgspec_stay_possible() -> None:
    def read(sensor: Sensor, where: Place) -> None: ...

    assert CallerFunction(read).bind('{"sensor": {"id": "a"}, "where": {"city": "x"}}')["sensor"] == Sensor(id="a")


def test_wrong_arguments_are_named_together() -> None:
    with pytest.raises(WrongArguments) as refused:
        CallerFunction(open_door).bind('{"times": "often", "wide": true}')
    assert str(refused.value) == "'wide' is unexpected; door is missing; times: Expected `int`, got `str`"
    for text in ("[1]", "null", "3", "{", '"\\ud800"'):
        with pytest.raises(WrongArguments, match=r"^they "):
            CallerFunction(open_door).bind(text)


def test_client_converts_without_pydantic() -> None:
    program = """
import sys
sys.modules["pydantic"] = None
from dataclasses import dataclass
from swarmkeep_client._tools import CallerFunction
@dataclass
class Place:
    city: str
    floor: int = 0
def give(n: int, many: list[int], name: str, place: Place, maybe: bool | None = None): ...
bound = CallerFunction(give).bind(
    '{"n": "5", "many": [1.0, "2"], "name": 17, "place": {"city": "Rome", "floor": "2"}, "maybe": "true"}')
assert bound == {"n": 5, "many": [1, 2], "name": "17", "place": Place("Rome", 2), "maybe": True}, bound
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_unresolvable_hints_refused_by_name() -> None:
    def give(n: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    def fine(n: int) -> Missing: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(TypeError, match=r"give.*Missing"):
        CallerFunction(give)
    assert CallerFunction(fine).bind('{"n": 5.0}') == {"n": 5}
