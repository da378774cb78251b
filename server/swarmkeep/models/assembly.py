"""From the chunks of a stream to the completion they are pieces of, and what servers do differently in whole ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

from swarmkeep.events.codec import Json, encode_text
from swarmkeep.events.records import classify_finish
from swarmkeep.models import call_pieces
from swarmkeep.models.failures import EmptyReply, MalformedReply, ReportedError, TruncatedStream
from swarmkeep.models.replies import END_OF_STREAM, Chunk, ReplyLimits, TextChunk

# One alternative is asked for. Some servers put the calls into another choice than the text; none has more than this.
_MAX_CHOICES = 8
# Of two reasons for one reply's end, the later in this list is believed: a "stop" behind it takes nothing back.
_ENDINGS = (None, "stop", "tool_calls", "length", "content_filter", "failed")
_MAX_EXACT = 2**53
# Parts that hold what a model thinks, and what of them comes in pieces.
_THOUGHT_TYPES = ("thinking", "reasoning.text", "reasoning.summary")
_THOUGHT_TEXTS = ("text", "thinking", "summary", "signature")
# More than any provider reports.
_MAX_COUNTS = 100


class Assembly:
    """Collects chunks as they are met in the wild: without choices, several calls in one, a whole message at the end.

    Half a character (a surrogate whose partner comes with the next chunk) and arguments that may be a placeholder are
    not shown before it is clear what they are; `finish` gives what is left of them.
    """

    def __init__(self, limits: ReplyLimits, functions: call_pieces.Functions = tuple) -> None:
        self._limits = limits
        self._functions = functions
        self._room = call_pieces.Room(limits)
        self._head: Json = {}
        self._usage: Json | None = None
        self._first = _MessagePieces(limits, self._room, functions)
        self._others: dict[int, _MessagePieces] = {}
        self._has_started = False
        self._has_ended = False
        self._has_stray = False
        """The last chunk is none: an error, perhaps, in words of a server's own."""
        self._is_finished = False

    @property
    def is_complete(self) -> bool:
        """True if the reply's end has been seen, even if more follows."""
        if self._first.finish_reason is not None or (self._has_ended and self._looks_whole and not self._has_stray):
            return True
        return not self._first.has_content and any(part.finish_reason for part in self._others.values())

    @property
    def _looks_whole(self) -> bool:
        """Tell if the text so far could be all: some servers end their streams without a reason."""
        parts = (self._first, *self._others.values())
        return all(part.calls.looks_whole for part in parts) and any(part.has_content for part in parts)

    @property
    def text(self) -> str:
        """The content so far, but for half a character."""
        return self._first.get_text("content")

    def add(self, chunk: Chunk) -> list[Json]:
        """Take a chunk; gives the deltas in it, in a regular shape."""
        if isinstance(chunk, TextChunk):
            self._has_stray = False
            if not self._head:
                self._head = {key: value for key, value in (("id", chunk.id), ("model", chunk.model)) if value}
            self._has_started = True
            text = self._first.add_text("content", chunk.choices[0].delta.content)
            return [{"content": text, "tool_calls": None}]
        if chunk is END_OF_STREAM:
            self._has_ended = True
            return []
        self._has_stray = chunk.keys().isdisjoint(("choices", "usage"))
        self._head = self._head or {key: chunk[key] for key in ("id", "model") if chunk.get(key)}
        groq = chunk.get("x_groq")
        self._usage = merge_usage(self._usage, chunk.get("usage") or (isinstance(groq, dict) and groq.get("usage")))
        deltas: list[Json] = []
        for choice in list_objects(chunk.get("choices"), "choices"):
            # Kimi counts in the choice.
            self._usage = merge_usage(self._usage, choice.get("usage"))
            if (part := self._find_part(choice.get("index"))) is not None:
                refuse_error(choice)
                said = self._add_choice(part, choice)
                deltas += said if part is self._first else []
        return deltas

    def finish(self) -> list[Json]:
        """End the reply; gives the deltas of what was held back, and of what came in other choices."""
        if self._is_finished or not self.is_complete:
            return []
        self._is_finished = True
        deltas = self._first.finish()
        for part in self._others.values():
            part.finish()
        added, reason = merge_choices(self._first.to_choice(), [part.to_choice() for part in self._others.values()])
        self._first.finish_reason = reason
        return [*deltas, self._first.add(added, is_message=True), *self._first.finish()] if added else deltas

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
        self.finish()
        return {**self._head, "usage": self._usage, "choices": [{"index": 0, **self._first.to_choice()}]}

    def _find_part(self, index: object) -> _MessagePieces | None:
        """The message of a choice; None for one more than is looked at."""
        if not index or index == "0":
            return self._first
        if not isinstance(index, int) or not 0 < index < _MAX_CHOICES:
            return None
        if index not in self._others:
            self._others[index] = _MessagePieces(self._limits, self._room, self._functions)
        return self._others[index]

    def _add_choice(self, part: _MessagePieces, choice: Json) -> list[Json]:
        part.note_finish(choice.get("finish_reason"))
        deltas: list[Json] = []
        for key in ("delta", "message"):
            if isinstance(said := choice.get(key), dict) and said:
                self._has_started = True
                deltas.append(part.add(said, is_message=key == "message"))
        return deltas


