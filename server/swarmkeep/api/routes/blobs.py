"""The content of a session's files and pictures."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.errors import problem_specs
from swarmkeep.domain.files.media_types import UNKNOWN, choose_shown_type
from swarmkeep.engine.stored_sessions import read_stored_file

# It is of no use to a page of anybody's: nothing in it runs, nothing is loaded for it, and no site may frame it.
_HEADERS = {
    "Cache-Control": "private, max-age=31536000, immutable",
    "Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Vary": "Authorization",
    "X-Content-Type-Options": "nosniff",
}


@get(
    "/sessions/{session_id:str}/blobs/{hash:str}",
    operation_id="get_blob",
    summary="Get a file or picture of a session",
    response_description="The content. For a few kinds of pictures, audio and PDF, its first bytes determine its type",
    responses=problem_specs("session_not_found", "blob_not_found"),
)
async def get_blob(
    request: Request[Any, Any, Any],
    session_id: FromPath[str],
    hash: FromPath[str],
    principal: NamedDependency[Principal],
) -> Response[bytes]:
    """`hash` is the SHA-256 (hex) that an event's `blob` names."""
    key = principal.session_key(session_id)
    content = await read_stored_file(principal.store, key, hash)
    headers = {**_HEADERS, "ETag": f'"{hash}"'}
    if request.headers.get("if-none-match") in (f'"{hash}"', f'W/"{hash}"', "*"):
        return Response(b"", status_code=304, headers=headers, media_type=UNKNOWN)
    media_type = choose_shown_type(content)
    form = "inline" if media_type.startswith(("image/", "audio/")) else "attachment"
    headers["Content-Disposition"] = f'{form}; filename="{_name_file(hash, media_type)}"'
    return Response(content, headers=headers, media_type=media_type)


def _name_file(hash: str, media_type: str) -> str:
    ending = "bin" if media_type == UNKNOWN else media_type.partition("/")[2]
    return f"{hash[:12]}.{ending}"


ROUTES = [get_blob]
