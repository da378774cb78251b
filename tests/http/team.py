"""The agents that the tests' server serves."""

from __future__ import annotations

from typing import Any

from swarmkeep import Agent, Result, tool


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


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


def instructions(context_variables: dict[str, Any]) -> str:
    return f"Help {context_variables['name'] or 'them'}."


front = Agent(
    name="Front",
    instructions=instructions,
    functions=[get_weather, remember, refund, transfer_to_sales],
    parallel_tool_calls=False,
    model_settings={"temperature": 0.5},
)
sales = Agent(name="Sales / EU ☃", instructions="Sell.", model="sales-model")
