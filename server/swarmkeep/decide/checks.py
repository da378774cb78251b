"""Check what callers send: session ids, messages, JSON objects; and take inline files out of it, named by hash."""

from __future__ import annotations

import binascii
import hashlib
import re
import sys
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType, inspect

from swarmkeep.agent import File, NotJsonError
from swarmkeep.agent.output import OutputTypeError, check_schema
from swarmkeep.agent.values import (
    ModelProfileError,
    ModelSettingsError,
    check_model_profile,
    check_model_settings,
    check_response_format,
    copy_plain_object,
)
from swarmkeep.events.codec import Json, convert, encode
from swarmkeep.events.errors import InvalidRequest, TooLarge, quote
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
from swarmkeep.events.messages import Entry, describe_result_part, find_stray_result
from swarmkeep.events.model_profiles import hide_attached
from swarmkeep.events.parts import convert_message
from swarmkeep.events.records import CallerTool
from swarmkeep.events.state import CHILD_PREFIX
from swarmkeep.events.wording import pluralize

# Words for values that do not have the shape they should have: where they are, and what may stand there.

ID_RULE = "an id must have 1 to 128 of the characters A-Z a-z 0-9 . _ : - and must not be '.' or '..'"

_WRONG_CHOICE = "Invalid enum value"
_QUOTED_FIELD = re.compile(r" field `([^`]*)`")
_PATH_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")


def make_invalid_request(error: msgspec.ValidationError, type_: Any, pointer: str = "") -> InvalidRequest:
    """The refusal of a value, below `pointer`, that does not have the shape of `type_`."""
    detail, _, place = str(error).partition(" - at `")
    # `$.path`, or of one of an object's keys: `key` in `$.path`.
    is_key = place.startswith("key` in `")
    known, is_deeper, _ = place.partition("$")[2].partition("[...]")
    steps = [name or index for name, index in _PATH_STEP.findall(known)]
    pointer += "".join(f"/{step}" for step in steps)
    where = pointer
    if (named := _QUOTED_FIELD.search(detail)) is not None:
        pointer += f"/{named[1]}"
    if pointer == "/id" and "matching regex" in detail:
        return InvalidRequest(ID_RULE, pointer)
    if detail.startswith("Expected `null`, got"):
        return InvalidRequest(f"'{pointer.rpartition('/')[2]}' is not supported here; leave it out", pointer)
    if is_key:
        detail = f"a key: {detail}"
    elif detail.startswith(_WRONG_CHOICE) and not is_deeper:
        detail = add_choices(detail, type_, steps)
    return InvalidRequest(detail.replace("`", "'"), pointer, place=_name_place(where))


def add_choices(detail: str, type_: Any, steps: Sequence[str] = ()) -> str:
    """Describe the fault of a value, and if it is none of several known ones, list these."""
    choices = _list_choices(inspect.type_info(type_), steps) if detail.startswith(_WRONG_CHOICE) else []
    return f"{detail}; known: {', '.join(choices)}" if choices else detail


def _list_choices(shape: inspect.Type, steps: Sequence[str]) -> list[str]:
    """The values that may stand at a place in a value of this shape, if they are a few known ones."""
    match shape:
        case inspect.UnionType(types=types):
            return [choice for each in types for choice in _list_choices(each, steps)]
        case inspect.LiteralType(values=values) if not steps:
            return [str(value) for value in values]
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item) if steps:
            return _list_choices(item, steps[1:])
        case inspect.StructType(fields=fields) if steps:
            found = (field.type for field in fields if field.encode_name == steps[0])
            return [choice for each in found for choice in _list_choices(each, steps[1:])]
        case _:
            return []


def _name_place(pointer: str) -> str:
    """`/input/0/role` as people write it: `input[0].role`."""
    steps = pointer.removeprefix("/").split("/")
    return "".join(f"[{step}]" if step.isdecimal() else f".{step}" for step in steps).removeprefix(".")


# Not "." or "..": clients take these out of a URL's path, so that such a session could never be reached.
_SESSION_ID = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._:-]{1,128}", re.ASCII)


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _ToolCall(msgspec.Struct):
    id: str
    function: _Function
    type: Literal["function"] = "function"


