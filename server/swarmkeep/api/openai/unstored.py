"""Responses with `store: false`: run and answered, and then forgotten."""

from __future__ import annotations

from bisect import bisect_left

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.openai.answers import read_answers
from swarmkeep.api.openai.command import make_command
from swarmkeep.api.openai.errors import Refused
from swarmkeep.api.openai.history import count_parts, find_last_reply, read_run_events, show_last_turn
from swarmkeep.api.openai.items.error_params import map_error_params
from swarmkeep.api.openai.items.ids import ResponseId
from swarmkeep.api.openai.progress.builder import ResponseBuilder
from swarmkeep.api.openai.run_request import RunRequest
from swarmkeep.api.openai.submit import FollowedResponse
from swarmkeep.api.openai.targets import find_existing
from swarmkeep.domain.decisions.commands import refuse_if_busy
from swarmkeep.domain.folding.calls import forget_approvals
from swarmkeep.domain.state import Run
from swarmkeep.engine.swarm.unstored import UnstoredSession


async def begin_unstored(
    principal: Principal, request: RunRequest, earlier: UnstoredSession | None = None
) -> FollowedResponse:
    """Begin a response that is kept nowhere. It goes on from an `earlier` one, or from what is stored.

    Raises Refused, SessionBusy and what runs raise.
    """
    with map_error_params(request.input):
        return await _begin(principal, request, earlier)


async def _begin(principal: Principal, request: RunRequest, earlier: UnstoredSession | None) -> FollowedResponse:
    if earlier is None and request.input.approvals:
        message = "a decision on a stored call is recorded, so `store` must not be false"
        raise Refused(message, "store")
    session = await load_unstored_session(principal, request) if earlier is None else earlier
    run = session.state.run
    if run is None or run.status != "waiting":
        # There is no queue to wait in: what the active run does is another's to record.
        refuse_if_busy(session.state)
        command = make_command(principal, session.state, request)
        builder = ResponseBuilder(ResponseId(session.id, command.run_id), stored=False)
        items = await principal.engine.unstored.start(principal.tenant, session, command)
        return FollowedResponse(None, builder, items, session)
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
    return FollowedResponse(None, builder, items, session)


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
        state = await principal.reader.sound_state(found.key, at=found.fork_at)
    events = [] if state.run is None else await read_run_events(principal.reader, found.key, state.run)
    return UnstoredSession(forget_approvals(state), events, session_id=found.key.id)
