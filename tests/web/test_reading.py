"""To read, find, filter and print: answers as they were meant, on any window, by any hand."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from playwright.sync_api import Error, Route, expect

from tests.support.scripted import ScriptedModel
from tests.web.window import PHONE, WIDE, Api, Window

pytestmark = pytest.mark.long

WORD = "Donaudampfschifffahrtsgesellschaft"
TABLE = f"|Item|Price|Note|\n|:-|-:|:-:|\n|{WORD}|1,299.00|ok|\n|Lamp|9.50|{'wide ' * 4}|"


TABLE_FITS = """(isWider) => {
  const [log, frame, cell] = [".log", ".prose [role=group]", ".prose td"].map((name) => document.querySelector(name));
  const isLine = cell.getBoundingClientRect().height < 45;
  return isLine && log.scrollWidth <= log.clientWidth && (frame.scrollWidth > frame.clientWidth) === isWider;
}"""
# The head shows all that is in it, and ends above the scrubber.
FITS_ACROSS = """(selector) => {
  const node = document.querySelector(selector);
  return node.scrollWidth <= node.clientWidth;
}"""
HEAD_FITS = """() => {
  const [head, scrubber] = [".view-head", ".scrubber"].map((name) => document.querySelector(name));
  const isAbove = head.getBoundingClientRect().bottom <= scrubber.getBoundingClientRect().top + 1;
  return isAbove && head.scrollHeight <= head.clientHeight;
}"""


def tell(window: Window, model: ScriptedModel, text: str) -> None:
    model.say(text)
    window.open()
    window.say("tell me")
    expect(window.answers).to_have_count(1)


@pytest.mark.parametrize("size", ["wide", "phone"])
def test_table_aligns_scrolls_and_breaks_no_word(window: Window, model: ScriptedModel, size: str) -> None:
    if size == "phone":
        window.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    tell(window, model, f"{TABLE}\n")
    cells = window.answers.locator("td")
    expect(cells.nth(1)).to_have_css("text-align", "right")
    expect(cells.nth(2)).to_have_css("text-align", "center")
    # On one line, and reached by scrolling the table, not the page.
    window.page.wait_for_function(TABLE_FITS, arg=size == "phone")


def test_task_list_boxes_are_shown(window: Window, model: ScriptedModel) -> None:
    tell(window, model, "- [x] packed\n- [ ] sent\n- plain\n")
    expect(window.answers.locator("li")).to_have_text(["☑ packed", "☐ sent", "plain"])
    expect(window.answers.locator("li").first).to_have_css("list-style-type", "none")
    expect(window.answers.locator("li").last).not_to_have_css("list-style-type", "none")
    expect(window.answers.locator("input")).to_have_count(0)


def test_code_is_copied(window: Window, model: ScriptedModel) -> None:
    window.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tell(window, model, "Do this:\n\n```python\nfor x in y:\n    print(x)\n```\n")
    copy = window.answers.get_by_role("button", name="Copy")
    copy.focus()
    expect(copy).to_have_css("opacity", "1")
    copy.press("Enter")
    expect(window.answers.get_by_role("button", name="Copied")).to_be_visible()
    assert window.evaluate("() => navigator.clipboard.readText()") == "for x in y:\n    print(x)\n"


def test_search_results_are_reached_by_keys(window: Window, api: Api) -> None:
    api.session(id="search-1")
    api.session(id="search-2")
    api.wait_until_found("search", "search-1", "search-2")
    window.open()
    expect(window.page.get_by_role("link", name=re.compile("^search-2"))).to_be_visible()
    keyboard = window.page.keyboard
    keyboard.press("Control+k")
    keyboard.type("search-")
    keyboard.press("Enter")
    expect(window.page.get_by_role("heading", level=1)).to_have_text("search-2")
    keyboard.press("Control+k")
    keyboard.press("ArrowDown")
    keyboard.press("ArrowDown")
    keyboard.press("Enter")
    expect(window.page.get_by_role("heading", level=1)).to_have_text("search-1")
    keyboard.press("Control+k")
    keyboard.press("ArrowDown")
    keyboard.press("ArrowUp")
    expect(window.page.get_by_role("searchbox", name=re.compile("Search sessions"))).to_be_focused()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_search_can_be_left_before_its_answer(window: Window, api: Api, elsewhere: bool) -> None:
    title = f"Parasols {elsewhere}"
    api.wait_until_found(title, api.session(metadata={"title": title}))
    window.open()
    expect(window.page.get_by_role("link", name=re.compile(f"^{title}"))).to_be_visible()
    held: list[Route] = []
    window.page.route("**/v1/sessions?*q=*", lambda route: held.append(route))
    keyboard = window.page.keyboard
    keyboard.press("Control+k")
    # Nothing here is called so, until the server says what it found.
    keyboard.type(f"{elsewhere} parasols")
    keyboard.press("Enter")
    expect(window.page.locator(".session")).to_have_count(0)
    if elsewhere:
        window.composer.focus()
    window.page.unroute("**/v1/sessions?*q=*")
    for route in held:
        with suppress(Error):
            route.continue_()
    if elsewhere:
        # Whoever has gone on to something else meanwhile is left there.
        expect(window.page.locator(".session-name")).to_have_text(title)
        place = window.evaluate("() => new Promise((resolve) => setTimeout(() => resolve(location.hash)))")
        assert place.startswith("#/chat?q=")
    else:
        expect(window.page.get_by_role("heading", level=1)).to_have_text(title)


def test_open_session_is_always_in_list(window: Window, api: Api) -> None:
    old = api.session(id="out-of-sight")
    for _ in range(51):
        api.session()
    window.open_chat(old)
    here = window.page.get_by_role("navigation", name="Sessions").locator("[aria-current=page]")
    expect(here).to_contain_text("out-of-sight")


def test_a_conversation_is_printed_whole(window: Window, api: Api) -> None:
    roles = ("user", "assistant")
    history = [{"role": roles[n % 2], "content": f"Message {n}. {'words ' * 40}"} for n in range(200)]
    window.open_chat(api.session(messages=history))
    expect(window.answers.last).to_contain_text("Message 199.")
    pages = window.page.pdf().count(b"/Type /Page\n") or window.page.pdf().count(b"/Type /Page ")
    assert pages > 5
    # Whoever prints gets all of it, and not what happened to be loaded.
    expect(window.questions.first).to_contain_text("Message 0.")


@pytest.fixture
def mixed(model: ScriptedModel, api: Api) -> str:
    """A session with calls, one of them failed, and a run that failed."""
    session = api.session()
    model.calls([("get_weather", {"city": "Rome"}, "c1"), ("get_weather", {"town": "Oslo"}, "c2")])
    model.say("Well.")
    api.run(session, "hello")
    model.fail(401)
    api.run(session, "again")
    return session


def test_tools_filter_with_calls_and_coloured_failures(window: Window, mixed: str) -> None:
    window.open_timeline(mixed)
    expect(window.rows.first).to_be_visible()
    kind = window.page.get_by_label("Kind of event")
    kind.select_option("Tools")
    titles = window.rows.locator(".row-title")
    expect(titles).to_have_text(["Tool call", "Tool started", "Tool result", "Tool started", "Tool result"])
    kind.select_option("Failures")
    expect(titles).to_have_text(["Tool result", "Run failed"])
    for title in titles.all():
        expect(title).to_have_css("color", "rgb(168, 39, 31)")


def test_next_event_skips_hidden_ones(window: Window, mixed: str, api: Api) -> None:
    seqs = [event["seq"] for event in api.events(mixed) if event["type"] == "message.added"]
    window.open_timeline(mixed, at=1)
    expect(window.rows.first).to_be_visible()
    window.page.get_by_label("Kind of event").select_option("Failures")
    expect(window.rows).to_have_count(2)
    ahead = window.page.get_by_role("button", name="Next event")
    ahead.click()
    expect(window.page).to_have_url(re.compile(rf"at={seqs[3]}$"))
    ahead.click()
    expect(window.page).to_have_url(re.compile(rf"at={len(api.events(mixed))}$"))
    window.page.get_by_role("button", name="Previous event").click()
    expect(window.page).to_have_url(re.compile(rf"at={seqs[3]}$"))


def test_no_two_agents_are_alike(window: Window) -> None:
    window.open()
    told = window.evaluate(
        """async () => {
          const { h, lane } = await import("/page/dom.js");
          const { lanesOf } = await import("/page/rows.js");
          const colours = [...Array(15).keys()].map((index) => {
            const dot = lane(h("span", { class: "dot" }), index);
            document.body.append(dot);
            const { backgroundColor } = getComputedStyle(dot);
            dot.remove();
            return backgroundColor;
          });
          const agents = [...Array(15).keys()].map((index) => `Agent ${index}`);
          const many = [lanesOf("Agent 14", agents)].flat().map((node) => node.textContent).join();
          const few = lanesOf("Agent 5", agents.slice(0, 6))[0].childElementCount;
          return [new Set(colours).size, many, few];
        }"""
    )
    assert told == [15, "Agent 14", 6]


@pytest.mark.parametrize("width", [320, 768, 860, 1000])
def test_nothing_is_cut_at_any_width(window: Window, mixed: str, width: int) -> None:
    window.page.set_viewport_size({"width": width, "height": 640})
    window.open_chat(mixed)
    export = window.page.get_by_role("button", name="Export")
    expect(export).to_be_in_viewport(ratio=1)
    window.wait_until_it_fits()
    window.open_timeline(mixed)
    expect(export).to_be_in_viewport(ratio=1)
    window.wait_until_it_fits()
    # More than a row or two of what happened.
    window.page.wait_for_function("() => document.querySelector('.rows')?.clientHeight >= 4 * 40")


def test_low_window_still_shows_event(window: Window, mixed: str, api: Api) -> None:
    for size in ({"width": 667, "height": 320}, {"width": 320, "height": 256}):
        window.page.set_viewport_size(size)  # type: ignore[arg-type]
        window.open_timeline(mixed, at=3)
        fact = window.detail.locator(".facts dd").first
        fact.scroll_into_view_if_needed()
        expect(fact).to_be_in_viewport(ratio=1)
        window.page.wait_for_function(HEAD_FITS)
        window.wait_until_it_fits()
        window.open_chat(mixed)
        expect(window.composer).to_be_in_viewport()
        window.page.wait_for_function("() => document.querySelector('.log').clientHeight > 60")
        # What stands above a conversation is there to be used, and nothing of it beside the window.
        window.wait_until_it_fits()
        for part in (window.page.get_by_role("heading", level=1), window.page.get_by_role("button", name="Export")):
            part.scroll_into_view_if_needed()
            expect(part).to_be_in_viewport(ratio=1)
            assert part.bounding_box()["width"] > 30  # type: ignore[index]
    window.page.set_viewport_size(WIDE)  # type: ignore[arg-type]
    title = window.page.get_by_role("heading", level=1)
    api.client.patch(f"sessions/{mixed}", json={"metadata": {"title": "An order that came late"}}).raise_for_status()
    expect(title).to_have_text("An order that came late")
    window.page.wait_for_function(FITS_ACROSS, arg=".view-title")
    window.open("#/inbox")
    head = window.page.locator(".view-head")
    expect(head).to_be_visible()
    window.page.set_viewport_size({"width": 320, "height": 256})
    window.page.wait_for_function(
        "() => document.querySelector('.view-head').scrollHeight <= document.querySelector('.view-head').clientHeight"
    )
    window.page.get_by_role("button", name="Sessions").click()
    link = window.page.get_by_role("navigation", name="Sessions").get_by_role("link").first
    expect(link).to_contain_text("An order that came late")
    link.scroll_into_view_if_needed()
    expect(link).to_be_in_viewport(ratio=0.9)
    window.open_timeline(mixed)
    window.page.get_by_role("button", name="Check", exact=True).click()
    window.page.get_by_text("Check against an earlier head").click()
    panel = window.page.get_by_role("region", name="Check against earlier heads")
    expect(panel).to_be_visible()
    window.page.wait_for_function(FITS_ACROSS, arg=".panel:not([hidden])")
