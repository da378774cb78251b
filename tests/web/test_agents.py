"""The agents: what each is told and may call, and who hands over to whom."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.support.processes import ServerProcess
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
