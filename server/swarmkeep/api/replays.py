"""The past against the present, and against another past: replays, differences, comparisons."""

from __future__ import annotations

from typing import Annotated, ClassVar

from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter

from swarmkeep.api.access import Caller
from swarmkeep.api.bodies import Body
from swarmkeep.api.errors import problems
from swarmkeep.api.gate import ONLY_READS
from swarmkeep.api.queries import MAX_SEQ
from swarmkeep.audit.compare import Comparison, StateDiff, compare_sessions, diff_session
from swarmkeep.audit.divergences import Replayed, checked_kinds
from swarmkeep.audit.replay import replay_session


class Replay(Body, frozen=True, kw_only=True):
    """`ignore` are kinds of differences that are not to be told."""

    may_be_absent: ClassVar[bool] = True
    ignore: tuple[str, ...] = ()


@post(
    "/sessions/{session_id:str}/replay",
    status_code=200,
    operation_id="replay_session",
    summary="Compare today's agents with what is recorded",
    opt={ONLY_READS: True},
    responses=problems("session_not_found", "too_large", "unsupported_media_type"),
)
async def replay(session_id: FromPath[str], data: JSONBody[Replay], caller: NamedDependency[Caller]) -> Replayed:
    """The recorded completions and results stand in for the model and the tools: neither is called, nothing is
    written. Instructions that are functions are called. Each difference is told once, where it shows first.
    """
    ignore = checked_kinds(data.ignore)
    return await replay_session(caller.engine.store, caller.engine.registry, caller.key(session_id), ignore=ignore)


Before = Annotated[int, QueryParameter(ge=0, le=MAX_SEQ, description="The earlier seq; 0 is before the first event.")]
After = Annotated[int, QueryParameter(ge=1, le=MAX_SEQ, description="The later seq.")]


@get(
    "/sessions/{session_id:str}/diff",
    operation_id="diff_session",
    summary="Get what changed between two events",
    responses=problems("session_not_found", "event_not_found"),
)
async def diff(session_id: FromPath[str], caller: NamedDependency[Caller], before: Before, after: After) -> StateDiff:
    return await diff_session(caller.engine.store, caller.key(session_id), before, after)


@get(
    "/sessions/{session_id:str}/compare",
    operation_id="compare_sessions",
    summary="Compare a session with another one",
    responses=problems("session_not_found"),
)
async def compare(
    session_id: FromPath[str],
    caller: NamedDependency[Caller],
    other: Annotated[str, QueryParameter(name="with", description="The other session's id.")],
) -> Comparison:
    """They part after `shared_seq`: up to there, their events have the same hashes."""
    return await compare_sessions(caller.engine.store, caller.key(session_id), caller.key(other))


ROUTES = [replay, diff, compare]
