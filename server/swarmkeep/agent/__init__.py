"""The words a routine is written in: Agent, Result, Response, tool, function_schema."""

from swarmkeep.agent.agents import Agent, AgentFunction
from swarmkeep.agent.errors import FunctionSchemaError, InvalidFunctionError, NotJsonError, ToolArgumentsError
from swarmkeep.agent.hints import ToolCallId
from swarmkeep.agent.options import tool
from swarmkeep.agent.results import Response, Result, to_result
from swarmkeep.agent.schema import function_schema
from swarmkeep.agent.tools import Tool
from swarmkeep.agent.values import to_plain_json

__all__ = [
    "Agent",
    "AgentFunction",
    "FunctionSchemaError",
    "InvalidFunctionError",
    "NotJsonError",
    "Response",
    "Result",
    "Tool",
    "ToolArgumentsError",
    "ToolCallId",
    "function_schema",
    "to_plain_json",
    "to_result",
    "tool",
]
