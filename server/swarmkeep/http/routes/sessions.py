"""Routes for sessions: create, list, get, update, delete."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from litestar import Request, Response, delete, get, patch, post
from litestar.datastructures import ResponseHeader
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import UNSET, Meta, UnsetType

from swarmkeep.agent.values import MAX_ASSIGNEE
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import InvalidRequest, SessionNotFound
from swarmkeep.events.facts import EventView, view_event
from swarmkeep.events.files import UNKNOWN, choose_shown_type
from swarmkeep.events.run_table import EndedRunStatus
from swarmkeep.events.state import SessionStatus, Verdict
from swarmkeep.events.views import ListedSession, SessionView
from swarmkeep.events.words import MAX_QUERY_CHARACTERS
from swarmkeep.history.transcript import CONTENT_SECURITY_POLICY, MEDIA_TYPES, TranscriptFormat, open_transcript
from swarmkeep.http.auth import PERMISSION, Principal
from swarmkeep.http.bodies import Body, JsonResponse, has_user_message
from swarmkeep.http.errors import CODES_OF_CHANGES, problem_specs
from swarmkeep.http.openapi import YAML, CaseOperation, StreamableOperation, TranscriptOperation
from swarmkeep.http.parameters import (
    MAX_SEQ,
    OPEN_QUERY_PREFIX,
    AtSeq,
    Cursor,
    IfMatch,
    Limit,
    choose_form,
    parse_if_match,
    read_metadata_filter,
    read_time,
    wants_listed_context,
)
from swarmkeep.http.routes.events import MessageList
from swarmkeep.http.routes.usage import find_cost
from swarmkeep.http.sse import EVENT_STREAM, StreamResponse
from swarmkeep.http.streams import make_event_stream, write_change_frames
from swarmkeep.runs.compaction import CompactionView
from swarmkeep.runs.reader import choose_order
from swarmkeep.runs.sessions import read_stored_file
from swarmkeep.store.index import SessionFilter
from swarmkeep.store.records import SessionOrder

SessionId = Annotated[str, Meta(pattern=r"^(?!\.{1,2}$)[A-Za-z0-9._:\-]{1,128}$")]
ETAG = ResponseHeader(
    name="ETag", description="The session's seq, quoted: for `If-Match`.", documentation_only=True, value='"7"'
)
LOCATION = ResponseHeader(name="Location", description="The session's path.", documentation_only=True, value="/v1/…")


class NewSession(Body, frozen=True, kw_only=True):
    """Everything is optional. Messages have a `role` (`system`, `developer`, `user`, `assistant` or `tool`) and
    `content`; other keys are kept. A tool message must answer an open call of the assistant message before it, by its
    `tool_call_id`."""

    may_be_absent: ClassVar[bool] = True
    id: SessionId | None = None
    """1 to 128 of `A-Z a-z 0-9 . _ : -`, but not `.` or `..`; made by the server if absent."""
    agent: str | None = None
    """The agent that begins; by default the first of the first module served."""
    context_variables: Json | None = None
    """Data for functions."""
    metadata: Json | None = None
    """Your own labels."""
    messages: list[Json] | None = None
    """A history to begin with: Chat Completions messages. `sender` is the role unless you give one."""
    relayed: bool = False
    """`true`: a person passes on what the user said, as a key with the role `support` has to say."""


class SessionPatch(Body, frozen=True, kw_only=True):
    """Everything is optional."""

    agent: str | UnsetType = UNSET
    """Becomes the active agent."""
    context_variables: Json | UnsetType = UNSET
    """A merge patch (RFC 7396): null removes a key; keys that are not named stay."""
    metadata: Json | UnsetType = UNSET
    """A merge patch, too."""


class SessionList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[ListedSession]
    next_cursor: str | None


def make_session_response(session: SessionView, status: int = 200) -> Response[SessionView]:
    headers = {"ETag": f'"{session.seq}"'}
    if status == 201:
        headers["Location"] = f"/v1/sessions/{session.id}"
    return JsonResponse(session, status_code=status, headers=headers)


@post(
    "/sessions",
    status_code=201,
    summary="Make a session",
    opt={PERMISSION: ("run",)},
    response_headers=[ETAG, LOCATION],
    responses={
        200: ResponseSpec(SessionView, description="The session that was made before", generate_examples=False),
        **problem_specs("agent_not_found", "session_exists", *CODES_OF_CHANGES),
    },
)
async def create_session(data: JSONBody[NewSession], principal: NamedDependency[Principal]) -> Response[SessionView]:
    """With an id and a body that were sent before, the answer is 200 with the session as it was made; with another
    body, it is refused."""
    if has_user_message(data.messages or ()):
        principal.refuse_as_user(relayed=data.relayed)
    session, made = await principal.engine.sessions.create(
        principal.tenant,
        session_id=data.id,
        agent=data.agent,
        context_variables=data.context_variables,
        metadata=data.metadata,
        messages=data.messages,
        idempotency=await principal.read_idempotency(),
    )
    return make_session_response(session, 201 if made else 200)


@get(
    "/sessions",
    summary="List or search sessions, the latest first, or follow which of them change",
    operation_class=StreamableOperation,
    description="Parameters `metadata.KEY=VALUE` select the sessions with that metadata: text as it is, any other "
    "value as its JSON; several keys are possible. "
    "`Accept: text/event-stream` streams which sessions change from then on, and takes no parameters.",
    opt={OPEN_QUERY_PREFIX: "metadata."},
    responses=problem_specs("search_off"),
)
async def list_sessions(
    request: Request[Any, Any, Any],
    principal: NamedDependency[Principal],
    agent: Annotated[str | None, QueryParameter(description="Only those with this active agent.")] = None,
    status: Annotated[SessionStatus | None, QueryParameter(description="Only those in this state.")] = None,
    last_run: Annotated[
        EndedRunStatus | None,
        QueryParameter(description="Only those without an active run whose last run ended like this."),
    ] = None,
    q: Annotated[
        str | None,
        QueryParameter(
            max_length=MAX_QUERY_CHARACTERS,
            description="Only those in which one message, or id and metadata, have words that begin with each of these;"
            " `matches` say where. Of more than 10 words, the first 10 count.",
        ),
    ] = None,
    active_after: Annotated[
        str | None,
        QueryParameter(
            description="Only those whose last activity (during a run: its beginning) was then or later (RFC 3339)."
        ),
    ] = None,
    active_before: Annotated[
        str | None, QueryParameter(description="Only those whose last activity was before (RFC 3339).")
    ] = None,
    damaged: Annotated[
        bool | None,
        QueryParameter(description="Only those whose stored history was found damaged, or, with `false`, the others."),
    ] = None,
    assignee: Annotated[
        str | None,
        QueryParameter(
            max_length=MAX_ASSIGNEE,
            description="Only those that this person or queue looks after; `none`: those of no one.",
        ),
    ] = None,
    feedback: Annotated[
        Verdict | None,
        QueryParameter(
            description="`down`: only those with an answer that people did not find good when they last said so. `up`: "
            "only those with feedback that have no such answer."
        ),
    ] = None,
    order: Annotated[
        SessionOrder | None,
        QueryParameter(
            description="`created`: newest first; `activity`: latest activity first, the default with `q`; "
            "`oldest_activity`: with `status=waiting` those first that wait for longest. Activity moves a session in "
            "these orders, so pages may have it twice or not at all. A cursor belongs to its order."
        ),
    ] = None,
    include: Annotated[
        Literal["context_variables"] | None,
        QueryParameter(
            description="Fields that are left out unless you ask for them. The Python client of 0.1 always gets them."
        ),
    ] = None,
    children: Annotated[
        bool, QueryParameter(description="Also the sessions in which agents ask others; each has a `parent`.")
    ] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response[SessionList]:
    if choose_form(request, EVENT_STREAM) == EVENT_STREAM:
        return _follow_changes(request, principal)
    q = q if q and not q.isspace() else None
    page = await principal.reader.list_page(
        SessionFilter(
            principal.tenant,
            agent=agent,
            status=status,
            last_run=last_run,
            order=choose_order(order, q),
            metadata=read_metadata_filter(request),
            children=children,
            active_after=read_time(active_after, "active_after"),
            active_before=read_time(active_before, "active_before"),
            damaged=damaged,
            assignee=assignee,
            feedback=feedback,
        ),
        limit=limit,
        cursor=cursor,
        include_context=include is not None or wants_listed_context(request),
        q=q,
    )
    return JsonResponse(SessionList(data=page.sessions, next_cursor=page.next_cursor))


def _follow_changes(request: Request[Any, Any, Any], principal: Principal) -> StreamResponse:
    for name in request.query_params:
        raise InvalidRequest(f"a stream of changes takes no parameters; leave `{name}` out", f"/query/{name}")
    return make_event_stream(principal, write_change_frames(principal))


@get(
    "/sessions/{session_id:str}",
    summary="Get a session, now or as it was",
    response_headers=[ETAG],
    responses=problem_specs("session_not_found", "event_not_found"),
)
async def get_session(
    session_id: FromPath[str], principal: NamedDependency[Principal], at: AtSeq = None
) -> Response[SessionView]:
    """With `at`, as it was after that event."""
    session = await principal.reader.view(principal.session_key(session_id), at=at)
    # Its cost at some time before is not counted.
    cost = await find_cost(principal, session.id) if at is None else UNSET
    return make_session_response(session if cost is UNSET else msgspec.structs.replace(session, cost=cost))


@patch(
    "/sessions/{session_id:str}",
    summary="Change context variables, metadata or the active agent",
    opt={PERMISSION: ("run",)},
    response_headers=[ETAG],
    responses=problem_specs("session_not_found", "agent_not_found", "seq_mismatch", *CODES_OF_CHANGES),
)
async def update_session(
    session_id: FromPath[str],
    data: JSONBody[SessionPatch],
    principal: NamedDependency[Principal],
    if_match: IfMatch = None,
) -> Response[SessionView]:
    """Two writers that change different keys at once both win. With `If-Match`, only if the session has not changed
    since. The next step of an active run sees the change. Values that are set already are not recorded again."""
    session = await principal.engine.sessions.update(
        principal.session_key(session_id),
        agent=none_if_unset(data.agent),
        context_variables=none_if_unset(data.context_variables),
        metadata=none_if_unset(data.metadata),
        if_match=parse_if_match(if_match),
        idempotency=await principal.read_idempotency(),
    )
    return make_session_response(session)


@delete(
    "/sessions/{session_id:str}",
    summary="Delete a session with all of its events",
    responses=problem_specs("session_not_found", "session_busy", "on_hold", "seq_mismatch", "overloaded"),
)
async def delete_session(
    session_id: FromPath[str],
    principal: NamedDependency[Principal],
    force: Annotated[bool, QueryParameter(description="Even while a run is active.")] = False,
    reason: Annotated[str | None, QueryParameter(max_length=1000, description="Why, for the audit log.")] = None,
    if_match: IfMatch = None,
) -> None:
    """For good, with the sessions in which its agents asked others. Its id may be used again; its forks stay."""
    await principal.engine.sessions.delete(
        principal.session_key(session_id),
        force=force,
        if_match=parse_if_match(if_match),
        by=principal.name,
        reason=reason,
    )


def none_if_unset(value: Any) -> Any:
    return None if value is UNSET else value


ROUTES = [create_session, list_sessions, get_session, update_session, delete_session]


# Routes that fork a session, and list what was forked from it.


class Fork(Body, frozen=True, kw_only=True):
    """Everything is optional."""

    may_be_absent: ClassVar[bool] = True
    at: Annotated[int, Meta(ge=1, le=MAX_SEQ)] | None = None
    """The last event that both share; by default the last one."""
    id: SessionId | None = None
    """1 to 128 of `A-Z a-z 0-9 . _ : -`, but not `.` or `..`; made by the server if absent."""
    metadata: Json | None = None
    """A merge patch over the copied metadata."""
    agent: str | None = None
    """Becomes the active agent of the fork."""


@get(
    "/sessions/{session_id:str}/forks",
    summary="List a session's forks, the latest first",
    responses=problem_specs("session_not_found"),
)
async def list_forks(
    session_id: FromPath[str], principal: NamedDependency[Principal], limit: Limit = 50, cursor: Cursor = None
) -> SessionList:
    """The sessions that were forked from this one, but not their forks. Pages before the last may be short, and even
    empty."""
    page = await principal.reader.list_forks(principal.session_key(session_id), limit=limit, cursor=cursor)
    return SessionList(data=page.sessions, next_cursor=page.next_cursor)


@post(
    "/sessions/{session_id:str}/fork",
    status_code=201,
    summary="Make a session that shares another's history",
    opt={PERMISSION: ("run",)},
    response_headers=[ETAG, LOCATION],
    responses=problem_specs(
        "session_not_found", "event_not_found", "agent_not_found", "session_exists", *CODES_OF_CHANGES
    ),
)
async def fork_session(
    session_id: FromPath[str], data: JSONBody[Fork], principal: NamedDependency[Principal]
) -> Response[SessionView]:
    """The copied events keep their hashes. A run that is unfinished where the copy ends does not continue; if it is
    tried again, approvals are asked for again."""
    session = await principal.engine.sessions.fork(
        principal.session_key(session_id),
        at=data.at,
        session_id=data.id,
        metadata=data.metadata,
        agent=data.agent,
        idempotency=await principal.read_idempotency(),
    )
    return make_session_response(session, 201)


FORKS_ROUTES = [fork_session, list_forks]


# The content of a session's files and pictures.

# It is of no use to a page of anybody's: nothing in it runs, nothing is loaded for it, and no site may frame it.
_HEADERS = {
    "Cache-Control": "private, max-age=31536000, immutable",
    "Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Vary": "Authorization",
    "X-Content-Type-Options": "nosniff",
}


@get(
    "/sessions/{session_id:str}/blobs/{hash:str}",
    summary="Get a file or picture of a session",
    response_description="The content. For a few kinds of pictures, audio and PDF, its first bytes determine its type",
    responses=problem_specs("session_not_found", "blob_not_found"),
)
async def get_blob(
    request: Request[Any, Any, Any],
    session_id: FromPath[str],
    hash: FromPath[str],
    principal: NamedDependency[Principal],
) -> Response[bytes]:
    """`hash` is the SHA-256 (hex) that a message's part has as its `sha256`, and the event as its `blob`.
    `Content-Type` is that of a picture, audio or a PDF if its first bytes say so, otherwise `application/octet-stream`.
    Pictures and audio are `inline`, everything else is an `attachment`. Clients may cache it (`ETag`)."""
    content = await read_stored_file(principal.store, principal.session_key(session_id), hash)
    return make_file_response(request, hash, content)


def make_file_response(request: Request[Any, Any, Any], hash: str, content: bytes) -> Response[bytes]:
    """Answer with the content of that SHA-256, or that the client has it."""
    headers = {**_HEADERS, "ETag": f'"{hash}"'}
    if request.headers.get("if-none-match") in (f'"{hash}"', f'W/"{hash}"', "*"):
        return Response(b"", status_code=304, headers=headers, media_type=UNKNOWN)
    media_type = choose_shown_type(content)
    form = "inline" if media_type.startswith(("image/", "audio/")) else "attachment"
    headers["Content-Disposition"] = f'{form}; filename="{_name_file(hash, media_type)}"'
    return Response(content, headers=headers, media_type=media_type)


def _name_file(hash: str, media_type: str) -> str:
    ending = "bin" if media_type == UNKNOWN else media_type.partition("/")[2]
    return f"{hash[:12]}.{ending}"


BLOBS_ROUTES = [get_blob]


# Route for a session as a document for people.

# It is opened from where the API is, and holds what strangers said.
_TRANSCRIPT_HEADERS = {
    "Content-Security-Policy": f"{CONTENT_SECURITY_POLICY}; sandbox",
    "X-Content-Type-Options": "nosniff",
}


@get(
    "/sessions/{session_id:str}/transcript",
    summary="Get a session as a document for people",
    operation_class=TranscriptOperation,
    response_description="The document",
    responses=problem_specs("session_not_found", "event_not_found"),
)
async def get_transcript(
    request: Request[Any, Any, Any],
    session_id: FromPath[str],
    principal: NamedDependency[Principal],
    form: Annotated[
        TranscriptFormat | None,
        QueryParameter(name="format", description="`markdown` or `html`; by default as `Accept` says."),
    ] = None,
    at: AtSeq = None,
) -> Response[Any]:
    """Markdown unless `format` or `Accept` asks for HTML. What was said is shown as text, never as markup."""
    chosen = form or ("html" if "text/html" in request.headers.get("accept", "") else "markdown")
    pieces = await open_transcript(principal.store, principal.session_key(session_id), chosen, at=at)
    return StreamResponse(pieces, MEDIA_TYPES[chosen], headers={**_TRANSCRIPT_HEADERS, "Vary": "Accept"})


@get(
    "/sessions/{session_id:str}/case",
    summary="Make an eval case of a run",
    operation_class=CaseOperation,
    response_description="A file with the case",
    responses=problem_specs("session_not_found", "run_not_found", "overloaded"),
)
async def get_eval_case(
    session_id: FromPath[str],
    principal: NamedDependency[Principal],
    run_id: Annotated[str | None, QueryParameter(description="The run; by default the last one.")] = None,
    name: Annotated[
        str | None, QueryParameter(description="What the case is called; by default what was said.", max_length=200)
    ] = None,
) -> Response[Any]:
    """What was said, and as expectations what was done: calls in their order, agent, context, output, guardrails.
    The file is for `swarmkeep eval`; where the run went wrong, correct it first. A server process makes one of a tenant
    at a time."""
    from swarmkeep.evals.proposing import NoCase, make_case_file

    key = principal.session_key(session_id)
    # The whole session is read, as for a replay: one of a tenant's at a time.
    async with principal.service.replays.enter(principal.tenant):
        events = await principal.store.read(key)
        if not events:
            raise SessionNotFound(key.id)
        try:
            content = await asyncio.to_thread(make_case_file, events, run_id, name)
        except NoCase as error:
            raise InvalidRequest(str(error), "/query/run_id") from None
    return Response(content, media_type=YAML, headers={"X-Content-Type-Options": "nosniff"})


TRANSCRIPT_ROUTES = [get_transcript, get_eval_case]


# Compaction: the history made shorter for the model.


class CompactionRequest(Body, frozen=True, kw_only=True):
    """Everything is optional."""

    may_be_absent: ClassVar[bool] = True
    keep_turns: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    """How many turns are left unchanged; by default those of the agent's settings, or 4."""
    instructions: Annotated[str, Meta(max_length=20_000)] | None = None
    """Added for the summary."""


