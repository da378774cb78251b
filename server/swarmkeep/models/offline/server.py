"""Checks messages as a strict Chat Completions provider does; repairs nothing."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec

from swarmkeep.models.offline.answers import Answer, TextAnswer, answer, fit_answer, read_turn

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI


MESSAGE_KEYS: Mapping[str, frozenset[str]] = {
    "system": frozenset({"role", "content", "name"}),
    "developer": frozenset({"role", "content", "name"}),
    "user": frozenset({"role", "content", "name"}),
    "assistant": frozenset({"role", "content", "name", "refusal", "audio", "function_call", "tool_calls"}),
    "tool": frozenset({"role", "content", "tool_call_id"}),
    "function": frozenset({"role", "content", "name"}),
}
PART_TYPES: Mapping[str, frozenset[str]] = {
    "system": frozenset({"text"}),
    "developer": frozenset({"text"}),
    "user": frozenset({"text", "image_url", "input_audio", "file"}),
    "assistant": frozenset({"text", "refusal"}),
    "tool": frozenset({"text"}),
    "function": frozenset(),
}
_CALL_KEYS = frozenset({"id", "type", "function"})
_FUNCTION_KEYS = frozenset({"name", "arguments"})
_FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_AUTHOR_NAME = re.compile(r"[^\s<|\\/>]{1,64}")


def find_message_problems(messages: list[dict[str, Any]]) -> list[str]:
    """Everything in a list of messages that a strict provider would refuse, in order; empty if it is valid.

    Checked: roles, the keys each role allows, the types of all values, the characters of names, and the order of tool
    calls and results: each call of an assistant message is followed by exactly one tool message with its id before any
    other message, and no tool message stands without its call. Never raises, for any argument.
    """
    if not isinstance(messages, list):
        return ["messages: must be a list"]
    if not messages:
        return ["messages: must hold at least one message"]
    found: list[str] = []
    waiting: dict[str, bool] = {}  # call id -> answered, of the assistant message that tool messages now answer
    calling = -1
    for index, message in enumerate(messages):
        if not waiting and _is_plain_text(message):
            continue
        role = message.get("role") if isinstance(message, dict) else None
        if role == "tool":
            _check_answer(index, message, waiting, found)
        elif waiting:
            _check_all_answered(calling, waiting, found)
            waiting = {}
        if not isinstance(message, dict) or not isinstance(role, str) or role not in MESSAGE_KEYS:
            found.append(_describe_unreadable(index, message, role))
            continue
        _check_message(index, role, message, found)
        if "tool_calls" in message and role == "assistant":
            calling, waiting = index, _check_calls(index, message["tool_calls"], found)
    _check_all_answered(calling, waiting, found)
    return found


# Long histories are mostly made of messages and calls in their simplest form: those two are recognised quickly.


def _is_plain_text(message: Any) -> bool:
    return (
        isinstance(message, dict)
        and len(message) == 2
        and message.get("role") in ("user", "assistant", "system", "developer")
        and isinstance(message.get("content"), str)
    )


def _is_plain_call(call: Any) -> bool:
    if not isinstance(call, dict) or len(call) != 3 or call.get("type") != "function" or not call.get("id"):
        return False
    function = call.get("function")
    return (
        isinstance(call["id"], str)
        and isinstance(function, dict)
        and len(function) == 2
        and isinstance(function.get("arguments"), str)
        and isinstance(function.get("name"), str)
        and _FUNCTION_NAME.fullmatch(function["name"]) is not None
    )


def _describe_unreadable(index: int, message: object, role: object) -> str:
    if not isinstance(message, dict):
        return f"messages[{index}]: must be an object"
    return f"messages[{index}].role: {role!r} is not one of {', '.join(MESSAGE_KEYS)}"


def _check_answer(index: int, message: dict[str, Any], waiting: dict[str, bool], found: list[str]) -> None:
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str) or not call_id:
        found.append(f"messages[{index}].tool_call_id: must be a non-empty string")
    elif call_id not in waiting:
        found.append(f"messages[{index}]: tool message for {call_id!r} answers no call of the preceding tool_calls")
    elif waiting[call_id]:
        found.append(f"messages[{index}]: a second tool message for {call_id!r}")
    else:
        waiting[call_id] = True


def _check_all_answered(calling: int, waiting: dict[str, bool], found: list[str]) -> None:
    for call_id, answered in waiting.items():
        if not answered:
            found.append(f"messages[{calling}]: tool call {call_id!r} is not followed by a tool message with its id")


def _check_message(index: int, role: str, message: dict[str, Any], found: list[str]) -> None:
    if not message.keys() <= MESSAGE_KEYS[role]:
        unknown = ", ".join(repr(key) for key in message if key not in MESSAGE_KEYS[role])
        found.append(f"messages[{index}]: unknown key {unknown} in a message of role {role!r}")
    if not isinstance(message.get("content"), str):
        _check_content(f"messages[{index}].content", role, message, found)
    if role == "assistant" and ("refusal" in message or "audio" in message or "function_call" in message):
        _check_extras(index, message, found)
    if "name" in message or role == "function":
        _check_author(index, message.get("name"), found)


def _check_author(index: int, name: object, found: list[str]) -> None:
    if not isinstance(name, str) or not _AUTHOR_NAME.fullmatch(name):
        found.append(f"messages[{index}].name: must be 1 to 64 characters without spaces or < | \\ / >")


def _check_content(where: str, role: str, message: dict[str, Any], found: list[str]) -> None:
    content = message.get("content")
    if content is None:
        _check_absence(where, role, message, found)
    elif not isinstance(content, list) or role == "function":
        found.append(f"{where}: must be a string{'' if role == 'function' else ' or a list of parts'}")
    elif not content:
        found.append(f"{where}: a list of parts must not be empty")
    else:
        for number, part in enumerate(content):
            _check_part(f"{where}[{number}]", role, part, found)


def _check_absence(where: str, role: str, message: dict[str, Any], found: list[str]) -> None:
    if role == "assistant":
        if not any(message.get(key) is not None for key in ("tool_calls", "function_call", "refusal", "audio")):
            found.append(f"{where}: an assistant message needs content or tool_calls")
    elif role != "function" or "content" not in message:
        found.append(f"{where}: must be a string, not {'null' if 'content' in message else 'absent'}")


def _check_part(where: str, role: str, part: object, found: list[str]) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str) or kind not in PART_TYPES[role]:
        found.append(f"{where}: must be a part of type {', '.join(sorted(PART_TYPES[role]))}")
        return
    value = part.get(kind)
    wanted: type = str if kind in ("text", "refusal") else dict
    if not isinstance(value, wanted):
        found.append(f"{where}.{kind}: must be {'a string' if wanted is str else 'an object'}")


def _check_extras(index: int, message: dict[str, Any], found: list[str]) -> None:
    for key, wanted, words in (("refusal", str, "a string"), ("audio", dict, "an object")):
        value = message.get(key)
        if value is not None and not isinstance(value, wanted):
            found.append(f"messages[{index}].{key}: must be {words} or null")
    if message.get("function_call") is not None:
        _check_function(f"messages[{index}].function_call", message["function_call"], found)


def _check_calls(index: int, calls: object, found: list[str]) -> dict[str, bool]:
    """The ids that must be answered, none of them yet."""
    where = f"messages[{index}].tool_calls"
    if not isinstance(calls, list) or not calls:
        found.append(f"{where}: must be a list with at least one call, or left out")
        return {}
    waiting: dict[str, bool] = {}
    for number, call in enumerate(calls):
        if _is_plain_call(call) and call["id"] not in waiting:
            waiting[call["id"]] = False
            continue
        at = f"{where}[{number}]"
        if not isinstance(call, dict):
            found.append(f"{at}: must be an object")
            continue
        if call.keys() != _CALL_KEYS:
            found.append(f"{at}: must have exactly the keys id, type and function, has {', '.join(map(str, call))}")
        if call.get("type") != "function":
            found.append(f"{at}.type: must be 'function'")
        _check_function(f"{at}.function", call.get("function"), found)
        call_id = call.get("id")
        if not isinstance(call_id, str) or not call_id:
            found.append(f"{at}.id: must be a non-empty string")
        elif call_id in waiting:
            found.append(f"{at}.id: {call_id!r} is used twice in one message")
        else:
            waiting[call_id] = False
    return waiting


def _check_function(where: str, function: object, found: list[str]) -> None:
    if not isinstance(function, dict):
        found.append(f"{where}: must be an object")
        return
    if function.keys() != _FUNCTION_KEYS:
        found.append(f"{where}: must have exactly the keys name and arguments, has {', '.join(map(str, function))}")
    check_function_name(where, function.get("name"), found)
    if not isinstance(function.get("arguments"), str):
        found.append(f"{where}.arguments: must be a string")


def check_function_name(where: str, name: object, found: list[str]) -> None:
    if not isinstance(name, str) or not _FUNCTION_NAME.fullmatch(name):
        found.append(f"{where}.name: must be 1 to 64 letters, digits, underscores or dashes")


# Chat Completions on the wire: completions, chunks and errors as the provider writes them.

OFFLINE_MODEL = "swarmkeep-offline"
FINGERPRINT = "fp_swarmkeep_offline_no_llm"
ARGUMENT_PIECE_CHARACTERS = 24

_WORD_WITH_SPACE = re.compile(r"\S+\s*|\s+")
encode = msgspec.json.encode


@dataclass(frozen=True)
class Ids:
    """The ids of one response: of the request's bytes and a counter, so that no two responses share one."""

    completion: str
    tool_call: str

    @classmethod
    def of(cls, request: bytes, count: int) -> Ids:
        digest = hashlib.blake2b(request, digest_size=32, salt=count.to_bytes(8, "big")).digest()
        return cls(f"chatcmpl-{uuid.UUID(bytes=digest[:16], version=4)}", f"call_{digest[16:].hex()[:24]}")


