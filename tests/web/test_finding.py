"""Finding sessions on the page, and what is done to one as a whole: its title, its metadata, its end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Route, expect

from tests.support.processes import ServerProcess
from tests.web.conftest import TEAM
from tests.web.test_accessibility import check_accessibility
from tests.web.window import WIDE, Api, Window

pytestmark = pytest.mark.long

REST = "It was a present, and it is raining, and I have to go now, so please be quick"
TITLE = "Where is my purple umbrella? It was a present, and it is raining, and I have…"
HOSTILE = "<img src=x onerror=alert(1)> &amp; needle"


@pytest.fixture(scope="module")
def found_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with sessions to find, of its own: lists of the others are theirs."""
    with ServerProcess(tmp_path_factory.mktemp("find"), agents=[str(TEAM)]) as running:
        with Api(running.url) as api:
            for number in range(60):
                api.session(id=f"bulk-{number}", messages=[user(f"Question number {number} about parcels")])
            api.session(id="sess_0123456789abcdef", messages=[user(f"Where is\nmy purple   umbrella? {REST}")])
            api.session(id="named", metadata={"title": "Größe & <b>Sons</b>", "team": "a b", "count": 7})
            api.session(id="hostile", messages=[user(HOSTILE)])
            api.session(id="emoji", messages=[user("😀😀 東京都の needle 😀")])
        yield running


@pytest.fixture
def found_api(found_server: ServerProcess) -> Iterator[Api]:
    with Api(found_server.url) as api:
        api.wait_until_found("parcels", "bulk-0", "bulk-59")
        api.wait_until_found("needle", "hostile", "emoji")
        yield api


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def search(window: Window) -> Locator:
    return window.page.get_by_role("searchbox", name=re.compile("^Search sessions"))


def names(window: Window) -> Locator:
    return window.page.locator(".session-name")


def test_search_uses_server_and_address(
    cleared_windows: Callable[..., Window], found_server: ServerProcess, found_api: Api
) -> None:
    window = cleared_windows(found_server.url).open("#/chat")
    expect(names(window)).to_have_count(50)
    asked: list[str] = []
    window.page.on("request", lambda request: asked.append(request.url) if "q=" in request.url else None)
    # Beyond what is loaded, by what was said, with a title in the place of the id.
    window.page.keyboard.press("Control+k")
    window.page.keyboard.type("umbrella", delay=20)
    expect(names(window)).to_have_text([TITLE])
    expect(window.page.locator(".hit mark")).to_have_text("umbrella")
    expect(window.page.get_by_text("1 found")).to_be_visible()
    assert len(asked) < 4, "while somebody types, the server is not asked for each letter"
    expect(window.page).to_have_url(re.compile(r"#/chat\?q=umbrella$"))
    window.page.keyboard.press("ArrowDown")
    window.page.keyboard.press("ArrowDown")
    window.page.keyboard.press("Enter")
    expect(window.page).to_have_url(re.compile(r"#/timeline/sess_0123456789abcdef\?at=2&q=umbrella$"))
    expect(window.page).to_have_title(f"{TITLE} · Timeline · Swarmkeep")
    # Again from its address.
    window.page.reload()
    expect(names(window)).to_have_text([TITLE])
    expect(search(window)).to_have_value("umbrella")
    # Text stays text, and marks stand where they belong, whatever is before them.
    search(window).fill("needle")
    expect(names(window)).to_have_count(2)
    expect(window.page.locator(".hit mark")).to_have_text(["needle", "needle"])
    expect(window.page.locator(".hit").nth(1)).to_have_text(HOSTILE)
    check_accessibility(window)
    search(window).fill('team="a b" größe')
    expect(names(window)).to_have_text(["Größe & <b>Sons</b>"])
    search(window).fill("nowhere to be found")
    expect(window.page.get_by_text("No session matches.")).to_be_visible()
    window.page.get_by_role("button", name="Clear the search and all filters").click()
    expect(names(window)).to_have_count(50)
    expect(window.page).to_have_url(re.compile(r"#/timeline/sess_0123456789abcdef\?at=2$"))
    window.page.get_by_label("Last active").select_option("hour")
    window.page.get_by_label("Status", exact=True).select_option("last:failed")
    expect(window.page.get_by_text("No session matches.")).to_be_visible()
    expect(window.page).to_have_url(re.compile(r"last=failed&active=hour$"))
    window.page.goto(f"{found_server.url}/#/chat?active=day")
    expect(names(window)).to_have_count(50)
    # What an address has is looked at, before it is looked for.
    window.page.goto(f"{found_server.url}/#/chat?status=foo&active=constructor&q=umbrella")
    expect(names(window)).to_have_text([TITLE])
    expect(window.page.get_by_label("Status", exact=True)).to_have_value("")


def test_press_is_click_after_update(
    cleared_windows: Callable[..., Window], found_server: ServerProcess, found_api: Api
) -> None:
    window = cleared_windows(found_server.url).open("#/chat")
    expect(names(window)).to_have_count(50)
    first, other = window.page.locator("a.session").nth(0), window.page.locator("a.session").nth(20)
    wanted = other.get_attribute("data-id")
    other.hover()
    window.page.mouse.down()
    changed = {"metadata": {"title": "Changed meanwhile"}}
    found_api.client.patch(f"sessions/{first.get_attribute('data-id')}", json=changed).raise_for_status()
    expect(names(window).filter(has_text="Changed meanwhile")).to_have_count(1)
    window.page.mouse.up()
    expect(window.page).to_have_url(re.compile(f"#/chat/{wanted}"))


