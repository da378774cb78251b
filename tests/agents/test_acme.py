"""The outdoor shop: nothing is ordered unquoted, nothing happens twice, and people can be reached."""

from __future__ import annotations

from typing import Any

import pytest

from swarmkeep import Agent
from swarmkeep_agents.acme import escalation, issues_and_repairs, sales, triage
from swarmkeep_agents.acme.catalogue import CATALOGUE, Product, find_products
from tests.agents.calls import CallResult, call


def quote_product(product: str = "lantern", quantity: int = 2) -> CallResult:
    return call(sales, "quote_price", product=product, quantity=quantity)


@pytest.mark.parametrize(
    ("text", "item_id"),
    [("LAMP-1", "LAMP-1"), ("my lanterns", "LAMP-1"), ("The BOOTS, please!", "BOOT-7"), ("a rucksack", "BAG-45")],
)
def test_product_found_by_id_name_or_synonym(text: str, item_id: str) -> None:
    assert find_products(text)[0].item_id == item_id


@pytest.mark.parametrize("product", CATALOGUE, ids=lambda product: product.item_id)
def test_every_product_found_by_id_and_name(product: Product) -> None:
    assert find_products(product.item_id)[0] == find_products(product.name)[0] == product


def test_catalogue_gives_prices_and_names_gaps() -> None:
    assert call(sales, "look_up_catalogue", query="a tent").json()["found"][0]["price"] == 189.0
    nothing = call(sales, "look_up_catalogue", query="a piano").json()
    assert nothing["found"] == []
    assert "Hut lantern" in nothing["for_sale"]


def test_quote_fills_cart_without_ordering() -> None:
    quote = quote_product()
    assert quote.context == {"cart": [{"item_id": "LAMP-1", "name": "Hut lantern", "quantity": 2, "price": 24.5}]}
    assert "49.00 euros" in quote.text


def test_second_quote_replaces_only_its_line() -> None:
    cart = call(sales, "quote_price", quote_product().context, product="tent").context
    cart = call(sales, "quote_price", cart, product="lantern", quantity=1).context
    assert [(line["item_id"], line["quantity"]) for line in cart["cart"]] == [("TENT-2", 1), ("LAMP-1", 1)]


@pytest.mark.parametrize(
    ("product", "quantity", "said"),
    [("a piano", 1, "no item"), ("kettle", 1, "sold out"), ("lantern", 0, "not 0"), ("lantern", 21, "not 21")],
)
def test_unsellable_product_is_not_quoted(product: str, quantity: int, said: str) -> None:
    quote = quote_product(product, quantity)
    assert said in quote.text
    assert quote.context == {}


def test_order_takes_the_cart() -> None:
    order = call(sales, "place_order", quote_product().context, product="Hut lantern", price=49)
    order_id = order.context["order_id"]
    assert order_id in order.text
    assert order.context["cart"] == []
    assert order.context["orders"][order_id]["total"] == 49.0


def test_repeated_order_call_is_same_order() -> None:
    before = quote_product().context
    once = call(sales, "place_order", before)
    assert call(sales, "place_order", before) == once
    assert call(sales, "place_order", once.context).context == once.context
    other = call(sales, "place_order", before, call_id="call_2")
    assert other.context["order_id"] != once.context["order_id"]


@pytest.mark.parametrize("wrong", [{"product": "tent"}, {"price": 40.0}, {"product": "lantern", "price": 24.5}])
def test_order_differing_from_quote_refused(wrong: dict[str, Any]) -> None:
    before = quote_product().context
    order = call(sales, "place_order", before, **wrong)
    assert "Nothing was ordered" in order.text
    assert order.context == before


def test_an_empty_cart_is_not_ordered() -> None:
    assert call(sales, "place_order").context == {}


def test_item_looked_up_before_refund() -> None:
    assert call(issues_and_repairs, "look_up_item", search_query="gas stove").json()["found"][0]["item_id"] == "STOVE-3"


def test_refund_recorded_once_with_reason() -> None:
    refund = call(issues_and_repairs, "execute_refund", item_id="STOVE-3", reason="it leaks")
    refund_id = refund.context["refund_id"]
    assert refund.context["refunds"] == {refund_id: {"item_id": "STOVE-3", "amount": 59.0, "reason": "it leaks"}}
    again = call(issues_and_repairs, "execute_refund", refund.context, call_id="call_2", item_id="STOVE-3")
    assert "already" in again.text
    assert again.context == refund.context


@pytest.mark.parametrize(("function", "more"), [("execute_refund", {}), ("book_repair", {"problem": "out of tune"})])
def test_an_unknown_item_changes_nothing(function: str, more: dict[str, Any]) -> None:
    answer = call(issues_and_repairs, function, item_id="PIANO-1", **more)
    assert "PIANO-1" in answer.text
    assert answer.context == {}


def test_repair_booked_under_a_number() -> None:
    repair = call(issues_and_repairs, "book_repair", item_id="LAMP-1", problem="the switch sticks")
    assert repair.context["repair_id"] in repair.text
    assert repair.context["repairs"][repair.context["repair_id"]]["problem"] == "the switch sticks"


@pytest.mark.parametrize("agent", [triage, sales, issues_and_repairs], ids=lambda agent: agent.name)
def test_escalation_opens_ticket_and_hands_over(agent: Agent) -> None:
    opened = call(agent, "escalate_to_human", {"user_name": "Ada"}, summary="Three weeks late.")
    ticket_id = opened.context["ticket_id"]
    assert opened.agent is escalation
    assert ticket_id in opened.text
    assert ticket_id in str(escalation.render_instructions(opened.context))
    noted = call(escalation, "add_note_to_ticket", opened.context, note="Call in the morning.")
    ticket = call(escalation, "check_ticket", noted.context).json()
    assert (ticket["summary"], ticket["notes"]) == ("Three weeks late.", ["Call in the morning."])


def test_no_ticket_to_read_or_extend() -> None:
    assert "No ticket" in call(escalation, "check_ticket").text
    assert call(escalation, "add_note_to_ticket", note="Hello?").context == {}


def test_triage_knows_the_given_name() -> None:
    assert "Ada" in str(triage.render_instructions({"user_name": "Ada"}))
