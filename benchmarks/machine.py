"""What a measurement was taken on: without it, figures say nothing."""

from __future__ import annotations

import os
import platform
import sqlite3
from importlib.metadata import version
from pathlib import Path

_PACKAGES = ("swarmkeep", "litestar", "uvicorn", "openai", "aiohttp", "SQLAlchemy", "msgspec")


def describe_machine() -> dict[str, str | int | float | dict[str, str]]:
    """The processor, how busy it was before, and the versions of what is measured."""
    return {
        "processor": _find_processor(),
        "cores": os.cpu_count() or 0,
        "load_before": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "packages": {name: version(name) for name in _PACKAGES},
    }


def _find_processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
