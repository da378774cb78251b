"""From the chunks of a stream to the completion they are pieces of."""

from __future__ import annotations

from typing import Any

from swarmkeep.domain.codec import Json, decode, encode_text
from swarmkeep.domain.wording import pluralize
from swarmkeep.engine.models.chunks import Chunk, TextChunk
from swarmkeep.engine.models.reply_errors import EmptyReply, MalformedReply, OversizedReply, TruncatedStream
from swarmkeep.engine.models.reply_limits import ReplyLimits, has_excess_values

# A name comes in pieces, too, with some servers.
_MAX_NAME_CHARACTERS = 1000
# What a stream says where it ends on purpose.
END_OF_STREAM: Json = {"object": "done"}
_CALL_KEYS = {"index", "id", "type", "function"}
_FUNCTION_KEYS = {"name", "arguments"}


class Assembly:
    """Collects chunks as they are met in the wild: without choices, several calls in one, calls without an index."""

    def __init__(self, limits: ReplyLimits) -> None:
        self._limits = limits
        self._room = limits.bytes
        self._head: Json = {}
        self._usage: Json | None = None
        self._finish_reason: str | None = None
        self._texts: dict[str, list[str]] = {}
        self._other_fields: Json = {}
        self._calls: list[_Call] = []
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
        return all(self._is_json(call.arguments) for call in self._calls) and bool(self.text or self._calls)

    def _is_json(self, arguments: object) -> bool:
        if not isinstance(arguments, str) or not arguments.strip() or has_excess_values(arguments, self._limits):
            # A call without arguments, or with an object for them; or one that is refused for what it has.
            return True
        try:
            decode(arguments)
        except ValueError:
            return False
        return True

    @property
    def text(self) -> str:
        """The content so far."""
        return "".join(self._texts.get("content", ()))

    def add(self, chunk: Chunk) -> list[Json]:
        """Take a chunk; gives the deltas in it, in a regular shape."""
        if isinstance(chunk, TextChunk):
            return [self._add_text(chunk)]
        if chunk is END_OF_STREAM:
            self._has_ended = True
            return []
        self._head = self._head or {key: chunk[key] for key in ("id", "model") if chunk.get(key)}
        self._usage = chunk.get("usage") or self._usage
        deltas: list[Json] = []
        for choice in list_objects(chunk.get("choices"), "choices"):
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
            message["tool_calls"] = [call.assemble() for call in self._calls]
        choice = {"index": 0, "finish_reason": self._finish_reason, "message": message}
        return {**self._head, "usage": self._usage, "choices": [choice]}

    def _add_text(self, chunk: TextChunk) -> Json:
        if not self._head:
            self._head = {key: value for key, value in (("id", chunk.id), ("model", chunk.model)) if value}
        text = chunk.choices[0].delta.content
        self._has_started = True
        self._keep_text("content", text)
        return {"content": text, "tool_calls": None}

    def _keep_text(self, key: str, text: str) -> None:
        if (parts := self._texts.get(key)) is not None and len(text) <= self._room:
            self._room -= len(text)
            parts.append(text)
            return
        self._take(len(text) if parts else len(key) + len(text))
        self._texts.setdefault(key, []).append(text)

    def _add_delta(self, delta: Json) -> Json:
        self._has_started = True
        regular: Json = {"content": None, "tool_calls": None}
        for key, value in delta.items():
            if key == "tool_calls":
                pieces = list_objects(value, "tool calls")
                regular["tool_calls"] = [self._add_call_piece(piece) for piece in pieces] or None
            elif key != "role" and isinstance(text := read_content(value) if key == "content" else value, str):
                self._keep_text(key, text)
                regular[key] = text
            elif value is not None:
                self._take(len(key) + len(encode_text(value)))
                merge_field(self._other_fields, key, value)
        return regular

    def _take(self, characters: int) -> None:
        """Count what is kept. Raises OversizedReply when there is no room for it."""
        self._room -= characters
        if self._room < 0:
            raise OversizedReply(f"the model's answer is longer than {self._limits.bytes:,} characters")

    def _add_call_piece(self, piece: Json) -> Json:
        function = piece.get("function")
        function = function if isinstance(function, dict) else {}
        position = self._find_position(piece, function)
        if position == len(self._calls):
            if position == self._limits.calls:
                raise OversizedReply(f"the model's answer has more than {pluralize(self._limits.calls, 'tool call')}")
            self._calls.append(_Call())
        name, arguments = function.get("name"), function.get("arguments")
        if not isinstance(name, str | None):
            raise MalformedReply("a tool call in the model's stream has a name that is not text")
        self._take(sum(len(text) for text in (name, arguments) if isinstance(text, str)))
        self._calls[position].add(piece.get("id"), name, arguments)
        for kept, given, regular in (
            (self._calls[position].extras, piece, _CALL_KEYS),
            (self._calls[position].function_extras, function, _FUNCTION_KEYS),
        ):
            for key in given.keys() - regular:
                if given[key] is not None:
                    self._take(len(key) + len(encode_text(given[key])))
                    merge_field(kept, key, given[key])
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
            position = self._find_by_id(identifier, index, known, names=bool(function.get("name")))
        elif isinstance(index, int):
            position = len(self._calls) if known is None else known
        else:
            starts = bool(function.get("name")) or not self._calls
            position = len(self._calls) if starts else len(self._calls) - 1
        if isinstance(index, int):
            # Some servers count from 1, or leave numbers out.
            self._by_index[index] = position
        return position

    def _find_by_id(self, identifier: object, index: object, known: int | None, *, names: bool) -> int:
        """Where the call of this id is. `known`: the call that has the index; `names`: the piece names a function."""
        if known is not None and self._calls[known].id in (None, "", identifier):
            # An index may be filled by a call that was begun under no id.
            return known
        position = next((at for at, call in enumerate(self._calls) if call.id == identifier), None)
        # Some servers give several calls one id, and an index to each.
        is_another = names and isinstance(index, int) and known is None and position in self._by_index.values()
        return len(self._calls) if position is None or is_another else position


