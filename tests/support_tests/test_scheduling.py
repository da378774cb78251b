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
@pytest.mark.parametrize("options", [(), ("--one-database",)])
def test_both_databases_run_unless_one_selected(options: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *options]
    found = subprocess.run(
        [*command, "tests/runs/runs/test_runs.py"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    ).stdout
    assert ("deselected" in found) == bool(options)
    kinds = [set(re.findall(r"-?(sqlite|postgres)\b", line)) for line in found.splitlines() if "::" in line]
    assert {"sqlite"} in kinds
    assert {"postgres"} in kinds


@pytest.mark.long
def test_files_and_some_folders_stay_together() -> None:
    files = ("tests/evals/test_cases.py", "tests/logs/test_formatters.py")
    options = ("-n", "2", "--dist", "loadscope", "-v", "-p", "no:cacheprovider", "-m", "not long")
    command = [sys.executable, "-m", "pytest", *options, *files, "tests/chaos/storm"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300).stdout
    processes: defaultdict[str, list[str]] = defaultdict(list)
    first: dict[str, str] = {}
    for process, path in re.findall(r"^\[(gw\d)\].* PASSED (tests/[\w/.]+)::", found, re.MULTILINE):
        processes[path].append(process)
        first.setdefault(process, path)
    assert set(processes) == {*files, "tests/chaos/storm/test_report.py"}
    for path, by in processes.items():
        assert len(set(by)) == 1, path
    # What takes longest is handed out first, though it was named last: who has it, begins with it. What another process
    # says meanwhile may come before that.
    assert "tests/chaos/storm/test_report.py" in first.values()
