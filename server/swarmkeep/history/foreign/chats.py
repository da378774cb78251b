"""Transcripts in the form of Chat Completions: lists of messages, fine-tuning files, what Swarm's programs wrote."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from swarmkeep.events.codec import Json, MalformedJson, decode, encode
from swarmkeep.events.errors import InvalidImport
from swarmkeep.events.wording import join_content
from swarmkeep.history.foreign.conversation import (
    Branch,
    ForeignConversation,
    answer,
    as_dict,
    as_text,
    ask,
    choose_id,
    make_call,
)
from swarmkeep.history.foreign.documents import Document, enumerate_places

_ITEM_TYPES = ("function_call", "function_call_output", "mcp_call", "reasoning", "item_reference")
_OUTPUTS = ("preferred_output", "non_preferred_output")
_ANSWERS = ("chosen", "rejected")
_ITEMS = "these are items of OpenAI's responses, not messages; set `from` (`--from`) to conversations"


def read_chats(found: Iterable[Document]) -> Iterator[ForeignConversation]:
    """The conversations in these documents.

    A document is a list of messages, an object that has one under `messages` (or `data`), or a list of such objects.
    Raises InvalidImport.
    """
    for document in found:
        yield from _read_chat_document(document.value, document.place, document.line)


def _read_chat_document(value: Any, place: str, line: int | None) -> Iterator[ForeignConversation]:
    if isinstance(value, list) and value and all(holds_messages(item) for item in value):
        for within, item in enumerate_places(value, place):
            yield _read_conversation(item, within, line)
    elif isinstance(value, list) or holds_messages(value):
        yield _read_conversation(value, place, line)
    else:
        why = "this is neither a list of messages nor an object that has `messages`"
        raise InvalidImport(f"{place}: {why}" if place else why, line=line)


def is_chat(value: Any) -> bool:
    """Tell if it is a message, or a conversation."""
    return holds_messages(value) or (isinstance(value, dict) and isinstance(value.get("role"), str))


def holds_messages(value: Any) -> bool:
    """Tell if it is a conversation: an object with its messages, or a line for fine-tuning of another kind."""
    return isinstance(value, dict) and (
        isinstance(value.get("messages", value.get("data")), list)
        or (isinstance(value.get("prompt"), str) and isinstance(value.get("completion"), str))
        or _is_preference(value)
    )


def _is_preference(value: Json) -> bool:
    """Tell if it is a line with two answers, of which one is better."""
    lists = (as_dict(value.get("input")).get("messages"), *(value.get(name) for name in _OUTPUTS))
    return all(isinstance(found, list) for found in lists)


def _read_conversation(value: list[Any] | Json, place: str, line: int | None) -> ForeignConversation:
    if isinstance(value, list):
        return ForeignConversation(messages=_convert_messages(value, line), place=place, line=line)
    if not isinstance(value.get("messages", value.get("data")), list):
        if _is_preference(value):
            return _read_preference(value, place, line)
        value = _convert_completion(value)
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
        id=choose_id(value["id"]) if isinstance(value.get("id"), str) else None,
        agent=_read_agent(value.get("agent")),
        context_variables=variables if isinstance(variables, dict) else {},
        metadata=metadata if isinstance(metadata, dict) else {},
        origin=_keep_rest(value, known),
    )


def _keep_rest(value: Json, known: Iterable[str]) -> Json:
    """What else there is, and an id that no session can have."""
    id = value.get("id")
    rest = {name: item for name, item in value.items() if name not in known}
    return {**rest, "id": id} if isinstance(id, str) and id not in ("", choose_id(id)) else rest


def _convert_completion(value: Json) -> Json:
    asked, said = {"role": "user", "content": value["prompt"]}, {"role": "assistant", "content": value["completion"]}
    rest = {name: item for name, item in value.items() if name not in ("prompt", "completion", "messages", "data")}
    return {**rest, "messages": [asked, said]}


def _read_preference(value: Json, place: str, line: int | None) -> ForeignConversation:
    """The preferred answer is the conversation's, the other one a fork of it."""
    asked = _convert_messages(value["input"]["messages"], line)
    preferred, other = (_convert_messages(value[name], line) for name in _OUTPUTS)
    rest = {name: item for name, item in value["input"].items() if name != "messages"}
    return ForeignConversation(
        messages=[*asked, *preferred],
        place=place,
        line=line,
        origin={name: item for name, item in {**rest, **value}.items() if name not in ("input", *_OUTPUTS)},
        branches=[_make_worse(_OUTPUTS[1], len(asked), other)],
    )


