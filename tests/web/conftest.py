"""One Chromium and one server for all tests of the page; for each a window that is as new."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, sync_playwright

from tests.support.chromium import ARGUMENTS, NEEDED, find_chromium, is_browser_needed
from tests.support.processes import ServerProcess
from tests.support.scripted import ScriptedModel
from tests.web.window import Api, Window

TEAM = Path(__file__).with_name("team.py")
MISSING = "there is no Chromium: install one (apt-get install chromium), or `playwright install chromium`"


# For this package only: as long as it runs, the library holds the thread's event loop.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        path = find_chromium(playwright.chromium.executable_path)
        if path is None and is_browser_needed():
            pytest.fail(f"{MISSING}; {NEEDED} or CI is set")
        if path is None:
            pytest.skip(MISSING)
        running = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture(scope="package")
def _scripted() -> Iterator[ScriptedModel]:
    with ScriptedModel() as model:
        yield model


def serve(folder: Path, model: ScriptedModel) -> ServerProcess:
    env = {
        "OPENAI_API_KEY": "test",
        "OPENAI_BASE_URL": model.url,
        "SWARMKEEP_MODEL_RETRIES": "0",
        "SWARMKEEP_PRICES": '{"scripted-*": {"input": 2, "cached_input": 1, "output": 10}}',
    }
    return ServerProcess(folder, agents=[str(TEAM)], offline=False, env=env)


@pytest.fixture(scope="package")
def server(_scripted: ScriptedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serve(tmp_path_factory.mktemp("page"), _scripted) as running:
        yield running


@pytest.fixture
def model(_scripted: ScriptedModel) -> Iterator[ScriptedModel]:
    yield _scripted
    _scripted.assert_done()


@pytest.fixture
def api(server: ServerProcess) -> Iterator[Api]:
    with Api(server.url) as api:
        yield api


@pytest.fixture
def windows(browser: Browser) -> Iterator[Callable[..., Window]]:
    """Makes windows on a server; at the end none of them may have met anything that should not be."""
    opened: list[Window] = []

    def open_window(url: str, **options: Any) -> Window:
        opened.append(Window(browser, url, **options))
        return opened[-1]

    yield open_window
    for window in opened:
        window.close()
    assert [wrong for window in opened for wrong in window.errors] == []


@pytest.fixture(scope="package")
def _kept(browser: Browser) -> Iterator[dict[str, list[Window]]]:
    """Windows that no test uses now, by what they were made with."""
    kept: dict[str, list[Window]] = {}
    yield kept
    for window in (window for windows in kept.values() for window in windows):
        window.close()


@pytest.fixture
def cleared_windows(browser: Browser, _kept: dict[str, list[Window]]) -> Iterator[Callable[..., Window]]:
    """As `windows`, for tests that may have what others used before: a new one takes seconds to start."""
    taken: list[tuple[Window, list[Window]]] = []

    def open_window(url: str, **options: Any) -> Window:
        alike = _kept.setdefault(repr(sorted(options.items())), [])
        window = alike.pop() if alike else Window(browser, url, **options)
        window.url = url
        taken.append((window, alike))
        return window

    yield open_window
    errors = [wrong for window, _ in taken for wrong in window.errors]
    for window, alike in taken:
        try:
            window.clear()
            alike.append(window)
        except Error:
            window.close()
    assert errors == []


@pytest.fixture
def window(cleared_windows: Callable[..., Window], server: ServerProcess) -> Window:
    return cleared_windows(server.url)
