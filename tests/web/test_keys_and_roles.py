"""What a key may not do is not offered, and who it belongs to is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect

from tests.support.processes import ServerProcess
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
    expect(window.composer).to_have_attribute("placeholder", "Your key decides on approvals")
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
