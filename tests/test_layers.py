"""The layers of docs/architecture.md hold: imports point one way, the start is light, no file is about one machine."""

from __future__ import annotations

import ast
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
from swarmkeep.store.schema import upgrade
from tests.support.processes import clean_environment, free_port
from tests.support.source import (
    PACKAGES,
    ROOT,
    Import,
    find_circles,
    list_imports,
    list_modules,
    map_imports,
    map_page_imports,
)

# Which layers each layer of the server may import. A module beside the packages is a layer of its own name; `__init__`
# is the package itself, the public names.
LAYERS: dict[str, set[str]] = {
    "agent": set(),
    "guardrails": {"agent"},
    "events": {"agent"},
    "request": {"agent", "events"},
    "decide": {"agent", "events"},
    "store": {"agent", "events"},
    "models": {"agent", "events", "request"},
    "mcp": {"agent", "events", "decide", "models"},
    "logs": {"events"},
    "runs": {"agent", "events", "request", "decide", "store", "models", "mcp", "logs"},
    "describe": {"events"},
    "history": {"agent", "events", "request", "decide", "store", "models", "runs", "describe"},
    "evals": {"agent", "events", "decide", "store", "runs", "history"},
    "http": {"agent", "events", "request", "decide", "store", "mcp", "runs", "history", "evals", "logs", "__init__"},
    # `__init__`: the version.
    "openai": {"agent", "events", "request", "decide", "store", "models", "runs", "logs", "http", "__init__"},
    "agui": {"events", "request", "decide", "store", "runs", "logs", "http"},
    "mcp_server": {"events", "logs", "http", "__init__"},
    # The composition root.
    "serve": {
        "agent", "events", "store", "models", "runs", "history", "logs", "http", "openai", "agui", "mcp_server",
        "__init__",
    },
    # `serve` starts the composition root, and only then loads it: see test_the_start_is_light.
    "cli": {
        "agent", "events", "decide", "store", "models", "mcp", "runs", "describe", "history", "evals", "serve",
        "__init__",
    },
    "testing": {"agent", "runs", "history"},
    "repl": {"agent", "events", "decide", "store", "models", "runs", "cli"},
    "__init__": {"agent", "runs"},
    "__main__": {"cli"},
}  # fmt: skip

# Layers that may import only these from outside, next to the standard library.
ALLOWED_OUTSIDE: dict[str, set[str]] = {
    "agent": {"pydantic", "docstring_parser", "jsonschema_rs"},
    "events": {"msgspec"},
    "request": {"msgspec"},
    "decide": {"msgspec"},
    "store": {"sqlalchemy", "asyncpg", "alembic", "msgspec", "cachetools", "cryptography", "swarmkeep_migrations"},
}

# Packages that only these layers may import.
ONLY_IN: dict[str, set[str]] = {
    # In `openai` for the shapes that it describes, when somebody asks for them.
    "openai": {"models", "runs", "openai"},
    "httpx2": {"models", "mcp", "history"},
    "aiohttp": {"models", "runs"},
    "litestar": {"http", "openai", "agui", "mcp_server", "serve"},
    "uvicorn": {"serve"},
    "prometheus_client": {"http"},
    "typer": {"cli"},
    "swarmkeep_client": {"cli", "repl"},
    "prompt_toolkit": {"cli"},
    "ruamel": {"evals"},
    "opentelemetry": {"runs", "serve"},
    "mcp": {"mcp", "mcp_server"},
    "anyio": {"mcp"},
}


# Programs of their own, which an example's agents speak to.
EXAMPLE_SERVERS = {ROOT / "agents" / "swarmkeep_agents" / "librarian" / "notes.py"}


def find_layer(file: Path) -> str:
    """The folder below the server's package, or the module's name where it stands beside the packages."""
    return file.relative_to(PACKAGES["swarmkeep"]).parts[0].removesuffix(".py")


