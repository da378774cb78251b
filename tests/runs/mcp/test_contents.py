"""Answers and lists of MCP servers: text and files that are kept or not, and what is taken of very long lists."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from mcp.types import CallToolResult, Tool
from msgspec.structs import replace

from swarmkeep import Agent, MCPServer
from swarmkeep.decide.checks import FileLimits, keep_files
from swarmkeep.events.chain import Chain
from swarmkeep.events.codec import decode, digest, encode_text
from swarmkeep.events.facts import ToolListing
from swarmkeep.events.state import State
from swarmkeep.mcp.contents import make_listing, read_result, read_tools
from swarmkeep.mcp.pool import ServerPool
from swarmkeep.runs.tool_runners import ThreadRunner
from swarmkeep.runs.tool_servers import ServerToolbox, make_text_cache
from tests.support.pictures import encode_content, make_png

PNG = make_png(300)
PDF = b"%PDF-1.7"


def answer(*content: dict[str, Any], is_error: bool = False) -> CallToolResult:
    return CallToolResult.model_validate({"content": list(content), "isError": is_error})


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def picture(data: bytes | str = PNG, media_type: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "data": encode_content(data) if isinstance(data, bytes) else data, "mimeType": media_type}


def resource(data: bytes, uri: str, media_type: str | None = None) -> dict[str, Any]:
    inner = {"uri": uri, "blob": encode_content(data), **({"mimeType": media_type} if media_type else {})}
    return {"type": "resource", "resource": inner}


def test_pictures_audio_and_resources_are_files() -> None:
    audio = {"type": "audio", "data": encode_content(b"ID3"), "mimeType": "audio/mpeg"}
    report = resource(PDF, "file:///reports/2026.pdf", "application/pdf")
    read = read_result(answer(text("Here."), picture(), audio, report), FileLimits())
    assert read.value == "Here."
    assert [(file.data, file.media_type, file.name) for file in read.files] == [
        (PNG, "image/png", None),
        (b"ID3", "audio/mpeg", None),
        (PDF, "application/pdf", "2026.pdf"),
    ]
    # Among texts it is said where they stood.
    assert read_result(answer(picture(), text("was before"), picture()), FileLimits()).value == (
        "[picture, image/png]\nwas before\n[picture, image/png]"
    )
    failed = read_result(answer(text("No."), picture(), is_error=True), FileLimits())
    assert (failed.value, [file.data for file in failed.files]) == ("No.", [PNG])
    named = read_result(answer(text("Here."), picture()))
    assert (named.value, named.files) == ("Here.\n[picture, image/png: not shown]", [])


def test_hostile_answer_yields_text_and_genuine_files() -> None:
    read = read_result(
        answer(
            picture("no base64!"),
            picture(b"<svg onload='x'/>", "image/svg+xml"),
            picture(b"<script>", "image/png"),
            resource(b"MZ", "file:///a/b", "application/pdf"),
            resource(b"\0\1", "x:" + "y" * 10_000),
            *[picture()] * 500,
        ),
        FileLimits(),
    )
    assert read.value.splitlines() == [
        "[picture, image/png: not kept, because it is not valid base64]",
        "[picture, image/svg+xml: not kept, because files of type image/svg+xml are not taken (SWARMKEEP_BLOB_TYPES)]",
        "403 more files were not kept: a result has at most 100 (SWARMKEEP_MAX_MESSAGE_BLOBS)",
    ]
    kept = keep_files(read.files, FileLimits())
    assert [part["type"] for part in kept.parts] == ["file", *["image_url"] * 97]
    assert list(kept.content.values()) == [b"\0\1", PNG]
    assert [line.rpartition(": ")[2] for line in kept.lines[:2]] == [
        "it is said to be image/png, and its first bytes say text/html",
        "it is said to be application/pdf, and its first bytes say application/x-executable",
    ]
    assert len("\n".join(kept.lines)) < 6_000


def test_rejected_content_is_not_decoded() -> None:
    limits = FileLimits(max_blob_bytes=300)
    # Decoded, these would be refused as no base64.
    broken = picture("!" * 500)
    read = read_result(answer(broken, picture(), picture(make_png(310))), limits)
    assert read.value.splitlines() == [
        "[picture, image/png: not kept, because it has more than 300 bytes (SWARMKEEP_MAX_BLOB_BYTES)]",
        "[picture, image/png]",
        "[picture, image/png: not kept, because it has more than 300 bytes (SWARMKEEP_MAX_BLOB_BYTES)]",
    ]
    assert [file.data for file in read.files] == [PNG]
    foreign = picture("!" * 30, "Video/MP4; x=y")
    unclear = picture("!" * 30, "a picture")
    assert read_result(answer(foreign, unclear), limits).value.splitlines() == [
        "[picture, Video/MP4; x=y: not kept, because files of type video/mp4 are not taken (SWARMKEEP_BLOB_TYPES)]",
        "[picture, a picture: not kept, because that is no media type]",
    ]
    assert read_result(answer(broken)).value == "[picture, image/png: not shown]"


def test_of_very_many_parts_the_first_are_read() -> None:
    read = read_result(answer(*[text(str(number)) for number in range(1_003)]), FileLimits())
    lines = read.value.split("\n")
    assert lines[999:] == ["999", "[3 more parts were left out: a result has at most 1000]"]


# Servers that offer very much: what is taken of it, and who waits for that.

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
