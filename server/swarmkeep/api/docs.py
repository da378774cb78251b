"""The OpenAPI document, and a page that shows it. The page loads nothing from outside."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from litestar import Request, Response, get
from litestar.exceptions import NotFoundException
from litestar.params import FromPath

from swarmkeep.api.document import document

_WEB = Path(__file__).resolve().parents[1] / "web"
_FILES = {
    "index.html": (_WEB / "docs", "text/html"),
    "init.js": (_WEB / "docs", "text/javascript"),
    "swagger-ui.css": (_WEB / "vendor" / "swagger-ui", "text/css"),
    "swagger-ui-bundle.js": (_WEB / "vendor" / "swagger-ui", "text/javascript"),
}
# The page's own library sets styles on elements; scripts come from files alone.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; object-src 'none'; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@cache
def _file(name: str) -> tuple[bytes, str]:
    content = (_FILES[name][0] / name).read_bytes()
    return content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def _served(request: Request[Any, Any, Any], name: str) -> Response[Any]:
    if name not in _FILES:
        raise NotFoundException
    content, etag = _file(name)
    headers = {**_HEADERS, "ETag": etag}
    if etag in request.headers.get("if-none-match", ""):
        return Response[Any](None, status_code=304, headers=headers)
    return Response[Any](content, media_type=_FILES[name][1], headers=headers)


@get("/docs", include_in_schema=False)
async def docs_page(request: Request[Any, Any, Any]) -> Response[Any]:
    return _served(request, "index.html")


@get("/docs/{name:str}", include_in_schema=False)
async def docs_file(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[Any]:
    return _served(request, name)


@get("/openapi.json", include_in_schema=False)
async def openapi_document(request: Request[Any, Any, Any]) -> Response[Any]:
    state = request.app.state
    if "openapi_json" not in state:
        state.openapi_json = document(request.app)
    return Response[Any](state.openapi_json, media_type="application/json")


ROUTES = [docs_page, docs_file, openapi_document]
