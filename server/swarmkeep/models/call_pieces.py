"""Tool calls of a streamed reply, put together from the pieces that servers send, in whichever dialect they do.

A piece is first given to a call by its index, its id or its place behind another one (`StreamedCalls._find`). The table
`RULES` then says what it means there: more of that call, a new call, or something said before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from swarmkeep.events.codec import Json, decode, encode_sorted, encode_text
from swarmkeep.events.wording import pluralize
from swarmkeep.models.failures import MalformedReply, OversizedReply
from swarmkeep.models.replies import ReplyLimits, has_excess_values

# A name comes in pieces, too, with some servers.
_MAX_NAME_CHARACTERS = 1000
_CALL_KEYS = {"index", "id", "type", "function"}
_FUNCTION_KEYS = {"name", "arguments"}
# What arguments begin with; space may come first.
_MAY_OPEN = "{ \n\r\t"
# What some servers send as arguments before there are any.
_PLACEHOLDERS = ("{}", "null")
# More than a server puts behind a call, if it is only space.
_LAST_CHARACTERS = 100
# What two texts may have that are compared by what they say.
_LONG_CHARACTERS = 200_000
LEGACY_INDEX = "function_call"
"""The index of the one call that a server of OpenAI's old kind makes."""


# The names of the functions that a request lets the model call; asked for only where they decide.
Functions = Callable[[], Collection[str]]


class Room:
    """The characters of a reply that may still be kept."""

    def __init__(self, limits: ReplyLimits) -> None:
        self._limits = limits
        self.left = limits.bytes

    def take(self, characters: int) -> None:
        """Count what is kept. Raises OversizedReply when there is no room for it."""
        self.left -= characters
        if self.left < 0:
            raise OversizedReply(f"the model's answer is longer than {self._limits.bytes:,} characters")


def join_half(half: str, text: str) -> str:
    """The text behind half a character (a high surrogate), as one character where its other half follows."""
    if text and "\udc00" <= text[0] <= "\udfff":
        return (half + text[0]).encode("utf-16-le", "surrogatepass").decode("utf-16-le") + text[1:]
    return half + text


def ends_in_half(text: str) -> bool:
    """Tell if the other half of the last character is missing."""
    return "\ud800" <= text[-1:] <= "\udbff"


def merge_field(kept: Json, key: str, value: Any) -> None:
    """Add what a piece says under a key that only its provider knows: lists are joined, else the last value counts."""
    before = kept.get(key)
    if isinstance(before, list) and isinstance(value, list):
        before += value
    elif value or before is None:
        # The first list is copied, as it grows.
        kept[key] = list(value) if isinstance(value, list) else value


class _Piece(msgspec.Struct):
    """A piece as it came, in one shape. `text`: of the arguments, if it has some. `chunk`: the number of its chunk."""

    index: int | float | str | None
    id: str
    name: str
    text: str | None
    extras: Json
    function_extras: Json
    chunk: int


