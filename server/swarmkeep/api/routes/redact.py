"""Route that redacts a session."""

from __future__ import annotations

from typing import Annotated

from litestar import post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from msgspec import Meta

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.bodies import Body
from swarmkeep.api.errors import problem_specs
from swarmkeep.api.parameters import MAX_SEQ
from swarmkeep.audit.redact import Redaction, redact


class RedactionRequest(Body, frozen=True, kw_only=True):
    """Which events lose their payload, and why. `include_forks`: also in other sessions that hold the same events.
    `dry_run`: only say what would be removed."""

    seqs: list[Annotated[int, Meta(ge=1, le=MAX_SEQ)]]
    reason: str
    include_forks: bool = False
    dry_run: bool = False


@post(
    "/sessions/{session_id:str}/redact",
    status_code=200,
    operation_id="redact_session",
    summary="Remove the payloads of events for good",
    responses=problem_specs(
        "session_not_found",
        "event_not_found",
        "session_busy",
        "idempotency_mismatch",
        "too_large",
        "unsupported_media_type",
        "overloaded",
    ),
)
async def redact_session(
    session_id: FromPath[str], data: JSONBody[RedactionRequest], principal: NamedDependency[Principal]
) -> Redaction:
    """The chain still verifies. Repeating the request is harmless. With `dry_run` nothing is removed: `seqs` and
    `forks` say what would be, and where else the same events are, and `seq` is null."""
    return await redact(
        principal.store,
        principal.session_key(session_id),
        data.seqs,
        data.reason,
        by=principal.name,
        include_forks=data.include_forks,
        dry_run=data.dry_run,
        idempotency=await principal.read_idempotency(),
        publish=principal.engine.publish,
    )


ROUTES = [redact_session]
