"""Agents by file, folder or module name, and the messages when that fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from swarmkeep.runs.agents import AgentsError, load_registry

TEAM = """
    from swarmkeep import Agent

    def to_sales() -> Agent:
        return sales

    triage = Agent(name="Triage", functions=[to_sales])
    sales = Agent(name="Sales")
"""


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Forget what a test imports."""
    modules = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    yield
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def write_file(path: Path, text: str = TEAM) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text))
    return path


def expect_refusal(spec: str) -> str:
    with pytest.raises(AgentsError) as refused:
        load_registry([spec])
    assert "Traceback" not in str(refused.value)
    return str(refused.value)


def define(name: str, before: str = "") -> str:
    """A module with one agent."""
    return f'{before}\nfrom swarmkeep import Agent\nagent = Agent(name="{name}")'


LISTED = """
    from swarmkeep import Agent

    team = [Agent(name="A"), Agent(name="B")]
    others = {"c": Agent(name="C"), "n": 1}
    first = team[0]
"""
FOLDER = {
    "one_team/__init__.py": "from one_team.agents import triage",
    "one_team/agents.py": "from .sales import sales\n" + dedent(TEAM).replace("sales = ", "old = "),
    "one_team/sales.py": 'from swarmkeep import Agent\nsales = Agent(name="The Sales")',
}
HELPED = {"plain/agents.py": "from helper import NAME\nfrom swarmkeep import Agent\na = Agent(name=NAME)"}
TWO = {"one.py": define("One"), "two.py": define("Two", "from one import agent as one")}
NAMESAKES = {"a/agents.py": define("A"), "b/agents.py": define("B")}
COUNTED = {"counted.py": "print('imported')\n" + dedent(TEAM)}
# The files there are, what is asked for, and the agents that are found, the default first.
PLACES: dict[str, tuple[dict[str, str], list[str], list[str]]] = {
    "a file": ({"my_team.py": TEAM}, ["{folder}/my_team.py"], ["Triage", "Sales"]),
    "a relative file": ({"teams/one.py": TEAM}, ["teams/one.py"], ["Triage", "Sales"]),
    "a folder with an init": (FOLDER, ["{folder}/one_team"], ["Triage", "The Sales"]),
    "a folder with agents.py": ({**HELPED, "plain/helper.py": "NAME = 'Helped'"}, ["plain"], ["Helped"]),
    "a module": ({"named_team.py": TEAM}, ["named_team"], ["Triage", "Sales"]),
    "a deep module": ({"deep_team/inner/agents.py": define("Deep")}, ["deep_team.inner.agents"], ["Deep"]),
    "lists and dicts": ({"listed.py": LISTED}, ["listed.py"], ["A", "B", "C"]),
    "the first module first": (TWO, ["one.py", "two.py"], ["One", "Two"]),
    "the first agent of it": (TWO, ["two.py", "one.py"], ["One", "Two"]),
    "two folders of one file name": (NAMESAKES, ["a", "b"], ["A", "B"]),
    "two files of one name": (NAMESAKES, ["a/agents.py", "b/agents.py"], ["A", "B"]),
    "one file three times": (COUNTED, ["counted.py", "./counted.py", "{folder}/counted.py"], ["Triage", "Sales"]),
}


@pytest.mark.parametrize("place", PLACES)
def test_agents_are_loaded_from_their_place(tmp_path: Path, place: str) -> None:
    files, specs, names = PLACES[place]
    for name, text in files.items():
        write_file(tmp_path / name, text)
    registry = load_registry([spec.format(folder=tmp_path) for spec in specs])
    assert (registry.names, registry.default) == (names, names[0])


def test_the_teams_that_come_with_swarmkeep() -> None:
    assert load_registry(["swarmkeep_agents.triage"]).names


def test_an_empty_package_beside_its_agents(tmp_path: Path) -> None:
    write_file(tmp_path / "empty_team" / "__init__.py", "")
    write_file(tmp_path / "empty_team" / "agents.py", 'from swarmkeep import Agent\na = Agent(name="A")')
    assert "name empty_team/agents.py" in expect_refusal("empty_team")
    assert load_registry(["empty_team/agents.py"]).names == ["A"]


def test_a_folder_whose_name_is_taken(tmp_path: Path) -> None:
    write_file(tmp_path / "json" / "__init__.py", 'from swarmkeep import Agent\na = Agent(name="Mine")')
    assert "json is the name of another module; rename the folder" in expect_refusal(str(tmp_path / "json"))


def test_the_servers_model_is_handed_on(tmp_path: Path) -> None:
    write_file(tmp_path / "modelled.py")
    registry = load_registry(["modelled.py"], model="local")
    assert registry.choose_model(registry.get("Sales")) == "local"


# The messages.


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("x = 1", ["defines no Agent at its top level"]),
        ("x = 1\ndef broken(:\n    pass", ["cannot be imported", "SyntaxError", "bad_team.py, line 2)"]),
        ("import not_a_module_of_anybodys", ["cannot be imported", "ModuleNotFoundError", "not_a_module_of_anybodys"]),
        ("from swarm import Agent", ["cannot be imported", "import from swarmkeep what the file imports from swarm"]),
        ("x = 1\n\nraise ValueError('no key')", ["cannot be imported", "ValueError: no key", "bad_team.py", "line 3"]),
        ("import sys\nsys.exit('bye')", ["cannot be imported", "SystemExit: bye"]),
        (
            'from swarmkeep import Agent\na = Agent(name="A")\nb = Agent(name="A")',
            ["two agents are called 'A'", "rename one"],
        ),
        (
            'from swarmkeep import Agent\na = Agent(name="A", functions=[lambda: 1])',
            ["cannot be imported", "agent 'A'", "lambda", "bad_team.py, line 2)"],
        ),
        (
            'from swarmkeep import Agent\ndef f(x: "Nowhere"): ...\na = Agent(name="A")\na.functions.append(f)',
            ["agent 'A'", "'Nowhere' cannot be resolved"],
        ),
    ],
)
def test_a_bad_module(tmp_path: Path, text: str, parts: list[str]) -> None:
    write_file(tmp_path / "bad_team.py", text)
    text = expect_refusal("bad_team.py")
    for part in parts:
        assert part in text
    assert "bad_team" not in sys.modules or "cannot be imported" not in text


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("nowhere.py", "/nowhere.py"),
        ("some/where", "/some/where"),
        ("nowhere", "has no file or folder of that name"),
        ("nowhere.agents", "cannot be imported"),
        (".", "without __init__.py or agents.py"),
        ("notes.txt", "is not a Python file"),
        ("..bad", "cannot be imported"),
        ("", "without __init__.py or agents.py"),
    ],
)
def test_a_place_without_agents(tmp_path: Path, spec: str, part: str) -> None:
    (tmp_path / "notes.txt").write_text("notes")
    assert part in expect_refusal(spec)


def test_mended_module_can_be_loaded(tmp_path: Path) -> None:
    path = write_file(tmp_path / "mended.py", "raise ValueError")
    expect_refusal("mended.py")
    write_file(path)
    assert load_registry(["mended.py"]).names == ["Triage", "Sales"]
