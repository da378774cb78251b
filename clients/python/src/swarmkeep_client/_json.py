"""JSON in and out, without losing anything on the way.

Text with lone surrogates, NUL and integers of any size come back exactly as they were given.
"""

from __future__ import annotations

import json
import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_build_lock = threading.Lock()


def encode(value: object) -> bytes:
    """Encode as compact UTF-8 JSON; text that UTF-8 cannot hold is written as ASCII escapes.

    Raises TypeError or ValueError for what JSON cannot say. That is why this is not msgspec's encoder: it would write
    NaN as null and bytes as base64, and the session would keep something else than it was given.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()


def decode(text: bytes | str, type_: type[T]) -> T:
    """Decode and check against `type_`. Unknown fields are ignored: a newer server may send more than we know.

    Raises ValueError.
    """
    try:
        return _get_decoder(type_).decode(text)
    except msgspec.DecodeError as error:
        return msgspec.convert(_decode_surrogates(text, error), type_)


def _get_decoder(type_: type[T]) -> msgspec.json.Decoder[T]:
    found = _decoders.get(type_)
    if found is None:
        # msgspec finds out what a struct is at its first use, and a thread that uses it before that is complete takes
        # the process down with it.
        with _build_lock:
            found = _decoders[type_] = msgspec.json.Decoder(type_)
    return found


def _decode_surrogates(text: bytes | str, refusal: msgspec.DecodeError) -> Any:
    # msgspec refuses lone surrogates ("\ud800"), which are legal JSON and legal in a session; the standard library
    # reads them. What it cannot read either is reported in msgspec's words, which say where.
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise refusal from None
