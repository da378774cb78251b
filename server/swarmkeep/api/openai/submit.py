"""Starts the run of a request, or resumes the one that waits for it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

import msgspec
from litestar.types import Receive
from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.api.aside import ClientGone, wait_for_client
from swarmkeep.api.auth.context import Principal
from swarmkeep.api.openai.command import make_command
from swarmkeep.api.openai.errors import Refused, make_client_gone
from swarmkeep.api.openai.history import LastReply, count_parts, find_asked_call, find_last_reply, read_earlier
from swarmkeep.api.openai.items.below import list_requests_below
from swarmkeep.api.openai.items.error_params import map_error_params
from swarmkeep.api.openai.items.ids import ResponseId
from swarmkeep.api.openai.items.input_items import ApprovalAnswer
from swarmkeep.api.openai.progress.builder import NO_EVENTS, ResponseBuilder
from swarmkeep.api.openai.run_request import RunRequest
from swarmkeep.api.openai.targets import Target, find_target
from swarmkeep.api.streams import StreamCheck
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.resuming import Approval, ToolAnswer
from swarmkeep.domain.errors import (
    AlreadyDecided,
    Draining,
    RunNotWaiting,
    SeqConflict,
    SessionBusy,
    SessionNotFound,
)
from swarmkeep.domain.events import AwaitedApproval, RunWaiting
from swarmkeep.domain.state import Run
from swarmkeep.engine.attempts import decide_until_recorded
from swarmkeep.engine.idempotency import IdempotentRequest
from swarmkeep.engine.reader import RunPosition
from swarmkeep.engine.streams.items import Item
from swarmkeep.engine.teams.approving import ApprovalBelow
from swarmkeep.logs.context import bind_fields
from swarmkeep.store.ports import IdempotencyRecord, SessionKey

TAKEN_OVER = "a person has taken this conversation over from the agent"


class StartedResponse(msgspec.Struct, frozen=True):
    """A response that has begun, and where its run's stream begins. `last`: the run's last reply before, if known."""

    key: SessionKey
    response_id: ResponseId
    position: RunPosition
    last: LastReply | None = None


class FollowedResponse(msgspec.Struct, frozen=True):
    """A response that has begun, and the items of its run from there on. Without a `key` it is in no log."""

    key: SessionKey | None
    builder: ResponseBuilder
    items: AsyncGenerator[Item | None]

    async def finish(self, principal: Principal) -> Json:
        """The response, once it has ended.

        Raises SessionNotFound when its session is gone before, and Draining when the server stops before.
        """
        check = StreamCheck(principal, self.key, leave=principal.service.drained)
        try:
            return await self.builder.read_to_end(self.items, check.passes)
        except SessionNotFound:
            if check.is_leaving:
                raise Draining from None
            raise


async def finish_stored(principal: Principal, followed: FollowedResponse, receive: Receive) -> Json:
    """The response, once it has ended or waits for its caller. It goes on without one; then Refused is raised."""
    try:
        return await wait_for_client(followed.finish(principal), receive, principal.service.limits.leaving_seconds)
    except ClientGone:
        raise make_client_gone() from None


class Answers(msgspec.Struct, frozen=True):
    """What a waiting run is given: results and decisions for all that it waits for, and more messages; or the decisions
    that it waits for in sessions `below` it."""

    results: list[ToolAnswer]
    approvals: list[Approval]
    messages: list[Json]
    below: list[ApprovalBelow] = []


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
        position = await approving.decide(key, run.id, answers.below, options=options, idempotency=idempotency)
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


def read_answers(principal: Principal, session_id: str, run: Run, request: RunRequest) -> Answers:
    """What a waiting run is given by a request. Raises Refused for a call that is left without an answer."""
    below = dict(list_requests_below(session_id, run.last_wait, run.pending))
    if below and request.input.approvals:
        return Answers([], [], [], _read_below(principal, below, request))
    outside = [call.tool_call_id for call in run.pending if call.reason == "tool_results"]
    results, messages = _split_results(request.input.messages, outside)
    approvals = [_read_approval(principal, session_id, run, answer) for answer in request.input.approvals]
    given = {result.tool_call_id for result in results} | {approval.tool_call_id for approval in approvals}
    for call in run.pending:
        if call.reason == "person":
            raise Refused(f"{TAKEN_OVER}, and no answer is there yet", "input")
        if call.reason == "session":
            where = f"session {call.session_id or ''}, in which another agent is asked"
            how = "; answer its mcp_approval_request" if below else ""
            raise Refused(f"the call {call.tool_call_id} ({call.name}) waits for an approval in {where}{how}", "input")
        if call.tool_call_id not in given:
            what = "approval response" if call.reason == "approval" else "tool output"
            raise Refused(f"no {what} found for function call {call.tool_call_id} ({call.name})", "input")
    return Answers(results, approvals, messages)


def _read_below(principal: Principal, below: Mapping[str, AwaitedApproval], request: RunRequest) -> list[ApprovalBelow]:
    """The decisions for all that is waited for in other sessions. Raises Refused."""
    if request.input.messages:
        message = "with decisions on calls of an agent that is asked nothing else is said: it goes on first"
        raise Refused(message, "input")
    decisions: dict[str, ApprovalBelow] = {}
    for answer in request.input.approvals:
        call = below.get(answer.request_id)
        if call is None or answer.request_id in decisions:
            raise Refused(f"there is no open request {answer.request_id!r}", answer.param)
        approval = _make_approval(principal, call.tool_call_id, answer)
        decisions[answer.request_id] = ApprovalBelow(call.session_id, call.run_id, approval)
    for item_id, call in below.items():
        if item_id not in decisions:
            raise Refused(f"no approval response found for {item_id} ({call.name})", "input")
    return list(decisions.values())


def _split_results(messages: Sequence[Json], open_ids: list[str]) -> tuple[list[ToolAnswer], list[Json]]:
    """The results of open calls, and what else is said. Raises Refused for a result that answers none."""
    results: list[ToolAnswer] = []
    rest: list[Json] = []
    for place, message in enumerate(messages):
        call_id = message.get("tool_call_id")
        if message["role"] != "tool":
            rest.append(message)
        elif call_id in open_ids and call_id not in {result.tool_call_id for result in results}:
            results.append(ToolAnswer(tool_call_id=call_id, content=message["content"]))
        else:
            raise Refused(f"there is no open function call {call_id!r} for this output", f"input[{place}]")
    return results, rest


def _read_approval(principal: Principal, session_id: str, run: Run, answer: ApprovalAnswer) -> Approval:
    call_id = find_asked_call(session_id, run, answer.request_id)
    if call_id is None:
        raise Refused(f"there is no open request {answer.request_id!r}", answer.param)
    return _make_approval(principal, call_id, answer)


def _make_approval(principal: Principal, call_id: str, answer: ApprovalAnswer) -> Approval:
    return Approval(
        tool_call_id=call_id,
        decision="approve" if answer.approve else "deny",
        reason=answer.reason,
        by=principal.name,
        may_be_own=not principal.service.separate_approvers,
    )
