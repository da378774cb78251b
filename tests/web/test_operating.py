"""What operators live in: the inbox of sessions that need somebody, what calls took, and webhooks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect
from standardwebhooks import Webhook as Verifier

from tests.support.processes import ServerProcess
from tests.support.receiver import Received, Receiver, receiving
from tests.support.scripted import ScriptedModel
from tests.web.conftest import TEAM, serve
from tests.web.people import Person
from tests.web.test_accessibility import check_accessibility
from tests.web.test_takeovers import look
from tests.web.window import PHONE, Api, Window

pytestmark = pytest.mark.long


# What the browser would show is noted; nobody looks at the window meanwhile.
NOTED = """
  window.noted = [];
  document.hasFocus = () => false;
  const Shown = window.Notification;
  window.Notification = class extends Shown {
    constructor(title, options) {
      super(title, options);
      window.noted.push([title, options.body]);
    }
  };
"""
USAGE = {"prompt_tokens": 900, "completion_tokens": 100, "total_tokens": 1000}


@pytest.fixture(scope="module")
def desk(_scripted: ScriptedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server where nobody else's sessions wait."""
    with serve(tmp_path_factory.mktemp("desk"), _scripted) as running:
        yield running


@pytest.fixture
def fresh_desk(_scripted: ScriptedModel, tmp_path: Path) -> Iterator[ServerProcess]:
    """One where no test was before."""
    with serve(tmp_path, _scripted) as running:
        yield running


def test_inbox_lists_matters_needing_attention(
    windows: Callable[..., Window], desk: ServerProcess, model: ScriptedModel
) -> None:
    window = windows(desk.url, bypass_csp=True, permissions=["notifications"])
    window.context.add_init_script(NOTED)
    page = window.page
    with Api(desk.url) as api:
        window.open("#/inbox")
        main = page.get_by_role("region", name="Inbox")
        expect(main).to_contain_text("Nothing waits for you")
        expect(window.page.get_by_text("A case that is chosen on the left")).to_be_visible()
        expect(page).to_have_title("Inbox · Swarmkeep")
        page.get_by_role("button", name="Notify me").click()
        expect(page.get_by_role("button", name="Notifications are on")).to_have_attribute("aria-pressed", "true")
        paid = api.session(id="paid", metadata={"title": "Order A-17"})
        model.call("refund", {"order": "A-17"}, id="c1")
        api.run(paid, "Pay it back.")
        broken = api.session(id="broken", metadata={"title": "Broken <b>"})
        model.fail(401)
        api.run(broken, "hello")
        asked = api.session(id="asked", metadata={"title": "A question"})
        api.post(f"sessions/{asked}/takeover")
        api.run(asked, "Is anybody there?")
        items = main.locator(".case-item")
        expect(items).to_have_count(3)
        expect(items.filter(has_text="Order A-17")).to_contain_text("Approval of refund.")
        expect(items.filter(has_text="A question")).to_contain_text("An answer in the agent's place.")
        expect(items.filter(has_text="Broken <b>")).to_contain_text("scripted failure")
        expect(page).to_have_title("(3) Inbox · Swarmkeep")
        link = page.get_by_role("navigation", name="Views").get_by_role("link", name="Inbox")
        expect(link).to_have_text("Inbox3")
        assert sorted(window.evaluate("() => window.noted")) == [
            ["A question", "Waiting for an answer"],
            ["Broken <b>", "Failed"],
            ["Order A-17", "Waiting for an answer"],
        ]
        look(window, "inbox")
        main.get_by_role("link", name="Failed 1").focus()
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(r"#/inbox\?show=failed"))
        expect(items).to_have_count(1)
        expect(main.get_by_role("link", name="Failed 1")).to_be_focused()
        main.get_by_role("button", name="Mark as seen").focus()
        page.keyboard.press("Enter")
        expect(items).to_have_count(0)
        expect(page).to_have_title("(2) Inbox · Swarmkeep")
        main.get_by_role("checkbox", name="Show those marked as seen").check()
        expect(items).to_contain_text("seen")
        # Another title is no other failure; another failure is.
        api.client.patch(f"sessions/{broken}", json={"metadata": {"title": "Mended?"}}).raise_for_status()
        expect(items).to_contain_text("Mended?")
        page.reload()
        expect(items).to_contain_text("Mark as not seen")
        expect(page).to_have_title("(2) Inbox · Swarmkeep")
        model.fail(401)
        api.run(broken, "again")
        expect(page).to_have_title("(3) Inbox · Swarmkeep")
        expect(main.get_by_role("button", name="Mark as seen")).to_be_visible()
        main.get_by_role("link", name="Waiting 2").click()
        items.get_by_role("link", name="Order A-17").click()
        expect(page).to_have_title("(3) Order A-17 · Inbox · Swarmkeep")
        model.say("Done.")
        page.get_by_role("button", name="Approve", exact=True).click()
        # What is done leaves the list, and the next case opens.
        expect(page).to_have_url(re.compile(r"#/inbox/asked"))
        expect(link).to_have_text("Inbox2")
        window.open_chat(paid)
        expect(window.answers.last).to_have_text("Done.")


