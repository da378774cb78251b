"""Objects from outside, as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from swarmkeep.agent import to_plain_json


def copy_plain_object(value: Mapping[str, Any], label: str = "value") -> dict[str, Any]:
    """A deep copy that holds JSON only. Raises NotJsonError, naming the place under `label`, otherwise."""
    return cast(dict[str, Any], to_plain_json(dict(value), label))
