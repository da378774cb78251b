"""What auditors ask: whether a session is what it was."""

from __future__ import annotations

from typing import Annotated

from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter

from swarmkeep.api.access import Caller
from swarmkeep.api.errors import problems
from swarmkeep.audit.findings import Verification, parse_head
from swarmkeep.audit.verify import verify


@get(
    "/sessions/{session_id:str}/verify",
    operation_id="verify_session",
    summary="Check a session's hash chain, and all that is stored with it",
    responses=problems("session_not_found"),
)
async def verify_session(
    session_id: FromPath[str],
    caller: NamedDependency[Caller],
    head: Annotated[
        str | None,
        QueryParameter(
            description="A `seq` and `hash` noted down earlier, as SEQ:HASH, which the log must still have."
        ),
    ] = None,
) -> Verification:
    """It finds any change, insertion, removal or reordering; and given an earlier head, a log that was cut off."""
    noted = None if head is None else parse_head(head)
    return await verify(caller.engine.store, caller.key(session_id), noted=noted)


ROUTES = [verify_session]
