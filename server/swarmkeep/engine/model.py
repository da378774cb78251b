"""The model port: a request in, deltas and at last a reply out, whichever client carries it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from typing import Any, Protocol
from uuid import uuid4

import msgspec

from swarmkeep.domain.codec import encode_text
from swarmkeep.domain.events import CompletionRecord, RunError
from swarmkeep.domain.request import ModelRequest
from swarmkeep.engine.assemble import Assembly, MalformedReply
from swarmkeep.engine.clients import Transport, transport_for
from swarmkeep.engine.provider_errors import run_error

Json = dict[str, Any]


class Delta(msgspec.Struct, frozen=True):
    """A piece of a reply as it arrives: the `delta` of a Chat Completions chunk."""

    delta: Json


class Reply(msgspec.Struct, frozen=True):
    """A whole assistant message, and where it came from."""

    message: Json
    completion: CompletionRecord


class TurnFailed(Exception):
    """A turn gave no usable reply. `error` says why, as data; `partial` is what the model had said by then."""

    def __init__(self, error: RunError, partial: str = "") -> None:
        super().__init__(error.message)
        self.error = error
        self.partial = partial


class Model(Protocol):
    def ask(self, request: ModelRequest, *, stream: bool) -> AsyncGenerator[Delta | Reply]:
        """Send a request; gives deltas if it streams, and last the Reply. Raises TurnFailed."""
        ...


class ChatModel:
    """A model behind any client with OpenAI's Chat Completions interface.

    The official clients take the encoded request as it is (their own walk over typed messages costs more than
    everything else in a turn); any other object gets ordinary `messages=` and `tools=`.
    """

    def __init__(self, client: Any) -> None:
        self._transport: Transport = transport_for(client)

    async def ask(self, request: ModelRequest, *, stream: bool) -> AsyncGenerator[Delta | Reply]:
        started = time.perf_counter()
        assembly = Assembly()
        try:
            if stream:
                async with aclosing(self._transport.chunks(request)) as chunks:
                    async for chunk in chunks:
                        for delta in assembly.add(chunk):
                            yield Delta(delta)
                completion = assembly.completion()
            else:
                completion = await self._transport.complete(request)
            message, choice = _first_choice(completion)
        except Exception as error:
            raise TurnFailed(run_error(error), assembly.text) from error
        yield Reply(
            message,
            CompletionRecord(
                id=_text(completion.get("id")),
                model=_text(completion.get("model")),
                finish_reason=_text(choice.get("finish_reason")),
                usage=completion.get("usage"),
                duration_ms=round((time.perf_counter() - started) * 1000, 3),
                request=request.record,
            ),
        )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _first_choice(completion: Json) -> tuple[Json, Json]:
    choices = completion.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise MalformedReply("the model's answer holds no choice")
    message = choices[0].get("message")
    if not isinstance(message, dict):
        raise MalformedReply("the model's answer holds no message")
    return message, choices[0]


def normalised(message: Json, sender: str, taken: Collection[str]) -> Json:
    """The message as it is kept: role, content, tool calls with ids of their own, the sender, and the rest as it came.

    `taken` are the session's call ids so far. Some servers leave ids out or count them anew each turn; a result could
    then be taken for another call's, so such an id is replaced.
    """
    kept = {key: value for key, value in message.items() if value is not None and key != "tool_calls"}
    kept |= {"role": "assistant", "content": message.get("content")}
    calls = [_call(call) for call in message.get("tool_calls") or () if isinstance(call, dict)]
    used = set(taken)
    for call in calls:
        if not call["id"] or call["id"] in used:
            call["id"] = f"call_{uuid4().hex}"
        used.add(call["id"])
    if calls:
        kept["tool_calls"] = calls
    return {**kept, "sender": sender}


def _call(call: Json) -> Json:
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        # Some servers send the arguments as an object rather than as its text.
        arguments = "{}" if arguments is None else encode_text(arguments)
    return {
        "id": str(call.get("id") or ""),
        "type": "function",
        "function": {"name": str(function.get("name") or ""), "arguments": arguments},
    }