@post(
    "/sessions/{session_id:str}/compact",
    status_code=200,
    summary="Make the history shorter for the model",
    opt={PERMISSION: ("run",)},
    responses=problem_specs("session_not_found", "session_busy", "agent_unavailable", *CODES_OF_CHANGES),
)
async def compact_session(
    session_id: FromPath[str], data: JSONBody[CompactionRequest], principal: NamedDependency[Principal]
) -> CompactionView:
    """Long results are shortened, and all but the last turns are summed up by the agent's model. The log keeps
    everything. The answer comes when that is done; a compaction that was cut off continues with the next one, or with
    the next run."""
    return await principal.engine.compactions.compact(
        principal.session_key(session_id),
        keep_turns=data.keep_turns,
        instructions=data.instructions,
        by=principal.name,
        idempotency=await principal.read_idempotency(),
    )


COMPACTION_ROUTES = [compact_session]


# People who speak in the agent's place: take over, answer, hand back.


Note = Annotated[str, Meta(max_length=10_000)]


class Takeover(Body, frozen=True, kw_only=True):
    """Everything is optional."""

    may_be_absent: ClassVar[bool] = True
    note: Note | None = None
    """For other people; no model reads it."""
    force: bool = False
    """Take it from another person."""


class Handback(Body, frozen=True, kw_only=True):
    """Everything is optional."""

    may_be_absent: ClassVar[bool] = True
    note: Note | None = None
    """The agent's model reads it."""
    force: bool = False
    """Even if another person has taken over."""


