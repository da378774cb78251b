"""The documentation's files, and what stands under their headings."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from pathlib import Path

from docs.site import reference
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
# Made of the code when the site is built: of these only the heads are kept.
REFERENCE = {ROOT / f"{name}.md": write for name, write in reference.PAGES.items()}
PAGES = [
    README,
    *sorted(DOCS.glob("*.md")),
    *REFERENCE,
    ROOT / "clients" / "python" / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "agents").rglob("README.md")),
]


@cache
def read_page(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    return f"{text}\n{REFERENCE[page]()}" if page in REFERENCE else text


@cache
def read_sections(page: Path) -> dict[str, str]:
    """What stands under each heading, up to the next one of the same or a higher level; headings keep their code."""
    lines = read_page(page).splitlines()
    headings = _read_headings(page)
    found = {}
    for index, (level, line, title) in enumerate(headings):
        ends = [other for deeper, other, _ in headings[index + 1 :] if deeper <= level]
        found[title] = "\n".join(lines[line : ends[0] if ends else len(lines)])
    return found


@cache
def _read_headings(page: Path) -> list[tuple[int, int, str]]:
    """Level, line and text of each heading, in order."""
    tokens = MarkdownIt().parse(read_page(page))
    return [
        (int(token.tag[1:]), token.map[0], inline.content)
        for token, inline in pairwise(tokens)
        if token.type == "heading_open" and token.map
    ]


def list_anchors(page: Path) -> set[str]:
    """What a link can name after `#`: the headings as the code hosts write them."""
    return {make_slug(title) for _, _, title in _read_headings(page)}


def make_slug(title: str) -> str:
    """A heading in lower case, its spaces as hyphens, without anything but letters, digits, hyphens and underscores."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def find_code_spans(text: str) -> set[str]:
    """Everything that the text sets in backticks, code blocks left out."""
    return set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)))


def read_table_rows(text: str) -> list[list[str]]:
    """The rows of all tables in a text, cell by cell."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
