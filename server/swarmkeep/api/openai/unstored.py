"""Responses with `store: false`: run and answered, and then forgotten."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator

from litestar.types import Receive

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.openai.command import make_command
from swarmkeep.api.openai.errors import Refused, make_client_gone
from swarmkeep.api.openai.history import count_parts, find_last_reply, read_run_events, show_last_turn
from swarmkeep.api.openai.items.error_params import map_error_params
from swarmkeep.api.openai.items.ids import ResponseId
from swarmkeep.api.openai.progress.builder import ResponseBuilder
from swarmkeep.api.openai.run_request import RunRequest
from swarmkeep.api.openai.submit import FollowedResponse, read_answers
from swarmkeep.api.openai.targets import find_existing
from swarmkeep.api.sse import wait_for_disconnect
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.commands import refuse_if_busy
from swarmkeep.domain.folding.calls import forget_approvals
from swarmkeep.domain.state import Run
from swarmkeep.engine.streams.items import Item
from swarmkeep.engine.swarm.unstored import UnstoredSession


class UnstoredResponse:
    """A response that is in no log. Another one can go on from its `session` as long as somebody holds that."""

    def __init__(self, session: UnstoredSession, builder: ResponseBuilder, items: AsyncGenerator[Item | None]) -> None:
        self.session = session
        self.builder = builder
        self.items = items

    def follow(self) -> FollowedResponse:
        """The response and its events. It ends when whoever reads them stops."""
        return FollowedResponse(None, self.builder, self.items)


async def finish_unstored(principal: Principal, response: UnstoredResponse, receive: Receive) -> Json:
    """The response, once it has ended, as long as there is somebody to take it: nobody else will ever see it.

    Raises Refused when the client is gone, and Draining when the server stops.
    """
    finishing = asyncio.create_task(response.follow().finish(principal))
    leaving = asyncio.create_task(wait_for_disconnect(receive))
    try:
        await asyncio.wait((finishing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not finishing.done():
            raise make_client_gone()
        return finishing.result()
    finally:
        for task in (finishing, leaving):
            task.cancel()
        await asyncio.gather(finishing, leaving, return_exceptions=True)


async def begin_unstored(
    principal: Principal, request: RunRequest, earlier: UnstoredSession | None = None
) -> UnstoredResponse:
    """Begin a response that is kept nowhere. It goes on from an `earlier` one, or from what is stored.

    Raises Refused, SessionBusy and what runs raise.
    """
    with map_error_params(request.input):
        return await _begin(principal, request, earlier)


async def _begin(principal: Principal, request: RunRequest, earlier: UnstoredSession | None) -> UnstoredResponse:
    if earlier is None and request.input.approvals:
        message = "a decision on what is stored is recorded: `store` must not be false with it"
        raise Refused(message, "store")
    session = await load_unstored_session(principal, request) if earlier is None else earlier
    run = session.state.run
    if run is None or run.status != "waiting":
        # There is no queue to wait in: what the active run does is another's to record.
        refuse_if_busy(session.state)
        command = make_command(principal, session.state, request)
        builder = ResponseBuilder(ResponseId(session.id, command.run_id), stored=False)
        items = await principal.engine.unstored.start(principal.tenant, session, command)
        return UnstoredResponse(session, builder, items)
    answers = read_answers(principal, session.id, run, request)
    builder = ResponseBuilder(ResponseId(session.id, run.id, count_parts(run)), stored=False)
    _show_earlier(builder, session, run)
    items = await principal.engine.unstored.resume(
        principal.tenant,
        session,
        run.id,
        tool_results=answers.results,
        approvals=answers.approvals,
        messages=answers.messages,
        options=request.options,
    )
    return UnstoredResponse(session, builder, items)


def _show_earlier(builder: ResponseBuilder, session: UnstoredSession, run: Run) -> None:
    """Show a builder what its run did before the response."""
    events, last = session.run_events, find_last_reply(session.state, run)
    if last is not None:
        since = events[bisect_left(events, last.seq, key=lambda event: event.seq) :]
        if show_last_turn(builder, since, last):
            return
    for event in events:
        builder.read(event)


async def load_unstored_session(principal: Principal, request: RunRequest) -> UnstoredSession:
    """The session that a response goes on from: the one that it names, as it is stored, or a new one."""
    found = await find_existing(principal, request)
    if found is None:
        return UnstoredSession((await principal.engine.sessions.plan(agent=request.model)).state)
    state = found.state
    if found.fork_at is not None:
        state = await principal.reader.state(found.key, at=found.fork_at)
    events = [] if state.run is None else await read_run_events(principal.reader, found.key, state.run)
    return UnstoredSession(forget_approvals(state), events, session_id=found.key.id)
