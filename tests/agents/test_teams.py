"""Rules that hold for every bundled team."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import swarmkeep_agents
from swarmkeep import Agent, function_schema
from swarmkeep.runs.agents import load_registry
from swarmkeep_agents import TEAMS, conversations

FOLDER = Path(swarmkeep_agents.__file__).parent
HIDDEN = {"context_variables", "tool_call_id"}
MODULES = [*TEAMS.values(), *(f"{TEAMS['basic']}.{path.stem}" for path in sorted((FOLDER / "basic").glob("[a-z]*.py")))]


def find_agents(module: ModuleType) -> list[Agent]:
    return [value for value in vars(module).values() if isinstance(value, Agent)]


def load_team(name: str) -> list[Agent]:
    return find_agents(importlib.import_module(TEAMS[name]))


FUNCTIONS = [
    pytest.param(name, function, id=f"{name}-{agent.name}-{function.__name__}")
    for name in TEAMS
    for agent in load_team(name)
    for function in agent.functions
]


def test_folder_with_conversations_is_a_team() -> None:
    assert {path.parent.name for path in FOLDER.glob("*/conversations.json")} == set(TEAMS)
    assert {path.parent.name for path in FOLDER.glob("*/README.md")} == set(TEAMS)


@pytest.mark.parametrize("module", MODULES)
def test_module_agents_have_unique_names(module: str) -> None:
    names = [agent.name for agent in find_agents(importlib.import_module(module))]
    assert names
    assert len(set(names)) == len(names)


FIRST = {
    "acme": "Triage Agent",
    "airline": "Airline Triage Agent",
    "basic": "Agent",
    "librarian": "Librarian",
    "personal_shopper": "Shop Triage Agent",
    "support_bot": "Front Desk Agent",
    "triage": "Triage Agent",
    "weather": "Weather Agent",
}


@pytest.mark.parametrize("name", TEAMS)
def test_team_begins_at_entry_point(name: str) -> None:
    registry = load_registry([TEAMS[name]])
    assert registry.default == FIRST[name]
    assert set(registry.names) == {agent.name for agent in load_team(name)}


@pytest.mark.parametrize(("name", "function"), FUNCTIONS)
def test_every_function_describes_itself(name: str, function: Any) -> None:
    schema = function_schema(function)["function"]
    assert len(schema["description"].split()) >= 5
    properties = schema["parameters"]["properties"]
    assert not HIDDEN & set(properties)
    assert all(parameter.get("description") for parameter in properties.values())


@pytest.mark.parametrize(
    ("name", "function"), [given for given in FUNCTIONS if given.values[1].__name__.startswith("transfer_to_")]
)
def test_a_handoff_stays_in_its_team(name: str, function: Any) -> None:
    other = function()
    assert other in load_team(name)
    assert other.name.lower().replace(" ", "_").startswith(function.__name__.removeprefix("transfer_to_"))


@pytest.mark.parametrize("name", TEAMS)
@pytest.mark.parametrize("context", [{}, {"user_name": "Ada", "ticket_id": "TICKET-1"}])
def test_instructions_work_with_and_without_context(name: str, context: dict[str, Any]) -> None:
    for agent in load_team(name):
        text = agent.render_instructions(context)
        assert isinstance(text, str)
        assert text


@pytest.mark.parametrize("name", TEAMS)
def test_conversations_are_lists_of_messages(name: str) -> None:
    talks = conversations(name)
    assert 2 <= len(talks) <= 3
    assert all(len(talk) >= 2 for talk in talks)
    assert all(isinstance(message, str) and message for talk in talks for message in talk)


def test_unknown_team_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"there is no team 'acne'; the teams are acme, airline, basic"):
        conversations("acne")


@pytest.mark.parametrize("name", TEAMS)
def test_what_a_readme_names_is_there(name: str) -> None:
    spans = re.findall(r"`([^`/]+)`", (FOLDER / name / "README.md").read_text(encoding="utf-8"))
    named = {word for span in spans for word in re.findall(r"[a-z]+(?:_[a-z]+)+", span)}
    sources = "".join(file.read_text(encoding="utf-8") for file in FOLDER.rglob("*.py"))
    assert {word for word in named if word not in sources} == set()