class _Message(msgspec.Struct):
    """The shape of a Chat Completions message, so far as this server relies on it; other keys are kept as they are."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Json] | None = None
    name: str | None = None
    sender: str | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None


def check_id(session_id: str, pointer: str = "/id") -> str:
    if not _SESSION_ID.fullmatch(session_id):
        raise InvalidRequest(ID_RULE, pointer)
    return session_id


def check_new_id(session_id: str, pointer: str = "/id") -> str:
    """An id that a caller may give to a session."""
    if session_id.startswith(f"{CHILD_PREFIX}_"):
        raise InvalidRequest(
            f"ids that begin with {CHILD_PREFIX}_ are reserved for sessions that agents begin", pointer
        )
    return check_id(session_id, pointer)


def check_object(value: Json, pointer: str) -> Json:
    """The object itself, if it is JSON of bearable depth."""
    try:
        return copy_plain_object(value, pointer)
    except NotJsonError as error:
        raise InvalidRequest(str(error), pointer) from error


def check_messages(value: str | list[Json], pointer: str, max_messages: int | None = None) -> tuple[Json, ...]:
    """Return messages as they are kept, with parts of Chat Completions only; a string is one message of the user.

    Raises InvalidRequest and TooLarge.
    """
    if isinstance(value, str):
        return ({"role": "user", "content": value},)
    if max_messages is not None and len(value) > max_messages:
        raise TooLarge(f"{pointer} has more than {pluralize(max_messages, 'message')} (SWARMKEEP_MAX_MESSAGES)")
    return tuple(_check_message(message, f"{pointer}/{index}") for index, message in enumerate(value))


def _check_message(message: Json, pointer: str) -> Json:
    try:
        shape = convert(message, _Message)
    except msgspec.ValidationError as error:
        raise make_invalid_request(error, _Message, pointer) from error
    if shape.role == "tool" and not shape.tool_call_id:
        raise InvalidRequest("a tool message needs a tool_call_id", f"{pointer}/tool_call_id")
    # Models alone attach something to their messages: it is sent back to them, and no guardrail looks at it.
    converted = convert_message(hide_attached(check_object(message, pointer)), pointer)
    if shape.role in ("user", "system", "developer", "tool") and converted.get("content") is None:
        raise InvalidRequest(f"a {shape.role} message needs content", f"{pointer}/content")
    return converted


def refuse_stray_results(messages: Sequence[Json], pointer: str, history: Sequence[Entry] = ()) -> None:
    """Refuse a tool message that answers no open call of what comes before it: no model would be sent it."""
    place = find_stray_result(messages, history)
    if place is not None:
        call_id = messages[place].get("tool_call_id")
        said = f"there is no open call {quote(call_id)} that this tool message could answer"
        raise InvalidRequest(said, f"{pointer}/{place}")


# Checking the functions that a caller brings to a run.

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)
# As many as providers take in one request.
_MAX_TOOLS = 128
# They are recorded with the run, and sent with each of its model calls.
_MAX_BYTES = 262_144

MAX_CHOSEN = 1_000
"""Names in a choice between some: the agents' own, those of their servers and the caller's together are fewer."""
_CHOICES = ("auto", "none", "required")


def check_tools(tools: Sequence[Json], pointer: str = "/tools") -> tuple[CallerTool, ...]:
    """The functions, in the form of Chat Completions. Raises InvalidRequest and TooLarge."""
    if len(tools) > _MAX_TOOLS:
        raise TooLarge(f"{pointer} has more than {_MAX_TOOLS} functions")
    checked: dict[str, CallerTool] = {}
    for place, tool in enumerate(tools):
        here = f"{pointer}/{place}"
        found = _check_tool(check_object(tool, here), here)
        if checked.setdefault(found.function.name, found) is not found:
            raise InvalidRequest(f"two functions are called {found.function.name!r}", f"{here}/function/name")
    if len(encode(list(checked.values()))) > _MAX_BYTES:
        raise TooLarge(f"{pointer} would have more than {_MAX_BYTES} bytes as JSON")
    return tuple(checked.values())


def _check_tool(tool: Json, pointer: str) -> CallerTool:
    try:
        found = convert(tool, CallerTool)
    except msgspec.ValidationError as error:
        raise make_invalid_request(error, CallerTool, pointer) from error
    if not _NAME.fullmatch(found.function.name):
        detail = "a function's name must have 1 to 64 of the characters a-z A-Z 0-9 _ -"
        raise InvalidRequest(detail, f"{pointer}/function/name")
    return found


def check_tool_choice(choice: str | Json, pointer: str = "/tool_choice") -> str | Json:
    """`auto`, `none`, `required`, or an object that names a function. Raises InvalidRequest."""
    if isinstance(choice, str):
        if choice not in _CHOICES:
            raise InvalidRequest(f"`tool_choice` must be one of {', '.join(_CHOICES)}, or name a function", pointer)
        return choice
    if not isinstance(choice.get("type"), str):
        raise InvalidRequest("`tool_choice` needs a `type`", pointer)
    allowed = choice.get("allowed_tools")
    tools = allowed.get("tools") if isinstance(allowed, dict) else None
    if isinstance(tools, list) and len(tools) > MAX_CHOSEN:
        raise InvalidRequest(f"a choice may name at most {MAX_CHOSEN} tools", f"{pointer}/allowed_tools/tools")
    return check_object(choice, pointer)


# Checking what a run asks of its model: parameters of the request, and the form of the answer.


def check_settings(settings: Json, pointer: str = "/model_settings") -> Json:
    """Raises InvalidRequest."""
    try:
        return check_model_settings(settings)
    except ModelSettingsError as error:
        raise InvalidRequest(str(error), f"{pointer}/{error.name}".rstrip("/")) from error


def check_profile(profile: Json, pointer: str = "/model_profile") -> Json:
    """Raises InvalidRequest."""
    try:
        return check_model_profile(profile)
    except ModelProfileError as error:
        raise InvalidRequest(str(error), f"{pointer}/{error.name}".rstrip("/")) from error


def check_format(response_format: Json, pointer: str = "/response_format") -> Json:
    """Raises InvalidRequest; also for a schema that is none, or is too large once its references are followed."""
    try:
        checked = check_response_format(response_format)
    except ModelSettingsError as error:
        raise InvalidRequest(str(error), f"{pointer}/{error.name}".rstrip("/")) from error
    schema = checked.get("json_schema", {}).get("schema")
    try:
        if schema is not None:
            check_schema(schema, "the schema")
    except OutputTypeError as error:
        raise InvalidRequest(str(error), f"{pointer}/json_schema/schema") from error
    return checked


# Take inline content out of messages from outside: checked, and named by its hash from then on.

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
