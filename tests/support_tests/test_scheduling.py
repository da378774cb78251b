"""Which process runs a test: what its neighbours share is made once."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_a_file_is_one_processs_and_so_are_some_folders() -> None:
    files = ("tests/evals/test_cases.py", "tests/logs/test_formatters.py")
    options = ("-n", "2", "--dist", "loadscope", "-v", "-p", "no:cacheprovider", "-m", "not long")
    command = [sys.executable, "-m", "pytest", *options, *files, "tests/chaos/storm"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300).stdout
    processes: defaultdict[str, list[str]] = defaultdict(list)
    for process, path in re.findall(r"^\[(gw\d)\].* PASSED (tests/[\w/.]+)::", found, re.MULTILINE):
        processes[path].append(process)
    assert set(processes) == {*files, "tests/chaos/storm/test_report.py"}
    for path, by in processes.items():
        assert len(set(by)) == 1, path
    # What takes longest is handed out first.
    assert found.index("tests/chaos/") < min(found.index(f"{file}::") for file in files)