class _Call:
    """A tool call as its pieces arrive."""

    def __init__(self) -> None:
        self.id = ""
        self.ids: set[str] = set()
        self.next_id = ""
        """Another id, which came alone when the arguments were whole; the next piece tells what it is of."""
        self.name = ""
        self.chunk = -1
        self.has_index = False
        self.is_named_again = False
        """Its name came once more when its arguments were whole; what follows may be another call of it."""
        self.is_held = False
        """Its arguments are one of `_PLACEHOLDERS`, which is not shown before it is clear that it is none."""
        self.repeated = 0
        """How much of its arguments has come once more; `repeats` is the piece that began that."""
        self.repeats: _Piece | None = None
        self.half = ""
        self.extras: Json = {}
        self.function_extras: Json = {}
        self.is_named_late = False
        """Its name came after its arguments."""
        self._parts: list[str] = []
        self._size = 0
        self._is_whole: bool | None = False

    @property
    def arguments(self) -> str:
        """The text so far."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    @property
    def has_arguments(self) -> bool:
        return bool(self._parts)

    def append(self, text: str) -> str:
        """Add to the arguments; returns what may be shown of it."""
        text = join_half(self.half, text) if self.half else text
        self.half = text[-1] if ends_in_half(text) else ""
        text = text[:-1] if self.half else text
        if not text:
            return ""
        before = self.arguments if self.is_held else ""
        self.is_held = text in _PLACEHOLDERS and not self._size
        self.append_more(text)
        return "" if self.is_held else before + text

    def append_more(self, text: str) -> None:
        self._parts.append(text)
        self._size += len(text)
        self._is_whole = None

    def replace(self, text: str) -> str:
        self._parts.clear()
        self._size, self.is_held = 0, False
        return self.append(text)

    def flush(self) -> str:
        """Return the part of the arguments that was not shown, at the end."""
        rest = (self.arguments if self.is_held else "") + self.half
        if self.half:
            self._parts.append(self.half)
        self.is_held, self.half = False, ""
        return rest

    def is_whole(self, checker: _Checker) -> bool:
        """Tell if the arguments are JSON from end to end, so that nothing can follow."""
        if self._is_whole is None:
            # Not put together for nothing: a name may come with each of many pieces.
            self._is_whole = (
                may_end_json(self._parts[-1]) and checker.allows(self._size) and checker.is_whole(self.arguments)
            )
        return self._is_whole

    def assemble(self) -> Json:
        function = {"name": self.name, "arguments": self.arguments, **self.function_extras}
        return {"id": self.id or None, "type": "function", "function": function, **self.extras}


class _Checker:
    """Finds out whether texts are whole JSON, at a cost that grows with the reply only: a server that has texts looked
    at again and again is no longer believed to send another call."""

    def __init__(self, limits: ReplyLimits) -> None:
        self._limits = limits
        self._room = 4 * limits.bytes

    def allows(self, characters: int) -> bool:
        """Tell if so much may be looked at."""
        self._room -= characters
        return self._room >= 0

    def is_whole(self, text: str) -> bool:
        stripped = text.strip()
        if not stripped or stripped[0] not in '{["' or not may_end_json(stripped):
            return False
        return self.allows(len(text)) and is_json(stripped, self._limits)

    def are_equal(self, one: str, other: str) -> bool:
        """Tell if two texts that are whole JSON say the same; of long ones, whether they are the same."""
        if one == other or len(one) + len(other) > _LONG_CHARACTERS:
            return one == other
        try:
            return encode_sorted(decode(one)) == encode_sorted(decode(other))
        except RecursionError:
            return False


def may_end_json(text: str) -> bool:
    """Tell if JSON of an object, a list or a text could end so; as far as is seen in its last characters."""
    return text[-_LAST_CHARACTERS:].rstrip()[-1:] in ("}", "]", '"')


def is_json(arguments: str, limits: ReplyLimits) -> bool:
    """Tell if a call's arguments are JSON, or are refused anyway for their content."""
    if has_excess_values(arguments, limits):
        return True
    try:
        decode(arguments)
    except ValueError:
        return False
    return True


class Act(Enum):
    JOIN = "more of the same call"
    NEW = "the beginning of another call"
    REPLACE = "the arguments in the place of the `{}` that came first"
    COMPARE = "the same once more, and another call as soon as it differs"


class _Meeting(msgspec.Struct):
    """A piece, and the call that it was given to: by its index, by its id, or because it is the last one."""

    piece: _Piece
    call: _Call
    checker: _Checker
    by_index: bool
    counts_calls: bool
    """Whether this server gives each call an index of its own."""
    list_functions: Functions
    """The names that the model may call."""

    @property
    def names(self) -> bool:
        return bool(self.piece.name)

    @property
    def same_name(self) -> bool:
        return self.piece.name == self.call.name

    @property
    def completes_name(self) -> bool:
        """Tell if the names of call and piece together, and not apart, begin one that the model may call."""
        before, more = self.call.name, self.piece.name
        if not (before and more) or self.call.has_arguments:
            return False
        functions = self.list_functions()
        return not {before, more} <= {*functions} and any(name.startswith(before + more) for name in functions)

    @property
    def names_another(self) -> bool:
        return self.names and bool(self.call.name) and not self.same_name

    @property
    def fills(self) -> bool:
        """Tell if the call has neither name nor arguments, and the piece brings some."""
        return not (self.call.name or self.call.has_arguments) and bool(self.names or self.text)

    @property
    def text(self) -> str:
        return self.piece.text or ""

    @property
    def other_id(self) -> bool:
        return bool(self.piece.id and self.call.id and self.piece.id not in self.call.ids)

    @property
    def has_key(self) -> bool:
        """Tell if the server said which call it is a piece of."""
        return self.by_index or bool(self.piece.id)

    @property
    def whole(self) -> bool:
        return self.call.is_whole(self.checker)

    @property
    def text_is_whole(self) -> bool:
        return self.checker.is_whole(self.text)

    @property
    def tells_calls_apart(self) -> bool:
        """Tell if a second call would come with an id or an index of its own."""
        return bool(self.call.id) or self.counts_calls

    @property
    def fills_placeholder(self) -> bool:
        """Tell if what came before the arguments was no call of its own: that would have had an id, too.

        Two calls of one function, the first without arguments, look the same in a stream without ids, and count as one.
        """
        if self.tells_calls_apart or self.piece.id or (self.has_key and not self.text_is_whole):
            return True
        return self.same_name and self.piece.chunk != self.call.chunk and self.text.strip() != self.call.arguments

    @property
    def is_beside(self) -> bool:
        """Tell if it stands in one list with the last piece of the call, and nothing says that they are of one call."""
        return self.piece.chunk == self.call.chunk and not (self.has_key or self.tells_calls_apart)

    @property
    def begins_again(self) -> bool:
        return self.call.is_named_again and not self.tells_calls_apart

    @property
    def is_beginning(self) -> bool:
        """Tell if the server names calls at another time, so that an id without a name may begin one."""
        return self.other_id and (self.call.is_named_late or self.call.is_named_again)

    @property
    def opens(self) -> bool:
        """Tell if its text may be the beginning of arguments."""
        return self.text.lstrip()[:1] == "{"


