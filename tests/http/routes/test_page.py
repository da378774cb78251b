"""The page's files: packed into few, given to browsers, and kept by them. What they do is tested in `tests/web`."""

from __future__ import annotations

import json
import re
from typing import get_args

import pytest

from swarmkeep.events.facts import FACTS, StopReason, ToolStatus
from swarmkeep.events.state import RunStatus, SessionStatus
from swarmkeep.http.pages import WEB, PackingError, pack
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


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
@pytest.mark.parametrize("path", ["/", "/page/main.js", "/page/marked.esm.js", "/docs", "/docs/init.js"])
async def test_unchanged_file_is_not_resent(plain: RunningServer, path: str, encoding: str) -> None:
    form = {"Accept-Encoding": encoding}
    first = await plain.get(path, headers=form)
    etag = first.headers["etag"]
    assert first.headers["cache-control"] == "no-cache"
    for sent in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        again = await plain.get(path, headers={**form, "If-None-Match": sent})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    # Compressed and not, it has different bytes, and so different tags.
    other = "identity" if encoding == "gzip" else "gzip"
    for unknown in ('"other"', (await plain.get(path, headers={"Accept-Encoding": other})).headers["etag"]):
        assert (await plain.get(path, headers={**form, "If-None-Match": unknown})).status_code == 200


@pytest.mark.parametrize("folder", ["page", "docs"])
@pytest.mark.parametrize("name", ["nothing.js", "..%2f..%2fapp.py", "LICENSE", "README.md", "index.html%00", "%2e%2e"])
async def test_nothing_else_is_served(plain: RunningServer, folder: str, name: str) -> None:
    check_problem(await plain.get(f"/{folder}/{name}"), 404, "not_found")


def test_modules_hold_one_subject() -> None:
    assert [module.name for module in MODULES if len(module.read_text(encoding="utf-8").splitlines()) > 800] == []


def test_display_words_live_in_their_modules() -> None:
    """A literal of two words or more outside of them is one that would be missed by a translation."""
    sentence = re.compile(r'"[A-Z][a-z]+ [a-z]+[^"]*"')
    found = [
        f"{module.name}: {match}"
        for module in MODULES
        if module.name not in ("text.js", "viewtext.js")
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


# Modules of JavaScript become few files. That these do what the modules do, is what all of `tests/web` shows.

SOURCE_MODULES = {
    "main.js": '// The page.\n\nimport { show, hide as away } from "./view.js";\nimport "./effect.js";\n\n'
    'const later = () => import("./rare.js");\nconst work = () => new Worker(new URL("./work.js", import.meta.url));\n'
    "show(away, later, work);\n",
    "view.js": 'import lib from "./lib.min.js";\n\nexport const show = lib.show;\nexport async function hide() {}\n',
    "lib.min.js": "/*! Licence */\nconst a={show(){}};export{a as default,a as other};\n",
    "effect.js": "globalThis.effect = `\n// no comment\n`;\n",
    "rare.js": 'import { show } from "./view.js";\nimport { only } from "./only.js";\n\n'
    "export class Rare {}\nshow(only);\n",
    "only.js": "export const only = 1;\n",
    "work.js": 'import { only } from "./only.js";\n\npostMessage(only);\n',
}


def test_lazy_and_worker_code_packed_separately() -> None:
    files = pack("main.js", SOURCE_MODULES.__getitem__)
    held = {name: re.findall(r"^// ([\w.]+)\nconst \$", source, re.MULTILINE) for name, source in files.items()}
    assert held == {
        "main.js": ["lib.min.js", "view.js", "effect.js", "main.js"],
        "rare.js": ["only.js", "rare.js"],
        # A worker shares nothing with the page.
        "work.js": ["only.js", "work.js"],
    }
    assert files["rare.js"].startswith('import { $view_js } from "./main.js";\n// only.js\n')
    assert files["rare.js"].endswith("export const { Rare } = $rare_js;\n")
    main = files["main.js"]
    assert main.endswith("export { $view_js };\n")
    assert "const { show, hide: away } = $view_js;" in main
    assert "return { default: a, other: a };" in main
    # Comments are left out, but for licences and what is text.
    assert "// The page." not in main
    assert "/*! Licence */" in main
    assert "// no comment" in main


@pytest.mark.parametrize(
    "source",
    [
        "export default class {}\n",
        "export let count = 0;\n",
        "export const { a, b } = things;\n",
        'export * from "./view.js";\n',
        'import * as all from "./view.js";\n',
        'import x from "https://elsewhere.example/x.js";\n',
        'import { gone } from "./view.js";\n',
        'import lib from "./view.js";\n',
        "const all = await load();\n",
        'import { a } from "./again.js";\nexport const b = a;\n',
    ],
)
def test_what_cannot_be_packed_is_refused(source: str) -> None:
    again = 'import { b } from "./main.js";\nexport const a = 1;\n'
    with pytest.raises(PackingError):
        pack("main.js", {**SOURCE_MODULES, "main.js": source, "again.js": again}.__getitem__)
