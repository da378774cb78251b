"""A team as a graph: who can hand over to whom, and ask whom, with which functions; as text, and for Mermaid."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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
    """Which agent can ask which, by their places: each pair once, however many functions do so."""
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
