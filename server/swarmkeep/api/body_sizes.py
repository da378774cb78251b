"""Bounds what a body holds by its number: many tiny values cost far more than their bytes."""

from __future__ import annotations

from swarmkeep.domain.errors import TooLarge

# Work in one piece: so much of a body is looked at before others get their turn.
_SLICE_BYTES = 65_536
_BACKSLASH = ord("\\")


def refuse_too_many_values(body: bytes, max_values: int) -> None:
    """Refuse a JSON text with more values than that, before it is read. Raises TooLarge."""
    # What stands in texts is counted here, too: enough to let nearly every body pass.
    if _count_marks(body) > max_values and count_values(body) > max_values:
        raise TooLarge(f"the body holds more than {max_values} JSON values (SWARMKEEP_MAX_BODY_VALUES)")


def count_values(body: bytes, *, slice_bytes: int = _SLICE_BYTES) -> int:
    """How many arrays and objects a JSON text has, and how many commas between the values in them."""
    count, start, in_text = 0, 0, 0
    while start < len(body):
        end = start + slice_bytes
        # An escape is not cut in two.
        while end < len(body) and body[end - 1] == _BACKSLASH:
            end += 1
        parts = body[start:end].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        count += _count_marks(b"".join(parts[in_text::2]))
        in_text ^= (len(parts) - 1) % 2
        start = end
    return count


def _count_marks(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")
