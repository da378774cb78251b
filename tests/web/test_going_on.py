"""What a reader sees stays where it is and true, while the conversation goes on around it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.support.processes import ServerProcess
from tests.support.scripted import ScriptedModel
from tests.web.window import Api, Window

pytestmark = pytest.mark.long

LONG = "\n\n".join(f"Paragraph {number} of a long answer, which goes on and on. {'word ' * 40}" for number in range(90))
PLACE = """(log) => {
  const edge = log.getBoundingClientRect().top;
  const shown = [...log.querySelectorAll("p")].find((p) => p.getBoundingClientRect().bottom > edge + 1);
  return [shown.textContent.slice(0, 14), Math.round(shown.getBoundingClientRect().top - edge)];
}"""
FRAMES = (
    "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(done))))"
)


@pytest.mark.parametrize(("end", "place"), [("ends", 1 / 3), ("ends", 0), ("is cancelled", 1 / 3)])
def test_reader_position_holds_during_answer(
    window: Window, model: ScriptedModel, api: Api, end: str, place: float
) -> None:
    model.hang(LONG, then="\n\nThe last word.")
    window.open_chat(api.session(messages=[{"role": "user", "content": "Paragraph of a question.\n\n" * 4}]))
    window.say("Tell me all")
    expect(window.draft).to_contain_text("Paragraph 89")
    window.log.evaluate("(log, place) => log.scrollTo(0, 60 + log.scrollHeight * place)", place)
    expect(window.page.get_by_role("button", name="Latest")).to_be_hidden()
    window.evaluate(FRAMES)
    before = window.log.evaluate(PLACE)
    assert before[0].startswith("Paragraph ")
    if end == "ends":
        model.release()
    else:
        window.page.get_by_role("button", name="Cancel run").click()
        model.wait_for_disconnects(1)
    expect(window.answers).to_have_count(1)
    window.wait_until_idle()
    window.evaluate(FRAMES)
    after = window.log.evaluate(PLACE)
    assert (after[0], abs(after[1] - before[1]) < 4) == (before[0], True), (before, after)


def test_long_answer_is_formatted_while_written(window: Window, model: ScriptedModel) -> None:
    blocks = "\n\n".join(f"**bold {number}** {'and words ' * 60}" for number in range(60))
    assert len(blocks) > 30_000
    model.hang(f"{blocks}\n\n- one\n- two\n\n```\ncode", then=" goes on\n```")
    window.open()
    window.say("Tell me all")
    expect(window.draft.locator("pre")).to_contain_text("code")
    expect(window.draft.locator("strong")).to_have_count(60)
    expect(window.draft.locator("li")).to_have_text(["one", "two"])
    assert "**" not in window.draft.inner_text()
    model.release()
    expect(window.answers.locator("strong")).to_have_count(60)


def test_redacted_text_leaves_every_window(
    cleared_windows: Callable[..., Window], server: ServerProcess, model: ScriptedModel, api: Api
) -> None:
    model.call("remember", {"key": "pin", "value": "hush-4711"}, id="c1")
    model.say("I keep hush-4711 for you.")
    session = api.session()
    chat, timeline = cleared_windows(server.url).open_chat(session), cleared_windows(server.url).open_timeline(session)
    expect(chat.page.get_by_text("Nothing has been said yet.")).to_be_visible()
    chat.say("My number is hush-4711.")
    expect(chat.answers).to_have_text(["I keep hush-4711 for you."])
    chat.calls.first.locator("summary").click()
    seqs = [event["seq"] for event in api.events(session) if "hush-4711" in str(event["data"])]
    expect(timeline.rows.first).to_have_attribute("aria-setsize", str(len(api.events(session))))
    timeline.open_timeline(session, at=seqs[-1])
    timeline.detail.get_by_text("The event as it is stored").click()
    expect(timeline.detail).to_contain_text("hush-4711")
    api.post(f"sessions/{session}/redact", {"seqs": seqs, "reason": "asked for"})
    for window in (chat, timeline):
        expect(window.page.locator("body")).not_to_contain_text("hush-4711")
    expect(chat.log).to_contain_text("redacted: asked for")
    assert "hush-4711" not in chat.page.content()
    assert "hush-4711" not in timeline.page.content()
    # What is seen now is what whoever comes later sees.
    shown = chat.log.inner_text()
    chat.page.reload()
    expect(chat.log).to_contain_text("redacted: asked for")
    assert re.sub(r"\s+", " ", chat.log.inner_text()) == re.sub(r"\s+", " ", shown)


def test_check_result_covers_only_checked_events(window: Window, model: ScriptedModel, api: Api) -> None:
    model.say("Hello.")
    session = api.session()
    api.run(session, "hello")
    count = len(api.events(session))
    window.open_timeline(session)
    badge = window.page.locator(".badge")
    expect(badge).to_have_text(f"Verified: {count} events")
    model.hang("More", then=".")
    api.post(f"sessions/{session}/runs", {"input": "And then?", "background": True})
    expect(window.rows.last).to_have_attribute("aria-posinset", str(count + 2))
    expect(badge).to_have_text(f"Verified up to event {count} of {count + 2}")
    window.page.get_by_role("button", name="Check again").click()
    expect(badge).to_have_text(f"Verified: {count + 2} events")
    model.release()
    # Once nothing goes on any more it is checked without being asked for.
    expect(badge).to_have_text(f"Verified: {count + 4} events")


def test_waiting_message_can_be_taken_back(window: Window, model: ScriptedModel, api: Api) -> None:
    model.hang("One", then=".")
    window.open()
    window.say("first")
    expect(window.draft).to_contain_text("One")
    window.say("never mind")
    waiting = window.log.locator(".queued")
    expect(waiting).to_contain_text("never mind")
    waiting.get_by_role("button", name="Remove").click()
    expect(waiting).to_have_count(0)
    expect(window.log).to_contain_text("A message that waited for its turn was removed")
    model.release()
    expect(window.answers).to_have_text(["One."])
    window.wait_until_idle()
    assert [run["status"] for run in api.get(f"sessions/{window.session_id}/runs")["data"]] == [
        "cancelled",
        "completed",
    ]


def test_session_with_failed_last_run_says_so(window: Window, model: ScriptedModel, api: Api) -> None:
    model.fail(401)
    session = api.session()
    api.run(session, "hello")
    window.open_chat(session)
    expect(window.page.locator(".view-head .link")).to_have_text("failed")
    model.say("Better now.")
    window.page.get_by_role("button", name="Try again").click()
    expect(window.page.locator(".view-head .link")).to_have_text("")
    expect(window.page.get_by_role("button", name="Try again")).to_have_count(0)


def test_unsent_draft_is_restored(window: Window, model: ScriptedModel, api: Api) -> None:
    one, two = api.session(id="begun-1"), api.session(id="begun-2")
    window.open_chat(one)
    window.composer.fill("half a sentence\nand another")
    window.open_chat(two)
    expect(window.composer).to_have_value("")
    window.composer.fill("something else")
    window.open_timeline(one)
    window.open_chat(one)
    expect(window.composer).to_have_value("half a sentence\nand another")
    window.page.reload()
    expect(window.composer).to_have_value("half a sentence\nand another")
    model.say("Whole.")
    window.composer.press("Enter")
    expect(window.answers).to_have_text(["Whole."])
    window.page.reload()
    expect(window.answers).to_have_text(["Whole."])
    expect(window.composer).to_have_value("")
    window.open_chat(two)
    expect(window.composer).to_have_value("something else")


def test_list_orders_events_and_shows_failures(window: Window, model: ScriptedModel, api: Api) -> None:
    old = api.session(id="order-old", metadata={"test": "order"})
    api.session(id="order-new", metadata={"test": "order"})
    model.fail(401)
    api.run(old, "hello")
    window.open()
    sessions = window.page.get_by_role("navigation", name="Sessions")
    window.page.get_by_role("searchbox", name=re.compile("Search sessions")).fill("test=order")
    expect(sessions.get_by_role("link")).to_have_count(2)
    expect(sessions.locator(".session-name")).to_have_text(["hello", "order-new"])
    expect(sessions.locator(".session").first.locator(".state")).to_have_text("failed")
    sessions.get_by_label("Status").select_option("last run failed")
    expect(sessions.locator(".session-name")).to_have_text(["hello"])
    sessions.get_by_label("Status").select_option("last run completed")
    expect(sessions).to_contain_text("No session matches.")


def test_view_change_rereads_nothing(window: Window, model: ScriptedModel, api: Api) -> None:
    model.say("Hello.")
    session = api.session()
    api.run(session, "hello")
    window.open_chat(session)
    expect(window.answers).to_have_count(1)
    asked: list[str] = []
    window.page.on("request", lambda request: asked.append(request.url))
    for _ in range(2):
        window.page.get_by_role("link", name="Timeline", exact=True).click()
        expect(window.rows.last).to_contain_text("Run completed")
        window.page.get_by_role("link", name="Chat", exact=True).click()
        expect(window.answers).to_have_text(["Hello."])
    # The list of sessions is renewed now and then, whatever else is done.
    assert [url for url in asked if session in url] == []
    model.say("Still here.")
    window.say("And now?")
    expect(window.answers).to_have_text(["Hello.", "Still here."])
