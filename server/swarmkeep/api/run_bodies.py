"""The bodies that start and resume a run: the same over HTTP and over a WebSocket."""

from __future__ import annotations

import asyncio
from typing import Annotated, ClassVar
from uuid import uuid4

import msgspec
from msgspec import Meta

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.bodies import Body
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.commands import OnBusy, StartRun
from swarmkeep.domain.decisions.resuming import Approval, ToolAnswer
from swarmkeep.domain.decisions.sizes import is_heavy
from swarmkeep.domain.errors import InvalidRequest
from swarmkeep.domain.events import Decision, RunOptions
from swarmkeep.domain.inputs import check_messages, check_object
from swarmkeep.engine.idempotency import IdempotentRequest
from swarmkeep.engine.reader import RunPosition
from swarmkeep.store.ports import SessionKey


class NewRun(Body, frozen=True, kw_only=True):
    """`input` is what the user says, or a list of Chat Completions messages. `context_variables` is merged first.

    `max_turns` counts model calls. `on_busy`: what happens while another run is active: this one is refused, waits for
    its turn, or has the other one cancelled.
    """

    input: str | list[Json]
    stream: bool = False
    background: bool = False
    agent: str | None = None
    context_variables: Json | None = None
    model: str | None = None
    max_turns: Annotated[int, Meta(ge=1)] | None = None
    execute_tools: bool = True
    on_busy: OnBusy = "reject"

    async def to_command(
        self, idempotency: IdempotentRequest | None, max_messages: int, *, by: str | None = None
    ) -> StartRun:
        """What is to be done; a long input is checked in a thread, and nobody waits for that.

        Raises InvalidRequest and TooLarge.
        """
        if is_heavy(self.input, self.context_variables):
            return await asyncio.to_thread(self._check, idempotency, max_messages, by)
        return self._check(idempotency, max_messages, by)

    def _check(self, idempotency: IdempotentRequest | None, max_messages: int, by: str | None) -> StartRun:
        if self.stream and self.background:
            raise InvalidRequest(
                "use `stream` or `background`, not both; a background run has its own stream", "/background"
            )
        options = RunOptions(
            max_turns=self.max_turns, model=self.model, execute_tools=self.execute_tools, stream=self.stream
        )
        return StartRun(
            run_id=f"run_{uuid4().hex}",
            messages=check_messages(self.input, "/input", max_messages),
            options=options,
            agent=self.agent,
            context_variables=check_object(self.context_variables or {}, "/context_variables"),
            idempotency_key=None if idempotency is None else idempotency.key,
            on_busy=self.on_busy,
            by=msgspec.UNSET if by is None else by,
        )


class ToolResult(Body, frozen=True, kw_only=True):
    """The outcome of a call that was carried out elsewhere, in words for the model."""

    tool_call_id: str
    content: str
    is_error: bool = False


class ApprovalDecision(Body, frozen=True, kw_only=True):
    tool_call_id: str
    decision: Decision
    reason: str | None = None

    def to_approval(self, principal: Principal) -> Approval:
        return Approval(
            tool_call_id=self.tool_call_id,
            decision=self.decision,
            reason=self.reason,
            by=principal.name,
            may_be_own=not principal.service.separate_approvers,
        )


class Resume(Body, frozen=True, kw_only=True):
    """What the run waits for. An interrupted run is tried again by a resume with neither."""

    may_be_absent: ClassVar[bool] = True
    tool_results: tuple[ToolResult, ...] = ()
    approvals: tuple[ApprovalDecision, ...] = ()
    stream: bool = False

    async def submit(
        self, principal: Principal, key: SessionKey, run_id: str, idempotency: IdempotentRequest | None
    ) -> RunPosition:
        """Give the run what it waits for; returns once that is durable. Raises Forbidden."""
        if self.approvals:
            principal.require("approve")
        if self.tool_results or not self.approvals:
            principal.require("run")
        return await principal.engine.runs.resume(
            key,
            run_id,
            tool_results=[msgspec.convert(result, ToolAnswer, from_attributes=True) for result in self.tool_results],
            approvals=[approval.to_approval(principal) for approval in self.approvals],
            idempotency=idempotency,
        )