def find_imported_layer(found: Import) -> str:
    """The layer that an import of the server's own reaches into; a bare `swarmkeep` is the package itself."""
    path = [*found.module.split(".")[1:], *([found.name] if found.name else [])]
    return path[0] if path and path[0] in LAYERS else "__init__"


def test_every_layer_is_listed() -> None:
    assert {find_layer(file) for file in list_modules("swarmkeep")} <= set(LAYERS)


def test_layers_import_one_way() -> None:
    wrong = [
        f"{found.place}: {layer} imports {imported}"
        for found in list_imports("swarmkeep")
        if found.package == "swarmkeep"
        and (layer := find_layer(found.file)) != (imported := find_imported_layer(found))
        and imported not in LAYERS[layer]
    ]
    assert wrong == []


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_have_no_import_cycles(package: str) -> None:
    """Neither by imports for type checkers, nor by those inside of functions: these only hide that it is one."""
    assert find_circles(map_imports(package)) == []


def test_page_modules_have_no_import_cycles() -> None:
    """Neither by what is loaded on demand, nor by what runs in a worker."""
    assert find_circles(map_page_imports()) == []


def test_pure_layers_need_little_from_outside() -> None:
    wrong = [
        f"{found.place}: {layer} imports {found.package}"
        for found in list_imports("swarmkeep")
        if (layer := find_layer(found.file)) in ALLOWED_OUTSIDE
        and found.package not in {"swarmkeep", *ALLOWED_OUTSIDE[layer]}
        and not found.is_standard
    ]
    assert wrong == []


def test_heavy_packages_stay_in_their_layers() -> None:
    wrong = [
        f"{found.place}: {found.package} belongs in {', '.join(sorted(ONLY_IN[found.package]))}"
        for package in ("swarmkeep", "swarmkeep_agents", "swarmkeep_migrations")
        for found in list_imports(package)
        if found.package in ONLY_IN
        and found.file not in EXAMPLE_SERVERS
        and not (package == "swarmkeep" and find_layer(found.file) in ONLY_IN[found.package])
    ]
    assert wrong == []


def test_example_teams_use_only_public_names() -> None:
    public = set(getattr(swarmkeep, "__all__", ()))
    wrong = [
        f"{found.place}: {found.module} {found.name or ''}"
        for found in list_imports("swarmkeep_agents")
        if not found.is_standard
        and found.file not in EXAMPLE_SERVERS
        and found.package != "swarmkeep_agents"
        and not (found.module == "swarmkeep" and (found.name is None or found.name in public))
        and found.module != "swarmkeep.repl"
    ]
    assert wrong == []


def test_programs_for_strangers_are_short_and_need_python_alone() -> None:
    folder = PACKAGES["swarmkeep"] / "history"
    program, proofs = (folder / name for name in ("swarmkeep_verify.py", "swarmkeep_proofs.py"))
    assert len(program.read_text(encoding="utf-8").splitlines()) < 200
    imported = [found for found in list_imports("swarmkeep") if found.file in (program, proofs)]
    assert {found.file for found in imported} == {program, proofs}
    others = {(found.file, found.module) for found in imported if not found.is_standard}
    assert others == {(proofs, "swarmkeep.history.swarmkeep_verify")}
    for file in (program, proofs):
        ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 9))