@dataclass(frozen=True)
class Completion:
    """An answer with everything that the provider says around it."""

    answer: Answer
    ids: Ids
    created: int
    usage: dict[str, int]

    @classmethod
    def of(cls, answer: Answer, request: bytes, count: int, messages: list[dict[str, Any]]) -> Completion:
        return cls(answer, Ids.of(request, count), int(time.time()), count_usage(messages, answer))

    def encode_whole(self) -> bytes:
        """The body of a response that is not streamed."""
        message = {"role": "assistant", "content": None, "refusal": None, **self._encode_answer()}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._choose_finish_reason()}
        return encode({**self._make_frame("chat.completion"), "choices": [choice], "usage": self.usage})

    def events(self, *, include_usage: bool) -> list[bytes]:
        """The server-sent events of a streamed response, the closing `[DONE]` included."""
        frame = self._make_frame("chat.completion.chunk")
        if include_usage:
            frame["usage"] = None
        choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}
        choices = [{**choice, "delta": delta} for delta in self._list_deltas()]
        choices.append({**choice, "finish_reason": self._choose_finish_reason()})
        chunks = [{**frame, "choices": [choice]} for choice in choices]
        if include_usage:
            chunks.append({**frame, "choices": [], "usage": self.usage})
        return [*(b"data: " + encode(chunk) + b"\n\n" for chunk in chunks), b"data: [DONE]\n\n"]

    def _make_frame(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.ids.completion,
            "object": kind,
            "created": self.created,
            "model": OFFLINE_MODEL,
            "system_fingerprint": FINGERPRINT,
        }

    def _choose_finish_reason(self) -> str:
        return "stop" if isinstance(self.answer, TextAnswer) else "tool_calls"

    def _encode_answer(self) -> dict[str, Any]:
        if isinstance(self.answer, TextAnswer):
            return {"content": self.answer.text}
        function = {"name": self.answer.name, "arguments": encode_arguments(self.answer)}
        return {"tool_calls": [{"id": self.ids.tool_call, "type": "function", "function": function}]}

    def _list_deltas(self) -> list[dict[str, Any]]:
        if isinstance(self.answer, TextAnswer):
            pieces = [{"content": piece} for piece in _WORD_WITH_SPACE.findall(self.answer.text)]
            return [{"role": "assistant", "content": "", "refusal": None}, *pieces]
        function = {"name": self.answer.name, "arguments": ""}
        call = {"index": 0, "id": self.ids.tool_call, "type": "function", "function": function}
        text = encode_arguments(self.answer)
        pieces = [
            {"tool_calls": [{"index": 0, "function": {"arguments": text[start : start + ARGUMENT_PIECE_CHARACTERS]}}]}
            for start in range(0, len(text), ARGUMENT_PIECE_CHARACTERS)
        ]
        return [{"role": "assistant", "content": None, "tool_calls": [call]}, *pieces]


