"""Starts the run of a request, or resumes the one that waits for it."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Any

import msgspec
from litestar.types import Receive
from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.decide.checks import (
    check_format,
    check_messages,
    check_object,
    check_profile,
    check_settings,
    check_tools,
)
from swarmkeep.decide.commands import Approval, StartRun, ToolAnswer, choose_agent, refuse_if_busy
from swarmkeep.events.active_run import forget_approvals
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import (
    AgentNotFound,
    AlreadyDecided,
    Draining,
    InvalidRequest,
    RunNotWaiting,
    SeqConflict,
    SessionBusy,
    SessionNotFound,
    quote,
)
from swarmkeep.events.facts import AwaitedApproval, RunWaiting
from swarmkeep.events.records import RunOptions
from swarmkeep.events.sizes import is_heavy
from swarmkeep.events.state import Run, State, refuse_damaged
from swarmkeep.http.auth import Principal
from swarmkeep.http.bodies import has_user_message
from swarmkeep.http.streams import StreamCheck, Written, write_parts
from swarmkeep.http.threads import ClientGone, run_aside, wait_for_client
from swarmkeep.logs import bind_fields
from swarmkeep.openai.event_writer import NO_EVENTS
from swarmkeep.openai.fields import (
    Conversation,
    CreateResponse,
    collect_echo,
    read_format,
    read_settings,
    read_tool_choice,
    read_tools,
)
from swarmkeep.openai.history import (
    LastReply,
    count_parts,
    find_asked_call,
    find_last_reply,
    find_part,
    read_earlier,
    read_run_events,
    resolve_references,
    show_last_turn,
)
from swarmkeep.openai.items import ApprovalAnswer, Input, ResponseId, list_requests_below, parse_response_id, read_input
from swarmkeep.openai.problems import ModelNotFound, Refused, make_client_gone, make_not_found, make_stopping, to_param
from swarmkeep.openai.progress import ResponseBuilder
from swarmkeep.runs.approvals import refuse_wrong_functions
from swarmkeep.runs.identifiers import derive_id, make_id
from swarmkeep.runs.loop import decide_until_recorded
from swarmkeep.runs.policy import SessionPlan
from swarmkeep.runs.reader import Batch, RunPosition
from swarmkeep.runs.runs import IdempotentRequest, find_record
from swarmkeep.runs.teams import ApprovalBelow
from swarmkeep.runs.unstored import UnstoredSession
from swarmkeep.store.records import IdempotencyRecord, SessionKey

# The `param` of refusals: a message is named by the item of the request that it was made of.

_MESSAGE = re.compile(r"(?:input|messages)(?:\[(\d+)\])?(.*)", re.DOTALL)
# Of messages that are made of several items: these have no such fields.
_OF_MESSAGES_ONLY = (".tool_calls", ".tool_call_id")


@contextmanager
def map_error_params(given: Input) -> Iterator[None]:
    """While the messages of an input are checked: have refusals name the items that the messages were made of."""
    try:
        yield
    except Refused as error:
        raise Refused(str(error), _rename(error.param, given), code=error.error_code, status=error.status) from None
    except InvalidRequest as error:
        raise Refused(str(error), _rename(to_param(error.errors[0]["pointer"]), given)) from None


def _rename(param: str | None, given: Input) -> str | None:
    found = _MESSAGE.fullmatch(param or "")
    if found is None or found[2] == ".approval_request_id":
        # A decision is no message, and named by its item already.
        return param
    place = int(found[1]) if found[1] else -1
    at = f"[{given.places[place]}]" if 0 <= place < len(given.places) else ""
    rest = "" if found[2].startswith(_OF_MESSAGES_ONLY) and given.param != "messages" else found[2]
    return f"{given.param}{at}{rest}"


# The run that a request asks for, whichever of OpenAI's shapes it came in.


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`model` is the agent that begins, from a `conversation`, a `previous` response, or from nothing."""

    model: str
    input: Input
    options: RunOptions
    conversation: str | None = None
    previous: ResponseId | None = None


def require_permissions(principal: Principal, given: Input) -> None:
    """Approvals need the permission `approve`, all else `run`. Raises Forbidden."""
    if given.approvals:
        principal.require("approve")
    if given.messages or not given.approvals:
        principal.require("run")
    if has_user_message(given.messages):
        principal.refuse_as_user()


