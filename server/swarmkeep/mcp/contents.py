"""Convert the content of servers for models: tools as functions, and their results."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Collection, Iterator, Sequence
from typing import assert_never

import msgspec
from mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
)
from msgspec import UNSET

from swarmkeep.agent import File, MCPServer, Result
from swarmkeep.decide.checks import FileLimits, check_said_type, describe_left
from swarmkeep.events.codec import Json, digest, encode, encode_text
from swarmkeep.events.errors import InvalidRequest, TooLarge
from swarmkeep.events.facts import ListedTool, ToolsListed
from swarmkeep.events.files import UNKNOWN

MOST_TOOLS = 200
_MOST_PARTS = 1_000
_MOST_DESCRIPTION = 8_000
_MOST_SCHEMA_BYTES = 64_000
_MOST_LIST_BYTES = 1_000_000
# What providers take as a function's name.
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")
_NAME_CHARACTERS = 64


class OfferedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as its server describes it. `size`: of what describes it, in bytes."""

    name: str
    description: str
    parameters: Json
    idempotent: bool
    destructive: bool
    size: int


def read_tools(server: MCPServer, tools: Sequence[Tool]) -> Iterator[OfferedTool]:
    """The tools that are offered of a server's, each name once, and no more than a request can do with."""
    seen: set[str] = set()
    size = 0
    for tool in tools:
        parameters = _make_parameters(tool.input_schema)
        description = (tool.description or "")[:_MOST_DESCRIPTION]
        schema_bytes = len(encode(parameters))
        length = schema_bytes + len(encode(description)) + len(encode(tool.name))
        size += length
        if tool.name in seen or not tool.name or not server.offers(tool.name) or schema_bytes > _MOST_SCHEMA_BYTES:
            continue
        if len(seen) >= MOST_TOOLS or size > _MOST_LIST_BYTES:
            return
        seen.add(tool.name)
        hints = tool.annotations
        reads = hints is not None and hints.read_only_hint is True
        yield OfferedTool(
            name=tool.name,
            description=description,
            parameters=parameters,
            idempotent=reads or (hints is not None and hints.idempotent_hint is True),
            destructive=not reads and hints is not None and hints.destructive_hint is True,
            size=length,
        )


def _make_parameters(schema: Json) -> Json:
    """The schema as providers take it. Some languages write an empty object as an empty list."""
    made = {"properties": {}, **schema, "type": "object"}
    return made if isinstance(made["properties"], dict) else {**made, "properties": {}}


def make_listing(server: MCPServer, tools: Sequence[OfferedTool], taken: Collection[str]) -> tuple[ToolsListed, str]:
    """The fact that an agent is offered these, and the text of their schemas. `taken` are names that others have."""
    listed, schemas, used = [], [], set(taken)
    for tool in tools:
        name = _choose_name(server, tool.name, used)
        if name is None:
            continue
        used.add(name)
        listed.append(
            ListedTool(
                name=name,
                tool=UNSET if name == tool.name else tool.name,
                idempotent=True if tool.idempotent else UNSET,
                destructive=True if tool.destructive else UNSET,
            )
        )
        schemas.append(
            {
                "type": "function",
                "function": {"name": name, "description": tool.description, "parameters": tool.parameters},
            }
        )
    text = encode_text(schemas)[1:-1]
    return ToolsListed(server=server.name, tools=tuple(listed), schemas=digest(text) if listed else None), text


def _choose_name(server: MCPServer, tool: str, used: Collection[str]) -> str | None:
    """The name for the model; with the server's before it where another function has it. None: there is no free one."""
    plain = _UNFIT.sub("_", tool)
    names = [plain, f"{server.name}_{plain}"] if not server.prefix else [f"{server.prefix}_{plain}"]
    for name in names:
        fitting = name if len(name) <= _NAME_CHARACTERS else f"{name[: _NAME_CHARACTERS - 9]}_{digest(tool)[:8]}"
        if fitting not in used:
            return fitting
    other = f"{names[-1][: _NAME_CHARACTERS - 9]}_{digest(tool)[:8]}"
    return None if other in used else other