def _make_worse(name: str, shared: int, messages: list[Json]) -> Branch:
    """The other answer, by what it says: of one question and answer there may be lines with several that are worse."""
    return Branch(name=f"{name}_{hashlib.sha256(encode(messages)).hexdigest()[:16]}", shared=shared, messages=messages)


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


# ShareGPT: turns with `from` and `value`, as data sets have them.

_SPEAKERS = {
    "human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant",
    "bard": "assistant", "assistant": "assistant", "model": "assistant", "system": "system",
}  # fmt: skip
_RESULTS = ("observation", "tool", "function_response", "tool_response")
_CALLS = ("function_call", "tool_call")


def is_sharegpt(value: Any) -> bool:
    turns = value.get("conversations") if isinstance(value, dict) else None
    return isinstance(turns, list) and all(isinstance(turn, dict) for turn in turns[:1])


def read_sharegpt(found: Iterable[Document]) -> Iterator[ForeignConversation]:
    """Conversations with their turns under `conversations`. Raises InvalidImport."""
    for document in found:
        if not is_sharegpt(document.value):
            where = f"{document.place}: " if document.place else ""
            raise InvalidImport(f"{where}this has no `conversations` with turns in it", line=document.line)
        yield _read_sharegpt(document)


def _read_sharegpt(document: Document) -> ForeignConversation:
    value = document.value
    system = value.get("system") or value.get("system_prompt")
    begin: list[Json] = [{"role": "system", "content": system}] if isinstance(system, str) and system else []
    place = f"{document.place}/conversations"
    messages = [*begin, *_read_turns(value["conversations"], place, document.line)]
    asked = len(messages)
    branches = []
    # Of preferences, the better answer is the conversation's, the other one a fork of it.
    if all(isinstance(value.get(name), dict) for name in _ANSWERS):
        better, worse = (_read_turns([value[name]], f"{document.place}/{name}", document.line) for name in _ANSWERS)
        messages += better
        branches = [_make_worse(_ANSWERS[1], asked, worse)]
    taken = ("conversations", "id", "system", "system_prompt", *(_ANSWERS if branches else ()))
    return ForeignConversation(
        messages=messages,
        place=place,
        line=document.line,
        id=choose_id(value.get("id")),
        origin=_keep_rest(value, taken),
        branches=branches,
    )


def _read_turns(turns: list[Any], place: str, line: int | None) -> list[Json]:
    messages: list[Json] = []
    last_call = ""
    for number, turn in enumerate(turns):
        found = as_dict(turn)
        speaker = as_text(found.get("from", found.get("role"))).lower().replace("-", "_")
        text = as_text(found.get("value", found.get("content")))
        if speaker in _CALLS:
            last_call = f"call_{number}"
            messages.append(ask([_read_call(last_call, text)]))
        elif speaker in _RESULTS:
            messages.append(answer(last_call or f"call_{number}", None, text))
        elif speaker in _SPEAKERS:
            messages.append({"role": _SPEAKERS[speaker], "content": text})
        else:
            why = (
                f"turn {number + 1} does not say who speaks: `from` is human, gpt, system, function_call or observation"
            )
            raise InvalidImport(f"{place}/{number}: {why}", line=line)
    return messages


def _read_call(call_id: str, text: str) -> Json:
    """The call that a text describes as JSON, with a name and arguments; or else the text as it is."""
    try:
        called = as_dict(decode(text))
    except MalformedJson:
        called = {}
    if isinstance(called.get("name"), str):
        return make_call(call_id, called["name"], called.get("arguments", called.get("parameters")))
    return make_call(call_id, "function", text)