class PersonAnswer(Body, frozen=True, kw_only=True):
    """The answer in the agent's place."""

    content: Annotated[str, Meta(min_length=1)]
    """Its text."""


@post(
    "/sessions/{session_id:str}/takeover",
    status_code=200,
    summary="Take a session over from its agent",
    opt={PERMISSION: ("run",)},
    response_headers=[ETAG],
    responses=problem_specs("session_not_found", "taken_over", *CODES_OF_CHANGES),
)
async def take_over_session(
    session_id: FromPath[str], data: JSONBody[Takeover], principal: NamedDependency[Principal]
) -> Response[SessionView]:
    """No model is asked and no call begins until the session is handed back; runs wait for the person instead. The
    session is assigned to the person, and stays so. If the same person repeats the request, nothing changes."""
    session = await principal.engine.takeovers.take_over(
        principal.session_key(session_id),
        by=principal.name,
        note=data.note,
        force=data.force,
        owner=principal.person,
        idempotency=await principal.read_idempotency(),
    )
    return make_session_response(session)


@post(
    "/sessions/{session_id:str}/answer",
    status_code=200,
    summary="Answer in the agent's place",
    opt={PERMISSION: ("run",)},
    responses=problem_specs("session_not_found", "not_taken_over", "taken_over", "session_busy", *CODES_OF_CHANGES),
)
async def answer_session(
    session_id: FromPath[str], data: JSONBody[PersonAnswer], principal: NamedDependency[Principal]
) -> MessageList:
    """The answer has the message as it was recorded. It completes the waiting run, if there is one; its open calls are
    not carried out any more."""
    entry = await principal.engine.takeovers.answer(
        principal.session_key(session_id),
        data.content,
        by=principal.name,
        idempotency=await principal.read_idempotency(),
    )
    return MessageList(data=[entry.view()], next_cursor=None)


