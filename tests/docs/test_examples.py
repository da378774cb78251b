"""Every code block of the documentation works, as it stands there, against a real server on the offline model."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.markdown import ADDRESS, blocks
from tests.support.processes import Process, ServerProcess

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "clients" / "python" / "README.md"]
PAGE_SECONDS = 120.0

# What the server offers that a page's reader is supposed to have started.
AGENTS = ["swarmkeep_agents.triage"]


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_every_block_of_the_page_works(page: Path, tmp_path: Path) -> None:
    found = blocks(page)
    for block in found:
        block.check()
    folder = tmp_path / "reader"
    folder.mkdir()
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    env = {"PATH": programs, "PYTHONPATH": str(ROOT)}
    address = ADDRESS
    with ExitStack() as stack:
        if any(block.runs and ADDRESS in block.code for block in found):
            server = stack.enter_context(ServerProcess(tmp_path, agents=AGENTS))
            address = f"127.0.0.1:{server.port}"
            env["SWARMKEEP_URL"] = server.url
        command = [sys.executable, "-m", "tests.support.markdown", str(page), address]
        reader = stack.enter_context(Process(command, folder=folder, env=env))
        if reader.wait(PAGE_SECONDS):
            raise reader.failure("a block failed")
