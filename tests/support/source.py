"""Read the imports of this repository's packages from their source, without running it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
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
PAGE = PACKAGES["swarmkeep"] / "web" / "page"
# `import … from "./a.js"`, `export … from "./a.js"`, `import("./a.js")` and `new URL("./a.js", import.meta.url)`.
_PAGE_IMPORT = re.compile(r"""(?:\bfrom\s*|\bimport\s*\(?\s*|\bnew URL\(\s*)["']\./([\w.-]+\.js)["']""")


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


def map_imports(package: str) -> dict[str, set[str]]:
    """By the name of each module in a package, those of the same package that it imports."""
    modules: dict[str, set[str]] = {find_module_name(file, package): set() for file in list_modules(package)}
    for found in list_imports(package):
        # `from a import b` names a module, if there is one of that name.
        named = f"{found.module}.{found.name}"
        target = named if named in modules else found.module
        if target in modules:
            modules[find_module_name(found.file, package)].add(target)
    return modules


def map_page_imports() -> dict[str, set[str]]:
    """By the name of each module of the page, those that it imports, loads on demand, or runs in a worker."""
    return {file.name: set(_PAGE_IMPORT.findall(file.read_text(encoding="utf-8"))) for file in PAGE.glob("*.js")}


def find_circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """The modules that import each other, directly or by way of others: each such group once, sorted."""
    reached = {name: _find_reached(imports, name) for name in imports}
    groups = {tuple(sorted(other for other in names if name in reached[other])) for name, names in reached.items()}
    return sorted(list(group) for group in groups if group)


def _find_reached(imports: Mapping[str, set[str]], name: str) -> set[str]:
    reached: set[str] = set()
    waiting = [name]
    while waiting:
        for other in imports[waiting.pop()] & imports.keys():
            if other not in reached:
                reached.add(other)
                waiting.append(other)
    return reached
