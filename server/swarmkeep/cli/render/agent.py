"""One agent as text: all that its model is told, and may do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from swarmkeep.cli.render.agent_graph import APPROVAL
from swarmkeep.domain.codec import Json, encode_text
from swarmkeep_client import AgentInfo, MCPServerInfo


def format_agent(agent: AgentInfo) -> Iterator[str]:
    yield agent.name
    yield f"  model: {agent.model}{', answered by the offline model' if agent.offline else ''}"
    if agent.instructions is None:
        yield "  instructions: from a function, for each turn"
    else:
        yield "  instructions:"
        yield from (f"    {line}".rstrip() for line in agent.instructions.splitlines())
    yield from _format_settings(agent)
    yield "  functions:" if agent.tools else "  functions: none"
    for tool in agent.tools:
        yield from _format_function(agent, tool["function"])
    yield f"  hands over to: {', '.join(map(str, agent.handoffs)) or 'nobody'}"
    yield from (f"  asks: {name}, by {function}" for function, name in agent.asks.items())
    for server in agent.mcp_servers:
        yield from _format_server(server)
    for what, names in (("input", agent.input_guardrails), ("output", agent.output_guardrails)):
        if names:
            yield f"  {what} guardrails: {', '.join(names)}"


def _format_settings(agent: AgentInfo) -> Iterator[str]:
    if agent.model_settings:
        yield f"  model settings: {encode_text(agent.model_settings)}"
    if agent.tool_choice is not None:
        yield f"  tool choice: {_show(agent.tool_choice)}"
    if not agent.parallel_tool_calls:
        yield "  one call per reply"
    if agent.output_schema is not None:
        how = "by calling final_output" if agent.output_mode == "tool" else "as its answer"
        yield f"  output, {how}: {encode_text(agent.output_schema)}"


def _format_function(agent: AgentInfo, function: Json) -> Iterator[str]:
    name = str(function.get("name"))
    notes = [APPROVAL] if name in agent.approvals else []
    notes += ["runs at the same time as others"] if name in agent.concurrent_tools else []
    notes += [f"guardrails: {', '.join(found)}"] if (found := agent.tool_guardrails.get(name)) else []
    yield f"    {name} ({'; '.join(notes)})" if notes else f"    {name}"
    yield from (f"      {line}".rstrip() for line in str(function.get("description") or "").splitlines())
    yield f"      {encode_text(function.get('parameters') or {})}"


def _format_server(server: MCPServerInfo) -> Iterator[str]:
    yield f"  MCP server {server.name}: {server.address}"
    yield f"    tools: {'all' if server.tools is None else ', '.join(server.tools)}"
    if server.prefix:
        yield f"    their names begin with {server.prefix}"
    approval = server.requires_approval
    if approval:
        yield f"    {APPROVAL}: {'all' if approval is True else ', '.join(approval)}"
    if server.trust_hints:
        yield "    its hints about its tools are trusted"
    if server.scope != "server":
        yield f"    one connection per {server.scope}"


def _show(value: Any) -> str:
    return value if isinstance(value, str) else encode_text(value)
