"""What a request gives a waiting run: results, decisions, and more messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.openai.errors import Refused
from swarmkeep.api.openai.history import find_asked_call
from swarmkeep.api.openai.items.below import list_requests_below
from swarmkeep.api.openai.items.input_items import ApprovalAnswer
from swarmkeep.api.openai.run_request import RunRequest
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.resuming import Approval, ToolAnswer
from swarmkeep.domain.events import AwaitedApproval
from swarmkeep.domain.state import Run
from swarmkeep.engine.teams.approving import ApprovalBelow

TAKEN_OVER = "a person has taken this conversation over from the agent"


class Answers(msgspec.Struct, frozen=True):
    """What a waiting run is given: results and decisions for all that it waits for, and more messages; or the decisions
    that it waits for in sessions `below` it."""

    results: list[ToolAnswer]
    approvals: list[Approval]
    messages: list[Json]
    below: list[ApprovalBelow] = []


def read_answers(principal: Principal, session_id: str, run: Run, request: RunRequest) -> Answers:
    """What a waiting run is given by a request. Raises Refused for a call that is left without an answer."""
    below = dict(list_requests_below(session_id, run.last_wait, run.pending))
    if below and request.input.approvals:
        return _read_below(principal, session_id, run, below, request)
    outside = [call.tool_call_id for call in run.pending if call.reason == "tool_results"]
    results, messages = _split_results(request.input.messages, outside)
    approvals = [_read_approval(principal, session_id, run, answer) for answer in request.input.approvals]
    given = {result.tool_call_id for result in results} | {approval.tool_call_id for approval in approvals}
    for call in run.pending:
        if call.reason == "person":
            raise Refused(f"{TAKEN_OVER}, and no answer is there yet", "input")
        if call.reason == "session":
            where = f"session {call.session_id or ''}, in which another agent is asked"
            how = "; answer its mcp_approval_request" if below else ""
            raise Refused(f"the call {call.tool_call_id} ({call.name}) waits for an approval in {where}{how}", "input")
        if call.tool_call_id not in given:
            what = "approval response" if call.reason == "approval" else "tool output"
            raise Refused(f"no {what} found for function call {call.tool_call_id} ({call.name})", "input")
    return Answers(results, approvals, messages)


def _read_below(
    principal: Principal, session_id: str, run: Run, below: Mapping[str, AwaitedApproval], request: RunRequest
) -> Answers:
    """The decisions for all that is waited for in other sessions, and for calls of this one beside them. Raises
    Refused."""
    if request.input.messages:
        message = "send decisions on the calls of an asked agent alone: that agent continues first"
        raise Refused(message, "input")
    decisions: dict[str, ApprovalBelow] = {}
    own: list[Approval] = []
    for answer in request.input.approvals:
        call = below.get(answer.request_id)
        if call is None:
            own.append(_read_approval(principal, session_id, run, answer))
            continue
        if answer.request_id in decisions:
            raise Refused(f"there is no open request {answer.request_id!r}", answer.param)
        approval = _make_approval(principal, call.tool_call_id, answer)
        decisions[answer.request_id] = ApprovalBelow(call.session_id, call.run_id, approval)
    for item_id, call in below.items():
        if item_id not in decisions:
            raise Refused(f"no approval response found for {item_id} ({call.name})", "input")
    given = {approval.tool_call_id for approval in own}
    for pending in run.pending:
        if pending.reason == "approval" and pending.tool_call_id not in given:
            raise Refused(
                f"no approval response found for function call {pending.tool_call_id} ({pending.name})", "input"
            )
    return Answers([], own, [], list(decisions.values()))


def _split_results(messages: Sequence[Json], open_ids: list[str]) -> tuple[list[ToolAnswer], list[Json]]:
    """The results of open calls, and what else is said. Raises Refused for a result that answers none."""
    results: list[ToolAnswer] = []
    rest: list[Json] = []
    for place, message in enumerate(messages):
        call_id = message.get("tool_call_id")
        if message["role"] != "tool":
            rest.append(message)
        elif call_id in open_ids and call_id not in {result.tool_call_id for result in results}:
            results.append(ToolAnswer(tool_call_id=call_id, content=message["content"]))
        else:
            raise Refused(f"there is no open function call {call_id!r} for this output", f"input[{place}]")
    return results, rest


def _read_approval(principal: Principal, session_id: str, run: Run, answer: ApprovalAnswer) -> Approval:
    call_id = find_asked_call(session_id, run, answer.request_id)
    if call_id is None:
        raise Refused(f"there is no open request {answer.request_id!r}", answer.param)
    return _make_approval(principal, call_id, answer)


def _make_approval(principal: Principal, call_id: str, answer: ApprovalAnswer) -> Approval:
    return Approval(
        tool_call_id=call_id,
        decision="approve" if answer.approve else "deny",
        reason=answer.reason,
        by=principal.name,
        may_be_own=not principal.service.separate_approvers,
        arguments_digest=answer.arguments_digest,
    )
