"""Where a Chromium is: one that is there, or one that the system's package manager brings."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache

# Set where the browser tests have to run, as CI does: then a missing browser fails them.
NEEDED = "SWARMKEEP_TESTS_NEED_BROWSER"
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@cache
def find_chromium(own: str) -> str | None:
    """A Chromium's path, or None; `own` is where the test library would have put one of its own."""
    return _find(own) or (_find(own) if _install() else None)


def _find(own: str) -> str | None:
    if os.path.exists(own):
        return own
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def _install() -> bool:
    """Have the package manager install one, where this process may."""
    if shutil.which("apt-get") is None or not hasattr(os, "geteuid") or os.geteuid() != 0:
        return False
    quietly = {"check": False, "stdout": subprocess.DEVNULL, "env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}}
    subprocess.run(["apt-get", "update", "-qq"], **quietly)  # type: ignore[call-overload]
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]
    done: int = subprocess.run(command, **quietly).returncode  # type: ignore[call-overload]
    return done == 0


def is_browser_needed() -> bool:
    return bool(os.environ.get(NEEDED) or os.environ.get("CI"))