@post(
    "/sessions/{session_id:str}/handback",
    status_code=200,
    summary="Hand a session back to its agent",
    opt={PERMISSION: ("run",)},
    response_headers=[ETAG],
    responses=problem_specs(
        "session_not_found", "not_taken_over", "taken_over", "agent_unavailable", "draining", *CODES_OF_CHANGES
    ),
)
async def hand_back_session(
    session_id: FromPath[str], data: JSONBody[Handback], principal: NamedDependency[Principal]
) -> Response[SessionView]:
    """A run that waits for the person continues in the background."""
    session = await principal.engine.takeovers.hand_back(
        principal.session_key(session_id),
        by=principal.name,
        note=data.note,
        force=data.force,
        idempotency=await principal.read_idempotency(),
    )
    return make_session_response(session)


class Assignment(Body, frozen=True, kw_only=True):
    """The person or the queue that looks after the session."""

    to: str | None
    """A name in up to 200 characters, or null: no one in particular."""
    reason: Annotated[str, Meta(max_length=1000)] | None = None
    """Why, for other people."""


class NewNote(Body, frozen=True, kw_only=True):
    """A note for colleagues."""

    text: Annotated[str, Meta(min_length=1, max_length=10_000)]
    """Its text."""


@post(
    "/sessions/{session_id:str}/assign",
    status_code=200,
    summary="Say who looks after a session",
    opt={PERMISSION: ("run",)},
    response_headers=[ETAG],
    responses=problem_specs("session_not_found", *CODES_OF_CHANGES),
)
async def assign_session(
    session_id: FromPath[str], data: JSONBody[Assignment], principal: NamedDependency[Principal]
) -> Response[SessionView]:
    """If it is so already, nothing changes."""
    session = await principal.engine.takeovers.assign(
        principal.session_key(session_id),
        data.to,
        by=principal.name,
        reason=data.reason,
        idempotency=await principal.read_idempotency(),
    )
    return make_session_response(session)