def test_unread_list_is_retried_and_drops_deleted(
    cleared_windows: Callable[..., Window], found_server: ServerProcess, found_api: Api
) -> None:
    found_api.session(id="oldest", messages=[user("Here for a while")])
    for number in range(60):
        found_api.session(id=f"later-{number}")
    window = cleared_windows(found_server.url).open("#/chat")
    window.page.get_by_role("button", name="More sessions").click()
    expect(names(window).filter(has_text="Here for a while")).to_have_count(1)
    refused: list[str] = []

    def refuse(route: Route) -> None:
        if len(refused) == 3:
            return route.continue_()
        refused.append(route.request.url)
        return route.fulfill(status=429, json={"code": "rate_limited", "detail": "later"})

    window.page.route(re.compile(r"/v1/sessions\?limit=50"), refuse)
    found_api.session(id="newest", messages=[user("Just come")])
    expect(names(window).first).to_have_text("Just come")
    assert len(refused) == 3
    assert found_api.client.delete("sessions/oldest").status_code == 204
    expect(names(window).filter(has_text="Here for a while")).to_have_count(0)


def test_session_is_renamed_labelled_and_deleted(
    cleared_windows: Callable[..., Window], found_server: ServerProcess, found_api: Api
) -> None:
    found_api.session(
        id="kept", metadata={"count": 7, "team": "sales", "odd": ["a", 1]}, messages=[user("Hello there")]
    )
    window = cleared_windows(found_server.url).open_chat("kept")
    title = window.page.get_by_role("heading", level=1)
    expect(title).to_have_text("Hello there")
    window.page.get_by_role("button", name="Rename").click()
    field = window.page.get_by_role("textbox", name="Title")
    expect(field).to_have_value("Hello there")
    field.fill("thrown away")
    field.press("Escape")
    expect(title).to_have_text("Hello there")
    window.page.keyboard.press("Enter")
    field.fill("A better title")
    field.press("Enter")
    expect(title).to_have_text("A better title")
    expect(names(window).first).to_have_text("A better title")
    expect(window.page).to_have_title("A better title · Chat · Swarmkeep")
    assert found_api.get("sessions/kept")["title"] == "A better title"

    window.page.get_by_role("button", name="Metadata").click()
    dialog = window.page.get_by_role("dialog", name="Metadata")
    rows = dialog.locator(".pair")
    expect(rows).to_have_count(4)
    check_accessibility(window)
    # Somebody else writes while it is open: that stays.
    meanwhile = {"metadata": {"title": "Meanwhile", "region": "north"}}
    assert found_api.client.patch("sessions/kept", json=meanwhile).status_code == 200
    expect(window.page.locator(".view-title")).to_have_text("Meanwhile")
    rows.nth(0).get_by_label("Value").fill("8")
    rows.nth(1).get_by_role("button", name="Remove this").click()
    dialog.get_by_role("button", name="Add").click()
    window.page.keyboard.type("order")
    rows.last.get_by_label("Value").fill("4711")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_be_hidden()
    kept = found_api.get("sessions/kept")["metadata"]
    assert kept == {"title": "Meanwhile", "region": "north", "count": 8, "odd": ["a", 1], "order": "4711"}

    window.page.get_by_role("button", name="Delete", exact=True).click()
    dialog = window.page.get_by_role("dialog", name="Delete this session?")
    expect(dialog).to_contain_text("Meanwhile")
    check_accessibility(window)
    dialog.get_by_label("Reason").fill("asked to be forgotten")
    dialog.get_by_role("button", name="Delete for good").click()
    expect(window.page).to_have_url(re.compile(r"#/chat$"))
    expect(names(window).filter(has_text="Meanwhile")).to_have_count(0)
    assert found_api.client.get("sessions/kept").status_code == 404
    assert found_api.get("audit", limit=200)["data"][-1]["data"]["reason"] == "asked to be forgotten"


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (375, "light")])
def test_what_it_looks_like(
    cleared_windows: Callable[..., Window],
    found_server: ServerProcess,
    found_api: Api,
    tmp_path: Path,
    width: int,
    scheme: str,
) -> None:
    window = cleared_windows(found_server.url, color_scheme=scheme)
    window.page.set_viewport_size({**WIDE, "width": width})
    window.open(f"#/chat/sess_0123456789abcdef?q={quote('needle')}")
    if width < 760:
        window.page.get_by_role("button", name="Sessions").click()
    expect(window.page.locator(".hit mark")).to_have_count(2)
    window.page.screenshot(path=tmp_path / "search.png")
    window.wait_until_it_fits()
    if width < 760:
        window.page.keyboard.press("Escape")
    window.page.get_by_role("button", name="Metadata").click()
    window.page.screenshot(path=tmp_path / "metadata.png")
    check_accessibility(window)
