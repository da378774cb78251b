"""Agents whose answers are of a certain form."""

from __future__ import annotations

from pydantic import BaseModel

from swarmkeep import Agent


class Order(BaseModel):
    sku: str


clerk = Agent(name="Clerk", output_type=Order, output_mode="tool")
typist = Agent(name="Typist", output_type=Order)