def read_result(result: CallToolResult, limits: FileLimits | None = None) -> Result:
    """Read the result of a tool, whether it failed or not. Texts as they are, and pictures, audio and resources that
    are no text as files.

    Without `limits` no files are taken, and there is no more than text, which names them. Nothing is decoded that is
    known not to be kept before that.
    """
    if not result.content and result.structured_content is not None:
        return Result(encode_text(result.structured_content))
    # Each takes its time, however little is in it.
    more = len(result.content) - _MOST_PARTS
    parts, left = _take_files([_read_content(content) for content in result.content[:_MOST_PARTS]], limits)
    last_text = max((at for at, (_, file) in enumerate(parts) if file is None), default=-1)
    is_mixed = any(file is not None for _, file in parts[: last_text + 1])
    # Among texts it is said where a file stood.
    texts = [text for text, file in parts if file is None or is_mixed]
    if left and limits is not None:
        texts.append(describe_left(left, limits))
    if more > 0:
        texts.append(f"[{more} more parts were left out: a result has at most {_MOST_PARTS}]")
    return Result("\n".join(texts), files=[file for _, file in parts if file is not None])


def _take_files(parts: Sequence[str | _Inline], limits: FileLimits | None) -> tuple[list[tuple[str, File | None]], int]:
    """The text of each part, and its file if that is taken; and how many are left, of which there are too many."""
    taken: list[tuple[str, File | None]] = []
    count = left = 0
    for part in parts:
        if isinstance(part, str):
            taken.append((part, None))
        elif limits is None:
            taken.append((part.describe("not shown"), None))
        elif count == limits.max_message_blobs:
            left += 1
        else:
            taken.append(part.take(limits))
            count += taken[-1][1] is not None
    return taken, left


class _Inline(msgspec.Struct, frozen=True):
    """A picture, or other bytes, as a server sends them."""

    what: str
    data: str
    media_type: str
    name: str | None = None

    def describe(self, more: str = "") -> str:
        return f"[{self.what}, {_cut(self.media_type)}{': ' if more else ''}{more}]"

    def take(self, limits: FileLimits) -> tuple[str, File | None]:
        """Return the text about it, and the file; none where it cannot be decoded, or need not be: what it is, and how
        large, is known before."""
        try:
            check_said_type(self.media_type, limits)
            limits.check_base64("it", self.data)
            return self.describe(), File(b64decode(self.data, validate=True), self.media_type, self.name)
        except (InvalidRequest, TooLarge) as error:
            return self.describe(f"not kept, because {error}"), None
        except (binascii.Error, ValueError):
            return self.describe("not kept, because it is not valid base64"), None


def _read_content(content: ContentBlock) -> str | _Inline:
    match content:
        case TextContent(text=text):
            return text
        case ImageContent(data=data, mime_type=kind):
            return _Inline("picture", data, kind)
        case AudioContent(data=data, mime_type=kind):
            return _Inline("audio", data, kind)
        case ResourceLink():
            described = ", ".join(_cut(part) for part in (content.mime_type, content.title or content.name) if part)
            return f"[resource {_cut(str(content.uri))}, {described}]"
        case EmbeddedResource(resource=resource):
            return _read_resource(resource)
        case _:
            assert_never(content)


def _read_resource(resource: TextResourceContents | BlobResourceContents) -> str | _Inline:
    place = str(resource.uri)
    if isinstance(resource, TextResourceContents):
        return f"[resource {_cut(place)}]\n{resource.text}"
    name = place.rstrip("/").rpartition("/")[2] or place
    return _Inline(f"resource {_cut(place)}", resource.blob, resource.mime_type or UNKNOWN, name)


def _cut(text: str) -> str:
    return text if len(text) <= 500 else text[:500] + "…"
