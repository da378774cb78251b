"""The agents: what each is told and may call, who hands over to whom, and who asks whom."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.support.processes import ServerProcess
from tests.support.scripted import ScriptedModel
from tests.web.team import HOSTILE_NAME
from tests.web.test_accessibility import check_accessibility
from tests.web.window import Api, Window

pytestmark = pytest.mark.long


NARROW = {"width": 320, "height": 640}


def test_agents_show_everything_they_may_do(
    cleared_windows: Callable[..., Window], server: ServerProcess, api: Api
) -> None:
    window = cleared_windows(server.url, bypass_csp=True)
    session = api.session()
    window.open_chat(session)
    window.page.get_by_role("link", name="Agents", exact=True).click()
    main = window.page.get_by_role("main")
    names = [agent["name"] for agent in api.get("agents")["data"]]
    expect(main.get_by_role("navigation", name="All agents").locator(".session-name")).to_have_text(names)
    expect(main.get_by_role("heading", level=2)).to_have_text("Front Desk")
    expect(main.locator(".agent")).to_contain_text("Help them.")
    expect(main.locator(".graph-agent")).to_have_count(len(names))
    expect(main.locator(".graph-edge.handoffs")).to_have_count(2)
    expect(main.locator(".graph-edge.asks")).to_have_count(1)
    tools = main.locator(".tool-of-agent")
    expect(tools).to_have_count(6)
    approved = tools.filter(has_text="needs approval")
    expect(approved).to_have_count(1)
    approved.locator("summary").click()
    expect(approved.locator("pre")).to_contain_text('"order"')
    main.locator(".facts").get_by_role("link", name=HOSTILE_NAME).click()
    expect(main.get_by_role("heading", level=2)).to_have_text(HOSTILE_NAME)
    expect(window.page).to_have_url(re.compile("#/agents/%3Cimg"))
    main.locator(".graph-agent", has_text="Counter").click()
    expect(tools.filter(has_text="asks Front Desk")).to_have_count(1)
    # Back where one came from.
    expect(window.page.get_by_role("link", name="Timeline", exact=True)).to_have_attribute(
        "href", f"#/timeline/{session}"
    )
    for theme in ("light", "dark"):
        window.page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
        check_accessibility(window)
    window.page.set_viewport_size(NARROW)  # type: ignore[arg-type]
    window.wait_until_it_fits()
    check_accessibility(window)


# An agent that asks another one: a link under the call, and one back.


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
    expect(call.locator(".message.user .prose")).to_have_text("Refund A-17")
    expect(call.locator(".message.assistant")).to_contain_text("Paid back.")
    # To look at, and not to be changed.
    expect(call.locator(".below .call")).to_contain_text("refund")
    expect(call.locator(".below").get_by_role("button")).to_have_count(0)
    expect(call.get_by_role("link", name="Asked by session")).to_have_count(0)
    # The list has who asks, and not who is asked.
    assert [session["id"] for session in api.get("sessions", limit=1)["data"]] == [above]


def test_asked_agents_are_nested_in_the_waterfall(
    cleared_windows: Callable[..., Window], server: ServerProcess, model: ScriptedModel, api: Api
) -> None:
    above = api.session(agent="Counter")
    model.call("ask_front", {"input": "Weather in Rome?"}, id="c1")
    model.call("get_weather", {"city": "Rome"}, id="c2")
    model.say("Sunny there.")
    model.say("It is sunny.")
    api.run(above, "How is Rome?")
    window = cleared_windows(server.url, bypass_csp=True)
    window.open(f"#/timeline/{above}?as=waterfall")
    rows = window.page.get_by_role("treeitem")
    # What was done there stands within the call, on the same scale of time.
    within = window.page.locator('.row-line[aria-level="3"]')
    expect(within).to_have_count(3)
    expect(within).to_contain_text(["Model", "Toolget_weather", "Model"])
    expect(rows).to_have_count(7)
    edges = "(node) => [node.getBoundingClientRect().left, node.getBoundingClientRect().right]"
    tracks = [track.evaluate(edges) for track in window.page.locator(".track").all()]
    assert all(abs(left - tracks[0][0]) < 2 and right == tracks[0][1] for left, right in tracks), tracks
    outer, inner = (row.locator(".bar").evaluate(edges) for row in (rows.filter(has_text="Asked agent"), within.nth(1)))
    assert outer[0] - 1 <= inner[0]
    assert inner[1] <= outer[1] + 4
    # What the function was given and what it returned, beside each other.
    within.nth(1).click()
    given, returned = (window.detail.locator(".in-out section").nth(index) for index in (0, 1))
    expect(given).to_contain_text('"city": "Rome"')
    expect(returned).to_contain_text("sunny in Rome")
    assert given.evaluate("(node) => node.offsetTop") == returned.evaluate("(node) => node.offsetTop")
    expect(window.detail).to_contain_text("Front Desk, in session")
    check_accessibility(window)
    # By the keyboard: the call itself, folded and unfolded.
    tree = window.page.get_by_role("tree")
    tree.press("ArrowUp")
    tree.press("ArrowUp")
    expect(window.detail.locator(".in-out section").first).to_contain_text("Weather in Rome?")
    expect(window.detail.locator(".in-out section").last).to_contain_text("Sunny there.")
    tree.press("ArrowLeft")
    expect(within).to_have_count(0)
    tree.press("ArrowRight")
    expect(within).to_have_count(3)
    rows.filter(has_text="Asked agent").locator(".fold-sign").click()
    expect(within).to_have_count(0)
    window.detail.get_by_role("link", name="Its timeline").click()
    expect(window.rows.first).to_contain_text("Session created")
    assert window.session_id != above


def test_long_session_of_asked_agent_says_what_is_left_out(window: Window, model: ScriptedModel, api: Api) -> None:
    above = api.session(agent="Counter")
    model.call("ask_front", {"input": "Weather everywhere?"}, id="c1")
    model.calls([("get_weather", {"city": f"City {number}"}, f"w{number}") for number in range(110)])
    model.say("Sunny everywhere.")
    model.say("It is sunny.")
    api.run(above, "How is it everywhere?")
    asked = next(event["data"]["session_id"] for event in api.events(above) if event["type"] == "tool.started")
    left = len(api.events(asked)) - 200
    assert left > 0
    window.open(f"#/timeline/{above}?as=waterfall")
    within = window.page.locator('.row-line[aria-level="3"]')
    expect(within.first).to_contain_text(f"Earlier{left} events: see its timeline")
    within.first.click()
    window.detail.get_by_role("link", name="Its timeline").click()
    expect(window.page).to_have_url(re.compile(f"#/timeline/{asked}[?]at={left + 1}"))
    expect(window.rows.and_(window.page.locator("[aria-selected=true]"))).to_have_count(1)
    window.open_chat(above)
    window.calls.first.locator("summary").first.click()
    window.calls.first.get_by_text("What was said there").click()
    expect(window.calls.first).to_contain_text("The last 200 events of it")
    window.calls.first.get_by_role("link", name="The session of the agent that is asked").click()
    expect(window.log).to_contain_text("Weather everywhere?")
