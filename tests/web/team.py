"""The agents that the page's tests talk to."""

from __future__ import annotations

from base64 import b64decode
from typing import Any, Literal

from swarmkeep import Agent, File, Result, tool

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


def paint() -> Result:
    """Paint a picture of one pixel."""
    picture = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
    return Result("Done.", files=[File(b64decode(picture), "image/png", "one.png"), File(b"a,b", "text/csv", "a.csv")])


@tool(requires_approval=True)
def refund(order: str) -> str:
    """Pay an order back."""
    return f"refunded {order}"


@tool(requires_approval=True, summary="Pay {amount} to account {account}")
def pay(account: int, amount: int, how: Literal["bank", "cash"] | None = None, urgent: bool = False) -> str:
    """Pay somebody.

    Args:
        amount: In euros.
    """
    return f"paid {amount} to {account}"


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
till = Agent(name="Till", instructions="Pay.", functions=[pay])
counter = Agent(name="Counter", instructions="Ask.", functions=[front.as_tool("ask_front", "Ask the front desk.")])
painter = Agent(name="Painter", instructions="Paint.", functions=[paint])
