"""A person takes over on the page, answers and hands back; and approves a call with other arguments."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.processes import ServerProcess
from tests.support.scripted import ScriptedModel
from tests.web.conftest import TEAM
from tests.web.people import Person
from tests.web.test_accessibility import check_accessibility
from tests.web.window import PHONE, Api, Window

pytestmark = pytest.mark.long


def look(window: Window, name: str) -> None:
    """What a checker of accessibility finds, in both themes and sizes; and pictures for whoever wants to see them."""
    folder = os.environ.get("PAGE_PICTURES")
    for size in ({"width": 1280, "height": 800}, PHONE):
        window.page.set_viewport_size(size)  # type: ignore[arg-type]
        for theme in ("light", "dark"):
            window.page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
            check_accessibility(window)
            if folder is not None:
                window.page.screenshot(path=str(Path(folder) / f"{name}-{theme}-{size['width']}.png"))
    window.page.set_viewport_size({"width": 1280, "height": 800})


def test_person_answers_by_keyboard_and_hands_back(
    cleared_windows: Callable[..., Window], server: ServerProcess, model: ScriptedModel, api: Api
) -> None:
    session = api.session()
    window = cleared_windows(server.url, bypass_csp=True)
    window.open_chat(session)
    page = window.page
    page.get_by_role("button", name="Take over").focus()
    page.keyboard.press("Enter")
    note = page.get_by_role("textbox", name="Why, for your colleagues")
    expect(note).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Take over")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.type("asks for a person")
    page.keyboard.press("Enter")
    banner = page.get_by_role("group", name="Taken over")
    expect(banner).to_contain_text("You answer in the place of Front Desk.")
    expect(banner.locator("q")).to_have_text("asks for a person")
    answer = page.get_by_role("textbox", name="Answer")
    expect(answer).to_be_focused()
    # Somebody writes to the agent; what is typed here is the answer to that.
    run = api.run(session, "Is anybody there?")
    assert (run["status"], run["stop_reason"]) == ("waiting", "person")
    expect(window.log).to_contain_text("Is anybody there?")
    page.keyboard.type("**I am.**")
    page.keyboard.press("Enter")
    said = window.log.locator(".message.person")
    expect(said.locator("strong")).to_have_text("I am.")
    expect(said).to_contain_text("in the agent's place")
    expect(page.locator(".view-head .link")).to_have_text("")
    assert api.get(f"sessions/{session}/runs/{run['id']}")["output_text"] == "**I am.**"
    look(window, "taken")
    page.reload()
    expect(banner).to_be_visible()
    expect(said).to_contain_text("person")
    model.say("Good day.")
    api.run(session, "And the desk?")
    page.get_by_role("button", name="Hand back").first.focus()
    page.keyboard.press("Enter")
    page.keyboard.type("be brief")
    look(window, "handing-back")
    page.keyboard.press("Enter")
    expect(window.answers.last).to_contain_text("Good day.")
    expect(banner).to_be_hidden()
    expect(window.log).to_contain_text("be brief")
    assert "be brief" in model.requests[-1]["messages"][-1]["content"]
    window.open_timeline(session)
    for words in ("Taken over", "Person's answer", "Note for the agent", "Handed back"):
        expect(window.list.get_by_text(words, exact=True)).to_have_count(1)
    # What the page makes of the events is what the server does, at each of them.
    script = """async (events) => {
      const { fold } = await import("/page/fold.js");
      return events.map((_, index) => fold(events, index + 1).taken);
    }"""
    events = api.events(session)
    for event, folded in zip(events, window.evaluate(script, events), strict=True):
        then = api.get(f"sessions/{session}", at=event["seq"]).get("taken_over")
        assert folded == (then and {key: then[key] for key in ("by", "note", "at")})


def test_arguments_are_edited_before_approval(
    cleared_windows: Callable[..., Window], server: ServerProcess, model: ScriptedModel, api: Api
) -> None:
    session = api.session()
    model.call("refund", {"order": "A-17"}, id="c1")
    api.run(session, "Pay it back.")
    window = cleared_windows(server.url, bypass_csp=True)
    window.open_chat(session)
    window.page.get_by_role("button", name="As JSON").click()
    field = window.page.get_by_role("textbox", name="Arguments as JSON")
    for wrong, why in (('{"order": }', "This is not JSON"), ('["B-2"]', "must be a JSON object")):
        field.fill(wrong)
        window.page.get_by_role("button", name="Approve").click()
        expect(window.page.get_by_role("alert").filter(has_text=why)).to_be_visible()
        expect(field).to_be_focused()
    field.fill('{"order": ["B-2"]}')
    window.page.get_by_role("button", name="Approve").click()
    expect(window.page.locator(".toasts")).to_contain_text("order")
    look(window, "edit")
    model.say("Done.")
    field.fill('{"order": "B-2"}')
    window.page.get_by_role("button", name="Approve").click()
    expect(window.log.locator(".decision")).to_contain_text("Approved with other arguments")
    expect(window.log.locator(".decision")).to_contain_text("B-2")
    expect(window.answers.last).to_contain_text("Done.")
    window.calls.first.locator("summary").first.click()
    expect(window.calls.first).to_contain_text("As the agent asked")
    assert model.requests[-1]["messages"][-1]["content"].endswith("refunded B-2")


def test_untouched_arguments_stay_as_model_gave(window: Window, model: ScriptedModel, api: Api) -> None:
    """No number that a browser would round, no change of white space, and no word of one who did not decide."""
    account = 2**53 + 1
    session = api.session(agent="Till")

    def ask(call_id: str) -> str:
        model.call("pay", {"account": account, "amount": 1}, id=call_id)
        return str(api.run(session, "Pay.")["id"])

    ask("c1")
    window.open_chat(session)
    page = window.page
    expect(window.calls.first.locator(".call-brief")).to_have_text(f"account: {account}, amount: 1")
    shown = f'{{\n  "account": {account},\n  "amount": 1\n}}'
    expect(page.get_by_role("region", name="Approval").get_by_role("heading")).to_have_text(
        f"Pay 1 to account {account}"
    )
    expect(page.get_by_role("textbox", name="account")).to_have_value(str(account))
    field = page.get_by_role("textbox", name="Arguments as JSON")
    edit, approve = page.get_by_role("button", name="As JSON"), page.get_by_role("button", name="Approve")
    edit.click()
    expect(field).to_have_value(shown)
    field.fill(shown.replace("1\n", "2\n"))
    model.say("Done.")
    approve.click()
    expect(window.log.locator(".decision .edited")).to_have_text(f'{{"account":{account},"amount":2}}')
    expect(window.answers.last).to_contain_text("Done.")
    assert model.requests[-1]["messages"][-1]["content"].endswith(f"paid 2 to {account}")
    ask("c2")
    edit.click()
    field.fill(f' {{ "account":{account},\n"amount" :1}}')
    model.say("Done again.")
    approve.click()
    expect(window.answers.last).to_contain_text("Done again.")
    decided = [event["data"] for event in api.events(session) if event["type"] == "approval.decided"]
    assert [one.get("arguments") for one in decided] == [f'{{"account":{account},"amount":2}}', None]
    run = ask("c3")
    expect(approve).to_be_visible()
    api.post(f"sessions/{session}/runs/{run}/cancel")
    expect(approve).to_be_hidden()
    edited = f"Approved with other arguments{decided[0]['arguments']}"
    expect(window.log.locator(".decision")).to_have_text([edited, "Approved"])


def test_arguments_are_a_form_of_the_schema(
    cleared_windows: Callable[..., Window], server: ServerProcess, model: ScriptedModel, api: Api
) -> None:
    """A field for each parameter; what is changed is marked, and nothing else is sent."""
    window = cleared_windows(server.url, bypass_csp=True)
    page = window.page
    session = api.session(agent="Till")
    model.call("pay", {"amount": 250, "account": 7}, id="c1")
    api.run(session, "Pay.")
    window.open_chat(session)
    form = page.get_by_role("region", name="Approval")
    amount = form.get_by_role("textbox", name="amount")
    expect(amount).to_have_value("250")
    expect(form).to_contain_text("In euros.")
    expect(form.locator(".changed")).to_have_count(0)
    amount.fill("lots")
    page.get_by_role("button", name="Approve").click()
    expect(form.get_by_role("alert").filter(has_text="This must be a number")).to_be_visible()
    expect(amount).to_be_focused()
    amount.fill("")
    page.get_by_role("button", name="Approve").click()
    expect(form.get_by_role("alert").filter(has_text="This is needed.")).to_be_visible()
    amount.fill("25")
    expect(form.get_by_role("combobox", name="how").locator("option")).to_have_text(["(not given)", "bank", "cash"])
    form.get_by_role("combobox", name="how").select_option("cash")
    expect(form.locator(".changed .was")).to_have_text(
        ["Changed. The agent asked for: 250", "Changed. The agent asked for: (not given)"]
    )
    expect(form.get_by_role("status")).to_contain_text("2 arguments are changed.")
    look(window, "form")
    form.get_by_role("button", name="As JSON").press("Enter")
    written = form.get_by_role("textbox", name="Arguments as JSON")
    expect(written).to_have_value('{\n  "amount": 25,\n  "account": 7,\n  "how": "cash"\n}')
    written.fill('{"amount": 25, "amount": 3}')
    form.get_by_role("button", name="As JSON").click()
    expect(form.get_by_role("alert").filter(has_text="A name stands there twice.")).to_be_visible()
    written.fill('{"amount": 25, "account": 7, "how": "bank"}')
    form.get_by_role("button", name="As JSON").click()
    expect(form.get_by_role("combobox", name="how")).to_have_value('"bank"')
    form.get_by_role("combobox", name="how").select_option("")
    expect(form.locator(".changed")).to_have_count(1)
    model.say("Done.")
    page.get_by_role("button", name="Approve").click()
    expect(window.answers.last).to_contain_text("Done.")
    (decided,) = [event["data"] for event in api.events(session) if event["type"] == "approval.decided"]
    assert decided["arguments"] == '{"amount":25,"account":7}'


def test_two_people_see_who_answers(cleared_windows: Callable[..., Window], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'swarmkeep.db'}"
    # Bob's key has no name.
    ann, bob = (Person(url, tmp_path, name, "run") for name in ("Ann <i>", ""))
    with ServerProcess(tmp_path, agents=[str(TEAM)], database_url=url) as server:
        with ann.ask(server.url) as api:
            session = api.session(id="two")
            api.post(f"sessions/{session}/takeover")
            api.post(f"sessions/{session}/answer", {"content": "Hello."})
        window = cleared_windows(server.url)
        window.open_chat(session)
        bob.give_key(window)
        banner = window.page.get_by_role("group", name="Taken over")
        expect(banner).to_contain_text(f"{ann.shown} answers in the place of Front Desk.")
        expect(window.log.locator(".message.person .name")).to_have_text(ann.shown)
        # What he types is not taken for the customer's words, nor what he notes.
        expect(window.page.get_by_role("textbox", name=f"Answer (takes over from {ann.shown})")).to_be_visible()
        window.page.get_by_role("combobox", name="How you speak").select_option("Note for colleagues")
        window.page.get_by_role("textbox", name="Note for colleagues").fill("Refunded twice before.")
        window.page.keyboard.press("Enter")
        expect(window.log.get_by_role("article", name="Note for colleagues")).to_contain_text("Refunded twice before.")
        window.page.get_by_role("button", name="Take it over").click()
        window.page.keyboard.press("Enter")
        expect(banner).to_contain_text("You answer in the place of Front Desk.")
        window.page.get_by_role("textbox", name="Answer").fill("Bob here.")
        window.page.keyboard.press("Enter")
        expect(window.log.locator(".message.person .name").last).to_have_text(bob.shown)
        # It is his case now, and found as such.
        owner = window.page.get_by_role("combobox", name="Owner")
        control = window.page.get_by_role("button", name=re.compile("^Owner: "))
        expect(control).to_have_text(bob.shown)
        entries = window.page.locator(".sessions .session")
        owner.select_option("Mine")
        expect(entries).to_have_count(1)
        owner.select_option("Unassigned")
        expect(entries).to_have_count(0)
        owner.select_option("Any owner")
        # He gives it to a queue, to no one, and takes it back, all by keyboard.
        control.press("Enter")
        name = window.page.get_by_role("textbox", name="Another person or queue")
        name.fill("billing")
        name.press("Enter")
        expect(control).to_have_text("billing")
        expect(control).to_be_focused()
        control.press("Enter")
        window.page.get_by_role("button", name="Leave to no one in particular").press("Enter")
        expect(control).to_have_text("Unassigned")
        control.press("Enter")
        window.page.get_by_role("button", name="Assign to me").press("Enter")
        expect(control).to_have_text(bob.shown)
        expect(window.log).to_contain_text(f"{bob.shown} assigns the conversation to billing")
        expect(window.log).to_contain_text(f"{bob.shown} looks after the conversation")


def test_approved_calls_keep_their_order(window: Window, model: ScriptedModel, api: Api) -> None:
    """Marks that turn text round are shown as escapes, and are given on as they were."""
    order = "A-1\u2067 B-2\u202e\u200f\x9b"
    session = api.session()
    model.call("refund", {"order": order}, id="c1")
    api.run(session, "Refund.")
    window.open_chat(session)
    shown = "A-1\\u2067 B-2\\u202e\\u200f\\u009b"
    expect(window.calls.first.locator(".call-brief")).to_have_text(f"order: {shown}")
    asked = window.page.get_by_role("region", name="Approval")
    expect(asked.get_by_role("textbox", name="order")).to_have_value(f'"{shown}"')
    model.say("Done.")
    window.page.get_by_role("button", name="Approve").click()
    expect(window.answers.last).to_contain_text("Done.")
    assert model.requests[-1]["messages"][-1]["content"].endswith(f"refunded {order}")
    decided = [event["data"] for event in api.events(session) if event["type"] == "approval.decided"]
    assert "arguments" not in decided[0]
