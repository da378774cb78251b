"""Redaction from the page: other events with the same words, also while a run waits; and comparing two events."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from tests.support.scripted import ScriptedModel
from tests.web.window import PHONE, Api, Window

pytestmark = pytest.mark.long

CARD = "4111 1111 1111 1111"


@pytest.fixture
def waiting(api: Api, model: ScriptedModel) -> str:
    """A session whose first run has the number of a card in four events, and whose second one waits."""
    session = api.session(agent="Front Desk")
    model.call("remember", {"key": "card", "value": CARD.replace(" ", "-")}, id="c1")
    model.say(f"I noted {CARD}.")
    api.run(session, f"My card is {CARD}.")
    model.call("refund", {"order": "A-17"}, id="c2")
    api.run(session, "Refund A-17.")
    return session


def find(api: Api, session: str, *words: str) -> list[int]:
    return [event["seq"] for event in api.events(session) if any(word in json.dumps(event["data"]) for word in words)]


def test_same_words_are_offered_while_a_run_waits(window: Window, waiting: str, api: Api, model: ScriptedModel) -> None:
    said = find(api, waiting, CARD, CARD.replace(" ", "-"))
    assert len(said) >= 4
    window.open_timeline(waiting, at=said[0])
    expect(window.detail).to_contain_text(CARD)
    # What is marked is what is looked for.
    window.detail.get_by_text(CARD).first.evaluate(
        """(node, words) => {
          const start = node.firstChild.data.indexOf(words);
          getSelection().setBaseAndExtent(node.firstChild, start, node.firstChild, start + words.length);
        }""",
        CARD,
    )
    window.detail.get_by_role("button", name="Redact").press("Enter")
    dialog = window.page.get_by_role("dialog", name="Redact events")
    expect(dialog.get_by_label("Words that must go")).to_have_value(CARD)
    expect(dialog).to_contain_text("A run waits.")
    expect(dialog.get_by_text(f"{len(said) - 1} other events say the same:")).to_be_visible()
    listed = dialog.get_by_role("group", name="Events that say the same").get_by_role("listitem")
    expect(listed).to_have_count(len(said) - 1)
    dialog.get_by_role("button", name=f"Add event {said[1]}", exact=True).press("Enter")
    expect(listed).to_have_count(len(said) - 2)
    # The keyboard goes on with the next one.
    assert listed.first.get_by_role("button").evaluate("(node) => node === document.activeElement")
    window.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    window.wait_until_it_fits()
    dialog.get_by_role("button", name=f"Add all {len(said) - 2}").press("Enter")
    expect(dialog).to_contain_text("No other event of this session says the same.")
    expect(dialog.get_by_label("Events, such as")).to_have_value(", ".join(map(str, said)))
    # What the run waits for stays until then.
    awaited = find(api, waiting, "A-17")[-1]
    events = dialog.get_by_label("Events, such as")
    events.fill(f"{', '.join(map(str, said))}, {awaited}")
    dialog.get_by_label("Reason").fill("a card number")
    expect(dialog.get_by_role("alert")).to_contain_text("The run that waits goes on from one of these events.")
    expect(dialog.get_by_role("button", name="Remove for good")).to_be_disabled()
    events.fill(", ".join(map(str, said)))
    dialog.get_by_label("Reason").focus()
    expect(dialog.get_by_role("button", name="Remove for good")).to_be_enabled()
    dialog.get_by_role("button", name="Remove for good").press("Enter")
    expect(dialog).to_be_hidden()
    assert "1111" not in json.dumps(api.events(waiting))
    model.say("It is paid back.")
    window.open_chat(waiting)
    window.page.get_by_role("region", name="Approval").get_by_role("button", name="Approve").click()
    expect(window.answers.last).to_have_text("It is paid back.")
    assert "1111" not in json.dumps(model.requests[-1])


def test_two_events_are_compared_above_the_fold(window: Window, waiting: str, api: Api) -> None:
    change = next(event["seq"] for event in api.events(waiting) if event["type"] == "context.updated")
    window.page.set_viewport_size({"width": 1280, "height": 720})
    window.open_timeline(waiting, at=change)
    compare = window.detail.get_by_role("button", name="Compare with another event")
    expect(compare).to_be_in_viewport()
    compare.press("Enter")
    expect(compare).to_have_attribute("aria-expanded", "true")
    diff = window.detail.get_by_role("region", name="Compare with another event")
    # With the event before it, until another one is named; all that without scrolling.
    expect(diff.get_by_role("rowheader", name="/context_variables/card")).to_be_in_viewport()
    expect(diff.get_by_label("Compare with event")).to_be_focused()
    expect(window.page).to_have_url(re.compile(rf"\?at={change}&from={change - 1}$"))
    diff.get_by_label("Compare with event").fill("0")
    diff.get_by_label("Compare with event").press("Enter")
    expect(diff).to_contain_text(f"From nothing to event {change}")
    compare.press("Enter")
    expect(diff).to_be_hidden()
    expect(window.page).to_have_url(re.compile(rf"\?at={change}$"))
