"""The model port: sends a request, gives deltas and last a reply, whichever client carries it."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol
from uuid import uuid4

import msgspec

from swarmkeep.events.codec import Json, encode_text
from swarmkeep.events.facts import RunError
from swarmkeep.events.model_profiles import (
    PROVIDER,
    attach,
    is_encodable,
    is_plain_text,
    list_own_keys,
    make_model_server,
)
from swarmkeep.events.records import CompletionRecord, classify_finish
from swarmkeep.events.wording import join_text, pluralize
from swarmkeep.models.assembly import Assembly, complete_usage, list_objects, read_choice, read_content
from swarmkeep.models.clients import Transport, choose_transport
from swarmkeep.models.failures import (
    FailedReply,
    FilteredReply,
    MalformedReply,
    OversizedReply,
    ProviderFailure,
    Secrets,
    advise,
    describe_failure,
)
from swarmkeep.models.replies import Chunk, ReplyLimits, has_excess_values
from swarmkeep.request.request import ModelRequest

# Decides when a model call that failed for a moment is made again.


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """The number of retries, and the seconds between them: the pause doubles from the first to the longest, with up to
    half of it left to chance, so that sessions that failed together do not come back together.

    A provider that says how long to wait is not asked sooner. One that says longer than `patience_seconds` is not asked
    again: the caller that waits for the run learns of it at once.
    """

    count: int = 0
    first_seconds: float = 0.5
    longest_seconds: float = 8.0
    patience_seconds: float = 60.0

    def choose_pause(self, failure: ProviderFailure, retried: int) -> float | None:
        """Choose how long to wait before the next attempt, after `retried` of them; None if there is to be none."""
        if not failure.is_transient or retried >= self.count:
            return None
        if failure.wait_seconds is None:
            longest = min(self.first_seconds * 2.0 ** min(retried, 64), self.longest_seconds)
            return random.uniform(longest / 2, longest)
        if failure.wait_seconds > self.patience_seconds:
            return None
        return random.uniform(failure.wait_seconds, failure.wait_seconds * 1.1)


log = logging.getLogger(__name__)


class Deltas(msgspec.Struct, frozen=True):
    """Pieces of a reply that arrived at once, in order: each the `delta` of a Chat Completions chunk."""

    deltas: list[Json]


class Reply(msgspec.Struct, frozen=True):
    """A whole assistant message, and where it came from."""

    message: Json
    completion: CompletionRecord


class TurnFailed(Exception):
    """A turn gave no usable reply. `error` says why, as data; `partial` is what the model had said by then, and `usage`
    what the provider counts for that. `finish_reason`: what it says of the end, where that was the reason.

    `client_error` is what the model's client raised, if that was the reason.
    """

    def __init__(
        self,
        error: RunError,
        partial: str = "",
        *,
        usage: Json | None = None,
        finish_reason: str | None = None,
        client_error: Exception | None = None,
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.partial = partial
        self.usage = usage
        self.finish_reason = finish_reason
        self.client_error = client_error

    def mask(self, secrets: Secrets) -> TurnFailed:
        """Return the failure as the caller may be told of it."""
        return TurnFailed(msgspec.structs.replace(self.error, message=secrets.mask(self.error.message)))


class Model(Protocol):
    def ask(self, request: ModelRequest, *, stream: bool) -> AsyncGenerator[Deltas | Reply]:
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
        self,
        client: Any,
        retries: Retries | None = None,
        pause: Callable[[float], Awaitable[None]] | None = None,
        limits: ReplyLimits | None = None,
    ) -> None:
        self.server = make_model_server(getattr(client, "base_url", None))
        """Where the client asks its models, if it says so."""
        self._limits = limits or ReplyLimits()
        self._transport: Transport = choose_transport(client, self._limits)
        self._retries = retries or Retries()
        self._pause = pause or _sleep

    async def ask(self, request: ModelRequest, *, stream: bool) -> AsyncGenerator[Deltas | Reply]:
        retried = 0
        while True:
            attempt = _Attempt(request, self._limits)
            try:
                if stream:
                    async with attempt.open_stream(self._transport) as arriving:
                        async for chunks in arriving:
                            deltas: list[Json] = []
                            try:
                                attempt.add(chunks, deltas)
                            finally:
                                # What comes before a piece that is refused is shown, too.
                                if deltas:
                                    yield Deltas(deltas)
                    if rest := attempt.finish():
                        yield Deltas(rest)
                    yield attempt.assemble_reply()
                else:
                    yield attempt.make_reply(await self._transport.complete(request))
                return
            except Exception as error:
                pause = self._choose_pause(attempt, error, retried, request.params)
            retried += 1
            await self._pause(pause)

    def _choose_pause(self, attempt: _Attempt, error: Exception, retried: int, params: Json) -> float:
        """Choose how long to wait before the next attempt. Raises TurnFailed if there is to be none."""
        failure = describe_failure(error)
        failure = msgspec.structs.replace(failure, error=advise(failure.error, params))
        # What was shown cannot be taken back, so it is kept, and the run ends here.
        pause = None if attempt.is_shown else self._retries.choose_pause(failure, retried)
        if pause is None:
            raise TurnFailed(
                _make_run_error(failure),
                attempt.text,
                usage=attempt.usage,
                finish_reason=attempt.finish_reason,
                client_error=error,
            ) from error
        code, message = failure.error.code, failure.error.message
        described = {"model": params.get("model"), "attempt": retried + 1}
        log.warning("a model call failed (%s); retrying in %.1f s: %s", code, pause, message, extra=described)
        return pause


async def _sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


class _Attempt:
    """One request and what came of it."""

    def __init__(self, request: ModelRequest, limits: ReplyLimits) -> None:
        self.is_shown = False
        self.usage: Json | None = None
        self.finish_reason: str | None = None
        self._request = request
        self._limits = limits
        self._started = time.perf_counter()
        self._first_token_ms: float | msgspec.UnsetType = msgspec.UNSET
        self._assembly = Assembly(limits, request.list_functions)
        self._withheld_text = ""

    @property
    def text(self) -> str:
        """The text that has come so far."""
        return self._assembly.text or self._withheld_text

    @asynccontextmanager
    async def open_stream(self, transport: Transport) -> AsyncGenerator[AsyncGenerator[list[Chunk]]]:
        """The chunks of the answer. What fails after the reply's own end is no failure."""
        try:
            async with transport.open_stream(self._request) as chunks:
                yield chunks
        except MalformedReply:
            raise
        except Exception:
            # Cut off there, it lacks the count of tokens at most.
            if not self._assembly.is_complete:
                raise

    def add(self, chunks: list[Chunk], deltas: list[Json]) -> None:
        """Take chunks; what they say is added to `deltas`."""
        try:
            for chunk in chunks:
                deltas += self._assembly.add(chunk)
        finally:
            if not self.is_shown:
                self._note_shown(deltas)

    def finish(self) -> list[Json]:
        """Return the rest to be shown once the stream has ended."""
        deltas = self._assembly.finish()
        if not self.is_shown:
            self._note_shown(deltas)
        return deltas

    def _note_shown(self, deltas: list[Json]) -> None:
        self.is_shown = any(delta.get("content") or delta.get("tool_calls") for delta in deltas)
        if self.is_shown:
            self._first_token_ms = self._measure_ms()

    def _measure_ms(self) -> float:
        return round((time.perf_counter() - self._started) * 1000, 3)

    def assemble_reply(self) -> Reply:
        """The reply that the chunks are pieces of."""
        return self.make_reply(self._assembly.completion())

    def make_reply(self, completion: Json) -> Reply:
        choice = read_choice(completion)
        message = choice["message"]
        calls = list_objects(message.get("tool_calls"), "tool calls")
        self._check_calls(calls)
        text = read_content(message.get("content"))
        finish_reason = _text_or_none(choice.get("finish_reason"))
        usage = complete_usage(completion.get("usage") or choice.get("usage"))
        ending = classify_finish(finish_reason)
        if ending in ("content_filter", "failed") or (ending == "tool_calls" and not calls):
            self._withheld_text, self.usage, self.finish_reason = text or "", usage, finish_reason
            if ending == "content_filter":
                raise FilteredReply("the provider's filter stopped the answer")
            raise FailedReply.of(finish_reason or "", has_failed=ending == "failed")
        return Reply(
            message,
            CompletionRecord(
                id=_text_or_none(completion.get("id")),
                model=_text_or_none(completion.get("model")),
                finish_reason=finish_reason,
                usage=usage,
                duration_ms=self._measure_ms(),
                request=self._request.record,
                time_to_first_token_ms=self._first_token_ms,
            ),
        )

    def _check_calls(self, calls: Sequence[Json]) -> None:
        if len(calls) > self._limits.calls:
            raise OversizedReply(f"the model's answer has more than {pluralize(self._limits.calls, 'tool call')}")
        for call in calls:
            function = call.get("function")
            arguments = function.get("arguments") if isinstance(function, dict) else None
            if isinstance(arguments, str) and has_excess_values(arguments, self._limits):
                raise OversizedReply(f"a call in the model's answer has more than {self._limits.values:,} values")


