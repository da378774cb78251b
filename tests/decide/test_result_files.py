"""What is kept of the files that functions give, and what becomes of the others: a line of text."""

from __future__ import annotations

import msgspec
import pytest

from swarmkeep import File, Result
from swarmkeep.agent import to_result
from swarmkeep.decide.files import FileLimits, keep_files
from swarmkeep.events.messages import is_sent
from tests.support.pictures import make_png

LIMITS = FileLimits(max_blob_bytes=1000, max_message_blob_bytes=2500, max_message_blobs=4)
PNG = make_png(900)


def test_each_file_kept_or_reported() -> None:
    kept = keep_files([File(PNG, "image/png", "a.png")] * 3 + [File(make_png(1001), "image/png")] * 500, LIMITS)
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
    kept = keep_files([file], LIMITS)
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
    everything = msgspec.structs.replace(LIMITS, blob_types=("*/*",))
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
