"""A conversation made shorter: what users said, and one item that stands for the rest."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from litestar import post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from swarmkeep.api.aside import run_aside
from swarmkeep.api.auth.context import Principal
from swarmkeep.api.auth.guards import PERMISSION
from swarmkeep.api.openai.chat.messages import split_history
from swarmkeep.api.openai.command import choose_agent
from swarmkeep.api.openai.errors import Refused, make_failure_refusal
from swarmkeep.api.openai.fields import CompactResponse, CreateResponse
from swarmkeep.api.openai.history import FEW_MESSAGES, read_items
from swarmkeep.api.openai.items.files import put_back_files
from swarmkeep.api.openai.items.input_items import SUMMARY_PREFIX
from swarmkeep.api.openai.items.session_items import SessionItems
from swarmkeep.api.openai.progress.usage import UsageSum
from swarmkeep.api.openai.run_request import read_run_request
from swarmkeep.api.openai.unstored import load_unstored_session
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.commands import add_sender, update_session
from swarmkeep.domain.decisions.drafts import apply_drafts, draft_events
from swarmkeep.domain.events import MessageAdded, SessionEvent
from swarmkeep.domain.state import State
from swarmkeep.engine.ids import make_id
from swarmkeep.engine.models.model import TurnFailed


@post(
    "/responses/compact",
    status_code=200,
    operation_id="compact_response",
    summary="Compact a conversation, to continue with the result",
    opt={PERMISSION: ("run",)},
)
async def compact_response(data: JSONBody[CompactResponse], principal: NamedDependency[Principal]) -> dict[str, Any]:
    """The result has the messages of users, and a compaction item in place of everything else: the input for a new
    response. The agent's model makes the summary; nothing is recorded, and the conversation stays as it is.
    """
    request = await read_run_request(
        principal, CreateResponse(model=data.model, input=data.input, previous_response_id=data.previous_response_id)
    )
    if request.input.approvals:
        raise Refused("an approval is given with a response", request.input.approvals[0].param)
    session = await load_unstored_session(principal, request)
    chosen = None if data.model is None else choose_agent(session.state, request.model)
    state = _add(session.state, update_session(session.state, agent=chosen))
    end, unstored = split_history(request.input.messages), principal.engine.unstored
    past = request.input.messages[:end]
    passing = [past[place] for place in await unstored.find_passing(principal.tenant, state.agent, past)]
    given = [] if data.instructions is None else [{"role": "developer", "content": data.instructions}]
    trip = await unstored.check_state(principal.tenant, state, *request.input.messages[end:], *given)
    if trip is not None:
        raise Refused(trip.message, "input", code="guardrail")
    added = [*passing, *request.input.messages[end:]]
    facts = [MessageAdded(message=add_sender(message)) for message in added]
    state = await run_aside(len(facts) > FEW_MESSAGES, _add, state, facts)
    if not state.messages:
        raise Refused("there is nothing to make shorter", "input")
    try:
        summary = await principal.engine.compactions.sum_up(state, instructions=data.instructions)
    except TurnFailed as failure:
        raise make_failure_refusal(failure.error) from failure
    except TimeoutError:
        raise Refused("the summary took too long", code="run_timeout", status=500) from None
    usage = UsageSum()
    for completion in summary.completions:
        usage.add(completion.usage)
    questions = await read_items(session.id, state, _list_questions)
    questions = await put_back_files(principal.store, principal.session_key(session.id), questions)
    return {
        "id": make_id("resp"),
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [*questions, _show_summary(summary.text)],
        "usage": usage.to_response(),
    }


def _add(state: State, facts: Sequence[SessionEvent]) -> State:
    return apply_drafts(state, draft_events(state.agent, facts, None))


def _list_questions(items: SessionItems) -> list[Json]:
    found = (listed.item for listed in items.walk())
    return [item for item in found if (item["type"], item.get("role")) == ("message", "user")]


def _show_summary(text: str) -> Json:
    return {"id": make_id("cmp"), "type": "compaction", "encrypted_content": SUMMARY_PREFIX + text}


ROUTES = [compact_response]
