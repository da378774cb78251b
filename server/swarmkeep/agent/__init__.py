"""The words a routine is written in: Agent, Result, Response, tool, function_schema."""

from __future__ import annotations

from swarmkeep.agent.agents import Agent, AgentFunction, Compaction, File, Response, Result, ToolFailed, to_result
from swarmkeep.agent.guardrails import Guardrail, Refusal
from swarmkeep.agent.mcp_servers import MCPServer
from swarmkeep.agent.schema import ToolCallId, function_schema
from swarmkeep.agent.tools import Tool, tool
from swarmkeep.agent.values import (
    FunctionSchemaError,
    InvalidFunctionError,
    NotJsonError,
    ToolArgumentsError,
    to_plain_json,
)

__all__ = [
    "Agent",
    "AgentFunction",
    "Compaction",
    "File",
    "FunctionSchemaError",
    "Guardrail",
    "InvalidFunctionError",
    "MCPServer",
    "NotJsonError",
    "Refusal",
    "Response",
    "Result",
    "Tool",
    "ToolArgumentsError",
    "ToolCallId",
    "ToolFailed",
    "function_schema",
    "to_plain_json",
    "to_result",
    "tool",
]
