"""How hypothesis searches: by default the same examples every time, so that a failing build fails again at home.

HYPOTHESIS_PROFILE=explore looks for new ones at random, and remembers those that failed.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings


def load() -> None:
    """Register the profiles and choose one."""
    # A log takes many draws, which is slow next to an integer and no cause for alarm.
    slow = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example)
    settings.register_profile(
        "ci", derandomize=True, database=None, deadline=None, print_blob=True, suppress_health_check=slow
    )
    settings.register_profile("explore", derandomize=False, deadline=None, print_blob=True, suppress_health_check=slow)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
