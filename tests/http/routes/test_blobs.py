"""Files and pictures over HTTP: sent in inline, kept once, and given to who may read the session."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.auth.keys import create_key
from tests.http.server import RunningServer, check_problem, scripted, start_server
from tests.support.pictures import (
    encode_content,
    hash_content,
    make_inline_audio,
    make_inline_file,
    make_inline_picture,
    make_message,
    make_png,
)
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

PICTURE = make_png(2000)
NAME = hash_content(PICTURE)


async def open_with_picture(service: RunningServer, *parts: Any) -> str:
    return await service.session(messages=[make_message(*(parts or (make_inline_picture(PICTURE),)))])


async def test_picture_goes_in_and_out(service: RunningServer, model: ScriptedModel) -> None:
    said = make_message(make_inline_picture(PICTURE, detail="high"))
    session = await service.session()
    model.say("A cat.")
    run = await service.run(session, [said])
    assert run["output_text"] == "A cat."
    assert model.requests[0]["messages"][-1] == said
    part = run["messages"][0]["content"][1]
    assert part["blob"] == {"sha256": NAME, "media_type": "image/png", "size": 2000}
    answer = await service.get(f"{session}/blobs/{NAME}")
    assert (answer.status_code, answer.content) == (200, PICTURE)
    assert encode_content(PICTURE)[:100] not in str(await service.events(session))
    answered = (await service.events(session))[-2]["seq"]
    rebuilt = await service.get(f"{session}/events/{answered}/request")
    assert rebuilt.content == model.raw_requests[0]


async def test_browser_executes_nothing_and_caches(service: RunningServer) -> None:
    session = await open_with_picture(service)
    answer = await service.get(f"{session}/blobs/{NAME}")
    headers = answer.headers
    assert headers["content-type"] == "image/png"
    assert headers["content-disposition"] == f'inline; filename="{NAME[:12]}.png"'
    assert headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in headers["content-security-policy"]
    assert headers["cache-control"] == "private, max-age=31536000, immutable"
    assert headers["vary"] == "Authorization"
    again = await service.get(f"{session}/blobs/{NAME}", headers={"If-None-Match": headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    ("part", "content", "media_type", "form"),
    [
        (make_inline_file(b"%PDF-1.7"), b"%PDF-1.7", "application/pdf", "attachment"),
        (make_inline_audio(b"RIFF\x00\x00\x00\x00WAVE"), b"RIFF\x00\x00\x00\x00WAVE", "audio/wav", "inline"),
        (make_inline_file(b"<script>", media_type="text/html"), b"<script>", "application/octet-stream", "attachment"),
        (make_inline_file(b"a", media_type="text/javascript"), b"a", "application/octet-stream", "attachment"),
        (make_inline_picture(b"no picture"), b"no picture", "application/octet-stream", "attachment"),
    ],
)
async def test_only_harmless_kinds_keep_their_type(
    plain: RunningServer, part: Any, content: bytes, media_type: str, form: str
) -> None:
    session = await open_with_picture(plain, part)
    answer = await plain.get(f"{session}/blobs/{hash_content(content)}")
    assert (answer.content, answer.headers["content-type"]) == (content, media_type)
    assert answer.headers["content-disposition"].startswith(form)


@pytest.mark.parametrize(
    "name", ["0" * 64, NAME.upper(), NAME[:-1], NAME + "0", "..%2f..%2fetc%2fpasswd", "%2e%2e", "%00", "é", "x" * 3000]
)
async def test_missing_blob_not_found(plain: RunningServer, name: str) -> None:
    session = await open_with_picture(plain)
    answer = await plain.get(f"{session}/blobs/{name}")
    assert answer.status_code == 404
    assert PICTURE not in answer.content


async def test_foreign_blobs_are_not_found(service: RunningServer) -> None:
    owner, stranger = await create_key(service, "owner"), await create_key(service, "stranger")
    bodies: list[Any] = [{"id": "a", "messages": [make_message(make_inline_picture(PICTURE))]}, {"id": "b"}]
    for body in bodies:
        assert (await service.post("/v1/sessions", body, headers=owner)).status_code == 201
    session = "/v1/sessions/a"
    assert (await service.get(f"{session}/blobs/{NAME}", headers=owner)).content == PICTURE
    check_problem(await service.get(f"/v1/sessions/b/blobs/{NAME}", headers=owner), 404, "blob_not_found")
    check_problem(await service.get(f"{session}/blobs/{NAME}", headers=stranger), 404, "session_not_found")
    check_problem(await service.get(f"{session}/blobs/{NAME}"), 401, "unauthenticated")


BAD = [
    ({"type": "image_url", "image_url": {"url": "data:image/png;base64,@@@@"}}, "image_url/url"),
    (make_inline_picture(b"<html>"), "image_url/url"),
    (make_inline_picture(PICTURE, "image/jpeg"), "image_url/url"),
    (make_inline_picture(PICTURE, "text/html"), "image_url/url"),
    (make_inline_file(b"x", media_type="video/mp4"), "file/file_data"),
    ({"type": "image_url", "image_url": {}, "blob": {"sha256": NAME, "media_type": "image/png", "size": 1}}, "blob"),
]


@pytest.mark.parametrize(("part", "place"), BAD)
async def test_bad_content_refused_everywhere(plain: RunningServer, part: Any, place: str) -> None:
    session = await plain.session()
    for path, field in (
        (f"{session}/runs", "input"),
        (f"{session}/messages", "messages"),
        ("/v1/sessions", "messages"),
    ):
        refused = check_problem(await plain.post(path, {field: [make_message(part)]}), 400, "invalid_request")
        assert refused["errors"][0]["pointer"] == f"/{field}/0/content/1/{place}"
    assert len(await plain.events(session)) == 1


async def test_limits_are_settings(ready_url: str, model: ScriptedModel) -> None:
    limits: dict[str, Any] = {"max_blob_bytes": 1000, "max_message_blob_bytes": 1500, "max_message_blobs": 2}
    async with start_server(scripted(ready_url, model, blob_types=("image/png",), **limits)) as service:
        session = await service.session(messages=[make_message(make_inline_picture(make_png(1000)))])
        for parts, limit in (
            ([make_png(1001)], "SWARMKEEP_MAX_BLOB_BYTES"),
            ([make_png(1000), make_png(501)], "SWARMKEEP_MAX_MESSAGE_BLOB_BYTES"),
            ([make_png(10)] * 3, "SWARMKEEP_MAX_MESSAGE_BLOBS"),
        ):
            body = {"input": [make_message(*map(make_inline_picture, parts))]}
            refused = check_problem(await service.post(f"{session}/runs", body), 413, "too_large")
            assert limit in refused["detail"]
        refused = check_problem(
            await service.post(f"{session}/runs", {"input": [make_message(make_inline_audio(b"a"))]}),
            400,
            "invalid_request",
        )
        assert "SWARMKEEP_BLOB_TYPES" in refused["detail"]


async def test_repeated_creation_is_the_same(service: RunningServer) -> None:
    body = {"id": "s", "messages": [make_message(make_inline_picture(PICTURE))]}
    assert (await service.post("/v1/sessions", body)).status_code == 201
    assert (await service.post("/v1/sessions", body)).status_code == 200
    body["messages"] = [make_message(make_inline_picture(make_png(2000, 1)))]
    check_problem(await service.post("/v1/sessions", body), 409, "session_exists")
