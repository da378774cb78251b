"""Find the places of files in the JSON of messages, and put their content there.

The JSON of a history is kept from one request to the next, with references in it: so no content is in memory but for
the time of a request.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.events.codec import Json, convert, encode

# Files and pictures of messages: what stands in a content part in the place of its bytes, and how these are put
# back.

# The kinds of parts that bring content, each with what a person calls it and the member that holds the content.
KINDS = {"image_url": ("picture", "url"), "input_audio": ("audio", "data"), "file": ("file", "file_data")}
SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_SHOWN_DIGITS = 12


class FileReference(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Content that is kept beside the events. `size` is in bytes.

    `encoding`: `base64` if the model is sent it as that alone, and not as a data URL.
    """

    sha256: str
    media_type: str
    size: int
    name: str | UnsetType = UNSET
    encoding: Literal["base64"] | UnsetType = UNSET


def has_content_kind(part: object) -> bool:
    """Tell if it is a part of a kind that brings content."""
    return isinstance(part, dict) and isinstance(part.get("type"), str) and part["type"] in KINDS


def read_reference(part: object) -> FileReference | None:
    """Return the reference of a content part; None if it does not refer to any content."""
    if not isinstance(part, dict) or "blob" not in part or not has_content_kind(part):
        return None
    try:
        found = convert(part["blob"], FileReference)
    except msgspec.ValidationError:
        return None
    is_object = isinstance(part.get(part["type"]), dict)
    return found if is_object and SHA256.fullmatch(found.sha256) and found.size >= 0 else None


def list_references(message: Json) -> list[FileReference]:
    """List the references of a message's parts, in their order."""
    content = message.get("content")
    return list_part_references(content) if isinstance(content, list) else []


def list_part_references(parts: Iterable[object]) -> list[FileReference]:
    return [found for found in map(read_reference, parts) if found is not None]


def list_file_names(messages: Iterable[Json]) -> Iterator[str]:
    """The content, by its hashes, that messages refer to."""
    return (found.sha256 for message in messages for found in list_references(message))


def restore_part(part: Json, reference: FileReference, content: bytes) -> Json:
    """The part as a model is sent it."""
    kind = part["type"]
    text = b64encode(content).decode()
    if kind != "input_audio" and reference.encoding is UNSET:
        text = f"data:{reference.media_type};base64,{text}"
    kept = {key: value for key, value in part.items() if key not in ("blob", kind)}
    return {**kept, kind: {KINDS[kind][1]: text, **part[kind]}}


def make_stand_in(part: Json, reference: FileReference, why: str) -> Json:
    """Make the part that a model is sent in the place of the content."""
    return {"type": "text", "text": f"{describe_reference(part['type'], reference)[:-1]}: {why}]"}


def describe_part(part: Json) -> str | None:
    """A part with content as people read it, such as `[picture, image/png, 12 kB, sha256 0a1b…]`."""
    reference = read_reference(part)
    return None if reference is None else describe_reference(part["type"], reference)


def describe_reference(kind: str, reference: FileReference) -> str:
    said = describe_content(reference.media_type, reference.size, reference.name)
    return f"[{KINDS[kind][0]}, {said}, sha256 {reference.sha256[:_SHOWN_DIGITS]}…]"


def describe_content(media_type: str, size: int, name: str | UnsetType) -> str:
    """Such as `chart.png, image/png, 12 kB`."""
    return ", ".join([*([] if name is UNSET else [name]), media_type, format_size(size)])


def format_size(size: int) -> str:
    """Bytes as people read them: 999 B, 12 kB, 1.5 MB."""
    if size < 1000:
        return f"{size} B"
    return f"{size / 1000:.0f} kB" if size < 999_500 else f"{size / 1_000_000:.1f} MB"


MAX_SENT_BYTES = 50_000_000
"""Of files in one request: what providers take. The newest are sent. It is no setting, because a request of the past
has to be the same with any settings."""


class FilePlace(msgspec.Struct, frozen=True):
    """A part that refers to a file, and the bytes of the JSON that it takes."""

    start: int
    end: int
    part: Json
    reference: FileReference


class Media(msgspec.Struct, frozen=True):
    """The number of parts other than text, and the bytes of the JSON that they take."""

    count: int = 0
    size: int = 0

    def add(self, messages: Sequence[SentMessage]) -> Media:
        """With those of the messages that follow."""
        contents = (message.chat_message.get("content") for message in messages)
        parts = [part for content in contents if isinstance(content, list) for part in content]
        sizes = [len(encode(part)) for part in parts if part["type"] != "text"]
        return Media(self.count + len(sizes), self.size + sum(sizes)) if sizes else self


class SentMessage(Protocol):
    """A message as a model is sent it, but for its files; and its JSON."""

    @property
    def chat_message(self) -> Json: ...
    @property
    def chat_json(self) -> bytes: ...


def find_places(messages: Sequence[SentMessage], start: int) -> tuple[FilePlace, ...]:
    """The places of files in the JSON of messages, joined by commas, which begins at `start`."""
    if not any(_has_files(message.chat_message) for message in messages):
        return ()
    found: list[FilePlace] = []
    for message in messages:
        if _has_files(message.chat_message):
            found += _find_in_message(message.chat_message, start)
        start += len(message.chat_json) + 1
    return tuple(found)


