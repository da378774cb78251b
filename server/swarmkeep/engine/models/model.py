"""The model port: a request in, deltas and at last a reply out, whichever client carries it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import aclosing
from typing import Any, Protocol
from uuid import uuid4

import msgspec

from swarmkeep.domain.codec import encode_text
from swarmkeep.domain.events import CompletionRecord, RunError
from swarmkeep.domain.request import ModelRequest
from swarmkeep.engine.models.assembly import Assembly, EmptyReply, FilteredReply, MalformedReply
from swarmkeep.engine.models.failures import ProviderFailure, describe_failure
from swarmkeep.engine.models.retries import Retries
from swarmkeep.engine.models.transports import Transport, choose_transport

log = logging.getLogger(__name__)

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
    everything else in a turn); any other object gets ordinary `messages=` and `tools=`. Without `retries` a call is
    made again as often as the client does so by itself. `pause` waits that many seconds before it is; what it raises
    ends the call.
    """

    def __init__(
        self, client: Any, retries: Retries | None = None, pause: Callable[[float], Awaitable[None]] | None = None
    ) -> None:
        self._transport: Transport = choose_transport(client)
        self._retries = retries or Retries()
        self._pause = pause or _sleep

    async def ask(self, request: ModelRequest, *, stream: bool) -> AsyncGenerator[Delta | Reply]:
        retried, pause = 0, 0.0
        while True:
            attempt = _Attempt()
            try:
                async with aclosing(attempt.pieces(self._transport, request, stream)) as pieces:
                    async for piece in pieces:
                        yield piece
                return
            except Exception as error:
                met = describe_failure(error)
                # What was shown cannot be taken back, so it is kept, and the run ends here.
                again = None if attempt.shown else self._retries.choose_pause(met, retried)
                if again is None:
                    raise TurnFailed(_make_run_error(met), attempt.text) from error
                pause, retried = again, retried + 1
                log.warning("a model call failed (%s); again in %.1f s: %s", met.error.code, pause, met.error.message)
            await self._pause(pause)


async def _sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


class _Attempt:
    """One request and what came of it."""

    def __init__(self) -> None:
        self.shown = False
        self._assembly = Assembly()
        self._withheld_text = ""

    @property
    def text(self) -> str:
        """What the model has said."""
        return self._assembly.text or self._withheld_text

    async def pieces(self, transport: Transport, request: ModelRequest, stream: bool) -> AsyncGenerator[Delta | Reply]:
        started = time.perf_counter()
        if stream:
            async with aclosing(self._stream_deltas(transport, request)) as deltas:
                async for delta in deltas:
                    yield delta
            completion = self._assembly.completion()
        else:
            completion = await transport.complete(request)
        message, choice = _get_first_choice(completion)
        finish_reason = _text_or_none(choice.get("finish_reason"))
        if finish_reason == "content_filter":
            self._withheld_text = _text_or_none(message.get("content")) or ""
            raise FilteredReply("the provider's filter stopped the answer")
        yield Reply(
            message,
            CompletionRecord(
                id=_text_or_none(completion.get("id")),
                model=_text_or_none(completion.get("model")),
                finish_reason=finish_reason,
                usage=completion.get("usage"),
                duration_ms=round((time.perf_counter() - started) * 1000, 3),
                request=request.record,
            ),
        )

    async def _stream_deltas(self, transport: Transport, request: ModelRequest) -> AsyncGenerator[Delta]:
        try:
            async with aclosing(transport.chunks(request)) as chunks:
                async for chunk in chunks:
                    for delta in self._assembly.add(chunk):
                        self.shown = self.shown or bool(delta.get("content") or delta.get("tool_calls"))
                        yield Delta(delta)
        except MalformedReply:
            raise
        except Exception:
            # Cut off after the reply's own end, it lacks the count of tokens at most.
            if not self._assembly.complete:
                raise


def _make_run_error(met: ProviderFailure) -> RunError:
    """The error, with the time that the provider asks for: nobody else tells those who want to try again."""
    if met.wait_seconds is None:
        return met.error
    text = f"{met.error.message.rstrip('. ')}; the provider asks to wait {met.wait_seconds:.0f} s"
    return msgspec.structs.replace(met.error, message=text)


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _get_first_choice(completion: Json) -> tuple[Json, Json]:
    choices = completion.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise EmptyReply("the model's answer holds no choice")
    message = choices[0].get("message")
    if not isinstance(message, dict):
        raise EmptyReply("the model's answer holds no message")
    return message, choices[0]


def normalise_message(message: Json, sender: str, taken: Collection[str]) -> Json:
    """The message as it is kept: role, content, tool calls with ids of their own, the sender, and the rest as it came.

    `taken` are the session's call ids so far. Some servers leave ids out or count them anew each turn; a result could
    then be taken for another call's, so such an id is replaced.
    """
    kept = {key: value for key, value in message.items() if value is not None and key != "tool_calls"}
    kept |= {"role": "assistant", "content": message.get("content")}
    calls = [_normalise_call(call) for call in message.get("tool_calls") or () if isinstance(call, dict)]
    used = set(taken)
    for call in calls:
        if not call["id"] or call["id"] in used:
            call["id"] = f"call_{uuid4().hex}"
        used.add(call["id"])
    if calls:
        kept["tool_calls"] = calls
    return {**kept, "sender": sender}


def _normalise_call(call: Json) -> Json:
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
