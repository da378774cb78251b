"""Static files with the security headers of a page."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from litestar import Request, Response
from litestar.exceptions import NotFoundException

WEB = Path(__file__).resolve().parents[2] / "web"
VENDOR = WEB / "vendor"
_MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".mjs": "text/javascript"}
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    # To be asked for again each time, which a 304 answers: after an update no old module meets a new one.
    "Cache-Control": "no-cache",
}


@cache
def _read_content(file: Path) -> tuple[bytes, str]:
    content = file.read_bytes()
    return content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def file_response(request: Request[Any, Any, Any], files: Mapping[str, Path], name: str, policy: str) -> Response[Any]:
    """One of `files`, or 304 if the client has it; `policy` is its Content-Security-Policy."""
    if name not in files:
        raise NotFoundException
    content, etag = _read_content(files[name])
    headers = {**_HEADERS, "Content-Security-Policy": policy, "ETag": etag}
    known = request.headers.get("if-none-match", "")
    if known.strip() == "*" or etag in known:
        return Response[Any](None, status_code=304, headers=headers)
    return Response[Any](content, media_type=_MEDIA_TYPES[files[name].suffix], headers=headers)