def test_row_says_what_a_summary_leaves_out(
    cleared_windows: Callable[..., Window], desk: ServerProcess, model: ScriptedModel
) -> None:
    with Api(desk.url) as api:
        model.call("pay", {"account": 7, "amount": 250, "how": "cash"}, id="c1")
        api.run(api.session(id="to-be-paid", agent="Till"), "Pay.")
    window = cleared_windows(desk.url).open("#/inbox")
    row = window.page.locator(".case-item").filter(has_text="Pay 250")
    expect(row.locator(".inbox-why")).to_have_text("Pay 250 to account 7. account: 7, amount: 250, how: cash")


def test_inbox_begins_with_those_that_wait_for_longest(
    windows: Callable[..., Window], fresh_desk: ServerProcess
) -> None:
    """Also where more wait than the page looks at: here five pages of one."""
    window = windows(fresh_desk.url)
    window.page.route(
        re.compile(r"/v1/sessions\?limit=200&"),
        lambda route: route.continue_(url=route.request.url.replace("limit=200", "limit=1")),
    )
    with Api(fresh_desk.url) as api:
        for number in range(7):
            session = api.session(id=f"case-{number}", metadata={"customer": f"No. {number}"})
            api.post(f"sessions/{session}/takeover")
        # In another order than they were made.
        longest = (3, 6, 0, 5, 1, 4, 2)
        for number in longest:
            api.run(f"case-{number}", "Is anybody there?")
        window.open("#/inbox")
        names = window.page.locator(".case-item .session-name")
        expect(names).to_have_text([f"No. {number}" for number in longest[:5]])
        expect(window.page.get_by_role("link", name="Waiting 5+")).to_be_visible()
        # What is done makes room for the next one.
        api.post("sessions/case-3/answer", {"content": "I am."})
        expect(names).to_have_text([f"No. {number}" for number in longest[1:6]])


def test_inbox_tells_when_server_is_away(
    windows: Callable[..., Window], fresh_desk: ServerProcess, model: ScriptedModel
) -> None:
    with Api(fresh_desk.url) as api:
        session = api.session(id="case-Ann", metadata={"customer": "Ann"})
        model.call("refund", {"order": "Ann"}, id="c1")
        api.run(session, "Refund Ann, please.")
    window = windows(fresh_desk.url).open("#/inbox")
    cases = window.page.locator(".case-item")
    expect(cases).to_have_count(1)
    fresh_desk.kill()
    note = window.page.get_by_role("region", name="Inbox").get_by_role("status").filter(has_text="does not answer")
    expect(note).to_be_visible()
    expect(cases).to_have_count(1)
    fresh_desk.start()
    expect(note).to_be_hidden()


