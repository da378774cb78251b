"""Takes in the files that functions give, within the limits of those that messages bring.

Whoever gave them is not there any more to be told what is wrong: that becomes a part of the result's text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.agent import File
from swarmkeep.domain.checking.files import MEDIA_TYPE, FileLimits
from swarmkeep.domain.codec import Json
from swarmkeep.domain.files.media_types import find_contradiction, get_said_type, recognise
from swarmkeep.domain.files.references import FileReference, format_size
from swarmkeep.domain.files.results import describe_result_part

_NAME_CHARACTERS = 200
_NOT_IN_NAMES = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_AUDIO_FORMATS = {"audio/wav": "wav", "audio/mpeg": "mp3"}
# What a provider refuses where it is something else, and with it every later request of the session.
_MUST_BEGIN_SO = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp", *_AUDIO_FORMATS, "application/pdf"))


class KeptFiles(msgspec.Struct, frozen=True):
    """Content parts that refer to files, the content by its SHA-256 (hex), and a line of text about each."""

    parts: tuple[Json, ...]
    content: dict[str, bytes]
    lines: tuple[str, ...]


def keep_files(files: Sequence[File], limits: FileLimits) -> KeptFiles:
    """What is kept of the files that a function gave. Hashes all of it."""
    parts: list[Json] = []
    content: dict[str, bytes] = {}
    lines: list[str] = []
    size = 0
    for file in files[: limits.max_message_blobs]:
        media_type = get_said_type(file.media_type)
        trouble = _find_trouble(file, media_type, limits)
        if trouble is None and size + len(file.data) > limits.max_message_blob_bytes:
            most = limits.max_message_blob_bytes
            trouble = f"with it they would have more than {most} bytes together (SWARMKEEP_MAX_MESSAGE_BLOB_BYTES)"
        if trouble is not None:
            lines.append(f"a file was not kept: {_describe(file, media_type)}: {trouble}")
            continue
        size += len(file.data)
        reference = _refer(file, media_type)
        part = _make_part(reference, len(parts) + 1)
        content.setdefault(reference.sha256, file.data)
        parts.append(part)
        lines.append(describe_result_part(len(parts), part, reference))
    left = len(files) - limits.max_message_blobs
    if left > 0:
        lines.append(
            f"{left} more files were not kept: a result has at most {limits.max_message_blobs} "
            "(SWARMKEEP_MAX_MESSAGE_BLOBS)"
        )
    return KeptFiles(tuple(parts), content, tuple(lines))


def _find_trouble(file: File, media_type: str, limits: FileLimits) -> str | None:
    """Why a file is not kept; None if it may be."""
    if not MEDIA_TYPE.fullmatch(media_type):
        return "that is no media type"
    if not limits.takes(media_type):
        return "files of this type are not taken (SWARMKEEP_BLOB_TYPES)"
    if not file.data:
        return "it is empty"
    if len(file.data) > limits.max_blob_bytes:
        return f"it has more than {limits.max_blob_bytes} bytes (SWARMKEEP_MAX_BLOB_BYTES)"
    found = find_contradiction(media_type, file.data)
    if found is not None:
        return f"its first bytes say {found}"
    if media_type in _MUST_BEGIN_SO and recognise(file.data) is None:
        return "it does not begin as such a file does"
    return None


def _refer(file: File, media_type: str) -> FileReference:
    return FileReference(
        sha256=hashlib.sha256(file.data).hexdigest(),
        media_type=media_type,
        size=len(file.data),
        name=_clean_name(file.name),
    )


def _clean_name(name: str | None) -> str | UnsetType:
    return _NOT_IN_NAMES.sub(" ", name or "").strip()[:_NAME_CHARACTERS] or UNSET


def _describe(file: File, media_type: str) -> str:
    name = _clean_name(file.name)
    said = [] if name is UNSET else [name]
    return ", ".join([*said, _NOT_IN_NAMES.sub(" ", media_type)[:_NAME_CHARACTERS], format_size(len(file.data))])


def _make_part(reference: FileReference, number: int) -> Json:
    """The part by which models know such content; a `file` where they know none."""
    kind, inner = _choose_kind(reference, number)
    return {"type": kind, kind: inner, "blob": msgspec.to_builtins(reference)}


def _choose_kind(reference: FileReference, number: int) -> tuple[str, Json]:
    if reference.media_type.startswith("image/") and reference.media_type != "image/svg+xml":
        return "image_url", {}
    if reference.media_type in _AUDIO_FORMATS:
        return "input_audio", {"format": _AUDIO_FORMATS[reference.media_type]}
    return "file", {"filename": f"file-{number}" if reference.name is UNSET else reference.name}
