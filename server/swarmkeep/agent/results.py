"""The values that a function and a run give back: Result and Response."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from swarmkeep.agent.agents import Agent
from swarmkeep.agent.values import to_text


class Result(BaseModel):
    """What a function returns to do more than answer: hand over to `agent`, update the context variables.

    `value` is kept as the text that the model reads: dict, list, pydantic model and dataclass as JSON, anything
    else as `str(value)`. `context_variables` are merged into the session's.
    """

    model_config = ConfigDict(validate_assignment=True)

    value: str = ""
    agent: Agent | None = None
    context_variables: dict[Any, Any] = {}

    def __init__(
        self,
        value: object = "",
        agent: Agent | None = None,
        context_variables: dict[Any, Any] | None = None,
        **fields: Any,
    ) -> None:
        """Raises NotJsonError if `value` holds something that JSON cannot; `fields` are a subclass's own."""
        super().__init__(
            value=to_text(value),
            agent=agent,
            context_variables={} if context_variables is None else context_variables,
            **fields,
        )

    @field_validator("value", mode="before")
    @classmethod
    def _convert_value(cls, value: object) -> str:
        return to_text(value)


class Response(BaseModel):
    """What a run gives back: its new messages, the agent that is active now, the context variables."""

    messages: list[dict[str, Any]] = []
    agent: Agent | None = None
    context_variables: dict[str, Any] = {}


def to_result(value: object) -> Result:
    """What a function returned, as a Result.

    An Agent is a handoff to it. An object with a Result's three attributes, such as another library's Result,
    counts as one. Raises NotJsonError, and nothing else, if the value has no text.
    """
    if isinstance(value, Result):
        return value
    if isinstance(value, Agent):
        return Result(value=json.dumps({"assistant": value.name}, ensure_ascii=False), agent=value)
    parts = _read_result_parts(value)
    return Result(value) if parts is None else Result(*parts)


def _read_result_parts(value: Any) -> tuple[object, Agent | None, dict[Any, Any]] | None:
    try:
        text, agent, context_variables = value.value, value.agent, value.context_variables
    except Exception:  # it lacks one, or reading it fails: then it is a value like any other
        return None
    if isinstance(context_variables, dict) and (agent is None or isinstance(agent, Agent)):
        return text, agent, context_variables
    return None
