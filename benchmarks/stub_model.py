"""A Chat Completions server that answers at once: a tool call to a question that brings tools, text to all else.

A request for a stream gets as many chunks as its last input names, each in a write of its own; if that names none, the
same answer as any other, in one chunk.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

_numbers = itertools.count(1)
_HEAD = b'{"id":"cmpl-%d","object":"chat.completion","created":1,"model":"stub","choices":[{"index":0,"message":'
_TAIL = b'}],"usage":{"prompt_tokens":100,"completion_tokens":20,"total_tokens":120}}'
_TEXT = b'{"role":"assistant","content":"Your order has been sent and should arrive on Monday."},"finish_reason":"stop"'
LONG_ANSWER = b"Answer in 200 characters."
_LONG_TEXT = _TEXT.replace(b"Monday.", b"Monday." + b" It is on its way." * 8 + b" OK")
_CALL = (
    b'{"role":"assistant","content":null,"tool_calls":[{"id":"call_%d","type":"function","function":'
    b'{"name":"look_up_order","arguments":"{\\"order_id\\": \\"ORD-%d\\"}"}}]},"finish_reason":"tool_calls"'
)


async def app(
    scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
) -> None:
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    if b'"stream":true' in body.replace(b" ", b""):
        await _stream(body, send)
        return
    answer = _make_answer(body)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


_CHUNK = (
    b'data: {"id":"cmpl-1","object":"chat.completion.chunk","created":1,"model":"stub",'
    b'"choices":[{"index":0,"delta":%b,"finish_reason":%b}]}\n\n'
)
_WANTED = re.compile(rb"(\d+) chunks every (\d+) ms")


async def _stream(body: bytes, send: Callable[[Any], Awaitable[None]]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    wanted = _WANTED.findall(body)
    if not wanted:
        await send({"type": "http.response.body", "body": _make_streamed_answer(body), "more_body": False})
        return
    count, pause_ms = map(int, wanted[-1])
    for number in range(count):
        if number:
            await asyncio.sleep(pause_ms / 1000)
        piece = _CHUNK % (b'{"content":"word "}', b"null")
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    last = _CHUNK % (b"{}", b'"stop"') + b"data: [DONE]\n\n"
    await send({"type": "http.response.body", "body": last, "more_body": False})


def _make_streamed_answer(body: bytes) -> bytes:
    [choice] = json.loads(_make_answer(body))["choices"]
    delta = choice["message"]
    for number, call in enumerate(delta.get("tool_calls", ())):
        call["index"] = number
    reason = json.dumps(choice["finish_reason"]).encode()
    return _CHUNK % (json.dumps(delta).encode(), b"null") + _CHUNK % (b"{}", reason) + b"data: [DONE]\n\n"


def _make_answer(body: bytes) -> bytes:
    number = next(_numbers)
    messages = body[: body.rfind(b'"tools"')] if b'"tools"' in body else body
    asks_for_tool = messages is not body and messages.rfind(b'"role":"user"') > messages.rfind(b'"role":"tool"')
    text = _LONG_TEXT if LONG_ANSWER in body else _TEXT
    message = _CALL % (number, number) if asks_for_tool else text
    return _HEAD % number + message + _TAIL
