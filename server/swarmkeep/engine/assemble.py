"""From the chunks of a stream to the completion they are pieces of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]


class MalformedReply(Exception):
    """The model's answer is no Chat Completion."""


class StreamCut(MalformedReply):
    """The stream ended before the reply did."""


class Assembly:
    """Collects chunks as they are met in the wild: without choices, several calls in one, calls without an index."""

    def __init__(self) -> None:
        self._head: Json = {}
        self._usage: Json | None = None
        self._finish_reason: str | None = None
        self._texts: dict[str, list[str]] = {}
        self._other: Json = {}
        self._calls: list[Json] = []
        self._by_index: dict[int, int] = {}
        self._started = False

    @property
    def text(self) -> str:
        """The content so far."""
        return "".join(self._texts.get("content", ()))

    def add(self, chunk: Json) -> Iterator[Json]:
        """Take a chunk; gives the deltas in it, in a regular shape."""
        self._head = self._head or {key: chunk[key] for key in ("id", "model") if chunk.get(key)}
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices") or ():
            # Only the first alternative is asked for and used.
            if choice.get("index"):
                continue
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            delta = choice.get("delta") or choice.get("message")
            if isinstance(delta, dict):
                yield self._take(delta)

    def completion(self) -> Json:
        """The whole, as a request without streaming would have answered. Raises StreamCut if its end is missing."""
        if self._finish_reason is None:
            raise StreamCut(
                "the stream was cut before the reply was complete"
                if self._started
                else "the stream ended before it began"
            )
        message: Json = {**self._other, "role": "assistant", "content": None}
        message |= {key: "".join(parts) for key, parts in self._texts.items()}
        if self._calls:
            message["tool_calls"] = self._calls
        choice = {"index": 0, "finish_reason": self._finish_reason, "message": message}
        return {**self._head, "usage": self._usage, "choices": [choice]}

    def _take(self, delta: Json) -> Json:
        self._started = True
        regular: Json = {"content": None, "tool_calls": None}
        for key, value in delta.items():
            if key == "tool_calls":
                regular["tool_calls"] = [self._call(piece) for piece in value or () if isinstance(piece, dict)] or None
            elif key != "role" and isinstance(value, str):
                self._texts.setdefault(key, []).append(value)
                regular[key] = value
            elif value is not None:
                self._other[key] = value
        return regular

    def _call(self, piece: Json) -> Json:
        function = piece.get("function")
        function = function if isinstance(function, dict) else {}
        position = self._position(piece, function)
        if position == len(self._calls):
            self._calls.append({"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
        call = self._calls[position]
        call["id"] = call["id"] or piece.get("id")
        name, arguments = function.get("name"), function.get("arguments")
        if name and name != call["function"]["name"]:
            call["function"]["name"] += name
        if isinstance(arguments, str):
            call["function"]["arguments"] += arguments
        elif arguments is not None:
            call["function"]["arguments"] = arguments
        return {
            "index": position,
            "id": piece.get("id"),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }

    def _position(self, piece: Json, function: Json) -> int:
        """Which call a piece belongs to: by its id, else by its index, else the last one, unless it names a new one."""
        identifier, index = piece.get("id"), piece.get("index")
        known = self._by_index.get(index) if isinstance(index, int) else None
        if identifier:
            position = next((at for at, call in enumerate(self._calls) if call["id"] == identifier), None)
            if position is None:
                # An index may be filled by a call that was begun under no id, or be the same for every call.
                position = len(self._calls) if known is None or self._calls[known]["id"] else known
        elif isinstance(index, int):
            position = len(self._calls) if known is None else known
        else:
            starts = bool(function.get("name")) or not self._calls
            position = len(self._calls) if starts else len(self._calls) - 1
        if isinstance(index, int):
            # Some servers count from 1, or leave numbers out.
            self._by_index[index] = position
        return position
