"""OpenAI's Agents API over the agents of this server: agents, sessions, events, turns and items.

A session is a session, and a turn a run: what is made here is in the same log as everything else, and is advanced by
the same loop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Annotated, Any
from urllib.parse import parse_qsl

import msgspec
from litestar import HttpMethod, Request, Response, delete, get, post, route
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import UNSET

from swarmkeep.decide.commands import Approval, StartRun, ToolAnswer
from swarmkeep.events.codec import Json, encode
from swarmkeep.events.errors import AlreadyDecided, RunNotWaiting, SessionNotFound
from swarmkeep.events.records import RunOptions
from swarmkeep.events.sizes import is_heavy
from swarmkeep.events.state import Run, State
from swarmkeep.http.auth import PERMISSION, Principal
from swarmkeep.http.bodies import JsonResponse
from swarmkeep.http.parameters import MAX_METADATA_FILTERS, OPEN_QUERY_PREFIX, LastEventId
from swarmkeep.http.sse import frame
from swarmkeep.http.streams import StreamCheck, Written, make_event_stream, open_feed, write_parts
from swarmkeep.http.threads import run_aside
from swarmkeep.openai import agent_contents, made_agents
from swarmkeep.openai.agent_events import (
    EventTranslator,
    open_stream,
    parse_event_id,
    show_listed,
    show_session,
)
from swarmkeep.openai.agent_input import (
    CANCEL,
    DECISION,
    MADE_LABEL,
    MESSAGE,
    RESULT,
    CreateAgentSession,
    SubmitEvents,
    UpdateAgentSession,
    make_unknown_call,
    read_decision,
    read_kind,
    read_messages,
    read_options,
    read_result,
    refuse_label,
    refuse_unserved,
)
from swarmkeep.openai.history import find_session
from swarmkeep.openai.items import Input
from swarmkeep.openai.made_agents import choose_session_agent, is_made
from swarmkeep.openai.output_items import PageQuery
from swarmkeep.openai.problems import Refused
from swarmkeep.openai.submit import map_error_params
from swarmkeep.runs.automations import continue_options
from swarmkeep.runs.identifiers import make_id
from swarmkeep.runs.runs import IdempotentRequest, find_record
from swarmkeep.runs.teams import ApprovalBelow
from swarmkeep.store.records import SessionKey, make_session_cursor

AfterEvent = Annotated[
    str | None, QueryParameter(name="after", description="The id of an event; the stream continues after it.")
]
Obfuscation = Annotated[bool | None, QueryParameter(description="Has no effect: nothing is padded.")]

# Sessions.


def _make_command(
    principal: Principal, messages: Sequence[Json], options: RunOptions, idempotency: IdempotentRequest | None
) -> StartRun:
    """The command of a turn, whose input is the user's. Raises Forbidden for who does not speak as that."""
    principal.refuse_as_user()
    return StartRun(
        run_id=make_id("run"),
        messages=tuple(messages),
        options=options,
        idempotency_key=None if idempotency is None else idempotency.key,
        on_busy="queue",
        by=UNSET if principal.name is None else principal.name,
    )


@post("/agents/sessions", status_code=200, summary="Make a session with its first turn", opt={PERMISSION: ("run",)})
async def create_agent_session(
    data: JSONBody[CreateAgentSession], principal: NamedDependency[Principal]
) -> Response[Any]:
    """With `stream` the events up to the end of that turn; else the session, once it and its input are recorded."""
    refuse_unserved(data)
    if data.input is None:
        raise Refused("a session without an environment begins with an `input`", "input")
    agent = await choose_session_agent(principal, data)
    options = read_options(principal, agent.config, agent.name, agent.made)
    messages = await _read_messages(principal, data.input, "input")
    idempotency = await principal.read_idempotency()
    session_id = make_id("sess") if idempotency is None else idempotency.derive_session_id(principal.tenant)
    key = SessionKey(principal.tenant, session_id)
    plan = await principal.engine.sessions.plan(agent=agent.name, metadata=agent.label(data.metadata))
    with open_feed(principal, key) if data.stream else nullcontext() as feed:
        if await find_record(principal.store, key, idempotency) is None:
            command = _make_command(principal, messages, options, idempotency)
            with map_error_params(Input(messages, places=list(range(len(messages))))):
                await principal.engine.runs.start(key, command, idempotency=idempotency, plan=plan)
    if not data.stream:
        return JsonResponse(show_session(key.id, await principal.reader.state(key)))
    batches = principal.reader.follow_batches(key, after=0, feed=feed)
    events = EventTranslator(principal, key, State()).follow(batches)
    return make_event_stream(principal, _write_frames(principal, key, events, is_first_turn=True))


def _write_frames(
    principal: Principal, key: SessionKey, events: AsyncGenerator[list[Json]], *, is_first_turn: bool = False
) -> AsyncGenerator[bytes]:
    service = principal.service
    check = StreamCheck(principal, key, stop=service.drained if is_first_turn else service.stopping)

    def write(batch: list[Json]) -> Written:
        parts: list[bytes] = []
        for event in batch:
            parts.append(frame(event["type"], encode(event), event["event_id"]))
            if is_first_turn and event["type"] == "agent.session.idle":
                return b"".join(parts), b""
        return b"".join(parts), None

    return write_parts(check, events, write)