class _MessagePieces:
    """The message of one choice as its pieces arrive."""

    def __init__(self, limits: ReplyLimits, room: call_pieces.Room, functions: call_pieces.Functions) -> None:
        self.finish_reason: Any = None
        self.calls = call_pieces.StreamedCalls(limits, room, functions)
        self._room = room
        self._texts: dict[str, list[str]] = {}
        self._halves: dict[str, str] = {}
        self._other_fields: Json = {}
        self._parts: list[tuple[int, Json]] = []
        """Parts of the content that are no text, and how many pieces of its text came before each."""
        self._has_deltas = False

    @property
    def has_content(self) -> bool:
        return bool(self.calls) or any(self._texts.get("content", ()))

    def get_text(self, key: str) -> str:
        return "".join(self._texts.get(key, ()))

    def note_finish(self, reason: Any) -> None:
        """Take a reason for the end. Some servers give one with each of several chunks; the gravest counts."""
        ending = classify_finish(reason)
        if not reason or (ending is None and isinstance(reason, str)):
            return
        if self.finish_reason is None or _rank(reason) > _rank(self.finish_reason):
            self.finish_reason = reason

    def add_text(self, key: str, text: str) -> str:
        """Keep a piece of a text; returns what may be shown by now."""
        parts = self._texts.get(key)
        if parts and not self._halves and not "\ud800" <= text[-1:] <= "\udbff" and len(text) <= self._room.left:
            # Nearly all are such.
            self._room.left -= len(text)
            parts.append(text)
            return text
        if half := self._halves.pop(key, ""):
            text = call_pieces.join_half(half, text)
        if call_pieces.ends_in_half(text):
            self._halves[key], text = text[-1], text[:-1]
        if parts is None:
            self._room.take(len(key))
            parts = self._texts[key] = []
        self._room.take(len(text))
        parts.append(text)
        return text

    def add(self, said: Json, *, is_message: bool) -> Json:
        """Take a delta, or a whole message; gives what is new in it, in a regular shape."""
        regular: Json = {"content": None, "tool_calls": None}
        is_whole = is_message and (self._has_deltas or self.finish_reason is not None)
        for key, value in said.items():
            if key == "tool_calls":
                pieces = list_objects(value, "tool calls")
                are_whole = is_message and not any("index" in piece for piece in pieces)
                add = self.calls.add_whole if are_whole else self.calls.add
                regular["tool_calls"] = add(pieces) or None
            elif key == "function_call" and isinstance(value, dict):
                if not said.get("tool_calls") and any(value.values()):
                    regular["tool_calls"] = self.calls.add_legacy(value) or None
            elif key == "content" and isinstance(value, list) and not (is_whole and self.get_text(key)):
                regular[key] = self._add_parts(value)
            elif key != "role" and isinstance(text := read_content(value) if key == "content" else value, str):
                regular[key] = self.add_text(key, self._find_rest(key, text, is_whole=is_whole) if is_message else text)
            elif value is not None:
                self._add_field(key, value, is_whole=is_whole)
        self._has_deltas = self._has_deltas or (not is_message and any(said.get(key) for key in said if key != "role"))
        return regular

    def _add_field(self, key: str, value: Any, *, is_whole: bool) -> None:
        self._room.take(len(key) + len(encode_text(value)))
        if not is_whole:
            call_pieces.merge_field(self._other_fields, key, value)
        elif value or key not in self._other_fields:
            self._other_fields[key] = value

    def _add_parts(self, parts: list[Json]) -> str:
        """Keep a content in parts, as models that think aloud send it; returns its text."""
        read_content(parts)
        shown = []
        for part in parts:
            if isinstance(text := part.get("text"), str):
                shown.append(self.add_text("content", text))
            else:
                self._room.take(len(encode_text(part)))
                self._parts.append((len(self._texts.get("content", ())), part))
        if "content" not in self._texts:
            self.add_text("content", "")
        return "".join(shown)

    def _find_rest(self, key: str, text: str, *, is_whole: bool) -> str:
        """Return the part of a whole message's text that has not come by now. Some servers send pieces under `message`,
        too, and some each time all that there is so far."""
        so_far = self.get_text(key)
        if not so_far:
            return text
        if text.startswith(so_far) and (is_whole or len(text) > len(so_far)):
            self._halves.pop(key, None)
            return text[len(so_far) :]
        # What was shown stays, if the whole is another text.
        return "" if self._has_deltas else text

    def finish(self) -> list[Json]:
        """Return the text that was held back, as deltas."""
        is_cut = classify_finish(self.finish_reason) not in ("stop", "tool_calls")
        deltas: list[Json] = []
        for key, half in self._halves.items():
            self._texts[key].append(half)
            deltas.append({"content": None, "tool_calls": None, key: half})
        self._halves = {}
        if pieces := self.calls.finish(is_cut=is_cut):
            deltas.append({"content": None, "tool_calls": pieces})
        return deltas

    def to_choice(self) -> Json:
        """The choice as a request without streaming would have answered."""
        fields = {
            key: join_thoughts(value) if isinstance(value, list) else value for key, value in self._other_fields.items()
        }
        message: Json = {**fields, "role": "assistant", "content": None}
        message |= {key: "".join(parts) for key, parts in self._texts.items()}
        if self._parts:
            message["content"] = self._join_parts()
        if self.calls:
            message["tool_calls"] = self.calls.assemble()
        return {"finish_reason": self.finish_reason, "message": message}

    def _join_parts(self) -> list[Json]:
        """The content as a request without streaming would have answered: in parts, each whole."""
        texts, parts, begin = self._texts["content"], [], 0
        for position, part in [*self._parts, (len(texts), None)]:
            if text := "".join(texts[begin:position]):
                parts.append({"type": "text", "text": text})
            parts += [part] if part is not None else []
            begin = position
        return join_thoughts(parts)


