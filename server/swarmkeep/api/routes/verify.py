"""Route that verifies a session."""

from __future__ import annotations

from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromPath

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.errors import problem_specs
from swarmkeep.api.parameters import NotedHead
from swarmkeep.audit.verify.problems import Verification, parse_head
from swarmkeep.audit.verify.session import follow_verification, verify


@get(
    "/sessions/{session_id:str}/verify",
    operation_id="verify_session",
    summary="Check a session's hash chain, and everything stored with it",
    responses=problem_specs("session_not_found"),
)
async def verify_session(
    session_id: FromPath[str],
    principal: NamedDependency[Principal],
    head: NotedHead = None,
) -> Verification:
    """This finds any change, insertion, removal or reordering; with an earlier head, also a log that was cut off."""
    noted = None if head is None else parse_head(head)
    key = principal.session_key(session_id)
    found = await verify(principal.store, key, noted=noted)
    await follow_verification(principal.store, key, found)
    return found


ROUTES = [verify_session]