class Rule(NamedTuple):
    """The meaning of a piece for its call where `fits` holds, and the reason; `seen`: the servers that send such
    pieces."""

    act: Act
    fits: Callable[[_Meeting], bool]
    reason: str
    seen: str


# The first row that fits counts. To run a call once too seldom is better than to run it with arguments that the model
# did not give; where a piece may be either, rows are in that order.
RULES: tuple[Rule, ...] = (
    Rule(
        Act.COMPARE,
        lambda m: bool(m.call.repeated and m.text) and not m.other_id and not m.names_another,
        "a repetition has begun, and may come in pieces",
        "gateways that send all of a call once more at its end",
    ),
    Rule(
        Act.JOIN,
        lambda m: m.completes_name,
        "a name in pieces, with any ids: together they name a function that the model was given",
        "gateways that number pieces; small servers that stream each token of a call",
    ),
    Rule(
        Act.NEW,
        lambda m: m.other_id and not m.by_index and (m.names or not m.call.name) and not m.fills,
        "without an index, the id is all that tells calls apart",
        "gateways in front of Anthropic; servers that send whole calls",
    ),
    Rule(
        Act.NEW,
        lambda m: m.other_id and m.names_another,
        "another function under another id",
        "Ollama: index 0 for all calls",
    ),
    Rule(
        Act.REPLACE,
        lambda m: m.names and not m.call.name and m.call.is_held and m.opens,
        "`{}` comes first, as a placeholder, and the name with the arguments",
        "gateways in front of Anthropic and Bedrock",
    ),
    Rule(
        Act.COMPARE,
        lambda m: m.names and not m.call.name and m.opens and m.whole,
        "the arguments come first, and once more with the name",
        "gateways that send all of a call once more at its end",
    ),
    Rule(
        Act.JOIN,
        lambda m: m.names and not m.call.name,
        "the name comes after the arguments, or was empty at first",
        "gateways that translate from another interface",
    ),
    Rule(
        Act.JOIN,
        lambda m: m.other_id and m.names and (bool(m.text) or m.call.has_arguments) and not m.whole,
        "a new id, and the name, with each piece: arguments that have begun are not left in the middle",
        "gateways that number pieces (poolsideai/pool#9, NousResearch/hermes-agent#106943)",
    ),
    Rule(
        Act.NEW,
        lambda m: m.other_id and m.names,
        "two calls of one function, told apart by their ids only",
        "Ollama: index 0 for all calls",
    ),
    Rule(
        Act.NEW,
        lambda m: m.names and not m.same_name and m.whole,
        "another function is named when the arguments are whole",
        "Gemini: index 0 for all calls, and empty ids",
    ),
    Rule(
        Act.NEW,
        lambda m: m.names and not m.same_name and not m.has_key,
        "without index and id, another name is another call",
        "small servers that send whole calls",
    ),
    Rule(
        Act.JOIN,
        lambda m: m.names and not m.text and m.whole and not m.is_beside,
        "the name comes with each piece, or once more for another call: the next piece tells",
        "vLLM's parsers; Gemini",
    ),
    Rule(
        Act.REPLACE,
        lambda m: m.names and m.call.is_held and m.opens and m.fills_placeholder,
        "`{}` comes first, as a placeholder, and the name with each piece",
        "gateways in front of Anthropic and Bedrock",
    ),
    Rule(
        Act.COMPARE,
        lambda m: m.names and m.whole and m.tells_calls_apart,
        "all arguments once more in the last piece, or another call under the same id",
        "gateways (NousResearch/hermes-agent#5384)",
    ),
    Rule(
        Act.NEW,
        lambda m: m.names and m.whole,
        "a function is named when the arguments are whole",
        "Gemini: index 0 for all calls, and empty ids",
    ),
    Rule(
        Act.NEW,
        lambda m: m.names and m.is_beside and not m.call.has_arguments,
        "two calls without arguments, side by side in one list",
        "small servers that send whole calls",
    ),
    Rule(
        Act.REPLACE,
        lambda m: m.call.is_held and m.opens and m.text.strip() != m.call.arguments and not m.is_beginning,
        "`{}` or `null` comes first, as a placeholder",
        "gateways in front of Anthropic and Bedrock (BerriAI/litellm#4537, openai/openai-agents-js#712)",
    ),
    Rule(
        Act.NEW,
        lambda m: m.opens and (m.other_id or m.begins_again) and m.whole,
        "arguments of another call, whose name came before them, or will come",
        "Gemini; gateways that translate from another interface",
    ),
    Rule(
        Act.COMPARE,
        lambda m: m.opens and m.whole,
        "all arguments once more in the last piece; or another call's, whose name will come",
        "vLLM, where its last piece was all that it took to be left",
    ),
    Rule(
        Act.JOIN,
        lambda m: True,
        "the next piece of the arguments or the name, the name with each piece, the id with the last one",
        "OpenAI; vLLM's parsers, gateways",
    ),
)


