"""JSON merge patch (RFC 7396), plus the one thing it cannot say: that a value is null.

In a merge patch null means "remove". A context variable may well be None, so a change is a patch and the list of
places (RFC 6901 pointers) that hold null once the patch is applied.
"""

from __future__ import annotations

from typing import Any

from swarmkeep.domain.codec import Json, encode


def merge(target: Any, patch: Any) -> Any:
    """Apply a merge patch; neither argument is changed."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def apply(target: Json, patch: Json, nulls: tuple[str, ...] = ()) -> Json:
    """Apply a change as `diff` returns it."""
    merged: Json = merge(target, patch)
    for pointer in nulls:
        if not pointer.startswith("/"):
            continue
        merged = _set_null(merged, [_unescape_pointer_part(part) for part in pointer.split("/")[1:]])
    return merged


def diff(before: Json, after: Json) -> tuple[Json, tuple[str, ...]]:
    """The change from `before` to `after`: apply(before, *diff(before, after)) == after.

    Types count: 1, 1.0 and true are different values. An empty patch without nulls means no change.
    """
    patch: Json = {}
    nulls: list[str] = []
    _diff(before, after, patch, nulls, "")
    return patch, tuple(nulls)


def has_effect(target: Json, patch: Json, nulls: tuple[str, ...] = ()) -> bool:
    """Whether a change as `diff` returns it changes anything in `target`."""
    return bool(patch or nulls) and any(diff(target, apply(target, patch, nulls)))


def _diff(before: Json, after: Json, patch: Json, nulls: list[str], path: str) -> None:
    for key in before:
        if key not in after:
            patch[key] = None
    for key, value in after.items():
        here = f"{path}/{escape_pointer_part(key)}"
        old = before.get(key)
        if value is None:
            if key not in before or old is not None:
                nulls.append(here)
        elif isinstance(value, dict):
            inner: Json = {}
            count = len(nulls)
            _diff(old if isinstance(old, dict) else {}, value, inner, nulls, here)
            if inner or not isinstance(old, dict) or len(nulls) > count:
                patch[key] = inner
        elif encode(old) != encode(value) or key not in before:
            patch[key] = value


def _set_null(target: Json, path: list[str]) -> Json:
    head, *rest = path
    inner = target.get(head)
    return {**target, head: _set_null(inner if isinstance(inner, dict) else {}, rest) if rest else None}


def escape_pointer_part(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _unescape_pointer_part(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")
