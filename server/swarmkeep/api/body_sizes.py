"""Bounds what a body holds by its number: many tiny values cost far more than their bytes."""

from __future__ import annotations

from swarmkeep.domain.codec import has_more_values
from swarmkeep.domain.errors import TooLarge


def refuse_too_many_values(body: bytes, max_values: int) -> None:
    """Refuse a JSON text with more values than that, before it is read. Raises TooLarge."""
    if has_more_values(body, max_values):
        raise TooLarge(f"the body holds more than {max_values} JSON values (SWARMKEEP_MAX_BODY_VALUES)")
