"""A type checker sees what the contract says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import swarmkeep_client

pytestmark = pytest.mark.long

pytest.importorskip("pyright")

USAGE = Path(__file__).with_name("typed_usage.py")
README = Path(__file__).parents[2] / "clients/python/README.md"


def test_types_pass_strict_pyright(tmp_path: Path) -> None:
    examples = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    assert examples
    (tmp_path / "usage.py").write_text(USAGE.read_text())
    (tmp_path / "readme.py").write_text("\n".join(examples))
    settings = {"include": ["*.py"], "typeCheckingMode": "strict", "reportUnnecessaryTypeIgnoreComment": "error"}
    settings["pythonVersion"] = "3.11"
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    checked = subprocess.run(
        [sys.executable, "-m", "pyright", "-p", str(tmp_path), "--pythonpath", sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_package_says_that_it_is_typed() -> None:
    assert swarmkeep_client.__file__ is not None
    assert Path(swarmkeep_client.__file__).with_name("py.typed").exists()


def test_every_public_name_is_there() -> None:
    assert swarmkeep_client.__all__ == sorted(swarmkeep_client.__all__)
    assert all(hasattr(swarmkeep_client, name) for name in swarmkeep_client.__all__)
