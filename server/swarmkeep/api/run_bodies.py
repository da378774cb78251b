"""The bodies that start and resume a run: the same over HTTP and over a WebSocket."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from swarmkeep.api.aside import run_aside
from swarmkeep.api.auth.context import Principal
from swarmkeep.api.bodies import Body
from swarmkeep.domain.checking.caller_tools import check_tool_choice, check_tools
from swarmkeep.domain.checking.inputs import check_messages, check_object
from swarmkeep.domain.checking.model_requests import check_format, check_profile, check_settings
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.commands import OnBusy, StartRun
from swarmkeep.domain.decisions.resuming import Approval, ToolAnswer
from swarmkeep.domain.decisions.sizes import is_heavy
from swarmkeep.domain.errors import InvalidRequest
from swarmkeep.domain.events import Decision
from swarmkeep.domain.run_options import RunOptions
from swarmkeep.engine.idempotency import IdempotentRequest
from swarmkeep.engine.ids import make_id
from swarmkeep.engine.reader import RunPosition
from swarmkeep.store.ports import SessionKey


class NewRun(Body, frozen=True, kw_only=True):
    """`input` is what the user says, or a list of Chat Completions messages. `context_variables` is merged first.

    `max_turns` counts model calls. `tools` are functions of the caller, as in Chat Completions: the run waits for the
    results of their calls. `parallel_tool_calls` overrides the agents' own; with null, the model is sent none.
    `model_settings` override theirs, name by name; null removes one; so does `model_profile` what is known of models.
    `instructions` follow the agents' own. `response_format`, as in Chat Completions, is sent instead of the agents'
    own. `on_busy`: what happens while another run is active: this one is refused, waits for its turn, or has the other
    one cancelled.
    """

    input: str | list[Json]
    stream: bool = False
    background: bool = False
    agent: str | None = None
    context_variables: Json | None = None
    model: str | None = None
    max_turns: Annotated[int, Meta(ge=1)] | None = None
    execute_tools: bool = True
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | msgspec.UnsetType | None = msgspec.UNSET
    model_settings: Json | None = None
    model_profile: Json | None = None
    instructions: str | None = None
    response_format: Json | None = None
    on_busy: OnBusy = "reject"

    async def to_command(
        self, idempotency: IdempotentRequest | None, max_messages: int, *, by: str | None = None
    ) -> StartRun:
        """What is to be done; a long input is checked in a thread, and nobody waits for that.

        Raises InvalidRequest and TooLarge.
        """
        is_long = is_heavy(self.input, self.context_variables, self.tools, self.model_settings, self.response_format)
        return await run_aside(is_long, self._check, idempotency, max_messages, by)

    def _check(self, idempotency: IdempotentRequest | None, max_messages: int, by: str | None) -> StartRun:
        if self.stream and self.background:
            raise InvalidRequest(
                "use `stream` or `background`, not both; a background run has its own stream", "/background"
            )
        options = RunOptions(
            max_turns=self.max_turns,
            model=self.model,
            execute_tools=self.execute_tools,
            # Whoever joins a background run, at any time, sees it speak.
            stream=self.stream or self.background,
            tools=check_tools(self.tools) if self.tools else msgspec.UNSET,
            tool_choice=msgspec.UNSET if self.tool_choice is None else check_tool_choice(self.tool_choice),
            parallel_tool_calls=self.parallel_tool_calls,
            model_settings=msgspec.UNSET if not self.model_settings else check_settings(self.model_settings),
            model_profile=msgspec.UNSET if not self.model_profile else check_profile(self.model_profile),
            instructions=self.instructions or msgspec.UNSET,
            response_format=check_format(self.response_format) if self.response_format else msgspec.UNSET,
        )
        return StartRun(
            run_id=make_id("run"),
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
    """With `arguments`, an approved call is carried out with these instead of those that the model gave.

    `arguments_digest` is the SHA-256 (hex) of the arguments' text that whoever decides was shown, as pending calls have
    it: where it is another one, nothing is decided.
    """

    tool_call_id: str
    decision: Decision
    reason: str | None = None
    arguments: Json | None = None
    arguments_digest: Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{64}$")] | None = None

    def to_approval(self, principal: Principal) -> Approval:
        return Approval(
            tool_call_id=self.tool_call_id,
            decision=self.decision,
            reason=self.reason,
            by=principal.name,
            may_be_own=not principal.service.separate_approvers,
            arguments=self.arguments,
            arguments_digest=self.arguments_digest and self.arguments_digest.lower(),
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
