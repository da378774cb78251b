"""Replies of the scripted server: completions, failures, exact bytes, and answers that break off."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.support.scripted.exchange import Exchange, Json

When = Callable[[Json], bool]

USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
_WORD_AND_SPACE = re.compile(r"\S+\s*|\s+")


@dataclass(frozen=True)
class Call:
    """A tool call; without an id it gets one that this server has not used before."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str | None = None

    def on_the_wire(self, spare_id: str) -> Json:
        text = self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)
        return {"id": self.id or spare_id, "type": "function", "function": {"name": self.name, "arguments": text}}


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What to answer, and when: once `gate` is set, to a request that `when` accepts, after `delay` seconds."""

    when: When | None = field(default=None, repr=False)
    gate: threading.Event | None = field(default=None, repr=False)
    delay: float = 0.0

    def write(self, exchange: Exchange) -> None:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Completion(Reply):
    """Text, tool calls, or both; streamed piece by piece if the request asks for a stream."""

    pieces: Sequence[str] = ()
    calls: Sequence[Call] = ()
    finish_reason: str | None = None
    usage: Mapping[str, Any] = field(default_factory=lambda: dict(USAGE), repr=False)
    # A stream stops after its first piece until this is set.
    pause: threading.Event | None = field(default=None, repr=False)

    def write(self, exchange: Exchange) -> None:
        calls = [call.on_the_wire(f"call_auto_{exchange.number}_{index}") for index, call in enumerate(self.calls)]
        if exchange.request.get("stream"):
            self._stream(exchange, calls)
        else:
            if self.pause:
                exchange.wait(self.pause)
            message: Json = {"role": "assistant", "content": "".join(self.pieces) if self.pieces else None}
            if calls:
                message["tool_calls"] = calls
            choice = {"index": 0, "message": message, "finish_reason": self._reason}
            exchange.send_json(200, {**exchange.frame("chat.completion"), "choices": [choice], "usage": self.usage})

    @property
    def _reason(self) -> str:
        return self.finish_reason or ("tool_calls" if self.calls else "stop")

    def _stream(self, exchange: Exchange, calls: list[Json]) -> None:
        exchange.begin_stream()
        exchange.send_delta({"role": "assistant", "content": "" if self.pieces else None})
        for number, piece in enumerate(self.pieces):
            if number == 1 and self.pause:
                exchange.wait(self.pause)
            exchange.send_delta({"content": piece})
        for delta in _split_calls(calls):
            exchange.send_delta({"tool_calls": [delta]})
        exchange.send_delta({}, finish_reason=self._reason)
        if (exchange.request.get("stream_options") or {}).get("include_usage"):
            exchange.send_event({**exchange.frame("chat.completion.chunk"), "choices": [], "usage": self.usage})
        exchange.end_stream()


@dataclass(frozen=True, kw_only=True)
class Raw(Reply):
    """These bytes, whatever was asked for."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    def write(self, exchange: Exchange) -> None:
        exchange.send(self.status, self.headers, self.body)


@dataclass(frozen=True, kw_only=True)
class Chunks(Reply):
    """These stream events and no others; with `drop` the connection breaks after them."""

    events: Sequence[Json | bytes | str]
    done: bool = True
    drop: bool = False

    def write(self, exchange: Exchange) -> None:
        exchange.begin_stream()
        for event in self.events:
            exchange.send_event(event)
        if self.drop:
            exchange.drop()
        else:
            exchange.end_stream(done=self.done)


@dataclass(frozen=True, kw_only=True)
class HalfStream(Reply):
    """The beginning of an answer; then the connection breaks."""

    pieces: Sequence[str]

    def write(self, exchange: Exchange) -> None:
        if exchange.request.get("stream"):
            exchange.begin_stream()
            exchange.send_delta({"role": "assistant", "content": ""})
            for piece in self.pieces:
                exchange.send_delta({"content": piece})
        else:
            exchange.begin(200, {"content-type": "application/json", "content-length": "100000"})
            exchange.write(b'{"choices": [{"message": {"content": "' + "".join(self.pieces).encode())
        exchange.drop()


def _split_calls(calls: list[Json]) -> Iterator[Json]:
    for index, call in enumerate(calls):
        text = call["function"]["arguments"]
        half = len(text) // 2
        yield {"index": index, **call, "function": {**call["function"], "arguments": ""}}
        for piece in (text[:half], text[half:]):
            if piece:
                yield {"index": index, "function": {"arguments": piece}}


def split_pieces(text: str | Sequence[str]) -> list[str]:
    """A text in words, each with the space after it; pieces stay as they are."""
    return (_WORD_AND_SPACE.findall(text) or [""]) if isinstance(text, str) else list(text)


def to_call(call: Call | Sequence[Any] | Mapping[str, Any]) -> Call:
    """A call as tests write it: a Call, `("name", {...}, "id")` or `{"name", "arguments", "id"}`."""
    if isinstance(call, Call):
        return call
    return Call(**call) if isinstance(call, Mapping) else Call(*call)


def to_reply(value: Reply | Call | str | Json) -> Reply:
    """A reply as a default may give it: text, a call, or the JSON of a whole completion."""
    match value:
        case Reply():
            return value
        case Call():
            return Completion(calls=[value])
        case str():
            return Completion(pieces=split_pieces(value))
    return Raw(body=msgspec.json.encode(value), headers={"content-type": "application/json"})
