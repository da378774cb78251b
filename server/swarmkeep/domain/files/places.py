"""Where files stand in the JSON of messages, and how their content gets there.

The JSON of a history is kept from one request to the next, with references in it: so no content is in memory but for
the time of a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from swarmkeep.domain.codec import Json, encode
from swarmkeep.domain.files.references import FileReference, make_stand_in, read_reference, restore_part

MAX_SENT_BYTES = 50_000_000
"""Of files in one request: what providers take. The newest are sent. It is no setting, because a request of the past
has to be the same whatever is set now."""


class FilePlace(msgspec.Struct, frozen=True):
    """A part that refers to a file, and the bytes of the JSON that it takes."""

    start: int
    end: int
    part: Json
    reference: FileReference


class Media(msgspec.Struct, frozen=True):
    """How many parts are something else than text, and the bytes of the JSON that they take."""

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


def _find_first_sent(places: Sequence[FilePlace], files: Mapping[str, bytes] | None = None) -> int:
    """Where what is sent begins. What `files` are there counts as what it is, if less is said of it."""
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
