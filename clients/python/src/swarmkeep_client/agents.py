"""The agents that are served."""

from __future__ import annotations

from typing import Any

import msgspec

from swarmkeep_client.models import Json


class MCPServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server of an agent's: a program (`stdio`) or an address (`http`). `tools`: only these of its tools; None
    for all."""

    name: str
    transport: str = ""
    address: str = ""
    tools: list[str] | None = None
    prefix: str | None = None
    trust_hints: bool = False
    requires_approval: bool | list[str] = False
    scope: str = "server"


class AgentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that the server has. `tools` are Chat Completions schemas; `approvals` names those that run only
    once a person has approved; `asks` are the agents that it can ask, by the names of the functions that do so;
    `concurrent_tools` names those whose calls run at once. Tools of `mcp_servers` are not among `tools`. One that is
    `offline` is answered by the server's built-in offline model in the place of `model`. `instructions` is None where
    they are made for each turn. Guardrails are told by name, those of functions by the function's."""

    name: str
    model: str | None = None
    offline: bool = False
    tools: list[Json] = []
    handoffs: list[Any] = []
    approvals: list[str] = []
    asks: dict[str, str] = {}
    concurrent_tools: list[str] = []
    mcp_servers: list[MCPServerInfo] = []
    model_settings: Json = {}
    model_profile: Json = {}
    instructions: str | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = True
    output_schema: Json | None = None
    output_mode: str = "response_format"
    input_guardrails: list[str] = []
    output_guardrails: list[str] = []
    tool_guardrails: dict[str, list[str]] = {}
