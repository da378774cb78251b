"""A window that was open as this release came goes on: the page of then, on the server of now."""

from __future__ import annotations

import mimetypes
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect

import swarmkeep
from tests.support.processes import ServerProcess
from tests.support.scripted import ScriptedModel
from tests.web.window import Api, Window

PAGES = sorted((Path(__file__).parents[1] / "golden").glob("*/page.zip"))
VENDOR = Path(swarmkeep.__file__).parent / "web" / "vendor"


def serve_files(window: Window, archive: Path) -> list[str]:
    """Have the window's page come from the release's files, and all else from the server; what it asked that for."""
    files = zipfile.ZipFile(archive)
    asked: list[str] = []

    def answer(route: Route) -> None:
        path = route.request.url.removeprefix(window.url).partition("?")[0].strip("/")
        name = path.removeprefix("page/") or "index.html"
        if name in files.namelist():
            kind = "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0]
            route.fulfill(body=files.read(name), content_type=kind)
        elif name == "purify.es.mjs":
            # Today it comes in another form.
            library = next(VENDOR.glob("*/purify.min.js")).read_text(encoding="utf-8")
            route.fulfill(body=f"{library}\nexport default DOMPurify;\n", content_type="text/javascript")
        elif vendored := next(VENDOR.glob(f"*/{name}"), None):
            # The libraries, which such a window has loaded long since, too.
            route.fulfill(path=vendored, content_type="text/javascript")
        else:
            asked.append(f"{route.request.method} /{path}")
            route.continue_()

    window.page.route("**/*", answer)
    return asked


@pytest.mark.long
@pytest.mark.parametrize("archive", PAGES, ids=lambda archive: archive.parent.name)
def test_release_page_still_works(
    archive: Path, windows: Callable[..., Window], server: ServerProcess, model: ScriptedModel, api: Api
) -> None:
    window = windows(server.url)
    asked = serve_files(window, archive)
    refused: list[str] = []
    window.page.on("response", lambda got: refused.extend([f"{got.status} {got.url}"] if got.status >= 400 else []))

    model.calls([("remember", {"key": "city", "value": "Rome"}, "c1"), ("refund", {"order": "A-17"}, "c2")])
    model.say("Paid **back**.")
    window.open()
    window.say("Refund A-17")
    window.page.get_by_role("region", name="Approval").get_by_role("button", name="Approve").click()
    expect(window.answers).to_have_text(["Paid back."])
    window.wait_until_idle()
    session_id = window.session_id

    # An event that the page has never heard of is shown, and stops nothing.
    api.client.request("DELETE", f"sessions/{session_id}/messages/{api.events(session_id)[2]['seq']}")
    window.open_timeline(session_id)
    expect(window.rows).to_have_count(len(api.events(session_id)))
    window.rows.last.click()
    expect(window.detail).to_contain_text("message.removed")
    window.rows.nth(4).click()
    expect(window.detail).to_be_visible()

    model.say("Hello again.")
    window.open_chat(session_id)
    window.say("And now?")
    expect(window.answers.last).to_have_text("Hello again.")
    assert refused == []
    assert not [path for path in asked if "/page/" in path]
    assert {path.replace(session_id, "ID") for path in asked} >= {
        "GET /v1/agents",
        "GET /v1/sessions",
        "POST /v1/sessions",
        "POST /v1/sessions/ID/runs",
        "GET /v1/sessions/ID/events",
    }
