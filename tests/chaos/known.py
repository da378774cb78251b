"""Shortcomings that the tests have found. A test that is marked with one is expected to fail until it is dealt with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Test = Callable[..., Any]


def falls_short(sentence: str) -> Callable[[Test], Test]:
    """For the long run only, whose report lists what is short of the promises."""

    def mark(test: Test) -> Test:
        return pytest.mark.chaos(pytest.mark.xfail(reason=sentence)(test))

    return mark
