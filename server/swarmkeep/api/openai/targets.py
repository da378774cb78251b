"""Which session a response is to be in: one that is there, a fork of it, or a new one."""

from __future__ import annotations

import msgspec

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.openai.errors import Refused, make_not_found
from swarmkeep.api.openai.history import find_part
from swarmkeep.api.openai.items.ids import ResponseId
from swarmkeep.api.openai.run_request import RunRequest, make_previous_not_found
from swarmkeep.domain.errors import SessionNotFound
from swarmkeep.domain.state import Run, State, refuse_damaged
from swarmkeep.engine.idempotency import IdempotentRequest, find_record
from swarmkeep.engine.ids import derive_id, make_id
from swarmkeep.engine.session_plans import SessionPlan
from swarmkeep.store.ports import IdempotencyRecord, SessionKey


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A session, and its state. `fork_at`: the seq up to which a fork of it is meant.

    `repeated`: what an earlier request with the same idempotency key did there. `plan`: of a session that is not there
    yet, and is made with its first run.
    """

    key: SessionKey
    state: State
    fork_at: int | None = None
    repeated: IdempotencyRecord | None = None
    plan: SessionPlan | None = None

    @property
    def waiting(self) -> Run | None:
        """The run that waits there for somebody."""
        run = self.state.run
        return run if run is not None and run.status == "waiting" else None


async def find_target(
    principal: Principal, request: RunRequest, idempotency: IdempotentRequest | None, *, fresh: bool = False
) -> Target:
    """The session that a response is to be in; planned, new or as a fork, where it is not there yet. Raises Refused.

    One that is there, and where nobody is waited for, may be as this process remembers it: the commit looks again.
    """
    found = await find_existing(principal, request, idempotency, fresh=fresh)
    if found is not None and found.waiting is not None:
        found = await find_existing(principal, request, idempotency)
    if found is not None and found.fork_at is None:
        return found
    principal.require("run")
    key = SessionKey(principal.tenant, make_session_id(principal.tenant, idempotency))
    # One that is there was made by an earlier request with this key; whether that was the same one, its run says.
    if idempotency is not None and (state := await find_state(principal, key)) is not None:
        return make_target(key, state, await find_record(principal.store, key, idempotency))
    sessions = principal.engine.sessions
    made = sessions.plan(agent=request.model) if found is None else sessions.plan_fork(found.key, at=found.fork_at)
    plan = await made
    return Target(key=key, state=plan.state, plan=plan)


def make_target(key: SessionKey, state: State, record: IdempotencyRecord | None) -> Target:
    """A session that is there. Raises HistoryDamaged, unless what is asked for was done before."""
    if record is None:
        refuse_damaged(key.id, state)
    return Target(key=key, state=state, repeated=record)


async def find_state(principal: Principal, key: SessionKey) -> State | None:
    try:
        return await principal.reader.state(key)
    except SessionNotFound:
        return None


def make_session_id(tenant: str, idempotency: IdempotentRequest | None = None) -> str:
    """The id of a session that is made here: the same each time that a request with a key is sent."""
    if idempotency is None:
        return make_id("conv")
    return derive_id("conv", f"{tenant}/{idempotency.key}")


async def find_existing(
    principal: Principal, request: RunRequest, idempotency: IdempotentRequest | None = None, *, fresh: bool = True
) -> Target | None:
    """The session that a request names; None if it names none. Raises Refused."""
    if request.previous is not None:
        return await _find_previous(principal, request.previous, idempotency, fresh=fresh)
    if request.conversation is None:
        return None
    key = principal.session_key(request.conversation)
    try:
        state = await principal.reader.state(key, fresh=fresh)
    except SessionNotFound:
        raise make_not_found("conversation", request.conversation, "conversation") from None
    return make_target(key, state, await find_record(principal.store, key, idempotency))


async def _find_previous(
    principal: Principal, previous: ResponseId, idempotency: IdempotentRequest | None, *, fresh: bool
) -> Target:
    """The session of an earlier response; to be forked as of its end, unless that is the session's last."""
    key = principal.session_key(previous.session_id)
    try:
        state = await principal.reader.state(key, fresh=fresh)
    except SessionNotFound:
        raise make_previous_not_found(str(previous)) from None
    record = await find_record(principal.store, key, idempotency)
    if record is not None:
        return Target(key=key, state=state, repeated=record)
    refuse_damaged(key.id, state)
    part = await find_part(principal, key, state, previous)
    if not fresh and (part is None or not part.is_over):
        # Another server may have done more.
        return await _find_previous(principal, previous, idempotency, fresh=True)
    if part is None:
        raise make_previous_not_found(str(previous))
    if not part.is_over:
        message = "this response is still in progress; wait for it, or cancel it"
        raise Refused(message, "previous_response_id", code="response_in_progress", status=409)
    return Target(key=key, state=state, fork_at=None if part.is_last else part.last_seq)