class _Thought:
    """Pieces of one part of what a model thinks."""

    def __init__(self, piece: Json) -> None:
        self._fields = {key: value for key, value in piece.items() if key not in _THOUGHT_TEXTS}
        self._texts: dict[str, list[Any]] = {}
        self.add(piece)

    def takes(self, piece: object) -> bool:
        """Tell if the piece is more of the same part: a signature ends one, unless they are numbered."""
        if not isinstance(piece, dict) or ("signature" in self._texts and "index" not in self._fields):
            return False
        return all(
            value is None or (type(value) is type(self._texts[key][0]) if key in self._texts else True)
            if key in _THOUGHT_TEXTS
            else value is None or self._fields.get(key) in (None, value)
            for key, value in piece.items()
        ) and piece.get("type") == self._fields.get("type")

    def add(self, piece: Json) -> None:
        for key, value in piece.items():
            if key in _THOUGHT_TEXTS and value:
                self._texts.setdefault(key, []).append(value)
            elif key not in _THOUGHT_TEXTS and value is not None:
                self._fields[key] = value

    def join(self) -> Json:
        return self._fields | {key: _join_values(values) for key, values in self._texts.items()}


def join_thoughts(entries: list[Any]) -> list[Any]:
    """A list as a request without streaming would have answered: pieces of thoughts that follow each other in one.

    OpenRouter, Mistral and gateways in front of Anthropic stream them so. Anthropic takes none without its signature.
    """
    joined: list[Any] = []
    for entry in entries:
        if joined and isinstance(joined[-1], _Thought) and joined[-1].takes(entry):
            joined[-1].add(entry)
        else:
            is_thought = isinstance(entry, dict) and entry.get("type") in _THOUGHT_TYPES
            joined.append(_Thought(entry) if is_thought else entry)
    return [entry.join() if isinstance(entry, _Thought) else entry for entry in joined]


def _join_values(values: list[Any]) -> Any:
    if all(isinstance(value, str) for value in values):
        return "".join(values)
    if not all(isinstance(value, list) for value in values):
        return values[-1]
    parts = [part for value in values for part in value]
    if all(
        isinstance(part, dict) and part.keys() == {"type", "text"} and isinstance(part["text"], str) for part in parts
    ):
        return [{"type": "text", "text": "".join(part["text"] for part in parts)}]
    return parts


def _rank(reason: Any) -> int:
    return _ENDINGS.index(classify_finish(reason))


def read_choice(completion: Json) -> Json:
    """The choice of a completion that came whole, with what belongs to it from others. Raises EmptyReply."""
    choices = completion.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise EmptyReply("the model's answer holds no choice")
    first, *others = (_convert_legacy(choice) for choice in choices[:_MAX_CHOICES] if isinstance(choice, dict))
    refuse_error(first)
    if not isinstance(first.get("message"), dict):
        raise EmptyReply("the model's answer holds no message")
    added, reason = merge_choices(first, [choice for choice in others if isinstance(choice.get("message"), dict)])
    return {**first, "message": first["message"] | added, "finish_reason": reason} if others else first


