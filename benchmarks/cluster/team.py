"""The agents of the cluster: one of them has a function that must not happen twice, and notes each start."""

from __future__ import annotations

import os

from benchmarks.team import INSTRUCTIONS
from swarmkeep import Agent, ToolCallId


def look_up_order(order_id: str, tool_call_id: ToolCallId) -> str:
    """Look up an order by its number.

    Args:
        order_id: the number on the receipt
    """
    file = os.open(os.environ["CLUSTER_EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{tool_call_id}\n".encode())
        os.fsync(file)
    finally:
        os.close(file)
    return f"Order {order_id} was sent on Friday."


plain = Agent(name="Plain", model="stub", instructions=INSTRUCTIONS)
clerk = Agent(name="Clerk", model="stub", instructions=INSTRUCTIONS, functions=[look_up_order])
