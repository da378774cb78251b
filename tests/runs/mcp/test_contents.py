"""What becomes of a server's answer: text, and files that are as it says or are not kept."""

from __future__ import annotations

from typing import Any

from mcp.types import CallToolResult

from swarmkeep.decide.files import FileLimits, keep_files
from swarmkeep.mcp.contents import read_result
from tests.support.pictures import encode_content, make_png

PNG = make_png(300)
PDF = b"%PDF-1.7"


def answer(*content: dict[str, Any], is_error: bool = False) -> CallToolResult:
    return CallToolResult.model_validate({"content": list(content), "isError": is_error})


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def picture(data: bytes | str = PNG, media_type: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "data": encode_content(data) if isinstance(data, bytes) else data, "mimeType": media_type}


def resource(data: bytes, uri: str, media_type: str | None = None) -> dict[str, Any]:
    inner = {"uri": uri, "blob": encode_content(data), **({"mimeType": media_type} if media_type else {})}
    return {"type": "resource", "resource": inner}


def test_pictures_audio_and_resources_are_files() -> None:
    audio = {"type": "audio", "data": encode_content(b"ID3"), "mimeType": "audio/mpeg"}
    report = resource(PDF, "file:///reports/2026.pdf", "application/pdf")
    read = read_result(answer(text("Here."), picture(), audio, report), FileLimits())
    assert read.value == "Here."
    assert [(file.data, file.media_type, file.name) for file in read.files] == [
        (PNG, "image/png", None),
        (b"ID3", "audio/mpeg", None),
        (PDF, "application/pdf", "2026.pdf"),
    ]
    # Among texts it is said where they stood.
    assert read_result(answer(picture(), text("was before"), picture()), FileLimits()).value == (
        "[picture, image/png]\nwas before\n[picture, image/png]"
    )
    failed = read_result(answer(text("No."), picture(), is_error=True), FileLimits())
    assert (failed.value, [file.data for file in failed.files]) == ("No.", [PNG])
    named = read_result(answer(text("Here."), picture()))
    assert (named.value, named.files) == ("Here.\n[picture, image/png: not shown]", [])


def test_hostile_answer_yields_text_and_genuine_files() -> None:
    read = read_result(
        answer(
            picture("no base64!"),
            picture(b"<svg onload='x'/>", "image/svg+xml"),
            picture(b"<script>", "image/png"),
            resource(b"MZ", "file:///a/b", "application/pdf"),
            resource(b"\0\1", "x:" + "y" * 10_000),
            *[picture()] * 500,
        ),
        FileLimits(),
    )
    assert read.value.splitlines() == [
        "[picture, image/png: not kept, because it is not valid base64]",
        "[picture, image/svg+xml: not kept, because files of type image/svg+xml are not taken (SWARMKEEP_BLOB_TYPES)]",
        "403 more files were not kept: a result has at most 100 (SWARMKEEP_MAX_MESSAGE_BLOBS)",
    ]
    kept = keep_files(read.files, FileLimits())
    assert [part["type"] for part in kept.parts] == ["file", *["image_url"] * 97]
    assert list(kept.content.values()) == [b"\0\1", PNG]
    assert [line.rpartition(": ")[2] for line in kept.lines[:2]] == [
        "it is said to be image/png, and its first bytes say text/html",
        "it is said to be application/pdf, and its first bytes say application/x-executable",
    ]
    assert len("\n".join(kept.lines)) < 6_000


def test_rejected_content_is_not_decoded() -> None:
    limits = FileLimits(max_blob_bytes=300)
    # Decoded, these would be refused as no base64.
    broken = picture("!" * 500)
    read = read_result(answer(broken, picture(), picture(make_png(310))), limits)
    assert read.value.splitlines() == [
        "[picture, image/png: not kept, because it has more than 300 bytes (SWARMKEEP_MAX_BLOB_BYTES)]",
        "[picture, image/png]",
        "[picture, image/png: not kept, because it has more than 300 bytes (SWARMKEEP_MAX_BLOB_BYTES)]",
    ]
    assert [file.data for file in read.files] == [PNG]
    foreign = picture("!" * 30, "Video/MP4; x=y")
    unclear = picture("!" * 30, "a picture")
    assert read_result(answer(foreign, unclear), limits).value.splitlines() == [
        "[picture, Video/MP4; x=y: not kept, because files of type video/mp4 are not taken (SWARMKEEP_BLOB_TYPES)]",
        "[picture, a picture: not kept, because that is no media type]",
    ]
    assert read_result(answer(broken)).value == "[picture, image/png: not shown]"


def test_of_very_many_parts_the_first_are_read() -> None:
    read = read_result(answer(*[text(str(number)) for number in range(1_003)]), FileLimits())
    lines = read.value.split("\n")
    assert lines[999:] == ["999", "[3 more parts were left out: a result has at most 1000]"]