def _convert_legacy(choice: Json) -> Json:
    """The choice with a call of OpenAI's old kind (`function_call`) as one of today's."""
    message = choice.get("message")
    called = message.get("function_call") if isinstance(message, dict) else None
    if not isinstance(called, dict) or not isinstance(message, dict):
        return choice
    message = {key: value for key, value in message.items() if key != "function_call"}
    if not message.get("tool_calls") and any(called.values()):
        message["tool_calls"] = [{"id": None, "type": "function", "function": called}]
    return {**choice, "message": message}


def refuse_error(choice: Json) -> None:
    """Raise ReportedError for a choice that holds an error: OpenRouter puts that of its provider there, with any
    reason for the end."""
    for place in (choice, choice.get("delta"), choice.get("message")):
        if isinstance(place, dict) and place.get("error"):
            raise ReportedError(place["error"])


def merge_choices(first: Json, others: Sequence[Json]) -> tuple[Json, Any]:
    """Return the others' parts that belong to the first choice's message, and the reason for the end.

    GitHub Copilot puts the text of Claude into one choice and its calls into another. A choice that has again what is
    there already is another answer, which was not asked for. Calls without a reason for their end may have been cut.
    """
    message, reason = first["message"], first.get("finish_reason")
    added: Json = {}
    has_calls, has_text = bool(message.get("tool_calls")), bool(message.get("content"))
    for choice in others:
        other = choice["message"]
        calls, text = other.get("tool_calls"), other.get("content")
        if (calls and has_calls) or (text and has_text) or not (calls or text):
            continue
        has_text = has_text or bool(text)
        kept = added.get("tool_calls") or []
        fields = {key: value for key, value in other.items() if value and not message.get(key) and key not in added}
        added |= {key: value for key, value in fields.items() if key != "role"}
        if calls and kept:
            added["tool_calls"] = [*kept, *list_objects(calls, "tool calls")]
        ended = choice.get("finish_reason")
        if calls and classify_finish(ended) is None and classify_finish(reason) == "stop":
            # The text came to its end, and not these calls.
            reason = None
        elif _rank(ended) > _rank(reason):
            reason = ended
    return added, reason


def list_objects(value: object, name: str) -> list[Json]:
    """A list of objects, without the nulls that some servers send. Raises MalformedReply."""
    items = [item for item in value if item is not None] if isinstance(value, list) else value or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise MalformedReply(f"the model's answer holds {name} that are not a list of objects")
    return items


def read_content(content: object) -> str | None:
    """The text of a message, or of a piece of one. It may come in parts, as some models that think aloud send it.

    Raise MalformedReply if it is anything else: otherwise no one would see that there was something.
    """
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise MalformedReply("the model's answer holds a content that is not a text")
    parts = [part.get("text") for part in content]
    return "".join(text for text in parts if isinstance(text, str))


def merge_usage(before: Json | None, reported: object) -> Json | None:
    """The counts after another report, added to `before`: each is the last one that counts something.

    Some servers report zeros with every chunk but one, or the two sides of a call apart.
    """
    if not isinstance(reported, dict) or not reported:
        return before
    if not before:
        return dict(reported)
    _merge_counts(before, reported)
    for key, value in reported.items():
        if isinstance(value, dict) and isinstance(before.get(key), dict):
            _merge_counts(before[key], value)
    prompt, completion, total = (before.get(name) for name in ("prompt_tokens", "completion_tokens", "total_tokens"))
    if _is_count(prompt) and _is_count(completion) and _is_count(total) and total < prompt + completion:
        before["total_tokens"] = prompt + completion
    return before


def _merge_counts(before: Json, reported: Json) -> None:
    for name, value in reported.items():
        if name in before and (isinstance(value, dict) or not value):
            continue
        if name in before or len(before) < _MAX_COUNTS:
            before[name] = value


def complete_usage(reported: object) -> Json | None:
    """The counts as they are recorded: `12.0` is 12, and a total that is missing is the sum. None if there are none."""
    if not isinstance(reported, dict):
        return None
    usage = {name: _to_whole(count) for name, count in reported.items()}
    sides = [usage[name] for name in ("prompt_tokens", "completion_tokens") if _is_count(usage.get(name))]
    if not usage.get("total_tokens") and any(sides):
        usage["total_tokens"] = sum(sides)
    return usage


def _to_whole(count: Any) -> Any:
    if isinstance(count, dict):
        return {name: value if isinstance(value, dict) else _to_whole(value) for name, value in count.items()}
    return int(count) if isinstance(count, float) and count.is_integer() and abs(count) <= _MAX_EXACT else count


def _is_count(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