@get(
    "/agents/sessions",
    summary="List the sessions, the latest first",
    description="Parameters `metadata[KEY]=VALUE` select the sessions with that metadata.",
    opt={OPEN_QUERY_PREFIX: "metadata["},
)
async def list_agent_sessions(
    request: Request[Any, Any, Any],
    principal: NamedDependency[Principal],
    page: NamedDependency[PageQuery],
    agent_id: Annotated[str | None, QueryParameter(description="Only those with this active agent.")] = None,
) -> Response[Any]:
    if page.order != "desc":
        raise Refused("sessions are listed with the latest first: leave `order` out", "order")
    cursor = None
    if page.after is not None:
        known, state = await find_session(principal, page.after)
        cursor = make_session_cursor((state.created_at, known.id), "created")
    made = {MADE_LABEL: agent_id} if agent_id is not None and is_made(principal, agent_id) else {}
    found = await principal.reader.list_page(
        principal.tenant,
        agent=None if made else agent_id,
        metadata={**_read_filter(request), **made},
        limit=page.limit,
        cursor=cursor,
        children=False,
    )
    shown: list[Json] = []
    for listed in found.sessions:
        if listed.status != "waiting":
            shown.append(show_listed(listed))
            continue
        # What it waits for is in the session alone.
        with suppress(SessionNotFound):
            state = await principal.reader.state(SessionKey(principal.tenant, listed.id), fresh=False)
            shown.append(show_session(listed.id, state))
    listed_page = page.take(shown)
    has_more = bool(shown) and (listed_page["has_more"] or found.next_cursor is not None)
    return JsonResponse({**listed_page, "has_more": has_more})


def _read_filter(request: Request[Any, Any, Any]) -> Mapping[str, str]:
    pairs = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    wanted = [(name, value) for name, value in pairs if name.startswith("metadata[")]
    if len(wanted) > MAX_METADATA_FILTERS or not all(name.endswith("]") for name, _ in wanted):
        raise Refused(f"write filters as metadata[KEY]=VALUE, at most {MAX_METADATA_FILTERS}", "metadata")
    return {name[len("metadata[") : -1]: value for name, value in wanted}


@get("/agents/sessions/{session_id:str}", summary="Get a session")
async def get_agent_session(session_id: FromPath[str], principal: NamedDependency[Principal]) -> Response[Any]:
    key, state = await find_session(principal, session_id)
    return JsonResponse(show_session(key.id, state))


@post(
    "/agents/sessions/{session_id:str}",
    status_code=200,
    summary="Replace a session's metadata",
    opt={PERMISSION: ("run",)},
)
async def update_agent_session(
    session_id: FromPath[str], data: JSONBody[UpdateAgentSession], principal: NamedDependency[Principal]
) -> Response[Any]:
    key, state = await find_session(principal, session_id, to_change=True)
    if data.metadata is not UNSET:
        kept = {MADE_LABEL: state.metadata[MADE_LABEL]} if MADE_LABEL in state.metadata else {}
        refuse_label(data.metadata)
        patch = dict.fromkeys(state.metadata) | dict(data.metadata or {}) | kept
        idempotency = await principal.read_idempotency()
        await principal.engine.sessions.update(key, metadata=patch, idempotency=idempotency)
        state = await principal.reader.state(key)
    return JsonResponse(show_session(key.id, state))


@delete("/agents/sessions/{session_id:str}", status_code=200, summary="Delete a session with all that is in it")
async def delete_agent_session(session_id: FromPath[str], principal: NamedDependency[Principal]) -> dict[str, Any]:
    key, _ = await find_session(principal, session_id)
    await principal.engine.sessions.delete(key, by=principal.name)
    return {"id": key.id, "object": "agent.session.deleted", "deleted": True}


# Events: what callers give a session, and what comes of it.


@post(
    "/agents/sessions/{session_id:str}/events",
    status_code=202,
    summary="Give a session messages, results of functions, decisions, or a cancellation",
    opt={PERMISSION: ("run", "approve")},
)
async def create_agent_session_events(
    session_id: FromPath[str], data: JSONBody[SubmitEvents], principal: NamedDependency[Principal]
) -> Response[Any]:
    """All of it is taken, or none, and it is recorded by the time of the answer. A message to a session that is busy
    waits for its turn; one after a cancellation takes the place of the turn that is under way."""
    kinds = [read_kind(event, f"events[{place}]") for place, event in enumerate(data.events)]
    if DECISION in kinds:
        principal.require("approve")
    if set(kinds) != {DECISION}:
        principal.require("run")
    key, state = await find_session(principal, session_id, to_change=True)
    idempotency = await principal.read_idempotency()
    if await find_record(principal.store, key, idempotency) is None:
        await _submit(principal, key, state, data.events, kinds, idempotency)
    return JsonResponse({}, status_code=202)


# Each answer is looked for among all that a turn waits for.
_MAX_EVENTS = 100


