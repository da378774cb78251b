"""The agents that are served, by name: what the log calls "Sales Agent" is looked up here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from swarmkeep.agent import Agent
from swarmkeep.domain.codec import encode_text
from swarmkeep.domain.errors import AgentNotFound, AgentUnavailable
from swarmkeep.domain.model_profiles import ModelServer
from swarmkeep.domain.request import Profile
from swarmkeep.engine.agents.mentions import find_handed_over, find_reachable
from swarmkeep.engine.tool_runners import ToolRunner

_UNKNOWN_SERVER = ModelServer()


class AgentsError(ValueError):
    """The agents cannot be served as they are; the sentence says which and why."""


class Registry:
    """Agents by name, the first being the default. `model` is for agents that name none themselves, and `server` where
    all models are asked.

    `aliases` are names that agents had before, with those that they have now: for sessions that know the old ones.
    """

    def __init__(
        self,
        agents: Iterable[Agent] = (),
        *,
        model: str | None = None,
        aliases: Mapping[str, str] | None = None,
        server: ModelServer = _UNKNOWN_SERVER,
    ) -> None:
        self._model = model
        self._server = server
        self._aliases = dict(aliases or {})
        self._agents: dict[str, Agent] = {}
        # Encoding schemas costs more than a turn; an agent's functions seldom change.
        self._schemas: dict[str, tuple[tuple[object, ...], str | None]] = {}
        for agent in agents:
            for found in (agent, *find_reachable(agent)):
                self._add(found)

    def _add(self, agent: Agent) -> None:
        known = self._agents.setdefault(agent.name, agent)
        if known is not agent:
            raise AgentsError(f"two agents are called {agent.name!r}; names must be unique, rename one of them")

    def check_aliases(self) -> None:
        """Raises AgentsError for an alias that stands for no agent, or that is itself an agent's name."""
        for old, new in self._aliases.items():
            if old in self._agents:
                raise AgentsError(f"{old!r} is the name of an agent, so it cannot be an alias of {new!r}")
            if new not in self._agents:
                raise AgentsError(f"the alias {old!r} stands for {new!r}, but there is no agent of that name")

    def admit(self, agent: Agent) -> bool:
        """Whether this agent may be handed over to: it must be served, for the log keeps no more than its name."""
        return agent.name in self._agents

    @property
    def names(self) -> list[str]:
        return list(self._agents)

    @property
    def default(self) -> str:
        """The name of the first agent."""
        return next(iter(self._agents))

    def __iter__(self) -> Iterator[Agent]:
        return iter(self._agents.values())

    def __contains__(self, name: object) -> bool:
        return name in self._agents or name in self._aliases

    def get(self, name: str) -> Agent:
        """The agent of that name, or of the one that it has now. Raises AgentNotFound."""
        found = self._agents.get(self._aliases.get(name, name))
        if found is None:
            raise AgentNotFound(name, self.names)
        return found

    def get_active(self, name: str) -> Agent:
        """The agent that a session's state names. Raises AgentUnavailable: it was there once."""
        found = self._agents.get(self._aliases.get(name, name))
        if found is None:
            raise AgentUnavailable(name, self.names)
        return found

    def choose_model(self, agent: Agent) -> str:
        return self._model if self._model and "model" not in agent.model_fields_set else agent.model

    async def make_profile(
        self, agent: Agent, context_variables: Mapping[str, Any], runner: ToolRunner, more_tools: Sequence[str] = ()
    ) -> Profile:
        """The agent as its model sees it now. Raises whatever its instructions raise. `more_tools` are schemas of its
        servers' tools, as texts.

        Instructions that are made by a function are made where tools run, as they may take as long.
        """
        if isinstance(agent.instructions, str):
            instructions = agent.instructions
        else:
            render = partial(agent.render_instructions, dict(context_variables))
            instructions = await runner(render, is_async=False, seconds=None)
        output = agent.output()
        by_call = agent.output_mode == "tool"
        return Profile(
            name=agent.name,
            model=self.choose_model(agent),
            instructions=instructions,
            tools=_join_schemas(self._encode_schemas(agent), more_tools),
            tool_choice=agent.tool_choice,
            parallel_tool_calls=agent.parallel_tool_calls,
            settings=agent.model_settings,
            response_format=None if output is None or by_call else output.response_format,
            output_tool=encode_text(output.tool_schema) if output is not None and by_call else None,
            server=self._server,
            model_profile=agent.model_profile,
        )

    def _encode_schemas(self, agent: Agent) -> str | None:
        version = (agent, *agent.functions)
        cached = self._schemas.get(agent.name)
        # By identity, and kept alive for it: two agents may be equal, and a dead function's id may be used again.
        if cached is None or list(map(id, cached[0])) != list(map(id, version)):
            schemas = agent.tool_schemas()
            cached = (version, encode_text(schemas) if schemas else None)
            self._schemas[agent.name] = cached
        return cached[1]

    def list_handoffs(self, agent: Agent) -> list[str]:
        """Names of the agents that this one's functions mention, and so may hand over to."""
        return list(dict.fromkeys(other.name for other in find_handed_over(agent) if other.name in self._agents))

    def list_asked(self, agent: Agent) -> dict[str, str]:
        """The agents that this one can ask, by the names of the functions that do so."""
        tools = agent.tools().items()
        return {name: tool.asked_agent.name for name, tool in tools if tool.asked_agent is not None}


def _join_schemas(own: str | None, more: Sequence[str]) -> str | None:
    return f"[{','.join([*([own[1:-1]] if own else []), *more])}]" if more else own


class OpenRegistry(Registry):
    """For a run that lives in one process: whatever agent a function returns is taken in."""

    def _add(self, agent: Agent) -> None:
        # Two agents of one name are no harm here: each is known by the function that hands over to it.
        self._agents.setdefault(agent.name, agent)

    def admit(self, agent: Agent) -> bool:
        self._agents[agent.name] = agent
        return True
