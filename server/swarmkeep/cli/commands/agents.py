"""`swarmkeep agents`: the agents themselves."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
import typer

from swarmkeep.cli.completing import complete_agent
from swarmkeep.cli.configure import load_agents, load_settings
from swarmkeep.cli.options import Agents, Commands, JsonOutput, Output
from swarmkeep.cli.output import write_atomically
from swarmkeep.cli.sources import ServerOptions, to_client
from swarmkeep.cli.terminal import put, put_json
from swarmkeep.events.codec import Json, encode_text
from swarmkeep_client import AgentInfo, MCPServerInfo

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
        return list(format_svg(team))
    return list(format_mermaid(team) if form == "mermaid" else format_text(team))


# A team as a graph: who can hand over to whom, and ask whom, with which functions; as text, for Mermaid, and as SVG.

APPROVAL = "needs approval"


@dataclass(frozen=True)
class GraphFunction:
    name: str
    needs_approval: bool = False

    @property
    def label(self) -> str:
        return f"{self.name} ({APPROVAL})" if self.needs_approval else self.name


@dataclass(frozen=True)
class GraphAgent:
    """`handoffs` are the names of the agents that this one's functions may return, `asks` those of the agents that its
    functions ask, by the functions' names."""

    name: str
    functions: tuple[GraphFunction, ...] = ()
    handoffs: tuple[str, ...] = ()
    asks: Mapping[str, str] = field(default_factory=dict)
    mcp_servers: tuple[str, ...] = ()


def list_handoffs(agents: Sequence[GraphAgent]) -> Iterator[tuple[int, int]]:
    """From which agent to which, by their places. A name that is none of theirs is left out."""
    return _list_edges(agents, lambda agent: agent.handoffs)


def list_asked(agents: Sequence[GraphAgent]) -> Iterator[tuple[int, int]]:
    """List which agent can ask which, by their places: each pair once, however many functions do so."""
    return _list_edges(agents, lambda agent: dict.fromkeys(agent.asks.values()))


def _list_edges(
    agents: Sequence[GraphAgent], name_ends: Callable[[GraphAgent], Iterable[str]]
) -> Iterator[tuple[int, int]]:
    places = {agent.name: place for place, agent in enumerate(agents)}
    for place, agent in enumerate(agents):
        for name in name_ends(agent):
            if name in places:
                yield place, places[name]


def format_text(agents: Sequence[GraphAgent]) -> Iterator[str]:
    """The agents, the one that sessions begin with first."""
    for place, agent in enumerate(agents):
        if place:
            yield ""
        yield f"{agent.name}{', the default agent' if not place else ''}"
        yield f"  hands over to: {', '.join(agent.handoffs) or 'nobody'}"
        if agent.asks:
            yield f"  asks: {', '.join(f'{asked} ({function})' for function, asked in agent.asks.items())}"
        if agent.functions:
            yield "  functions:"
            yield from (f"    {function.label}" for function in agent.functions)
        if agent.mcp_servers:
            yield f"  MCP servers: {', '.join(agent.mcp_servers)}"


def format_mermaid(agents: Sequence[GraphAgent]) -> Iterator[str]:
    """A flow chart that Mermaid draws."""
    yield "flowchart LR"
    for place, agent in enumerate(agents):
        lines = [f"<b>{_escape_mermaid(agent.name)}</b>"]
        lines += [_escape_mermaid(function.label) for function in agent.functions]
        yield f'  a{place}["{"<br/>".join(lines)}"]'
    for start, end in list_handoffs(agents):
        yield f"  a{start} --> a{end}"
    for start, end in list_asked(agents):
        yield f"  a{start} -.-> a{end}"


def _escape_mermaid(text: str) -> str:
    """Mermaid takes `#` for the begin of an entity, and a line's end for the end of the box."""
    return html.escape(" ".join(text.split()).replace("#", "#35;")).replace("&", "#").replace("##35;", "#35;")


# A team as a picture in SVG, which is light or dark as its reader's screen is, and needs nothing from outside.

_NAME_HEIGHT, _LINE_HEIGHT = 30, 18
_CHARACTER_WIDTH, _PADDING = 7.3, 12
_COLUMN_GAP, _ROW_GAP, _MARGIN = 110, 28, 16
# Below a handoff between the same two boxes, so that both are seen.
_ASKING_LOWER = 6

_STYLE = """
  .box { fill: #ffffff; stroke: #57606a; } .edge { fill: none; stroke: #57606a; } .head { fill: #57606a; }
  text { font: 12px ui-monospace, monospace; fill: #1f2328; } .name { font-weight: bold; } .approval { fill: #9a6700; }
  @media (prefers-color-scheme: dark) {
    .box { fill: #161b22; stroke: #8b949e; } .edge { stroke: #8b949e; } .head { fill: #8b949e; }
    text { fill: #e6edf3; } .approval { fill: #d29922; }
  }
"""


