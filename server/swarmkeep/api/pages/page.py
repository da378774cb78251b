"""The page at `/`: chat, and a timeline of any session. Plain files; nothing comes from elsewhere."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, get
from litestar.params import FromPath

from swarmkeep.api.pages.static_files import VENDOR, WEB, file_response

_FILES = {file.name: file for file in (WEB / "page").iterdir() if file.suffix in (".html", ".css", ".js")}
_FILES |= {file.name: file for file in (VENDOR / "marked" / "marked.esm.js", VENDOR / "dompurify" / "purify.es.mjs")}

# Scripts and styles are those of the files here. Markup in text becomes part of the page through DOMPurify only.
_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'; require-trusted-types-for 'script'; trusted-types dompurify"
)


@get("/", include_in_schema=False)
async def get_page(request: Request[Any, Any, Any]) -> Response[Any]:
    return file_response(request, _FILES, "index.html", _POLICY)


@get("/page/{name:str}", include_in_schema=False)
async def get_page_file(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[Any]:
    return file_response(request, _FILES, name, _POLICY)


ROUTES = [get_page, get_page_file]
