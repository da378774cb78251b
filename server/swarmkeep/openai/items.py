"""Input items as Chat Completions messages: what `input` of a response, or items of a conversation, mean here."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, cast

import msgspec
from msgspec import UNSET

from swarmkeep.events.codec import Json, encode
from swarmkeep.events.errors import quote
from swarmkeep.events.facts import AwaitedApproval, PendingCall
from swarmkeep.events.files import (
    MAX_SENT_BYTES,
    SHA256,
    FileReference,
    make_stand_in,
    read_reference,
    restore_part,
)
from swarmkeep.events.messages import make_summary_message
from swarmkeep.events.parts import THOUGHTS
from swarmkeep.openai.problems import Refused
from swarmkeep.runs.session_log import read_sound_files
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey

# Parts of messages: as responses have them, and as Chat Completions has them.


def read_text(item: Json, name: str, param: str) -> str:
    """A field that must be there. Raises Refused."""
    value = item.get(name)
    if not isinstance(value, str) or not value:
        raise Refused(f"`{name}` must be a text that is not empty", f"{param}.{name}")
    return value


def read_content(content: object, param: str) -> str | list[Json]:
    """Read the text of a user, system or developer, in parts of Chat Completions; texts alone as one text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Refused("content must be a text, or a list of parts", param)
    parts = [_read_part(part, f"{param}[{place}]") for place, part in enumerate(content)]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return str(parts[0]["text"])
    return parts


def _read_part(part: Any, param: str) -> Json:
    match part:
        case {"type": "input_text" | "text" | "output_text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "input_image", "image_url": str(url)}:
            detail = part.get("detail")
            return {"type": "image_url", "image_url": {"url": url, **({"detail": detail} if detail else {})}}
        case {"type": "input_file", "file_data": str(data)}:
            name = part.get("filename")
            return {"type": "file", "file": {"file_data": data, **({"filename": name} if name else {})}}
        case {"type": "input_audio", "input_audio": dict(audio)}:
            return {"type": "input_audio", "input_audio": audio}
        case {"type": "input_image"}:
            raise Refused("send a picture as `image_url`, which may be data, not by the id of an upload", param)
        case {"type": "input_file"}:
            raise Refused("send a file as `file_data`, not by a URL or the id of an upload", param)
        case {"type": str(kind)}:
            raise Refused(f"parts of the type {quote(kind)} are not taken here, or not in this shape", f"{param}.type")
        case _:
            raise Refused("a part must be an object with a `type`", param)


def read_assistant_content(content: object, param: str) -> Json:
    """Read the content of a model's message: `content`, and `refusal` where it refused."""
    if content is None or isinstance(content, str):
        return {"content": content or ""}
    if not isinstance(content, list):
        raise Refused("content must be a text, or a list of parts", param)
    texts: list[str] = []
    refusals: list[str] = []
    for place, part in enumerate(content):
        match part:
            case {"type": "output_text" | "input_text" | "text", "text": str(text)}:
                texts.append(text)
            case {"type": "refusal", "refusal": str(text)}:
                refusals.append(text)
            case {"type": str(kind)} if kind in THOUGHTS:
                # Left out where any message brings them.
                pass
            case _:
                raise Refused("an assistant's parts must be `output_text` or `refusal`", f"{param}[{place}]")
    return {"content": "".join(texts), **({"refusal": "".join(refusals)} if refusals else {})}


def read_text_output(output: object, param: str) -> str:
    """The result of a call. Models are sent texts only here."""
    if isinstance(output, str):
        return output
    if not isinstance(output, list):
        raise Refused("an output must be a text, or a list of text parts", param)
    texts: list[str] = []
    for place, part in enumerate(output):
        match part:
            case {"type": "input_text" | "text" | "output_text", "text": str(text)}:
                texts.append(text)
            case _:
                raise Refused("an output's parts must be texts", f"{param}[{place}]")
    return "".join(texts)


def show_input_content(content: object) -> list[Json]:
    """The parts of a message from outside, as responses show them."""
    if isinstance(content, str):
        return [{"type": "input_text", "text": content}]
    parts = content if isinstance(content, list) else []
    return [shown for part in parts if isinstance(part, dict) and (shown := show_part(part)) is not None]


def show_part(part: Json) -> Json | None:
    """A part as responses show it. One with content that is kept elsewhere waits for that (see `put_back_files`)."""
    if read_reference(part) is not None:
        return {"type": "input_file", "blob_part": part}
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "input_text", "text": text}
        case {"type": "image_url", "image_url": {"url": str(url), **rest}}:
            return {"type": "input_image", "image_url": url, "detail": rest.get("detail") or "auto", "file_id": None}
        case {"type": "file", "file": {"file_data": str(data), **rest}}:
            return {"type": "input_file", "file_data": data, "filename": rest.get("filename")}
        case {"type": "input_audio"}:
            return part
        case _:
            return None


