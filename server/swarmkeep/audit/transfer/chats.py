"""Transcripts in the form of Chat Completions: lists of messages, fine-tuning files, what Swarm's programs wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from swarmkeep.audit.transfer.foreign import Document, ForeignConversation, enumerate_places
from swarmkeep.domain.codec import Json
from swarmkeep.domain.errors import InvalidImport
from swarmkeep.domain.wording import join_content

_ITEM_TYPES = ("function_call", "function_call_output", "mcp_call", "reasoning", "item_reference")
_ITEMS = (
    "these are items of OpenAI's responses, not messages; create a conversation with them: `items` of "
    "POST /openai/v1/conversations"
)


def read_chats(found: Iterable[Document]) -> Iterator[ForeignConversation]:
    """The conversations in these documents.

    A document is a list of messages, an object that has one under `messages` (or `data`), or a list of such objects.
    Raises InvalidImport.
    """
    for document in found:
        yield from _read_document(document.value, document.line)


def _read_document(value: Any, line: int | None) -> Iterator[ForeignConversation]:
    if isinstance(value, list) and value and all(_holds_messages(item) for item in value):
        for place, item in enumerate_places(value, ""):
            yield _read_conversation(item, place, line)
    elif isinstance(value, list) or _holds_messages(value):
        yield _read_conversation(value, "", line)
    else:
        raise InvalidImport("this is neither a list of messages nor an object that has `messages`", line=line)


def _holds_messages(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("messages", value.get("data")), list)


def _read_conversation(value: list[Any] | Json, place: str, line: int | None) -> ForeignConversation:
    if isinstance(value, list):
        return ForeignConversation(messages=_convert_messages(value, line), place=place, line=line)
    key = "messages" if "messages" in value else "data"
    metadata, variables = value.get("metadata"), value.get("context_variables")
    known = {key, "id"}
    known |= {
        name for name, item in (("metadata", metadata), ("context_variables", variables)) if isinstance(item, dict)
    }
    return ForeignConversation(
        messages=_convert_messages(value[key], line),
        place=f"{place}/{key}",
        line=line,
        id=value["id"] if isinstance(value.get("id"), str) else None,
        agent=_read_agent(value.get("agent")),
        context_variables=variables if isinstance(variables, dict) else {},
        metadata=metadata if isinstance(metadata, dict) else {},
        origin={name: item for name, item in value.items() if name not in known},
    )


def _read_agent(value: Any) -> str | None:
    """The agent that Swarm's Response names, itself or by its name."""
    name = value.get("name") if isinstance(value, dict) else value
    return name if isinstance(name, str) and name else None


def _convert_messages(messages: list[Any], line: int | None) -> list[Json]:
    """The messages; calls of functions as they were before there were tools are told as calls of tools.

    Parts are converted where messages of any door are. What becomes several messages is split here, and texts are
    named here: of both, the id of a conversation that has none is made.
    """
    if any(isinstance(message, dict) and message.get("type") in _ITEM_TYPES for message in messages):
        raise InvalidImport(_ITEMS, line=line)
    told: list[Any] = []
    last_call = ""
    for number, message in enumerate(chain.from_iterable(_split_results(_convert_texts(each)) for each in messages)):
        if (
            isinstance(message, dict)
            and isinstance(message.get("function_call"), dict)
            and not message.get("tool_calls")
        ):
            last_call = f"call_{number}"
            rest = {name: value for name, value in message.items() if name != "function_call"}
            call = {"id": last_call, "type": "function", "function": message["function_call"]}
            told.append({"content": None, **rest, "tool_calls": [call]})
        elif isinstance(message, dict) and message.get("role") == "function":
            told.append({**message, "role": "tool", "tool_call_id": last_call or f"call_{number}"})
        else:
            told.append(message)
    return told


def _convert_texts(message: Any) -> Any:
    """The message, and texts in it that are named as Responses names them as Chat Completions does."""
    parts = message.get("content") if isinstance(message, dict) else None
    if not isinstance(parts, list) or not any(map(_is_text_of_responses, parts)):
        return message
    content = [{"type": "text", "text": part["text"]} if _is_text_of_responses(part) else part for part in parts]
    return {**message, "content": content}


def _is_text_of_responses(part: Any) -> bool:
    return (
        isinstance(part, dict)
        and part.get("type") in ("input_text", "output_text")
        and isinstance(part.get("text"), str)
    )


def _split_results(message: Any) -> list[Any]:
    """The message; of one of Anthropic's with results of calls among its parts, these as messages before the rest."""
    parts = message.get("content") if isinstance(message, dict) and message.get("role") == "user" else None
    if not isinstance(parts, list) or not any(map(_is_result, parts)):
        return [message]
    rest = [part for part in parts if not _is_result(part)]
    results = [
        {"role": "tool", "tool_call_id": part.get("tool_use_id"), "content": join_content(part.get("content"))}
        for part in parts
        if _is_result(part)
    ]
    return [*results, {**message, "content": rest}] if rest else results


def _is_result(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "tool_result"
