"""The page at `/`: chat, and a timeline of any session. Plain files; nothing comes from elsewhere.

They are small modules and style sheets, which a browser is given joined: one script, one style sheet, and a script for
each part that is loaded on demand. These are at addresses with a digest of all of them, so that a browser asks for each
once, and again after an update only. Each file by itself is there too, for whoever reads them.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from functools import cache
from typing import Any

from litestar import Request, Response, get
from litestar.params import FromPath

from swarmkeep.api.pages.packing import pack
from swarmkeep.api.pages.static_files import (
    VENDOR,
    WEB,
    StaticFile,
    make_file,
    make_file_response,
    make_static_response,
)

_FILES = {file.name: file for file in (WEB / "page").iterdir() if file.suffix in (".html", ".css", ".js")}
_LIBRARIES = ("marked/marked.esm.js", "dompurify/purify.min.js", "highlight.js/highlight.min.js")
_FILES |= {file.name: file for file in (VENDOR / path for path in _LIBRARIES)}
# What the page of a release that joined nothing may ask for.
_PARTS = {name: file for name, file in _FILES.items() if name != "index.html"}
_EARLY = "early.js"
_BEGIN = "main.js"
_STYLES = "page.css"
_STYLE_COMMENT = re.compile(r"^/\*.*?\*/\n+", re.MULTILINE | re.DOTALL)
_STYLE_LINK = re.compile(r' *<link rel="stylesheet" href="page/([\w.-]+)">\n')

# Scripts and styles are those of the files here. Markup in text becomes part of the page through DOMPurify only, and a
# worker has the one address that `highlighting.js` gives it.
_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'; require-trusted-types-for 'script'; trusted-types dompurify highlighter"
)


@cache
def make_page() -> tuple[StaticFile, dict[str, StaticFile]]:
    """The page itself, and the files that it is given at addresses of their content, by name."""
    index = _read("index.html")
    styles = "".join(_STYLE_COMMENT.sub("", _read(name)) for name in _STYLE_LINK.findall(index))
    sources = {**pack(_EARLY, _read), **pack(_BEGIN, _read), _STYLES: styles}
    digest = hashlib.sha256("".join(f"{name}\n{source}\n" for name, source in sources.items()).encode())
    place = f"page/{digest.hexdigest()[:16]}/"
    first, *others = (found[0] for found in _STYLE_LINK.finditer(index))
    for link in others:
        index = index.replace(link, "")
    index = index.replace(first, f'    <link rel="stylesheet" href="page/{_STYLES}">\n').replace('"page/', f'"{place}')
    files = {name: make_file(source.encode(), f".{name.rpartition('.')[2]}") for name, source in sources.items()}
    return make_file(index.encode(), ".html"), {place + name: file for name, file in files.items()}


async def _get_page() -> tuple[StaticFile, dict[str, StaticFile]]:
    # To join and compress them takes longer than one should hold up the others.
    return make_page() if make_page.cache_info().currsize else await asyncio.to_thread(make_page)


def _read(name: str) -> str:
    return _FILES[name].read_text(encoding="utf-8")


@get("/", include_in_schema=False)
async def get_page(request: Request[Any, Any, Any]) -> Response[Any]:
    index, _ = await _get_page()
    return make_static_response(request, index, _POLICY)


@get("/page/{version:str}/{name:str}", include_in_schema=False)
async def get_page_file_of_version(
    request: Request[Any, Any, Any], version: FromPath[str], name: FromPath[str]
) -> Response[Any]:
    """While servers are updated one by one, a page of one may ask another for its files: it gets those that there are,
    and keeps none of them."""
    _, files = await _get_page()
    if file := files.get(f"page/{version}/{name}"):
        return make_static_response(request, file, _POLICY, is_kept=True)
    for path, file in files.items():
        if path.endswith(f"/{name}"):
            return make_static_response(request, file, _POLICY)
    return make_file_response(request, _PARTS, name, _POLICY)


@get("/page/{name:str}", include_in_schema=False)
async def get_page_file(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[Any]:
    return make_file_response(request, _FILES, name, _POLICY)


ROUTES = [get_page, get_page_file_of_version, get_page_file]