def show_output_text(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def show_refusal(text: str) -> Json:
    return {"type": "refusal", "refusal": text}


_ROLES = ("user", "system", "developer", "assistant")


class ApprovalAnswer(msgspec.Struct, frozen=True):
    """A decision on an `mcp_approval_request`, by that item's id; and the digest of its arguments, if one is given."""

    request_id: str
    approve: bool
    reason: str | None
    param: str
    arguments_digest: str | None = None


class Input(msgspec.Struct):
    """The messages of an input. `messages` are in order; a result of a call is one with the role `tool`.

    `places`: which item of the request's field `param` each message begins with.
    """

    messages: list[Json] = []
    approvals: list[ApprovalAnswer] = []
    places: list[int] = []
    param: str = "input"


def read_input(value: str | list[Any] | None, param: str = "input") -> Input:
    """Raises Refused. References to other items must have been replaced by those."""
    if value is None:
        return Input(param=param)
    if isinstance(value, str):
        return Input([{"role": "user", "content": value}], param=param)
    found = Input(param=param)
    for place, item in enumerate(value):
        _read_item(found, item, f"{param}[{place}]")
        found.places += [place] * (len(found.messages) - len(found.places))
    if found.approvals:
        # What came of a call says how it was decided.
        past = [item.get("approval_request_id") for item in value if item.get("type") == "mcp_call"]
        known = {name for name in past if isinstance(name, str)}
        found.approvals = [answer for answer in found.approvals if answer.request_id not in known]
    return found


def is_reference(item: Any) -> bool:
    """Tell if this names an item instead of being one. The type may be left out, as it may of a message."""
    if not isinstance(item, dict):
        return False
    kind = item.get("type")
    return kind == "item_reference" or (kind is None and "role" not in item and isinstance(item.get("id"), str))


def _read_item(found: Input, item: Any, param: str) -> None:
    if not isinstance(item, dict):
        raise Refused("an item must be an object", param)
    kind = item.get("type") or "message"
    read = _READERS.get(kind) if isinstance(kind, str) else None
    if read is None:
        known = ", ".join((*_READERS, "item_reference"))
        raise Refused(f"items of type {quote(kind)} are not supported; supported: {known}", f"{param}.type")
    read(found, item, param)


def _read_message(found: Input, item: Json, param: str) -> None:
    role = item.get("role")
    if role not in _ROLES:
        raise Refused(f"a message's role must be one of {', '.join(_ROLES)}", f"{param}.role")
    if role == "assistant":
        found.messages.append({"role": role, **read_assistant_content(item.get("content"), f"{param}.content")})
    else:
        found.messages.append({"role": role, "content": read_content(item.get("content"), f"{param}.content")})


def _read_function_call(found: Input, item: Json, param: str) -> None:
    _add_call(found, read_text(item, "call_id", param), item, param)


def _read_function_call_output(found: Input, item: Json, param: str) -> None:
    output = read_text_output(item.get("output"), f"{param}.output")
    found.messages.append({"role": "tool", "tool_call_id": read_text(item, "call_id", param), "content": output})


def _read_mcp_call(found: Input, item: Json, param: str) -> None:
    # Providers take shorter ids than items have.
    call_id = f"call_{hashlib.sha256(read_text(item, 'id', param).encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"
    _add_call(found, call_id, item, param)
    output = item.get("output")
    text = output if isinstance(output, str) else describe_call_error(item.get("error"))
    found.messages.append({"role": "tool", "tool_call_id": call_id, "content": text})


def describe_call_error(error: object) -> str:
    """The text of an `mcp_call`'s error, whichever of its shapes it has."""
    content = error.get("content", error.get("message")) if isinstance(error, dict) else error
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _read_approval(found: Input, item: Json, param: str) -> None:
    approve, reason = item.get("approve"), item.get("reason")
    if not isinstance(approve, bool):
        raise Refused("`approve` must be true or false", f"{param}.approve")
    if reason is not None and not isinstance(reason, str):
        raise Refused("`reason` must be a text", f"{param}.reason")
    digest = item.get("arguments_digest")
    if digest is not None and not (isinstance(digest, str) and SHA256.fullmatch(digest.lower())):
        raise Refused("`arguments_digest` must be a SHA-256 in hex", f"{param}.arguments_digest")
    request_id = read_text(item, "approval_request_id", param)
    answer = ApprovalAnswer(request_id, approve, reason, f"{param}.approval_request_id", digest and digest.lower())
    found.approvals.append(answer)


def _skip(found: Input, item: Json, param: str) -> None:
    """Skip the item: the call that it belongs to says the same."""


def _read_compaction(found: Input, item: Json, param: str) -> None:
    found.messages.append(make_summary_message(read_summary(read_text(item, "encrypted_content", param), param)))


SUMMARY_PREFIX = "summary:"


def read_summary(text: str, param: str) -> str:
    """Read the content of a compaction item: plain text, because it is the caller's own conversation."""
    if not text.startswith(SUMMARY_PREFIX):
        raise Refused("this compaction item was not made here", f"{param}.encrypted_content")
    return text.removeprefix(SUMMARY_PREFIX)


_READERS: dict[str, Callable[[Input, Json, str], None]] = {
    "message": _read_message,
    "function_call": _read_function_call,
    "function_call_output": _read_function_call_output,
    "mcp_call": _read_mcp_call,
    "mcp_approval_request": _skip,
    "mcp_approval_response": _read_approval,
    "compaction": _read_compaction,
}


def _add_call(found: Input, call_id: str, item: Json, param: str) -> None:
    """A call belongs to the reply that it is part of: the assistant's message right before it, or one of its own."""
    name, arguments = read_text(item, "name", param), item.get("arguments")
    # Models write nothing where a function takes nothing.
    if not isinstance(arguments, str):
        raise Refused("`arguments` must be a text", f"{param}.arguments")
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    last = found.messages[-1] if found.messages else None
    if last is not None and last["role"] == "assistant":
        last.setdefault("tool_calls", []).append(call)
    else:
        found.messages.append({"role": "assistant", "content": None, "tool_calls": [call]})


def collect_references(value: Iterable[Any]) -> Counter[str]:
    """The ids that an input refers to, and how often."""
    return Counter(str(item.get("id")) for item in value if is_reference(item))


# Ids of responses and items: each says where in which session it stands, so that any server finds it without an
# index.

ItemKind = Literal["msg", "fc", "fco", "mcp", "mcpr", "mcpa"]

# Not what would look like an event.
_PLAIN_RUN = re.compile(r"run_((?!s[0-9]+\Z)[0-9A-Za-z]{1,64})", re.ASCII)
_RESPONSE = re.compile(r"resp_(~?[0-9A-Za-z]{1,300})(?:-([1-9][0-9]{0,8}))?\.(.{1,128})", re.ASCII | re.DOTALL)
_ITEM = re.compile(
    r"(msg|fc|fco|mcp|mcpr|mcpa)_(?:s([1-9][0-9]{0,15})|(~[0-9a-f]*|[0-9A-Za-z]{1,64})-([0-9]{1,9}))(?:-([0-9]{1,9}))?\.(.{1,128})",
    re.ASCII | re.DOTALL,
)


class ResponseId(msgspec.Struct, frozen=True):
    """`part` counts the waits of the run before it."""

    session_id: str
    run_id: str
    part: int = 0

    def __str__(self) -> str:
        part = f"-{self.part}" if self.part else ""
        return f"resp_{_shorten_run(self.run_id)}{part}.{self.session_id}"


class ItemPlace(msgspec.Struct, frozen=True):
    """The place that an item comes from: an event by its `seq`, or the `turn` of a run, and of its calls the
    `index`."""

    session_id: str
    seq: int | None = None
    run_id: str | None = None
    turn: int = 0
    index: int | None = None

    def make_id(self, kind: ItemKind) -> str:
        place = f"s{self.seq}" if self.run_id is None else f"{_shorten_run(self.run_id)}-{self.turn}"
        index = "" if self.index is None else f"-{self.index}"
        return f"{kind}_{place}{index}.{self.session_id}"

    def at_call(self, index: int) -> ItemPlace:
        return msgspec.structs.replace(self, index=index)


def parse_response_id(text: str) -> ResponseId | None:
    """None for what no response here is called."""
    found = _RESPONSE.fullmatch(text)
    run_id = None if found is None else _lengthen_run(found[1])
    return None if found is None or run_id is None else ResponseId(found[3], run_id, int(found[2] or 0))


def parse_item_id(text: str) -> tuple[ItemKind, ItemPlace] | None:
    """None for what no item here is called."""
    found = _ITEM.fullmatch(text)
    if found is None:
        return None
    kind, seq, run, turn, index, session_id = found.groups()
    run_id = None if run is None else _lengthen_run(run)
    if seq is None and run_id is None:
        return None
    place = ItemPlace(
        session_id,
        seq=None if seq is None else int(seq),
        run_id=run_id,
        turn=int(turn or 0),
        index=None if index is None else int(index),
    )
    return cast("ItemKind", kind), place


def _shorten_run(run_id: str) -> str:
    plain = _PLAIN_RUN.fullmatch(run_id)
    # A run that came out of a file may be called anything.
    return plain[1] if plain is not None else f"~{run_id.encode('utf-8', 'surrogatepass').hex()}"


def _lengthen_run(text: str) -> str | None:
    if not text.startswith("~"):
        return f"run_{text}"
    try:
        return bytes.fromhex(text[1:]).decode("utf-8", "surrogatepass")
    except ValueError:
        return None


# Files and pictures in items: their content is put back where an answer shows what was said.


async def put_back_files(
    store: SqlStore,
    key: SessionKey,
    items: Sequence[Json],
    *,
    max_bytes: int = MAX_SENT_BYTES,
    times: Mapping[str, int] = MappingProxyType({}),
    for_model: bool = False,
) -> list[Json]:
    """The items with the content of the session's files that they show: up to a limit, and then words.

    `times`: how often each item is shown, by its id, where that is not once. `for_model`: raises HistoryDamaged if one
    of the files is not what was recorded.
    """
    sizes = _add_sizes(items, times)
    if not sizes:
        return list(items)
    wanted: list[str] = []
    for name, size in sizes.items():
        if size <= max_bytes:
            wanted.append(name)
            max_bytes -= size
    files = await (read_sound_files(store, key, wanted) if for_model else store.read_files(key, wanted))
    return await asyncio.to_thread(lambda: [_put_back(item, files) for item in items])


def measure_item(item: Json) -> int:
    """The bytes of an item once its files are put back."""
    return len(encode(item)) + measure_files([item])


def measure_files(items: Iterable[Json], times: Mapping[str, int] = MappingProxyType({})) -> int:
    """The bytes that the files of items take once they are put back."""
    return sum(size * 4 // 3 for size in _add_sizes(items, times).values())


def _add_sizes(items: Iterable[Json], times: Mapping[str, int]) -> dict[str, int]:
    """The files of items by their hashes, with the bytes of all places where each is shown."""
    sizes: dict[str, int] = {}
    for item in items:
        for reference in _list_references([item]):
            size = reference.size * times.get(str(item.get("id")), 1)
            sizes[reference.sha256] = sizes.get(reference.sha256, 0) + size
    return sizes


def _list_references(items: Iterable[Json]) -> Iterator[FileReference]:
    for item in items:
        for part in _list_parts(item):
            if (reference := read_reference(part.get("blob_part"))) is not None:
                yield reference


def _list_parts(item: Json) -> list[Any]:
    content = item.get("content")
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _put_back(item: Json, files: Mapping[str, bytes]) -> Json:
    if not any("blob_part" in part for part in _list_parts(item)):
        return item
    return {**item, "content": [_put_back_part(part, files) for part in item["content"]]}


def _put_back_part(shown: Json, files: Mapping[str, bytes]) -> Json:
    part = shown.get("blob_part")
    reference = read_reference(part)
    if part is None or reference is None:
        return shown
    content = files.get(reference.sha256)
    whole = make_stand_in(part, reference, "left out") if content is None else restore_part(part, reference, content)
    return show_part(whole) or shown


# Approvals that a run waits for in other sessions, because its agent asks another one there: as items.


def list_requests_below(
    session_id: str, seq: int, pending: Sequence[PendingCall]
) -> Iterator[tuple[str, AwaitedApproval]]:
    """Each with its item's id; `seq` is the event from which on the run waits."""
    awaited = (each for call in pending if call.approvals is not UNSET for each in call.approvals)
    for index, approval in enumerate(awaited):
        yield ItemPlace(session_id, seq=seq).at_call(index).make_id("mcpr"), approval


def show_request_below(item_id: str, approval: AwaitedApproval) -> Json:
    return {
        "id": item_id,
        "type": "mcp_approval_request",
        "server_label": approval.agent,
        "name": approval.name,
        "arguments": approval.arguments,
    }
