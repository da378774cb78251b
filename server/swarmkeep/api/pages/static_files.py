"""Static files with the security headers of a page."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import NotFoundException

from swarmkeep.api.parameters import takes_gzip

WEB = Path(__file__).resolve().parents[2] / "web"
VENDOR = WEB / "vendor"
_MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".mjs": "text/javascript"}
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Vary": "Accept-Encoding",
}
# To be asked for again each time, which a 304 answers: after an update no old module meets a new one.
_ASKED_AGAIN = "no-cache"
# What has the digest of its content in its address never changes.
_KEPT = "public, max-age=31536000, immutable"


class StaticFile(msgspec.Struct, frozen=True):
    """A file's content, as it is and compressed once for all."""

    content: bytes
    compressed: bytes
    media_type: str
    digest: str


def make_file(content: bytes, suffix: str) -> StaticFile:
    digest = hashlib.sha256(content).hexdigest()[:32]
    return StaticFile(content, gzip.compress(content, mtime=0), _MEDIA_TYPES[suffix], digest)


@cache
def read_file(file: Path) -> StaticFile:
    return make_file(file.read_bytes(), file.suffix)


def make_file_response(
    request: Request[Any, Any, Any], files: Mapping[str, Path], name: str, policy: str
) -> Response[Any]:
    """One of `files`, or 304 if the client has it; `policy` is its Content-Security-Policy."""
    if name not in files:
        raise NotFoundException
    return make_static_response(request, read_file(files[name]), policy)


def make_static_response(
    request: Request[Any, Any, Any], file: StaticFile, policy: str, *, is_kept: bool = False
) -> Response[Any]:
    """A file, or 304 if the client has it. One that `is_kept` is not asked for again: its address is its content's."""
    is_compressed = takes_gzip(request.scope["headers"])
    etag = f'"{file.digest}{"-gzip" if is_compressed else ""}"'
    cached = _KEPT if is_kept else _ASKED_AGAIN
    headers = {**_HEADERS, "Cache-Control": cached, "Content-Security-Policy": policy, "ETag": etag}
    known = request.headers.get("if-none-match", "")
    if known.strip() == "*" or etag in known:
        return Response[Any](None, status_code=304, headers=headers)
    if is_compressed:
        headers["Content-Encoding"] = "gzip"
    content = file.compressed if is_compressed else file.content
    return Response[Any](content, media_type=file.media_type, headers=headers)