class StreamedCalls:
    """The calls of a reply. What it gives as deltas adds up to what it assembles. `functions`: what may be called."""

    def __init__(self, limits: ReplyLimits, room: Room, functions: Functions) -> None:
        self._functions = functions
        self._limits = limits
        self._room = room
        self._checker = _Checker(limits)
        self._calls: list[_Call] = []
        self._by_index: dict[int | float | str, int] = {}
        self._by_id: dict[str, int] = {}
        self._chunk = 0

    def __bool__(self) -> bool:
        return bool(self._calls)

    @property
    def looks_whole(self) -> bool:
        """Tell if the arguments of all calls could be all: they are JSON, or there are none."""
        return all(not call.arguments.strip() or is_json(call.arguments, self._limits) for call in self._calls)

    def assemble(self) -> list[Json]:
        mirror = self._by_index.get(LEGACY_INDEX)
        return [call.assemble() for position, call in enumerate(self._calls) if not self._is_mirrored(position, mirror)]

    def _is_mirrored(self, position: int, mirror: int | None) -> bool:
        """Tell if a call of the old kind came as one of today's kind, too: it is one call."""
        old = self._calls[position]
        return position == mirror and any(
            call.name == old.name and self._say_the_same(call, old) for call in self._calls if call is not old
        )

    def _say_the_same(self, one: _Call, other: _Call) -> bool:
        if one.arguments == other.arguments:
            return True
        are_whole = one.is_whole(self._checker) and other.is_whole(self._checker)
        return are_whole and self._checker.are_equal(one.arguments, other.arguments)

    def add_legacy(self, function: Json) -> list[Json]:
        """Take a piece of the one call of OpenAI's old kind, unless calls of today's kind have come: it mirrors one."""
        if self._calls and LEGACY_INDEX not in self._by_index:
            return []
        return self.add([{"index": LEGACY_INDEX, "function": function}])

    def add(self, pieces: list[Json]) -> list[Json]:
        """Take the pieces of a chunk; returns what is new in them, in a regular shape."""
        self._chunk += 1
        shown: list[Json] = []
        for piece in pieces:
            if (delta := self._add_arguments(piece)) is not None:
                shown.append(delta)
            else:
                shown += self._add(self._read(piece))
        return shown

    def add_whole(self, calls: list[Json]) -> list[Json]:
        """Take the calls of a whole message, which some servers send behind the pieces of it."""
        self._chunk += 1
        known = len(self._calls)
        shown: list[Json] = []
        for number, given in enumerate(calls):
            piece = self._read(given)
            position = self._by_id.get(piece.id, number) if known else known
            if position >= known:
                shown += self._begin(piece)
            elif piece.name == self._calls[position].name or not self._calls[position].name:
                shown += self._complete(position, piece)
        return shown

    def finish(self, *, is_cut: bool) -> list[Json]:
        """Take what was held back as it is. `is_cut`: the reply is not whole, so what looks like the beginning of a
        repetition may be one of another call."""
        shown: list[Json] = []
        for position, call in enumerate(list(self._calls)):
            if rest := call.flush():
                shown.append(_make_delta(position, text=rest))
            if is_cut and call.repeats is not None and (call.is_named_again or call.repeats.name):
                shown += self._begin(self._make_other(call, replace(call.repeats, text="")))
        return shown

    def _read(self, piece: Json) -> _Piece:
        function = piece.get("function")
        function = function if isinstance(function, dict) else {}
        name, arguments, index, identifier = (
            function.get("name"),
            function.get("arguments"),
            piece.get("index"),
            piece.get("id"),
        )
        if not isinstance(name, str | None):
            raise MalformedReply("a tool call in the model's stream has a name that is not text")
        if not isinstance(arguments, str | None):
            # Some servers send an object rather than its text.
            arguments = encode_text(arguments)
        if isinstance(identifier, int | float) and not isinstance(identifier, bool):
            identifier = str(identifier)
        return _Piece(
            index if isinstance(index, int | float | str) and not isinstance(index, bool) else None,
            identifier if isinstance(identifier, str) else "",
            name or "",
            arguments,
            _pick_extras(piece, _CALL_KEYS),
            _pick_extras(function, _FUNCTION_KEYS),
            self._chunk,
        )

    def _add_arguments(self, piece: Json) -> Json | None:
        """Take a piece that can only be more arguments of the call under its index, as nearly all are."""
        function = piece.get("function")
        if type(function) is not dict or function.get("name") or piece.get("id"):
            return None
        index, text = piece.get("index"), function.get("arguments")
        if type(text) is not str or not text or text[0] in _MAY_OPEN or ends_in_half(text) or type(index) is not int:
            return None
        position = self._by_index.get(index)
        if position is None or not (piece.keys() <= _CALL_KEYS and function.keys() <= _FUNCTION_KEYS):
            return None
        call = self._calls[position]
        if call.repeated or call.is_held or call.half or text in _PLACEHOLDERS:
            return None
        self._room.take(len(text))
        call.append_more(text)
        call.chunk = self._chunk
        return _make_delta(position, text=text)

    def _add(self, piece: _Piece) -> list[Json]:
        position = self._find(piece)
        if position is None:
            return self._begin(piece)
        call = self._calls[position]
        if piece.name and not piece.id:
            piece.id = call.next_id
        by_index = piece.index is not None and self._by_index.get(piece.index) == position
        counts_calls = len(self._by_index) > 1 or (0 not in self._by_index and bool(self._by_index))
        meeting = _Meeting(piece, call, self._checker, by_index, counts_calls, self._functions)
        act = next(rule.act for rule in RULES if rule.fits(meeting))
        if act is Act.NEW:
            call.repeated, call.repeats = 0, None
            return self._begin(self._make_other(call, piece))
        if act is Act.COMPARE:
            return self._compare(position, piece)
        if meeting.other_id and not (piece.name or piece.text) and meeting.whole:
            call.next_id, piece.id = piece.id, ""
        return self._join(position, piece, replaces=act is Act.REPLACE)

    def _find(self, piece: _Piece) -> int | None:
        """The call that a piece is held against; None if it is a new one."""
        known = None if piece.index is None else self._by_index.get(piece.index)
        by_id = self._by_id.get(piece.id) if piece.id else None
        if known is not None:
            # An index may be filled by a call that was begun under no id.
            return known if by_id is None or not self._calls[known].id else self._prefer(known, by_id, piece)
        if by_id is not None:
            # Some servers give several calls one id, and an index to each.
            is_another = piece.name and piece.index is not None and self._calls[by_id].has_index
            return None if is_another and not self._is_said_again(self._calls[by_id], piece) else by_id
        if piece.index is not None or not self._calls:
            return None
        return len(self._calls) - 1

    def _is_said_again(self, call: _Call, piece: _Piece) -> bool:
        """Tell if the piece is the whole call once more: gateways repeat calls behind all, as if they were new."""
        if piece.name != call.name or not call.is_whole(self._checker) or not self._checker.is_whole(piece.text or ""):
            return False
        return self._checker.are_equal(call.arguments, piece.text or "")

    def _prefer(self, by_index: int, by_id: int, piece: _Piece) -> int:
        return by_index if piece.id in self._calls[by_index].ids else by_id

    def _begin(self, piece: _Piece) -> list[Json]:
        position = len(self._calls)
        if position == self._limits.calls:
            raise OversizedReply(f"the model's answer has more than {pluralize(self._limits.calls, 'tool call')}")
        self._calls.append(_Call())
        return self._join(position, piece)

    def _make_other(self, call: _Call, piece: _Piece) -> _Piece:
        """The piece as the beginning of another call, with what was taken for a repetition of `call` before it."""
        if call.repeats is not None:
            piece.text = call.arguments[: call.repeated] + (piece.text or "")
            piece.id, piece.name = piece.id or call.repeats.id, piece.name or call.repeats.name
        if call.is_named_again and not piece.id:
            piece.name = piece.name or call.name
        piece.id = piece.id or call.next_id
        call.repeated, call.repeats, call.is_named_again, call.next_id = 0, None, False, ""
        return piece

    def _join(self, position: int, piece: _Piece, *, replaces: bool = False) -> list[Json]:
        call = self._calls[position]
        self._room.take(len(piece.name) + len(piece.text or ""))
        self._note_keys(position, piece)
        new_id = piece.id if piece.id and not call.id else None
        call.id = call.id or piece.id
        call.chunk = piece.chunk
        new_name = piece.name if piece.name != call.name else ""
        if piece.name and not new_name and not piece.text and call.has_arguments and call.is_whole(self._checker):
            call.is_named_again = True
        call.is_named_late = call.is_named_late or bool(new_name and not call.name and call.has_arguments)
        call.name += new_name
        if len(call.name) > _MAX_NAME_CHARACTERS:
            raise OversizedReply(f"the model's answer calls a function by more than {_MAX_NAME_CHARACTERS} characters")
        self._keep_extras(call, piece)
        text = piece.text
        if text is not None:
            text = call.replace(text) if replaces else call.append(text)
        if new_id is None and not new_name and text is None and piece.extras == piece.function_extras == {}:
            return []
        return [_make_delta(position, id=new_id, name=new_name or None, text=text)]

    def _keep_extras(self, call: _Call, piece: _Piece) -> None:
        for kept, extras in ((call.extras, piece.extras), (call.function_extras, piece.function_extras)):
            for key, value in extras.items():
                self._room.take(len(key) + len(encode_text(value)))
                merge_field(kept, key, value)

    def _note_keys(self, position: int, piece: _Piece) -> None:
        call = self._calls[position]
        if piece.index is not None:
            # Some servers count from 1, or leave numbers out.
            if isinstance(piece.index, str) and piece.index not in self._by_index:
                self._room.take(len(piece.index))
            self._by_index[piece.index] = position
            call.has_index = True
        if piece.id and piece.id not in call.ids:
            self._room.take(len(piece.id))
            call.ids.add(piece.id)
        if piece.id:
            self._by_id[piece.id] = position

    def _compare(self, position: int, piece: _Piece) -> list[Json]:
        """Leave out what says the same once more; begin another call where it does not."""
        call, text = self._calls[position], piece.text or ""
        whole = call.arguments
        if not call.repeated and self._checker.is_whole(text):
            is_same = self._checker.are_equal(text, whole)
        else:
            is_same = whole.startswith(text, call.repeated)
            if is_same and call.repeated + len(text) < len(whole):
                call.repeated += len(text)
                call.repeats = call.repeats or piece
                return []
        if not is_same:
            return self._begin(self._make_other(call, piece))
        return self._complete(position, piece)

    def _complete(self, position: int, piece: _Piece) -> list[Json]:
        """Add what a repetition has beyond what came before it. What was shown stays."""
        call, text = self._calls[position], piece.text or ""
        is_whole = call.has_arguments and call.is_whole(self._checker)
        piece.extras = {key: value for key, value in piece.extras.items() if key not in call.extras}
        piece.function_extras = {
            key: value for key, value in piece.function_extras.items() if key not in call.function_extras
        }
        replaces = call.is_held and bool(text.strip("{} \n"))
        if not replaces:
            call.half = ""
            so_far = call.arguments
            piece.text = text[len(so_far) :] if text.startswith(so_far) and not is_whole else None
        shown = self._join(position, piece, replaces=replaces)
        call.repeated, call.repeats, call.is_named_again = 0, None, False
        return shown


def _pick_extras(given: Json, regular: set[str]) -> Json:
    return {key: value for key, value in given.items() if value is not None and key not in regular}


def _make_delta(position: int, *, id: str | None = None, name: str | None = None, text: str | None = None) -> Json:
    return {"index": position, "id": id, "type": "function", "function": {"name": name, "arguments": text}}
