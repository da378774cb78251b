"""Routes that compare: replay, diff and compare."""

from __future__ import annotations

from typing import Annotated, ClassVar

from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.auth.guards import PERMISSION
from swarmkeep.api.bodies import Body
from swarmkeep.api.errors import problem_specs
from swarmkeep.api.parameters import MAX_SEQ
from swarmkeep.audit.compare import Comparison, StateDiff, compare_sessions, diff_session
from swarmkeep.audit.replay.divergences import Replayed, check_kinds
from swarmkeep.audit.replay.session import replay_session


class Replay(Body, frozen=True, kw_only=True):
    """`ignore` lists kinds of differences that are not reported."""

    may_be_absent: ClassVar[bool] = True
    ignore: tuple[str, ...] = ()


@post(
    "/sessions/{session_id:str}/replay",
    status_code=200,
    operation_id="replay_session",
    summary="Compare today's agents with what is recorded",
    opt={PERMISSION: ("read",)},
    responses=problem_specs("session_not_found", "too_large", "unsupported_media_type", "overloaded"),
)
async def replay(session_id: FromPath[str], data: JSONBody[Replay], principal: NamedDependency[Principal]) -> Replayed:
    """The recorded completions and results stand in for the model and the tools: neither is called, and nothing is
    written. Functions that make instructions are called. Each difference is reported once, where it first appears. A
    server makes one replay per tenant at a time, for a minute at most.
    """
    ignore, key = check_kinds(data.ignore), principal.session_key(session_id)
    service = principal.service
    async with service.replays.enter(principal.tenant):
        return await replay_session(
            principal.store,
            principal.engine.registry,
            key,
            ignore=ignore,
            seconds=service.limits.replay_seconds,
        )


EarlierSeq = Annotated[
    int, QueryParameter(ge=0, le=MAX_SEQ, description="The earlier seq; 0 is before the first event.")
]
LaterSeq = Annotated[int, QueryParameter(ge=1, le=MAX_SEQ, description="The later seq.")]


@get(
    "/sessions/{session_id:str}/diff",
    operation_id="diff_session",
    summary="Get what changed between two events",
    responses=problem_specs("session_not_found", "event_not_found"),
)
async def diff(
    session_id: FromPath[str], principal: NamedDependency[Principal], before: EarlierSeq, after: LaterSeq
) -> StateDiff:
    return await diff_session(principal.store, principal.session_key(session_id), before, after)


@get(
    "/sessions/{session_id:str}/compare",
    operation_id="compare_sessions",
    summary="Compare a session with another one",
    responses=problem_specs("session_not_found"),
)
async def compare(
    session_id: FromPath[str],
    principal: NamedDependency[Principal],
    other: Annotated[str, QueryParameter(name="with", description="The other session's id.")],
) -> Comparison:
    """The sessions part after `shared_seq`: up to there, their events have the same hashes."""
    return await compare_sessions(principal.store, principal.session_key(session_id), principal.session_key(other))


ROUTES = [replay, diff, compare]