def _has_files(message: Json) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(read_reference(part) is not None for part in content)


def _find_in_message(message: Json, start: int) -> Iterable[FilePlace]:
    at = start + 1
    for key, value in message.items():
        at += len(encode(key)) + 1
        if key == "content":
            break
        at += len(encode(value)) + 1
    at += 1
    for part in message["content"]:
        end = at + len(encode(part))
        reference = read_reference(part)
        if reference is not None:
            yield FilePlace(at, end, part, reference)
        at = end + 1


def choose_sent_files(places: Sequence[FilePlace]) -> list[str]:
    """The files to send, by hash: from the last place back, as many as fit into a request."""
    return list(dict.fromkeys(place.reference.sha256 for place in places[_find_first_sent(places) :]))


def measure_sent_files(places: Sequence[FilePlace]) -> int:
    """The bytes of the files to send, as often as they are sent."""
    return sum(_measure(place, None) for place in places[_find_first_sent(places) :])


def _find_first_sent(places: Sequence[FilePlace], files: Mapping[str, bytes] | None = None) -> int:
    """Return the place of the first file that is sent. What `files` are there counts as what it is, if less is said of
    it."""
    size, first = 0, len(places)
    while first and (size := size + _measure(places[first - 1], files)) <= MAX_SENT_BYTES:
        first -= 1
    return first


def _measure(place: FilePlace, files: Mapping[str, bytes] | None) -> int:
    content = None if files is None else files.get(place.reference.sha256)
    return max(place.reference.size, 0 if content is None else len(content))


def put_back(json: bytes, places: Sequence[FilePlace], files: Mapping[str, bytes]) -> bytes:
    """The JSON with the content of the files in their places."""
    if not places:
        return json
    pieces: list[bytes] = []
    at, first = 0, _find_first_sent(places, files)
    for number, place in enumerate(places):
        pieces += (json[at : place.start], encode(_restore(place, files, is_sent=number >= first)))
        at = place.end
    return b"".join([*pieces, json[at:]])


def put_back_parts(messages: Sequence[Json], places: Sequence[FilePlace], files: Mapping[str, bytes]) -> list[Json]:
    """The same with messages that are not encoded."""
    if not places:
        return list(messages)
    first = _find_first_sent(places, files)
    restored = iter([_restore(place, files, is_sent=number >= first) for number, place in enumerate(places)])
    return [
        {
            **message,
            "content": [part if read_reference(part) is None else next(restored) for part in message["content"]],
        }
        if _has_files(message)
        else message
        for message in messages
    ]


def _restore(place: FilePlace, files: Mapping[str, bytes], *, is_sent: bool) -> Json:
    if not is_sent:
        return make_stand_in(place.part, place.reference, "left out, because the request would be too large")
    content = files.get(place.reference.sha256)
    if content is None:
        return make_stand_in(place.part, place.reference, "its content is not there")
    return restore_part(place.part, place.reference, content)


# The type of a file, by its first bytes.

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"\xff\xf3", "audio/mpeg"),
    (b"\xff\xf2", "audio/mpeg"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"\x7fELF", "application/x-executable"),
    (b"MZ", "application/x-executable"),
)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_MARKUP = "text/html"
# In these a browser runs nothing.
SHOWN = frozenset(
    (
        "image/png",
        "image/jpeg",
        "image/gif",
        "image/webp",
        "audio/mpeg",
        "audio/ogg",
        "audio/flac",
        "audio/wav",
        "application/pdf",
    )
)
_ALIASES = {
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "image/x-png": "image/png",
    "audio/mp3": "audio/mpeg",
    "audio/wave": "audio/wav",
    "audio/x-wav": "audio/wav",
    "audio/vnd.wave": "audio/wav",
}
UNKNOWN = "application/octet-stream"


def recognise(content: bytes) -> str | None:
    """The media type that the content begins like; None if it begins like none that is known here."""
    if content[:4] == b"RIFF":
        return _RIFF.get(content[8:12])
    for start, media_type in _SIGNATURES:
        if content.startswith(start):
            return media_type
    return _MARKUP if content[:64].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<") else None


def choose_shown_type(content: bytes) -> str:
    """Choose the media type to serve content as, independent of its declared type."""
    found = recognise(content)
    return found if found in SHOWN else UNKNOWN


def get_said_type(text: str) -> str:
    """The media type that a text names, without parameters, in the form that it has here."""
    said = text.partition(";")[0].strip().lower()
    return _ALIASES.get(said, said)


def find_contradiction(media_type: str, content: bytes) -> str | None:
    """Return the type that content is recognised as, against its declared one; None if it may well be.

    A provider refuses such a picture, and with it every later request of the session.
    """
    said = _ALIASES.get(media_type, media_type)
    found = recognise(content)
    if found is None or found == said:
        return None
    if said.startswith("audio/"):
        return None if found.startswith("audio/") else found
    return found if said.startswith("image/") or said == "application/pdf" else None
