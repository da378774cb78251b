"""`make docs`: the documentation as a site, without a dead link, and with nothing from outside."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

import swarmkeep
import swarmkeep_client
from tests.docs.pages import PAGES, REFERENCE, ROOT, find_code_spans, list_anchors, read_page
from tests.support.processes import clean_environment

pytestmark = pytest.mark.long

# What a browser loads by itself. A link is followed by a person.
LOADED = {"script": "src", "img": "src", "source": "srcset", "iframe": "src", "link": "href", "use": "href"}
NOT_LOADED = {"next", "prev", "index", "search", "genindex", "author", "canonical"}


class Page(HTMLParser):
    """What a page of the site loads, and where it leads."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.loads: set[str] = set()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.anchors.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        elif tag in LOADED and LOADED[tag] in given and given.get("rel") not in NOT_LOADED:
            self.loads.add(given[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = ["make", "--no-print-directory", "docs", f"SITE={folder}"]
    done = subprocess.run(command, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {file: Page(file) for file in site.rglob("*.html") if "_static" not in file.parts}


def list_local(file: Path, targets: set[str]) -> Iterator[tuple[Path, str]]:
    for target in targets:
        path, _, anchor = target.partition("#")
        if not re.match(r"[a-z]+:", path):
            yield (file.parent / unquote(path.partition("?")[0])).resolve() if path else file, unquote(anchor)


def test_nothing_is_loaded_from_outside(site: Path, pages: dict[Path, Page]) -> None:
    loads = {target for page in pages.values() for target in page.loads}
    assert len(loads) > 10
    assert {target for target in loads if re.match(r"(?!data:)[a-z]+:|//", target)} == set()
    styles = "".join(file.read_text(encoding="utf-8") for file in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//[^)'\"]+", styles) == []
    # What it loads is there.
    assert {file for page in pages for file, _ in list_local(page, pages[page].loads) if not file.exists()} == set()


def test_pages_reachable_and_links_valid(site: Path, pages: dict[Path, Page]) -> None:
    built = {(site / page.relative_to(ROOT)).with_suffix(".html") for page in PAGES}
    reached, left = set(), [site / "index.html"]
    while left:
        file = left.pop()
        if file in reached or file not in pages:
            continue
        reached.add(file)
        for target, anchor in list_local(file, pages[file].links):
            assert target.exists(), f"{file.relative_to(site)}: {target}"
            assert not anchor or target not in pages or anchor in pages[target].anchors, f"{file}: {target}#{anchor}"
            left.append(target)
    assert built <= reached


def test_reference_is_that_of_the_code(site: Path, pages: dict[Path, Page]) -> None:
    for source in REFERENCE:
        file = (site / source.relative_to(ROOT)).with_suffix(".html")
        assert list_anchors(source) <= pages[file].anchors
        shown = file.read_text(encoding="utf-8")
        names = {span for span in find_code_spans(read_page(source)) if re.fullmatch(r"[\w.-]+", span)}
        assert len(names) > 20
        assert {name for name in names if name not in shown} == set()


def test_search_and_name_index_complete(site: Path, pages: dict[Path, Page]) -> None:
    assert '"whatif"' in (site / "searchindex.js").read_text(encoding="utf-8")
    named = pages[site / "docs" / "site" / "python.html"].anchors
    # Names for a type, such as an alias, have no place of their own.
    for package in (swarmkeep, swarmkeep_client):
        classes = {f"{package.__name__}.{name}" for name in package.__all__ if isinstance(getattr(package, name), type)}
        assert len(classes) > 5
        assert classes <= named
