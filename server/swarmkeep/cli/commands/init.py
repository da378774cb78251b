"""`swarmkeep init`: a team that comes with the package, copied out as a project of one's own."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from importlib.resources import files as package_files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from swarmkeep.cli.options import Commands, JsonOutput
from swarmkeep.cli.terminal import Refused, describe_os_error, put, put_json, put_table, say

PACKAGE = "swarmkeep_agents"
COPIED_SUFFIXES = (".py", ".md", ".json", ".yaml")

README = """# {team}

A team of agents for Swarmkeep, made from the example `{team}`. [{team}/README.md]({team}/README.md) says what is in it.

## Try it

Without a key, on the built-in offline model, which is not an LLM:

    swarmkeep chat --offline --agents {team}

With a real one: copy `.env.example` to `.env`, and fill it in. Then, in this folder:

    swarmkeep chat
    swarmkeep serve

## Test it

The cases in `{team}/evals` say what is expected of the agents. `tests/` tries them on the offline model, where
cases that need a real model are skipped; it needs pytest (`pip install pytest`).

    swarmkeep eval {team}/evals --offline
    python -m pytest

Change the agents in `{team}/__init__.py`, and the cases with them.
"""

ENV = """# Copy this file to .env and fill it in. swarmkeep reads .env in the folder that it is started in.
SWARMKEEP_AGENTS={team}
SWARMKEEP_DATABASE_URL=sqlite:///swarmkeep.db

# OpenAI:
#OPENAI_API_KEY=

# Or any server that speaks Chat Completions, such as Ollama or vLLM:
#OPENAI_BASE_URL=http://127.0.0.1:11434/v1
#SWARMKEEP_MODEL=llama3.2
"""

GITIGNORE = """.env
*.db
*.db-shm
*.db-wal
__pycache__/
"""

TEST = '''"""What the cases in the evals expect comes true on the built-in offline model, which needs no key."""

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parent.parent


def test_the_cases_pass() -> None:
    command = [sys.executable, "-m", "swarmkeep", "eval", "{team}/evals", "--agents", "{team}", "--offline"]
    subprocess.run(command, cwd=PROJECT, check=True)
'''


commands = Commands()


@commands.add("""
    swarmkeep init --list
    swarmkeep init my-shop --team acme
""")
def init(
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="The project's folder; it must be new or empty.")
    ] = None,
    team: Annotated[str, typer.Option("--team", metavar="NAME", help="The team to begin with.")] = "triage",
    listed: Annotated[bool, typer.Option("--list", help="List the teams instead.")] = False,
    as_json: JsonOutput = False,
) -> None:
    """Copy an example team into a new folder, with a README, an example of a .env file, evals and a test.

    Nothing is overwritten: a folder that is not empty is refused.
    """
    known = list_teams()
    if listed:
        rows = [{"team": name, "about": about} for name, about in known.items()]
        put_json(rows) if as_json else put_table(("TEAM", "ABOUT"), [(row["team"], row["about"]) for row in rows])
        return
    if folder is None:
        raise typer.BadParameter("name the folder to make, or use --list", param_hint="'DIR'")
    if team not in known:
        raise typer.BadParameter(f"there is no team {team!r}; known: {', '.join(known)}", param_hint="'--team'")
    files = build_project(team)
    _write_project(folder, files)
    if as_json:
        put_json({"folder": str(folder), "team": team, "files": sorted(files)})
        return
    for name in sorted(files):
        put(str(folder / name))
    say(f"\nNext:\n\n  cd {shlex.quote(str(folder))}\n  swarmkeep chat --offline --agents {team}\n")


def _write_project(folder: Path, files: dict[str, str]) -> None:
    """Write the files. Raises Refused where there is something already, and then writes nothing."""
    try:
        if folder.is_dir() and any(folder.iterdir()):
            raise Refused(f"{folder} is not empty; nothing was written, name a new folder")
        _write_files(folder, files)
    except OSError as error:
        raise Refused(f"cannot write {error.filename or folder}: {describe_os_error(error)}") from None


def _write_files(folder: Path, files: dict[str, str]) -> None:
    """All of them, or, where that cannot be, none: what was made is taken away again."""
    made: list[Path] = []
    try:
        for name, text in files.items():
            file = folder / name
            missing = [parent for parent in (file.parent, *file.parent.parents) if not parent.exists()]
            for parent in reversed(missing):
                parent.mkdir()
                made.append(parent)
            with file.open("x", encoding="utf-8", newline="\n") as opened:
                made.append(file)
                opened.write(text)
    except BaseException:
        for path in reversed(made):
            path.rmdir() if path.is_dir() else path.unlink()
        raise


def list_teams() -> dict[str, str]:
    """The teams that come along, each with a sentence about it."""
    found = {}
    for folder in sorted(package_files(PACKAGE).iterdir(), key=lambda entry: entry.name):
        start = folder / "__init__.py"
        if folder.is_dir() and start.is_file() and (folder / "README.md").is_file():
            about = ast.get_docstring(ast.parse(start.read_text(encoding="utf-8"))) or ""
            found[folder.name] = about.partition("\n\n")[0].replace("\n", " ")
    return found


def build_project(team: str) -> dict[str, str]:
    """The files of a project by their paths."""
    copied = {f"{team}/{path}": text for path, text in _read_files(package_files(PACKAGE) / team)}
    # What teams share becomes part of the one that is copied.
    waiting = list(copied.values())
    while waiting:
        for module in re.findall(rf"from {PACKAGE}\.(\w+) import", waiting.pop()):
            shared = package_files(PACKAGE) / f"{module}.py"
            if shared.is_file() and f"{team}/{module}.py" not in copied:
                copied[f"{team}/{module}.py"] = text = shared.read_text(encoding="utf-8")
                waiting.append(text)
    return {
        **{path: _rename_package(text, team) for path, text in copied.items()},
        "README.md": README.format(team=team),
        ".env.example": ENV.format(team=team),
        ".gitignore": GITIGNORE,
        f"tests/test_{team}.py": TEST.format(team=team),
    }


def _read_files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, str]]:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.name.startswith(("__", ".")):
            yield from _read_files(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(COPIED_SUFFIXES):
            yield prefix + entry.name, entry.read_text(encoding="utf-8")


def _rename_package(text: str, team: str) -> str:
    """The text as the project's own: its package is no longer part of another."""
    own = re.sub(rf"\b{PACKAGE}\.{team}\b", team, text)
    return re.sub(rf"\b{PACKAGE}\.(?=\w+ import)", f"{team}.", own)