async def read_run_request(principal: Principal, body: CreateResponse) -> RunRequest:
    """Read a request, a long one in a thread. Raises Refused, Forbidden, InvalidRequest, TooLarge."""
    body.check_fields()
    if body.conversation is not None and body.previous_response_id is not None:
        raise Refused("use `conversation` or `previous_response_id`, not both", "previous_response_id")
    items = body.input
    if isinstance(items, list):
        items = await resolve_references(principal, items)
    try:
        return await run_aside(is_heavy(items, body.tools), _read_run_request, principal, body, items)
    except RecursionError:
        raise Refused("the request is nested too deeply") from None


def _read_run_request(principal: Principal, body: CreateResponse, items: str | list[Any] | None) -> RunRequest:
    model = find_agent(principal, body.model)
    conversation = body.conversation.id if isinstance(body.conversation, Conversation) else body.conversation
    tools, answer_format = read_tools(body.tools), read_format(body.text)
    options = RunOptions(
        # A client that fetches the stream of a background response later sees it speak.
        stream=bool(body.stream or body.background),
        tools=check_tools(tools) if tools else UNSET,
        tool_choice=read_tool_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        model_settings=check_settings(read_settings(body), "") or UNSET,
        model_profile=check_profile(body.model_profile) if body.model_profile else UNSET,
        instructions=body.instructions or UNSET,
        response_format=UNSET if answer_format is UNSET else check_format(answer_format, "/text/format"),
        request=check_object(collect_echo(body, model=model, conversation=conversation and {"id": conversation}), ""),
    )
    given = read_checked_input(principal, items)
    require_permissions(principal, given)
    refuse_wrong_functions(options, principal.engine.registry)
    return RunRequest(
        model=model,
        input=given,
        options=options,
        conversation=conversation,
        previous=_read_previous(body.previous_response_id),
    )


def read_checked_input(principal: Principal, items: str | list[Any] | None, param: str = "input") -> Input:
    """An input as messages that may be kept. Raises Refused, InvalidRequest, TooLarge."""
    given = read_input(items, param)
    with map_error_params(given):
        given.messages = list(check_messages(given.messages, "/messages", principal.engine.limits.max_messages))
    return given


def find_agent(principal: Principal, model: str | None) -> str:
    """The name of the agent that a model stands for. Raises ModelNotFound."""
    registry = principal.engine.registry
    if model is None:
        return registry.default
    try:
        return registry.get(model).name
    except AgentNotFound:
        raise ModelNotFound(model, registry.names) from None


def _read_previous(name: str | None) -> ResponseId | None:
    if name is None:
        return None
    previous = parse_response_id(name)
    if previous is None:
        raise make_previous_not_found(name)
    return previous


def make_previous_not_found(name: str) -> Refused:
    message = f"there is no response {quote(name)} to continue from"
    return Refused(message, "previous_response_id", code="previous_response_not_found")


# Read the answers that a request gives a waiting run: results, decisions, and more messages.

TAKEN_OVER = "a person has taken this conversation over from the agent"


class Answers(msgspec.Struct, frozen=True):
    """The answers to a waiting run: results and decisions for all that it waits for, and more messages; or the
    decisions that it waits for in sessions `below` it."""

    results: list[ToolAnswer]
    approvals: list[Approval]
    messages: list[Json]
    below: list[ApprovalBelow] = []


def read_answers(principal: Principal, session_id: str, run: Run, request: RunRequest) -> Answers:
    """Read the answers that a request gives a waiting run. Raises Refused for a call that is left without an answer."""
    below = dict(list_requests_below(session_id, run.last_wait, run.pending))
    if below and request.input.approvals:
        return _read_below(principal, session_id, run, below, request)
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
            what, how = _MISSING["approval" if call.reason == "approval" else "tool_results"]
            raise Refused(f"no {what} found for function call {call.tool_call_id} ({call.name}); {how}", "input")
    return Answers(results, approvals, messages)


_MISSING = {
    "approval": ("approval response", "answer its mcp_approval_request with an mcp_approval_response"),
    "tool_results": ("tool output", "send it in the input"),
}


