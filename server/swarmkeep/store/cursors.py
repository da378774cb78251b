"""Cursors of the session list: the last row of a page, in a form that callers pass back untouched."""

from __future__ import annotations

import base64
import binascii
import re

import msgspec

from swarmkeep.domain.codec import MalformedJson, decode, encode
from swarmkeep.domain.errors import InvalidRequest

_TIME_PATTERN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)


def encode_cursor(created_at: str, session_id: str) -> str:
    return base64.urlsafe_b64encode(encode((created_at, session_id))).decode().rstrip("=")


def parse_cursor(cursor: str) -> tuple[str, str]:
    """The time and id of the last row shown.

    Raises InvalidRequest for text that `encode_cursor` did not make.
    """
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        created_at, session_id = decode(raw, tuple[str, str])
        if _TIME_PATTERN.fullmatch(created_at) and encode_cursor(created_at, session_id) == cursor:
            return created_at, session_id
    except (ValueError, binascii.Error, MalformedJson, msgspec.ValidationError):
        pass
    raise InvalidRequest("the cursor is not valid for this list; use `next_cursor` from the previous page", "/cursor")
