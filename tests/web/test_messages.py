"""What stands at messages: days, times, and what can be done with them."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import expect

from swarmkeep.events.facts import EventDraft
from swarmkeep.store.opening import open_store
from swarmkeep.store.records import SessionKey
from tests.store.sessions import begin_session, draft_user_messages
from tests.support.processes import ServerProcess
from tests.support.scripted import ScriptedModel
from tests.web.window import Api, Window

pytestmark = pytest.mark.long

CLOCK = re.compile(r"^\d{2}:\d{2}$")


def record_at(server: ServerProcess, session_id: str, when: datetime, drafts: list[EventDraft]) -> None:
    """Record a session as if that had been its time."""

    async def record() -> None:
        store = open_store(server.database_url, clock=lambda: when)
        key = SessionKey("default", session_id)
        await store.append(key, await begin_session(store, key, agent="Front Desk"), drafts)
        await store.close()

    # The browser's library holds this thread's loop.
    with ThreadPoolExecutor() as pool:
        pool.submit(asyncio.run, record()).result()


def test_messages_have_times_and_days_are_apart(window: Window, server: ServerProcess, api: Api) -> None:
    then = datetime.now(UTC) - timedelta(days=40)
    record_at(server, "two-days", then, draft_user_messages("Are you there?", "Hello?"))
    answer: dict[str, Any] = {"role": "assistant", "content": "I am now."}
    api.post("sessions/two-days/messages", {"messages": [answer]})
    window.open_chat("two-days")
    days = window.log.locator(".day")
    expect(days).to_have_count(2)
    expect(days.first).to_contain_text(str(then.year))
    expect(days.last).to_have_text("Today")
    # The day stands above what was said on it.
    assert window.log.locator(".items > *").evaluate_all("(all) => all.map((one) => one.className.split(' ')[0])") == [
        "day", "message", "message", "day", "message",
    ]  # fmt: skip
    for message in window.log.locator(".items .message").all():
        expect(message.locator("time")).to_have_text(CLOCK)
    expect(window.log.locator(".items .message time").first).to_have_attribute("title", re.compile(str(then.year)))


def test_fork_has_the_days_of_its_messages_only(window: Window, api: Api) -> None:
    api.session(id="days-of-origin", messages=[{"role": "user", "content": "Hello"}])
    fork = api.post("sessions/days-of-origin/fork", {})["id"]
    window.open_chat(fork)
    expect(window.log).to_contain_text("Forked from days-of-origin after event 2")
    expect(window.log.locator(".day")).to_have_text(["Today"])


def test_answer_is_copied_as_it_was_written(window: Window, api: Api, model: ScriptedModel) -> None:
    window.context.grant_permissions(["clipboard-read", "clipboard-write"])
    model.say("It is **done**.\n\n- one\n- two")
    session = api.session(agent="Front Desk")
    api.run(session, "Is it?")
    window.open_chat(session)
    copy = window.log.get_by_role("button", name="Copy this answer")
    # By the keyboard, too: it is there when it has the focus.
    copy.focus()
    expect(copy).to_have_css("opacity", "1")
    copy.press("Enter")
    expect(window.log.get_by_role("button", name="Copied")).to_be_visible()
    assert window.evaluate("() => navigator.clipboard.readText()") == "It is **done**.\n\n- one\n- two"
    expect(copy).to_be_visible()