class _Call:
    """A tool call as its pieces arrive."""

    def __init__(self) -> None:
        self.id: Any = None
        self._name = ""
        self._arguments: list[str] = []
        self._given: Any = None
        self.extras: Json = {}
        """What the provider attaches to the call; `function_extras`: to the function in it."""
        self.function_extras: Json = {}

    @property
    def arguments(self) -> Any:
        """The text so far; or what it is instead, where a server sends an object."""
        return "".join(self._arguments) if self._given is None else self._given

    def add(self, identifier: Any, name: str | None, arguments: Any) -> None:
        self.id = self.id or identifier
        if name and name != self._name:
            self._name += name
        if len(self._name) > _MAX_NAME_CHARACTERS:
            raise OversizedReply(f"the model's answer calls a function by more than {_MAX_NAME_CHARACTERS} characters")
        if isinstance(arguments, str):
            self._arguments.append(arguments)
        elif arguments is not None:
            self._given = arguments

    def assemble(self) -> Json:
        function = {"name": self._name, "arguments": self.arguments, **self.function_extras}
        return {"id": self.id, "type": "function", "function": function, **self.extras}


def merge_field(kept: Json, key: str, value: Any) -> None:
    """Add what a piece says under a key that only its provider knows: lists are joined, else the last value counts."""
    before = kept.get(key)
    if isinstance(before, list) and isinstance(value, list):
        before += value
    elif value or before is None:
        # The first list is copied, as it grows.
        kept[key] = list(value) if isinstance(value, list) else value


def list_objects(value: object, name: str) -> list[Json]:
    """A list of objects, without the nulls that some servers send. Raises MalformedReply."""
    items = [item for item in value if item is not None] if isinstance(value, list) else value or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise MalformedReply(f"the model's answer holds {name} that are not a list of objects")
    return items


def read_content(content: object) -> str | None:
    """The text of a message, or of a piece of one. It may come in parts, as some models that think aloud send it.

    Raises MalformedReply if it is anything else: nobody would see that there was something.
    """
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise MalformedReply("the model's answer holds a content that is not a text")
    parts = [part.get("text") for part in content]
    return "".join(text for text in parts if isinstance(text, str))