def test_migrations_import_only_alembic_and_sqlalchemy() -> None:
    """A migration that runs the server's code breaks as soon as that code knows a column that comes later."""
    wrong = [
        f"{found.place}: {found.module}"
        for found in list_imports("swarmkeep_migrations")
        if not found.is_standard and found.package not in {"alembic", "sqlalchemy"}
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
heavy = {{"litestar", "mcp", "openai", "opentelemetry", "sqlalchemy"}}
heavy |= {{"pydantic"}} if {start != "names"} else set()
loaded = heavy & set(sys.modules)
sys.exit(f"loaded: {{sorted(loaded)}}" if loaded else 0)
"""
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr


def test_folders_are_all_in_short_run(request: pytest.FixtureRequest) -> None:
    asked = request.config
    if (
        [Path(one).name for one in asked.args] != ["tests"]
        or asked.option.keyword
        or getattr(asked.option, "lf", False)
    ):
        pytest.skip("only some of the tests were asked for")
    folders = {file.relative_to(ROOT / "tests").parts[0] for file in (ROOT / "tests").rglob("test_*.py")}
    # The small real model has a target of its own; whole installations, and servers that die again and again, take
    # as long as all the rest of a folder.
    chosen = {item.path.relative_to(ROOT / "tests").parts[0] for item in request.session.items}
    assert folders - chosen <= {"llm", "wheels", "chaos"}


def test_server_command_needs_no_database() -> None:
    program = """
import sys
from swarmkeep.cli.app import main
try:
    main()
except SystemExit as end:
    said = end.code
heavy = {"alembic", "litestar", "openai", "sqlalchemy", "uvicorn"} & set(sys.modules)
sys.exit(f"loaded: {sorted(heavy)}" if heavy else 0 if said and "swarmkeep_client" in sys.modules else "asked nobody")
"""
    command = [sys.executable, "-c", program, "sessions", "list", "--url", f"http://127.0.0.1:{free_port()}"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr


def test_sqlite_file_command_is_light(tmp_path: Path) -> None:
    """It needs no HTTP on either side, no agents' model, no migrations, no audit and no terminal."""
    upgrade(f"sqlite:///{tmp_path / 'swarmkeep.db'}")
    program = """
import sys
sys.argv = ["swarmkeep", "sessions", "list"]
from swarmkeep.cli.app import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
heavy = {
    "alembic", "asyncpg", "httpx2", "litestar", "openai", "prompt_toolkit", "rich", "sqlalchemy.dialects.postgresql",
    "uvicorn",
    "swarmkeep.serve.app", "swarmkeep.history.redact", "swarmkeep.history.replay", "swarmkeep.history.verify",
    "swarmkeep_client.client",
}
loaded = heavy & set(sys.modules)
commands = "swarmkeep.cli.commands."
own = (commands + "session", commands + "takeovers")
others = {name for name in sys.modules if name.startswith(commands) and not name.startswith(own)}
sys.exit(f"loaded: {sorted(loaded | others)}" if loaded | others else 0)
"""
    command = [sys.executable, "-c", program]
    run = subprocess.run(
        command,
        cwd=tmp_path,
        env=clean_environment({}),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_only_the_command_line_loads_commands() -> None:
    wrong = [
        found.place
        for found in list_imports("swarmkeep")
        if found.module.startswith("swarmkeep.cli.commands") and "commands" not in found.file.parts
    ]
    assert wrong == []


def test_modules_hold_one_subject() -> None:
    long = {
        str(file.relative_to(ROOT)): lines
        for package in PACKAGES
        for file in list_modules(package)
        if (lines := len(file.read_text(encoding="utf-8").splitlines())) > 800
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


def test_dependencies_are_pinned_within_range() -> None:
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


def test_files_are_plain_utf_8_text() -> None:
    assert {"Makefile", "README.md", "LICENSE", os.path.join(".ci", "run")} <= set(read_texts())
    assert [place for place, text in read_texts().items() if "\r" in text or text.startswith("\ufeff")] == []


def test_nothing_is_left_for_later() -> None:
    # Written in pieces, here and below, so that these lines do not find themselves.
    assert find_lines(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b") == []


def test_files_name_no_index_or_machine() -> None:
    hosts = ["py" + r"pi\.org", "python" + r"hosted\.org", "npm" + r"js\.(org|com)", "deb" + r"ian\.org"]
    options = ["--(extra-)?index" + "-url", "--default" + "-index", "trusted" + "-host"]
    folders = [r"(?<![\w./-])/" + folder + r"/\w" for folder in ("root", "work", "home", "Users")]
    assert find_lines("|".join([*hosts, *options, *folders])) == []
