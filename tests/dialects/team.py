"""The agents of the conversation that is held in every dialect. Every effect goes to a file.

Served by path, so it imports nothing of the tests.
"""

from __future__ import annotations

import json
import os
from typing import Any

from pydantic import BaseModel

from swarmkeep import Agent


def record(name: str, **arguments: Any) -> None:
    with open(os.environ["DIALECT_EFFECTS"], "a", encoding="utf-8") as file:
        file.write(json.dumps([name, arguments]) + "\n")


def get_weather(city: str = "everywhere", unit: str = "C") -> str:
    """The weather in a city."""
    record("get_weather", city=city, unit=unit)
    return f"sunny in {city}"


def transfer_to_refunds() -> Agent:
    """Hand over when the customer wants money back."""
    record("transfer_to_refunds")
    return refunds


def refund(order: str = "all", amount: float = 1000.0) -> str:
    """Pay an order back."""
    record("refund", order=order, amount=amount)
    return f"refunded {order}"


def transfer_to_triage() -> Agent:
    """Hand back when nothing is left to refund."""
    record("transfer_to_triage")
    return triage


triage = Agent(name="Triage", instructions="Find out what is wrong.", functions=[get_weather, transfer_to_refunds])
refunds = Agent(name="Refunds", instructions="Pay money back.", functions=[refund, transfer_to_triage])
AGENTS = [triage, refunds]


class Form(BaseModel):
    """An answer of a certain form."""

    city: str
    degrees: int


def greet(context_variables: dict[str, Any]) -> str:
    return f"Greet {context_variables['name'] or 'them'} – in “typographic” quotes, with a tab\t and a line.\n"


picky = Agent(
    name="Picky",
    instructions=greet,
    functions=[get_weather],
    tool_choice="auto",
    parallel_tool_calls=False,
    model_settings={
        "temperature": 0.2,
        "max_tokens": 99,
        "seed": 7,
        "stop": ["x"],
        "extra_body": {"logit_bias": {"50256": -100}},
    },
)
formal = Agent(name="Formal", instructions="Fill in the form.", output_type=Form)
AGENTS += [picky, formal]


def cancel_orders(which: str = "all") -> str:
    """Cancel an order."""
    record("cancel_orders", which=which)
    return f"canceled {which}"


def get_time(city: str = "here") -> str:
    """The time in a city."""
    record("get_time", city=city)
    return f"noon in {city}"


clerk = Agent(name="Clerk", instructions="Do it.", functions=[cancel_orders, get_time, get_weather])
AGENTS.append(clerk)
