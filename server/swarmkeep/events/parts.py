"""Content parts of Chat Completions: what each role may have, and what becomes of parts that are named otherwise.

Other interfaces have parts of the same meaning: Responses (`input_text`), Anthropic's (`image` with a `source`,
`tool_use`), Ollama (`images` beside the content). At the doors these become parts of Chat Completions, and what has
no such meaning is refused with its place: stored, it would make every later request of its session one that providers
refuse. What older releases stored is converted where a request is made, or words stand in its place.
"""

from __future__ import annotations

import operator
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any

from swarmkeep.events.codec import Json, encode_text
from swarmkeep.events.errors import InvalidRequest
from swarmkeep.events.files import UNKNOWN, describe_part, read_reference, recognise

# What of the parts of each role a strict provider takes.
PART_TYPES = {
    "system": ("text",),
    "developer": ("text",),
    "user": ("text", "image_url", "input_audio", "file"),
    "assistant": ("text", "refusal"),
    "tool": ("text",),
}
# The members of what a part holds; of a text and a refusal it is the text itself.
_MEMBERS = {
    "image_url": ("url", "detail"),
    "input_audio": ("data", "format"),
    "file": ("file_data", "file_id", "filename"),
}
_DETAILS = ("auto", "low", "high", "original")
# What other interfaces say beside a part and no model has to read: hints for caches, and what comes with an answer.
# It is left out, as it is where an answer is sent back.
_LEFT_OUT = frozenset(
    (
        "annotations",
        "cache_control",
        "citations",
        "id",
        "index",
        "logprobs",
        "prompt_cache_breakpoint",
        "status",
    )
)
# What a model thought is no part of what it said, and is not sent again.
THOUGHTS = ("thinking", "redacted_thinking", "reasoning")
_TEXT_NAMES = ("text", "input_text", "output_text")
_MAX_QUOTED_CHARACTERS = 2000


class _Unfit(Exception):
    """A part that Chat Completions does not have. `at` is where in it the trouble is, as a JSON pointer."""

    def __init__(self, reason: str, at: str = "") -> None:
        super().__init__(reason)
        self.at = at


def convert_message(message: Json, pointer: str) -> Json:
    """Return the message with parts of Chat Completions only; its own ones stay as they are.

    Raises InvalidRequest for a part, or a key of one, that has no meaning there, with its place.
    """
    if message.get("images") is not None:
        message = _place_images(message, pointer)
    content, role = message.get("content"), message["role"]
    if not isinstance(content, list):
        return message
    parts: list[Json] = []
    calls: list[Json] = []
    for place, part in enumerate(content):
        try:
            if part.get("blob") is not None:
                raise _Unfit("send content inline, not as a reference to stored content", "/blob")
            if role == "assistant" and part.get("type") == "tool_use":
                calls.append(_convert_call(part))
            elif role != "assistant" or part.get("type") not in THOUGHTS:
                parts.append(_convert_part(role, part))
        except _Unfit as error:
            raise InvalidRequest(str(error), f"{pointer}/content/{place}{error.at}") from None
    if parts == content:
        return message
    if not parts:
        message = {**message, "content": None if calls or message.get("tool_calls") else ""}
    else:
        message = {**message, "content": parts}
    return _add_calls(message, calls)


def clean_parts(role: str, content: Sequence[Json]) -> Sequence[Json] | str:
    """Return what a model is sent of parts that were stored: those that its role may have, or an empty text.

    Words stand in the place of others, so that it is known that there was something. The same object, where all can be
    sent as they are.
    """
    parts: list[Json] = []
    for part in content:
        if role == "assistant" and part["type"] in THOUGHTS:
            continue
        try:
            parts.append(_convert_part(role, _leave_out_unknown(part)))
        except _Unfit:
            parts.append({"type": "text", "text": _describe(part)})
    if len(parts) == len(content) and all(map(operator.is_, parts, content)):
        return content
    return parts or ""


def _leave_out_unknown(part: Json) -> Json:
    """The part with the keys that are known only; the same object, where it has no others."""
    kind = part["type"]
    members = _MEMBERS.get(kind)
    if members is None:
        return {"type": kind, "text": part.get("text")} if kind in _TEXT_NAMES and len(part) > 2 else part
    held = part.get(kind)
    if isinstance(held, dict):
        kept = {key: held[key] for key in held if key in members and held[key] is not None}
        if kept.get("detail", "auto") not in _DETAILS:
            del kept["detail"]
        held = held if kept == held else kept
    known = ("type", kind, "blob") if read_reference(part) is not None else ("type", kind)
    if held is part.get(kind) and all(key in known for key in part):
        return part
    return {key: held if key == kind else part[key] for key in part if key in known}


