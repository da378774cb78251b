"""What a project made by `swarmkeep init` consists of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

PACKAGE = "swarmkeep_agents"
COPIED_SUFFIXES = (".py", ".md", ".json", ".yaml")

README = """# {team}

A team of agents for Swarmkeep, made from the example `{team}`. [{team}/README.md]({team}/README.md) says what is in it.

## Try it

Without a key, on the built-in offline model, which is no LLM:

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


def list_teams() -> dict[str, str]:
    """The teams that come along, each with a sentence about it."""
    found = {}
    for folder in sorted(files(PACKAGE).iterdir(), key=lambda entry: entry.name):
        start = folder / "__init__.py"
        if folder.is_dir() and start.is_file() and (folder / "README.md").is_file():
            about = ast.get_docstring(ast.parse(start.read_text(encoding="utf-8"))) or ""
            found[folder.name] = about.partition("\n\n")[0].replace("\n", " ")
    return found


def build_project(team: str) -> dict[str, str]:
    """The files of a project by their paths."""
    copied = {f"{team}/{path}": text for path, text in _read_files(files(PACKAGE) / team)}
    # What teams share becomes part of the one that is copied.
    waiting = list(copied.values())
    while waiting:
        for module in re.findall(rf"from {PACKAGE}\.(\w+) import", waiting.pop()):
            shared = files(PACKAGE) / f"{module}.py"
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
