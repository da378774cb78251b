"""Bars are as long as their values, within the terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from swarmkeep.cli.render import fill_days, format_bars


def test_bar_length_equals_its_value() -> None:
    rows = [("Sales", 2000), ("Refunds", 1000), ("Triage", 1), ("Nobody", 0)]
    assert list(format_bars(rows, 36, fine=False)) == [
        "Sales    2,000  ####################",
        "Refunds  1,000  ##########",
        "Triage       1  #",
        "Nobody       0",
    ]


def test_eighths_show_small_differences() -> None:
    assert list(format_bars([("a", 16), ("b", 15), ("c", 1)], 17, fine=True)) == [
        "a  16  ██████████",
        "b  15  █████████▍",
        "c   1  ▋",
    ]


def test_nothing_but_zeros_has_no_bars() -> None:
    assert list(format_bars([("a", 0)], 80, fine=True)) == ["a  0"]


@given(some.lists(some.tuples(some.text("ab", max_size=9), some.integers(0, 10**12)), max_size=9), some.booleans())
def test_lines_fit_the_terminal(rows: list[tuple[str, int]], fine: bool) -> None:
    lines = list(format_bars(rows, 60, fine=fine))
    assert len(lines) == len(rows)
    assert all(len(line) <= 60 for line in lines)


def test_day_gaps_shown_year_gaps_hidden() -> None:
    days = [("2026-02-27", 5), ("2026-03-02", 7), ("2029-01-01", 1)]
    assert list(fill_days(days)) == [
        ("2026-02-27", 5), ("2026-02-28", 0), ("2026-03-01", 0), ("2026-03-02", 7), ("…", 0), ("2029-01-01", 1),
    ]  # fmt: skip
