"""`swarmkeep agents`: the agents themselves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from swarmkeep.cli.agent_graph import GraphAgent, GraphFunction, format_mermaid, format_text
from swarmkeep.cli.completing import complete_agent
from swarmkeep.cli.options import Agents, Commands, JsonOutput
from swarmkeep.cli.output import write_atomically
from swarmkeep.cli.sources import ServerOptions, to_client
from swarmkeep.cli.terminal import put, put_json

if TYPE_CHECKING:
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
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here instead of standard output.")
    ] = None,
    as_json: JsonOutput = False,
) -> None:
    """Show who can hand over to whom, and ask whom; which functions each agent has, and which of them need approval.

    The agents are those of --agents, or the server's when --url is given without them. Sessions begin with the first
    agent.
    """
    if as_json and (form != "text" or output is not None):
        raise typer.BadParameter("it cannot be combined with --format or --output", param_hint="'--json'")
    team = _load_here(agents) if agents or where.server_url is None else _load_from_server(where)
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
    import msgspec

    from swarmkeep.cli.render import format_agent

    here = agents or where.server_url is None
    found = _find_here(agents, name) if here else _find_on_server(where, name)
    if as_json:
        put_json(msgspec.to_builtins(found))
    else:
        put("\n".join(format_agent(found)))


def _find_here(agents: list[str] | None, name: str) -> AgentInfo:

    from swarmkeep.cli.configure import load_agents, load_settings
    from swarmkeep.runs.agent_views import view_agent
    from swarmkeep_client import AgentInfo

    settings = load_settings(agents=agents)
    registry = load_agents(settings)
    view = view_agent(registry, registry.get(name), is_offline=settings.offline)
    return to_client(view, AgentInfo)


def _find_on_server(where: ServerOptions, name: str) -> AgentInfo:
    from swarmkeep.cli.server_source import reach_server

    with reach_server(where) as client:
        return client.agents.get(name)


def _format(team: list[GraphAgent], form: str) -> list[str]:
    if form == "svg":
        from swarmkeep.cli.agent_graph import format_svg

        return list(format_svg(team))
    return list(format_mermaid(team) if form == "mermaid" else format_text(team))


def _load_here(agents: list[str] | None) -> list[GraphAgent]:
    from swarmkeep.cli.configure import load_settings
    from swarmkeep.runs.agents import load_registry

    registry = load_registry(load_settings(agents=agents).agents)
    return [
        GraphAgent(
            agent.name,
            tuple(GraphFunction(name, tool.requires_approval) for name, tool in agent.tools().items()),
            tuple(registry.list_handoffs(agent)),
            registry.list_asked(agent),
            tuple(server.name for server in agent.mcp_servers),
        )
        for agent in registry
    ]


def _load_from_server(where: ServerOptions) -> list[GraphAgent]:
    from swarmkeep.cli.server_source import reach_server

    with reach_server(where) as client:
        return [
            GraphAgent(
                agent.name,
                tuple(
                    GraphFunction(name, name in agent.approvals)
                    for name in (str(tool["function"]["name"]) for tool in agent.tools)
                ),
                tuple(agent.handoffs),
                agent.asks,
                tuple(server.name for server in agent.mcp_servers),
            )
            for agent in client.agents.list()
        ]
