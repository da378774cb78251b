"""The command that starts the run of a request."""

from __future__ import annotations

from msgspec import UNSET

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.openai.errors import Refused
from swarmkeep.api.openai.run_request import RunRequest
from swarmkeep.domain.decisions.commands import StartRun
from swarmkeep.domain.state import State
from swarmkeep.engine.idempotency import IdempotentRequest
from swarmkeep.engine.ids import make_id


def make_command(
    principal: Principal, state: State, request: RunRequest, idempotency: IdempotentRequest | None = None
) -> StartRun:
    """The command to start the run, or to queue it while another one is active. Raises Refused."""
    if request.input.approvals:
        raise Refused("there is no open request that this could answer", request.input.approvals[0].param)
    return StartRun(
        run_id=make_id("run"),
        messages=tuple(request.input.messages),
        options=request.options,
        agent=choose_agent(state, request.model),
        idempotency_key=None if idempotency is None else idempotency.key,
        on_busy="queue",
        behind_waiting=False,
        by=UNSET if principal.name is None else principal.name,
    )


def choose_agent(state: State, model: str) -> str | None:
    """The agent that the run begins with; None is the session's own, while requests name the same model."""
    last = state.run or (state.finished[-1] if state.finished else None)
    before = None if last is None or last.options.request is UNSET else last.options.request.get("model")
    return None if model in (before, state.agent) else model
