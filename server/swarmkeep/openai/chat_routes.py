"""The route for chat completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from litestar import Request, Response, post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from swarmkeep.events.codec import Json, encode
from swarmkeep.events.errors import DomainError, Draining, SessionExists, SessionNotFound
from swarmkeep.http.auth import PERMISSION, Principal
from swarmkeep.http.bodies import JsonResponse
from swarmkeep.http.sse import JsonAnswer
from swarmkeep.http.streams import PING, Written, make_event_stream
from swarmkeep.openai.chat import (
    SESSION_HEADER,
    ChatAnswer,
    ChatRequest,
    find_chat_target,
    make_unstored_request,
    read_chat_request,
    release_or_hold,
)
from swarmkeep.openai.chat_fields import CreateChatCompletion
from swarmkeep.openai.problems import NO_RETRY, Refused, describe_failure, make_error, make_failure_refusal
from swarmkeep.openai.submit import DONE, FollowedResponse, begin_unstored, finish_response, follow_response
from swarmkeep.runs.following import Batch
from swarmkeep.runs.runs import IdempotentRequest
from swarmkeep.store.records import SessionKey, StoreUnavailable


@post(
    "/chat/completions",
    status_code=200,
    operation_id="create_chat_completion",
    summary="Create a chat completion",
    opt={PERMISSION: ("run",)},
)
async def create_chat_completion(
    request: Request[Any, Any, Any], data: JSONBody[CreateChatCompletion], principal: NamedDependency[Principal]
) -> Response[Any]:
    """The answer comes when the run has ended or waits for its caller; with `stream` as server-sent events. The header
    `X-Session-Id` names the session.
    """
    chat = await read_chat_request(principal, data, request.headers)
    if data.store is False:
        followed = await begin_unstored(principal, await make_unstored_request(principal, chat))
    else:
        followed = await _begin(principal, chat, await principal.read_idempotency())
    answer = ChatAnswer(followed.builder, include_usage=chat.include_usage)
    if data.stream:
        return _make_stream(principal, followed, answer)
    await finish_response(principal, followed, request.receive)
    return _answer(answer, _name_session(followed.key))


async def _begin(principal: Principal, chat: ChatRequest, idempotency: IdempotentRequest | None) -> FollowedResponse:
    is_quiet = not chat.options.stream
    while True:
        found = await find_chat_target(principal, chat, idempotency)
        # Another request may make it at the same time, with another history: then that one counts.
        with suppress(SessionExists):
            return await follow_response(principal, found.target, found.request, idempotency, is_quiet=is_quiet)


def _name_session(key: SessionKey | None) -> dict[str, str]:
    return {} if key is None else {SESSION_HEADER: key.id}


def _answer(answer: ChatAnswer, headers: dict[str, str]) -> Response[Any]:
    if answer.error is None:
        return JsonResponse(answer.make_completion(), headers=headers)
    status, error = describe_failure(answer.error)
    return JsonResponse({"error": error}, status_code=status, headers={**headers, **NO_RETRY})


def _make_stream(principal: Principal, followed: FollowedResponse, answer: ChatAnswer) -> Response[Any]:
    builder, key = followed.builder, followed.key

    def translate(batch: Batch) -> Written:
        chunks: list[Json] = []
        for item in batch:
            chunks += release_or_hold(principal.engine.registry, answer, item)
            chunks += [chunk for event in builder.read(item) for chunk in answer.make_chunks(event)]
        end = DONE if builder.is_over else None
        if answer.error is not None:
            # The stream ends with this, without `[DONE]`.
            chunks.append({"error": describe_failure(answer.error)[1]})
            end = b""
        return b"".join(map(_frame_chunk, chunks)), end

    frames = followed.write_frames(principal, translate)
    headers = _name_session(key)

    async def begin(parts: AsyncGenerator[bytes]) -> bytes | JsonAnswer:
        try:
            return await _read_beginning(answer, parts)
        except (Refused, DomainError, StoreUnavailable) as error:
            is_stopping = isinstance(error, SessionNotFound) and principal.service.drained.is_set()
            status, body, more = make_error(Draining() if is_stopping else error)
            # What is kept nowhere, and was cut off, may be asked for again.
            once = {} if key is None and answer.error is None else NO_RETRY
            return JsonAnswer(status, encode({"error": body}), {**headers, **more, **once})

    return make_event_stream(principal, frames, headers, begin=begin)


async def _read_beginning(answer: ChatAnswer, parts: AsyncGenerator[bytes]) -> bytes:
    """The frames up to the first that says something, or to the first ping. Raises Refused if it has failed by then,
    and SessionNotFound if it was cut off."""
    first = b""
    async for part in parts:
        if answer.error is not None and not answer.has_spoken:
            raise make_failure_refusal(answer.error)
        first += part
        if answer.has_spoken or part == PING:
            return first
    raise SessionNotFound(answer.session_id)


def _frame_chunk(chunk: Json) -> bytes:
    return b"data: %b\n\n" % encode(chunk)


ROUTES = [create_chat_completion]
