"""The agents that the page's tests talk to."""

from __future__ import annotations

from typing import Any

from swarmkeep import Agent, Result, tool

HOSTILE_NAME = "<img src=x onerror=alert(1)>"


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def read_page(url: str) -> str:
    """What somebody else's page says."""
    return '<script>alert(1)</script><img src=x onerror="alert(2)">'


def remember(key: str, value: str, context_variables: dict[str, Any]) -> Result:
    """Keep a value."""
    return Result(value="kept", context_variables={key: value})


@tool(requires_approval=True)
def refund(order: str) -> str:
    """Pay an order back."""
    return f"refunded {order}"


def transfer_to_sales() -> Agent:
    """Hand over to sales."""
    return sales


def transfer_to_stranger() -> Agent:
    """Hand over to somebody with an odd name."""
    return stranger


front = Agent(
    name="Front Desk",
    instructions="Help them.",
    functions=[get_weather, read_page, remember, refund, transfer_to_sales, transfer_to_stranger],
)
sales = Agent(name="Sales", instructions="Sell.")
stranger = Agent(name=HOSTILE_NAME, instructions="Be odd.")
