"""The page's files: what a browser is given, and what keeps it by itself. What they do is tested in `tests/web`."""

from __future__ import annotations

import json
import re
from typing import get_args

import pytest

from swarmkeep.events.facts import FACTS, StopReason, ToolStatus
from swarmkeep.events.state import RunStatus, SessionStatus
from swarmkeep.http.pages import WEB
from tests.http.server import RunningServer, check_problem

PAGE = WEB / "page"
MODULES = sorted(PAGE.glob("*.js"))


async def test_the_page_keeps_everything_else_out(plain: RunningServer) -> None:
    answer = await plain.get("/")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = answer.headers["content-security-policy"]
    for part in ("default-src 'self'", "img-src 'self' data:", "frame-ancestors 'none'", "base-uri 'none'"):
        assert part in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert not re.search(
        r"<script(?![^>]* src=)|<style|style=|\son\w+=|//[a-z]+\.[a-z]", answer.text.replace("//www.w3.org", "")
    )


async def test_every_page_file_exists_with_type(plain: RunningServer) -> None:
    text = (await plain.get("/")).text
    named = re.findall(r'(?:href|src)="(page/[^"]+)"', text)
    assert len(named) >= 2
    for module in MODULES:
        named += [f"page/{name}" for name in re.findall(r'from "\./([^"]+)"', module.read_text(encoding="utf-8"))]
    types = {"js": "text/javascript", "mjs": "text/javascript", "css": "text/css"}
    for name in set(named):
        answer = await plain.get(f"/{name}")
        kind = types[name.rpartition(".")[2]]
        assert (answer.status_code, answer.headers["content-type"]) == (200, f"{kind}; charset=utf-8"), name


async def test_unchanged_file_is_not_resent(plain: RunningServer) -> None:
    for path in ("/", "/page/main.js", "/page/marked.esm.js", "/docs"):
        first = await plain.get(path)
        etag = first.headers["etag"]
        assert first.headers["cache-control"] == "no-cache"
        for sent in (etag, f"W/{etag}", f'"other", {etag}', "*"):
            again = await plain.get(path, headers={"If-None-Match": sent})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
        assert (await plain.get(path, headers={"If-None-Match": '"other"'})).status_code == 200


@pytest.mark.parametrize("name", ["nothing.js", "..%2f..%2fapp.py", "LICENSE", "README.md", "index.html%00"])
async def test_nothing_else_is_served(plain: RunningServer, name: str) -> None:
    check_problem(await plain.get(f"/page/{name}"), 404, "not_found")


def test_modules_hold_one_subject() -> None:
    assert [module.name for module in MODULES if len(module.read_text(encoding="utf-8").splitlines()) > 800] == []


def test_display_words_live_in_one_module() -> None:
    """A literal of two words or more outside of `text.js` is one that would be missed by a translation."""
    sentence = re.compile(r'"[A-Z][a-z]+ [a-z]+[^"]*"')
    found = [
        f"{module.name}: {match}"
        for module in MODULES
        if module.name != "text.js"
        for match in sentence.findall(module.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_page_words_cover_server_terms() -> None:
    words = (PAGE / "text.js").read_text(encoding="utf-8")
    said = set(re.findall(r"(?:^|,)\s*\"?([\w.]+)\"?: ", words, flags=re.MULTILINE))
    assert set(FACTS) - {"message.added"} <= said
    assert {*get_args(ToolStatus), *get_args(RunStatus), *get_args(SessionStatus)} <= said
    assert set(get_args(StopReason)) - {"end_turn", "tool_calls", "approval", "error"} <= said


def test_markup_only_through_the_sanitiser() -> None:
    unsafe = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setHTMLUnsafe|srcdoc"
    )
    found = [module.name for module in MODULES if unsafe.search(module.read_text(encoding="utf-8"))]
    assert found == []


def test_vendored_files_come_with_their_licences() -> None:
    listed = (WEB / "vendor" / "README.md").read_text(encoding="utf-8")
    for folder in (WEB / "vendor").iterdir():
        if folder.is_dir():
            assert (folder / "LICENSE").is_file()
            assert f"`{folder.name}`" in listed
            assert json.loads((folder / "package.json").read_bytes())["version"] in listed
