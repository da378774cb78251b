"""A log that somebody has changed: both views say so, and where."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.processes import ServerProcess
from tests.support.scripted import ScriptedModel
from tests.web.conftest import TEAM
from tests.web.window import Api, Window

pytestmark = pytest.mark.long


def test_forged_answer_is_marked_in_both_views(
    cleared_windows: Callable[..., Window], model: ScriptedModel, tmp_path: Path
) -> None:
    env = {"OPENAI_API_KEY": "test", "OPENAI_BASE_URL": model.url, "SWARMKEEP_MODEL_RETRIES": "0"}
    model.say("You owe us nothing.")
    server = ServerProcess(tmp_path, agents=[str(TEAM)], offline=False, env=env)
    with server, Api(server.url) as api:
        session = api.session(id="forged")
        api.run(session, "What do I owe?")
        (seq,) = [event["seq"] for event in api.events(session) if "You owe us nothing" in str(event["data"])]
    with closing(sqlite3.connect(tmp_path / "swarmkeep.db")) as database, database:
        changed = database.execute(
            "UPDATE events SET payload = replace(payload, 'nothing', 'a million') WHERE session_id = ? AND seq = ?",
            (session, seq),
        )
        assert changed.rowcount == 1
    with server:
        window = cleared_windows(server.url)
        window.open_chat(session)
        expect(window.answers).to_have_text(["You owe us a million."])
        warning = window.page.get_by_role("alert").filter(has_text="This log does not verify: 1 problem")
        expect(warning).to_be_visible()
        marked = window.log.locator(".damaged")
        expect(marked).to_have_count(1)
        expect(marked).to_contain_text("You owe us a million.")
        expect(marked).to_contain_text("it may have been changed since it was recorded")
        warning.get_by_role("link", name=f"Show event {seq}").click()
        expect(window.page.locator(".badge")).to_have_text("Does not verify: 1 problem")
        expect(window.rows.and_(window.page.locator("[aria-selected=true]"))).to_have_attribute(
            "aria-posinset", str(seq)
        )
        rows = window.rows.filter(has_text="does not verify")
        expect(rows).to_have_count(1)
        expect(rows).to_have_attribute("aria-posinset", str(seq))
        expect(warning).to_contain_text("payload_differs")
