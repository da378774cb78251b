"""The OpenAPI document, and a page that shows it. The page loads nothing from outside."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, get
from litestar.params import FromPath

from swarmkeep.api.openapi import build_openapi
from swarmkeep.api.pages.static_files import VENDOR, WEB, make_file_response

_FILES = {name: WEB / "docs" / name for name in ("index.html", "init.js")}
_FILES |= {name: VENDOR / "swagger-ui" / name for name in ("swagger-ui.css", "swagger-ui-bundle.js")}
# The page's own library sets styles on elements; scripts come from files alone.
_POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; object-src 'none'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)


@get("/docs", include_in_schema=False)
async def get_docs_page(request: Request[Any, Any, Any]) -> Response[Any]:
    return make_file_response(request, _FILES, "index.html", _POLICY)


@get("/docs/{name:str}", include_in_schema=False)
async def get_docs_file(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[Any]:
    return make_file_response(request, _FILES, name, _POLICY)


@get("/openapi.json", include_in_schema=False)
async def get_openapi(request: Request[Any, Any, Any]) -> Response[Any]:
    state = request.app.state
    if "openapi_json" not in state:
        state.openapi_json = build_openapi(request.app)
    return Response[Any](state.openapi_json, media_type="application/json")


ROUTES = [get_docs_page, get_docs_file, get_openapi]
