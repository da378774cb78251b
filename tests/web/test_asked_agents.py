"""An agent that asks another one, on the page: a link under the call, and one back."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.support.scripted import ScriptedModel
from tests.web.window import Api, Window

pytestmark = pytest.mark.long


def test_child_questions_are_found_and_decided(window: Window, model: ScriptedModel, api: Api) -> None:
    above = api.session(agent="Counter")
    model.call("ask_front", {"input": "Refund A-17"}, id="c1")
    model.call("refund", {"order": "A-17"}, id="c2")
    window.open_chat(above)
    window.say("Refund A-17")
    expect(window.calls.first).to_contain_text("needs a decision")
    # Nothing is to be decided on the call itself.
    expect(window.page.get_by_role("region", name="Approval")).to_have_count(0)
    window.calls.first.get_by_role("link", name=re.compile("decision is needed")).click()
    asked = window.page.get_by_role("region", name="Approval")
    expect(asked).to_contain_text("May refund run?")
    model.say("Paid back.")
    model.say("It was paid back.")
    asked.get_by_role("button", name="Approve").click()
    expect(window.answers).to_have_text(["Paid back."])
    assert above not in window.session_id
    window.page.get_by_role("link", name=f"Asked by session {above}").click()
    expect(window.answers).to_have_text(["It was paid back."])
    assert window.session_id == above
    call = window.calls.first
    expect(call).to_contain_text("done")
    expect(call.get_by_role("link", name="The session of the agent that is asked")).to_be_visible()
    call.get_by_text("What was said there").click()
    expect(call.locator(".message.user")).to_have_text("Refund A-17")
    expect(call.locator(".message.assistant")).to_contain_text("Paid back.")
    # To look at, and not to be changed.
    expect(call.locator(".below .call")).to_contain_text("refund")
    expect(call.locator(".below").get_by_role("button")).to_have_count(0)
    expect(call.get_by_role("link", name="Asked by session")).to_have_count(0)
    # The list has who asks, and not who is asked.
    assert [session["id"] for session in api.get("sessions", limit=1)["data"]] == [above]
