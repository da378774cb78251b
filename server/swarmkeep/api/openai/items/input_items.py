"""Input items as Chat Completions messages: what `input` of a response, or items of a conversation, mean here."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from swarmkeep.api.openai.errors import Refused
from swarmkeep.api.openai.items.content import read_assistant_content, read_content, read_text, read_text_output
from swarmkeep.domain.codec import Json
from swarmkeep.domain.history.stand_ins import make_summary_message

_ROLES = ("user", "system", "developer", "assistant")


class ApprovalAnswer(msgspec.Struct, frozen=True):
    """A decision on an `mcp_approval_request`, by that item's id; and the digest of its arguments, if one is given."""

    request_id: str
    approve: bool
    reason: str | None
    param: str
    arguments_digest: str | None = None


class Input(msgspec.Struct):
    """What was said. `messages` are in order; a result of a call is one with the role `tool`.

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
    """Whether this names an item instead of being one. The type may be left out, as it may of a message."""
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
        raise Refused(f"items of type {kind!r} are not supported; supported: {known}", f"{param}.type")
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
    if digest is not None and not isinstance(digest, str):
        raise Refused("`arguments_digest` must be a text", f"{param}.arguments_digest")
    request_id = read_text(item, "approval_request_id", param)
    answer = ApprovalAnswer(request_id, approve, reason, f"{param}.approval_request_id", digest and digest.lower())
    found.approvals.append(answer)


def _skip(found: Input, item: Json, param: str) -> None:
    """What the call that it belongs to says, too."""


def _read_compaction(found: Input, item: Json, param: str) -> None:
    found.messages.append(make_summary_message(read_summary(read_text(item, "encrypted_content", param), param)))


SUMMARY_PREFIX = "summary:"


def read_summary(text: str, param: str) -> str:
    """What a compaction item holds: plain text, because it is the caller's own conversation."""
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
