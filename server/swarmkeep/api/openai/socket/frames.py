"""Frames of the responses WebSocket: `response.create` comes in, events and errors go out."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET

from swarmkeep.api.aside import run_aside
from swarmkeep.api.bodies import parse_json
from swarmkeep.api.body_limits import UNCOUNTED_BYTES
from swarmkeep.api.openai.errors import Refused, make_error
from swarmkeep.api.openai.fields import CreateResponse
from swarmkeep.domain.codec import MalformedJson, decode, encode

CREATE = "response.create"


class CreateFrame(CreateResponse, frozen=True, kw_only=True, tag_field="type", tag=CREATE):
    """A response over a WebSocket is a stream in any case, and one that nobody else waits for."""

    stream: Literal[True] | None = None
    background: Literal[False] | None = None
    generate: Literal[True] | None = None
    stream_id: None = None


class FrameHeader(msgspec.Struct):
    """As much of a frame as can be made out of one that is wrong otherwise."""

    type: Any = UNSET
    previous_response_id: Any = None


def read_header(text: bytes) -> FrameHeader | None:
    try:
        return decode(text, FrameHeader)
    except (MalformedJson, msgspec.ValidationError):
        return None


async def read_create(text: bytes, max_values: int) -> CreateFrame:
    """Read a frame, a large one in a thread: nobody else waits for it. Raises Refused, InvalidRequest and TooLarge."""
    return await run_aside(len(text) > UNCOUNTED_BYTES, _parse_create, text, max_values)


def _parse_create(text: bytes, max_values: int) -> CreateFrame:
    header = read_header(text)
    if header is not None and header.type != CREATE:
        raise Refused(f"a frame's type must be {CREATE}", "type")
    frame: CreateFrame = parse_json(text, CreateFrame, "the frame", max_values)
    return frame


def make_error_frame(error: Exception) -> tuple[int, str, bytes]:
    """The status, the code and the frame of a refusal."""
    status, body, headers = make_error(error)
    described = {**body, "headers": headers} if headers else body
    return status, str(body["code"]), encode({"type": "error", "status": status, "error": described})
