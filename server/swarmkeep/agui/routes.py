"""The route for AG-UI clients: starts a run, has one go on that waits, or shows the one that there is."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from litestar import Request, Response, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import UNSET

from swarmkeep.agui.events import RunEvents, show_messages, show_sent
from swarmkeep.agui.given import (
    Answers,
    Given,
    RunAgentInput,
    Sent,
    find_new,
    find_state_change,
    read_answers,
    read_input,
    refuse_resume,
    split_history,
)
from swarmkeep.decide.checks import check_new_id, refuse_stray_results
from swarmkeep.decide.commands import StartRun, choose_agent
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import SessionBusy, SessionExists, SessionNotFound
from swarmkeep.events.patch import merge
from swarmkeep.events.sizes import is_heavy
from swarmkeep.events.state import Run, State, refuse_damaged
from swarmkeep.events.views import find_run
from swarmkeep.http.auth import PERMISSION, Principal
from swarmkeep.http.errors import CODES_OF_CHANGES, problem_specs
from swarmkeep.http.routes.agents import AgentName, read_name
from swarmkeep.http.sse import EVENT_STREAM
from swarmkeep.http.streams import StreamCheck, make_event_stream, write_parts
from swarmkeep.http.threads import run_aside
from swarmkeep.logs import bind_fields
from swarmkeep.runs.approvals import refuse_wrong_functions
from swarmkeep.runs.hub import Feed, is_open
from swarmkeep.runs.identifiers import make_id
from swarmkeep.runs.policy import SessionPlan
from swarmkeep.runs.reader import Batch, RunPosition
from swarmkeep.runs.runs import IdempotentRequest, find_record
from swarmkeep.store.records import SessionKey

PREFIX = "/agui"

# Histories of so many messages are gone through on the event loop.
_FEW_MESSAGES = 200
# So often a request is decided on again where another one was faster.
_ATTEMPTS = 3

Frames = AsyncGenerator[bytes]


async def _decide(principal: Principal, given: Given, idempotency: IdempotentRequest) -> Frames:
    """Do what a request asks for. Returns the frames of its answer once that is durable."""
    key = SessionKey(principal.tenant, given.thread_id)
    for left in reversed(range(_ATTEMPTS)):
        try:
            return await _decide_once(principal, key, given, idempotency)
        except (SessionExists, SessionBusy):
            if not left:
                raise
    raise AssertionError


async def _decide_once(principal: Principal, key: SessionKey, given: Given, idempotency: IdempotentRequest) -> Frames:
    try:
        state = await principal.reader.state(key)
    except SessionNotFound:
        return await _make_session(principal, key, given, idempotency)
    record = await find_record(principal.store, key, idempotency)
    if record is not None:
        return await _join(principal, key, given, state, record.run_id)
    new = await run_aside(_is_long(given, state), find_new, given.messages, state)
    if state.run is not None and state.run.status == "waiting":
        answers = read_answers(principal, state, state.run, given, new)
        if answers is None:
            return await _join(principal, key, given, state)
        refuse_damaged(key.id, state)
        return await _resume(principal, key, given, state, state.run, answers, new, idempotency)
    refuse_resume(state, given.resume)
    if not new:
        return await _join(principal, key, given, state)
    refuse_damaged(key.id, state)
    return await _start(principal, key, given, state, new, idempotency)


def _is_long(given: Given, state: State) -> bool:
    return len(given.messages) + len(state.messages) > _FEW_MESSAGES


# Start a run.


async def _make_session(principal: Principal, key: SessionKey, given: Given, idempotency: IdempotentRequest) -> Frames:
    """Start the first run of a session, which begins with what was said before."""
    refuse_resume(None, given.resume)
    check_new_id(key.id, "/threadId")
    messages = [sent.message for sent in given.messages]
    end = split_history(given.messages)
    if end == len(messages):
        return _write_nothing(given)
    principal.require("run")
    await run_aside(len(messages) > _FEW_MESSAGES, refuse_stray_results, messages, "/messages")
    engine, tenant = principal.engine, principal.tenant
    passing = await engine.unstored.find_passing(tenant, given.agent, messages[:end]) if end else []
    history = [messages[place] for place in passing]
    plan = await engine.sessions.plan(agent=given.agent, messages=history, context_variables=given.state)
    return await _start(principal, key, given, plan.state, given.messages[end:], idempotency, plan)


async def _write_nothing(given: Given) -> Frames:
    events = RunEvents(given.thread_id, given.run_id, given.state, parent_run_id=given.body.parent_run_id)
    yield events.begin(None)
    yield events.finish(State(context_variables=given.state), None)


async def _start(
    principal: Principal,
    key: SessionKey,
    given: Given,
    state: State,
    new: Sequence[Sent],
    idempotency: IdempotentRequest,
    plan: SessionPlan | None = None,
) -> Frames:
    principal.require("run")
    principal.refuse_as_user()
    change = find_state_change(state.context_variables, given.state)
    command = StartRun(
        run_id=make_id("run"),
        messages=tuple(sent.message for sent in new),
        options=given.options,
        agent=choose_agent(state, given.agent),
        context_variables=change,
        idempotency_key=idempotency.key,
        on_busy="queue",
        behind_waiting=False,
        by=UNSET if principal.name is None else principal.name,
    )
    feed = principal.reader.open_feed(key)
    try:
        position = await principal.engine.runs.start(key, command, idempotency=idempotency, plan=plan)
    except BaseException:
        _close(feed)
        raise
    if position.repeated:
        _close(feed)
        return await _join(principal, key, given, await principal.reader.state(key), position.run_id)
    context: Json = merge(state.context_variables, change)
    known = await run_aside(_is_long(given, state), show_messages, key.id, state)
    ids = {sent.id for sent in given.messages}
    # Results have another id here than a client gives them.
    is_behind = plan is None and any(message["id"] not in ids for message in known if message["role"] != "tool")
    events = RunEvents(
        key.id, given.run_id, context, parent_run_id=given.body.parent_run_id, shown=_list_ids(known) | ids
    )
    events.is_behind = state.run is not None or bool(state.queue)
    shown = [*known, *_show_given(given, new)] if is_behind else None
    return _follow(principal, key, events, position.run_id, events.begin(shown, position.run_id), position, feed)


def _close(feed: Feed | None) -> None:
    if feed is not None:
        feed.close()


def _list_ids(messages: Sequence[Json]) -> set[str]:
    return {message["id"] for message in messages}


def _show_given(given: Given, sent: Sequence[Sent]) -> list[Json]:
    return [show_sent(each, given.body.messages) for each in sent]


# Have a run go on that waits.


async def _resume(
    principal: Principal,
    key: SessionKey,
    given: Given,
    state: State,
    run: Run,
    answers: Answers,
    new: Sequence[Sent],
    idempotency: IdempotentRequest,
) -> Frames:
    if answers.approvals or answers.below:
        principal.require("approve")
    if answers.results or new:
        principal.require("run")
    if new:
        principal.refuse_as_user()
    may_run = principal.may("run")
    change = find_state_change(state.context_variables, given.state) if may_run else {}
    if change:
        await principal.engine.sessions.update(key, context_variables=change)
    # A caller who may only decide does not say how the run goes on.
    options = given.options if may_run else UNSET
    feed = principal.reader.open_feed(key)
    try:
        if answers.below:
            position = await principal.engine.approvals_below.decide(
                key, run.id, answers.below, own=answers.approvals, options=options, idempotency=idempotency
            )
        else:
            position = await principal.engine.runs.resume(
                key,
                run.id,
                tool_results=answers.results,
                approvals=answers.approvals,
                messages=[sent.message for sent in new],
                options=options,
                idempotency=idempotency,
            )
    except BaseException:
        _close(feed)
        raise
    if position.repeated:
        _close(feed)
        return await _join(principal, key, given, await principal.reader.state(key), position.run_id)
    known = await run_aside(_is_long(given, state), show_messages, key.id, state)
    results = [sent for sent in given.messages if sent.message.get("tool_call_id") in answers.answered]
    events = RunEvents(
        key.id,
        given.run_id,
        merge(state.context_variables, change),
        parent_run_id=given.body.parent_run_id,
        shown=_list_ids(known) | {sent.id for sent in given.messages},
        answered=answers.answered,
        turns=_count_turns(state, run),
    )
    # With it, results that follow are those of calls that the client has.
    first = events.begin([*known, *_show_given(given, [*results, *new])], run.id)
    return _follow(principal, key, events, run.id, first, position, feed)


def _count_turns(state: State, run: Run) -> int:
    entries = state.messages[run.first_message : run.last_message]
    return sum(
        entry.role == "assistant" and entry.completion is not None and entry.run_id == run.id for entry in entries
    )


# Show what there is.


async def _join(principal: Principal, key: SessionKey, given: Given, state: State, run_id: str | None = None) -> Frames:
    """Show the session as it is, and follow a run: that one, or else the one that is active, waits, or failed last."""
    run = _find_shown(state) if run_id is None else find_run(state, run_id)
    known = await run_aside(_is_long(given, state), show_messages, key.id, state)
    is_begun = run is not None and run.status != "queued"
    events = RunEvents(
        key.id,
        given.run_id,
        state.context_variables,
        parent_run_id=given.body.parent_run_id,
        shown=_list_ids(known),
        turns=_count_turns(state, run) if run is not None and is_begun else 0,
    )
    events.is_behind = run is not None and not is_begun
    name = None if run is None else run.id
    first = events.begin(known, name)
    if run is None or not is_open(run):
        return _show(principal, key, events, name, first)
    return _follow(principal, key, events, run.id, first, RunPosition(run.id, run.first_seq - 1), after=state.seq)


def _find_shown(state: State) -> Run | None:
    if state.run is not None:
        return state.run
    if state.queue:
        return find_run(state, state.queue[0].run_id)
    # A caller who sends the same messages again is told that there is no answer to them.
    last = state.finished[-1] if len(state.finished) else None
    return last if last is not None and last.status in ("failed", "interrupted") else None


def _follow(
    principal: Principal,
    key: SessionKey,
    events: RunEvents,
    run_id: str,
    first: bytes,
    position: RunPosition,
    feed: Feed | None = None,
    *,
    after: int | None = None,
) -> Frames:
    """The first frames, those of the run's items, and last those of its end.

    While the server stops, its own runs are seen to their end; another server's run is left without one.
    """
    bind_fields(session_id=key.id, run_id=run_id)
    batches = principal.reader.follow_run_batches(key, position, after=after, feed=feed)
    return _show(principal, key, events, run_id, first, batches)


async def _show(
    principal: Principal,
    key: SessionKey,
    events: RunEvents,
    run_id: str | None,
    first: bytes,
    batches: AsyncGenerator[Batch] | None = None,
) -> Frames:
    async def write_end() -> bytes:
        if not await principal.is_still_allowed():
            return b""
        try:
            state = await principal.reader.state(key)
        except SessionNotFound:
            return b""
        run = None if run_id is None else find_run(state, run_id)
        if is_open(run):
            return b""
        return await run_aside(len(state.messages) > _FEW_MESSAGES, events.finish, state, run)

    yield first
    if batches is None:
        yield await write_end()
        return
    check = StreamCheck(principal, key, stop=principal.service.drained)
    async with aclosing(write_parts(check, batches, events.write, write_end)) as parts:
        async for part in parts:
            yield part


# The route.


@post(
    f"{PREFIX}/{{name:path}}",
    status_code=200,
    summary="Run an agent for an AG-UI client",
    opt={PERMISSION: ("run", "approve")},
    media_type=EVENT_STREAM,
    response_description="Server-sent events of AG-UI, from `RUN_STARTED` to `RUN_FINISHED` or `RUN_ERROR`",
    responses=problem_specs(
        "agent_not_found",
        "session_exists",
        "session_busy",
        "run_not_waiting",
        "already_decided",
        "arguments_changed",
        "agent_unavailable",
        "draining",
        *CODES_OF_CHANGES,
    ),
)
async def run_agui(
    request: Request[Any, Any, Any],
    name: AgentName,
    data: JSONBody[RunAgentInput],
    principal: NamedDependency[Principal],
) -> Response[Any]:
    """The thread is a session. A request that is sent again, with the same `runId`, has its effect once: it joins the
    run. Approvals need the permission `approve`, everything else `run`.
    """
    agent = read_name(request, f"{PREFIX}/")
    given = await run_aside(is_heavy(data.messages, data.tools, data.state), read_input, principal, agent, data)
    refuse_wrong_functions(given.options, principal.engine.registry)
    idempotency = await principal.read_idempotency() or await _identify(request, data.run_id)
    return make_event_stream(principal, await _decide(principal, given, idempotency))


async def _identify(request: Request[Any, Any, Any], run_id: str) -> IdempotentRequest:
    """What a request is known by when it is sent again: a client chooses another `runId` for another run."""
    said = request.scope["raw_path"] + b"\n" + await request.body()
    return IdempotentRequest(f"agui:{run_id}", hashlib.sha256(said).hexdigest())


ROUTES = [run_agui]
