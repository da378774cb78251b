"""The webhooks on the page: how they are, and what becomes of a test message."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect
from standardwebhooks import Webhook as Verifier

from tests.support.processes import ServerProcess
from tests.support.receiver import Received, Receiver, receiving
from tests.web.conftest import TEAM
from tests.web.people import Person
from tests.web.test_accessibility import check_accessibility
from tests.web.window import PHONE, Window

pytestmark = pytest.mark.long


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    env = {"SWARMKEEP_WEBHOOK_NETWORKS": "127.0.0.0/8"}
    url = f"sqlite:///{tmp_path / 'swarmkeep.db'}"
    with ServerProcess(tmp_path, agents=[str(TEAM)], env=env, database_url=url) as running:
        yield running


def test_webhook_is_tested_from_page(
    cleared_windows: Callable[..., Window], server: ServerProcess, receiver: Receiver, tmp_path: Path
) -> None:
    admin, writer = (Person(server.database_url, tmp_path, name, name) for name in ("admin", "write"))
    window = cleared_windows(server.url, bypass_csp=True).open("#/webhooks")
    admin.give_key(window)
    page = window.page
    main = page.get_by_role("region", name="Webhooks")
    expect(main).to_contain_text("Events are sent nowhere.")
    check_accessibility(window)
    with admin.ask(server.url) as api:
        everything = api.post("webhooks", {"url": f"{receiver.url}/<i>all</i>"})
        ends = {"url": f"{receiver.url}/ends", "types": ["run.completed"], "metadata": {"team": "a"}}
        deliveries = f"webhooks/{api.post('webhooks', ends)['id']}/deliveries"

    async def answer(got: Received) -> int:
        return 503 if got.path == "/ends" else 204

    taking, receiver.answer = receiver.answer, answer  # type: ignore[method-assign]
    page.reload()
    rows = main.locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first.get_by_role("cell")).to_have_text(["All", "Enabled", "Nothing yet", "", "Send a test message"])
    expect(rows.last).to_contain_text("run.completed, team=a")
    test = rows.first.get_by_role("button", name="Send a test message")
    test.press("Enter")
    expect(rows.first).to_contain_text(re.compile(r"Taken: 204, after \d+ ms"))
    expect(test).to_be_focused()
    [got] = receiver.received
    assert got.event["type"] == "webhook.test"
    Verifier(everything["secret"]).verify(got.body, dict(got.headers))
    rows.last.get_by_role("button").click()
    expect(rows.last).to_contain_text("Not taken: the answer was 503")
    check_accessibility(window)
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    window.wait_until_it_fits()
    expect(page.get_by_role("link", name="Webhooks")).to_be_visible()
    check_accessibility(window)
    # What was not delivered is listed, and sent again.
    with admin.ask(server.url) as api:
        session = api.session(id="left", metadata={"team": "a"})
        api.run(session, "Hello.")
        while not api.get(deliveries)["data"]:
            pass
        tab = page.get_by_role("link", name="Webhooks")
        tab.click()
        left = main.get_by_role("region", name="Not delivered")
        expect(left.get_by_role("link")).to_have_text(re.compile(r"^left #\d+$"))
        expect(left).to_contain_text("the answer was 503")
        check_accessibility(window)
        receiver.answer = taking  # type: ignore[method-assign]
        left.get_by_role("button", name=re.compile("^Send left #")).press("Enter")
        expect(left.get_by_role("status")).to_have_text("It is sent again.")
        while api.get(deliveries)["data"]:
            pass
        tab.click()
        expect(rows).to_have_count(2)
        expect(left).to_be_hidden()
    # A key without the right is not offered them.
    other = cleared_windows(server.url, bypass_csp=True).open("#/webhooks")
    writer.give_key(other)
    expect(other.page.get_by_text("Your key may not see webhooks.")).to_be_visible()
    expect(other.page.get_by_role("link", name="Webhooks")).to_be_hidden()
