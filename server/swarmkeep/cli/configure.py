"""The settings a command works with: its flags over the environment over `.env`."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swarmkeep.cli.terminal import Refused, say, say_once

if TYPE_CHECKING:
    from pydantic import ValidationError

    from swarmkeep.events.records import PriceTable
    from swarmkeep.runs.agents import Registry
    from swarmkeep.serve.settings import Settings


PREFIX = "SWARMKEEP_"
# What commands read that speak to a server.
CLIENT_SETTINGS = ("URL", "API_KEY")
EXAMPLE_AGENTS = "swarmkeep_agents.acme"


def load_settings(**flags: Any) -> Settings:
    """The settings in force. A flag that is None (or an empty list, or an unset switch) was not given."""
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from swarmkeep.serve.settings import Settings

    # It would log each line that it cannot read, once for each time that it reads the file.
    logging.getLogger("dotenv.main").setLevel(logging.ERROR)
    given = {name: value for name, value in flags.items() if value is not None and value is not False and value != []}
    try:
        settings = Settings(**given)
        # Some commands load their settings more than once.
        for note in (*_find_broken_lines(Path(".env")), *_find_misspelt_names(Settings)):
            say_once(note)
        return settings
    except ValidationError as error:
        raise Refused(_describe_problem(error)) from None
    except SettingsError as error:
        raise Refused(str(error)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"cannot read {Path('.env').absolute()}, which must be text in UTF-8: {error}") from None


def load_prices() -> PriceTable | None:
    """Load the price table of the settings."""
    from swarmkeep.history.compare import read_prices

    settings = load_settings()
    return read_prices(settings.prices, settings.currency)


def _find_broken_lines(file: Path) -> Iterator[str]:
    """Describe lines that are no settings, and therefore ignored. Never what is in them."""
    from dotenv.parser import parse_stream

    if file.is_file():
        with file.open(encoding="utf-8") as text:
            for number in (line.original.line for line in parse_stream(text) if line.error):
                yield f"warning: line {number} of {file.absolute()} is ignored: write NAME=VALUE, or begin it with #"


def _find_misspelt_names(settings: type[Settings]) -> Iterator[str]:
    """Describe variables that are no settings, and look like one."""
    from pydantic_settings import DotEnvSettingsSource

    known = [*(name.upper() for name in settings.model_fields), *CLIENT_SETTINGS]
    given = {name.upper() for name in (*DotEnvSettingsSource(settings).env_vars, *os.environ)}
    for stem in sorted(name.removeprefix(PREFIX) for name in given if name.startswith(PREFIX)):
        likely = get_close_matches(stem, known, n=1, cutoff=0.8)
        if likely and stem not in known and not stem.startswith("TEST_"):
            yield f"unknown setting {PREFIX}{stem}; did you mean {PREFIX}{likely[0]}?"


def _describe_problem(error: ValidationError) -> str:
    """The first thing that is wrong, by the name under which a person set it; never the value."""
    first = error.errors(include_url=False, include_input=False)[0]
    field = str(first["loc"][0]) if first["loc"] else ""
    name = field if field.isupper() else f"{PREFIX}{field.upper()}"
    # What our own checks say, pydantic puts behind a word of its own.
    return f"the setting {name} is not valid: {first['msg'].removeprefix('Value error, ')}"


def has_model(settings: Settings) -> bool:
    """Tell if it is known which model to ask: a provider, a server that speaks its protocol, or the offline model."""
    return bool(settings.offline or settings.openai_api_key or settings.openai_base_url)


def load_model_settings(hint: str = "", **flags: Any) -> Settings:
    """The settings of a command that asks a model here. Raises Refused where none is configured, with a hint."""
    settings = load_settings(**flags)
    if not has_model(settings):
        raise Refused(NO_MODEL + hint)
    if settings.offline:
        say(OFFLINE_NOTE)
    return settings


def load_agents(settings: Settings) -> Registry:
    from swarmkeep.runs.agents import find_model_server, load_registry

    return load_registry(settings.agents, model=settings.model, server=find_model_server(settings))


NO_MODEL = (
    "no model is configured: set OPENAI_API_KEY, or set OPENAI_BASE_URL to a server that speaks Chat Completions "
    "(Ollama, vLLM, …), or use --offline for the built-in offline model, which is not an LLM"
)
OFFLINE_NOTE = "the model is the built-in offline one: it is not an LLM, it matches words with the agents' functions"
