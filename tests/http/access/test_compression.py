"""Answers are compressed for whoever takes that, and streams never; pages are kept, and answer HEAD."""

from __future__ import annotations

import gzip
import re

import pytest

from swarmkeep.http.parameters import takes_gzip
from tests.http.server import RunningServer
from tests.support.scripted import ScriptedModel

GZIP = {"accept-encoding": "gzip"}
PLAIN = {"accept-encoding": "identity"}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("*", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000, br", False),
        ("br", False),
        ("xgzip", False),
        ("", False),
    ],
)
def test_gzip_support_read_from_header(said: str, expected: bool) -> None:
    assert takes_gzip([(b"Accept-Encoding", said.encode())]) is expected


async def read_raw(service: RunningServer, path: str, headers: dict[str, str]) -> tuple[dict[str, str], bytes]:
    async with service.client.stream("GET", path, headers=headers) as answer:
        raw = b"".join([piece async for piece in answer.aiter_raw()])
        return dict(answer.headers), raw


@pytest.mark.parametrize("size", [10, 5_000, 500_000])
async def test_compressed_answer_has_same_content(plain: RunningServer, size: int) -> None:
    session = await plain.session(messages=[{"role": "user", "content": "ä" * size}])
    as_it_is, whole = await read_raw(plain, f"{session}/messages", PLAIN)
    compressed, small = await read_raw(plain, f"{session}/messages", GZIP)
    assert "content-encoding" not in as_it_is
    if size < 1_000:
        assert (compressed.get("content-encoding"), small) == (None, whole)
        return
    assert (compressed["content-encoding"], compressed["vary"]) == ("gzip", "Accept-Encoding")
    assert gzip.decompress(small) == whole
    assert int(compressed["content-length"]) == len(small) < len(whole) / 10
    # What the rest of the head says is the same.
    for name in ("content-type", "cache-control", "x-content-type-options"):
        assert compressed[name] == as_it_is[name]


async def test_errors_are_compressed_like_all_else(plain: RunningServer) -> None:
    headers, raw = await read_raw(plain, f"/v1/sessions?metadata.a=b&agent=x&cursor={'x' * 2_000}", GZIP)
    assert headers["content-type"] == "application/problem+json"
    body = gzip.decompress(raw) if headers.get("content-encoding") == "gzip" else raw
    assert b"invalid_request" in body


async def test_streams_are_not_compressed(service: RunningServer, model: ScriptedModel) -> None:
    model.say("word " * 1_000)
    session = await service.session()
    body = {"input": "hello " * 1_000, "stream": True}
    async with service.client.stream("POST", f"{session}/runs", json=body, headers=GZIP) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert "content-encoding" not in answer.headers
        text = b"".join([piece async for piece in answer.aiter_raw()])
    assert b"event: done" in text
    lines, _ = await read_raw(service, f"{session}/events", {**GZIP, "accept": "application/x-ndjson"})
    assert "content-encoding" not in lines


async def test_page_files_few_and_content_addressed(plain: RunningServer) -> None:
    headers, raw = await read_raw(plain, "/", GZIP)
    index = gzip.decompress(raw).decode()
    assert headers["cache-control"] == "no-cache"
    files = re.findall(r'(?:href|src)="(page/[0-9a-f]{16}/[\w.-]+)"', index)
    assert [path.rpartition("/")[2] for path in files] == ["page.css", "prefetch.js", "main.js"]
    sizes = len(raw)
    place = files[0].rpartition("/")[0]
    for path in (*files, f"{place}/timeline.js", f"{place}/highlighter.js"):
        headers, raw = await read_raw(plain, f"/{path}", GZIP)
        assert headers["cache-control"] == "public, max-age=31536000, immutable"
        assert (headers["content-encoding"], headers["vary"]) == ("gzip", "Accept-Encoding")
        assert "content-security-policy" in headers
        sizes += len(raw) if path in files else 0
        _, whole = await read_raw(plain, f"/{path}", PLAIN)
        assert gzip.decompress(raw) == whole
    # What the lists of agents and sessions take comes on top.
    assert sizes < 62_000


async def test_other_release_file_served_uncached(plain: RunningServer) -> None:
    answer = await plain.get("/page/0123456789abcdef/main.js")
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache")
    # Of a page from before they were joined, too.
    assert (await plain.get("/page/0123456789abcdef/dom.js")).headers["cache-control"] == "no-cache"
    for path in (
        "/page/0123456789abcdef/none.js",
        "/page/0123456789abcdef/..%2findex.html",
        "/page/none.js",
        "/page/0123456789abcdef/index.html",
    ):
        assert (await plain.get(path)).status_code == 404


async def test_known_content_is_not_resent(plain: RunningServer) -> None:
    for headers in (GZIP, PLAIN):
        etag = (await plain.get("/page/main.js", headers=headers)).headers["etag"]
        again = await plain.get("/page/main.js", headers={**headers, "if-none-match": etag})
        assert (again.status_code, again.content) == (304, b"")
    # Compressed and not, it has different bytes, and so different tags.
    other = await plain.get("/page/main.js", headers={**PLAIN, "if-none-match": '"none-gzip"'})
    assert other.status_code == 200


@pytest.mark.parametrize("path", ["/", "/page/main.js", "/docs", "/openapi.json", "/health/live"])
async def test_pages_answer_head(plain: RunningServer, path: str) -> None:
    whole = await plain.client.get(path, headers=PLAIN)
    head = await plain.client.request("HEAD", path, headers=PLAIN)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(whole.content))
    assert head.headers["content-type"] == whole.headers["content-type"]
