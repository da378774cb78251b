"""The input of runs: options, functions of the caller, results and decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

from swarmkeep_client.models import Json

OnBusy: TypeAlias = Literal["reject", "queue", "interrupt"]


class ToolResult(TypedDict):
    """The outside result of a tool call that a run waits for."""

    tool_call_id: str
    content: str
    is_error: NotRequired[bool]


class Approval(TypedDict):
    """A decision about a tool call that waits for one. `arguments` take the place of those that the model gave.

    `arguments_digest`: that of the pending call which was looked at; for another one ArgumentsChanged is raised.
    """

    tool_call_id: str
    decision: Literal["approve", "deny"]
    reason: NotRequired[str]
    arguments: NotRequired[Json]
    arguments_digest: NotRequired[str | None]


CallerTool: TypeAlias = Callable[..., Any] | Json
"""A function that is called here, or the Chat Completions schema of one that another program calls."""


class RunOptions(TypedDict, total=False):
    """Options of a run. The server decides those that are left out, or None.

    `context_variables` is a JSON merge patch applied first; `max_turns` counts model calls; without `execute_tools`
    the run waits for the results of its tool calls. `tools` are functions of yours, offered beside the agent's:
    `run` calls them here, in their turn, and answers by itself until the run ends; `tool_choice` is `auto`, `none`,
    `required`, or names a function. `model_settings` go over the agents' own (None takes one out), `model_profile`
    over what the server knows of its models; `instructions` follow the agents', `response_format` replaces their
    `output_type`. `on_busy` says what happens while another run is active: `reject` (SessionBusy), `queue`, or
    `interrupt` (that run is cancelled, what it produced stays).
    """

    agent: str | None
    context_variables: Json | None
    model: str | None
    max_turns: int | None
    execute_tools: bool | None
    tools: Sequence[CallerTool] | None
    tool_choice: str | Json | None
    parallel_tool_calls: bool | None
    model_settings: Json | None
    model_profile: Json | None
    instructions: str | None
    response_format: Json | None
    on_busy: OnBusy | None
    idempotency_key: str | None


class ResumeInput(TypedDict, total=False):
    """The input of a waiting run: results from outside, decisions, or both. With neither, it is tried again."""

    tool_results: Sequence[ToolResult] | None
    approvals: Sequence[Approval] | None
    idempotency_key: str | None