def _read_below(
    principal: Principal, session_id: str, run: Run, below: Mapping[str, AwaitedApproval], request: RunRequest
) -> Answers:
    """The decisions for all that is waited for in other sessions, and for calls of this one beside them. Raises
    Refused."""
    if request.input.messages:
        message = "send decisions on the calls of an asked agent alone: that agent continues first"
        raise Refused(message, "input")
    decisions: dict[str, ApprovalBelow] = {}
    own: list[Approval] = []
    for answer in request.input.approvals:
        call = below.get(answer.request_id)
        if call is None:
            own.append(_read_approval(principal, session_id, run, answer))
            continue
        if answer.request_id in decisions:
            raise Refused(f"there is no open request {quote(answer.request_id)}", answer.param)
        approval = _make_approval(principal, call.tool_call_id, answer)
        decisions[answer.request_id] = ApprovalBelow(call.session_id, call.run_id, approval)
    for item_id, call in below.items():
        if item_id not in decisions:
            raise Refused(f"no approval response found for {item_id} ({call.name})", "input")
    given = {approval.tool_call_id for approval in own}
    for pending in run.pending:
        if pending.reason == "approval" and pending.tool_call_id not in given:
            raise Refused(
                f"no approval response found for function call {pending.tool_call_id} ({pending.name})", "input"
            )
    return Answers([], own, [], list(decisions.values()))


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
            raise Refused(f"there is no open function call {quote(call_id)} for this output", f"input[{place}]")
    return results, rest


def _read_approval(principal: Principal, session_id: str, run: Run, answer: ApprovalAnswer) -> Approval:
    call_id = find_asked_call(session_id, run, answer.request_id)
    if call_id is None:
        raise Refused(f"there is no open request {quote(answer.request_id)}", answer.param)
    return _make_approval(principal, call_id, answer)


def _make_approval(principal: Principal, call_id: str, answer: ApprovalAnswer) -> Approval:
    return Approval(
        tool_call_id=call_id,
        decision="approve" if answer.approve else "deny",
        reason=answer.reason,
        by=principal.name,
        may_be_own=not principal.service.separate_approvers,
        arguments_digest=answer.arguments_digest,
    )


# The command that starts the run of a request.


def make_command(
    principal: Principal, state: State, request: RunRequest, idempotency: IdempotentRequest | None = None
) -> StartRun:
    """The command to start the run, or to queue it while another one is active. Raises Refused."""
    if request.input.approvals:
        raise Refused("there is no open request that this could answer", request.input.approvals[0].param)
    return StartRun(
        run_id=make_id("run"),
        messages=tuple(request.input.messages),
        options=request.options,
        agent=choose_agent(state, request.model),
        idempotency_key=None if idempotency is None else idempotency.key,
        on_busy="queue",
        behind_waiting=False,
        by=UNSET if principal.name is None else principal.name,
    )


