"""Compare two JSON values place by place, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import UNSET

from swarmkeep.domain.codec import encode
from swarmkeep.domain.patch import escape_pointer_part


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One place (an RFC 6901 pointer, or "" for the whole) with its value before and after.

    A side without a value is left out; null is a value.
    """

    path: str
    before: Any = UNSET
    after: Any = UNSET


def find_changes(before: Any, after: Any, path: str = "") -> tuple[Change, ...]:
    """Every place where two JSON values differ. Types count: 1, 1.0 and true are different. Lists are one place."""
    return tuple(_find_changes(before, after, path))


def _find_changes(before: Any, after: Any, path: str) -> Iterator[Change]:
    # What is the same object is not looked into: of two states that follow one another nearly all is.
    if before is after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        changed = [key for key, value in before.items() if after.get(key, UNSET) is not value]
        for key in [*changed, *(key for key in after if key not in before)]:
            yield from _find_changes(
                before.get(key, UNSET), after.get(key, UNSET), f"{path}/{escape_pointer_part(key)}"
            )
    elif before is UNSET or after is UNSET or encode(before) != encode(after):
        yield Change(path=path, before=before, after=after)