def _describe(part: Json) -> str:
    """The words that stand for a part which a model cannot be sent: what it says, if that is short."""
    if (described := describe_part(part)) is not None:
        return described
    kind = part["type"]
    rest = {key: value for key, value in part.items() if key != "type" and key not in _LEFT_OUT}
    said = encode_text(rest)
    quoted = f" {said}" if rest and len(said) <= _MAX_QUOTED_CHARACTERS else ""
    return f"[{kind[:64]}:{quoted}]" if quoted else f"[{kind[:64]}]"


def _convert_part(role: str, part: Json) -> Json:
    """A part as Chat Completions has it for this role. Raises _Unfit."""
    kind = part.get("type")
    if not isinstance(kind, str):
        raise _Unfit("a part must have a type", "/type")
    if kind in PART_TYPES[role] and _is_plain(kind, part):
        return part
    convert = _CONVERSIONS.get(kind)
    if convert is None:
        raise _Unfit(_explain(role, kind), "/type")
    converted = convert(part)
    if converted["type"] not in PART_TYPES[role]:
        raise _Unfit(_explain(role, kind), "/type")
    # As it was given: past requests had its keys in this order.
    return part if converted == part else converted


def _is_plain(kind: str, part: Json) -> bool:
    """Tell if it is a part with exactly what a strict provider takes, as nearly all are."""
    if kind in ("text", "refusal"):
        return len(part) == 2 and isinstance(part.get(kind), str)
    return False


_ADVICE = {
    "tool_result": "; the result of a call is a message with the role `tool` and the call's `tool_call_id`",
    "tool_use": "; a call is one of an assistant's `tool_calls`",
    "video_url": "; send pictures of it",
}


def _explain(role: str, kind: str) -> str:
    known = ", ".join(PART_TYPES[role])
    advice = _ADVICE.get(kind, f"; it can have {known}")
    return f"a message with the role {role} cannot have a part of type {kind[:64]!r}{advice}"


def _refuse_other_keys(part: Json, known: Sequence[str], at: str = "") -> None:
    for key, value in part.items():
        if key not in known and key not in _LEFT_OUT and value is not None:
            raise _Unfit(f"{key[:64]!r} is not known here; leave it out", f"{at}/{key[:64]}")


def _read_text(part: Json) -> Json:
    _refuse_other_keys(part, ("type", "text"))
    if not isinstance(part.get("text"), str):
        raise _Unfit(f"a part of type {part['type']} needs a text", "/text")
    return {"type": "text", "text": part["text"]}


def _read_refusal(part: Json) -> Json:
    _refuse_other_keys(part, ("type", "refusal"))
    if not isinstance(part.get("refusal"), str):
        raise _Unfit("a part of type refusal needs a text", "/refusal")
    return {"type": "refusal", "refusal": part["refusal"]}


def _read_held(part: Json) -> Json:
    """A part that holds an object under the name of its type: a picture, audio, a file; or a reference to content."""
    kind = part["type"]
    _refuse_other_keys(part, ("type", kind, "blob"))
    held = part.get(kind)
    if kind == "image_url" and isinstance(held, str):
        held = {"url": held}
    if not isinstance(held, dict):
        raise _Unfit(f"a part of type {kind} needs an object", f"/{kind}")
    _refuse_other_keys(held, _MEMBERS[kind], f"/{kind}")
    kept = {key: held[key] for key in held if key in _MEMBERS[kind] and held[key] is not None}
    for key, value in kept.items():
        if not isinstance(value, str):
            raise _Unfit(f"{key} must be a text", f"/{kind}/{key}")
    if kept.get("detail", "auto") not in _DETAILS:
        raise _Unfit(f"detail must be one of {', '.join(_DETAILS)}", f"/{kind}/detail")
    if part.get("blob") is not None:
        if read_reference(part) is None:
            raise _Unfit("send content inline, not as a reference to stored content", "/blob")
        return {"type": kind, kind: kept, "blob": part["blob"]}
    content = _MEMBERS[kind][0]
    if content not in kept and "file_id" not in kept:
        raise _Unfit(f"a part of type {kind} needs {content}", f"/{kind}/{content}")
    if kind == "input_audio" and "format" not in kept:
        raise _Unfit("audio needs a format, such as wav or mp3", "/input_audio/format")
    return {"type": kind, kind: kept}


