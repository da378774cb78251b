"""Show an agent to clients that list the served agents."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.agent import Agent, MCPServer
from swarmkeep.agent.guardrails import name_guardrail
from swarmkeep.events.codec import Json
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.approvals import list_concurrent_tools


class MCPServerView(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's MCP server: a program (`stdio`) or an address (`http`), without what may be secret. `tools`: only
    these of its tools are offered; null for all."""

    name: str
    transport: str
    address: str
    tools: list[str] | None
    prefix: str | None
    trust_hints: bool
    requires_approval: bool | list[str]
    scope: str


class AgentView(msgspec.Struct, frozen=True, kw_only=True):
    """An agent. `instructions` is null if a function makes them for each turn. With `offline`, the built-in offline
    model answers instead of `model`. `handoffs` names the agents that it can hand over to; `asks` those that it can
    ask, by function; `approvals` the functions that need an approval; `concurrent_tools` the functions that may run at
    the same time. Guardrails are listed by name, those of functions in `tool_guardrails`, by function. Tools of
    `mcp_servers` are not among `tools`: sessions record them."""

    name: str
    model: str
    offline: bool
    instructions: str | None
    tools: list[Json]
    handoffs: list[str]
    asks: dict[str, str]
    tool_choice: str | Json | None
    parallel_tool_calls: bool | None
    concurrent_tools: list[str]
    model_settings: Json
    model_profile: Json | UnsetType = UNSET
    output_schema: Json | None
    output_mode: str
    approvals: list[str]
    input_guardrails: list[str]
    output_guardrails: list[str]
    tool_guardrails: dict[str, list[str]]
    mcp_servers: list[MCPServerView]


def view_agent(registry: Registry, agent: Agent, *, is_offline: bool) -> AgentView:
    return AgentView(
        name=agent.name,
        model=registry.choose_model(agent),
        offline=is_offline,
        instructions=agent.instructions if isinstance(agent.instructions, str) else None,
        tools=agent.tool_schemas(),
        handoffs=registry.list_handoffs(agent),
        asks=registry.list_asked(agent),
        tool_choice=agent.tool_choice,
        parallel_tool_calls=agent.parallel_tool_calls,
        concurrent_tools=list_concurrent_tools(agent),
        model_settings=agent.model_settings,
        model_profile=dict(agent.model_profile) or UNSET,
        output_schema=None if (output := agent.output()) is None else output.schema,
        output_mode=agent.output_mode,
        approvals=[name for name, tool in agent.tools().items() if tool.requires_approval],
        input_guardrails=list(map(name_guardrail, agent.input_guardrails)),
        output_guardrails=list(map(name_guardrail, agent.output_guardrails)),
        tool_guardrails={
            name: list(map(name_guardrail, tool.guardrails)) for name, tool in agent.tools().items() if tool.guardrails
        },
        mcp_servers=list(map(_view_server, agent.mcp_servers)),
    )


def _view_server(server: MCPServer) -> MCPServerView:
    approval = server.requires_approval
    return MCPServerView(
        name=server.name,
        transport=server.kind,
        address=server.address,
        tools=None if server.tools is None else list(server.tools),
        prefix=server.prefix,
        trust_hints=server.trust_hints,
        requires_approval=approval if isinstance(approval, bool) else list(approval),
        scope=server.scope,
    )
