"""JSON in and out: one text form for the store, the hash chain, HTTP and the model.

msgspec does the work. It refuses lone surrogates both ways; Python's json carries them as `\\udXXX` escapes, so that
rare text takes the slow path and comes back exactly as it was given.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import threading
from datetime import UTC, datetime
from typing import Any, NoReturn, TypeVar, overload
from uuid import uuid4

import msgspec

T = TypeVar("T")
_SLICE_BYTES = 65_536
"""Work in one piece: so much of a text is counted before others get their turn."""
Json = dict[str, Any]
"""A JSON object."""

_encoder = msgspec.json.Encoder()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_build_lock = threading.Lock()


class MalformedJson(ValueError):
    """Text that is not JSON, or holds a number that a double cannot."""


def encode(value: Any) -> bytes:
    """Encode as compact UTF-8 JSON; keys keep their order.

    Text that UTF-8 cannot hold (lone surrogates) is written as ASCII escapes. NUL is always an escape, so the result
    fits a text column of either database.
    """
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encode_escaped(value)


def _encode_escaped(value: Any) -> bytes:
    # Encoded parts within the value stay as they are, to the byte: something unguessable holds their places.
    parts: dict[str, bytes] = {}

    def hold(part: Any) -> str:
        if not isinstance(part, msgspec.Raw):
            raise TypeError(f"JSON cannot hold a {type(part).__name__}")
        parts[place := uuid4().hex] = bytes(part)
        return place

    plain = msgspec.to_builtins(value, enc_hook=hold)
    text = json.dumps(plain, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()
    for place, part in parts.items():
        text = text.replace(f'"{place}"'.encode(), part)
    return text


def encode_sorted(value: Any) -> bytes:
    """Encode so that objects that differ in the order of their keys alone come out the same: to compare, not to keep.

    1, 1.0 and true stay different.
    """
    plain = msgspec.to_builtins(value)
    return json.dumps(plain, ensure_ascii=True, separators=(",", ":"), sort_keys=True).encode()


def encode_text(value: Any) -> str:
    """`encode`, as text."""
    return encode(value).decode()


@overload
def decode(text: str | bytes) -> Any: ...
@overload
def decode(text: str | bytes, type: type[T]) -> T: ...
def decode(text: str | bytes, type: Any = Any) -> Any:
    """Decode JSON text, checked against `type` if one is given.

    Raises MalformedJson, and msgspec.ValidationError (with the path in its message) when the shape is wrong.
    """
    try:
        return (_decoders.get(type) or build_decoder(type)).decode(text)
    except RecursionError:
        raise MalformedJson("nested too deeply") from None
    except msgspec.ValidationError as error:
        if str(error).startswith(("Number out of range", "Integer value out of range")):
            raise MalformedJson(str(error)) from None
        raise
    except (msgspec.DecodeError, UnicodeError) as error:
        plain = _decode_surrogates(text, error)
    return plain if type is Any else convert(plain, type)


def convert(value: Any, type: type[T]) -> T:
    """Check a JSON value against a type. Raises msgspec.ValidationError, with the path in its message.

    msgspec itself fails with a lone surrogate in any text that stands where there may be none, or only some.
    """
    try:
        return msgspec.convert(value, type)
    except UnicodeEncodeError:
        with contextlib.suppress(RecursionError):
            # The same with other characters says where.
            msgspec.convert(replace_surrogates(value), type)
    raise msgspec.ValidationError("Lone surrogates cannot stand here")


def build_decoder(type: Any) -> msgspec.json.Decoder[Any]:
    """Build the decoder that `decode` reads text with."""
    # What msgspec knows of a struct it finds out at its first use, and a thread that uses the struct before that is
    # complete takes the process down with it.
    with _build_lock:
        decoder = _decoders[type] = msgspec.json.Decoder(type)
    return decoder


def _decode_surrogates(text: str | bytes, error: Exception) -> Any:
    escape = "\\u" if isinstance(text, str) else b"\\u"
    raw = isinstance(text, str) and isinstance(error, UnicodeError)
    if not raw and escape not in text:  # type: ignore[operator]
        raise MalformedJson(str(error)) from None
    try:
        # Of bytes, json.loads would also take other encodings, and surrogates that are not escaped.
        plain = text if isinstance(text, str) else text.decode()
        return json.loads(plain, parse_constant=_reject_constant, parse_float=_parse_finite)
    except (ValueError, RecursionError) as problem:
        raise MalformedJson(str(problem)) from None


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _parse_finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"number out of range: {text}")
    return number


def replace_surrogates(value: Any) -> Any:
    """The same JSON value with each lone surrogate replaced by U+FFFD: what may be sent to others as UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {replace_surrogates(key): replace_surrogates(item) for key, item in value.items()}
    return [replace_surrogates(item) for item in value] if isinstance(value, list) else value


