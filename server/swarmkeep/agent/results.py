"""What a function and a run give back: Result, with its Files, or ToolFailed; and Response."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from swarmkeep.agent.agents import Agent
from swarmkeep.agent.values import to_text


@dataclass(frozen=True)
class File:
    """A picture, audio or any other file that a function gives. `media_type` is such as `image/png`."""

    data: bytes = field(repr=False)
    media_type: str
    name: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.data, bytes):
            raise TypeError(f"the data of a File are bytes, not {type(self.data).__name__}")
        if not isinstance(self.media_type, str) or not isinstance(self.name, str | None):
            raise TypeError("the media type of a File is a text, and so is its name")


class Result(BaseModel):
    """What a function returns to do more than answer: hand over to `agent`, update the context variables, give files.

    `value` is kept as the text that the model reads: dict, list, pydantic model and dataclass as JSON, anything
    else as `str(value)`. `context_variables` are merged into the session's.
    """

    model_config = ConfigDict(validate_assignment=True)

    value: str = ""
    agent: Agent | None = None
    context_variables: dict[Any, Any] = {}
    files: list[File] = []

    def __init__(
        self,
        value: object = "",
        agent: Agent | None = None,
        context_variables: dict[Any, Any] | None = None,
        files: Sequence[File] = (),
        **fields: Any,
    ) -> None:
        """Raises NotJsonError if `value` holds something that JSON cannot; `fields` are a subclass's own."""
        super().__init__(
            value=to_text(value),
            agent=agent,
            context_variables={} if context_variables is None else context_variables,
            files=list(files),
            **fields,
        )

    @field_validator("value", mode="before")
    @classmethod
    def _convert_value(cls, value: object) -> str:
        return to_text(value)


class ToolFailed(Exception):
    """A tool says itself that it failed, in words for the model to read. `files` are what it gave with them."""

    def __init__(self, text: str, files: Sequence[File] = ()) -> None:
        super().__init__(text)
        self.files = list(files)


class Response(BaseModel):
    """What a run gives back: its new messages, the agent that is active now, the context variables.

    `output` is the answer as the agent's `output_type` says, if it has one.
    """

    messages: list[dict[str, Any]] = []
    agent: Agent | None = None
    context_variables: dict[str, Any] = {}
    output: Any = None


def to_result(value: object) -> Result:
    """What a function returned, as a Result.

    An Agent is a handoff to it; a File, or a list of nothing but Files, is given as such. An object with the three
    attributes that a Result had first, such as another library's Result, counts as one. Raises NotJsonError, and
    nothing else, if the value has no text.
    """
    if isinstance(value, Result):
        return value
    if isinstance(value, Agent):
        return Result(value=json.dumps({"assistant": value.name}, ensure_ascii=False), agent=value)
    if isinstance(value, File):
        return Result(files=[value])
    if isinstance(value, list | tuple) and value and all(isinstance(item, File) for item in value):
        return Result(files=value)
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
