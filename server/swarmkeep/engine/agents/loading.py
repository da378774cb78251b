"""Finding the agents that a team wrote, by file, folder or module name."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import pydantic
from pydantic import ValidationError

from swarmkeep.agent import Agent, FunctionSchemaError, InvalidFunctionError
from swarmkeep.agent.model_profile import ModelProfileError, check_profile_setting
from swarmkeep.domain.codec import MalformedJson, decode
from swarmkeep.domain.model_profiles import ModelServer, make_model_server
from swarmkeep.engine.agents.registry import AgentsError, Registry

_PACKAGE_FOLDER = str(Path(__file__).resolve().parents[2])
_DEFAULT_URL = "https://api.openai.com/v1"
_UNKNOWN_SERVER = ModelServer()
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
    """Where the agents of a package may be whose `__init__.py` has none."""
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
    """Whether a line is none of the team's: what imports it, and what checks an Agent."""
    return "importlib" in filename or filename.startswith((_PACKAGE_FOLDER, _PYDANTIC_FOLDER))
