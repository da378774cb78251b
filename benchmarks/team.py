"""The agents that are measured, and the histories they are given."""

from __future__ import annotations

from typing import Any

from swarmkeep import Agent, function_schema

INSTRUCTIONS = "You are a clerk who answers questions about orders, briefly and politely. " * 4


def look_up_order(order_id: str) -> str:
    """Look up an order by its number.

    Args:
        order_id: the number on the receipt
    """
    return f"Order {order_id} was sent on Friday."


plain = Agent(name="Plain", model="stub", instructions=INSTRUCTIONS)
clerk = Agent(name="Clerk", model="stub", instructions=INSTRUCTIONS, functions=[look_up_order])

TOOL = function_schema(look_up_order)
system = {"role": "system", "content": INSTRUCTIONS}


def make_history(count: int) -> list[dict[str, Any]]:
    """`count` messages of an ordinary length, questions and answers in turn."""
    texts = ("Where is my order number {n}? It should have been here last week.", "Order {n} was sent. " * 6)
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": texts[n % 2].format(n=n)} for n in range(count)]
