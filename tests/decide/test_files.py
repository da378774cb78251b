"""Inline content and files of functions: checked, bounded, and named by their hashes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmkeep import File, Result
from swarmkeep.agent import to_result
from swarmkeep.decide.checks import FileLimits, keep_files, take_out_files
from swarmkeep.events.errors import InvalidRequest, TooLarge
from swarmkeep.events.files import describe_part, format_size, read_reference, restore_part
from swarmkeep.events.messages import is_sent
from tests.support.pictures import (
    encode_content,
    hash_content,
    make_inline_audio,
    make_inline_file,
    make_inline_picture,
    make_message,
    make_png,
)

LIMITS = FileLimits()
SMALL = FileLimits(max_blob_bytes=100, max_message_blob_bytes=250, max_message_blobs=3)
PICTURE = make_png(100)
PDF = b"%PDF-1.7 text"


def take_part(part: Any, limits: FileLimits = LIMITS) -> tuple[Any, dict[str, bytes]]:
    taken = take_out_files([make_message(part)], "/input", limits)
    return taken.messages[0]["content"][1], taken.files


def refuse_part(part: Any, limits: FileLimits = LIMITS) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        take_part(part, limits)
    return refused.value


def test_picture_keeps_hash_and_type() -> None:
    part, files = take_part(make_inline_picture(PICTURE, detail="low"))
    name = hash_content(PICTURE)
    assert part == {
        "type": "image_url",
        "image_url": {"detail": "low"},
        "blob": {"sha256": name, "media_type": "image/png", "size": 100},
    }
    assert files == {name: PICTURE}


def test_audio_and_files_do_too() -> None:
    part, _ = take_part(make_inline_audio(b"sound", "mp3"))
    assert part["input_audio"] == {"format": "mp3"}
    assert part["blob"]["media_type"] == "audio/mpeg"
    part, files = take_part(make_inline_file(PDF, "report.pdf"))
    assert part["file"] == {"filename": "report.pdf"}
    assert part["blob"] == {
        "sha256": hash_content(PDF), "media_type": "application/pdf", "size": len(PDF), "name": "report.pdf",
    }  # fmt: skip
    assert list(files.values()) == [PDF]


@pytest.mark.parametrize(
    ("part", "content"),
    [
        (make_inline_picture(PICTURE, detail="low"), PICTURE),
        (make_inline_audio(b"sound"), b"sound"),
        (make_inline_file(PDF), PDF),
        ({"type": "file", "file": {"filename": "a", "file_data": encode_content(PDF)}}, PDF),
    ],
)
def test_extracted_content_restored_exactly(part: Any, content: bytes) -> None:
    taken, _ = take_part(part)
    reference = read_reference(taken)
    assert reference is not None
    assert restore_part(taken, reference, content) == part


def test_the_same_content_is_there_once() -> None:
    taken = take_out_files([make_message(*[make_inline_picture(PICTURE)] * 3)] * 2, "/input", LIMITS)
    assert list(taken.files.values()) == [PICTURE]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "data:image/png;base64,AAAA"},
        {"role": "user", "content": None},
        make_message({"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}),
        make_message({"type": "image_url", "image_url": {}}),
        make_message({"type": "file", "file": {"file_id": "f"}}),
        make_message({"type": "video_url", "video_url": {"url": "data:,"}, "blob": 1}),
        make_message("text", 7, {"type": ["image_url"]}),
        {"role": "assistant"},
    ],
)
def test_contentless_parts_are_unchanged(message: Any) -> None:
    taken = take_out_files([message], "/input", LIMITS)
    assert taken.messages == (message,)
    assert taken.files == {}


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;base64,AAA",
        "data:image/png;base64,AA=A",
        "data:image/png;base64,AAAA\n",
        "data:image/png;base64,A_-A",
        "data:image/png;base64,é",
        "data:image/png;base64,",
        "data:image/png,AAAA",
        "data:;base64,AAAA",
        "data:image;base64,AAAA",
        "data:image/png;charset=x,AAAA",
        "data:../../etc/passwd;base64,AAAA",
        "data:" + "a" * 1000 + "/png;base64,AAAA",
        "data:",
        "DATA:image/png",
    ],
)
def test_bad_content_refused_at_its_place(url: str) -> None:
    refused = refuse_part({"type": "image_url", "image_url": {"url": url}})
    assert refused.errors[0]["pointer"] == "/input/0/content/1/image_url/url"


@pytest.mark.parametrize(
    "part",
    [
        make_inline_picture(PICTURE, "text/html"),
        make_inline_picture(PICTURE, "image/svg+xml"),
        make_inline_picture(PICTURE, "image/jpeg"),
        make_inline_picture(b"<script>alert(1)</script>"),
        make_inline_picture(b"\xef\xbb\xbf \n<svg onload=alert(1)>"),
        make_inline_picture(PDF),
        make_inline_file(PICTURE),
        {"type": "file", "file": {**make_inline_file(PDF)["file"], "filename": 5}},
        {"type": "file", "file": {**make_inline_file(PDF)["file"], "filename": ["x"]}},
        make_inline_file(PICTURE, media_type="video/mp4"),
        make_inline_audio(PICTURE),
        {"type": "input_audio", "input_audio": {"data": [1], "format": "wav"}},
        {"type": "image_url", "image_url": {"url": {}}},
        make_inline_audio(b"sound", "../x"),
        {"type": "input_audio", "input_audio": {"data": "AAAA"}},
        {**make_inline_picture(PICTURE), "blob": {"sha256": "0" * 64, "media_type": "image/png", "size": 1}},
        {"type": "file", "file": {}, "blob": {"sha256": "../../../etc/passwd", "media_type": "a/b", "size": 1}},
    ],
)
def test_mislabelled_or_unaccepted_content_refused(part: Any) -> None:
    refuse_part(part)


@pytest.mark.parametrize("form", ["../x", "", "a b", "wav;x", "x" * 100, 7, None])
def test_audio_format_is_a_word(form: Any) -> None:
    refused = refuse_part({"type": "input_audio", "input_audio": {"data": "AAAA", "format": form}})
    assert refused.errors[0]["pointer"] == "/input/0/content/1/input_audio/format"


@pytest.mark.parametrize("content", ["no base64!", "é", "AAA"])
def test_typeless_empty_file_refused(content: str) -> None:
    refused = refuse_part({"type": "file", "file": {"filename": "a", "file_data": content}})
    assert refused.errors[0]["pointer"] == "/input/0/content/1/file/file_data"


def test_accepted_types_are_a_setting() -> None:
    only = msgspec.structs.replace(LIMITS, blob_types=("image/png", "text/*"))
    take_part(make_inline_picture(PICTURE), only)
    take_part(make_inline_file(b"a,b", media_type="text/csv"), only)
    assert "SWARMKEEP_BLOB_TYPES" in str(refuse_part(make_inline_file(PDF), only))


@pytest.mark.parametrize("size", [98, 99, 100])
def test_content_may_reach_the_limit(size: int) -> None:
    assert list(take_part(make_inline_picture(make_png(size)), SMALL)[1]) == [hash_content(make_png(size))]


@pytest.mark.parametrize("size", [101, 102, 103, 104, 5000])
def test_a_byte_more_is_too_large(size: int) -> None:
    with pytest.raises(TooLarge, match="SWARMKEEP_MAX_BLOB_BYTES"):
        take_part(make_inline_picture(make_png(size)), SMALL)


def test_message_files_bounded_together() -> None:
    parts = [make_inline_picture(make_png(size, size)) for size in (99, 100, 50)]
    assert len(take_out_files([make_message(*parts)] * 2, "/input", SMALL).files) == 3
    with pytest.raises(TooLarge, match=r"/input/1 .*SWARMKEEP_MAX_MESSAGE_BLOB_BYTES"):
        take_out_files([make_message(), make_message(*parts[:2], make_inline_picture(make_png(52)))], "/input", SMALL)
    with pytest.raises(TooLarge, match="SWARMKEEP_MAX_MESSAGE_BLOBS"):
        take_out_files([make_message(*[make_inline_picture(make_png(9))] * 4)], "/input", SMALL)


_TEXTS = st.sampled_from(["data:", "data:image/png;base64,", "AAAA", "data:a/b;base64,AAAA", "", "x", "\ud800", "="])
_INNER = st.dictionaries(st.sampled_from(["url", "data", "file_data", "format", "filename"]), _TEXTS | st.none())
_PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["image_url", "input_audio", "file", "text"])},
    optional=dict.fromkeys(("image_url", "input_audio", "file", "blob"), _INNER | _TEXTS),
)


@given(content=st.lists(_PARTS, max_size=4))
def test_any_parts_are_taken_or_refused(content: list[Any]) -> None:
    try:
        taken = take_out_files([{"role": "user", "content": content}], "/input", SMALL)
    except (InvalidRequest, TooLarge):
        return
    for before, after in zip(content, taken.messages[0]["content"], strict=True):
        reference = read_reference(after)
        if reference is None:
            assert after == before
        else:
            assert hash_content(taken.files[reference.sha256]) == reference.sha256


def test_people_read_part_references() -> None:
    part, _ = take_part(make_inline_file(PDF, "report.pdf"))
    said = describe_part(part)
    assert said == f"[file, report.pdf, application/pdf, 13 B, sha256 {hash_content(PDF)[:12]}…]"
    assert describe_part({"type": "text", "text": "x"}) is None
    assert [format_size(size) for size in (0, 999, 1000, 12_400, 999_499, 1_500_000)] == [
        "0 B", "999 B", "1 kB", "12 kB", "999 kB", "1.5 MB",
    ]  # fmt: skip


# What is kept of the files that functions give, and what becomes of the others: a line of text.

RESULT_LIMITS = FileLimits(max_blob_bytes=1000, max_message_blob_bytes=2500, max_message_blobs=4)
PNG = make_png(900)


def test_each_file_kept_or_reported() -> None:
    kept = keep_files([File(PNG, "image/png", "a.png")] * 3 + [File(make_png(1001), "image/png")] * 500, RESULT_LIMITS)
    assert kept.lines == (
        "picture 1: a.png, image/png, 900 B",
        "picture 2: a.png, image/png, 900 B",
        "a file was not kept: a.png, image/png, 900 B: the files of the result have more than 2500 bytes together "
        "(SWARMKEEP_MAX_MESSAGE_BLOB_BYTES)",
        "a file was not kept: image/png, 1 kB: it has more than 1000 bytes (SWARMKEEP_MAX_BLOB_BYTES)",
        "499 more files were not kept: a result has at most 4 (SWARMKEEP_MAX_MESSAGE_BLOBS)",
    )
    assert len(kept.parts) == 2
    assert list(kept.content.values()) == [PNG]


@pytest.mark.parametrize(
    ("file", "trouble"),
    [
        (File(b"<svg/>", "image/svg+xml"), "not taken (SWARMKEEP_BLOB_TYPES)"),
        (File(b"<html>", "image/png"), "its first bytes say text/html"),
        (File(b"\xff\xd8\xff", "image/png"), "its first bytes say image/jpeg"),
        (File(b"no picture", "IMAGE/PNG; a=b"), "it does not begin as such a file does"),
        (File(b"%PD", "application/pdf"), "it does not begin as such a file does"),
        (File(b"", "image/png"), "it is empty"),
        (File(b"a", "\n\ud800no type"), "that is no media type"),
    ],
)
def test_provider_refused_files_are_not_kept(file: File, trouble: str) -> None:
    kept = keep_files([file], RESULT_LIMITS)
    assert (kept.parts, kept.content) == ((), {})
    assert kept.lines[0].startswith("a file was not kept: ")
    assert trouble in kept.lines[0]
    msgspec.json.encode(kept.lines)


@pytest.mark.parametrize(
    ("file", "kind", "sent"),
    [
        (File(PNG, "image/x-png"), "image_url", True),
        (File(b"RIFF....WAVE", "audio/x-wav"), "input_audio", True),
        (File(b"ID3", "audio/mp3"), "input_audio", True),
        (File(b"OggS", "audio/ogg"), "file", False),
        (File(b"%PDF-", "application/pdf"), "file", True),
        (File(b"a,b", "text/csv", "a\nb.csv"), "file", False),
        (File("<svg/>".encode("utf-16"), "image/svg+xml"), "file", False),
    ],
)
def test_models_are_shown_what_they_know(file: File, kind: str, sent: bool) -> None:
    everything = msgspec.structs.replace(RESULT_LIMITS, blob_types=("*/*",))
    kept = keep_files([file], everything)
    assert kept.parts[0]["type"] == kind
    assert is_sent(kept.parts[0]) is sent
    assert "\n" not in kept.lines[0]


def test_files_given_alone_listed_or_embedded() -> None:
    file = File(PNG, "image/png")
    for value in (file, [file], (file,), Result(files=[file])):
        assert to_result(value).files == [file]
        assert to_result(value).value == ""
    assert to_result([]).files == []
    for wrong in (("text", "image/png"), (PNG, None), (PNG, "image/png", 1)):
        with pytest.raises(TypeError):
            File(*wrong)  # type: ignore[arg-type]


def test_only_kept_parts_masked_within_limits() -> None:
    masked: list[bytes] = []

    def mask(content: bytes) -> bytes:
        masked.append(content)
        return content.replace(b"secret", b"[secret removed]")

    limits = FileLimits(max_blob_bytes=20, max_message_blobs=3)
    given = [b"x" * 21, b"a secret", b"secret secret", b"one too many"]
    kept = keep_files([File(data, "text/csv") for data in given], limits, mask)
    assert masked == given[1:3]
    assert list(kept.content.values()) == [b"a [secret removed]"]
    assert len(kept.lines) == 4
