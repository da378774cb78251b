"""Bars for a terminal: a line for each value, as long as the value is large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from itertools import pairwise

# A cell is filled by eighths, so that small differences show.
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_MIN_BAR = 10
_MAX_GAP_DAYS = 31


def format_bars(rows: Sequence[tuple[str, int]], width: int, *, fine: bool) -> Iterator[str]:
    """A line for each label and its value, none longer than `width` as long as there is room for short bars.

    `fine` draws eighths of a character, for terminals that have them; without it bars are of `#`.
    """
    values = [f"{value:,}" for _, value in rows]
    label_width = max((len(label) for label, _ in rows), default=0)
    value_width = max(map(len, values), default=0)
    room = max(_MIN_BAR, width - label_width - value_width - 4)
    largest = max((value for _, value in rows), default=0)
    for (label, value), text in zip(rows, values, strict=True):
        bar = _draw_bar(value, largest, room, fine=fine)
        yield f"{label.ljust(label_width)}  {text.rjust(value_width)}  {bar}".rstrip()


def fill_days(rows: Sequence[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """Days without a call between those with one, so that the bars are a calendar; a long time is one line.

    `rows` are by day, oldest first.
    """
    for (day, value), (following, _) in pairwise([*rows, ("", 0)]):
        yield day, value
        if following:
            start = date.fromisoformat(day)
            missing = (date.fromisoformat(following) - start).days
            if missing > _MAX_GAP_DAYS:
                yield "…", 0
                continue
            yield from (((start + timedelta(days=number)).isoformat(), 0) for number in range(1, missing))


def _draw_bar(value: int, largest: int, room: int, *, fine: bool) -> str:
    if not largest:
        return ""
    if not fine:
        return "#" * max(round(room * value / largest), value > 0)
    eighths = max(round(8 * room * value / largest), value > 0)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
