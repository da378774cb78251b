"""Runs: started, awaited, streamed, listed, cancelled, resumed."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar
from uuid import uuid4

import msgspec
from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody
from msgspec import Meta

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.bodies import Body, JsonResponse
from swarmkeep.api.errors import problem_specs
from swarmkeep.api.parameters import Cursor, LastEventId, Limit, seq_from_cursor, seq_from_last_event_id
from swarmkeep.api.sse import EVENT_STREAM, StreamableOperation, StreamResponse
from swarmkeep.api.streams import run_frames
from swarmkeep.domain.decisions.commands import OnBusy, StartRun
from swarmkeep.domain.decisions.resuming import Approval, ToolAnswer
from swarmkeep.domain.errors import InvalidRequest
from swarmkeep.domain.events import Decision, RunOptions
from swarmkeep.domain.inputs import check_messages, check_object
from swarmkeep.domain.views import RunView, collect_runs, view_run
from swarmkeep.engine.failpoints import REQUEST_PARSED, reach
from swarmkeep.engine.idempotency import IdempotentRequest
from swarmkeep.engine.runs import RunPosition
from swarmkeep.store.ports import SessionKey

Json = dict[str, Any]


class NewRun(Body, frozen=True, kw_only=True):
    """`input` is what the user says, or a list of Chat Completions messages. `context_variables` is merged first.

    `max_turns` counts model calls. `on_busy`: what happens while another run is active: this one is refused, waits for
    its turn, or has the other one cancelled.
    """

    input: str | list[Json]
    stream: bool = False
    background: bool = False
    agent: str | None = None
    context_variables: Json | None = None
    model: str | None = None
    max_turns: Annotated[int, Meta(ge=1)] | None = None
    execute_tools: bool = True
    on_busy: OnBusy = "reject"

    def to_command(self, once: IdempotentRequest | None) -> StartRun:
        if self.stream and self.background:
            raise InvalidRequest("a run in the background cannot be streamed here; join its stream", "/background")
        options = RunOptions(
            max_turns=self.max_turns, model=self.model, execute_tools=self.execute_tools, stream=self.stream
        )
        return StartRun(
            run_id=f"run_{uuid4().hex}",
            messages=check_messages(self.input, "/input"),
            options=options,
            agent=self.agent,
            context_variables=check_object(self.context_variables or {}, "/context_variables"),
            idempotency_key=None if once is None else once.key,
            on_busy=self.on_busy,
        )


class ToolResult(Body, frozen=True, kw_only=True):
    """The outcome of a call that was carried out elsewhere, in words for the model."""

    tool_call_id: str
    content: str
    is_error: bool = False


class ApprovalDecision(Body, frozen=True, kw_only=True):
    tool_call_id: str
    decision: Decision
    reason: str | None = None

    def by(self, name: str | None) -> Approval:
        return Approval(tool_call_id=self.tool_call_id, decision=self.decision, reason=self.reason, by=name)


class Resume(Body, frozen=True, kw_only=True):
    """What the run waits for. An interrupted run is tried again by a resume with neither."""

    may_be_absent: ClassVar[bool] = True
    tool_results: tuple[ToolResult, ...] = ()
    approvals: tuple[ApprovalDecision, ...] = ()
    stream: bool = False


class RunList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[RunView]
    next_cursor: str | None


def run_stream_response(
    caller: Principal, key: SessionKey, feed: RunPosition, after: int | None = None
) -> Response[Any]:
    return StreamResponse(run_frames(caller, key, feed, after), EVENT_STREAM)


@post(
    "/sessions/{session_id:str}/runs",
    status_code=200,
    operation_id="create_run",
    summary="Run the session's agent on an input",
    operation_class=StreamableOperation,
    responses={
        202: ResponseSpec(RunView, description="The run, begun in the background", generate_examples=False),
        **problem_specs(
            "session_not_found",
            "agent_not_found",
            "session_busy",
            "agent_unavailable",
            "too_large",
            "unsupported_media_type",
            "draining",
            "overloaded",
        ),
    },
)
async def create_run(
    session_id: FromPath[str], data: JSONBody[NewRun], caller: NamedDependency[Principal]
) -> Response[RunView]:
    """Answers when the run has ended or waits for somebody; with `stream` as server-sent events, with `background` at
    once (202). A run goes on when its client goes away.
    """
    runs, key = caller.engine.runs, caller.key(session_id)
    once = await caller.once()
    reach(REQUEST_PARSED)
    feed = await runs.start(key, data.to_command(once), once=once)
    if data.stream:
        return run_stream_response(caller, key, feed)
    if data.background:
        return JsonResponse(await runs.get(key, feed.run_id, at=feed.seq), status_code=202)
    return JsonResponse(await runs.wait(key, feed.run_id, since=feed.seq if feed.repeated else None))


@get(
    "/sessions/{session_id:str}/runs",
    operation_id="list_runs",
    summary="List a session's runs, newest first",
    responses=problem_specs("session_not_found"),
)
async def list_runs(
    session_id: FromPath[str], caller: NamedDependency[Principal], limit: Limit = 50, cursor: Cursor = None
) -> RunList:
    key, before = caller.key(session_id), seq_from_cursor(cursor)
    state = await caller.engine.sessions.state(key)
    runs = sorted(collect_runs(state), key=lambda run: -run.first_seq)
    left = [run for run in runs if before is None or run.first_seq < before]
    page = left[:limit]
    following = str(page[-1].first_seq) if len(left) > limit else None
    return RunList(data=[view_run(key.id, state, run) for run in page], next_cursor=following)


@get(
    "/sessions/{session_id:str}/runs/{run_id:str}",
    operation_id="get_run",
    summary="Get a run",
    responses=problem_specs("session_not_found", "run_not_found"),
)
async def get_run(session_id: FromPath[str], run_id: FromPath[str], caller: NamedDependency[Principal]) -> RunView:
    return await caller.engine.runs.get(caller.key(session_id), run_id)


@get(
    "/sessions/{session_id:str}/runs/{run_id:str}/stream",
    operation_id="stream_run",
    summary="Join a run's stream",
    media_type=EVENT_STREAM,
    response_description="Server-sent events; the last one is `done`, with the run",
    responses=problem_specs("session_not_found", "run_not_found"),
)
async def stream_run(
    session_id: FromPath[str], run_id: FromPath[str], caller: NamedDependency[Principal], last_seen: LastEventId = None
) -> Response[Any]:
    """Durable events have an id, their seq; after `Last-Event-ID` each is given once and in order, from any server."""
    key, after = caller.key(session_id), seq_from_last_event_id(last_seen)
    return run_stream_response(caller, key, await caller.engine.runs.feed(key, run_id), after)


@post(
    "/sessions/{session_id:str}/runs/{run_id:str}/cancel",
    status_code=200,
    operation_id="cancel_run",
    summary="Cancel a run; what it produced stays",
    responses=problem_specs("session_not_found", "run_not_found", "idempotency_mismatch", "overloaded"),
)
async def cancel_run(session_id: FromPath[str], run_id: FromPath[str], caller: NamedDependency[Principal]) -> RunView:
    return await caller.engine.runs.cancel(caller.key(session_id), run_id, once=await caller.once())


@post(
    "/sessions/{session_id:str}/runs/{run_id:str}/resume",
    status_code=200,
    operation_id="resume_run",
    summary="Give a waiting run what it waits for, or try an interrupted one again",
    operation_class=StreamableOperation,
    responses=problem_specs(
        "session_not_found",
        "run_not_found",
        "run_not_waiting",
        "already_decided",
        "agent_unavailable",
        "idempotency_mismatch",
        "too_large",
        "unsupported_media_type",
        "draining",
        "overloaded",
    ),
)
async def resume_run(
    session_id: FromPath[str], run_id: FromPath[str], data: JSONBody[Resume], caller: NamedDependency[Principal]
) -> Response[RunView]:
    """The first decision about a call wins. Answers like the making of a run."""
    key = caller.key(session_id)
    feed = await submit_resume(caller, key, run_id, data, await caller.once())
    if data.stream:
        return run_stream_response(caller, key, feed)
    return JsonResponse(await caller.engine.runs.wait(key, run_id, since=feed.seq if feed.repeated else None))


async def submit_resume(
    caller: Principal, key: SessionKey, run_id: str, data: Resume, once: IdempotentRequest | None
) -> RunPosition:
    """Give the run what it waits for; returns once that is durable."""
    return await caller.engine.runs.resume(
        key,
        run_id,
        tool_results=[msgspec.convert(result, ToolAnswer, from_attributes=True) for result in data.tool_results],
        approvals=[approval.by(caller.name) for approval in data.approvals],
        once=once,
    )


ROUTES = [create_run, list_runs, get_run, stream_run, cancel_run, resume_run]
