"""Which session a chat completion is in, and what of its messages is new there."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from swarmkeep.api.aside import run_aside
from swarmkeep.api.auth.context import Principal
from swarmkeep.api.openai.answers import TAKEN_OVER
from swarmkeep.api.openai.chat.messages import NewMessages, find_new, split_history
from swarmkeep.api.openai.chat.request import ChatRequest
from swarmkeep.api.openai.errors import Refused
from swarmkeep.api.openai.history import FEW_MESSAGES
from swarmkeep.api.openai.items.input_items import Input
from swarmkeep.api.openai.run_request import RunRequest
from swarmkeep.api.openai.targets import Target, find_state, make_session_id, make_target
from swarmkeep.domain.checking.inputs import check_new_id, refuse_stray_results
from swarmkeep.domain.codec import Json
from swarmkeep.domain.events import AwaitedApproval, PendingCall
from swarmkeep.domain.state import Run, State, refuse_damaged
from swarmkeep.engine.idempotency import IdempotentRequest, find_record
from swarmkeep.store.ports import SessionKey


class ChatTarget(msgspec.Struct, frozen=True):
    """A session, and the run that is to begin or go on there."""

    target: Target
    request: RunRequest


async def find_chat_target(
    principal: Principal, chat: ChatRequest, idempotency: IdempotentRequest | None
) -> ChatTarget:
    """The session that a request names, or one of its own; planned where it is not there yet. Raises Refused, TooLarge
    and what planning one raises.
    """
    key = SessionKey(principal.tenant, chat.session_id or make_session_id(principal.tenant, idempotency))
    record = await find_record(principal.store, key, idempotency)
    state = await find_state(principal, key)
    target = await _plan_target(principal, chat, key) if state is None else make_target(key, state, record)
    if target.waiting is not None and record is None:
        _refuse_open_approval(key, target.waiting)
    return ChatTarget(target, make_run_request(chat, await _find_new(chat, target.state)))


async def _plan_target(principal: Principal, chat: ChatRequest, key: SessionKey) -> Target:
    check_new_id(key.id)
    # Before a session is planned for what was sent.
    await run_aside(len(chat.messages) > FEW_MESSAGES, refuse_stray_results, chat.messages, "/messages")
    history = chat.messages[: split_history(chat.messages)]
    history = [history[place] for place in await _find_passing(principal, chat, history)]
    plan = await principal.engine.sessions.plan(agent=chat.model, messages=history)
    return Target(key=key, state=plan.state, plan=plan)


async def make_unstored_request(principal: Principal, chat: ChatRequest) -> RunRequest:
    """The run of a chat completion that is not stored: a session that it names is only read."""
    state = None
    if chat.session_id is not None:
        state = await find_state(principal, SessionKey(principal.tenant, chat.session_id))
    if state is None:
        end = split_history(chat.messages)
        places = await _find_passing(principal, chat, chat.messages[:end])
        places += range(end, len(chat.messages))
        return make_run_request(chat, NewMessages([chat.messages[place] for place in places], places))
    refuse_damaged(chat.session_id or "", state)
    return make_run_request(chat, await _find_new(chat, state), conversation=chat.session_id)


async def _find_passing(principal: Principal, chat: ChatRequest, history: list[Json]) -> list[int]:
    """What of the messages up to the last answer the agent's guardrails let through: a client that sends all of them
    each time sends what was refused, too."""
    return await principal.engine.unstored.find_passing(principal.tenant, chat.model, history) if history else []


async def _find_new(chat: ChatRequest, state: State) -> NewMessages:
    is_long = len(chat.messages) + len(state.messages) > FEW_MESSAGES
    return await run_aside(is_long, find_new, chat.messages, state)


def make_run_request(chat: ChatRequest, new: NewMessages, conversation: str | None = None) -> RunRequest:
    given = Input(new.messages, places=new.places, param="messages")
    return RunRequest(model=chat.model, input=given, options=chat.options, conversation=conversation)


def _refuse_open_approval(key: SessionKey, run: Run) -> None:
    """Chat completions have no word for a decision: it is made elsewhere, and then the run goes on."""
    below = [_describe_wait_below(call) for call in run.pending if call.reason == "session"]
    if below:
        own = [_describe_own_wait(key, run, call) for call in run.pending if call.reason == "approval"]
        raise Refused("; ".join([*below, *own]), "messages", code="approval_pending")
    for call in run.pending:
        if call.reason == "person":
            raise Refused(f"{TAKEN_OVER}, and no answer is there yet", "messages", code="approval_pending")
        if call.reason == "approval":
            raise Refused(_describe_own_wait(key, run, call), "messages", code="approval_pending")


def _describe_own_wait(key: SessionKey, run: Run, call: PendingCall) -> str:
    return f"the call {call.tool_call_id} ({call.name}) waits for an approval: {describe_decision(key.id, run.id)}"


def _describe_wait_below(call: PendingCall) -> str:
    where = f"session {call.session_id or ''}, in which another agent is asked"
    what = f"the call {call.tool_call_id} ({call.name}) waits for an approval in {where}"
    approvals = () if call.approvals is UNSET else call.approvals
    how = [f"{each.name} in {each.session_id}: {describe_decision(each.session_id, each.run_id)}" for each in approvals]
    return "; ".join([what, *how])


def describe_below(approval: AwaitedApproval) -> str:
    """Where a call waits that is another agent's."""
    return f"it is {approval.agent}'s, who is asked in session {approval.session_id}"


def describe_decision(session_id: str, run_id: str) -> str:
    """Where an approval is given."""
    return f"decide on the server's page, or by POST /v1/sessions/{session_id}/runs/{run_id}/resume"
