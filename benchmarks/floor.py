"""The floor: one handler, the openai client with the history in `extra_body`, nothing stored, nothing checked."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator
from typing import Any

from litestar import Litestar, post
from litestar.response import ServerSentEvent
from openai import AsyncOpenAI

from benchmarks.team import TOOL, look_up_order, make_history, system

client = AsyncOpenAI(api_key="bench", base_url=os.environ["OPENAI_BASE_URL"])
_histories: dict[int, list[dict[str, Any]]] = {}


@post("/turn", status_code=200)
async def turn(data: dict[str, Any]) -> dict[str, Any]:
    count = data["history"]
    if count not in _histories:
        _histories[count] = make_history(count)
    messages = [system, *_histories[count], {"role": "user", "content": data["input"]}]
    message = await _ask(messages, data["tool"])
    if message.tool_calls:
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            result = look_up_order(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        message = await _ask(messages, True)
    return {"text": message.content}


@post("/stream", status_code=200)
async def stream(data: dict[str, Any]) -> ServerSentEvent:
    async def events() -> AsyncGenerator[dict[str, str]]:
        messages = [system, {"role": "user", "content": data["input"]}]
        chunks = await client.chat.completions.create(
            model="stub", messages=[], stream=True, extra_body={"messages": messages}
        )
        async for chunk in chunks:
            if chunk.choices and chunk.choices[0].delta.content:
                yield {"event": "message.delta", "data": json.dumps({"content": chunk.choices[0].delta.content})}

    return ServerSentEvent(events())


async def _ask(messages: list[dict[str, Any]], tool: bool) -> Any:
    extra: dict[str, Any] = {"messages": messages}
    if tool:
        extra["tools"] = [TOOL]
    completion = await client.chat.completions.create(model="stub", messages=[], extra_body=extra)
    return completion.choices[0].message


app = Litestar([turn, stream], openapi_config=None)
