"""Servers that offer very much: what is taken of it, and who waits for that."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from mcp.types import Tool
from msgspec.structs import replace

from swarmkeep import Agent, MCPServer
from swarmkeep.events.chain import Chain
from swarmkeep.events.codec import decode, digest, encode_text
from swarmkeep.events.facts import ToolListing
from swarmkeep.events.state import State
from swarmkeep.mcp.contents import make_listing, read_tools
from swarmkeep.mcp.pool import ServerPool
from swarmkeep.runs.server_toolbox import ServerToolbox, make_text_cache
from swarmkeep.runs.tool_runners import ThreadRunner

SERVER = MCPServer(name="many", command=("never-started",))
TOOLS = [
    Tool(name=f"tool_{number}", description="é" * 20_000, input_schema={"type": "object"}) for number in range(200)
]
_MOST = 1_000_000


class NotingRunner(ThreadRunner):
    """Runs in threads, and notes how often."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, function: Callable[[], Any], *, is_async: bool, seconds: float | None) -> Any:
        def run() -> Any:
            assert threading.current_thread() is not threading.main_thread()
            return function()

        self.count += 1
        return await super().__call__(run, is_async=is_async, seconds=seconds)


@pytest.fixture
async def pool() -> AsyncIterator[ServerPool]:
    pool = ServerPool()
    yield pool
    await pool.close()


def test_descriptions_count_toward_list_limit() -> None:
    offered = list(read_tools(SERVER, TOOLS))
    text = make_listing(SERVER, offered, ())[1]
    assert 50 < len(offered) < 70
    assert _MOST * 0.9 < len(text.encode()) < _MOST * 1.1
    assert sum(tool.size for tool in offered) <= _MOST


@pytest.mark.parametrize("properties", [[], None, "none"])
def test_non_object_properties_are_ignored(properties: object) -> None:
    tool = Tool(name="now", input_schema={"type": "object", "properties": properties, "required": []})
    (offered,) = read_tools(SERVER, [tool])
    assert encode_text(offered.parameters) == '{"properties":{},"type":"object","required":[]}'


async def test_long_list_is_processed_once_without_blocking(pool: ServerPool) -> None:
    offered = tuple(read_tools(SERVER, TOOLS))
    runner = NotingRunner()
    toolbox = ServerToolbox(pool, "s", make_text_cache(), runner, None)
    made = await toolbox._make_listing(SERVER, offered, {"own"})
    assert made == make_listing(SERVER, offered, {"own"})
    assert runner.count == 1
    assert await toolbox._make_listing(SERVER, offered, {"own"}) is not None
    assert runner.count == 1
    # Another name that is taken, or the list anew: another listing.
    renamed = await toolbox._make_listing(SERVER, offered, {"tool_0"})
    assert (runner.count, renamed[0].tools[0].name) == (2, "many_tool_0")
    await toolbox._make_listing(SERVER, tuple(read_tools(SERVER, TOOLS)), {"tool_0"})
    assert runner.count == 3


async def test_recorded_list_selection_happens_once(pool: ServerPool) -> None:
    fact, text = make_listing(SERVER, list(read_tools(SERVER, TOOLS)), ())
    # As a forged log may have it: described, and in no list.
    forged = encode_text([*decode(f"[{text}]"), {"type": "function", "function": {"name": "forged"}}])[1:-1]
    state = State(agent="A", listings=Chain([ToolListing(agent="A", fact=replace(fact, schemas=digest(forged)))]))
    texts, runner = make_text_cache(), NotingRunner()
    texts[digest(forged)] = forged
    some = Agent(name="A", mcp_servers=[MCPServer(name="many", command=("x",), tools=("tool_1", "tool_2"))])
    every = Agent(name="A", mcp_servers=[SERVER])
    for agent, expected, count in ((some, ["tool_1", "tool_2"], 1), (every, [tool.name for tool in fact.tools], 2)):
        for _ in range(2):
            toolbox = ServerToolbox(pool, "s", texts, runner, None)
            (chosen,) = await toolbox.describe(agent, state)
            assert [schema["function"]["name"] for schema in decode(f"[{chosen}]")] == expected
            assert runner.count == count
