"""Changes of JSON values, a line for each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from swarmkeep.cli.terminal import put

if TYPE_CHECKING:
    from swarmkeep_client import Change


def put_changes(changes: Sequence[Change]) -> None:
    for change in changes:
        put(format_change(change.path, change.before, change.after))


def format_change(path: str, before: Any, after: Any) -> str:
    """A change of a place: what stood there, and what stands there; UNSET is nothing."""
    place = path.removeprefix("/context_variables/").lstrip("/") or "all of it"
    if before is UNSET:
        return f"+ {place}: {_format_json(after)}"
    if after is UNSET:
        return f"- {place}: {_format_json(before)}"
    return f"~ {place}: {_format_json(before)} → {_format_json(after)}"


def _format_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
