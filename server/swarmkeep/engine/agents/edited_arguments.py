"""Arguments of calls that whoever approved them has changed, checked as a model's are: before any of it counts."""

from __future__ import annotations

from collections.abc import Sequence

from swarmkeep.agent import FunctionSchemaError, InvalidFunctionError, Tool, ToolArgumentsError
from swarmkeep.domain.checking.inputs import check_object
from swarmkeep.domain.codec import encode_text
from swarmkeep.domain.decisions.resuming import Approval
from swarmkeep.domain.decisions.sizes import SizeLimits
from swarmkeep.domain.errors import InvalidRequest
from swarmkeep.domain.state import State, ToolCall
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.agents.server_tools import list_server_tools


def check_sizes(approvals: Sequence[Approval], sizes: SizeLimits) -> None:
    """Raises InvalidRequest and TooLarge."""
    for place, approval in enumerate(approvals):
        if approval.arguments is not None:
            pointer = f"/approvals/{place}/arguments"
            sizes.check_content(encode_text(check_object(approval.arguments, pointer)), pointer)


def check_arguments(registry: Registry, state: State, approvals: Sequence[Approval]) -> None:
    """Whether the functions take them. A call that is not open is refused elsewhere.

    Raises InvalidRequest and AgentUnavailable.
    """
    calls = {} if state.run is None else {call.id: call for call in state.run.open_calls}
    for place, approval in enumerate(approvals):
        call = calls.get(approval.tool_call_id)
        if approval.arguments is None or call is None:
            continue
        pointer = f"/approvals/{place}/arguments"
        tool = _find_tool(registry, state, call)
        if tool is None:
            raise InvalidRequest(f"there is no function {call.name!r} to check the arguments with", pointer)
        try:
            tool.bind(encode_text(approval.arguments), context_variables=state.context_variables, tool_call_id=call.id)
        except ToolArgumentsError as error:
            raise InvalidRequest(str(error), pointer) from error


def _find_tool(registry: Registry, state: State, call: ToolCall) -> Tool | None:
    agent = registry.get_active(call.agent or state.agent)
    try:
        own = agent.tools().get(call.name)
        others = () if own is not None or not agent.mcp_servers else list_server_tools(agent, state)
        return own or next((tool for tool in others if tool.name == call.name), None)
    except (FunctionSchemaError, InvalidFunctionError):
        return None
