"""Another try: what was said is edited in a fork, both are seen side by side, and each leads to the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Route, expect

from tests.support.pictures import make_inline_picture, make_message, make_png
from tests.support.scripted import ScriptedModel
from tests.web.test_accessibility import check_accessibility
from tests.web.test_accessibility import window as window
from tests.web.window import PHONE, Api, Window

pytestmark = pytest.mark.long

LAMP = {"type": "function", "function": {"name": "light", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture
def talk(model: ScriptedModel, api: Api) -> str:
    """Two runs; the second one brought a picture, settings of its own and a context."""
    session = api.session(metadata={"title": "The weather"})
    model.call("get_weather", {"city": "Rome"}, id="c1")
    model.say("It is sunny in Rome.")
    api.run(session, "Rome?")
    model.say("A lighthouse.")
    api.run(
        session,
        [make_message(make_inline_picture(make_png(9, 9)), text="What is this?")],
        model_settings={"temperature": 0},
        tools=[LAMP],
        parallel_tool_calls=False,
        context_variables={"place": "Rome"},
    )
    return session


def find_side(window: Window, number: int) -> Locator:
    return window.page.locator(".side").nth(number)


BESIDE_EACH_OTHER = """(areBeside) => {
  const [one, other] = [...document.querySelectorAll(".side")].map((side) => side.getBoundingClientRect());
  return areBeside ? one.left < other.left && one.top === other.top : one.left === other.left && one.top < other.top;
}"""


def test_message_is_reworded_in_a_fork(window: Window, talk: str, api: Api, model: ScriptedModel) -> None:
    before = api.events(talk)
    window.open_chat(talk)
    expect(window.questions).to_have_count(2)
    edit = window.log.get_by_role("button", name="Edit and fork").last
    edit.focus()
    edit.press("Enter")
    dialog = window.page.get_by_role("dialog", name="Say it differently")
    expect(dialog.get_by_label("What is said instead")).to_have_value("What is this?")
    check_accessibility(window)
    dialog.get_by_label("What is said instead").fill("Where is this?")
    dialog.get_by_label("Agent").select_option("Sales")
    dialog.get_by_label("Model").fill("another-model")
    model.say("In Brittany.")
    dialog.get_by_role("button", name="Fork and run").click()
    expect(find_side(window, 1)).to_contain_text("In Brittany.")
    asked = model.requests[-1]
    assert (asked["model"], asked["temperature"], asked["messages"][0]["content"]) == ("another-model", 0, "Sell.")
    assert (asked["tools"][-1], asked["parallel_tool_calls"]) == (LAMP, False)
    said, picture = asked["messages"][-1]["content"]
    assert said == {"type": "text", "text": "Where is this?"}
    assert picture["image_url"]["url"].startswith("data:image/png;base64,")
    assert "It is sunny in Rome." in str(asked["messages"])
    assert "What is this?" not in str(asked["messages"])
    (fork,) = api.get(f"sessions/{talk}/forks")["data"]
    begun = next(event["seq"] for event in before if event["type"] == "run.started" and event["seq"] > 3)
    assert fork["forked_from"]["seq"] == begun - 1
    assert api.get(f"sessions/{fork['id']}")["context_variables"] == {"place": "Rome"}
    assert api.events(talk) == before
    # Side by side, from where they part.
    expect(window.page).to_have_url(re.compile(rf"#/compare/{talk}\?with={fork['id']}$"))
    expect(window.page.get_by_text(f"They share events 1 to {begun - 1}.")).to_be_visible()
    first, second = find_side(window, 0), find_side(window, 1)
    expect(first.locator(".message.user .prose")).to_have_text(["What is this?"])
    expect(second.locator(".message.user .prose")).to_have_text(["Where is this?"])
    expect(second.get_by_role("button", name="Edit and fork")).to_have_count(0)
    expect(window.page.locator("tr.differs").filter(has_text="Agent")).to_contain_text("Front DeskSales")
    check_accessibility(window)
    window.page.wait_for_function(BESIDE_EACH_OTHER, arg=True)
    window.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    window.page.wait_for_function(BESIDE_EACH_OTHER, arg=False)
    check_accessibility(window)
    window.page.set_viewport_size({"width": 1280, "height": 800})
    # Each goes on in its column, and each leads to the other.
    model.say("Not far from Brest.")
    api.run(fork["id"], "Where there?")
    expect(second).to_contain_text("Not far from Brest.")
    second.get_by_role("link", name=f"Forked from {talk} after event {begun - 1}").click()
    expect(window.questions).to_have_text(["Rome?", "What is this?"])
    window.page.get_by_role("button", name="1 fork").press("Enter")
    window.page.get_by_role("link", name="The weather").last.click()
    expect(window.questions).to_have_text(["Rome?", "Where is this?", "Where there?"])
    window.page.get_by_role("button", name="Origin").click()
    window.page.get_by_role("link", name=f"Side by side with {talk}").click()
    expect(find_side(window, 1)).to_contain_text("A lighthouse.")


def test_late_or_missing_editor_harms_nothing(window: Window, api: Api, model: ScriptedModel) -> None:
    model.say("Hello.")
    session = api.session()
    api.run(session, "Good morning")
    window.page.route("**/edit.js", lambda route: route.abort())
    window.open_chat(session)
    edit = window.log.get_by_role("button", name="Edit and fork")
    edit.press("Enter")
    expect(window.page.get_by_role("alert")).to_contain_text("This part of the page could not be loaded.")
    window.page.unroute("**/edit.js")
    held: list[Route] = []
    window.page.route("**/edit.js", lambda route: held.append(route))
    with window.page.expect_request("**/edit.js") as asked:
        edit.press("Enter")
    window.page.get_by_role("navigation").get_by_role("button", name="New chat").click()
    expect(window.page.get_by_role("radio").first).to_be_attached()
    held[0].continue_()
    window.evaluate(
        "(address) => import(address).then(() => new Promise((resolve) => setTimeout(resolve)))", asked.value.url
    )
    assert window.page.locator("dialog[open]").count() == 0


def test_sessions_are_compared_by_id(window: Window, talk: str, api: Api, model: ScriptedModel) -> None:
    other = api.session(context_variables={"place": "Oslo"}, metadata={"title": "Elsewhere"})
    model.call("refund", {"order": "A-17"}, id="c9")
    api.run(other, "Refund A-17")
    window.open("#/chat")
    window.page.get_by_role("link", name="Compare").click()
    window.page.get_by_label("Session", exact=True).fill(talk)
    second = window.page.get_by_label("Other session")
    second.focus()
    known = window.page.locator("#known-sessions option")
    expect(known.and_(window.page.locator(f"[value='{other}']"))).to_have_text("Elsewhere")
    second.fill("nobody")
    second.press("Enter")
    expect(find_side(window, 1).get_by_role("alert")).to_contain_text("nobody")
    second.fill(other)
    second.press("Enter")
    expect(window.page.get_by_text("They share no event.")).to_be_visible()
    # Whoever looks on may well be who may approve.
    expect(find_side(window, 1)).to_contain_text("It can be answered in the chat of this session.")
    expect(window.page.locator("tr.differs").filter(has_text="place")).to_contain_text('"Rome""Oslo"')
    second.fill(talk)
    second.press("Enter")
    expect(window.page.get_by_text(f"They are the same, up to event {len(api.events(talk))}")).to_be_visible()


def test_session_exports_in_every_form(window: Window, talk: str, api: Api, tmp_path: Path) -> None:
    window.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answer = next(event["seq"] for event in api.events(talk) if event["data"].get("completion"))
    window.open_timeline(talk, at=answer)
    export = window.page.get_by_role("button", name="Export")
    for name, path in (
        ("Transcript (Markdown)", "transcript?format=markdown"),
        ("Transcript (HTML)", "transcript?format=html"),
    ):
        export.click()
        with window.page.expect_download() as waited:
            window.page.get_by_role("button", name=name).click()
        file = tmp_path / "file"
        waited.value.save_as(file)
        assert file.read_bytes() == api.client.get(f"sessions/{talk}/{path}").content
    export.press("Enter")
    window.page.keyboard.press("Escape")
    expect(window.page.get_by_role("button", name="Transcript (HTML)")).to_be_hidden()
    expect(export).to_be_focused()
    export.click()
    check_accessibility(window)
    window.page.get_by_role("button", name="Copy a link to this").click()
    expect(window.page.locator("[aria-live=polite]")).to_contain_text("The link is copied")
    assert window.read_clipboard() == f"{window.url}/#/timeline/{talk}?at={answer}"
    window.open_chat(talk)
    window.evaluate("() => { window.print = () => { document.title = 'on paper'; }; }")
    window.page.get_by_role("button", name="Export").click()
    window.page.get_by_role("button", name="Print").click()
    expect(window.page).to_have_title("on paper")
