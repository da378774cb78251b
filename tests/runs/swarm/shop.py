"""A triage that hands over to sales or to refunds, and the text of a stream."""

from __future__ import annotations

from swarmkeep import Agent, Result
from swarmkeep.events.codec import Json


def make_refunds_and_sales() -> tuple[Agent, Agent, Agent]:
    def to_sales() -> Agent:
        return sales

    def to_refunds() -> Result:
        return Result("Transferred to Refunds.", agent=refunds, context_variables={"department": "refunds"})

    sales = Agent(name="Sales", instructions="Sell.")
    refunds = Agent(name="Refunds", instructions="Refund.", model="careful")
    triage = Agent(name="Triage", functions=[to_sales, to_refunds])
    return triage, sales, refunds


def join_texts(frames: list[Json]) -> str:
    return "".join(frame.get("content") or "" for frame in frames)
