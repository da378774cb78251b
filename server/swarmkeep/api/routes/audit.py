"""Routes for the audit log: what was done to whole sessions, and whether it is complete."""

from __future__ import annotations

import msgspec
from litestar import get
from litestar.di import NamedDependency

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.auth.guards import PERMISSION
from swarmkeep.api.errors import problem_specs
from swarmkeep.api.paging import take_page
from swarmkeep.api.parameters import AfterSeq, Cursor, Limit, NotedHead, parse_cursor
from swarmkeep.audit.verify.audit_log import AuditEntry, verify_audit_log, view_entry
from swarmkeep.audit.verify.problems import Verification, parse_head


class AuditList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[AuditEntry]
    next_cursor: str | None


@get(
    "/audit",
    operation_id="list_audit",
    summary="List what was done to sessions and keys",
    opt={PERMISSION: ("audit",)},
    responses=problem_specs(),
)
async def list_audit(
    principal: NamedDependency[Principal], after: AfterSeq = None, limit: Limit = 50, cursor: Cursor = None
) -> AuditList:
    """The audit log: deletions, imports, redactions, decisions on approvals and keys, with who did it. Oldest first."""
    start = max(after or 0, parse_cursor(cursor) or 0)
    entries = await principal.store.read_audit_log(principal.tenant, after=start, limit=limit + 1)
    page = take_page(map(view_entry, entries[:limit]), principal.reader.page_bytes)
    return AuditList(data=page, next_cursor=str(page[-1].seq) if len(page) < len(entries) else None)


@get(
    "/audit/verify",
    operation_id="verify_audit",
    summary="Check the audit log's hash chain",
    opt={PERMISSION: ("audit",)},
    responses=problem_specs(),
)
async def verify_audit(principal: NamedDependency[Principal], head: NotedHead = None) -> Verification:
    noted = None if head is None else parse_head(head)
    return await verify_audit_log(principal.store, principal.tenant, noted=noted)


ROUTES = [list_audit, verify_audit]