@post(
    "/sessions/{session_id:str}/notes",
    status_code=201,
    summary="Note something for colleagues",
    opt={PERMISSION: ("run",)},
    responses=problem_specs("session_not_found", *CODES_OF_CHANGES),
)
async def add_note(
    session_id: FromPath[str], data: JSONBody[NewNote], principal: NamedDependency[Principal]
) -> Response[EventView]:
    """The answer is the event. Neither a model nor the stream of a run shows the note."""
    event = await principal.engine.takeovers.add_note(
        principal.session_key(session_id),
        data.text,
        by=principal.name,
        idempotency=await principal.read_idempotency(),
    )
    return JsonResponse(view_event(event), status_code=201)


class NewFeedback(Body, frozen=True, kw_only=True):
    """What a person thinks of an answer, which either its `seq` or its `run_id` names."""

    value: Verdict
    """`up` or `down`."""
    seq: Annotated[int, Meta(ge=1, le=MAX_SEQ)] | None = None
    """The assistant message."""
    run_id: str | None = None
    """The run whose last assistant message it is about."""
    comment: Annotated[str, Meta(max_length=10_000)] | None = None
    """What the person says about it."""


@post(
    "/sessions/{session_id:str}/feedback",
    status_code=201,
    summary="Say what a person thinks of an answer",
    opt={PERMISSION: ("run",)},
    responses=problem_specs("session_not_found", "run_not_found", "event_not_found", *CODES_OF_CHANGES),
)
async def add_feedback(
    session_id: FromPath[str], data: JSONBody[NewFeedback], principal: NamedDependency[Principal]
) -> Response[EventView]:
    """The answer is the event. Of several about one answer the last one counts."""
    event = await principal.engine.takeovers.add_feedback(
        principal.session_key(session_id),
        data.value,
        seq=data.seq,
        run_id=data.run_id,
        comment=data.comment,
        by=principal.name,
        idempotency=await principal.read_idempotency(),
    )
    return JsonResponse(view_event(event), status_code=201)


TAKEOVER_ROUTES = [take_over_session, answer_session, hand_back_session, assign_session, add_note, add_feedback]
