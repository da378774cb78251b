"""The offline model behind an HTTP client: a transport that answers instead of a network."""

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Iterator

import httpx2
import msgspec

from swarmkeep.engine.models.offline import wire
from swarmkeep.engine.models.offline.answer import answer, fit_answer
from swarmkeep.engine.models.offline.reading import read_turn
from swarmkeep.engine.models.offline.request_rules import find_request_problems

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
                _make_response(200, wire.encode_models())
                if request.method == "GET"
                else _refuse(405, f"use GET for {path}")
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
        completion = wire.Completion.of(answered, content, next(self._counter), body["messages"])
        if not body.get("stream"):
            return _make_response(200, completion.encode_whole())
        include_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        events = completion.events(include_usage=include_usage)
        return httpx2.Response(
            200, headers={"content-type": "text/event-stream"}, stream=_PacedStream(events, self.delay)
        )


class _PacedStream(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """Events one at a time, with a pause between two."""

    def __init__(self, events: Iterator[bytes], delay: float) -> None:
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
    return _make_response(status, wire.encode_error(message, param=param, code=code))


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
