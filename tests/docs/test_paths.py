"""The files and folders that are named to those who change the code are there, and every package is named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, find_code_spans, read_page, read_sections
from tests.support.source import PACKAGES, list_modules

ARCHITECTURE = DOCS / "architecture.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
SECURITY = DOCS / "security.md"
# Paths are written as from the repository, or as from the server's package.
BASES = (ROOT, PACKAGES["swarmkeep"])


def find_named_paths(text: str) -> set[str]:
    """Python files, wherever they are named, and folders in backticks."""
    return set(re.findall(r"[\w./-]+\.py\b", text)) | {
        span for span in find_code_spans(text) if re.fullmatch(r"[\w.-]+(/[\w.-]+)*/", span)
    }


def read_tree(text: str) -> Iterator[str]:
    """The folders of the drawn tree, each with those that it is in."""
    above: list[str] = []
    for line in text.splitlines():
        if entry := re.match(r"( *)(\S+/)(?= |$)", line):
            above[len(entry[1]) // 4 :] = [entry[2]]
            yield "".join(above)


@pytest.mark.parametrize("page", [ARCHITECTURE, CONTRIBUTING, SECURITY], ids=lambda page: page.name)
def test_every_named_path_exists(page: Path) -> None:
    named = find_named_paths(read_sections(page)["Checklist"] if page == SECURITY else read_page(page))
    assert len(named) > 15
    assert {path for path in named if not any((base / path).exists() for base in BASES)} == set()


def test_drawn_tree_matches_the_files() -> None:
    (tree, *_) = re.findall(r"```text\n(.*?)```", read_sections(ARCHITECTURE)["Packages"], flags=re.DOTALL)
    drawn = {path.rstrip("/") for path in read_tree(tree)}
    packages = {str(file.parent.relative_to(ROOT)) for file in list_modules("swarmkeep") if file.name == "__init__.py"}
    assert {path for path in drawn if not (ROOT / path).is_dir()} == set()
    assert packages <= drawn