def _read_input_image(part: Json) -> Json:
    """A picture as Responses has it."""
    _refuse_other_keys(part, ("type", "image_url", "detail"))
    address, detail = part.get("image_url"), part.get("detail")
    if not isinstance(address, str | dict):
        raise _Unfit("send a picture as `image_url`, which may be data", "/image_url")
    held = dict(address) if isinstance(address, dict) else {"url": address}
    return _read_held({"type": "image_url", "image_url": held if detail is None else {"detail": detail, **held}})


def _read_input_file(part: Json) -> Json:
    """A file as Responses has it."""
    _refuse_other_keys(part, ("type", *_MEMBERS["file"]))
    return _read_held({"type": "file", "file": {key: part.get(key) for key in _MEMBERS["file"]}})


def _read_image(part: Json) -> Json:
    """A picture as Anthropic's interface has it."""
    _refuse_other_keys(part, ("type", "source"))
    return {"type": "image_url", "image_url": {"url": _read_source(part)}}


def _read_document(part: Json) -> Json:
    """A file as Anthropic's interface has it."""
    _refuse_other_keys(part, ("type", "source", "title"))
    source = part.get("source")
    if not isinstance(source, dict) or source.get("type") != "base64":
        raise _Unfit("send a document as base64", "/source")
    title = part.get("title")
    name = title if isinstance(title, str) and title else "document"
    return {"type": "file", "file": {"filename": name, "file_data": _read_source(part)}}


def _read_source(part: Json) -> str:
    match part.get("source"):
        case {"type": "base64", "media_type": str(media_type), "data": str(data)}:
            return f"data:{media_type};base64,{data}"
        case {"type": "url", "url": str(url)}:
            return url
        case _:
            raise _Unfit("a source must be base64 with its media_type and data, or a url", "/source")


_CONVERSIONS: dict[str, Callable[[Json], Json]] = {
    **dict.fromkeys(_TEXT_NAMES, _read_text),
    "refusal": _read_refusal,
    **dict.fromkeys(_MEMBERS, _read_held),
    "input_image": _read_input_image,
    "input_file": _read_input_file,
    "image": _read_image,
    "document": _read_document,
}


def _convert_call(part: Json) -> Json:
    """A call as Anthropic's interface has it among the parts of an answer."""
    _refuse_other_keys(part, ("type", "id", "name", "input", "caller"))
    call_id, name, arguments = part.get("id"), part.get("name"), part.get("input")
    for key, value, type_ in (("id", call_id, str), ("name", name, str), ("input", arguments, dict)):
        if not isinstance(value, type_) or (not value and type_ is str):
            raise _Unfit(f"a call needs {key}", f"/{key}")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": encode_text(arguments)}}


def _add_calls(message: Json, calls: Sequence[Json]) -> Json:
    """The message with these calls; of those that it names in both ways, its own."""
    given: list[Any] = message.get("tool_calls") or []
    known = {call.get("id") for call in given if isinstance(call, dict)}
    added = [call for call in calls if call["id"] not in known]
    return {**message, "tool_calls": [*given, *added]} if added else message


def _place_images(message: Json, pointer: str) -> Json:
    """A message whose pictures are named beside its text, as Ollama has it: in base64, of any kind."""
    images, content = message["images"], message.get("content")
    rest = {key: value for key, value in message.items() if key != "images"}
    if images == []:
        return rest
    if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
        raise InvalidRequest("images must be a list of texts in base64", f"{pointer}/images")
    if message["role"] != "user":
        raise InvalidRequest(f"a message with the role {message['role']} cannot have images", f"{pointer}/images")
    said = [{"type": "text", "text": content}] if isinstance(content, str) and content else content or []
    return {**rest, "content": [*said, *({"type": "image_url", "image_url": {"url": _make_url(i)}} for i in images)]}


def _make_url(image: str) -> str:
    if image.startswith(("data:", "http:", "https:")):
        return image
    try:
        found = recognise(b64decode(image[:96], validate=True))
    except ValueError:
        found = None
    return f"data:{found or UNKNOWN};base64,{image}"