def _make_run_error(failure: ProviderFailure) -> RunError:
    """Make the error, with the time that the provider asks for: only this tells callers when to try again."""
    if failure.wait_seconds is None:
        return failure.error
    text = f"{failure.error.message.rstrip('. ')}; the provider asks to wait {failure.wait_seconds:.0f} s"
    return msgspec.structs.replace(failure.error, message=text)


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def normalise_message(
    message: Json, sender: str, taken: Container[str], source: tuple[str, str], *, is_cut: bool = False
) -> Json:
    """The message as it is kept: role, content, tool calls with ids of their own, the sender, and beside these what the
    model attached. `source` is the model, and the host of its server.

    `taken` are the session's call ids so far. Some servers leave ids out or repeat them each turn; a result could
    then be taken for another call's, so such an id is replaced, and so is one that callers could not send back. A call
    that is there twice, with its id, is one. Missing arguments become `{}`, unless the end of the
    reply may have cut them.
    """
    kept = {key: value for key, value in list_own_keys(message).items() if value is not None and key != "tool_calls"}
    content = message.get("content")
    if isinstance(content, list) and not is_plain_text(content):
        content = join_text(content) or None
    kept |= {"role": "assistant", "content": content}
    given = list_objects(message.get("tool_calls"), "tool calls")
    calls: dict[str, Json] = {}
    functions: dict[str, Json] = {}
    came: list[tuple[str, Json]] = []
    for each in given:
        call = _normalise_call(each, "" if is_cut else "{}")
        given_id = call["id"]
        if given_id and functions.get(given_id) == call["function"]:
            continue
        functions[given_id] = call["function"]
        if not given_id or given_id in calls or given_id in taken or not is_encodable(given_id):
            call["id"] = f"call_{uuid4().hex}"
        calls[call["id"]] = call
        came.append((call["id"], each))
    if calls:
        kept["tool_calls"] = list(calls.values())
    attached = attach(message, came, *source)
    if attached is not None:
        kept[PROVIDER] = attached
    return {**kept, "sender": sender}


def _normalise_call(call: Json, missing: str) -> Json:
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        # Some servers send the arguments as an object rather than as its text.
        arguments = missing if arguments is None else encode_text(arguments)
    return {
        "id": str(call.get("id") or ""),
        "type": "function",
        "function": {"name": str(function.get("name") or ""), "arguments": arguments},
    }


# Pauses that a server's end cuts short.


class ServerStopping(Exception):
    """The server is being stopped, so that the pause is not worth waiting for."""


class Pauses:
    """The pauses of a process, until it is told to stop. From then on every pause is over before it begins."""

    def __init__(self) -> None:
        self._ended = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Return after that time. Raises ServerStopping as soon as `stop_waiting` was called."""
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            return
        raise ServerStopping

    def stop_waiting(self) -> None:
        self._ended.set()
