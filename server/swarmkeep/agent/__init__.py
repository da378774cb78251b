"""The words a routine is written in: Agent, Result, Response, tool, function_schema."""

from swarmkeep.agent.agents import Agent, AgentFunction
from swarmkeep.agent.compaction import Compaction
from swarmkeep.agent.errors import (
    FunctionSchemaError,
    InvalidFunctionError,
    NotJsonError,
    ToolArgumentsError,
)
from swarmkeep.agent.guardrails import Guardrail, Refusal
from swarmkeep.agent.hints import ToolCallId
from swarmkeep.agent.mcp_servers import MCPServer
from swarmkeep.agent.options import tool
from swarmkeep.agent.results import File, Response, Result, ToolFailed, to_result
from swarmkeep.agent.schema import function_schema
from swarmkeep.agent.tools import Tool
from swarmkeep.agent.values import to_plain_json

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
