"""Who began a run and who decided on its calls: on the page, with names before ids."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.processes import ServerProcess
from tests.support.scripted import ScriptedModel
from tests.web.conftest import TEAM
from tests.web.people import Person
from tests.web.window import Window

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def locked(
    tmp_path_factory: pytest.TempPathFactory, _scripted: ScriptedModel
) -> Iterator[tuple[ServerProcess, Person, Person]]:
    folder = tmp_path_factory.mktemp("people")
    url = f"sqlite:///{folder / 'swarmkeep.db'}"
    desk, boss = Person(url, folder, "Ann <i>(desk)</i>", "run"), Person(url, folder, "the boss", "approve")
    env = {"OPENAI_API_KEY": "test", "OPENAI_BASE_URL": _scripted.url, "SWARMKEEP_MODEL_RETRIES": "0"}
    with ServerProcess(folder, agents=[str(TEAM)], offline=False, env=env, database_url=url) as server:
        yield server, desk, boss


@pytest.mark.parametrize("decision", ["approve", "deny"])
def test_run_starter_and_decider_are_shown(
    cleared_windows: Callable[..., Window],
    locked: tuple[ServerProcess, Person, Person],
    model: ScriptedModel,
    decision: str,
) -> None:
    server, desk, boss = locked
    model.call("refund", {"order": "A-17"}, id="c1")
    model.say("So be it.")
    with desk.ask(server.url) as api, boss.ask(server.url) as superior:
        session = api.session(id=f"people-{decision}")
        run = api.run(session, "Pay it back")
        approvals = [{"tool_call_id": "c1", "decision": decision, "reason": "because"}]
        superior.post(f"sessions/{session}/runs/{run['id']}/resume", {"approvals": approvals})
        seqs = {event["type"]: event["seq"] for event in api.events(session)}
    window = cleared_windows(server.url)
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
    # The key itself is named by the tooltip.
    expect(window.log.locator(".decision bdi")).to_have_attribute("title", boss.label)
    window.page.reload()
    expect(window.log.locator(".decision")).to_contain_text(boss.shown)


def read_people(window: Window) -> dict[str, str]:
    """The rows of the event's facts that name somebody."""
    names = window.detail.locator("dl.facts").first.locator("dt").all_inner_texts()
    values = window.detail.locator("dl.facts").first.locator("dd").all_inner_texts()
    return {name: value for name, value in zip(names, values, strict=True) if name.endswith(" by") or name == "By"}


def test_audit_log_names_people(
    cleared_windows: Callable[..., Window],
    locked: tuple[ServerProcess, Person, Person],
    model: ScriptedModel,
    tmp_path: Path,
) -> None:
    server, desk, boss = locked
    auditor = Person(server.database_url, tmp_path, "Audrey", "audit")
    model.call("refund", {"order": "A-17"}, id="c1")
    model.say("So be it.")
    with desk.ask(server.url) as api, boss.ask(server.url) as superior:
        session = api.session(id="people-audited")
        run = api.run(session, "Pay it back")
        approvals = [{"tool_call_id": "c1", "decision": "approve"}]
        superior.post(f"sessions/{session}/runs/{run['id']}/resume", {"approvals": approvals})
    window = cleared_windows(server.url)
    window.open("#/audit")
    auditor.give_key(window)
    cell = window.page.get_by_role("row").filter(has_text=session).get_by_role("cell", name=boss.shown)
    expect(cell).to_have_attribute("title", re.compile("^key_"))


def test_who_is_read_from_labels_only(window: Window) -> None:
    window.open()
    script = """async (labels) => {
      const { whoIs } = await import("/page/descriptions.js");
      return labels.map(whoIs);
    }"""
    key = "key_0123456789abcdef"
    labels = [f"{key} (a (b))", key, "cli:root", f"{key} ()", f"x {key} (a)", "", None, 7]
    assert window.evaluate(script, labels) == ["a (b)", *labels[1:5], None, None, None]
