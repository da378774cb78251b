"""A server that asks for a key: the page keeps it to itself, offers what it may do, and says whose it is."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect

from tests.support import warm
from tests.support.processes import ServerProcess, clean_environment
from tests.support.scripted import ScriptedModel
from tests.web.conftest import TEAM
from tests.web.people import Person
from tests.web.window import Window

pytestmark = pytest.mark.long


class Office:
    def __init__(self, server: ServerProcess, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.writer = self.hire("Wanda", "write")

    def hire(self, name: str, role: str) -> Person:
        return Person(self.server.database_url, self.folder, name, role)


@pytest.fixture
def office(tmp_path: Path, _scripted: ScriptedModel) -> Iterator[Office]:
    url = f"sqlite:///{tmp_path / 'swarmkeep.db'}"
    env = {"OPENAI_API_KEY": "test", "OPENAI_BASE_URL": _scripted.url, "SWARMKEEP_MODEL_RETRIES": "0"}
    server = ServerProcess(tmp_path, agents=[str(TEAM)], offline=False, env=env, database_url=url)
    office = Office(server, tmp_path)
    with server:
        yield office


@pytest.fixture
def waiting(office: Office, model: ScriptedModel) -> str:
    """A session that waits for an approval."""
    model.call("refund", {"order": "A-17"}, id="c1")
    with office.writer.ask(office.server.url) as api:
        session = api.session(id="waiting")
        api.run(session, "Refund A-17")
    return session


def open_as(cleared_windows: Callable[..., Window], office: Office, person: Person, session: str) -> Window:
    window = cleared_windows(office.server.url).open_chat(session)
    person.give_key(window)
    expect(window.page.get_by_role("dialog", name="API key")).to_be_hidden()
    expect(window.calls).to_have_count(1)
    return window


def test_agent_is_named_whole_on_a_phone(cleared_windows: Callable[..., Window], office: Office) -> None:
    """Also where the header has fewer buttons than usual, and so room for a little of it in its first line."""
    with office.writer.ask(office.server.url) as api:
        session = api.session(id="idle", agent="Front Desk")
    window = cleared_windows(office.server.url).open_chat(session)
    office.hire("Sue", "support").give_key(window)
    expect(window.page.locator(".who")).to_have_text("Sue · default · support")
    for width in (320, 390, 410, 480):
        window.page.set_viewport_size({"width": width, "height": 844})
        window.page.wait_for_function("() => document.querySelector('.agent-select').clientWidth >= 110")
        window.wait_until_it_fits()


def test_read_only_key_is_offered_nothing_else(
    cleared_windows: Callable[..., Window], office: Office, waiting: str
) -> None:
    window = open_as(cleared_windows, office, office.hire("Rita", "read"), waiting)
    expect(window.composer).to_be_disabled()
    for name in ("Send", "Queue", "Cancel run", "Approve", "Deny"):
        expect(window.page.get_by_role("button", name=name, exact=True)).to_have_count(0)
    expect(window.log).to_contain_text("Ask a person whose key may approve.")
    expect(window.page.get_by_label("Active agent")).to_be_disabled()
    expect(window.page.locator(".who")).to_have_text("Rita · default · read")
    window.open_timeline(waiting)
    expect(window.detail.get_by_role("heading").first).to_be_visible()
    for name in ("Fork from here", "Redact"):
        expect(window.detail.get_by_role("button", name=name)).to_have_count(0)
    expect(window.page.get_by_role("link", name="Audit log")).to_be_hidden()
    expect(window.page.get_by_role("button", name="New chat")).to_be_hidden()
    window.open("#/chat")
    expect(window.page.get_by_role("heading", name="Choose a session to read")).to_be_visible()
    expect(window.page.get_by_role("radio")).to_have_count(0)
    window.open("#/audit")
    expect(window.page.get_by_text("Your key may not read the audit log.")).to_be_visible()


def test_identity_counts_without_agent_list(
    cleared_windows: Callable[..., Window], office: Office, waiting: str
) -> None:
    window = cleared_windows(office.server.url)
    window.open_chat(waiting)
    expect(window.page.get_by_role("dialog", name="API key")).to_be_visible()
    asked: list[Route] = []

    def hold(route: Route) -> None:
        asked.append(route)
        # The first one is the dialog's, which tries the key out.
        if len(asked) == 1:
            route.continue_()

    window.page.route("**/v1/me", hold)
    window.page.route("**/v1/agents?*", lambda route: route.abort())
    with window.page.expect_event("requestfailed", lambda request: "/v1/agents?" in request.url):
        office.hire("Rita", "read").give_key(window)
    asked[1].continue_()
    expect(window.page.locator(".who")).to_have_text("Rita · default · read")
    expect(window.calls).to_have_count(1)
    expect(window.page.get_by_role("button", name="Approve")).to_have_count(0)


def test_approving_key_is_offered_approval(
    cleared_windows: Callable[..., Window], office: Office, waiting: str, model: ScriptedModel
) -> None:
    model.say("Paid back.")
    window = open_as(cleared_windows, office, office.hire("Anna", "approve"), waiting)
    expect(window.composer).to_be_disabled()
    window.page.get_by_role("button", name="Approve").click()
    expect(window.answers).to_have_text(["Paid back."])


def test_non_approving_writer_sees_required_approver(
    cleared_windows: Callable[..., Window], office: Office, waiting: str
) -> None:
    window = open_as(cleared_windows, office, office.hire("Rob", "run"), waiting)
    expect(window.page.get_by_role("button", name="Approve")).to_have_count(0)
    expect(window.page.get_by_role("button", name="Cancel run")).to_be_visible()
    expect(window.composer).to_be_enabled()


def test_wrong_key_is_told_in_dialog_only(cleared_windows: Callable[..., Window], office: Office) -> None:
    window = cleared_windows(office.server.url).open()
    dialog = window.page.get_by_role("dialog", name="API key")
    expect(dialog).to_be_visible()
    expect(window.page.locator("#main")).not_to_contain_text("serves no agents")
    expect(window.page.locator("#main")).to_contain_text("asks for an API key")
    field = dialog.get_by_label("Key")
    field.fill("swk_wrong")
    dialog.get_by_role("button", name="Use this key").click()
    expect(dialog.get_by_role("alert")).to_contain_text("does not accept this key")
    expect(field).to_have_value("swk_wrong")
    expect(field).to_be_focused()
    office.writer.give_key(window)
    expect(dialog).to_be_hidden()
    expect(window.page.get_by_role("radio")).not_to_have_count(0)


def test_key_is_kept_in_browser_on_request(cleared_windows: Callable[..., Window], office: Office) -> None:
    person: Person = office.writer
    window = cleared_windows(office.server.url).open()
    dialog = window.page.get_by_role("dialog", name="API key")
    dialog.get_by_label("Remember it in this browser").check()
    person.give_key(window)
    expect(window.page.locator(".who")).to_have_text("Wanda · default · write")
    other = window.context.new_page()
    other.goto(window.url)
    expect(other.locator(".who")).to_have_text("Wanda · default · write")
    window.page.get_by_role("button", name="API key").click()
    expect(dialog).to_contain_text("You are Wanda")
    dialog.get_by_role("button", name="Forget it").click()
    expect(dialog.get_by_label("Key")).to_be_visible()
    assert window.evaluate("() => [localStorage.length, sessionStorage.length]") == [0, 0]


def test_words_under_wrong_key_are_kept(cleared_windows: Callable[..., Window], office: Office) -> None:
    """A key that is revoked while somebody writes: what they wrote stays, and the dialog says why it is there."""
    person = office.hire("Temp", "run")
    with office.writer.ask(office.server.url) as api:
        session = api.session(id="cut-off")
    window = cleared_windows(office.server.url).open_chat(session)
    person.give_key(window)
    expect(window.page.get_by_text("Nothing has been said yet.")).to_be_visible()
    window.composer.fill("my words")
    boss = office.hire("Boss", "admin")
    with boss.ask(office.server.url) as keys:
        keys.post(f"keys/{person.label.partition(' ')[0]}/revoke")
    dialog = window.page.get_by_role("dialog", name="API key")
    expect(dialog.get_by_role("alert")).to_contain_text("The key was revoked or has expired")
    office.writer.give_key(window)
    expect(dialog).to_be_hidden()
    expect(window.composer).to_have_value("my words")


def test_late_refusal_of_earlier_key_is_ignored(cleared_windows: Callable[..., Window], office: Office) -> None:
    """A request that was on its way under the revoked key is refused after the new one was accepted."""
    person = office.hire("Temp", "run")
    window = cleared_windows(office.server.url).open()
    person.give_key(window)
    dialog = window.page.get_by_role("dialog", name="API key")
    expect(dialog).to_be_hidden()
    held: list[Route] = []

    def hold(route: Route) -> None:
        if route.request.headers.get("authorization") == f"Bearer {person.key}":
            held.append(route)
        else:
            route.continue_()

    window.page.route("**/v1/usage?*", hold)
    with window.page.expect_request("**/v1/usage?*"):
        window.page.goto(f"{window.url}/#/usage")
    boss = office.hire("Boss", "admin")
    with boss.ask(office.server.url) as keys:
        keys.post(f"keys/{person.label.partition(' ')[0]}/revoke")
    expect(dialog.get_by_role("alert")).to_contain_text("The key was revoked or has expired")
    office.writer.give_key(window)
    expect(dialog).to_be_hidden()
    with window.page.expect_response(lambda answer: answer.request == held[0].request) as refused:
        held[0].continue_()
    assert refused.value.status == 401
    expect(window.page.locator(".who")).to_have_text("Wanda · default · write")
    expect(dialog).to_be_hidden()


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


# Who began a run and who decided on its calls: with names before ids.


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
