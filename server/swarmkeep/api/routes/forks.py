"""Routes that fork a session, and list what was forked from it."""

from __future__ import annotations

from typing import Annotated, ClassVar

from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from msgspec import Meta

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.auth.guards import PERMISSION
from swarmkeep.api.bodies import Body
from swarmkeep.api.errors import CODES_OF_CHANGES, problem_specs
from swarmkeep.api.parameters import MAX_SEQ, Cursor, Limit
from swarmkeep.api.routes.sessions import ETAG, LOCATION, SessionId, SessionList, make_session_response
from swarmkeep.domain.codec import Json
from swarmkeep.domain.views import SessionView


class Fork(Body, frozen=True, kw_only=True):
    """`at` is the last seq that the fork shares, by default the session's last. `metadata` is merged over the
    session's. `agent` becomes the active agent."""

    may_be_absent: ClassVar[bool] = True
    at: Annotated[int, Meta(ge=1, le=MAX_SEQ)] | None = None
    id: SessionId | None = None
    metadata: Json | None = None
    agent: str | None = None


@get(
    "/sessions/{session_id:str}/forks",
    operation_id="list_forks",
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
    operation_id="fork_session",
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
    """The shared events keep their hashes. A run that is active where the shared history ends does not continue in the
    fork."""
    session = await principal.engine.sessions.fork(
        principal.session_key(session_id),
        at=data.at,
        session_id=data.id,
        metadata=data.metadata,
        agent=data.agent,
        idempotency=await principal.read_idempotency(),
    )
    return make_session_response(session, 201)


ROUTES = [fork_session, list_forks]