def test_cases_are_worked_through_by_keys(
    windows: Callable[..., Window], fresh_desk: ServerProcess, model: ScriptedModel
) -> None:
    with Api(fresh_desk.url) as api:
        for name in ("Ann", "Ben", "Cid", "Dora"):
            metadata = {"customer": name if name != "Cid" else "Ann"}
            session = api.session(id=f"case-{name}", metadata=metadata, context_variables={"plan": "gold"})
            model.call("refund", {"order": name}, id="c1")
            api.run(session, f"Refund {name}, please.")
        window = windows(fresh_desk.url, bypass_csp=True)
        page = window.page
        window.open("#/inbox")
        names = page.locator(".case-item .session-name")
        # The oldest comes first.
        expect(names).to_have_text(["Ann", "Ben", "Ann", "Dora"])
        first = page.locator(".case-item").first
        for words in ("Refund Ann, please.", "Approval of refund. order: Ann", "Unassigned"):
            expect(first).to_contain_text(words)
        expect(first.locator(".unread-mark")).to_have_count(1)
        look(window, "desk-list")
        page.keyboard.press("j")
        expect(page).to_have_url(re.compile("#/inbox/case-Ann$"))
        expect(first.locator(".unread-mark")).to_have_count(0)
        facts = page.get_by_role("region", name="Facts")
        for words in ("gold", "refund", "Model calls", "Others with customer: Ann"):
            expect(facts).to_contain_text(words)
        expect(facts.get_by_role("link", name="Refund Cid, please.")).to_be_visible()
        page.keyboard.press("j")
        page.keyboard.press("k")
        expect(page).to_have_url(re.compile("#/inbox/case-Ann$"))
        expect(page.get_by_role("button", name="Approve", exact=True)).to_be_visible()
        look(window, "desk-case")
        page.keyboard.press("?")
        keys = page.get_by_role("dialog", name="Keys")
        expect(keys).to_contain_text("Next case")
        # Letters that are turned off do nothing.
        keys.get_by_role("checkbox").uncheck()
        page.keyboard.press("Escape")
        page.keyboard.press("j")
        page.keyboard.press("?")
        keys.get_by_role("checkbox").check()
        page.keyboard.press("Escape")
        expect(page).to_have_url(re.compile("#/inbox/case-Ann$"))
        page.keyboard.press("e")
        expect(page.get_by_role("textbox", name="order")).to_be_focused()
        # What was begun about one case is there again after a look at another.
        page.get_by_role("textbox", name="order").fill("other")
        page.get_by_role("textbox", name="Reason").fill("too much")
        names.nth(1).click()
        expect(page.get_by_role("textbox", name="order")).to_have_value("Ben")
        names.first.click()
        expect(page.get_by_role("textbox", name="order")).to_have_value("other")
        expect(page.get_by_role("textbox", name="Reason")).to_have_value("too much")
        expect(page.locator(".argument.changed")).to_have_count(1)
        page.get_by_role("textbox", name="order").fill("Ann")
        facts.get_by_role("link", name="Refund Cid, please.").focus()
        model.say("Refunded.")
        page.keyboard.press("a")
        expect(page).to_have_url(re.compile("#/inbox/case-Ben$"))
        expect(page.get_by_role("link", name=re.compile("^Ben"))).to_be_focused()
        expect(page.get_by_role("button", name="Deny", exact=True)).to_be_visible()
        page.keyboard.press("r")
        expect(window.composer).to_be_focused()
        # What is written is no key.
        page.keyboard.type("jade")
        expect(window.composer).to_have_value("jade")
        window.composer.fill("")
        page.get_by_role("link", name=re.compile("^Ben")).focus()
        # What was meant for the case before decides nothing about one that has just opened by itself.
        window.evaluate("() => { [document.now, performance.now] = [performance.now, () => 0]; }")
        page.keyboard.press("d")
        window.evaluate("() => { performance.now = () => document.now.call(performance) + 1000; }")
        expect(page.get_by_role("button", name="Deny", exact=True)).to_be_enabled()
        model.say("It is not.")
        page.keyboard.press("d")
        expect(page).to_have_url(re.compile("#/inbox/case-Cid$"))
        # One that is not open is decided in its row.
        model.say("Done.")
        approve = page.get_by_role("button", name="Approve: refund, Dora")
        # The second click of a double click decides nothing.
        approve.dispatch_event("click", {"detail": 2})
        expect(approve).to_be_enabled()
        approve.click()
        expect(names).to_have_text(["Ann"])
        expect(page).to_have_url(re.compile("#/inbox/case-Cid$"))
        for name, decided in (("Ann", ["approve"]), ("Ben", ["deny"]), ("Cid", []), ("Dora", ["approve"])):
            events = api.events(f"case-{name}")
            assert [one["data"]["decision"] for one in events if one["type"] == "approval.decided"] == decided


