"""Finding the agents that a team wrote, by file, folder or module name."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import pydantic
from pydantic import ValidationError

from swarmkeep.agent import Agent, FunctionSchemaError, InvalidFunctionError
from swarmkeep.agent.tools import find_asked_agent
from swarmkeep.agent.values import ModelProfileError, check_profile_setting
from swarmkeep.events.codec import MalformedJson, decode, encode_text
from swarmkeep.events.errors import AgentNotFound, AgentUnavailable
from swarmkeep.events.model_profiles import ModelServer, make_model_server
from swarmkeep.request.request import Profile
from swarmkeep.runs.tool_runners import ToolRunner

# Finds the agents that an agent's functions mention in their code.


def find_reachable(agent: Agent) -> Iterator[Agent]:
    seen: dict[int, Agent] = {id(agent): agent}
    waiting = [agent]
    while waiting:
        for other in find_mentioned(waiting.pop()):
            if id(other) not in seen:
                seen[id(other)] = other
                waiting.append(other)
                yield other


def find_mentioned(agent: Agent) -> Iterator[Agent]:
    for function in agent.functions:
        yield from find_agents_in(function)


def find_handed_over(agent: Agent) -> Iterator[Agent]:
    """The agents that its functions mention, and do not ask."""
    for function in agent.functions:
        if find_asked_agent(function) is None:
            yield from find_agents_in(function)


def find_agents_in(function: Callable[..., Any]) -> Iterator[Agent]:
    """The agents that a function's code refers to: as globals, in its closure, or bound to it.

    Read from the code, not by calling it: a function with an effect must not run to draw a graph.
    """
    bound = [*getattr(function, "args", ()), *getattr(function, "keywords", {}).values()]
    plain = getattr(function, "func", function)
    if not isinstance(plain, types.FunctionType):
        # An agent may be kept by a method's object, or by an object that is called itself.
        bound += list(getattr(getattr(plain, "__self__", plain), "__dict__", {}).values())
    if not isinstance(plain, types.FunctionType | types.MethodType):
        plain = vars(type(plain)).get("__call__")
    plain = inspect.unwrap(getattr(plain, "__func__", plain))
    if isinstance(plain, types.FunctionType):
        bound += list(_iterate_referenced(plain, plain.__code__))
        bound += [cell.cell_contents for cell in plain.__closure__ or () if _is_filled(cell)]
    for value in bound:
        yield from _pick_agents(value)


def _iterate_referenced(function: types.FunctionType, code: types.CodeType) -> Iterator[Any]:
    for name in code.co_names:
        if name in function.__globals__:
            yield function.__globals__[name]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _iterate_referenced(function, constant)


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _pick_agents(value: Any) -> Iterator[Agent]:
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
    for item in values:
        if isinstance(item, Agent):
            yield item


# The agents that are served, by name: what the log calls "Sales Agent" is looked up here.

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
        """Tell if this agent may be handed over to: it must be served, for the log keeps no more than its name."""
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
        """The agent as its model sees it now. Raises the errors that its instructions raise. `more_tools` are schemas
        of its servers' tools, as texts.

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
    """For a run that lives in one process: any agent that a function returns is taken in."""

    def _add(self, agent: Agent) -> None:
        # Two agents of one name are no harm here: each is known by the function that hands over to it.
        self._agents.setdefault(agent.name, agent)

    def admit(self, agent: Agent) -> bool:
        self._agents[agent.name] = agent
        return True


_PACKAGE_FOLDER = str(Path(__file__).resolve().parents[1])
_DEFAULT_URL = "https://api.openai.com/v1"

_PYDANTIC_FOLDER = str(Path(pydantic.__file__).parent)


class ServerSettings(Protocol):
    """The settings of the server that models are asked at."""

    offline: bool
    openai_base_url: str | None
    model_profile: str | None


def find_model_server(settings: ServerSettings) -> ModelServer:
    """Return where models are asked, and what is set for them. Raises AgentsError for a wrong setting."""
    name = "SWARMKEEP_MODEL_PROFILE"
    base_url = None if settings.offline else settings.openai_base_url or _DEFAULT_URL
    if settings.model_profile is None:
        return make_model_server(base_url)
    try:
        return make_model_server(base_url, check_profile_setting(decode(settings.model_profile), name))
    except MalformedJson:
        raise AgentsError(f'{name} is not JSON; write it like {{"parallel_tool_calls": "omit"}}') from None
    except ModelProfileError as error:
        raise AgentsError(str(error)) from None


