"""Starts the run of a request, or resumes the one that waits for it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from litestar.types import Receive
from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.api.aside import ClientGone, wait_for_client
from swarmkeep.api.auth.context import Principal
from swarmkeep.api.openai.answers import read_answers
from swarmkeep.api.openai.command import make_command
from swarmkeep.api.openai.errors import make_client_gone, make_stopping
from swarmkeep.api.openai.history import LastReply, count_parts, find_last_reply, read_earlier
from swarmkeep.api.openai.items.error_params import map_error_params
from swarmkeep.api.openai.items.ids import ResponseId
from swarmkeep.api.openai.progress.builder import NO_EVENTS, ResponseBuilder
from swarmkeep.api.openai.run_request import RunRequest
from swarmkeep.api.openai.targets import Target, find_target
from swarmkeep.api.streams import StreamCheck
from swarmkeep.domain.codec import Json
from swarmkeep.domain.errors import (
    AlreadyDecided,
    Draining,
    RunNotWaiting,
    SeqConflict,
    SessionBusy,
    SessionNotFound,
)
from swarmkeep.domain.events import RunWaiting
from swarmkeep.domain.state import Run
from swarmkeep.engine.attempts import decide_until_recorded
from swarmkeep.engine.idempotency import IdempotentRequest
from swarmkeep.engine.reader import RunPosition
from swarmkeep.engine.streams.items import Item
from swarmkeep.engine.swarm.unstored import UnstoredSession
from swarmkeep.logs.context import bind_fields
from swarmkeep.store.ports import IdempotencyRecord, SessionKey


class StartedResponse(msgspec.Struct, frozen=True):
    """A response that has begun, and where its run's stream begins. `last`: the run's last reply before, if known."""

    key: SessionKey
    response_id: ResponseId
    position: RunPosition
    last: LastReply | None = None


class FollowedResponse(msgspec.Struct, frozen=True):
    """A response that has begun, and the items of its run from there on.

    One that is not stored has no `key`; another one can go on from its `session` as long as somebody holds that.
    """

    key: SessionKey | None
    builder: ResponseBuilder
    items: AsyncGenerator[Item | None]
    session: UnstoredSession | None = None

    async def finish(self, principal: Principal) -> Json:
        """The response, once it has ended.

        Raises SessionNotFound when its session is gone before. When the server stops before, raises Refused for one
        that is stored, and Draining for any other.
        """
        check = StreamCheck(principal, self.key, stop=principal.service.drained)
        try:
            return await self.builder.read_to_end(self.items, check.passes)
        except SessionNotFound:
            if not check.is_stopping:
                raise
            raise (Draining() if self.key is None else make_stopping()) from None


async def finish_response(principal: Principal, followed: FollowedResponse, receive: Receive) -> Json:
    """The response, once it has ended or waits for its caller.

    Raises Refused when the client is gone: a stored response goes on without it, any other ends.
    """
    # What is not stored is for nobody else, so its client is watched from the beginning.
    seconds = 0.0 if followed.key is None else principal.service.limits.leaving_seconds
    try:
        return await wait_for_client(followed.finish(principal), receive, seconds)
    except ClientGone:
        raise make_client_gone() from None


async def begin_response(
    principal: Principal, target: Target, request: RunRequest, idempotency: IdempotentRequest | None = None
) -> StartedResponse:
    """Record the run and its input, and begin; returns once that is durable. Raises Refused and what runs raise."""
    with map_error_params(request.input):
        started = await _begin(principal, target, request, idempotency)
    bind_fields(session_id=started.key.id, run_id=started.position.run_id)
    return started


async def follow_response(
    principal: Principal,
    target: Target,
    request: RunRequest,
    idempotency: IdempotentRequest | None = None,
    *,
    is_quiet: bool = False,
) -> FollowedResponse:
    """Begin a response with its reader there already: a model that answers at once is seen to speak, too.

    A quiet one is answered as a whole, without its stream. Raises what `begin_response` raises.
    """
    feed = principal.reader.open_feed(target.key, is_quiet=is_quiet)
    try:
        started = await begin_response(principal, target, request, idempotency)
        builder = ResponseBuilder(started.response_id, after=NO_EVENTS if is_quiet else -1)
        if started.response_id.part:
            await read_earlier(principal.reader, started.key, builder, started.position, started.last)
    except BaseException:
        if feed is not None:
            feed.close()
        raise
    if feed is not None and (started.position.repeated or started.key != target.key):
        feed.close()
        feed = None
    return FollowedResponse(started.key, builder, principal.reader.follow_run(started.key, started.position, feed=feed))


async def _begin(
    principal: Principal, target: Target, request: RunRequest, idempotency: IdempotentRequest | None
) -> StartedResponse:
    async def begin() -> StartedResponse:
        nonlocal target
        try:
            return await _begin_at(principal, target, request, idempotency)
        except SeqConflict:
            # What is forked was redacted, or made anew, meanwhile.
            target = await find_target(principal, request, idempotency, fresh=True)
            raise

    return await decide_until_recorded(begin)


async def _begin_at(
    principal: Principal, target: Target, request: RunRequest, idempotency: IdempotentRequest | None
) -> StartedResponse:
    if target.repeated is not None:
        return await _find_repeated(principal, target.key, target.repeated)
    if target.waiting is not None:
        started = await _continue_run(principal, target.key, target.waiting, request, idempotency)
        is_same = started.response_id.run_id == target.waiting.id and not started.position.repeated
        return replace(started, last=find_last_reply(target.state, target.waiting)) if is_same else started
    command = make_command(principal, target.state, request, idempotency)
    if request.previous is not None and target.key.id == request.previous.session_id:
        command = replace(command, after_run=request.previous.run_id)
    try:
        position = await principal.engine.runs.start(target.key, command, idempotency=idempotency, plan=target.plan)
    except SessionBusy:
        # What this process remembered of the session was not all, or somebody was faster.
        newer = await find_target(principal, request, idempotency, fresh=True)
        is_new = newer.key != target.key or newer.state.seq > target.state.seq
        if not is_new or (newer.waiting is None and command.after_run is None):
            raise
        return await _begin_at(principal, newer, request, idempotency)
    return StartedResponse(target.key, ResponseId(target.key.id, position.run_id), position)


async def _find_repeated(principal: Principal, key: SessionKey, record: IdempotencyRecord) -> StartedResponse:
    """The response that an earlier request with the same key began."""
    position = await principal.reader.find_position(key, record.run_id or "")
    part = 0
    async with aclosing(principal.reader.read_pages(key, after=position.after, upto=record.seq)) as events:
        async for event in events:
            waits = event.run_id == position.run_id and event.type == RunWaiting.type
            part += waits and event.seq < (record.seq or 0)
    position = replace(position, seq=record.seq, repeated=True)
    return StartedResponse(key, ResponseId(key.id, position.run_id, part), position)


async def _continue_run(
    principal: Principal, key: SessionKey, run: Run, request: RunRequest, idempotency: IdempotentRequest | None
) -> StartedResponse:
    """Resume a run that waits; or go on in a fork, where somebody has answered it first, as if that had been before."""
    try:
        return await _resume(principal, key, run, request, idempotency)
    except (AlreadyDecided, RunNotWaiting):
        # Of two decisions the first one counts, wherever they are made.
        if request.previous is None or request.input.approvals:
            raise
        target = await find_target(principal, request, idempotency, fresh=True)
        if target.waiting is not None:
            raise
        return await _begin(principal, target, request, idempotency)


async def _resume(
    principal: Principal, key: SessionKey, run: Run, request: RunRequest, idempotency: IdempotentRequest | None
) -> StartedResponse:
    answers = read_answers(principal, key.id, run, request)
    part = ResponseId(key.id, run.id, count_parts(run))
    if answers.below:
        options = request.options if principal.may("run") else UNSET
        approving = principal.engine.approvals_below
        position = await approving.decide(
            key, run.id, answers.below, own=answers.approvals, options=options, idempotency=idempotency
        )
        return StartedResponse(key, part, position)
    position = await principal.engine.runs.resume(
        key,
        run.id,
        tool_results=answers.results,
        approvals=answers.approvals,
        messages=answers.messages,
        # Whoever may only decide does not say how the run goes on.
        options=request.options if principal.may("run") else UNSET,
        idempotency=idempotency,
    )
    return StartedResponse(key, part, position)
