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


def test_a_file(tmp_path: Path) -> None:
    registry = load_registry([str(write_file(tmp_path / "my_team.py"))])
    assert registry.names == ["Triage", "Sales"]
    assert registry.default == "Triage"


def test_a_relative_file(tmp_path: Path) -> None:
    write_file(tmp_path / "teams" / "one.py")
    assert load_registry(["teams/one.py"]).names == ["Triage", "Sales"]


def test_a_folder_with_an_init(tmp_path: Path) -> None:
    write_file(tmp_path / "one_team" / "__init__.py", "from one_team.agents import triage")
    write_file(
        tmp_path / "one_team" / "agents.py", "from .sales import sales\n" + dedent(TEAM).replace("sales = ", "old = ")
    )
    write_file(tmp_path / "one_team" / "sales.py", 'from swarmkeep import Agent\nsales = Agent(name="The Sales")')
    assert load_registry([str(tmp_path / "one_team")]).names == ["Triage", "The Sales"]


def test_a_folder_with_agents_py(tmp_path: Path) -> None:
    write_file(
        tmp_path / "plain" / "agents.py", "from helper import NAME\nfrom swarmkeep import Agent\na = Agent(name=NAME)"
    )
    write_file(tmp_path / "plain" / "helper.py", "NAME = 'Helped'")
    assert load_registry(["plain"]).names == ["Helped"]


def test_module_is_found_beside_working_directory(tmp_path: Path) -> None:
    write_file(tmp_path / "named_team.py")
    write_file(tmp_path / "deep_team" / "inner" / "agents.py", 'from swarmkeep import Agent\na = Agent(name="Deep")')
    assert load_registry(["named_team"]).names == ["Triage", "Sales"]
    assert load_registry(["deep_team.inner.agents"]).names == ["Deep"]


def test_the_teams_that_come_with_swarmkeep() -> None:
    assert load_registry(["swarmkeep_agents.triage"]).names


def test_lists_and_dicts_of_agents_count(tmp_path: Path) -> None:
    write_file(
        tmp_path / "listed.py",
        """
        from swarmkeep import Agent
        team = [Agent(name="A"), Agent(name="B")]
        others = {"c": Agent(name="C"), "n": 1}
        first = team[0]
        """,
    )
    assert load_registry(["listed.py"]).names == ["A", "B", "C"]


def test_first_agent_of_first_module_is_default(tmp_path: Path) -> None:
    write_file(tmp_path / "one.py", 'from swarmkeep import Agent\na = Agent(name="One")')
    write_file(tmp_path / "two.py", 'from swarmkeep import Agent\nfrom one import a\nb = Agent(name="Two")')
    assert load_registry(["two.py", "one.py"]).default == "One"
    assert load_registry(["one.py", "two.py"]).names == ["One", "Two"]


def test_two_files_of_one_name(tmp_path: Path) -> None:
    write_file(tmp_path / "a" / "agents.py", 'from swarmkeep import Agent\na = Agent(name="A")')
    write_file(tmp_path / "b" / "agents.py", 'from swarmkeep import Agent\nb = Agent(name="B")')
    assert load_registry(["a", "b"]).names == ["A", "B"]
    assert load_registry(["a/agents.py", "b/agents.py"]).names == ["A", "B"]


def test_an_empty_package_beside_its_agents(tmp_path: Path) -> None:
    write_file(tmp_path / "empty_team" / "__init__.py", "")
    write_file(tmp_path / "empty_team" / "agents.py", 'from swarmkeep import Agent\na = Agent(name="A")')
    assert "name empty_team/agents.py" in expect_refusal("empty_team")
    assert load_registry(["empty_team/agents.py"]).names == ["A"]


def test_one_file_twice_is_imported_once(tmp_path: Path) -> None:
    write_file(tmp_path / "counted.py", "print('imported')\n" + dedent(TEAM))
    assert load_registry(["counted.py", "./counted.py", str(tmp_path / "counted.py")]).names == ["Triage", "Sales"]


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