# Find the session that a response is to be in: one that is there, a fork of it, or a new one.


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A session, and its state. `fork_at`: the seq up to which a fork of it is meant.

    `repeated`: what an earlier request with the same idempotency key did there. `plan`: of a session that is not there
    yet, and is made with its first run.
    """

    key: SessionKey
    state: State
    fork_at: int | None = None
    repeated: IdempotencyRecord | None = None
    plan: SessionPlan | None = None

    @property
    def waiting(self) -> Run | None:
        """The run that waits there for an answer."""
        run = self.state.run
        return run if run is not None and run.status == "waiting" else None


async def find_target(
    principal: Principal, request: RunRequest, idempotency: IdempotentRequest | None, *, fresh: bool = False
) -> Target:
    """The session that a response is to be in; planned, new or as a fork, where it is not there yet. Raises Refused.

    A session that is there, and waits for no one, may be as this process remembers it: the commit looks again.
    """
    found = await find_existing(principal, request, idempotency, fresh=fresh)
    if found is not None and found.waiting is not None:
        found = await find_existing(principal, request, idempotency)
    if found is not None and found.fork_at is None:
        return found
    principal.require("run")
    key = SessionKey(principal.tenant, make_session_id(principal.tenant, idempotency))
    # One that is there was made by an earlier request with this key; whether that was the same one, its run says.
    if idempotency is not None and (state := await find_state(principal, key)) is not None:
        return make_target(key, state, await find_record(principal.store, key, idempotency))
    sessions = principal.engine.sessions
    if found is None:
        plan = await sessions.plan(agent=request.model, metadata=name_person(principal, request.options))
    else:
        plan = await sessions.plan_fork(found.key, at=found.fork_at)
    return Target(key=key, state=plan.state, plan=plan)


def name_person(principal: Principal, options: RunOptions) -> Json:
    """What of a request's metadata is its new session's, too: whose the session is."""
    name, given = principal.store.person, {} if options.request is UNSET else options.request.get("metadata") or {}
    return {name: given[name]} if name is not None and name in given else {}


def make_target(key: SessionKey, state: State, record: IdempotencyRecord | None) -> Target:
    """A session that is there. Raises HistoryDamaged, unless what is asked for was done before."""
    if record is None:
        refuse_damaged(key.id, state)
    return Target(key=key, state=state, repeated=record)


async def find_state(principal: Principal, key: SessionKey) -> State | None:
    try:
        return await principal.reader.state(key)
    except SessionNotFound:
        return None


def make_session_id(tenant: str, idempotency: IdempotentRequest | None = None) -> str:
    """The id of a session that is made here: the same each time that a request with a key is sent."""
    if idempotency is None:
        return make_id("conv")
    return derive_id("conv", f"{tenant}/{idempotency.key}")


async def find_existing(
    principal: Principal, request: RunRequest, idempotency: IdempotentRequest | None = None, *, fresh: bool = True
) -> Target | None:
    """The session that a request names; None if it names none. Raises Refused."""
    if request.previous is not None:
        return await _find_previous(principal, request.previous, idempotency, fresh=fresh)
    if request.conversation is None:
        return None
    key = principal.session_key(request.conversation)
    try:
        state = await principal.reader.state(key, fresh=fresh)
    except SessionNotFound:
        raise make_not_found("conversation", request.conversation, "conversation") from None
    return make_target(key, state, await find_record(principal.store, key, idempotency))


async def _find_previous(
    principal: Principal, previous: ResponseId, idempotency: IdempotentRequest | None, *, fresh: bool
) -> Target:
    """The session of an earlier response; to be forked as of its end, unless that is the session's last."""
    key = principal.session_key(previous.session_id)
    try:
        state = await principal.reader.state(key, fresh=fresh)
    except SessionNotFound:
        raise make_previous_not_found(str(previous)) from None
    record = await find_record(principal.store, key, idempotency)
    if record is not None:
        return Target(key=key, state=state, repeated=record)
    refuse_damaged(key.id, state)
    part = await find_part(principal, key, state, previous)
    if not fresh and (part is None or not part.is_over):
        # Another server may have done more.
        return await _find_previous(principal, previous, idempotency, fresh=True)
    if part is None:
        raise make_previous_not_found(str(previous))
    if not part.is_over:
        message = "this response is still in progress; wait for it, or cancel it"
        raise Refused(message, "previous_response_id", code="response_in_progress", status=409)
    return Target(key=key, state=state, fork_at=None if part.is_last else part.last_seq)


class StartedResponse(msgspec.Struct, frozen=True):
    """A response that has begun, and where its run's stream begins. `last`: the run's last reply before, if known."""

    key: SessionKey
    response_id: ResponseId
    position: RunPosition
    last: LastReply | None = None


# What a stream ends with. One without it was cut off: by the end of the server, of the session, or of the caller's key.
DONE = b"data: [DONE]\n\n"


class FollowedResponse(msgspec.Struct, frozen=True):
    """A response that has begun, and the items of its run from there on. No batch goes on behind its end.

    One that is not stored has no `key`; another one can go on from its `session` as long as that is held.
    """

    key: SessionKey | None
    builder: ResponseBuilder
    batches: AsyncGenerator[Batch]
    session: UnstoredSession | None = None

    def write_frames(self, principal: Principal, translate: Callable[[Batch], Written]) -> AsyncGenerator[bytes]:
        """Write the frames that `translate` makes of the items, with pings in between, up to its end."""
        check = StreamCheck(principal, self.key, stop=principal.service.drained)
        return write_parts(check, self.batches, translate)

    async def finish(self, principal: Principal) -> Json:
        """The response, once it has ended.

        Raises SessionNotFound when its session is gone before. When the server stops before, raises Refused for one
        that is stored, and Draining for any other.
        """
        check = StreamCheck(principal, self.key, stop=principal.service.drained)
        try:
            return await self.builder.read_to_end(self.batches, check.passes)
        except SessionNotFound:
            if not check.is_stopping:
                raise
            raise (Draining() if self.key is None else make_stopping()) from None


