"""Calls of an agent's functions as the loop makes them: JSON arguments in, text and changed context out."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from typing import Any

from swarmkeep import Agent
from swarmkeep.agent import to_plain_json, to_result


@dataclass(frozen=True)
class CallResult:
    """What a call gave back; `context` is that after the call."""

    text: str
    agent: Agent | None
    context: dict[str, Any]

    def json(self) -> Any:
        return json.loads(self.text)


def call(
    agent: Agent, function: str, context: dict[str, Any] | None = None, *, call_id: str = "call_1", **arguments: Any
) -> CallResult:
    """Call one of an agent's functions. `context` stays as it was: the functions under test change nothing in place."""
    given = copy.deepcopy(context or {})
    made = agent.tools()[function].bind(json.dumps(arguments), context_variables=given, tool_call_id=call_id)
    result = to_result(made())
    assert given == (context or {})
    after = to_plain_json({**given, **result.context_variables})
    assert isinstance(after, dict)
    return CallResult(result.value, result.agent, after)