@dataclass(frozen=True)
class _Box:
    agent: GraphAgent
    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def format_svg(agents: Sequence[GraphAgent]) -> Iterator[str]:
    """The picture, line by line: a column for each number of edges that an agent is away from the first.

    Handoffs are lines, and who asks whom is a dashed one.
    """
    asked = list(list_asked(agents))
    boxes = _place_boxes(agents)
    width = max((box.x + box.width for box in boxes), default=0) + _COLUMN_GAP / 2 + _MARGIN
    height = max((box.y + box.height for box in boxes), default=0) + _MARGIN
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">'
    yield f"<title>Who can hand over to whom{', and who can ask whom' if asked else ''}</title>"
    yield f"<style>{_STYLE}</style>"
    yield (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto-start-reverse"><path class="head" d="M0 0 8 4 0 8z"/></marker></defs>'
    )
    yield from _draw_edges(boxes, list_handoffs(agents))
    yield from _draw_edges(boxes, asked, asking=True)
    for box in boxes:
        yield from _draw_box(box)
    yield "</svg>"


def _find_columns(agents: Sequence[GraphAgent]) -> list[int]:
    """Count the edges between the first agent and each; those that no edge leads to begin, too."""
    following: dict[int, list[int]] = {}
    for start, end in (*list_handoffs(agents), *list_asked(agents)):
        following.setdefault(start, []).append(end)
    columns: dict[int, int] = {}
    for first in range(len(agents)):
        reached = [] if first in columns else [first]
        columns.setdefault(first, 0)
        while reached:
            start = reached.pop(0)
            for end in following.get(start, ()):
                if end not in columns:
                    columns[end] = columns[start] + 1
                    reached.append(end)
    return [columns[place] for place in range(len(agents))]


def _place_boxes(agents: Sequence[GraphAgent]) -> list[_Box]:
    columns = _find_columns(agents)
    widths: dict[int, float] = {}
    for agent, column in zip(agents, columns, strict=True):
        longest = max(len(agent.name), *(len(function.label) for function in agent.functions), 0)
        widths[column] = max(widths.get(column, 0.0), longest * _CHARACTER_WIDTH + 2 * _PADDING)
    lefts = {column: _MARGIN + sum(widths[before] + _COLUMN_GAP for before in range(column)) for column in widths}
    bottoms = dict.fromkeys(widths, float(_MARGIN))
    boxes = []
    for agent, column in zip(agents, columns, strict=True):
        height = _NAME_HEIGHT + _LINE_HEIGHT * len(agent.functions) + (_PADDING if agent.functions else 0)
        boxes.append(_Box(agent, lefts[column], bottoms[column], widths[column], height))
        bottoms[column] += height + _ROW_GAP
    return boxes


def _draw_edges(boxes: Sequence[_Box], pairs: Iterable[tuple[int, int]], *, asking: bool = False) -> Iterator[str]:
    """Two that lead to each other are one line, with a head at both ends."""
    edges = dict.fromkeys(pairs)
    for start, end in edges:
        if (end, start) not in edges or start <= end:
            both = start != end and (end, start) in edges
            yield _draw_edge(boxes[start], boxes[end], both=both, asking=asking)


def _draw_edge(start: _Box, end: _Box, *, both: bool, asking: bool) -> str:
    """From one side of a box to that of another; within a column, in a bow on the right."""
    if start.x < end.x:
        x1, x2, bend1, bend2 = start.x + start.width, end.x, _COLUMN_GAP / 2, -_COLUMN_GAP / 2
    elif start.x > end.x:
        x1, x2, bend1, bend2 = start.x, end.x + end.width, -_COLUMN_GAP / 2, _COLUMN_GAP / 2
    else:
        x1, x2, bend1, bend2 = start.x + start.width, end.x + end.width, _COLUMN_GAP / 2, _COLUMN_GAP / 2
    # To itself, an agent's edge leaves above the place where it comes in.
    y1, y2 = (start.middle - 8, end.middle + 8) if start is end else (start.middle, end.middle)
    if asking:
        y1, y2 = y1 + _ASKING_LOWER, y2 + _ASKING_LOWER
    heads = 'marker-end="url(#head)"' + (' marker-start="url(#head)"' if both else "")
    path = f"M{x1:.1f} {y1:.1f} C{x1 + bend1:.1f} {y1:.1f} {x2 + bend2:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    dashes = ' stroke-dasharray="5 4"' if asking else ""
    return f'<path class="edge" d="{path}"{dashes} {heads}/>'


def _draw_box(box: _Box) -> Iterator[str]:
    yield (
        f'<rect class="box" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="6"/>'
    )
    x, y = box.x + _PADDING, box.y + 20
    yield f'<text class="name" x="{x:.1f}" y="{y:.1f}">{_escape(box.agent.name)}</text>'
    for number, function in enumerate(box.agent.functions, start=1):
        kind = ' class="approval"' if function.needs_approval else ""
        yield f'<text{kind} x="{x:.1f}" y="{y + 4 + _LINE_HEIGHT * number:.1f}">{_escape(function.label)}</text>'


def _escape(text: str) -> str:
    """Text for XML, which has no place for control characters."""
    return html.escape("".join(character if character.isprintable() else " " for character in text))


# One agent as text: all that its model is told, and may do.


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
