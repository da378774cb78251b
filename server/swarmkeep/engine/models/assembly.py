"""From the chunks of a stream to the completion they are pieces of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from swarmkeep.domain.codec import Json, decode

# What a stream says where it ends on purpose.
END_OF_STREAM: Json = {"object": "done"}


class MalformedReply(Exception):
    """The model's answer is no Chat Completion. `passing`: the call may be made again by itself."""

    code: ClassVar[str] = "provider_malformed"
    retryable: ClassVar[bool] = True
    is_transient: ClassVar[bool] = False


class NonJsonReply(MalformedReply):
    """The answer, or a piece of a stream, is no JSON."""

    code = "provider_not_json"


class WebPageReply(MalformedReply):
    """A proxy answered, or the base URL leads to something else than a model."""

    code = "provider_web_page"
    retryable = False


class EmptyReply(MalformedReply):
    """A completion without a choice, or a choice without a message."""

    code = "provider_empty_answer"


class FilteredReply(MalformedReply):
    """The provider's filter stopped the model in mid-answer."""

    code = "content_filter"
    retryable = False


class TruncatedStream(MalformedReply):
    """The stream ended before the reply did."""

    code = "provider_stream_cut"
    is_transient = True


class ReportedError(MalformedReply):
    """The provider reports an error in the place of an answer; `body` is what it says."""

    def __init__(self, body: object) -> None:
        super().__init__(f"the model reported an error: {body}")
        self.body: Mapping[str, Any] = body if isinstance(body, dict) else {"message": str(body)}


class Assembly:
    """Collects chunks as they are met in the wild: without choices, several calls in one, calls without an index."""

    def __init__(self) -> None:
        self._head: Json = {}
        self._usage: Json | None = None
        self._finish_reason: str | None = None
        self._texts: dict[str, list[str]] = {}
        self._other_fields: Json = {}
        self._calls: list[Json] = []
        self._by_index: dict[int, int] = {}
        self._has_started = False
        self._has_ended = False

    @property
    def is_complete(self) -> bool:
        """Whether the reply's end has been seen, whatever may follow it."""
        return self._finish_reason is not None or (self._has_ended and self._looks_whole)

    @property
    def _looks_whole(self) -> bool:
        """Whether what is there could be all: some servers end their streams without a reason."""
        return all(_is_json(call["function"]["arguments"]) for call in self._calls) and bool(self.text or self._calls)

    @property
    def text(self) -> str:
        """The content so far."""
        return "".join(self._texts.get("content", ()))

    def add(self, chunk: Json) -> list[Json]:
        """Take a chunk; gives the deltas in it, in a regular shape."""
        if chunk is END_OF_STREAM:
            self._has_ended = True
            return []
        self._head = self._head or {key: chunk[key] for key in ("id", "model") if chunk.get(key)}
        self._usage = chunk.get("usage") or self._usage
        choices = chunk.get("choices") or ()
        if not all(isinstance(choice, dict) for choice in choices):
            raise MalformedReply("a piece of the model's stream holds choices that are none")
        deltas: list[Json] = []
        for choice in choices:
            # Only the first alternative is asked for and used.
            if choice.get("index"):
                continue
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            delta = choice.get("delta") or choice.get("message")
            if isinstance(delta, dict):
                deltas.append(self._add_delta(delta))
        return deltas

    def completion(self) -> Json:
        """The whole, as a request without streaming would have answered.

        Raises TruncatedStream if its end is missing, and EmptyReply if it ended and held nothing.
        """
        if not self.is_complete:
            if self._has_ended and not self._has_started:
                raise EmptyReply("the model's stream holds no message")
            raise TruncatedStream(
                "the stream was cut before the reply was complete"
                if self._has_started
                else "the stream ended before it began"
            )
        message: Json = {**self._other_fields, "role": "assistant", "content": None}
        message |= {key: "".join(parts) for key, parts in self._texts.items()}
        if self._calls:
            message["tool_calls"] = self._calls
        choice = {"index": 0, "finish_reason": self._finish_reason, "message": message}
        return {**self._head, "usage": self._usage, "choices": [choice]}

    def _add_delta(self, delta: Json) -> Json:
        self._has_started = True
        regular: Json = {"content": None, "tool_calls": None}
        for key, value in delta.items():
            if key == "tool_calls":
                regular["tool_calls"] = [
                    self._add_call_piece(piece) for piece in value or () if isinstance(piece, dict)
                ] or None
            elif key != "role" and isinstance(text := _join_text_parts(value) if key == "content" else value, str):
                self._texts.setdefault(key, []).append(text)
                regular[key] = text
            elif value is not None:
                self._other_fields[key] = value
        return regular

    def _add_call_piece(self, piece: Json) -> Json:
        function = piece.get("function")
        function = function if isinstance(function, dict) else {}
        position = self._find_position(piece, function)
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

    def _find_position(self, piece: Json, function: Json) -> int:
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


def _join_text_parts(content: object) -> object:
    """The text of a piece of content that comes in parts, as some models that think aloud send it."""
    if not isinstance(content, list):
        return content
    parts = [part.get("text") for part in content if isinstance(part, dict)]
    return "".join(text for text in parts if isinstance(text, str))


def _is_json(arguments: object) -> bool:
    if not isinstance(arguments, str) or not arguments.strip():
        # A call without arguments, or with an object for them.
        return True
    try:
        decode(arguments)
    except ValueError:
        return False
    return True
