"""Take inline content out of messages from outside: checked, and named by its hash from then on."""

from __future__ import annotations

import binascii
import hashlib
import re
import sys
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.agent import File
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import InvalidRequest, TooLarge
from swarmkeep.events.files import (
    KINDS,
    UNKNOWN,
    FileReference,
    describe_content,
    find_contradiction,
    get_said_type,
    has_content_kind,
    recognise,
)
from swarmkeep.events.messages import describe_result_part
from swarmkeep.events.wording import pluralize

MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,63}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}", re.ASCII)
_AUDIO_FORMAT = re.compile(r"[a-z0-9][a-z0-9.+-]{0,31}", re.ASCII)
_AUDIO_TYPES = {"mp3": "audio/mpeg"}
# What a data URL says before its content; no media type is longer.
_MAX_HEADER = 300
# The top-level type that a part's content must be of.
_TOP_TYPES = {"image_url": "image/", "input_audio": "audio/"}


class FileLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes. `blob_types`: media types that are taken, `audio/*` for all of audio."""

    max_blob_bytes: int = 5_000_000
    max_message_blob_bytes: int = 20_000_000
    max_message_blobs: int = 100
    blob_types: tuple[str, ...] = (
        "image/png",
        "image/jpeg",
        "image/gif",
        "image/webp",
        "audio/*",
        "text/*",
        "application/*",
    )

    def check_type(self, media_type: str, pointer: str = "") -> None:
        """Raise InvalidRequest for files of a type that is not taken."""
        top = media_type.partition("/")[0]
        if not any(allowed in (media_type, f"{top}/*", "*/*") for allowed in self.blob_types):
            raise InvalidRequest(f"files of type {media_type} are not taken (SWARMKEEP_BLOB_TYPES)", pointer)

    def check_content(self, what: str, media_type: str, data: bytes, pointer: str = "") -> None:
        """Raise InvalidRequest for content that is not what it is said to be, and TooLarge."""
        self._check_size(what, len(data))
        if not data:
            raise InvalidRequest(f"{what} is empty", pointer)
        found = find_contradiction(media_type, data)
        if found is not None:
            raise InvalidRequest(f"{what} is said to be {media_type}, and its first bytes say {found}", pointer)

    def check_base64(self, what: str, text: str) -> None:
        """Raise TooLarge for content that need not be decoded to be known as too large. Four characters are three
        bytes."""
        self._check_size(what, (len(text) - 2) // 4 * 3 - 3)

    def _check_size(self, what: str, size: int) -> None:
        if size > self.max_blob_bytes:
            raise TooLarge(f"{what} has more than {self.max_blob_bytes} bytes (SWARMKEEP_MAX_BLOB_BYTES)")

    def check_count(self, what: str, count: int) -> None:
        """Raise TooLarge for more files than a message, or a result, may have."""
        if count > self.max_message_blobs:
            most = pluralize(self.max_message_blobs, "file")
            raise TooLarge(f"{what} has more than {most} (SWARMKEEP_MAX_MESSAGE_BLOBS)")

    def check_total(self, what: str, size: int) -> None:
        """The same of their bytes together."""
        if size > self.max_message_blob_bytes:
            raise TooLarge(
                f"the files of {what} have more than {self.max_message_blob_bytes} bytes together "
                "(SWARMKEEP_MAX_MESSAGE_BLOB_BYTES)"
            )


# For what an operator does to a database. No line of an export is longer than what such a file takes.
ANY_FILES = FileLimits(
    max_blob_bytes=40_000_000,
    max_message_blob_bytes=sys.maxsize,
    max_message_blobs=sys.maxsize,
    blob_types=("*/*",),
)


class TakenMessages(msgspec.Struct, frozen=True):
    """Messages whose parts refer to their content, and the content by its SHA-256 (hex)."""

    messages: tuple[Json, ...]
    files: dict[str, bytes]


def take_out_files(messages: Sequence[Json], pointer: str, limits: FileLimits) -> TakenMessages:
    """The messages with references in the place of inline content. Decodes and hashes all of it.

    Raises InvalidRequest for content that is not what it says, and TooLarge.
    """
    if not any(isinstance(message.get("content"), list) for message in messages):
        return TakenMessages(tuple(messages), {})
    files: dict[str, bytes] = {}
    taken = tuple(_take_out(message, f"{pointer}/{place}", limits, files) for place, message in enumerate(messages))
    return TakenMessages(taken, files)


def _take_out(message: Json, pointer: str, limits: FileLimits, files: dict[str, bytes]) -> Json:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts: list[object] = []
    count = size = 0
    for place, part in enumerate(content):
        inline = _find_inline(part, f"{pointer}/content/{place}")
        if inline is None:
            parts.append(part)
            continue
        count += 1
        # Counted before anything is decoded: a message of more is not worth the work.
        limits.check_count(pointer, count)
        data = inline.decode(limits)
        size += len(data)
        limits.check_total(pointer, size)
        name = hashlib.sha256(data).hexdigest()
        files.setdefault(name, data)
        parts.append(inline.refer(name, len(data)))
    return {**message, "content": parts} if count else message


class _Inline(msgspec.Struct, frozen=True, kw_only=True):
    """A part's inline content: where it stands, what it says that it is, and its base64."""

    part: Json
    inner: Json
    pointer: str
    media_type: str
    text: str
    name: str | UnsetType = UNSET
    is_bare: bool = False

    def decode(self, limits: FileLimits) -> bytes:
        """The content, if it may be taken. Raises InvalidRequest and TooLarge."""
        limits.check_type(self.media_type, self.pointer)
        limits.check_base64(self.pointer, self.text)
        try:
            data = b64decode(self.text, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidRequest("the content is not valid base64", self.pointer) from None
        limits.check_content(self.pointer, self.media_type, data, self.pointer)
        return data

    def refer(self, sha256: str, size: int) -> Json:
        """The part with a reference in the place of its content."""
        reference = FileReference(
            sha256=sha256,
            media_type=self.media_type,
            size=size,
            name=self.name,
            encoding="base64" if self.is_bare and self.part["type"] == "file" else UNSET,
        )
        kind = self.part["type"]
        return {**self.part, kind: self.inner, "blob": msgspec.to_builtins(reference)}


def _find_inline(part: object, pointer: str) -> _Inline | None:
    """The inline content of a part, if it has any. Raises InvalidRequest."""
    if not isinstance(part, dict) or not has_content_kind(part):
        return None
    if "blob" in part:
        raise InvalidRequest("send content inline, not as a reference to stored content", f"{pointer}/blob")
    kind = part["type"]
    value = part.get(kind)
    member = KINDS[kind][1]
    if isinstance(value, dict) and not isinstance(value.get(member), str | None):
        raise InvalidRequest(f"{member} must be a text", f"{pointer}/{kind}/{member}")
    if not isinstance(value, dict) or value.get(member) is None:
        return None
    text, place = value[member], f"{pointer}/{kind}/{member}"
    inner = {key: other for key, other in value.items() if key != member}
    filename = inner.get("filename")
    if filename is not None and not isinstance(filename, str):
        raise InvalidRequest("a filename must be a text", f"{pointer}/{kind}/filename")
    name = filename if kind == "file" and isinstance(filename, str) and filename else UNSET
    header, separator, data = text[: _MAX_HEADER + 8].partition(",") if text[:5].lower() == "data:" else ("", "", "")
    if separator:
        media_type = _read_data_url(header, place)
        _check_top_type(kind, media_type, place)
        # Sliced once; the content may be long.
        data = text[len(header) + 1 :]
        return _Inline(part=part, inner=inner, pointer=place, media_type=media_type, text=data, name=name)
    if text[:5].lower() == "data:":
        raise InvalidRequest("a data URL must be data:TYPE/SUBTYPE;base64,CONTENT", place)
    if kind == "image_url":
        # A picture elsewhere, by its address.
        return None
    media_type = _find_audio_type(inner, pointer) if kind == "input_audio" else _guess_type(text)
    return _Inline(part=part, inner=inner, pointer=place, media_type=media_type, text=text, name=name, is_bare=True)


def _read_data_url(header: str, pointer: str) -> str:
    media_type, *parameters = header[5:].lower().split(";")
    if parameters[-1:] != ["base64"] or not MEDIA_TYPE.fullmatch(media_type):
        raise InvalidRequest("a data URL must be data:TYPE/SUBTYPE;base64,CONTENT", pointer)
    return media_type


def _check_top_type(kind: str, media_type: str, pointer: str) -> None:
    top = _TOP_TYPES.get(kind, "")
    if not media_type.startswith(top):
        raise InvalidRequest(f"a part of type {kind} cannot hold {media_type}", pointer)


def _find_audio_type(audio: Json, pointer: str) -> str:
    form = audio.get("format")
    if not isinstance(form, str) or not _AUDIO_FORMAT.fullmatch(form.lower()):
        raise InvalidRequest("audio needs a format, such as wav or mp3", f"{pointer}/input_audio/format")
    return _AUDIO_TYPES.get(form.lower(), f"audio/{form.lower()}")


def _guess_type(text: str) -> str:
    """The type of a file of which only the content is given."""
    try:
        start = b64decode(text[:96], validate=True)
    except (binascii.Error, ValueError):
        return UNKNOWN
    found = recognise(start)
    return UNKNOWN if found is None else found


# Takes in the files that functions give, within the limits of those that messages bring.

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
    """Return the files to keep of those that a function gave, as `mask` gives them back. Hashes all of it."""
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
