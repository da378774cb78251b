"""An agent with guardrails of each kind."""

from __future__ import annotations

import json
from typing import Any

from swarmkeep import Agent, Refusal, tool
from swarmkeep.guardrails import limit_length


def no_secrets(passing: Any, context_variables: dict[str, Any]) -> Refusal | None:
    return Refusal("Not here.") if "swordfish" in json.dumps(passing) else None


@tool(guardrails=[no_secrets])
def note(text: str) -> str:
    """Take a note."""
    return "noted"


def recall() -> str:
    """Recall the word."""
    return "It is swordfish."


guarded = Agent(
    name="Guarded",
    functions=[note, recall],
    input_guardrails=[limit_length(1000), no_secrets],
    output_guardrails=[no_secrets],
)
