"""Files and pictures of messages: what stands in a content part in the place of its bytes, and how these are put back.

A part that came with its content inline keeps its type and whatever else it says; `blob` beside them names the content:

    {"type": "image_url", "image_url": {"detail": "low"},
     "blob": {"sha256": "…", "media_type": "image/png", "size": 12345}}
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.domain.codec import Json

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
    """Whether it is a part of a kind that brings content."""
    return isinstance(part, dict) and isinstance(part.get("type"), str) and part["type"] in KINDS


def read_reference(part: object) -> FileReference | None:
    """What a content part refers to; None if it does not refer to any content."""
    if not isinstance(part, dict) or "blob" not in part or not has_content_kind(part):
        return None
    try:
        found = msgspec.convert(part["blob"], FileReference)
    except msgspec.ValidationError:
        return None
    is_object = isinstance(part.get(part["type"]), dict)
    return found if is_object and SHA256.fullmatch(found.sha256) and found.size >= 0 else None


def list_references(message: Json) -> list[FileReference]:
    """What a message's parts refer to, in their order."""
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
    """What a model is sent where it is not sent the content."""
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
