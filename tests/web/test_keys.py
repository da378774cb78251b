"""A server that asks for a key: the page asks whoever sits before it, and keeps the key to itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support import warm
from tests.support.processes import ServerProcess, clean_environment
from tests.web.window import Window

pytestmark = pytest.mark.long


def create_key(database_url: str, folder: Path) -> str:
    command = [sys.executable, "-m", "swarmkeep", "keys", "create", "--tenant", "acme", "--json"]
    made = warm.run([*command, "--database-url", database_url], folder=folder, env=clean_environment())
    made.check_returncode()
    return str(json.loads(made.stdout)["key"])


def test_key_is_requested_and_kept_per_tab(cleared_windows: Callable[..., Window], tmp_path: Path) -> None:
    database_url = f"sqlite:///{tmp_path / 'swarmkeep.db'}"
    key = create_key(database_url, tmp_path)
    with ServerProcess(tmp_path, agents=["swarmkeep_agents.weather"], database_url=database_url) as server:
        window = cleared_windows(server.url)
        asked: list[str] = []
        window.page.on("request", lambda request: asked.append(request.url))
        window.open()
        dialog = window.page.get_by_role("dialog", name="API key")
        expect(dialog).to_be_visible()
        dialog.get_by_label("Key").fill("sk_wrong")
        dialog.get_by_role("button", name="Use this key").click()
        refusal = dialog.get_by_role("alert").filter(has_text="The server does not accept this key.")
        expect(refusal).to_be_visible()
        dialog.get_by_label("Key").fill("")
        dialog.get_by_role("button", name="Use this key").click()
        expect(refusal).to_have_count(0)
        dialog.get_by_label("Key").fill(f"{key}…")
        dialog.get_by_role("button", name="Use this key").click()
        expect(refusal).to_be_visible()
        expect(dialog.get_by_label("Key")).to_have_attribute("aria-invalid", "true")
        dialog.get_by_label("Key").fill(key)
        dialog.get_by_role("button", name="Use this key").click()
        expect(dialog).to_be_hidden()
        expect(window.page.get_by_role("radio").first).to_be_checked()
        # What answers is said as it is, whatever model the agent names.
        expect(window.page.locator(".agent-model").first).to_have_text("offline model, no LLM")
        window.say("What is the weather in Rome?")
        expect(window.answers).to_have_count(1)
        window.page.reload()
        expect(window.answers).to_have_count(1)
        assert [url for url in asked if key in url] == []
        # Neither another tab nor whoever comes next has it.
        assert window.evaluate("() => Object.values(localStorage).join()").find(key) == -1
        other = window.context.new_page()
        other.goto(window.page.url)
        expect(other.get_by_role("dialog", name="API key")).to_be_visible()
        window.page.get_by_role("button", name="API key").click()
        dialog.get_by_role("button", name="Forget it").click()
        expect(dialog).to_be_visible()
        assert window.evaluate("() => sessionStorage.length") == 0
