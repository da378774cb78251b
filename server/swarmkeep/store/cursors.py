"""Cursors of lists: what the last row of a page is sorted by, in a form that callers pass back untouched."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence

import msgspec

from swarmkeep.domain.codec import MalformedJson, decode, encode
from swarmkeep.domain.errors import InvalidRequest

BAD_CURSOR = "the cursor is not valid for this list; use `next_cursor` from the previous page"
_TIME_PATTERN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)


def encode_cursor(values: Sequence[str]) -> str:
    return base64.urlsafe_b64encode(encode(list(values))).decode().rstrip("=")


def parse_cursor(cursor: str, count: int) -> list[str]:
    """The values of the last row.

    Raises InvalidRequest for text that `encode_cursor` did not make of so many values.
    """
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        values = decode(raw, list[str])
    except (ValueError, binascii.Error, MalformedJson, msgspec.ValidationError):
        raise InvalidRequest(BAD_CURSOR, "/cursor") from None
    if len(values) != count or encode_cursor(values) != cursor:
        raise InvalidRequest(BAD_CURSOR, "/cursor")
    return values


def make_session_cursor(place: tuple[str, str], order: str) -> str:
    """The cursor behind a session. It says of which order it is, but for that of their creation."""
    return encode_cursor(place if order == "created" else (*place, order))


def parse_session_cursor(cursor: str | None, order: str) -> tuple[str, str] | None:
    """The time and id of the last session; None for the first page.

    Raises InvalidRequest, also for a cursor of another order.
    """
    if cursor is None:
        return None
    at, session_id, *named = parse_cursor(cursor, 2 if order == "created" else 3)
    # Of a session that a release without that order has written, the time of activity is not known.
    if named not in ([], [order]) or not (_TIME_PATTERN.fullmatch(at) or (named and not at)):
        raise InvalidRequest(BAD_CURSOR, "/cursor")
    return at, session_id
