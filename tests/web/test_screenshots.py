"""The pictures in the documentation: taken of the real page, on the offline model, every time the tests run.

`make screenshots` keeps them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.docs.pages import DOCS, ROOT
from tests.support.markdown import read_blocks
from tests.support.processes import ServerProcess
from tests.web.window import PHONE, Api, Window

pytestmark = pytest.mark.long

MESSAGES = ("Hello, I'd like to buy a lantern for a hut trip.", "Yes, please place the order.")
WIDE = {"width": 1280, "height": 860}
SIGNS = b"\x89PNG"
MOST_BYTES = 180_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    kept = os.environ.get("SWARMKEEP_SCREENSHOTS")
    return ROOT / kept if kept else tmp_path


@pytest.fixture
def shop(tmp_path: Path) -> ServerProcess:
    return ServerProcess(tmp_path, agents=["swarmkeep_agents.acme"])


@pytest.fixture
def beginners(tmp_path: Path) -> ServerProcess:
    """The team of the quickstart."""
    (team,) = [block for block in read_blocks(DOCS / "quickstart.md") if block.file == "shop.py"]
    file = tmp_path / team.file
    file.write_text(team.code, encoding="utf-8")
    return ServerProcess(tmp_path, agents=[str(file)])


def test_the_quickstart_has_its_picture_taken(
    windows: Callable[..., Window], beginners: ServerProcess, folder: Path
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with beginners, Api(beginners.url) as api:
        api.session(id="order-4711", metadata={"title": "Order A-17"})
        api.run("order-4711", "I want a refund for order A-17.")
        window = windows(beginners.url)
        window.page.set_viewport_size({"width": 1280, "height": 800})
        window.page.emulate_media(color_scheme="light", reduced_motion="reduce")
        window.open_chat("order-4711")
        expect(window.page.get_by_role("button", name="Approve")).to_be_in_viewport()
        file = folder / "page-quickstart.png"
        window.page.screenshot(path=file)
        assert file.read_bytes().startswith(SIGNS)
        assert file.stat().st_size < MOST_BYTES


def test_the_page_has_its_pictures_taken(windows: Callable[..., Window], shop: ServerProcess, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with shop, Api(shop.url) as api:
        window = windows(shop.url)
        api.session(id="hut-trip", context_variables={"user_name": "Robin"}, metadata={"title": "Hut trip"})
        api.session(id="repair-88", agent="Issues and Repairs Agent", metadata={"title": "Stove repair"})
        for message in MESSAGES:
            api.run("hut-trip", message)

        def picture(name: str, *, size: dict[str, int] = WIDE, theme: str = "light") -> None:
            window.page.set_viewport_size(size)  # type: ignore[arg-type]
            window.page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
            file = folder / f"{name}.png"
            window.page.screenshot(path=file)
            assert file.read_bytes().startswith(SIGNS)
            assert file.stat().st_size < MOST_BYTES

        window.open()
        expect(window.page.get_by_role("link", name="Hut trip")).to_be_visible()
        expect(window.page.get_by_role("radio")).to_have_count(len(api.get("agents")["data"]))
        picture("page-start")
        window.open_chat("hut-trip")
        window.calls.nth(-2).locator("summary").click()
        expect(window.calls.nth(-2).get_by_text("Output")).to_be_visible()
        window.log.evaluate("(log) => log.scrollTo(0, log.scrollHeight)")
        expect(window.page.get_by_role("button", name="Approve")).to_be_in_viewport()
        picture("page-chat-light")
        picture("page-chat-dark", theme="dark")
        picture("page-chat-phone", size=PHONE)
        change = next(event["seq"] for event in api.events("hut-trip") if event["type"] == "context.updated")
        window.page.set_viewport_size(WIDE)  # type: ignore[arg-type]
        window.open_timeline("hut-trip", at=change)
        expect(window.detail.locator(".changes")).to_be_visible()
        picture("page-timeline-light")
        picture("page-timeline-dark", theme="dark")
        picture("page-timeline-phone", size=PHONE)
