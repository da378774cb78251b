"""The documentation as a site, by Sphinx: `make docs` builds it from the Markdown that stands in the repository.

The folder of the sources is the repository itself, so that every link of README.md and docs/ leads where it leads on a
code host. Nothing that is built asks for anything from outside.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

from pygments.lexers.data import JsonLexer

import swarmkeep

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from docs.site import reference  # noqa: E402

project = "Swarmkeep"
version = release = swarmkeep.__version__
copyright = "the authors of Swarmkeep"
extensions = ["myst_parser", "sphinx.ext.autodoc"]

root_doc = "README"
include_patterns = [
    "README.md",
    "docs/*.md",
    "docs/site/*.rst",
    "docs/site/*.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "clients/python/README.md",
    "agents/swarmkeep_agents/*/README.md",
]
# Folders that need not be looked through.
exclude_patterns = [".*", "build", "dist", "tests", "server", "migrations", "benchmarks", "**/__pycache__"]

# Anchors as code hosts make them.
myst_heading_anchors = 4
# Pieces of JSON and of terminals are shown as they are.
suppress_warnings = ["misc.highlighting_failure"]

# Names in docstrings are set in single backticks.
default_role = "code"
autodoc_member_order = "groupwise"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"Swarmkeep {release}"
html_copy_source = False
html_show_sphinx = False

# The chapters, as the README has them. A page that none of them names fails the build.
CHAPTERS = {
    "": ["docs/quickstart", "docs/concepts"],
    "Building": [
        *("docs/agents", "docs/mcp", "docs/models", "docs/site/servers", "docs/evals"),
        *("docs/swarm", "docs/openai", "docs/agui"),
    ],
    "Using": [
        "docs/page",
        "docs/http",
        "docs/site/http",
        "docs/search",
        "docs/client",
        "docs/site/python",
        "docs/cli",
        "docs/site/cli",
    ],
    "Auditing": ["docs/events", "docs/site/events", "docs/verification", "docs/files", "docs/export"],
    "Running": ["docs/running", "docs/site/settings", "docs/tracing", "docs/security"],
    "The project": ["docs/architecture", "docs/benchmarks", "CONTRIBUTING", "CHANGELOG", "clients/python/README"],
    "Example teams": ["agents/swarmkeep_agents/*/README"],
}


def add_chapters(app: Any, name: str, source: list[str]) -> None:
    """Give the first page the table of contents, which the README has as a table."""
    if name != root_doc:
        return
    for title, pages in CHAPTERS.items():
        caption = [f":caption: {title}"] if title else []
        lines = ["```{toctree}", ":hidden:", ":glob:", *caption, "", *pages, "```"]
        source[0] += "\n\n" + "\n".join(lines) + "\n"


def add_reference(app: Any, name: str, source: list[str]) -> None:
    """Put what the code says of itself behind the head of a reference page."""
    if name in reference.PAGES:
        source[0] += "\n" + reference.PAGES[name]()


def shorten(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None] | None:
    """Leave the modules out of the types in a signature that a class has made for itself, as pydantic's do."""
    return signature and (re.sub(r"~(?:\w+\.)+(\w+)", r"\1", signature), returns)


def finish(app: Any, error: Exception | None) -> None:
    """The first page under the name that servers look for, and the pictures that it has as HTML."""
    if error is None and app.builder.format == "html":
        site = Path(app.outdir)
        shutil.copy(site / f"{root_doc}.html", site / "index.html")
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        for picture in set(re.findall(r'src(?:set)?="(docs/images/[\w.-]+)"', text)):
            (site / picture).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / picture, site / picture)


def setup(app: Any) -> None:
    app.add_lexer("jsonl", JsonLexer)
    app.connect("source-read", add_chapters)
    app.connect("source-read", add_reference)
    app.connect("autodoc-process-signature", shorten)
    app.connect("build-finished", finish)
