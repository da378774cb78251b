"""The house stays as it is drawn: rooms import one way, start light, and hold nothing of one machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import swarmkeep
from tests.support.source import PACKAGES, ROOT, Import, list_imports, list_modules

# Which rooms each room of the server may import: agent ← domain ← store ← engine ← audit ← api, cli ← app, repl.
# A module beside the rooms goes by its own name; `__init__` is the package itself, the public names.
LAYERS: dict[str, set[str]] = {
    "agent": set(),
    "domain": {"agent"},
    "store": {"agent", "domain"},
    "engine": {"agent", "domain", "store"},
    "audit": {"agent", "domain", "store", "engine"},
    "api": {"agent", "domain", "store", "engine", "audit", "__init__"},
    "evals": {"agent", "domain", "store", "engine", "audit"},
    # `serve` starts the composition root, and only then loads it: see test_the_start_is_light.
    "cli": {"agent", "domain", "store", "engine", "audit", "evals", "server", "settings", "__init__"},
    "app": {"agent", "domain", "store", "engine", "audit", "api", "settings", "__init__"},
    "server": {"engine", "store", "app", "connections", "settings"},
    "connections": set(),
    "settings": set(),
    "testing": {"agent", "domain", "engine", "audit"},
    "repl": {"agent", "domain", "store", "engine", "cli"},
    "__init__": {"agent", "domain", "engine"},
    "__main__": {"cli"},
}

# Rooms that may import only these from outside, next to the standard library.
ALLOWED_OUTSIDE: dict[str, set[str]] = {
    "agent": {"pydantic", "docstring_parser"},
    "domain": {"pydantic", "msgspec"},
    "store": {"sqlalchemy", "asyncpg", "alembic", "msgspec", "cachetools", "swarmkeep_migrations"},
}

# Packages that only these rooms may import.
ONLY_IN: dict[str, set[str]] = {
    "openai": {"engine"},
    "httpx2": {"engine"},
    "litestar": {"api", "app", "server"},
    "uvicorn": {"cli", "server", "connections"},
    "prometheus_client": {"api"},
    "typer": {"cli"},
    "swarmkeep_client": {"cli", "repl"},
    "prompt_toolkit": {"cli"},
    "yaml": {"evals"},
}


def find_layer(file: Path) -> str:
    """The folder below the server's package, or the module's name where it stands beside the rooms."""
    return file.relative_to(PACKAGES["swarmkeep"]).parts[0].removesuffix(".py")


def find_imported_layer(found: Import) -> str:
    """The room that an import of the server's own reaches into; a bare `swarmkeep` is the package itself."""
    path = [*found.module.split(".")[1:], *([found.name] if found.name else [])]
    return path[0] if path and path[0] in LAYERS else "__init__"


def test_every_layer_is_listed() -> None:
    assert {find_layer(file) for file in list_modules("swarmkeep")} <= set(LAYERS)


def test_layers_import_one_way() -> None:
    wrong = [
        f"{found.place}: {room} imports {imported}"
        for found in list_imports("swarmkeep")
        if found.package == "swarmkeep"
        and (room := find_layer(found.file)) != (imported := find_imported_layer(found))
        and imported not in LAYERS[room]
    ]
    assert wrong == []


def test_pure_layers_need_little_from_outside() -> None:
    wrong = [
        f"{found.place}: {room} imports {found.package}"
        for found in list_imports("swarmkeep")
        if (room := find_layer(found.file)) in ALLOWED_OUTSIDE
        and found.package not in {"swarmkeep", *ALLOWED_OUTSIDE[room]}
        and not found.is_standard
    ]
    assert wrong == []


def test_heavy_packages_stay_in_their_layers() -> None:
    wrong = [
        f"{found.place}: {found.package} belongs in {', '.join(sorted(ONLY_IN[found.package]))}"
        for package in ("swarmkeep", "swarmkeep_agents", "swarmkeep_migrations")
        for found in list_imports(package)
        if found.package in ONLY_IN
        and not (package == "swarmkeep" and find_layer(found.file) in ONLY_IN[found.package])
    ]
    assert wrong == []


def test_example_teams_use_only_public_names() -> None:
    public = set(getattr(swarmkeep, "__all__", ()))
    wrong = [
        f"{found.place}: {found.module} {found.name or ''}"
        for found in list_imports("swarmkeep_agents")
        if not found.is_standard
        and found.package != "swarmkeep_agents"
        and not (found.module == "swarmkeep" and (found.name is None or found.name in public))
        and found.module != "swarmkeep.repl"
    ]
    assert wrong == []


def test_migrations_need_no_server() -> None:
    allowed = {"alembic", "sqlalchemy", "swarmkeep_migrations"}
    wrong = [
        f"{found.place}: {found.module}"
        for found in list_imports("swarmkeep_migrations")
        if not found.is_standard
        and found.package not in allowed
        and not (found.package == "swarmkeep" and find_imported_layer(found) == "store")
    ]
    assert wrong == []


