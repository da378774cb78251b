"""`swarmkeep agents`: the agents themselves."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import typer

from swarmkeep.cli.agent_graph import GraphAgent, GraphFunction, format_mermaid, format_text
from swarmkeep.cli.completing import complete_agent
from swarmkeep.cli.configure import load_agents, load_settings
from swarmkeep.cli.options import Agents, Commands, JsonOutput, Output
from swarmkeep.cli.output import write_atomically
from swarmkeep.cli.sources import ServerOptions, to_client
from swarmkeep.cli.terminal import put, put_json
from swarmkeep_client import AgentInfo

commands = Commands()
group = commands.add_group(
    "agents",
    "Show the agents: who can hand over to whom, and the details of one.",
)


@group.add("""
    swarmkeep agents graph --agents swarmkeep_agents.acme
    swarmkeep agents graph --agents shop.py --format mermaid
    swarmkeep agents graph --url http://127.0.0.1:8000 --format svg --output team.svg
""")
def graph(
    where: ServerOptions,
    agents: Agents = None,
    form: Annotated[
        Literal["text", "mermaid", "svg"], typer.Option("--format", help="Text, a flow chart for Mermaid, or SVG.")
    ] = "text",
    output: Output = None,
    as_json: JsonOutput = False,
) -> None:
    """Show who can hand over to whom, and ask whom; which functions each agent has, and which of them need approval.

    The agents are those of --agents, or the server's when --url is given without them. Sessions begin with the first
    agent.
    """
    if as_json and (form != "text" or output is not None):
        raise typer.BadParameter("it cannot be combined with --format or --output", param_hint="'--json'")
    team = [_place_in_graph(agent) for agent in _load(where, agents)]
    if as_json:
        put_json(team)
        return
    lines = "\n".join(_format(team, form))
    if output is None:
        put(lines)
    else:
        write_atomically(output, [f"{lines}\n".encode()])


@group.add("""
    swarmkeep agents show Sales --agents swarmkeep_agents.acme
    swarmkeep agents show Sales --url http://127.0.0.1:8000 --json
""")
def show(
    where: ServerOptions,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The agent's name.", autocompletion=complete_agent)],
    agents: Agents = None,
    as_json: JsonOutput = False,
) -> None:
    """Show one agent: its model and settings, instructions, functions with their schemas and which need approval, MCP
    servers, handoffs, whom it asks, guardrails, and the form of its answers.

    The agents are those of --agents, or the server's when --url is given without them.
    """
    from swarmkeep.cli.render import format_agent

    (found,) = _load(where, agents, name)
    if as_json:
        put_json(msgspec.to_builtins(found))
    else:
        put("\n".join(format_agent(found)))


def _load(where: ServerOptions, agents: list[str] | None, name: str | None = None) -> list[AgentInfo]:
    """Load the agents, or the one that is named: of `--agents`, or of a server."""
    from swarmkeep.cli.server_source import reach_server
    from swarmkeep.runs.agent_views import view_agent

    if where.server_url is not None and not agents:
        with reach_server(where) as client:
            return [*client.agents.list()] if name is None else [client.agents.get(name)]
    settings = load_settings(agents=agents)
    registry = load_agents(settings)
    wanted = registry if name is None else [registry.get(name)]
    return [to_client(view_agent(registry, agent, is_offline=settings.offline), AgentInfo) for agent in wanted]


def _place_in_graph(agent: AgentInfo) -> GraphAgent:
    names = (str(tool["function"]["name"]) for tool in agent.tools)
    functions = tuple(GraphFunction(name, name in agent.approvals) for name in names)
    servers = tuple(server.name for server in agent.mcp_servers)
    return GraphAgent(agent.name, functions, tuple(agent.handoffs), agent.asks, servers)


def _format(team: list[GraphAgent], form: str) -> list[str]:
    if form == "svg":
        from swarmkeep.cli.agent_graph import format_svg

        return list(format_svg(team))
    return list(format_mermaid(team) if form == "mermaid" else format_text(team))
