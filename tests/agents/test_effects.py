"""The functions of airline, support_bot and personal_shopper change their databases, and only once."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from swarmkeep import Agent, ToolCallId
from swarmkeep_agents.airline import bookings, flight_cancel, flight_change, lost_baggage
from swarmkeep_agents.personal_shopper import refunds_agent, sales_agent, shop, triage_agent
from swarmkeep_agents.records import Records
from swarmkeep_agents.support_bot import help_centre, help_centre_agent
from tests.agents.calls import CallResult, call

CALL = ToolCallId("call_1")


# The rows of any team.


def test_effect_and_answer_commit_together() -> None:
    records = Records("notes.db", ["CREATE TABLE notes (text TEXT)"])

    def fail(db: sqlite3.Connection) -> str:
        db.execute("INSERT INTO notes VALUES ('half done')")
        raise RuntimeError("cut off")

    def note(db: sqlite3.Connection) -> str:
        db.execute("INSERT INTO notes VALUES ('done')")
        return "noted"

    with pytest.raises(RuntimeError):
        records.perform_once(CALL, ["note"], fail)
    assert records.rows("SELECT * FROM notes") == []
    assert [records.perform_once(CALL, ["note"], note) for _ in range(3)] == ["noted"] * 3
    assert records.rows("SELECT * FROM notes") == [{"text": "done"}]
    # A provider that counts calls anew in each conversation gives one id to many of them.
    records.perform_once(CALL, ["another note"], note)
    assert len(records.rows("SELECT * FROM notes")) == 2


def test_concurrent_same_call_has_one_effect() -> None:
    records = Records("notes.db", ["CREATE TABLE notes (number INTEGER PRIMARY KEY)"])

    def act(db: sqlite3.Connection) -> str:
        return str(db.execute("INSERT INTO notes DEFAULT VALUES").lastrowid)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: records.perform_once(CALL, [], act), range(16)))
    assert answers == ["1"] * 16


def test_rows_kept_as_settings_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = Records("notes.db", [])
    assert records.path == tmp_path / "notes.db"
    monkeypatch.delenv("SWARMKEEP_TEAM_DATA")
    monkeypatch.setenv("SWARMKEEP_DATABASE_URL", f"sqlite:///{tmp_path / 'data' / 'swarmkeep.db'}")
    assert records.path == tmp_path / "data" / "notes.db"
    for elsewhere in ("postgresql://127.0.0.1/swarmkeep", "postgresql:///swarmkeep?host=/run", ""):
        monkeypatch.setenv("SWARMKEEP_DATABASE_URL", elsewhere)
        assert records.path == Path("notes.db")


# Airline.


def change(booking_id: str, new_date: str, call_id: str = "call_1") -> CallResult:
    return call(flight_change, "change_flight", booking_id=booking_id, new_date=new_date, call_id=call_id)


def read_booking(booking_id: str) -> dict[str, object]:
    found = bookings.find_booking(booking_id)
    assert found is not None
    return found


def test_moved_flight_updates_the_context() -> None:
    changed = change("kw-4822", "2031-06-01")
    assert "Fee: 35 euros" in changed.text
    assert changed.context["flight"] == read_booking("KW4822")
    assert read_booking("KW4822")["departs_on"] == "2031-06-01"


@pytest.mark.parametrize(
    ("booking_id", "new_date", "said"),
    [
        ("KW4823", "2031-06-03", "saver fare cannot be changed"),
        ("KW4821", "2031-09-01", "60 days at most"),
        ("KW9999", "2031-06-01", "no booking KW9999"),
    ],
)
def test_policy_forbidden_actions_not_done(booking_id: str, new_date: str, said: str) -> None:
    before = bookings.records.rows("SELECT * FROM bookings")
    assert said in change(booking_id, new_date).text
    assert said in call(flight_change, "check_change", booking_id=booking_id, new_date=new_date).text
    assert bookings.records.rows("SELECT * FROM bookings") == before


@pytest.mark.parametrize(("function", "booking_id"), [("refund_flight", "KW4821"), ("give_flight_credit", "KW4823")])
def test_booking_is_paid_out_once(function: str, booking_id: str) -> None:
    first = call(flight_cancel, function, booking_id=booking_id)
    assert call(flight_cancel, function, booking_id=booking_id).text == first.text
    assert "cancelled already" in call(flight_cancel, function, booking_id=booking_id, call_id="call_2").text
    assert len(bookings.records.rows("SELECT * FROM payments")) == 1
    assert read_booking(booking_id)["status"] == "cancelled"
    assert "cannot be changed" in change(booking_id, "2031-06-01").text


def test_saver_fare_never_refunded_others_wait() -> None:
    assert "not refunded" in call(flight_cancel, "refund_flight", booking_id="KW4823").text
    assert read_booking("KW4823")["status"] == "booked"
    assert flight_cancel.tools()["refund_flight"].requires_approval
    assert not flight_cancel.tools()["give_flight_credit"].requires_approval


def test_search_starts_once_and_is_queryable() -> None:
    for _ in range(2):
        call(lost_baggage, "start_baggage_search", booking_id="KW4821", bag="a blue bag")
    found = call(lost_baggage, "check_baggage_search", booking_id="kw4821").json()["searches"]
    assert found == [{"search_id": "BAG-1", "bag": "a blue bag", "status": "looking for it"}]


def test_instructions_hold_policy_customer_and_flight() -> None:
    looked_up = call(flight_change, "look_up_booking", booking_id="KW4821").context
    for agent in (flight_change, flight_cancel, lost_baggage):
        text = str(agent.render_instructions(looked_up))
        assert "Routine for " in text
        assert "Robin Vale" in text
        assert "KW 118" in text


# Support bot.


@pytest.mark.parametrize(
    ("question", "article"),
    [
        ("I forgot my password", "password"),
        ("Where are my invoices?", "billing"),
        ("importing a CSV", "importing-readers"),
        ("letters as SPAM", "deliverability"),
        ('"scheduled" AND (NOT later*', "scheduling"),
    ],
)
def test_the_article_that_fits_is_found(question: str, article: str) -> None:
    found = call(help_centre_agent, "search_help_centre", question=question).json()["found"]
    assert found[0]["article_id"] == article
    assert call(help_centre_agent, "read_article", article_id=article).json()["title"] == found[0]["title"]


@pytest.mark.parametrize("question", ["", "?!", "xylophone", "how do I", "\ud800", '"', "a" * 10_000])
def test_unmatched_question_gets_article_list(question: str) -> None:
    answer = call(help_centre_agent, "search_help_centre", question=question).json()
    assert answer["found"] == []
    assert answer["all_articles"] == help_centre.list_article_ids()
    assert len(answer["all_articles"]) == len(list(help_centre.ARTICLES.glob("*.md")))


def test_ticket_and_email_written_once() -> None:
    email = {"recipient": "ana@example.com", "subject": "Hello", "body": "Here you are."}
    for _ in range(2):
        opened = call(help_centre_agent, "open_ticket", summary="It does not work.", email="ana@example.com")
        sent = call(help_centre_agent, "send_email", **email)
    assert opened.context == {"email": "ana@example.com", "ticket_id": "TICKET-1"}
    assert "MAIL-1" in sent.text
    assert help_centre.records.rows("SELECT recipient, subject, body, status FROM outbox") == [
        {**email, "status": "waiting"}
    ]
    assert call(help_centre_agent, "check_ticket", ticket_id="TICKET-1").json()["status"] == "open"
    for unknown in ("TICKET-2", "mine", "9" * 30):
        assert "no ticket" in call(help_centre_agent, "check_ticket", ticket_id=unknown).text


# Personal shopper.


def buy(product: str, call_id: str = "call_1", user_id: int = 1) -> CallResult:
    return call(sales_agent, "buy_product", {"user_id": user_id}, product=product, call_id=call_id)


def refund(purchase_id: int, call_id: str = "call_1", user_id: int = 1) -> CallResult:
    return call(refunds_agent, "refund_purchase", {"user_id": user_id}, purchase_id=purchase_id, call_id=call_id)


def read_stock(product: str) -> int:
    return next(int(row["stock"]) for row in shop.read_products() if row["name"] == product)


def test_purchase_reduces_stock_once() -> None:
    assert buy("rain jacket").text == buy("rain jacket").text
    assert read_stock("rain jacket") == 4
    assert [row["product"] for row in shop.read_purchases(1)] == ["wool scarf", "canvas shoes", "rain jacket"]


@pytest.mark.parametrize(
    ("product", "said"), [("linen shirt", "out of stock"), ("piano", "no 'piano'"), ("rain", "no ")]
)
def test_what_cannot_be_bought_is_not(product: str, said: str) -> None:
    assert said in buy(product).text
    assert len(shop.read_purchases(1)) == 2


def test_the_last_piece_is_sold_once() -> None:
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda number: buy("straw hat", f"call_{number}").text, range(8)))
    assert sum(text.startswith("Bought") for text in texts) == 1
    assert read_stock("straw hat") == 0


def test_purchase_refunded_once_after_approval() -> None:
    assert "54.00 euros" in refund(102).text
    assert refund(102).text == refund(102).text
    assert "already" in refund(102, "call_2").text
    assert len(shop.records.rows("SELECT * FROM refunds")) == 1
    assert [row["refunded"] for row in shop.read_purchases(1)] == [False, True]
    assert refunds_agent.tools()["refund_purchase"].requires_approval


def test_other_customers_purchases_are_unreachable() -> None:
    assert "no purchase 103" in refund(103).text
    assert "no purchase 102" in refund(102, user_id=2).text
    for stranger in (99, "1 OR 1=1", None):
        with pytest.raises(ValueError, match="no user"):
            call(refunds_agent, "look_up_purchases", {"user_id": stranger})


def test_notification_goes_to_customer_address() -> None:
    for channel in ("email", "phone"):
        call(refunds_agent, "notify_customer", {"user_id": 2}, channel=channel, message="Done.", call_id=channel)
    query = "SELECT user_id, channel, address FROM notifications ORDER BY notification_id"
    assert shop.records.rows(query) == [
        {"user_id": 2, "channel": "email", "address": "sam@example.com"},
        {"user_id": 2, "channel": "phone", "address": "+44 20 7946 0102"},
    ]


def test_helper_links_triage_both_ways() -> None:
    def leads_to(agent: Agent) -> set[str]:
        handoffs = [name for name in agent.tools() if name.startswith("transfer_to_")]
        return {other.name for name in handoffs if (other := call(agent, name).agent) is not None}

    assert leads_to(triage_agent) == {"Shop Sales Agent", "Shop Refunds Agent"}
    assert leads_to(sales_agent) == leads_to(refunds_agent) == {"Shop Triage Agent"}
