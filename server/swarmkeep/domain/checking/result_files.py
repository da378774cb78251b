"""Takes in the files that functions give, within the limits of those that messages bring.

Whoever gave them is not there any more to be told what is wrong: that becomes a part of the result's text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.agent import File
from swarmkeep.domain.checking.files import MEDIA_TYPE, FileLimits
from swarmkeep.domain.codec import Json
from swarmkeep.domain.errors import InvalidRequest, TooLarge
from swarmkeep.domain.files.media_types import get_said_type, recognise
from swarmkeep.domain.files.references import FileReference, describe_content
from swarmkeep.domain.files.results import describe_result_part
from swarmkeep.domain.wording import pluralize

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


def keep_files(
    files: Sequence[File], limits: FileLimits, mask: Callable[[bytes], bytes] = lambda content: content
) -> KeptFiles:
    """What is kept of the files that a function gave, as `mask` gives it back. Hashes all of it."""
    parts: list[Json] = []
    content: dict[str, bytes] = {}
    lines: list[str] = []
    size = 0
    for file in files[: limits.max_message_blobs]:
        media_type = get_said_type(file.media_type)
        try:
            _check(file, media_type, limits)
            # Before it is hashed: what a file is called by is what it holds.
            file = replace(file, data=mask(file.data))
            limits.check_content("it", media_type, file.data)
            limits.check_total("the result", size + len(file.data))
        except (InvalidRequest, TooLarge) as error:
            lines.append(f"a file was not kept: {_describe(file, media_type)}: {error}")
            continue
        size += len(file.data)
        reference = _refer(file, media_type)
        part = _make_part(reference, len(parts) + 1)
        content.setdefault(reference.sha256, file.data)
        parts.append(part)
        lines.append(describe_result_part(len(parts), part, reference))
    left = len(files) - limits.max_message_blobs
    if left > 0:
        lines.append(describe_left(left, limits))
    return KeptFiles(tuple(parts), content, tuple(lines))


def check_said_type(said: str, limits: FileLimits) -> None:
    """Raise InvalidRequest for what is said to be of a type that is not taken."""
    media_type = get_said_type(said)
    if not MEDIA_TYPE.fullmatch(media_type):
        raise InvalidRequest("that is no media type")
    limits.check_type(media_type)


def describe_left(count: int, limits: FileLimits) -> str:
    """The line about files that are more than a result may have."""
    most = limits.max_message_blobs
    left = pluralize(count, "more file was", "more files were")
    return f"{left} not kept: a result has at most {most} (SWARMKEEP_MAX_MESSAGE_BLOBS)"


def _check(file: File, media_type: str, limits: FileLimits) -> None:
    """Raise InvalidRequest and TooLarge for a file that is not kept."""
    check_said_type(media_type, limits)
    limits.check_content("it", media_type, file.data)
    if media_type in _MUST_BEGIN_SO and recognise(file.data) is None:
        raise InvalidRequest("it does not begin as such a file does")


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
    said = _NOT_IN_NAMES.sub(" ", media_type)[:_NAME_CHARACTERS]
    return describe_content(said, len(file.data), _clean_name(file.name))


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
