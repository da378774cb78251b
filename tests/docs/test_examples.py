"""Every code block of the documentation works, as it stands there, against real servers and the offline model."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.docs.offline_endpoint import offline_endpoint
from tests.docs.pages import PAGES, README, ROOT
from tests.support import warm
from tests.support.markdown import ADDRESS, read_blocks
from tests.support.processes import Process, ServerProcess, free_port

pytestmark = pytest.mark.long

# A guard against hanging, not a measure: a page with forty commands takes minutes on a machine that is busy.
PAGE_SECONDS = 600.0

# Where the pages have the servers of models, and PostgreSQL.
MODELS = (
    "http://127.0.0.1:11434",
    "http://127.0.0.1:8001",
    "http://127.0.0.1:8081",
    "https://YOUR-RESOURCE.openai.azure.com",
)
POSTGRES = "postgresql://swarmkeep:secret@127.0.0.1/swarmkeep"


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    """HOST:PORT of a model."""
    with offline_endpoint() as address:
        yield address


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_every_block_of_the_page_works(page: Path, model: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    found = read_blocks(page)
    for block in found:
        block.check()
    running = [block for block in found if block.runs]
    if not running:
        return
    shop = _make_shop(tmp_path / "reader")
    replaced = dict.fromkeys(MODELS, f"http://{model}")
    if any(POSTGRES in block.code for block in running):
        replaced[POSTGRES] = request.getfixturevalue("postgres_url")
    port = free_port()
    env = _make_environment(tmp_path, shop.parent, model)
    with ExitStack() as stack:
        if any(block.serves for block in running):
            env["SWARMKEEP_PORT"] = str(port)
        elif any(ADDRESS in block.code or "Client(" in block.code for block in running):
            server = stack.enter_context(ServerProcess(tmp_path, agents=[str(shop)], port=port))
            env["SWARMKEEP_URL"] = server.url
        command = [sys.executable, "-m", "tests.support.markdown", str(page), f"127.0.0.1:{port}"]
        command += [f"{text}={replacement}" for text, replacement in replaced.items()]
        reader = stack.enter_context(Process(command, folder=shop.parent, env=env))
        if reader.wait(PAGE_SECONDS):
            raise reader.failure("a block failed")


def _make_shop(folder: Path) -> Path:
    """The reader's folder, with the team of the README in it, which other pages take for granted."""
    (shop,) = [block for block in read_blocks(README) if block.file == "shop.py"]
    folder.mkdir()
    file = folder / shop.file
    file.write_text(shop.code, encoding="utf-8")
    return file


def _make_environment(above: Path, folder: Path, model: str) -> dict[str, str]:
    commands = above / "commands"
    commands.mkdir()
    warm.shell_command(commands)
    # A refusal of the server's is no error to curl, unless it is told so.
    (folder / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n", encoding="utf-8")
    return {
        "CURL_HOME": str(folder),
        "PATH": os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "PYTHONPATH": str(ROOT),
        "OPENAI_BASE_URL": f"http://{model}/v1",
        "OPENAI_API_KEY": "a-key-of-the-docs",
    }
