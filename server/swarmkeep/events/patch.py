"""JSON merge patch (RFC 7396), plus the one thing it cannot say: that a value is null.

In a merge patch null means "remove". A context variable may well be None, so a change is a patch and the list of
places (RFC 6901 pointers) that hold null once the patch is applied.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET

from swarmkeep.events.codec import Json, encode
from swarmkeep.events.records import ContextChange

MAX_POINTER_PARTS = 500
"""No value that can be recorded is nested as deeply. A longer pointer, which only a forged log has, changes nothing."""


def merge(target: Any, patch: Any) -> Any:
    """Apply a merge patch; neither argument is changed."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value) if isinstance(value, dict) else value
    return merged


def apply(target: Json, patch: Json, nulls: tuple[str, ...] = ()) -> Json:
    """Apply a change as `diff` returns it."""
    merged: Json = merge(target, patch)
    return _set_nulls(merged, nulls) if nulls else merged


def diff(before: Json, after: Json) -> tuple[Json, tuple[str, ...]]:
    """The change from `before` to `after`: apply(before, *diff(before, after)) == after.

    Types count: 1, 1.0 and true are different values. An empty patch without nulls means no change.
    """
    patch: Json = {}
    nulls: list[str] = []
    _diff(before, after, patch, nulls, [])
    return patch, tuple(nulls)


def has_effect(target: Json, patch: Json, nulls: tuple[str, ...] = ()) -> bool:
    """Tell if a change as `diff` returns it changes anything in `target`."""
    return bool(patch or nulls) and any(diff(target, apply(target, patch, nulls)))


def apply_change(context: Json, change: ContextChange) -> Json:
    """The context after a call's change: what it patches, and then the keys that it puts as a whole."""
    after = apply(context, change.patch, () if change.nulls is UNSET else change.nulls)
    return after if change.values is UNSET else {**after, **change.values}


def _diff(before: Json, after: Json, patch: Json, nulls: list[str], path: list[str]) -> None:
    for key in before:
        if key not in after:
            patch[key] = None
    for key, value in after.items():
        old = before.get(key)
        if old is value and value is not None:
            # What a patch has left alone, the very same object.
            continue
        if value is None:
            if key not in before or old is not None:
                nulls.append(_make_pointer([*path, key]))
        elif isinstance(value, dict):
            inner: Json = {}
            count = len(nulls)
            path.append(key)
            _diff(old if isinstance(old, dict) else {}, value, inner, nulls, path)
            path.pop()
            if inner or not isinstance(old, dict) or len(nulls) > count:
                patch[key] = inner
        elif encode(old) != encode(value) or key not in before:
            patch[key] = value


def _set_nulls(target: Json, pointers: Iterable[str]) -> Json:
    """`target` with null at each of these places, one after another; `target` itself is not changed.

    Every object on the way is copied once, however many of the places are in it.
    """
    changed = dict(target)
    # By identity. They are kept here for as long as it takes, so no two of them have had the same one.
    copies = {id(changed): changed}
    for pointer in pointers:
        if not pointer.startswith("/") or pointer.count("/") > MAX_POINTER_PARTS:
            continue
        *way, last = map(_unescape_pointer_part, pointer.split("/")[1:])
        inner = changed
        for part in way:
            inner = _enter(inner, part, copies)
        inner[last] = None
    return changed


def _enter(outer: Json, key: str, copies: dict[int, Json]) -> Json:
    """The object in `outer`, which is made if there is none, as a copy that may be changed."""
    inner = outer.get(key)
    if id(inner) in copies:
        return copies[id(inner)]
    copy = dict(inner) if isinstance(inner, dict) else {}
    outer[key] = copies[id(copy)] = copy
    return copy


def _make_pointer(path: Iterable[str]) -> str:
    return "".join(f"/{escape_pointer_part(part)}" for part in path)


def escape_pointer_part(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _unescape_pointer_part(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")
