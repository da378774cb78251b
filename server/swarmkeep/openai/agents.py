"""OpenAI's Agents API over the agents of this server: sessions, events, turns, items, files and traces.

A session is a session, and a turn a run: what is made here is in the same log as everything else, and is advanced by
the same loop.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from itertools import takewhile
from typing import Annotated, Any
from urllib.parse import parse_qsl

import msgspec
from litestar import HttpMethod, Request, Response, delete, get, post, route
from litestar.di import NamedDependency, Provide
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import UNSET

from swarmkeep.decide.commands import Approval, StartRun, ToolAnswer
from swarmkeep.events.codec import Json, encode
from swarmkeep.events.errors import AlreadyDecided, RunNotWaiting, SessionNotFound
from swarmkeep.events.files import FileReference, list_references
from swarmkeep.events.messages import Entry, list_result_references
from swarmkeep.events.records import RunOptions
from swarmkeep.events.sizes import is_heavy
from swarmkeep.events.state import KnownIds, Run, State, find_ids
from swarmkeep.events.views import find_run, list_latest_runs
from swarmkeep.http.auth import PERMISSION, Principal
from swarmkeep.http.bodies import JsonResponse
from swarmkeep.http.parameters import MAX_METADATA_FILTERS, OPEN_QUERY_PREFIX, LastEventId
from swarmkeep.http.routes.sessions import make_file_response
from swarmkeep.http.sse import frame
from swarmkeep.http.streams import StreamCheck, Written, make_event_stream, open_feed, write_parts
from swarmkeep.http.threads import run_aside
from swarmkeep.openai import agent_events, agent_input, made_agents
from swarmkeep.openai.history import FEW_MESSAGES, answer_items, find_session, read_items
from swarmkeep.openai.items import Input
from swarmkeep.openai.made_agents import choose_session_agent, is_made
from swarmkeep.openai.output_items import ListedItem, PageQuery, SessionItems
from swarmkeep.openai.problems import Refused, make_not_found
from swarmkeep.openai.progress import to_seconds
from swarmkeep.openai.submit import map_error_params
from swarmkeep.runs.automations import continue_options
from swarmkeep.runs.genai import export_spans, list_spans
from swarmkeep.runs.identifiers import derive_child, make_id
from swarmkeep.runs.runs import IdempotentRequest, find_record
from swarmkeep.runs.sessions import read_stored_file
from swarmkeep.runs.teams import ApprovalBelow
from swarmkeep.store.index import SessionFilter
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
    data: JSONBody[agent_input.CreateAgentSession], principal: NamedDependency[Principal]
) -> Response[Any]:
    """With `stream` the events up to the end of that turn; else the session, once it and its input are recorded."""
    agent_input.refuse_unserved(data)
    if data.input is None:
        raise Refused("a session without an environment begins with an `input`", "input")
    agent = await choose_session_agent(principal, data)
    options = agent_input.read_options(principal, agent.config, agent.name, agent.made)
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
        return JsonResponse(agent_events.show_session(key.id, await principal.reader.state(key)))
    batches = principal.reader.follow_batches(key, after=0, feed=feed)
    events = agent_events.EventTranslator(principal, key, State()).follow(batches)
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
    made = {agent_input.MADE_LABEL: agent_id} if agent_id is not None and is_made(principal, agent_id) else {}
    found = await principal.reader.list_page(
        SessionFilter(
            principal.tenant,
            agent=None if made else agent_id,
            metadata={**_read_filter(request), **made},
            children=False,
        ),
        limit=page.limit,
        cursor=cursor,
    )
    shown: list[Json] = []
    for listed in found.sessions:
        if listed.status != "waiting":
            shown.append(agent_events.show_listed(listed))
            continue
        # What it waits for is in the session alone.
        with suppress(SessionNotFound):
            state = await principal.reader.state(SessionKey(principal.tenant, listed.id), fresh=False)
            shown.append(agent_events.show_session(listed.id, state))
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
    return JsonResponse(agent_events.show_session(key.id, state))


@post(
    "/agents/sessions/{session_id:str}",
    status_code=200,
    summary="Replace a session's metadata",
    opt={PERMISSION: ("run",)},
)
async def update_agent_session(
    session_id: FromPath[str], data: JSONBody[agent_input.UpdateAgentSession], principal: NamedDependency[Principal]
) -> Response[Any]:
    key, state = await find_session(principal, session_id, to_change=True)
    if data.metadata is not UNSET:
        kept = (
            {agent_input.MADE_LABEL: state.metadata[agent_input.MADE_LABEL]}
            if agent_input.MADE_LABEL in state.metadata
            else {}
        )
        agent_input.refuse_label(data.metadata)
        patch = dict.fromkeys(state.metadata) | dict(data.metadata or {}) | kept
        idempotency = await principal.read_idempotency()
        await principal.engine.sessions.update(key, metadata=patch, idempotency=idempotency)
        state = await principal.reader.state(key)
    return JsonResponse(agent_events.show_session(key.id, state))


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
    session_id: FromPath[str], data: JSONBody[agent_input.SubmitEvents], principal: NamedDependency[Principal]
) -> Response[Any]:
    """All of it is taken, or none, and it is recorded by the time of the answer. A message to a session that is busy
    waits for its turn; one after a cancellation takes the place of the turn that is under way."""
    kinds = [agent_input.read_kind(event, f"events[{place}]") for place, event in enumerate(data.events)]
    if agent_input.DECISION in kinds:
        principal.require("approve")
    if set(kinds) != {agent_input.DECISION}:
        principal.require("run")
    key, state = await find_session(principal, session_id, to_change=True)
    idempotency = await principal.read_idempotency()
    if await find_record(principal.store, key, idempotency) is None:
        await _submit(principal, key, state, data.events, kinds, idempotency)
    return JsonResponse({}, status_code=202)


# Each answer is looked for among all that a turn waits for.
_MAX_EVENTS = 100


async def _read_messages(principal: Principal, given: object, param: str) -> list[Json]:
    return await run_aside(
        is_heavy(given), agent_input.read_messages, given, param, principal.engine.limits.max_messages
    )


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
        if kinds[place] == agent_input.MESSAGE:
            messages += await _read_messages(principal, event.get("input"), f"events[{place}].input")
    run = state.run
    match sorted(set(kinds), key=kinds.index):
        case ["message"]:
            await _start(
                principal, key, _make_command(principal, messages, continue_options(state), idempotency), idempotency
            )
        case ["cancel", "message"] if kinds.count(agent_input.CANCEL) == 1:
            command = _make_command(principal, messages, continue_options(state), idempotency)
            await _start(principal, key, msgspec.structs.replace(command, on_busy="interrupt"), idempotency)
        case ["cancel"]:
            if run is not None:
                await principal.engine.runs.cancel(key, run.id, idempotency=idempotency)
        case [*given] if given and not set(given) - {agent_input.RESULT, agent_input.DECISION}:
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
        if kind == agent_input.RESULT:
            results.append(agent_input.read_result(run, event, f"events[{place}]"))
        else:
            found = agent_input.read_decision(principal, key.id, run, event, f"events[{place}]")
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
            raise agent_input.make_unknown_call(results[0].tool_call_id) from error
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
    behind = agent_events.parse_event_id(seen, "after") if seen else None
    return make_event_stream(
        principal, _write_frames(principal, key, await agent_events.open_stream(principal, key, state, behind))
    )


# Turns and items: of a session, or of one of its subagents, whose session is below it.


class TurnOwner(msgspec.Struct, frozen=True):
    """The log that turns are in, and the session and the subagent that they are said to be of."""

    key: SessionKey
    state: State
    session_id: str
    subagent_id: str | None = None


async def _find_owner(principal: NamedDependency[Principal], session_id: FromPath[str]) -> TurnOwner:
    key, state = await find_session(principal, session_id)
    return TurnOwner(key, state, key.id)


async def _find_subagent(
    principal: NamedDependency[Principal], session_id: FromPath[str], subagent_id: FromPath[str]
) -> TurnOwner:
    key, state = await find_session(principal, session_id)
    child, below = await find_session(principal, subagent_id, what="subagent")
    parent = below.parent
    if parent is None or derive_child(key, state, parent.run_id, parent.tool_call_id) != child:
        raise make_not_found("subagent", subagent_id)
    return TurnOwner(child, below, key.id, child.id)


def _list_runs(state: State, page: PageQuery, what: str, *, more: int = 0) -> Iterable[Run]:
    """The turns of a page, if there are so many, one more than that, and so many `more`. Raises Refused."""
    last = None if page.after is None else find_run(state, page.after)
    if page.after is not None and last is None:
        raise make_not_found(what, page.after, "after")
    if page.order == "desc":
        return list_latest_runs(state, page.limit + 1 + more, None if last is None else last.first_seq)
    every = list_latest_runs(state, len(state.finished) + len(state.queue) + 1)
    return (run for run in reversed(every) if last is None or run.first_seq > last.first_seq)


def _find_turn(state: State, turn_id: str) -> Run:
    run = find_run(state, turn_id)
    if run is None:
        raise make_not_found("turn", turn_id)
    return run


def _make_turn_routes(path: str, name: str, whose: str, provider: Any) -> list[HTTPRouteHandler]:
    """Make the routes below `path` for the turns and items of an owner that `provider` finds."""
    owned = {"owner": Provide(provider)}

    @get(
        f"{path}/turns",
        operation_id=f"list_{name}_turns",
        summary=f"List a {whose}'s turns",
        dependencies=owned,
    )
    async def list_turns(owner: NamedDependency[TurnOwner], page: NamedDependency[PageQuery]) -> Response[Any]:
        def make() -> Json:
            runs = _list_runs(owner.state, page, "item")
            return page.take(agent_events.show_turn(owner.session_id, run, owner.subagent_id) for run in runs)

        return JsonResponse(await run_aside(len(owner.state.finished) > FEW_MESSAGES, make))

    @get(
        f"{path}/turns/{{turn_id:str}}",
        operation_id=f"get_{name}_turn",
        summary=f"Get a turn of a {whose}",
        dependencies=owned,
    )
    async def get_turn(owner: NamedDependency[TurnOwner], turn_id: FromPath[str]) -> Response[Any]:
        return JsonResponse(
            agent_events.show_turn(owner.session_id, _find_turn(owner.state, turn_id), owner.subagent_id)
        )

    @get(
        f"{path}/turns/{{turn_id:str}}/items",
        operation_id=f"list_{name}_turn_items",
        summary=f"List the items of a turn of a {whose}",
        dependencies=owned,
    )
    async def list_turn_items(
        owner: NamedDependency[TurnOwner],
        turn_id: FromPath[str],
        principal: NamedDependency[Principal],
        page: NamedDependency[PageQuery],
    ) -> Response[Any]:
        return await _answer_items(principal, owner, page, _find_turn(owner.state, turn_id))

    @get(
        f"{path}/items",
        operation_id=f"list_{name}_items",
        summary=f"List a {whose}'s items",
        dependencies=owned,
    )
    async def list_items(
        owner: NamedDependency[TurnOwner], principal: NamedDependency[Principal], page: NamedDependency[PageQuery]
    ) -> Response[Any]:
        return await _answer_items(principal, owner, page)

    return [list_turns, get_turn, list_turn_items, list_items]


async def _answer_items(
    principal: Principal, owner: TurnOwner, page: PageQuery, turn: Run | None = None
) -> Response[Any]:
    found, places = await read_items(owner.key.id, owner.state, partial(_read_page, page=page, turn=turn))

    def write(items: list[Json]) -> Json:
        return {**found, "data": [agent_events.show_item(item, *places[item["id"]]) for item in items]}

    return await answer_items(principal, owner.key, found["data"], write)


def _read_page(
    items: SessionItems, *, page: PageQuery, turn: Run | None
) -> tuple[Json, dict[str, tuple[str | None, agent_events.Phase | None]]]:
    """A page, and of each item the turn, and whether it is an answer. Raises Refused."""
    before = page.find_before(items)
    found: Iterator[ListedItem] = items.walk(page.order, before)
    if turn is not None:
        edge = turn.first_seq if page.order == "asc" else turn.last_seq
        walked = items.walk(page.order, before, first_seq=edge)
        inside = takewhile(lambda each: turn.first_seq <= each.place[0] <= turn.last_seq, walked)
        found = (each for each in inside if each.entry.run_id == turn.id)
    places: dict[str, tuple[str | None, agent_events.Phase | None]] = {}

    def select() -> Iterator[Json]:
        for listed in found:
            item, entry = agent_events.mark_failed(listed.item, listed.entry), listed.entry
            if agent_events.show_item(item, None) is None:
                continue
            phase: agent_events.Phase | None = None
            if item["type"] == "message" and item["role"] == "assistant":
                phase = "commentary" if entry.message.get("tool_calls") else "final_answer"
            places[item["id"]] = entry.run_id, phase
            yield item

    return page.take(select()), places


# Subagents: agents that were asked by the session's own. Each is a session, too, by its id.

_SESSION = "/agents/sessions/{session_id:str}"
_SUBAGENT = f"{_SESSION}/subagents/{{subagent_id:str}}"


@get(f"{_SESSION}/subagents", summary="List the agents that a session has asked")
async def list_agent_subagents(
    session_id: FromPath[str], principal: NamedDependency[Principal], page: NamedDependency[PageQuery]
) -> Response[Any]:
    key, state = await find_session(principal, session_id)
    shown = list((await agent_events.find_subagents(principal, key, state)).values())
    return JsonResponse(page.select(shown))


@get(_SUBAGENT, summary="Get an agent that a session has asked", dependencies={"owner": Provide(_find_subagent)})
async def get_agent_subagent(
    owner: NamedDependency[TurnOwner], session_id: FromPath[str], principal: NamedDependency[Principal]
) -> Response[Any]:
    key, state = await find_session(principal, session_id)
    run = None if owner.state.parent is None else find_run(state, owner.state.parent.run_id)
    found = await agent_events.find_subagents(principal, key, state, run)
    if owner.key.id not in found:
        raise make_not_found("subagent", owner.key.id)
    return JsonResponse(found[owner.key.id])


# Artifacts: the files of a session's turns. Users and functions choose their names.


class _WithFiles(KnownIds, frozen=True):
    """The messages that brought files, all by one id."""


class _Artifact(msgspec.Struct, frozen=True):
    """A file, and where it stands in its session: `number` is its place among those of its message."""

    entry: Entry
    number: int
    path: str
    reference: FileReference

    @property
    def id(self) -> str:
        return f"artifact_{self.entry.seq}-{self.number}"

    def show(self, session_id: str) -> Json:
        return {
            "id": self.id,
            "object": "agent.session.artifact",
            "session_id": session_id,
            "turn_id": self.entry.run_id or "",
            "environment_id": _ENVIRONMENT,
            "path": self.path,
            "size_bytes": self.reference.size,
            "created_at": to_seconds(self.entry.at),
        }


_ENVIRONMENT = "none"
_NOT_IN_FILE_NAMES = re.compile(r"[/\\\x00-\x1f\x7f]|^\.{1,2}$")


def _list_files(entry: Entry) -> list[FileReference]:
    return [] if entry.removed else [*list_references(entry.message), *list_result_references(entry.tool)]


def _list_artifacts(state: State) -> list[_Artifact]:
    """The files of a session, in order. Within a turn each has a path of its own."""
    places = find_ids(state.messages, _WithFiles, lambda entry: ("",) if _list_files(entry) else ()).find("")
    seen: Counter[tuple[str | None, str]] = Counter()
    found: list[_Artifact] = []
    for entry in (state.messages[at] for at in places):
        folder = "/output" if entry.role in ("assistant", "tool") else "/input"
        for number, reference in enumerate(_list_files(entry)):
            path = f"{folder}/{_name_file(reference)}"
            seen[entry.run_id, path] += 1
            count = seen[entry.run_id, path]
            if count > 1:
                path = f"{folder}/{count}/{path.removeprefix(folder + '/')}"
            found.append(_Artifact(entry, number, path, reference))
    return found


def _name_file(reference: FileReference) -> str:
    """The name that it was given; its digest, if none."""
    unnamed = f"{reference.sha256[:12]}.{reference.media_type.partition('/')[2] or 'bin'}"
    return _NOT_IN_FILE_NAMES.sub("_", unnamed if reference.name is UNSET else reference.name or unnamed)


async def _read_artifacts(state: State) -> list[_Artifact]:
    return await run_aside(len(state.messages) > FEW_MESSAGES, _list_artifacts, state)


async def _find_artifact(state: State, artifact_id: str) -> _Artifact:
    found = next((each for each in await _read_artifacts(state) if each.id == artifact_id), None)
    if found is None:
        raise make_not_found("artifact", artifact_id)
    return found


@get(f"{_SESSION}/artifacts", summary="List the files of a session's turns")
async def list_agent_artifacts(
    session_id: FromPath[str],
    principal: NamedDependency[Principal],
    page: NamedDependency[PageQuery],
    environment_id: Annotated[str | None, QueryParameter(description="`none` is the only one there is.")] = None,
) -> Response[Any]:
    key, state = await find_session(principal, session_id)
    artifacts = await _read_artifacts(state) if environment_id in (None, _ENVIRONMENT) else []
    return JsonResponse(page.select([artifact.show(key.id) for artifact in artifacts]))


@get(f"{_SESSION}/artifacts/{{artifact_id:str}}", summary="Get a file of a session's turns, without its content")
async def get_agent_artifact(
    session_id: FromPath[str], artifact_id: FromPath[str], principal: NamedDependency[Principal]
) -> Response[Any]:
    key, state = await find_session(principal, session_id)
    return JsonResponse((await _find_artifact(state, artifact_id)).show(key.id))


@get(f"{_SESSION}/artifacts/{{artifact_id:str}}/content", summary="Get the content of a file of a session's turns")
async def get_agent_artifact_content(
    request: Request[Any, Any, Any],
    session_id: FromPath[str],
    artifact_id: FromPath[str],
    principal: NamedDependency[Principal],
) -> Response[bytes]:
    key, state = await find_session(principal, session_id)
    name = (await _find_artifact(state, artifact_id)).reference.sha256
    return make_file_response(request, name, await read_stored_file(principal.store, key, name))


# Traces.


def _show_trace(session_id: str, state: State, run: Run) -> Json:
    """The trace of a turn, as far as it has come."""
    return {
        "id": run.id,
        "object": "agent.session.trace",
        "session_id": session_id,
        "created_at": to_seconds(run.created_at),
        "otlp": export_spans(list(list_spans(session_id, state, run))),
    }


@get(f"{_SESSION}/traces", summary="List the traces of a session's turns")
async def list_agent_traces(
    session_id: FromPath[str], principal: NamedDependency[Principal], page: NamedDependency[PageQuery]
) -> Response[Any]:
    key, state = await find_session(principal, session_id)

    def make() -> Json:
        runs = _list_runs(state, page, "trace", more=len(state.queue))
        return page.take(_show_trace(key.id, state, run) for run in runs if run.status != "queued")

    return JsonResponse(await run_aside(len(state.messages) > FEW_MESSAGES, make))


ROUTES = [
    *made_agents.ROUTES,
    create_agent_session,
    list_agent_sessions,
    get_agent_session,
    update_agent_session,
    delete_agent_session,
    create_agent_session_events,
    stream_agent_session_events,
    *_make_turn_routes(_SESSION, "agent", "session", _find_owner),
    list_agent_subagents,
    get_agent_subagent,
    *_make_turn_routes(_SUBAGENT, "agent_subagent", "subagent", _find_subagent),
    list_agent_artifacts,
    get_agent_artifact,
    get_agent_artifact_content,
    list_agent_traces,
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