def encode_arguments(answer: Answer) -> str:
    return "" if isinstance(answer, TextAnswer) else encode(answer.arguments).decode()


def count_usage(messages: list[dict[str, Any]], answer: Answer) -> dict[str, int]:
    """Words instead of tokens, a word being what spaces part: of all texts, and of calls their names and arguments."""
    prompt = 0
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            prompt += count_words(content)
        elif content:
            prompt += sum(count_words(part.get("text", "")) for part in content)
        for call in message.get("tool_calls") or ():
            prompt += 1 + count_words(call["function"]["arguments"])
    completion = (
        count_words(answer.text) if isinstance(answer, TextAnswer) else 1 + count_words(encode_arguments(answer))
    )
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def count_words(text: str) -> int:
    return text.count(" ") + 1 if text else 0


def encode_error(message: str, *, param: str | None = None, code: str | None = None) -> bytes:
    """An error body as the provider writes it."""
    return encode({"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}})


def encode_models() -> bytes:
    model = {"id": OFFLINE_MODEL, "object": "model", "created": 0, "owned_by": "swarmkeep"}
    return encode({"object": "list", "data": [model]})


# Checks a whole request as a strict provider does: messages, tools, and the options that depend on them.


def find_request_problems(body: object) -> list[str]:
    """Like `problems`, of a whole request body: also the model, the tools and the options that depend on them."""
    if not isinstance(body, dict):
        return ["body: must be an object"]
    found: list[str] = []
    if not isinstance(body.get("model"), str) or not body["model"]:
        found.append("model: must be a non-empty string")
    names = _check_tools(body["tools"], found) if body.get("tools") is not None else []
    _check_options(body, names, found)
    return found + find_message_problems(body.get("messages", []))


def _check_tools(tools: object, found: list[str]) -> list[str]:
    if not isinstance(tools, list) or not tools:
        found.append("tools: must be a list with at least one tool, or left out")
        return []
    names: list[str] = []
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(function, dict):
            found.append(f"tools[{index}]: must be an object with type 'function' and a function")
            continue
        check_function_name(f"tools[{index}].function", function.get("name"), found)
        for key, wanted, words in (("description", str, "a string"), ("parameters", dict, "an object")):
            if not isinstance(function.get(key, wanted()), wanted):
                found.append(f"tools[{index}].function.{key}: must be {words}")
        if function.get("name") in names:
            found.append(f"tools[{index}].function.name: {function['name']!r} is used twice")
        names.append(function.get("name", ""))
    return names


def _check_options(body: dict[str, Any], names: list[str], found: list[str]) -> None:
    for key in ("tool_choice", "parallel_tool_calls"):
        if body.get(key) is not None and not names and body.get("tools") is None:
            found.append(f"{key}: only allowed when tools are given")
    _check_tool_choice(body.get("tool_choice"), names, found)
    checks: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
        ("stream", lambda value: isinstance(value, bool), "a boolean"),
        ("parallel_tool_calls", lambda value: isinstance(value, bool), "a boolean"),
        ("response_format", lambda value: isinstance(value, dict) and isinstance(value.get("type"), str), "an object"),
        ("stream_options", lambda value: isinstance(value, dict), "an object"),
    )
    for key, valid, words in checks:
        if body.get(key) is not None and not valid(body[key]):
            found.append(f"{key}: must be {words}")
    if body.get("stream_options") is not None and not body.get("stream"):
        found.append("stream_options: only allowed when stream is true")


def _check_tool_choice(choice: Any, names: list[str], found: list[str]) -> None:
    match choice:
        case None | "none" | "auto" | "required":
            return
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required", "tools": [_, *_] as allowed}}:
            if not all(_names_tool(tool, names) for tool in allowed):
                found.append("tool_choice.allowed_tools.tools: must name some of the tools")
        case dict():
            if not _names_tool(choice, names):
                found.append("tool_choice: must name one of the tools as {'type': 'function', 'function': {'name': …}}")
        case _:
            found.append("tool_choice: must be 'none', 'auto', 'required', a named function or allowed tools")


def _names_tool(choice: Any, names: list[str]) -> bool:
    match choice:
        case {"type": "function", "function": {"name": name}}:
            return name in names
        case _:
            return False


# The offline model behind an HTTP client: a transport that answers instead of a network.

DELAY_VARIABLE = "SWARMKEEP_OFFLINE_DELAY"
MAX_PROBLEMS_NAMED = 10
# What is longer is answered in a thread: others do not wait while it is read and searched.
_LARGE_BYTES = 10_000


class OfflineTransport(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """Answers `POST …/chat/completions` and `GET …/models` in this process, under any host; no LLM is involved.

    `delay` is the time in seconds between streamed chunks, by default what SWARMKEEP_OFFLINE_DELAY says, or none.
    One transport may serve many clients and threads.
    """

    def __init__(self, *, delay: float | None = None) -> None:
        self.delay = _read_delay() if delay is None else delay
        self._counter = itertools.count()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return self._respond(request, request.read())

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        content = await request.aread()
        if len(content) > _LARGE_BYTES:
            return await asyncio.to_thread(self._respond, request, content)
        return self._respond(request, content)

    def _respond(self, request: httpx2.Request, content: bytes) -> httpx2.Response:
        path = request.url.path.rstrip("/")
        if path.endswith("/chat/completions"):
            return self._complete(content) if request.method == "POST" else _refuse(405, f"use POST for {path}")
        if path.endswith("/models"):
            return (
                _make_response(200, encode_models()) if request.method == "GET" else _refuse(405, f"use GET for {path}")
            )
        return _refuse(404, f"the offline model has no {request.method} {path}")

    def _complete(self, content: bytes) -> httpx2.Response:
        try:
            body = msgspec.json.decode(content)
        except (ValueError, RecursionError) as problem:
            return _refuse(400, f"the body is not JSON: {problem}", code="invalid_json")
        if found := find_request_problems(body):
            return _refuse(
                400, "; ".join(found[:MAX_PROBLEMS_NAMED]), param=_find_parameter(found[0]), code="invalid_request"
            )
        turn = read_turn(body)
        answered = fit_answer(answer(turn, body.get("tool_choice")), turn, body.get("response_format"))
        completion = Completion.of(answered, content, next(self._counter), body["messages"])
        if not body.get("stream"):
            return _make_response(200, completion.encode_whole())
        include_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        events = completion.events(include_usage=include_usage)
        return httpx2.Response(
            200, headers={"content-type": "text/event-stream"}, stream=_PacedStream(events, self.delay)
        )


class _PacedStream(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """Events one at a time, with a pause between two."""

    def __init__(self, events: Sequence[bytes], delay: float) -> None:
        self._events = events
        self._delay = delay

    def __iter__(self) -> Iterator[bytes]:
        for number, event in enumerate(self._events):
            if number and self._delay:
                time.sleep(self._delay)
            yield event

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for number, event in enumerate(self._events):
            # Also without a delay the other tasks get their turn, as they would with a network.
            await asyncio.sleep(self._delay if number else 0)
            yield event


def _make_response(status: int, body: bytes) -> httpx2.Response:
    return httpx2.Response(status, headers={"content-type": "application/json"}, content=body)


def _refuse(status: int, message: str, *, param: str | None = None, code: str | None = None) -> httpx2.Response:
    return _make_response(status, encode_error(message, param=param, code=code))


def _find_parameter(problem: str) -> str:
    """The name of the request's field that a problem begins with."""
    return problem.partition(":")[0].partition("[")[0]


def _read_delay() -> float:
    text = os.environ.get(DELAY_VARIABLE, "").strip() or "0"
    try:
        delay = float(text)
    except ValueError:
        delay = -1.0
    if not 0 <= delay < float("inf"):
        raise ValueError(f"{DELAY_VARIABLE} must be a number of seconds, zero or more, not {text!r}")
    return delay


# The openai package's own clients, with the offline model in place of a network.

# A name that no resolver knows: should a request ever get past the transport, it goes nowhere.
BASE_URL = "http://offline.invalid/v1"
API_KEY = "offline"


def make_offline_client() -> AsyncOpenAI:
    """An asynchronous openai client that the offline model answers; the caller closes it."""
    from openai import AsyncOpenAI

    http_client = httpx2.AsyncClient(transport=OfflineTransport())
    return AsyncOpenAI(api_key=API_KEY, base_url=BASE_URL, http_client=http_client)


def make_sync_offline_client() -> OpenAI:
    """A synchronous openai client that the offline model answers; the caller closes it."""
    from openai import OpenAI

    return OpenAI(api_key=API_KEY, base_url=BASE_URL, http_client=httpx2.Client(transport=OfflineTransport()))


# The built-in offline model: Chat Completions without a network, a key or an LLM.

__all__ = ["OFFLINE_MODEL", "OfflineTransport", "make_offline_client", "make_sync_offline_client"]
