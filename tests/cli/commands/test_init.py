"""A team is copied out as a project that works by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from swarmkeep_agents import TEAMS
from tests.cli.command_line import CommandLine
from tests.support.processes import clean_environment

pytestmark = pytest.mark.long


def test_teams_listed_with_descriptions(cli: CommandLine) -> None:
    assert [row["team"] for row in cli("init", "--list", "--json").json] == list(TEAMS)
    headings, *rows = cli("init", "--list").lines
    assert headings.split() == ["TEAM", "ABOUT"]
    assert [row.split()[0] for row in rows] == list(TEAMS)
    assert all(row.endswith(".") for row in rows)


@pytest.mark.parametrize("team", TEAMS)
def test_project_is_whole_and_independent(cli: CommandLine, process: CommandLine, team: str) -> None:
    made = cli("init", "mine", "--team", team)
    assert made.code == 0, made
    project = cli.folder / "mine"
    files = {str(file.relative_to(cli.folder)) for file in project.rglob("*") if file.is_file()}
    assert set(made.lines) == files
    assert {"README.md", ".env.example", ".gitignore", f"{team}/README.md", f"tests/test_{team}.py"} <= {
        file.removeprefix("mine/") for file in files
    }
    assert [file for file in files if "swarmkeep_agents" in (cli.folder / file).read_text()] == []
    tried = CommandLine(project)("eval", f"{team}/evals", "--agents", team, "--offline")
    assert tried.code == 0, tried


def test_example_settings_and_test_work(cli: CommandLine) -> None:
    cli("init", "mine", "--team", "personal_shopper")
    project = cli.folder / "mine"
    (project / ".env").write_text((project / ".env.example").read_text())
    talk = CommandLine(project)("chat", "--offline", text="I'd like a recommendation: which products are there?\n")
    assert "rain jacket" in talk.out
    # The rows are beside the sessions, in the project.
    assert (project / "personal_shopper.db").exists()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "tests"]
    run = subprocess.run(command, cwd=project, env=clean_environment(), capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_nothing_is_overwritten(cli: CommandLine) -> None:
    (cli.folder / "full").mkdir()
    (cli.folder / "full" / "thesis.txt").write_text("ten years of work")
    assert "full is not empty; nothing was written" in cli.expect_refusal("init", "full")
    assert [file.name for file in (cli.folder / "full").iterdir()] == ["thesis.txt"]
    assert "cannot write" in cli.expect_refusal("init", "full/thesis.txt")
    (cli.folder / "empty").mkdir()
    assert cli("init", "empty", "--json").json["team"] == "triage"
    assert "not empty" in cli.expect_refusal("init", "empty")


def test_wrong_use_is_explained(cli: CommandLine) -> None:
    assert "there is no team 'acne'; known: acme, airline" in " ".join(
        cli.expect_usage_error("init", "x", "--team", "acne").split()
    )
    assert "name the folder" in cli.expect_usage_error("init")
    assert not Path(cli.folder / "x").exists()