def is_deeper_than(levels: int, text: str) -> bool:
    """Tell if JSON text has more levels of arrays and objects. Raises MalformedJson, also for more than can be read."""
    return text.count("[") + text.count("{") > levels and count_levels(decode(text)) > levels


def count_levels(value: object) -> int:
    """Count the levels of arrays and objects of a JSON value."""
    levels, level = 0, [value]
    while nested := [item for item in level if isinstance(item, dict | list)]:
        levels += 1
        level = [child for item in nested for child in (item.values() if isinstance(item, dict) else item)]
    return levels


def has_more_values(text: bytes, max_values: int) -> bool:
    """Tell if JSON text holds more values than that; found before it is read, and so before it costs anything."""
    # What stands in texts is counted here, too: enough to let nearly everything pass.
    return _count_marks(text) > max_values and count_values(text) > max_values


def count_values(body: bytes, *, slice_bytes: int = _SLICE_BYTES) -> int:
    """Count the arrays and objects of a JSON text, and the commas between the values in them."""
    counter = ValueCounter()
    for start in range(0, len(body), slice_bytes):
        counter.feed(body[start : start + slice_bytes])
    return counter.count


class ValueCounter:
    """Counts the arrays and objects of a JSON text that comes in pieces, and the commas between the values in them.

    A text with a line break in it is no JSON: from there on, what stands in texts counts, too.
    """

    def __init__(self) -> None:
        self.count = 0
        self._in_text = 0
        self._is_json = True
        self._escape = b""

    def feed(self, piece: bytes) -> None:
        piece = self._escape + piece
        # An escape is not cut in two.
        is_cut = (len(piece) - len(piece.rstrip(b"\\"))) % 2
        self._escape = b"\\" * is_cut
        parts = piece[: len(piece) - is_cut].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        texts = b"".join(parts[1 - self._in_text :: 2])
        self._is_json = self._is_json and not (b"\n" in texts or b"\r" in texts)
        self.count += _count_marks(b"".join(parts[self._in_text :: 2]))
        self.count += 0 if self._is_json else _count_marks(texts)
        self._in_text ^= (len(parts) - 1) % 2


def _count_marks(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def digest(text: str) -> str:
    """The name of a text by its content: SHA-256 in hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# Times as text: UTC with a `Z`, as events and rows carry them.

_FORM = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)


def to_timestamp(at: datetime, *, timespec: str = "microseconds") -> str:
    """With microseconds, texts are in the order of their times. `auto` leaves out a fraction that is zero."""
    return at.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def make_timestamp() -> str:
    """The present."""
    return to_timestamp(datetime.now(UTC))


def parse_timestamp(text: str) -> datetime | None:
    """The time that an event has, or tells. None for a text in any other form than `to_timestamp` writes: what one
    place took for a time and another did not would be due for ever.
    """
    if _FORM.fullmatch(text) is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def count_milliseconds(since: str, until: str) -> float:
    """The milliseconds between two times of events; 0 if they are in the wrong order, or one is not in their form."""
    first, last = parse_timestamp(since), parse_timestamp(until)
    return 0.0 if first is None or last is None else max(0.0, (last - first).total_seconds() * 1000)
