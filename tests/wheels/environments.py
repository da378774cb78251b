"""Empty environments for our wheels, made by uv, whose cache makes the second time quick.

What is installed there is linked from that cache, so that an environment takes no memory.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.processes import ServerProcess, clean_environment
from tests.support.source import ROOT

# Set where the wheels have to be tried, as CI does: then a package index that cannot be reached fails these tests.
NEEDED = "SWARMKEEP_TESTS_NEED_INDEX"
UV = str(Path(sys.executable).parent / "uv")
AUTHORITY = str(ROOT / "tests" / "support" / "authority.pem")
# A guard against hanging: what is not in the cache comes over a network.
PATIENCE_SECONDS = 900.0


def _environment(**extra: str) -> dict[str, str]:
    """As a user's: nothing of the checkout, and byte code is written, as it is by default."""
    ours = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV"}
    # The tests' own authority has signed no package index.
    if os.environ.get("SSL_CERT_FILE") == AUTHORITY:
        ours.add("SSL_CERT_FILE")
    return {name: value for name, value in clean_environment(extra).items() if name not in ours}


def run_with_index(*command: str) -> None:
    """Run a command that needs the package index. Where that cannot be reached, the test is left out, and says so."""
    done = subprocess.run(
        command, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    if done.returncode == 0:
        return
    said = done.stdout + done.stderr
    if "Failed to fetch" in said and not (os.environ.get(NEEDED) or os.environ.get("CI")):
        pytest.skip(f"the wheels are not tried: no package index can be reached. {said.strip().splitlines()[-1]}")
    pytest.fail(f"{' '.join(command)}: exit code {done.returncode}\n{said}")


def find_newest_python() -> str:
    """The newest at hand of those that the package names: most tests run on the oldest."""
    named = re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for minor in sorted(map(int, named), reverse=True):
        installed = map(str, sorted(pyenv.glob(f"versions/3.{minor}.*/bin/python")))
        for found in (*installed, shutil.which(f"python3.{minor}")):
            # A name may stand for nothing, as pyenv's do where no version is chosen.
            if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
                return found
    return sys.executable


@dataclass(frozen=True)
class Environment:
    """What is installed in `home`; its programs run in `folder`, which is empty at first."""

    home: Path
    folder: Path

    @classmethod
    def create(cls, folder: Path, *requirements: str, python: str = sys.executable) -> Environment:
        made = cls(folder / "home", folder / "work")
        made.folder.mkdir()
        run_with_index(UV, "venv", "--quiet", "--python", python, str(made.home))
        install = ("pip", "install", "--quiet", "--link-mode", "symlink", "--python", made.program("python"))
        run_with_index(UV, *install, *requirements)
        return made

    def program(self, name: str) -> str:
        return str(self.home / "bin" / name)

    def __call__(self, name: str, *arguments: str) -> str:
        """What a program prints that does its work."""
        done = subprocess.run(
            [self.program(name), *arguments],
            cwd=self.folder,
            env=_environment(PYTHONIOENCODING="utf-8"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        assert done.returncode == 0, f"{name} {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout

    def server(self, *arguments: str) -> ServerProcess:
        """A server that is started from here, with the offline model."""
        server = ServerProcess(self.folder, cold=True, arguments=arguments)
        assert server.command[1:3] == ["-m", "swarmkeep"]
        server.command[:3] = [self.program("swarmkeep")]
        server.env = _environment()
        return server
