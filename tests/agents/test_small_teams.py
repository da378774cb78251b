"""The functions of basic, triage and weather."""

from __future__ import annotations

from typing import Any

import pytest

from swarmkeep_agents.basic import distance_agent, english_agent, notebook_agent, spanish_agent
from swarmkeep_agents.basic.files import draw_bar, paint_bar
from swarmkeep_agents.triage import BOOKS, refunds_agent, sales_agent, triage_agent
from swarmkeep_agents.weather import weather_agent
from tests.agents.calls import call


def test_distances_are_converted_both_ways() -> None:
    assert "16.09 kilometres" in call(distance_agent, "convert_distance", distance=10, unit="miles").text
    assert "6.21 miles" in call(distance_agent, "convert_distance", distance=10, unit="kilometres").text


@pytest.mark.parametrize(("percent", "shown"), [(0, 0), (30, 30), (120, 100), (-5, 0)])
def test_bar_drawn_within_bounds(percent: int, shown: int) -> None:
    drawn = draw_bar(percent)
    (picture,) = drawn.files
    assert (drawn.value, picture.data) == (f"A bar of {shown} percent.", paint_bar(shown))


def test_languages_hand_over_to_each_other() -> None:
    assert call(english_agent, "transfer_to_spanish_agent").agent is spanish_agent
    assert call(spanish_agent, "transfer_to_english_agent").agent is english_agent


def test_the_notebook_is_kept_in_context() -> None:
    named = call(notebook_agent, "remember_name", name="Ada").context
    noted = call(notebook_agent, "write_note", named, note="buy milk").context
    assert call(notebook_agent, "read_notebook", noted).json() == {"user_name": "Ada", "notes": ["buy milk"]}
    assert "Ada" in str(notebook_agent.render_instructions(noted))


def test_triage_and_specialists_hand_over() -> None:
    assert call(triage_agent, "transfer_to_sales").agent is sales_agent
    assert call(triage_agent, "transfer_to_refunds").agent is refunds_agent
    assert call(sales_agent, "transfer_to_triage").agent is triage_agent
    assert call(refunds_agent, "transfer_to_triage").agent is triage_agent


@pytest.mark.parametrize("genre", list(BOOKS))
def test_every_recommended_book_can_be_ordered(genre: str) -> None:
    for title in call(sales_agent, "recommend_books", genre=genre).json()["books"]:
        order = call(sales_agent, "order_book", title=f"please, {title.upper()}")
        assert order.context["orders"][order.context["order_id"]]["title"] == title


def test_unstocked_book_is_not_ordered() -> None:
    order = call(sales_agent, "order_book", title="War and Peas")
    assert "War and Peas" in order.text
    assert order.context == {}


def test_an_order_is_refunded_once() -> None:
    ordered = call(sales_agent, "order_book", title="The Patient Onion").context
    refund = call(refunds_agent, "process_refund", ordered, order_id=ordered["order_id"], reason="a gift")
    order = refund.context["orders"][ordered["order_id"]]
    assert (order["status"], order["reason"]) == ("refunded", "a gift")
    again = call(refunds_agent, "process_refund", refund.context, order_id=ordered["order_id"], reason="again")
    assert "already" in again.text
    assert again.context == refund.context


def test_only_known_past_orders_refunded() -> None:
    assert call(refunds_agent, "process_refund", order_id="book-1001").context["orders"]["BOOK-1001"]["price"] == 15
    unknown = call(refunds_agent, "process_refund", order_id="BOOK-9")
    assert "BOOK-9" in unknown.text
    assert unknown.context == {}


@pytest.mark.parametrize(("amount", "context"), [(1, {"voucher": 1}), (10, {"voucher": 10}), (0, {}), (11, {})])
def test_a_voucher_has_its_limits(amount: int, context: dict[str, int]) -> None:
    assert call(refunds_agent, "offer_voucher", amount=amount).context == context


def test_weather_is_stable_and_marked_fictional() -> None:
    first = call(weather_agent, "get_weather", location="Oslo", time="tomorrow").json()
    assert call(weather_agent, "get_weather", location="Oslo", time="tomorrow").json() == first
    assert "made up" in first["source"]
    # Pinned, because a replay in another process or release has to find the same.
    assert call(weather_agent, "get_weather", location="Oslo").json() == {
        "location": "Oslo",
        "time": "now",
        "sky": "snowy",
        "celsius": 0,
        "source": "made up for this example",
    }


@pytest.mark.parametrize("location", ["Oslo", "São Paulo", "", "\ud800", "x" * 10_000])
def test_any_place_has_matching_weather(location: str) -> None:
    weather = call(weather_agent, "get_weather", location=location).json()
    assert weather["celsius"] <= 0 if weather["sky"] == "snowy" else weather["celsius"] > 0


def test_retried_email_call_sends_once() -> None:
    email: dict[str, Any] = {"recipient": "ana@example.com", "subject": "Sunday", "body": "Bring an umbrella."}
    once = call(weather_agent, "send_email", **email)
    assert list(once.context["outbox"].values()) == [email]
    assert call(weather_agent, "send_email", once.context, **email).context == once.context
    twice = call(weather_agent, "send_email", once.context, call_id="call_2", **email)
    assert len(twice.context["outbox"]) == 2
