"""Rules of today's agents for calls: which need a person's approval, until when, and which start together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime, timedelta

from swarmkeep.agent import Agent, FunctionSchemaError, InvalidFunctionError, Tool, ToolArgumentsError
from swarmkeep.agent.output import OUTPUT_TOOL
from swarmkeep.decide.checks import check_object
from swarmkeep.decide.commands import Approval
from swarmkeep.decide.settle import Approvals
from swarmkeep.decide.turns import MAX_AT_ONCE, find_batch
from swarmkeep.events.codec import encode_text, to_timestamp
from swarmkeep.events.errors import InvalidRequest, quote
from swarmkeep.events.records import RunOptions
from swarmkeep.events.sizes import SizeLimits
from swarmkeep.events.state import Run, State, ToolCall
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.toolbox import list_server_tools


class ApprovalRules:
    """The approvals that a server asks for. `read_clock` gives the time that requests expire by: every server's."""

    def __init__(
        self,
        registry: Registry,
        read_clock: Callable[[], Awaitable[datetime]],
        approval_seconds: float | None,
        max_calls: int = MAX_AT_ONCE,
    ) -> None:
        self._registry = registry
        self._read_clock = read_clock
        self._approval_seconds = approval_seconds
        self._max_calls = max_calls

    def make_approvals(self, expires_at: str | None) -> Approvals:
        return make_approvals(self._registry, expires_at, self._max_calls)

    def asks_agent(self, state: State, call: ToolCall) -> bool:
        """Tell if a call is to be answered by another agent."""
        name = call.agent or state.agent
        agent = self._registry.get_active(name) if name in self._registry else None
        tool = None if agent is None else _find_tools(agent).get(call.name)
        return tool is not None and tool.asked_agent is not None

    async def expires_at(self) -> str | None:
        """Until when a request made now may be answered; None is for ever."""
        if self._approval_seconds is None:
            return None
        return to_timestamp(await self._read_clock() + timedelta(seconds=self._approval_seconds))


def make_approvals(registry: Registry, expires_at: str | None = None, max_calls: int = MAX_AT_ONCE) -> Approvals:
    """Collect the approvals that a registry's agents ask for: the one that asked for the calls, and the active one."""

    def find_guarded(state: State) -> Collection[str]:
        names = {state.agent, _find_asking_agent(state)}
        agents = [registry.get_active(name) for name in names if name in registry]
        return {name for agent in agents for name in _find_guarded_tools(agent, state)}

    def find_bare(state: State) -> Collection[str]:
        name = _find_asking_agent(state) or state.agent
        tools = _find_tools(registry.get_active(name)) if name in registry else {}
        return {name for name, tool in tools.items() if not tool.has_parameters}

    def find_calls(state: State, run: Run) -> Sequence[ToolCall]:
        concurrent = find_concurrent_tools(registry, state, run)
        return find_batch(run, concurrent, find_guarded(state), max_calls=max_calls) if concurrent else ()

    return Approvals(find_guarded=find_guarded, find_bare=find_bare, expires_at=expires_at, find_batch=find_calls)


def find_concurrent_tools(registry: Registry, state: State, run: Run) -> Collection[str]:
    """The functions, of the agent that asked for the open calls, whose calls may run beside one another."""
    name = next((call.agent for call in run.own_open_calls if call.agent), state.agent)
    return list_concurrent_tools(registry.get_active(name)) if name in registry else ()


def list_concurrent_tools(agent: Agent) -> list[str]:
    if not agent.concurrent_tools:
        return []
    try:
        return [name for name, tool in agent.tools().items() if tool.concurrent]
    except (FunctionSchemaError, InvalidFunctionError):
        return []


def _find_guarded_tools(agent: Agent, state: State) -> Collection[str]:
    own = {name for name, tool in _find_tools(agent).items() if tool.requires_approval}
    if not agent.mcp_servers:
        return own
    try:
        return own | {tool.name for tool in list_server_tools(agent, state) if tool.requires_approval}
    except (FunctionSchemaError, InvalidFunctionError):
        return own


def _find_tools(agent: Agent) -> dict[str, Tool]:
    try:
        return agent.tools()
    except (FunctionSchemaError, InvalidFunctionError):
        # None of its functions can be called.
        return {}


def _find_asking_agent(state: State) -> str:
    """The sender of the reply whose calls the active run carries out."""
    for entry in reversed(state.messages):
        if entry.role == "assistant":
            return str(entry.message.get("sender", ""))
    return ""


# Check the functions of a run's caller: they must not be taken for the agents', and what is chosen is there.

_NAMED_OWNERS = 5


def refuse_wrong_functions(options: RunOptions, registry: Registry) -> None:
    """Raise InvalidRequest for a function that has the name of one of any agent, whichever is asked in the end; and
    for a choice of one that does not exist, which no model could be held to.
    """
    chosen = _list_chosen(options.tool_choice)
    if not options.caller_tools and not chosen:
        return
    owners: dict[str, list[str]] = {}
    for agent in registry:
        for name in _list_names(registry, agent.name):
            owners.setdefault(name, []).append(agent.name)
    _refuse_taken_names(options, owners)
    # What tools their servers have is known when they are asked.
    if not any(agent.mcp_servers for agent in registry):
        _refuse_missing(chosen, {*owners, *options.caller_tool_names})


def _refuse_taken_names(options: RunOptions, owners: dict[str, list[str]]) -> None:
    for place, tool in enumerate(options.caller_tools):
        found = owners.get(tool.function.name)
        if found is not None:
            raise InvalidRequest(
                f"{_describe_owners(found)} a function {tool.function.name!r} already; choose another name",
                f"/tools/{place}",
            )


def _describe_owners(agents: list[str]) -> str:
    """Those that have a function, as the beginning of a sentence about it."""
    named = ", ".join(map(repr, agents[:_NAMED_OWNERS]))
    more = f" and {len(agents) - _NAMED_OWNERS} more" if len(agents) > _NAMED_OWNERS else ""
    return f"the agent {named} has" if len(agents) == 1 else f"the agents {named}{more} have"


def _refuse_missing(chosen: list[str], names: set[str]) -> None:
    missing = next((name for name in chosen if name not in names), None)
    if missing is not None:
        raise InvalidRequest(
            f"there is no function {quote(missing)} to choose, neither in `tools` nor of an agent", "/tool_choice"
        )


def _list_chosen(choice: object) -> list[str]:
    """The functions that a choice names."""
    match choice:
        case {"type": "function", "function": {"name": str(name)}}:
            return [name]
        case {"type": "allowed_tools", "allowed_tools": {"tools": list(tools)}}:
            return [name for tool in tools for name in _list_chosen(tool)]
        case _:
            return []


def _list_names(registry: Registry, agent: str) -> list[str]:
    found = registry.get(agent)
    takes_output = [OUTPUT_TOOL] if found.output_type is not None and found.output_mode == "tool" else []
    try:
        return [*found.tools(), *takes_output]
    except (FunctionSchemaError, InvalidFunctionError):
        # None of its functions can be called.
        return []


# Check arguments that an approver has changed like a model's: before any of it counts.


def check_sizes(approvals: Sequence[Approval], sizes: SizeLimits) -> None:
    """Raises InvalidRequest and TooLarge."""
    for place, approval in enumerate(approvals):
        if approval.arguments is not None:
            pointer = f"/approvals/{place}/arguments"
            sizes.check_content(encode_text(check_object(approval.arguments, pointer)), pointer)


def check_arguments(registry: Registry, state: State, approvals: Sequence[Approval]) -> None:
    """Check that the functions take them. A call that is not open is refused elsewhere.

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
