"""What auditors ask and do: whether a session is what it was, what must not be kept, what is gone."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import Meta

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.bodies import Body
from swarmkeep.api.errors import problem_specs
from swarmkeep.api.parameters import MAX_SEQ, AfterSeq, Cursor, Limit, seq_from_cursor
from swarmkeep.audit.redact import Redaction, redact
from swarmkeep.audit.verify.audit_log import AuditEntry, verify_audit_log, view_entry
from swarmkeep.audit.verify.problems import Verification, parse_head
from swarmkeep.audit.verify.session import verify

NotedHead = Annotated[
    str | None,
    QueryParameter(description="A `seq` and `hash` noted down earlier, as SEQ:HASH, which the log must still have."),
]


@get(
    "/sessions/{session_id:str}/verify",
    operation_id="verify_session",
    summary="Check a session's hash chain, and all that is stored with it",
    responses=problem_specs("session_not_found"),
)
async def verify_session(
    session_id: FromPath[str],
    caller: NamedDependency[Principal],
    head: NotedHead = None,
) -> Verification:
    """It finds any change, insertion, removal or reordering; and given an earlier head, a log that was cut off."""
    noted = None if head is None else parse_head(head)
    return await verify(caller.store, caller.key(session_id), noted=noted)


class RedactionRequest(Body, frozen=True, kw_only=True):
    """Which events lose their payload, and why. `include_forks`: also where other sessions hold the same events."""

    seqs: list[Annotated[int, Meta(ge=1, le=MAX_SEQ)]]
    reason: str
    include_forks: bool = False


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
    session_id: FromPath[str], data: JSONBody[RedactionRequest], caller: NamedDependency[Principal]
) -> Redaction:
    """The chain still verifies. Done again, it removes nothing twice."""
    return await redact(
        caller.store,
        caller.key(session_id),
        data.seqs,
        data.reason,
        by=caller.name,
        include_forks=data.include_forks,
        once=await caller.once(),
        publish=caller.engine.publish,
    )


class AuditList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[AuditEntry]
    next_cursor: str | None


@get(
    "/audit",
    operation_id="list_audit",
    summary="List what was done to sessions that are gone",
    responses=problem_specs(),
)
async def list_audit(
    caller: NamedDependency[Principal], after: AfterSeq = None, limit: Limit = 50, cursor: Cursor = None
) -> AuditList:
    """The audit log: a session's deletion is told here, with who did it and why. Oldest first."""
    start = max(after or 0, seq_from_cursor(cursor) or 0)
    entries = await caller.store.read_audit_log(caller.tenant, after=start, limit=limit + 1)
    following = str(entries[limit - 1].seq) if len(entries) > limit else None
    return AuditList(data=[view_entry(entry) for entry in entries[:limit]], next_cursor=following)


@get(
    "/audit/verify",
    operation_id="verify_audit",
    summary="Check the audit log's hash chain",
    responses=problem_specs(),
)
async def verify_audit(caller: NamedDependency[Principal], head: NotedHead = None) -> Verification:
    noted = None if head is None else parse_head(head)
    return await verify_audit_log(caller.store, caller.tenant, noted=noted)


ROUTES = [verify_session, redact_session]
AUDIT_ROUTES = [list_audit, verify_audit]
