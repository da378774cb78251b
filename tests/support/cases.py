"""Which of a test's cases the short run takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first(count: int, cases: Iterable[Any]) -> list[Any]:
    """All of them, but only so many in the short run: where every case starts a process, or waits, and the first ones
    show whether it works at all. A case of several values is a tuple, as `parametrize` has it."""
    return [case if number < count else _make_long(case) for number, case in enumerate(cases)]


def _make_long(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.long)
