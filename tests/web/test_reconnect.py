"""A server that dies in the middle of an answer: the page goes on where it was."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.processes import ServerProcess
from tests.support.scripted import ScriptedModel
from tests.web.conftest import TEAM
from tests.web.window import Api, Window

pytestmark = pytest.mark.long


def server_of(model: ScriptedModel, folder: Path) -> ServerProcess:
    env = {"OPENAI_API_KEY": "test", "OPENAI_BASE_URL": model.url, "SWARMKEEP_LEASE_SECONDS": "2"}
    return ServerProcess(folder, agents=[str(TEAM)], offline=False, env=env)


def test_server_restart_loses_and_doubles_nothing(windows: Callable[..., Window], tmp_path: Path) -> None:
    with ScriptedModel() as model, server_of(model, tmp_path) as server:
        model.call("get_weather", {"city": "Paris"})
        model.hang("Paris is sunny", then=", as ever.")
        window, other = windows(server.url).open(), windows(server.url)
        window.say("What is the weather in Paris?")
        other.open_chat(window.session_id)
        for each in (window, other):
            expect(each.draft.locator(".prose")).to_have_text(re.compile(r"\w+ \w+ \w+"))
        server.kill()
        expect(window.page.get_by_text("Connection lost. Trying again…")).to_be_visible()
        model.release()
        model.say("Paris is sunny, they say.")
        server.start()
        for each in (window, other):
            each.wait_until_idle()
            expect(each.answers).to_have_count(1)
            expect(each.questions).to_have_text(["What is the weather in Paris?"])
        with Api(server.url) as api:
            messages = api.get(f"sessions/{window.session_id}/messages")["data"]
            assert "recovery" in [event["data"].get("reason") for event in api.events(window.session_id)]
        said = [message["content"] for message in messages if message["role"] == "assistant" and message["content"]]
        for each in (window, other):
            expect(each.answers).to_have_text(said)
            expect(each.calls).to_have_count(sum(len(message.get("tool_calls") or ()) for message in messages))
        # What is said now arrives once, too.
        model.say("Rome is, too.")
        window.say("And in Rome?")
        for each in (window, other):
            expect(each.questions).to_have_text(["What is the weather in Paris?", "And in Rome?"])
            each.wait_until_idle()
            expect(each.answers).to_have_count(2)


def test_unsendable_message_is_not_lost(windows: Callable[..., Window], tmp_path: Path) -> None:
    with ServerProcess(tmp_path, agents=["swarmkeep_agents.weather"]) as server:
        window = windows(server.url).open()
        expect(window.page.get_by_role("radio").first).to_be_visible()
        server.kill()
        window.say("Are you there?")
        expect(window.page.get_by_text("The server does not answer.").first).to_be_visible()
        expect(window.composer).to_have_value("Are you there?")
        # What is written while the page still tries stays as well.
        window.page.route("**/v1/sessions", lambda route: None)
        window.composer.press("Enter")
        expect(window.composer).to_have_value("")
        window.composer.fill("Please")
        # Now it goes on, to a server that is not there.
        window.page.unroute("**/v1/sessions")
        expect(window.composer).to_have_value("Are you there?\nPlease")
        window.composer.fill("Are you there?")
        server.start()
        window.composer.press("Enter")
        expect(window.questions).to_have_text(["Are you there?"])
        window.wait_until_idle()
        expect(window.answers).to_have_count(1)