def load_registry(specs: Sequence[str], *, model: str | None = None, server: ModelServer = _UNKNOWN_SERVER) -> Registry:
    """Import each of `specs` (a file, a folder, or a dotted module name) and collect the agents they define.

    The first agent of the first module is the default. Raises AgentsError for a module that does not import, holds no
    agent, or whose agents cannot be served: two of one name, a function without a schema.
    """
    agents: list[Agent] = []
    aliases: dict[str, str] = {}
    for spec in specs:
        module = _import_spec(spec)
        aliases |= _read_aliases(module, spec)
        found = list(_find_agents(module))
        if not found:
            raise AgentsError(f"{spec} defines no Agent at its top level{_hint_at_file(module)}")
        agents += found
    registry = Registry(_drop_duplicates(agents), model=model, aliases=aliases, server=server)
    registry.check_aliases()
    _check_schemas(registry)
    return registry


def _hint_at_file(module: ModuleType) -> str:
    """Return a hint at the file with the agents of a package whose `__init__.py` has none."""
    file = Path(module.__file__ or "")
    is_beside = file.name == "__init__.py" and (file.parent / "agents.py").exists()
    return f"; import them in its __init__.py, or name {file.parent.name}/agents.py" if is_beside else ""


def _drop_duplicates(agents: Iterable[Agent]) -> list[Agent]:
    return list({id(agent): agent for agent in agents}.values())


def _check_schemas(registry: Registry) -> None:
    for agent in registry:
        try:
            agent.tool_schemas()
        except (FunctionSchemaError, InvalidFunctionError) as error:
            raise AgentsError(f"agent {agent.name!r}: {error}") from error


def _find_agents(module: ModuleType) -> Iterable[Agent]:
    for value in list(vars(module).values()):
        for item in _iterate_items(value):
            if isinstance(item, Agent):
                yield item


def _read_aliases(module: ModuleType, spec: str) -> dict[str, str]:
    """The module's `ALIASES`: names that its agents had before, with those that they have now."""
    found = getattr(module, "ALIASES", {})
    if not (isinstance(found, dict) and all(isinstance(name, str) for pair in found.items() for name in pair)):
        raise AgentsError(f"{spec}: ALIASES must be a dict of names, {{'old name': 'new name'}}")
    return found


def _iterate_items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list | tuple) else [value]


def _import_spec(spec: str) -> ModuleType:
    path = Path(spec)
    try:
        if path.exists():
            return _import_path(path.resolve())
        if path.suffix == ".py" or "/" in spec:
            raise AgentsError(f"there is no file or folder {path.resolve()}")
        # A module beside the working directory's files should import, as it does for `python -m`.
        _add_to_path(Path.cwd())
        return importlib.import_module(spec)
    except AgentsError:
        raise
    except (Exception, SystemExit) as error:
        hint = ""
        if isinstance(error, ModuleNotFoundError) and error.name == spec.partition(".")[0]:
            hint = f", and {Path.cwd()} has no file or folder of that name"
        elif isinstance(error, ModuleNotFoundError) and error.name == "swarm":
            hint = "; import from swarmkeep what the file imports from swarm"
        raise AgentsError(f"{spec} cannot be imported: {_locate_error(error)}{hint}") from error


def _import_path(path: Path) -> ModuleType:
    if path.is_dir() and not (path / "__init__.py").exists():
        if not (path / "agents.py").exists():
            raise AgentsError(f"{path} is a folder without __init__.py or agents.py")
        path = path / "agents.py"
    _add_to_path(path.parent)
    return _import_package(path) if path.is_dir() else _import_file(path)


def _import_package(path: Path) -> ModuleType:
    module = importlib.import_module(path.name)
    if getattr(module, "__file__", None) != str(path / "__init__.py"):
        raise AgentsError(f"{path} cannot be imported: {path.name} is the name of another module; rename the folder")
    return module


def _import_file(path: Path) -> ModuleType:
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    name = path.stem if known is None else f"swarmkeep_loaded_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise AgentsError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _add_to_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _locate_error(error: BaseException) -> str:
    """The error's own words and the last line of the team's code that led to it."""
    if isinstance(error, SyntaxError):
        # It knows its place by itself, and the code it is about has never run.
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    if isinstance(error, ValidationError):
        # An Agent with wrong arguments. Pydantic's own text adds types and links.
        words = "; ".join(f"{_format_location(each['loc'])}{each['msg']}" for each in error.errors(include_url=False))
    else:
        words = str(error)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_library_frame(frame.filename)]
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {words}{place}"


def _format_location(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location)) + ": " if location else ""


def _is_library_frame(filename: str) -> bool:
    """Tell if a line is none of the team's: what imports it, and what checks an Agent."""
    return "importlib" in filename or filename.startswith((_PACKAGE_FOLDER, _PYDANTIC_FOLDER))
