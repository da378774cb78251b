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
    """An agent's MCP server."""

    name: str
    """Its name."""
    transport: str
    """`stdio` for a program, `http` for an address."""
    address: str
    """The program or address, without what may be secret."""
    tools: list[str] | None
    """Only these of its tools are offered; null for all."""
    prefix: str | None
    """What its tools' names begin with, or null."""
    trust_hints: bool
    """True if what it says of its tools counts."""
    requires_approval: bool | list[str]
    """True if its tools need approvals, or which of them do."""
    scope: str
    """Who shares a connection."""


class AgentView(msgspec.Struct, frozen=True, kw_only=True):
    """An agent."""

    name: str
    """Its name."""
    model: str
    """Its model."""
    offline: bool
    """True if the built-in offline model answers instead."""
    instructions: str | None
    """Its instructions; null if a function makes them for each turn."""
    tools: list[Json]
    """The Chat Completions schemas of its functions. Tools of `mcp_servers` are not among them: sessions record
    those."""
    handoffs: list[str]
    """The agents that its functions mention."""
    asks: dict[str, str]
    """Those that it can ask, by function."""
    tool_choice: str | Json | None
    """As set on the agent."""
    parallel_tool_calls: bool | None
    """As set on the agent."""
    concurrent_tools: list[str]
    """The functions whose calls run at once."""
    model_settings: Json
    """As set on the agent."""
    model_profile: Json | UnsetType = UNSET
    """As set on the agent."""
    output_schema: Json | None
    """The JSON schema of its answers, or null."""
    output_mode: str
    """As set on the agent."""
    approvals: list[str]
    """The functions that need an approval."""
    summaries: dict[str, str] | UnsetType = UNSET
    """What calls of functions do, by function, with parameters in braces (`Refund {amount}`); absent without any."""
    input_guardrails: list[str]
    """Their names."""
    output_guardrails: list[str]
    """Their names."""
    tool_guardrails: dict[str, list[str]]
    """Those of functions, by function."""
    mcp_servers: list[MCPServerView]
    """Its MCP servers."""


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
        summaries={name: tool.summary for name, tool in agent.tools().items() if tool.summary} or UNSET,
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