async def _read_messages(principal: Principal, given: object, param: str) -> list[Json]:
    return await run_aside(is_heavy(given), read_messages, given, param, principal.engine.limits.max_messages)


async def _submit(
    principal: Principal,
    key: SessionKey,
    state: State,
    events: Sequence[Json],
    kinds: Sequence[str],
    idempotency: IdempotentRequest | None,
) -> None:
    if len(events) > _MAX_EVENTS:
        raise Refused(f"give at most {_MAX_EVENTS} events at once", "events")
    messages: list[Json] = []
    for place, event in enumerate(events):
        if kinds[place] == MESSAGE:
            messages += await _read_messages(principal, event.get("input"), f"events[{place}].input")
    run = state.run
    match sorted(set(kinds), key=kinds.index):
        case ["message"]:
            await _start(
                principal, key, _make_command(principal, messages, continue_options(state), idempotency), idempotency
            )
        case ["cancel", "message"] if kinds.count(CANCEL) == 1:
            command = _make_command(principal, messages, continue_options(state), idempotency)
            await _start(principal, key, msgspec.structs.replace(command, on_busy="interrupt"), idempotency)
        case ["cancel"]:
            if run is not None:
                await principal.engine.runs.cancel(key, run.id, idempotency=idempotency)
        case [*given] if given and not set(given) - {RESULT, DECISION}:
            await _answer(principal, key, run, events, kinds, idempotency)
        case _:
            raise Refused(
                "send messages, or answers to what a turn waits for, or a cancellation, not several", "events"
            )


async def _start(
    principal: Principal, key: SessionKey, command: StartRun, idempotency: IdempotentRequest | None
) -> None:
    with map_error_params(Input(list(command.messages), param="events")):
        await principal.engine.runs.start(key, command, idempotency=idempotency)


async def _answer(
    principal: Principal,
    key: SessionKey,
    run: Run | None,
    events: Sequence[Json],
    kinds: Sequence[str],
    idempotency: IdempotentRequest | None,
) -> None:
    """Give a turn what it waits for, or some of it."""
    results: list[ToolAnswer] = []
    approvals: list[Approval] = []
    below: list[ApprovalBelow] = []
    for place, (event, kind) in enumerate(zip(events, kinds, strict=True)):
        if kind == RESULT:
            results.append(read_result(run, event, f"events[{place}]"))
        else:
            found = read_decision(principal, key.id, run, event, f"events[{place}]")
            if isinstance(found, ApprovalBelow):
                below.append(found)
            else:
                approvals.append(found)
    # What answers nothing that is open was refused.
    assert run is not None
    if below and results:
        raise Refused("send decisions on the calls of an asked agent without results", "events")
    try:
        if below:
            deciding = principal.engine.approvals_below
            await deciding.decide(key, run.id, below, own=approvals, idempotency=idempotency)
        else:
            resume = principal.engine.runs.resume
            await resume(key, run.id, tool_results=results, approvals=approvals, idempotency=idempotency)
    except (AlreadyDecided, RunNotWaiting) as error:
        # Another one was faster.
        if results:
            raise make_unknown_call(results[0].tool_call_id) from error
        raise


@get("/agents/sessions/{session_id:str}/events", summary="Stream a session's events, from now on or behind one of them")
async def stream_agent_session_events(
    session_id: FromPath[str],
    principal: NamedDependency[Principal],
    after: AfterEvent = None,
    last_seen: LastEventId = None,
    include_obfuscation: Obfuscation = None,
) -> Response[Any]:
    """`after`, or `Last-Event-ID`, names the last event that the reader has: the stream goes on behind it, on any
    server, at any time."""
    key, state = await find_session(principal, session_id)
    seen = after or last_seen
    behind = parse_event_id(seen, "after") if seen else None
    return make_event_stream(principal, _write_frames(principal, key, await open_stream(principal, key, state, behind)))


ROUTES = [
    *made_agents.ROUTES,
    create_agent_session,
    list_agent_sessions,
    get_agent_session,
    update_agent_session,
    delete_agent_session,
    create_agent_session_events,
    stream_agent_session_events,
    *agent_contents.ROUTES,
]


# What the Agents API has besides, and this server has not: it is refused by its name.

_ANY: list[HttpMethod] = [HttpMethod.GET, HttpMethod.POST, HttpMethod.DELETE]


def _refuse(path: list[str], methods: list[HttpMethod], message: str) -> Any:
    @route(path, http_method=methods, status_code=200, include_in_schema=False, opt={PERMISSION: ("read",)})
    async def refuse() -> None:
        raise Refused(message, code="not_served", status=501)

    return refuse


UNSERVED_ROUTES = [
    _refuse(
        ["/agents/environments", "/agents/environments/{rest:path}"],
        _ANY,
        "environments are not served; functions run on this server or yours",
    ),
    _refuse(["/vaults", "/vaults/{rest:path}"], _ANY, "vaults are not served; functions have their own credentials"),
    _refuse(
        ["/agents/sessions/{session_id:str}/artifacts/{artifact_id:str}"],
        [HttpMethod.DELETE],
        "an artifact is a part of its session's log: redact its event, or delete the session",
    ),
]
