"""For everybody: what a checker of accessibility finds, on each view, in each theme and size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.processes import ServerProcess
from tests.support.scripted import ScriptedModel
from tests.web.test_files import PICTURE
from tests.web.window import PHONE, Api, Window

pytestmark = pytest.mark.long

AXE = Path(__file__).with_name("vendor") / "axe-core" / "axe.min.js"
# All that it finds; which headings a model writes, and in which order, is not up to the page.
FOUND = """async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  return violations
    .map(({ id, nodes }) => [id, nodes.filter(({ target }) => !document.querySelector(target[0])?.closest(".prose"))])
    .filter(([, nodes]) => nodes.length)
    .map(([id, nodes]) => `${id}: ${nodes.map((node) => node.html + " " + node.failureSummary).join("; ")}`);
}"""


def check_accessibility(window: Window) -> None:
    if not window.evaluate("() => 'axe' in window"):
        window.evaluate(AXE.read_text(encoding="utf-8"))
    assert window.evaluate(FOUND) == []


@pytest.fixture
def window(cleared_windows: Callable[..., Window], server: ServerProcess) -> Window:
    """One that lets the checker have styles of its own."""
    return cleared_windows(server.url, bypass_csp=True)


@pytest.fixture
def waiting(model: ScriptedModel, api: Api) -> str:
    """A session with messages, calls, a handoff and a failed run, which waits for an approval."""
    session = api.session()
    model.calls([("get_weather", {"city": "Rome"}, "c1"), ("transfer_to_sales", {}, "c2")])
    model.say("# Sunny\n\n- it is `so`\n- [look](https://example.org)\n\n|a|b|\n|-|-|\n|1|2|\n\n```\ncode\n```")
    api.run(session, "hello")
    model.fail(401)
    api.run(session, "again")
    model.call("refund", {"order": "1"}, id="c3")
    api.run(session, "refund", agent="Front Desk")
    return session


@pytest.mark.parametrize(("theme", "size"), [("light", "wide"), ("dark", "phone")])
def test_a_checker_finds_nothing(window: Window, waiting: str, api: Api, theme: str, size: str) -> None:
    window.page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
    if size == "phone":
        window.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    window.open()
    expect(window.page.get_by_role("radio").first).to_be_attached()
    chosen = ("square.png", PICTURE), ("page.png", b"<html>")
    window.page.locator("input[type=file]").set_input_files(
        [{"name": name, "mimeType": "image/png", "buffer": content} for name, content in chosen]
    )
    expect(window.page.get_by_role("status").filter(has_text="page.png is not attached")).to_be_visible()
    expect(window.page.get_by_text("square.png")).to_be_visible()
    check_accessibility(window)
    window.open_chat(waiting)
    expect(window.page.get_by_role("button", name="Approve")).to_be_visible()
    window.calls.first.locator("summary").click()
    window.page.get_by_role("button", name="Take over").click()
    check_accessibility(window)
    answer = next(event["seq"] for event in api.events(waiting) if event["data"].get("completion"))
    window.open_timeline(waiting, at=answer)
    expect(window.detail).to_contain_text("Tool call")
    for fold in window.detail.locator("summary").all():
        fold.click()
    check_accessibility(window)
    window.open("#/agents")
    expect(window.page.get_by_role("group", name="Who hands over to whom")).to_be_visible()
    check_accessibility(window)
    if size == "phone":
        window.page.get_by_role("button", name="Sessions").click()
        check_accessibility(window)
    window.page.get_by_role("button", name="API key").click(force=True)
    expect(window.page.get_by_role("dialog")).to_be_visible()
    check_accessibility(window)


# The sizes and weights of all text that is in sight, in pixels.
TYPE = """() => {
  const found = { sizes: new Set(), weights: new Set() };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const { parentElement: holder } = walker.currentNode;
    if (!walker.currentNode.data.trim() || !holder.checkVisibility()) continue;
    const { fontSize, fontWeight } = getComputedStyle(holder);
    found.sizes.add(fontSize);
    found.weights.add(fontWeight);
  }
  return [[...found.sizes], [...found.weights]];
}"""
VIEWS = ("#/chat", "#/agents", "#/inbox", "#/usage", "#/runs", "#/compare", "#/audit", "#/webhooks")


def test_type_has_four_sizes_and_two_weights(window: Window, waiting: str) -> None:
    places = (*VIEWS, f"#/chat/{waiting}", f"#/timeline/{waiting}", f"#/timeline/{waiting}?as=waterfall")
    for place in (*places, f"#/inbox/{waiting}"):
        window.open(place)
        expect(window.page.get_by_role("heading", level=1).first).to_be_visible()
        sizes, weights = window.evaluate(TYPE)
        assert {"12px", "14px", "16px", "24px"}.issuperset(sizes), place
        assert {"400", "600"}.issuperset(weights), place


def test_tab_of_the_view_is_in_sight(window: Window) -> None:
    window.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    window.open("#/audit")
    expect(window.page.get_by_role("navigation", name="Views").get_by_role("link", name="Audit log")).to_be_in_viewport(
        ratio=1
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1000, 1440])
def test_a_checker_finds_nothing_at_the_desk(window: Window, waiting: str, theme: str, width: int) -> None:
    window.page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
    window.page.set_viewport_size({"width": width, "height": 900})
    window.open(f"#/inbox/{waiting}")
    expect(window.page.get_by_role("button", name="Approve", exact=True)).to_be_visible()
    window.wait_until_it_fits()
    check_accessibility(window)
    if width < 1000:
        facts = window.page.get_by_role("region", name="Facts")
        window.page.get_by_role("button", name="Facts").press("Enter")
        expect(facts).to_contain_text("Model calls")
        check_accessibility(window)
        facts.get_by_role("button", name="Close").press("Enter")
        expect(facts).to_be_hidden()
    if width < 700:
        window.page.get_by_role("link", name="Back to the inbox").press("Enter")
    expect(window.page.locator(".case-item").first).to_be_visible()
    window.wait_until_it_fits()
    check_accessibility(window)


def test_announcements_are_read_once(window: Window, model: ScriptedModel, api: Api) -> None:
    model.call("transfer_to_sales", {}, id="c1")
    model.say("At your service.")
    session = api.session()
    window.open_chat(session)
    window.say("sales")
    aloud = window.page.locator("[aria-live=polite] p")
    expect(aloud).to_have_text(["Front Desk hands over to Sales", "Sales: At your service."])


def test_theme_choice_is_kept(window: Window) -> None:
    window.page.emulate_media(color_scheme="light")
    window.open()
    dark = "rgb(19, 20, 21)"
    body = window.page.locator("body")
    expect(body).not_to_have_css("background-color", dark)
    for name in ("as in the system", "light"):
        window.page.get_by_role("button", name=f"Colours: {name}").click()
    expect(body).to_have_css("background-color", dark)
    window.page.reload()
    expect(body).to_have_css("background-color", dark)
    expect(window.page.get_by_role("button", name="Colours: dark")).to_be_visible()


def test_first_tab_skips_to_content(window: Window) -> None:
    window.open("#/timeline")
    expect(window.page.get_by_text("Choose a session")).to_be_visible()
    window.page.keyboard.press("Tab")
    expect(window.page.get_by_role("link", name="Skip to content")).to_be_focused()
    window.page.keyboard.press("Enter")
    expect(window.page.get_by_role("main")).to_be_focused()


def test_keyboard_stays_out_from_behind_menu(window: Window, api: Api) -> None:
    session = api.session()
    window.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    window.open_chat(session)
    expect(window.composer).to_be_focused()
    menu = window.page.get_by_role("button", name="Sessions", exact=True)
    menu.press("Enter")
    expect(menu).to_have_attribute("aria-expanded", "true")
    window.page.get_by_role("navigation", name="Sessions").locator(":is(a, button):visible").last.press("Tab")
    expect(window.page.get_by_role("button", name="Rename")).to_be_focused()
    expect(menu).to_have_attribute("aria-expanded", "false")


def test_view_change_keeps_keyboard_in_content(window: Window, api: Api) -> None:
    session = api.session()
    window.open_timeline(session)
    window.page.get_by_role("button", name="Delete", exact=True).press("Enter")
    window.page.get_by_role("button", name="Delete for good").press("Enter")
    expect(window.page.get_by_text("Choose a session")).to_be_visible()
    expect(window.page.get_by_role("main")).to_be_focused()