async def finish_response(principal: Principal, followed: FollowedResponse, receive: Receive) -> Json:
    """The response, once it has ended or waits for its caller.

    Raises Refused when the client is gone: a stored response goes on without it, any other ends.
    """
    # A response that is not stored is for no other client, so its client is watched from the beginning.
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
    batches = principal.reader.follow_run_batches(started.key, started.position, feed=feed)
    return FollowedResponse(started.key, builder, batches)


async def _begin(
    principal: Principal, target: Target, request: RunRequest, idempotency: IdempotentRequest | None
) -> StartedResponse:
    async def begin() -> StartedResponse:
        nonlocal target
        try:
            return await _begin_at(principal, target, request, idempotency)
        except SeqConflict:
            # The source of the fork was redacted, or recreated, meanwhile.
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
        # This process did not remember all of the session, or another one was faster.
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
    """Resume a run that waits; or go on in a fork, if another caller has answered it, as if that had been before."""
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
        # A caller who may only decide does not say how the run goes on.
        options=request.options if principal.may("run") else UNSET,
        idempotency=idempotency,
    )
    return StartedResponse(key, part, position)


# Responses with `store: false`: run and answered, and then forgotten.


async def begin_unstored(
    principal: Principal, request: RunRequest, earlier: UnstoredSession | None = None
) -> FollowedResponse:
    """Begin a response that is kept nowhere. It goes on from an `earlier` one, or from what is stored.

    Raises Refused, SessionBusy and what runs raise.
    """
    with map_error_params(request.input):
        return await _begin_unstored(principal, request, earlier)


async def _begin_unstored(
    principal: Principal, request: RunRequest, earlier: UnstoredSession | None
) -> FollowedResponse:
    if earlier is None and request.input.approvals:
        message = "a decision on a stored call is recorded, so `store` must not be false"
        raise Refused(message, "store")
    session = await load_unstored_session(principal, request) if earlier is None else earlier
    run = session.state.run
    if run is None or run.status != "waiting":
        # There is no queue to wait in: what the active run does is another's to record.
        refuse_if_busy(session.state)
        command = make_command(principal, session.state, request)
        builder = ResponseBuilder(ResponseId(session.id, command.run_id), stored=False)
        batches = await principal.engine.unstored.start(principal.tenant, session, command)
        return FollowedResponse(None, builder, batches, session)
    answers = read_answers(principal, session.id, run, request)
    builder = ResponseBuilder(ResponseId(session.id, run.id, count_parts(run)), stored=False)
    _show_earlier(builder, session, run)
    batches = await principal.engine.unstored.resume(
        principal.tenant,
        session,
        run.id,
        tool_results=answers.results,
        approvals=answers.approvals,
        messages=answers.messages,
        options=request.options,
    )
    return FollowedResponse(None, builder, batches, session)


def _show_earlier(builder: ResponseBuilder, session: UnstoredSession, run: Run) -> None:
    """Show a builder what its run did before the response."""
    events, last = session.run_events, find_last_reply(session.state, run)
    if last is not None:
        since = events[bisect_left(events, last.seq, key=lambda event: event.seq) :]
        if show_last_turn(builder, since, last):
            return
    for event in events:
        builder.read(event)


async def load_unstored_session(principal: Principal, request: RunRequest) -> UnstoredSession:
    """The session that a response goes on from: the one that it names, as it is stored, or a new one."""
    found = await find_existing(principal, request)
    if found is None:
        return UnstoredSession((await principal.engine.sessions.plan(agent=request.model)).state)
    state = found.state
    if found.fork_at is not None:
        state = await principal.reader.sound_state(found.key, at=found.fork_at)
    events = [] if state.run is None else await read_run_events(principal.reader, found.key, state.run)
    return UnstoredSession(forget_approvals(state), events, session_id=found.key.id)