def test_usage_is_shown_by_day_agent_model(
    cleared_windows: Callable[..., Window], desk: ServerProcess, model: ScriptedModel
) -> None:
    window = cleared_windows(desk.url, bypass_csp=True)
    page = window.page
    with Api(desk.url) as api:
        window.open("#/usage?of=Counter")
        main = page.get_by_role("region", name="Usage")
        expect(main).to_contain_text("There were no such calls on these days.")
        for agent in ("Front Desk", "Sales"):
            model.say("Well.", usage=USAGE)
            api.run(api.session(agent=agent), "hello")
        main.get_by_role("combobox", name="Agent").select_option("")
        figures = main.get_by_role("figure")
        expect(figures).to_have_count(3)
        (sum_up,) = api.get("usage")["data"]
        total = f"{sum_up['total_tokens']:,}"
        expect(figures.first).to_contain_text(f"Tokens: {total} in total")
        expect(figures.first.get_by_role("img", name=re.compile(f"{total} in total"))).to_be_visible()
        expect(figures.nth(1).get_by_role("listitem").filter(has_text="Sales")).to_contain_text("1,000")
        figures.nth(1).get_by_text("As a table").click()
        row = figures.nth(1).get_by_role("row").filter(has_text="Sales")
        expect(row.get_by_role("cell")).to_have_text(
            ["1,000", "900", "0", "100", "1", "0", re.compile(" m?s$"), "$0.0028"]
        )
        main.get_by_role("combobox", name="Show").select_option("Cost")
        expect(figures.nth(1).get_by_role("listitem").filter(has_text="Sales")).to_contain_text("$0.0028")
        expect(row).to_be_visible()
        look(window, "usage")
        sales = figures.nth(1).get_by_role("listitem").get_by_role("link", name="Sales")
        sales.press("Enter")
        expect(page).to_have_url(re.compile(r"#/usage\?measure=cost&of=Sales"))
        expect(figures.nth(1).get_by_role("listitem")).to_have_count(1)
        expect(sales).to_be_focused()
        main.get_by_role("combobox", name="Days").select_option("Last 7 days")
        page.reload()
        expect(main.get_by_role("combobox", name="Agent")).to_have_value("Sales")
        expect(main.get_by_role("combobox", name="Days")).to_have_value("7")
        expect(figures.first.locator("rect")).to_have_count(7)
        expect(figures.first).to_contain_text("Cost: $0.0028 in total")
        figures.nth(1).locator("rect").click()
        expect(page).to_have_url(re.compile(r"#/runs\?.*of=Sales"))


# The webhooks: how they are, and what becomes of a test message.


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.fixture
def hooked(tmp_path: Path) -> Iterator[ServerProcess]:
    env = {"SWARMKEEP_WEBHOOK_NETWORKS": "127.0.0.0/8"}
    url = f"sqlite:///{tmp_path / 'swarmkeep.db'}"
    with ServerProcess(tmp_path, agents=[str(TEAM)], env=env, database_url=url) as running:
        yield running


def test_webhook_is_tested_from_page(
    cleared_windows: Callable[..., Window], hooked: ServerProcess, receiver: Receiver, tmp_path: Path
) -> None:
    admin, writer = (Person(hooked.database_url, tmp_path, name, name) for name in ("admin", "write"))
    window = cleared_windows(hooked.url, bypass_csp=True).open("#/webhooks")
    admin.give_key(window)
    page = window.page
    main = page.get_by_role("region", name="Webhooks")
    expect(main).to_contain_text("Events are sent nowhere.")
    check_accessibility(window)
    with admin.ask(hooked.url) as api:
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
    window.check_tables()
    expect(page.get_by_role("link", name="Webhooks")).to_be_visible()
    check_accessibility(window)
    # What was not delivered is listed, and sent again.
    with admin.ask(hooked.url) as api:
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
        left.get_by_role("button", name=re.compile("^Send again: left #")).press("Enter")
        expect(left.get_by_role("status")).to_have_text("It is sent again.")
        while api.get(deliveries)["data"]:
            pass
        tab.click()
        expect(rows).to_have_count(2)
        expect(left).to_be_hidden()
    # A key without the right is not offered them.
    other = cleared_windows(hooked.url, bypass_csp=True).open("#/webhooks")
    writer.give_key(other)
    expect(other.page.get_by_text("Your key may not see webhooks.")).to_be_visible()
    expect(other.page.get_by_role("link", name="Webhooks")).to_be_hidden()
