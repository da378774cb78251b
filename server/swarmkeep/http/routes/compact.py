"""Route that makes a session's history shorter for the model."""

from __future__ import annotations

from typing import Annotated, ClassVar

from litestar import post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from msgspec import Meta

from swarmkeep.http.auth import PERMISSION, Principal
from swarmkeep.http.bodies import Body
from swarmkeep.http.errors import CODES_OF_CHANGES, problem_specs
from swarmkeep.runs.compaction import CompactionView


class CompactionRequest(Body, frozen=True, kw_only=True):
    """The number of last turns left unchanged, and additional instructions to the model for the summary."""

    may_be_absent: ClassVar[bool] = True
    keep_turns: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    instructions: Annotated[str, Meta(max_length=20_000)] | None = None


@post(
    "/sessions/{session_id:str}/compact",
    status_code=200,
    operation_id="compact_session",
    summary="Make the history shorter for the model",
    opt={PERMISSION: ("run",)},
    responses=problem_specs("session_not_found", "session_busy", "agent_unavailable", *CODES_OF_CHANGES),
)
async def compact_session(
    session_id: FromPath[str], data: JSONBody[CompactionRequest], principal: NamedDependency[Principal]
) -> CompactionView:
    """Long results are shortened, and all but the last turns are summed up by the agent's model. The log keeps
    everything."""
    return await principal.engine.compactions.compact(
        principal.session_key(session_id),
        keep_turns=data.keep_turns,
        instructions=data.instructions,
        by=principal.name,
        idempotency=await principal.read_idempotency(),
    )


ROUTES = [compact_session]
