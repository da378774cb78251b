"""Routes for people who speak in the agent's place: take over, answer, hand back."""

from __future__ import annotations

from typing import Annotated, ClassVar

from litestar import Response, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from msgspec import Meta

from swarmkeep.events.views import SessionView
from swarmkeep.http.auth import PERMISSION, Principal
from swarmkeep.http.bodies import Body
from swarmkeep.http.errors import CODES_OF_CHANGES, problem_specs
from swarmkeep.http.routes.events import MessageList
from swarmkeep.http.routes.sessions import ETAG, make_session_response

Note = Annotated[str, Meta(max_length=10_000)]


class Takeover(Body, frozen=True, kw_only=True):
    """`note` is for other people who look at the session; no model reads it. With `force`, also from another person."""

    may_be_absent: ClassVar[bool] = True
    note: Note | None = None
    force: bool = False


class Handback(Body, frozen=True, kw_only=True):
    """The agent's model reads the `note` before it continues. With `force`, this works even if another person took
    over."""

    may_be_absent: ClassVar[bool] = True
    note: Note | None = None
    force: bool = False


class PersonAnswer(Body, frozen=True, kw_only=True):
    """The answer in the agent's place."""

    content: Annotated[str, Meta(min_length=1)]


@post(
    "/sessions/{session_id:str}/takeover",
    status_code=200,
    operation_id="take_over_session",
    summary="Take a session over from its agent",
    opt={PERMISSION: ("run",)},
    response_headers=[ETAG],
    responses=problem_specs("session_not_found", "taken_over", *CODES_OF_CHANGES),
)
async def take_over_session(
    session_id: FromPath[str], data: JSONBody[Takeover], principal: NamedDependency[Principal]
) -> Response[SessionView]:
    """No model is asked and no call begins until the session is handed back; runs wait for the person instead. If the
    same person repeats the request, nothing changes."""
    session = await principal.engine.takeovers.take_over(
        principal.session_key(session_id),
        by=principal.name,
        note=data.note,
        force=data.force,
        idempotency=await principal.read_idempotency(),
    )
    return make_session_response(session)


@post(
    "/sessions/{session_id:str}/answer",
    status_code=200,
    operation_id="answer_session",
    summary="Answer in the agent's place",
    opt={PERMISSION: ("run",)},
    responses=problem_specs("session_not_found", "not_taken_over", "taken_over", "session_busy", *CODES_OF_CHANGES),
)
async def answer_session(
    session_id: FromPath[str], data: JSONBody[PersonAnswer], principal: NamedDependency[Principal]
) -> MessageList:
    """The answer has the message as it was recorded. It completes the waiting run, if there is one; its open calls are
    not carried out any more."""
    entry = await principal.engine.takeovers.answer(
        principal.session_key(session_id),
        data.content,
        by=principal.name,
        idempotency=await principal.read_idempotency(),
    )
    return MessageList(data=[entry.view()], next_cursor=None)


@post(
    "/sessions/{session_id:str}/handback",
    status_code=200,
    operation_id="hand_back_session",
    summary="Hand a session back to its agent",
    opt={PERMISSION: ("run",)},
    response_headers=[ETAG],
    responses=problem_specs(
        "session_not_found", "not_taken_over", "taken_over", "agent_unavailable", "draining", *CODES_OF_CHANGES
    ),
)
async def hand_back_session(
    session_id: FromPath[str], data: JSONBody[Handback], principal: NamedDependency[Principal]
) -> Response[SessionView]:
    """A run that waits for the person continues in the background."""
    session = await principal.engine.takeovers.hand_back(
        principal.session_key(session_id),
        by=principal.name,
        note=data.note,
        force=data.force,
        idempotency=await principal.read_idempotency(),
    )
    return make_session_response(session)


ROUTES = [take_over_session, answer_session, hand_back_session]