def test_the_client_imports_nothing_of_ours() -> None:
    wrong = [
        f"{found.place}: {found.module}"
        for found in list_imports("swarmkeep_client")
        if not found.is_standard and found.package not in {"swarmkeep_client", "httpx2", "msgspec"}
    ]
    assert wrong == []


STARTS = {
    "import": "import swarmkeep",
    "names": "from swarmkeep import Agent, Response, Result, tool",
    "help": "import runpy; sys.argv = ['swarmkeep', '--help']; runpy.run_module('swarmkeep', run_name='__main__')",
}


@pytest.mark.parametrize("start", STARTS)
def test_the_start_is_light(start: str, tmp_path: Path) -> None:
    """Litestar and openai take more than a second to load, pydantic half of one: who needs none shall not wait."""
    program = f"""
import sys
try:
    {STARTS[start]}
except SystemExit as end:
    assert not end.code, end.code
heavy = {{"litestar", "openai", "sqlalchemy"}} | ({{"pydantic"}} if {start != "names"} else set())
loaded = heavy & set(sys.modules)
sys.exit(f"loaded: {{sorted(loaded)}}" if loaded else 0)
"""
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr


def test_modules_stay_short() -> None:
    long = {
        str(file.relative_to(ROOT)): lines
        for package in PACKAGES
        for file in list_modules(package)
        if (lines := len(file.read_text(encoding="utf-8").splitlines())) > 300
    }
    assert long == {}


@cache
def read_project(folder: str = ".") -> dict[str, object]:
    described = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert isinstance(described, dict)
    return described


def read_requirements(folder: str) -> list[Requirement]:
    described = read_project(folder)
    lines = list(described["dependencies"])  # type: ignore[call-overload]
    for extra in described.get("optional-dependencies", {}).values():  # type: ignore[attr-defined]
        lines += extra
    return [Requirement(line) for line in lines]


def test_server_and_client_have_one_version() -> None:
    version = read_project()["version"]
    assert read_project("clients/python")["version"] == version
    (client,) = [needed for needed in read_requirements(".") if needed.name == "swarmkeep-client"]
    assert client.specifier.contains(str(version))


def test_every_dependency_is_pinned_within_its_range() -> None:
    pins = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            pin = Requirement(line)
            pins[canonicalize_name(pin.name)] = str(pin.specifier).removeprefix("==")
    wrong = [
        f"{needed} but {pins.get(name)}"
        for folder in (".", "clients/python")
        for needed in read_requirements(folder)
        if (name := canonicalize_name(needed.name)) != "swarmkeep-client"
        and not needed.specifier.contains(pins.get(name, "0"))
    ]
    assert wrong == []


# Made by tools, or other people's.
SKIPPED_FOLDERS = {".git", ".venv", ".make", ".hypothesis", "dist", "build", "node_modules", "vendor", "__pycache__"}
TEXT_SUFFIXES = {
    "", ".py", ".pyi", ".md", ".toml", ".txt", ".yml", ".yaml", ".json", ".jsonl", ".ini", ".mako", ".sh", ".sql",
    ".html", ".css", ".js", ".svg",
}  # fmt: skip


@cache
def read_texts() -> dict[str, str]:
    """Every text file of the repository by its path; one that is not UTF-8 fails here, by name."""
    found = {}
    for folder, names, files in os.walk(ROOT):
        names[:] = [
            name for name in names if name not in SKIPPED_FOLDERS and not name.endswith(("_cache", ".egg-info"))
        ]
        for file in (Path(folder, name) for name in files):
            # A worktree's .git is a file.
            if file.suffix not in TEXT_SUFFIXES or file.name in (".git", ".env", ".coverage"):
                continue
            place = str(file.relative_to(ROOT))
            try:
                found[place] = file.read_bytes().decode("utf-8")
            except UnicodeDecodeError as error:
                raise AssertionError(f"{place} is not UTF-8: {error}") from error
    return found


def find_lines(pattern: str) -> list[str]:
    wanted = re.compile(pattern)
    return [
        f"{place}:{number}: {line.strip()[:120]}"
        for place, text in read_texts().items()
        for number, line in enumerate(text.splitlines(), start=1)
        if wanted.search(line)
    ]


def test_every_file_is_plain_text_in_utf_8() -> None:
    assert {"Makefile", "README.md", "LICENSE", os.path.join(".ci", "run")} <= set(read_texts())
    assert [place for place, text in read_texts().items() if "\r" in text or text.startswith("\ufeff")] == []


def test_nothing_is_left_for_later() -> None:
    # Written in pieces, here and below, so that these lines do not find themselves.
    assert find_lines(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b") == []


def test_no_file_names_a_package_index_or_one_machine() -> None:
    hosts = ["py" + r"pi\.org", "python" + r"hosted\.org", "npm" + r"js\.(org|com)", "deb" + r"ian\.org"]
    options = ["--(extra-)?index" + "-url", "--default" + "-index", "trusted" + "-host"]
    folders = [r"(?<![\w./-])/" + folder + r"/\w" for folder in ("root", "work", "home", "Users")]
    assert find_lines("|".join([*hosts, *options, *folders])) == []
