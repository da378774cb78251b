"""How hypothesis searches: by default the same examples every time, so that a failing build fails again at home.

HYPOTHESIS_PROFILE names another one: `quick` takes a quarter of the examples, `half` every other one, `explore` looks
for new ones at random and remembers those that failed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings

T = TypeVar("T")

_SHARE = {"quick": 0.25, "half": 0.5}


def _profile() -> str:
    return os.environ.get("HYPOTHESIS_PROFILE", "ci")


def examples(count: int) -> int:
    """So many examples where all are wanted; `make test` is content with a part of them."""
    return max(5, round(count * _SHARE.get(_profile(), 1)))


def some(items: Sequence[T]) -> Sequence[T]:
    """All of what is tried one by one, or as many as there would be examples, spread evenly."""
    return items[:: round(1 / _SHARE.get(_profile(), 1))]


def load() -> None:
    """Register the profiles and choose one."""
    # A log takes many draws, which is slow next to an integer and no cause for alarm.
    slow = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example)
    common: dict[str, Any] = {"max_examples": examples(100), "deadline": None, "print_blob": True}
    for name in ("ci", "half", "quick"):
        settings.register_profile(name, derandomize=True, database=None, suppress_health_check=slow, **common)
    settings.register_profile("explore", derandomize=False, suppress_health_check=slow, **common)
    settings.load_profile(_profile())
