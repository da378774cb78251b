"""Guardrails: what may be said to an agent, what it may do, and what it may say itself."""

from typing import Any

from swarmkeep import Agent, Refusal, tool

MOST_DIGITS = 11
MOST_POINTS = 100
NOTES = {"ann": "Ann likes tents. Internal: pays late.", "ben": "Ben likes boots."}


def refuse_card_numbers(messages: list[dict[str, Any]], context_variables: dict[str, Any]) -> Refusal | None:
    digits = max(sum(character.isdigit() for character in str(message["content"])) for message in messages)
    return Refusal("Please do not write card numbers here.") if digits > MOST_DIGITS else None


def refuse_many_points(call: dict[str, Any], context_variables: dict[str, Any]) -> Refusal | None:
    return Refusal(f"At most {MOST_POINTS} at once.") if call["arguments"]["points"] > MOST_POINTS else None


def keep_internal(text: str, context_variables: dict[str, Any]) -> Refusal | None:
    return Refusal("I had better not repeat that.") if "internal" in text.lower() else None


@tool(guardrails=[refuse_many_points])
def give_points(points: int, context_variables: dict[str, Any]) -> str:
    """Give the customer points as a present.

    Args:
        points: How many.
    """
    context_variables["points"] = context_variables.get("points", 0) + points
    return f"{points} points are given."


def look_up_customer(name: str) -> str:
    """Look up what is written down about a customer.

    Args:
        name: What the customer is called.
    """
    return NOTES.get(name.lower(), f"Nothing is written down about {name}.")


discreet_agent = Agent(
    name="Discreet Agent",
    instructions="You look customers up, and give them points.",
    functions=[give_points, look_up_customer],
    input_guardrails=[refuse_card_numbers],
    output_guardrails=[keep_internal],
)
