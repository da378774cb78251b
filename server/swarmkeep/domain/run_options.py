"""How a run was asked for."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.domain.codec import Json

# Of a JSON schema, what may say that an object has keys.
_KEYS = ("properties", "required", "additionalProperties", "patternProperties", "$ref", "anyOf", "oneOf", "allOf")


def has_parameters(schema: Json) -> bool:
    """Return whether a function whose parameters have this JSON schema can be given any."""
    return any(schema.get(key) for key in _KEYS)


class CallerFunction(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str | UnsetType = UNSET
    parameters: Json | UnsetType = UNSET
    strict: bool | UnsetType | None = UNSET


class CallerTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function of whoever asks for a run, as Chat Completions describes it: offered to the model, never run here."""

    type: Literal["function"] = "function"
    function: CallerFunction


NOT_ASKED = frozenset({"stream", "loop_turns", "history_turns", "request"})
"""Options that another run like one does not take over: how its caller followed it, the limits of its server, and what
OpenAI's API shows again, which names the session. The page has the same list in `opening.js`."""


class RunOptions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a run was asked for, and the limits that hold for it; None is without limit.

    `max_turns` counts model calls. After `loop_turns` turns in a circle the run ends. A model is sent the last
    `history_turns` turns. `tools` are functions of whoever asks; `tool_choice` and `parallel_tool_calls` go before the
    agent's, and null sends none of the latter. `model_settings` and `model_profile` go over the agent's, name by name,
    and null takes a setting out; `instructions` follow the agent's own; `response_format` stands in for what agents say
    of their output. `request` is what else was asked for, kept to be shown again.
    """

    max_turns: int | None = None
    model: str | None = None
    execute_tools: bool = True
    stream: bool = False
    loop_turns: int | None = None
    history_turns: int | None = None
    tools: tuple[CallerTool, ...] | UnsetType = UNSET
    tool_choice: str | Json | UnsetType = UNSET
    parallel_tool_calls: bool | UnsetType | None = UNSET
    model_settings: Json | UnsetType = UNSET
    model_profile: Json | UnsetType = UNSET
    instructions: str | UnsetType = UNSET
    response_format: Json | UnsetType = UNSET
    request: Json | UnsetType = UNSET

    def list_asked(self) -> Json:
        """What a caller asked for, as the body of another run has it: every option but those in `NOT_ASKED`."""
        options: Json = msgspec.to_builtins(self)
        return {name: value for name, value in options.items() if name not in NOT_ASKED and value is not None}

    @property
    def caller_tools(self) -> tuple[CallerTool, ...]:
        return () if self.tools is UNSET else self.tools

    @property
    def bare_tool_names(self) -> frozenset[str]:
        """The caller's functions without parameters."""
        return frozenset(
            tool.function.name for tool in self.caller_tools if not has_parameters(tool.function.parameters or {})
        )

    @property
    def caller_tool_names(self) -> frozenset[str]:
        """The functions whose calls are not carried out here."""
        return frozenset(tool.function.name for tool in self.caller_tools)
