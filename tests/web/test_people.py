"""Who began a run and who decided on its calls: on the page, with names before ids."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support import warm
from tests.support.processes import ServerProcess, clean_environment
from tests.support.scripted import ScriptedModel
from tests.web.conftest import TEAM
from tests.web.window import Api, Window

pytestmark = pytest.mark.long


class Person:
    """Somebody with a key, and what they are called."""

    def __init__(self, database_url: str, folder: Path, name: str, role: str) -> None:
        command = [sys.executable, "-m", "swarmkeep", "keys", "create", "--name", name, "--role", role, "--json"]
        made = warm.run([*command, "--database-url", database_url], folder=folder, env=clean_environment())
        made.check_returncode()
        found = json.loads(made.stdout)
        self.key, self.shown, self.label = found["key"], f"{name} ({found['id']})", f"{found['id']} ({name})"

    def ask(self, url: str) -> Api:
        api = Api(url)
        api.client.headers["authorization"] = f"Bearer {self.key}"
        return api


@pytest.fixture
def locked(tmp_path: Path, _scripted: ScriptedModel) -> Iterator[tuple[ServerProcess, Person, Person]]:
    url = f"sqlite:///{tmp_path / 'swarmkeep.db'}"
    desk, boss = Person(url, tmp_path, "Ann <i>(desk)</i>", "run"), Person(url, tmp_path, "the boss", "approve")
    env = {"OPENAI_API_KEY": "test", "OPENAI_BASE_URL": _scripted.url, "SWARMKEEP_MODEL_RETRIES": "0"}
    with ServerProcess(tmp_path, agents=[str(TEAM)], offline=False, env=env, database_url=url) as server:
        yield server, desk, boss


@pytest.mark.parametrize("decision", ["approve", "deny"])
def test_who_began_a_run_and_who_decided_is_shown(
    windows: Callable[..., Window],
    locked: tuple[ServerProcess, Person, Person],
    model: ScriptedModel,
    decision: str,
) -> None:
    server, desk, boss = locked
    model.call("refund", {"order": "A-17"}, id="c1")
    model.say("So be it.")
    with desk.ask(server.url) as api, boss.ask(server.url) as superior:
        session = api.session(id="people")
        run = api.run(session, "Pay it back")
        approvals = [{"tool_call_id": "c1", "decision": decision, "reason": "because"}]
        superior.post(f"sessions/{session}/runs/{run['id']}/resume", {"approvals": approvals})
        seqs = {event["type"]: event["seq"] for event in api.events(session)}
    window = windows(server.url)
    window.open_timeline(session, at=seqs["run.started"])
    dialog = window.page.get_by_role("dialog", name="API key")
    dialog.get_by_label("Key").fill(desk.key)
    dialog.get_by_role("button", name="Use this key").click()
    expect(window.rows.nth(1).locator(".row-summary")).to_have_text(desk.shown)
    expect(window.rows.nth(seqs["approval.decided"] - 1)).to_contain_text(f"{decision} · {boss.shown} · because")
    began, decided = ("Started by", desk.shown), ("Approved by" if decision == "approve" else "Denied by", boss.shown)
    for kind, expected in (
        ("session.created", {}),
        ("run.started", dict([began])),
        ("approval.requested", dict([began])),
        ("approval.decided", dict([began, decided])),
        ("run.completed", dict([began])),
    ):
        window.open_timeline(session, at=seqs[kind])
        expect(window.detail.locator(".detail-head")).to_contain_text(f"#{seqs[kind]}")
        assert read_people(window) == expected, kind
    window.open_chat(session)
    expect(window.log.locator(".decision")).to_have_text(f"{decided[0]} {boss.shown}because")
    window.page.reload()
    expect(window.log.locator(".decision")).to_contain_text(boss.shown)


def read_people(window: Window) -> dict[str, str]:
    """The rows of the event's facts that name somebody."""
    names = window.detail.locator("dl.facts").first.locator("dt").all_inner_texts()
    values = window.detail.locator("dl.facts").first.locator("dd").all_inner_texts()
    return {name: value for name, value in zip(names, values, strict=True) if name.endswith(" by") or name == "By"}


def test_who_is_read_from_labels_only(window: Window) -> None:
    window.open()
    script = """async (labels) => {
      const { whoIs } = await import("/page/descriptions.js");
      return labels.map(whoIs);
    }"""
    key = "key_0123456789abcdef"
    labels = [f"{key} (a (b))", key, "cli:root", f"{key} ()", f"x {key} (a)", "", None, 7]
    assert window.evaluate(script, labels) == [f"a (b) ({key})", *labels[1:5], None, None, None]
