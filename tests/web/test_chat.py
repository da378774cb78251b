"""The chat: what is said, done, decided and broken off, as a person sees it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.support.processes import ServerProcess
from tests.support.scripted import ScriptedModel
from tests.web.window import Api, Window


def test_conversation_begins_with_agent_and_persists(window: Window, model: ScriptedModel, api: Api) -> None:
    model.say("We have **two** kinds.")
    window.open()
    window.page.get_by_role("radio", name=re.compile("^Sales")).check()
    expect(window.composer).to_have_attribute("placeholder", "Message Sales")
    window.say("What do you sell?")
    expect(window.answers).to_have_text(["We have two kinds."])
    expect(window.answers.locator("strong")).to_have_text("two")
    session = api.get(f"sessions/{window.session_id}")
    assert (session["agent"], session["message_count"]) == ("Sales", 2)
    window.page.reload()
    expect(window.questions).to_have_text(["What do you sell?"])
    expect(window.answers).to_have_text(["We have two kinds."])


def test_answer_is_shown_while_written(window: Window, model: ScriptedModel) -> None:
    model.hang("It **will", then="** be sunny.")
    window.open()
    window.say("hello")
    expect(window.draft).to_contain_text("It **will")
    expect(window.draft).to_contain_text("Front Desk")
    model.release()
    expect(window.answers.locator("strong")).to_have_text("will")
    window.wait_until_idle()


@pytest.mark.long
def test_tools_fold_and_handoffs_are_marked(window: Window, model: ScriptedModel) -> None:
    model.calls([("get_weather", {"city": "Rome"}, "c1"), ("transfer_to_sales", {}, "c2")])
    model.say("Sales speaking.")
    window.open()
    window.say("Weather in Rome, then sales")
    expect(window.answers).to_have_text(["Sales speaking."])
    expect(window.log.locator(".handoff")).to_have_text("Front Desk hands over to Sales")
    expect(window.log.locator(".speaker .name")).to_have_text(["Front Desk", "Sales"])
    call = window.calls.first
    expect(call.locator("summary")).to_contain_text("get_weather")
    expect(call.locator("summary")).to_contain_text("done")
    expect(call.get_by_text("sunny in Rome")).to_be_hidden()
    call.locator("summary").press("Enter")
    expect(call.locator("pre")).to_have_text([re.compile('"city": "Rome"'), "sunny in Rome"])
    expect(window.page.get_by_label("Active agent")).to_have_value("Sales")


@pytest.mark.long
def test_an_approval_is_given(window: Window, model: ScriptedModel) -> None:
    model.call("refund", {"order": "A-17"}, id="c1")
    model.say("Paid back.")
    window.open()
    window.say("Refund A-17")
    asked = window.page.get_by_role("region", name="Approval")
    expect(asked).to_contain_text("May refund run?")
    expect(asked.get_by_role("textbox", name="order")).to_have_value("A-17")
    with window.page.expect_request(lambda sent: sent.url.endswith("/resume")) as decided:
        asked.get_by_role("button", name="Approve").click()
    # What the page has shown, whatever the server has by then.
    [approval] = decided.value.post_data_json["approvals"]
    assert approval["arguments_digest"] == hashlib.sha256(b'{"order": "A-17"}').hexdigest()
    expect(window.answers).to_have_text(["Paid back."])
    expect(asked).to_be_hidden()
    expect(window.calls.first).to_contain_text("Approved")
    # Whoever has no mouse is still where they were.
    expect(window.log).to_be_focused()


@pytest.mark.long
def test_approval_is_denied_with_reason(window: Window, model: ScriptedModel, api: Api) -> None:
    model.call("refund", {"order": "A-17"}, id="c1")
    model.say("I may not.")
    window.open()
    window.say("Refund A-17")
    window.page.get_by_label("Reason (the agent reads it)").fill("not ours")
    window.page.get_by_role("button", name="Deny").click()
    expect(window.answers).to_have_text(["I may not."])
    expect(window.calls.first).to_contain_text("Denied")
    expect(window.calls.first.locator("q")).to_have_text("not ours")
    (decided,) = [event for event in api.events(window.session_id) if event["type"] == "approval.decided"]
    assert (decided["data"]["decision"], decided["data"]["reason"]) == ("deny", "not ours")


@pytest.mark.long
def test_approval_shows_title_and_context(window: Window, model: ScriptedModel, api: Api) -> None:
    model.call("refund", {"order": "A-17"}, id="c1")
    session = api.session(agent="Front Desk", context_variables={"vip": True}, metadata={"title": "A dear customer"})
    api.run(session, "Refund A-17")
    window.open_chat(session)
    expect(window.page.get_by_role("heading", name="A dear customer")).to_be_visible()
    asked = window.page.get_by_role("region", name="Approval")
    asked.get_by_text("Context variables").click()
    expect(asked.locator("pre.code")).to_contain_text('"vip": true')


@pytest.mark.long
def test_approval_answer_waits_for_no_run(window: Window, model: ScriptedModel) -> None:
    model.call("refund", {"order": "A-17"}, id="c1")
    model.hang("Paid", then=" back.")
    window.open()
    window.say("Refund A-17")
    with window.page.expect_response("**/resume") as answered:
        window.page.get_by_role("button", name="Approve").click()
    assert answered.value.status == 200
    # It is answered, and the run goes on; what that says is shown as it comes.
    expect(window.draft).to_contain_text("Paid")
    model.release()
    expect(window.answers).to_have_text(["Paid back."])


@pytest.mark.long
def test_results_from_outside_are_delivered(window: Window, model: ScriptedModel, api: Api) -> None:
    model.calls([("get_weather", {"city": "Rome"}, "c1"), ("get_weather", {"city": "Oslo"}, "c2")])
    model.say("Rome it is.")
    session = api.session(agent="Front Desk")
    api.run(session, "Weather in Rome and Oslo", execute_tools=False)
    window.open_chat(session)
    asked = window.page.get_by_role("form", name="Result from outside")
    expect(asked).to_have_count(2)
    expect(asked.first).to_contain_text("What did get_weather return?")
    expect(asked.first).to_contain_text("Rome")
    asked.nth(1).get_by_role("textbox").fill("half a word")
    # Nothing is no result.
    asked.first.get_by_role("button", name="Deliver").click()
    asked.first.get_by_role("textbox").fill("sunny")
    asked.first.get_by_role("button", name="Deliver").click()
    expect(asked).to_have_count(1)
    # What somebody is writing beside it stays.
    expect(asked.get_by_role("textbox")).to_have_value("half a word")
    asked.get_by_role("textbox").fill("no such place")
    asked.get_by_label("It failed").check()
    asked.get_by_role("button", name="Deliver").click()
    expect(window.answers).to_have_text(["Rome it is."])
    expect(asked).to_have_count(0)
    expect(window.calls.nth(0)).to_contain_text("done elsewhere")
    expect(window.calls.nth(1)).to_contain_text("error")
    results = [event["data"] for event in api.events(session) if "tool" in event["data"]]
    assert [(each["tool"]["status"], each["message"]["content"]) for each in results] == [
        ("external", "sunny"),
        ("error", "no such place"),
    ]


@pytest.mark.long
@pytest.mark.parametrize("left", ["cancelled", "forked"])
def test_expired_question_asks_nothing(left: str, window: Window, model: ScriptedModel, api: Api) -> None:
    model.call("refund", {"order": "A-17"}, id="c1")
    session = api.session(agent="Front Desk")
    run = api.run(session, "Refund A-17")
    window.open_chat(session)
    expect(window.page.get_by_role("button", name="Approve")).to_be_visible()
    if left == "cancelled":
        window.page.get_by_role("button", name="Cancel run").click()
    else:
        window.open_chat(api.post(f"sessions/{session}/fork")["id"])
    expect(window.calls).to_contain_text("not carried out")
    expect(window.page.get_by_role("region", name="Approval")).to_be_hidden()
    if left == "forked":
        api.post(f"sessions/{session}/runs/{run['id']}/cancel")


@pytest.mark.long
def test_cancelled_run_keeps_its_words(window: Window, model: ScriptedModel) -> None:
    model.hang("Half an", then=" answer")
    window.open()
    window.say("hello")
    expect(window.draft).to_contain_text("Half an")
    window.page.get_by_role("button", name="Cancel run").press("Enter")
    expect(window.log).to_contain_text("The run was cancelled. What it had said stays.")
    expect(window.composer).to_be_focused()
    expect(window.answers).to_have_text(["Half an"])
    expect(window.log).to_contain_text("cut off here")
    window.wait_until_idle()
    model.wait_for_disconnects(1)


@pytest.mark.long
def test_interim_messages_wait_their_turn(window: Window, model: ScriptedModel) -> None:
    model.hang("One", then=".")
    model.say("Two.")
    window.open()
    window.say("first")
    expect(window.draft).to_contain_text("One")
    window.say("second")
    expect(window.log.locator(".queued")).to_contain_text("second")
    model.release()
    expect(window.answers).to_have_text(["One.", "Two."])
    expect(window.questions).to_have_text(["first", "second"])
    expect(window.log.locator(".queued")).to_have_count(0)


@pytest.mark.long
def test_an_error_says_what_to_do(window: Window, model: ScriptedModel, api: Api) -> None:
    model.fail(401, message="no such key")
    window.open()
    window.say("hello")
    failed = window.log.locator(".end.bad")
    expect(failed).to_contain_text("The run failed")
    expect(failed).to_contain_text("provider_authentication")
    expect(failed).to_contain_text("Ask the operator to set OPENAI_API_KEY")
    model.say("Better now.")
    failed.get_by_role("button", name="Try again").click()
    expect(window.answers).to_have_text(["Better now."])
    # It was said once, and stands there once.
    expect(window.questions).to_have_text(["hello"])
    said = [message["content"] for message in api.get(f"sessions/{window.session_id}/messages")["data"]]
    assert said == ["hello", "Better now."]
    assert [message["content"] for message in model.requests[-1]["messages"] if message["role"] == "user"] == ["hello"]


@pytest.mark.long
def test_two_windows_stay_in_step(
    cleared_windows: Callable[..., Window], server: ServerProcess, model: ScriptedModel, api: Api
) -> None:
    model.hang("To all", then=" of you.")
    model.call("refund", {"order": "1"}, id="c1")
    model.say("Done.")
    session = api.session()
    one, two = cleared_windows(server.url).open_chat(session), cleared_windows(server.url).open_chat(session)
    expect(two.page.get_by_text("Nothing has been said yet.")).to_be_visible()
    one.say("hello")
    for each in (one, two):
        expect(each.draft).to_contain_text("To all")
    model.release()
    for each in (one, two):
        expect(each.answers).to_have_text(["To all of you."])
    two.say("refund")
    one.page.get_by_role("button", name="Approve").click()
    for each in (one, two):
        expect(each.answers).to_have_text(["To all of you.", "Done."])
        expect(each.page.get_by_role("button", name="Approve")).to_have_count(0)
    assert one.log.inner_text() == two.log.inner_text()


@pytest.mark.long
def test_the_active_agent_can_be_changed(window: Window, api: Api) -> None:
    session = api.session()
    window.open_chat(session)
    agent = window.page.get_by_label("Active agent")
    agent.select_option("Sales")
    window.page.get_by_role("button", name="Hand over").click()
    expect(window.log).to_contain_text("The active agent is now Sales")
    assert api.get(f"sessions/{session}")["agent"] == "Sales"


@pytest.mark.long
def test_key_on_agent_choice_hands_nothing_over(window: Window, api: Api) -> None:
    session = api.session()
    window.open_chat(session)
    agent = window.page.get_by_label("Active agent")
    expect(agent).to_have_value("Front Desk")
    agent.press("s")
    expect(agent).to_have_value("Sales")
    asked = window.page.get_by_role("group", name="Hand over")
    expect(asked).to_contain_text("Hand the conversation over to Sales?")
    agent.press("Escape")
    expect(asked).to_be_hidden()
    expect(agent).to_have_value("Front Desk")
    agent.press("s")
    asked.get_by_role("button", name="Keep it as it is").click()
    expect(agent).to_have_value("Front Desk")
    expect(agent).to_be_focused()
    assert [event["type"] for event in api.events(session)] == ["session.created"]


@pytest.mark.long
def test_missing_session_says_so(window: Window, model: ScriptedModel) -> None:
    model.say("Hello.")
    window.open_chat("never-was")
    expect(window.page.get_by_role("alert").first).to_contain_text("It may have been deleted")
    window.page.get_by_role("main").get_by_role("button", name="New chat").click()
    window.say("hello")
    expect(window.answers).to_have_text(["Hello."])


@pytest.mark.long
def test_deep_links_and_back_work(window: Window, api: Api) -> None:
    one, two = api.session(id="way-1"), api.session(id="way-2")
    window.open_chat(one)
    title = window.page.get_by_role("heading", level=1)
    expect(title).to_have_text(one)
    window.page.get_by_role("link", name=re.compile("^way-2")).click()
    expect(title).to_have_text(two)
    window.page.get_by_role("link", name="Timeline", exact=True).click()
    expect(window.rows).to_have_count(1)
    window.page.go_back()
    expect(window.composer).to_be_visible()
    expect(title).to_have_text(two)
    window.page.go_back()
    expect(title).to_have_text(one)
    # How much is in the inbox may stand before it.
    assert window.page.title().endswith("way-1 · Chat · Swarmkeep")


@pytest.mark.long
def test_everything_works_from_keyboard(window: Window, model: ScriptedModel, api: Api) -> None:
    model.call("refund", {"order": "9"}, id="c1")
    model.say("Done.")
    api.session(id="by-keys")
    window.open()
    expect(window.page.get_by_role("link", name=re.compile("^by-keys"))).to_be_visible()
    keyboard = window.page.keyboard
    keyboard.press("Control+k")
    keyboard.type("by-keys")
    expect(window.page.get_by_role("link", name=re.compile("^by-keys"))).to_have_count(1)
    # Status, agent, owner, time, and the button that clears all of it; each only where there is something to choose.
    focused = window.page.locator(":focus")
    for _ in range(6):
        keyboard.press("Tab")
        if focused.get_attribute("data-id") == "by-keys":
            break
    keyboard.press("Enter")
    expect(window.page.get_by_role("heading", level=1)).to_have_text("by-keys")
    expect(window.composer).to_be_focused()
    keyboard.type("Refund")
    keyboard.press("Shift+Enter")
    keyboard.type("9, please")
    keyboard.press("Enter")
    approve = window.page.get_by_role("button", name="Approve")
    expect(approve).to_be_visible()
    for _ in range(2):
        keyboard.press("Shift+Tab")
    expect(
        window.page.get_by_role("button", name="Deny").or_(approve).and_(window.page.locator(":focus"))
    ).to_have_count(1)
    approve.press("Enter")
    expect(window.answers).to_have_text(["Done."])
    expect(window.questions).to_have_text(["Refund\n9, please"])
