"""Cursors of lists: the last row of a page, in a form that callers pass back untouched."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence

import msgspec

from swarmkeep.domain.codec import MalformedJson, decode, encode
from swarmkeep.domain.errors import InvalidRequest

_TIME_PATTERN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)


def encode_cursor(values: Sequence[str]) -> str:
    return base64.urlsafe_b64encode(encode(list(values))).decode().rstrip("=")


def parse_cursor(cursor: str, count: int) -> list[str]:
    """The values, so many. Raises InvalidRequest for text that `encode_cursor` did not make of as many."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        values = decode(raw, list[str])
        if len(values) == count and encode_cursor(values) == cursor:
            return values
    except (ValueError, binascii.Error, MalformedJson, msgspec.ValidationError):
        pass
    raise _make_refusal()


def parse_session_cursor(cursor: str) -> tuple[str, str]:
    """The time and id of the last session shown. Raises InvalidRequest for any other cursor."""
    created_at, session_id = parse_cursor(cursor, 2)
    if not _TIME_PATTERN.fullmatch(created_at):
        raise _make_refusal()
    return created_at, session_id


def _make_refusal() -> InvalidRequest:
    return InvalidRequest("the cursor is not valid for this list; use `next_cursor` from the previous page", "/cursor")
