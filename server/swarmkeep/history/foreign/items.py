"""Items of OpenAI's Responses: conversations that were listed item by item, and what programs keep of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from swarmkeep.events.codec import Json
from swarmkeep.events.errors import InvalidImport
from swarmkeep.history.foreign.conversation import (
    OTHER_ITEMS,
    REASONING,
    ForeignConversation,
    answer,
    as_dict,
    as_list,
    as_text,
    ask,
    choose_id,
    convert_parts,
    format_seconds,
    join_parts,
    keep,
    make_call,
    mark,
)
from swarmkeep.history.foreign.documents import Document

_CALL, _OUTPUT = "_call", "_call_output"
_KNOWN = ("message", "reasoning", "item_reference", "function_call", "function_call_output")
_HOSTED_RESULTS = ("results", "outputs", "output", "error")
_NOT_ARGUMENTS = ("type", "id", "call_id", "name", "status", "result", "created_by", *_HOSTED_RESULTS)
# Answered by another item, which names them by their call_id; others bring their own results.
_ANSWERED_LATER = ("function", "custom_tool", "computer", "local_shell", "shell", "apply_patch")


def is_item(value: Any) -> bool:
    """Tell if it is an item of a response, and no message of Chat Completions."""
    kind = value.get("type") if isinstance(value, dict) else None
    return isinstance(kind, str) and (kind in _KNOWN or kind.endswith((_CALL, _OUTPUT)))


def _list_items(value: Any) -> list[Any] | None:
    """The items that a list, an answer with a list, or an object has under `items`; None if there are none."""
    if isinstance(value, dict):
        value = value.get("items", value.get("data"))
        value = value.get("data") if isinstance(value, dict) else value
    return value if isinstance(value, list) and any(map(is_item, value)) else None


def holds_items(value: Any) -> bool:
    """Tell if it is a whole conversation: an object with items, or a conversation that has none."""
    return isinstance(value, dict) and (_list_items(value) is not None or value.get("object") == "conversation")


def read_item_lists(found: Iterable[Document]) -> Iterator[ForeignConversation]:
    """The conversations in these documents: each an object with `items`, or the items alone. Raises InvalidImport."""
    for document in found:
        value = document.value
        several = isinstance(value, list) and value and all(map(holds_items, value))
        for number, one in enumerate(value if several else [value]):
            place = f"{document.place}/{number}" if several else document.place
            yield _read_conversation(one, place, document.line)


def _read_conversation(value: Any, place: str, line: int | None) -> ForeignConversation:
    items = _list_items(value)
    if items is None and not holds_items(value):
        raise InvalidImport("this is neither a list of items nor a conversation with `items`", line=line)
    about = as_dict(value)
    about = as_dict(about.get("conversation")) or about
    left_out: Counter[str] = Counter()
    return ForeignConversation(
        messages=convert_items([(item, None) for item in order_items(items or [])], left_out),
        place=place,
        line=line,
        id=choose_id(about.get("id")) if about.get("object") == "conversation" else None,
        metadata=as_dict(about.get("metadata")),
        origin=keep(created_at=format_seconds(about.get("created_at"))),
        left_out=left_out,
        empty=not items,
    )


def order_items(items: Sequence[Any]) -> Sequence[Any]:
    """The oldest first: OpenAI lists the newest first unless it is asked otherwise, and items have no times.

    A result before its call says so, or else that the assistant begins and the user ends.
    """
    called: set[str] = set()
    for item in items:
        kind, call_id = as_dict(item).get("type"), as_dict(item).get("call_id")
        if not isinstance(kind, str) or not isinstance(call_id, str):
            continue
        if kind.endswith(_OUTPUT):
            return items if call_id in called else items[::-1]
        called.add(call_id)
    roles = [item["role"] for item in items if isinstance(item, dict) and isinstance(item.get("role"), str)]
    return items[::-1] if roles and roles[0] == "assistant" and roles[-1] != "assistant" else items


def convert_items(items: Sequence[tuple[Any, str | None]], left_out: Counter[str]) -> list[Json]:
    """The items, each with its time if there is one, as messages. Calls of one reply are one message."""
    messages: list[Json] = []
    last_asks = False
    for item, at in items:
        told, asks = _convert_item(as_dict(item), at, left_out)
        if asks and last_asks:
            messages[-1] = {**messages[-1], "tool_calls": [*messages[-1]["tool_calls"], *told[0]["tool_calls"]]}
        else:
            messages += told
        last_asks = asks or (last_asks and not told)
    return messages


def _convert_item(item: Json, at: str | None, left_out: Counter[str]) -> tuple[list[Json], bool]:
    """The messages of an item, and whether they are nothing but a call that is answered by a later item."""
    kind = as_text(item.get("type")) or "message"
    status = None if item.get("status") == "completed" else item.get("status")
    kept = {"id": item.get("id"), "created_at": at, "status": status}
    if kind == "message" and isinstance(item.get("role"), str):
        role = "system" if item["role"] == "critic" else item["role"]
        content = convert_parts(item.get("content"), role, left_out)
        return [mark({"role": role, "content": content}, **kept)], False
    call_id = next((item[key] for key in ("call_id", "id") if isinstance(item.get(key), str) and item[key]), None)
    if kind == "reasoning":
        left_out[REASONING] += 1
    elif call_id is None or not kind.endswith((_CALL, _OUTPUT)):
        left_out[OTHER_ITEMS] += 1
    elif kind.endswith(_OUTPUT):
        content = join_parts(convert_parts(item.get("output"), "tool", left_out))
        return [mark(answer(call_id, None, content), **kept)], False
    else:
        return _convert_call(item, kind.removesuffix(_CALL), call_id, kept, left_out)
    return [], False


def _convert_call(item: Json, tool: str, call_id: str, kept: Json, left_out: Counter[str]) -> tuple[list[Json], bool]:
    name = item.get("name") if isinstance(item.get("name"), str) else tool
    arguments = item.get("arguments", item.get("input"))
    if arguments is None:
        arguments = {key: value for key, value in item.items() if key not in _NOT_ARGUMENTS and value is not None}
    asking = mark(ask([make_call(call_id, name, arguments)]), **kept)
    if tool in _ANSWERED_LATER:
        return [asking], True
    results = [item[key] for key in _HOSTED_RESULTS if item.get(key) not in (None, [])]
    if item.get("result") is not None:
        results.append("[image]")
        left_out["generated images"] += 1
    return [asking, answer(call_id, name, "\n".join(_describe_result(result) for result in results))], False


def _describe_result(result: Any) -> str:
    logs = [one["logs"] for one in as_list(result) if isinstance(one, dict) and isinstance(one.get("logs"), str)]
    return "\n".join(logs) if logs else as_text(result)
