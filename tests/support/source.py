"""Read the imports of this repository's packages from their source, without running it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "swarmkeep": ROOT / "server" / "swarmkeep",
    "swarmkeep_agents": ROOT / "agents" / "swarmkeep_agents",
    "swarmkeep_migrations": ROOT / "migrations" / "swarmkeep_migrations",
    "swarmkeep_client": ROOT / "clients" / "python" / "src" / "swarmkeep_client",
}


@dataclass(frozen=True)
class Import:
    """One imported name: `from a.b import c` is module `a.b`, name `c`; `import a.b` has no name."""

    file: Path
    line: int
    module: str
    name: str | None

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]

    @property
    def is_standard(self) -> bool:
        return self.package in sys.stdlib_module_names

    @property
    def place(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}"


def list_modules(package: str) -> list[Path]:
    return sorted(PACKAGES[package].rglob("*.py"))


def find_module_name(file: Path, package: str) -> str:
    parts = file.relative_to(PACKAGES[package]).with_suffix("").parts
    return ".".join([package, *(parts[:-1] if parts[-1] == "__init__" else parts)])


@cache
def list_imports(package: str) -> tuple[Import, ...]:
    """Every import in a package, those in functions and for type checkers included."""
    return tuple(found for file in list_modules(package) for found in _read_imports(file, package))


def _read_imports(file: Path, package: str) -> Iterator[Import]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name, None)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                here = find_module_name(file, package).split(".")
                up = node.level - (file.name == "__init__.py")
                module = ".".join(filter(None, [*here[: len(here) - up], module]))
            for alias in node.names:
                yield Import(file, node.lineno, module, alias.name)
