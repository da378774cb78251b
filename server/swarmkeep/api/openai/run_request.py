"""The run that a request asks for, whichever of OpenAI's shapes it came in."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from swarmkeep.api.aside import run_aside
from swarmkeep.api.auth.context import Principal
from swarmkeep.api.openai.errors import ModelNotFound, Refused
from swarmkeep.api.openai.fields import Conversation, CreateResponse
from swarmkeep.api.openai.history import resolve_references
from swarmkeep.api.openai.items.error_params import map_error_params
from swarmkeep.api.openai.items.ids import ResponseId, parse_response_id
from swarmkeep.api.openai.items.input_items import Input, read_input
from swarmkeep.api.openai.parameters import (
    collect_echo,
    read_format,
    read_settings,
    read_tool_choice,
    read_tools,
)
from swarmkeep.domain.checking.caller_tools import check_tools
from swarmkeep.domain.checking.inputs import check_messages, check_object
from swarmkeep.domain.checking.model_requests import check_format, check_profile, check_settings
from swarmkeep.domain.decisions.sizes import is_heavy
from swarmkeep.domain.errors import AgentNotFound
from swarmkeep.domain.run_options import RunOptions
from swarmkeep.engine.agents.caller_tools import refuse_wrong_functions


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`model` is the agent that begins, from a `conversation`, a `previous` response, or anew."""

    model: str
    input: Input
    options: RunOptions
    conversation: str | None = None
    previous: ResponseId | None = None


def require_permissions(principal: Principal, given: Input) -> None:
    """Approvals need the permission `approve`, all else `run`. Raises Forbidden."""
    if given.approvals:
        principal.require("approve")
    if given.messages or not given.approvals:
        principal.require("run")


async def read_run_request(principal: Principal, body: CreateResponse) -> RunRequest:
    """Read a request, a long one in a thread. Raises Refused, Forbidden, InvalidRequest, TooLarge."""
    body.check_fields()
    if body.conversation is not None and body.previous_response_id is not None:
        raise Refused("use `conversation` or `previous_response_id`, not both", "previous_response_id")
    items = body.input
    if isinstance(items, list):
        items = await resolve_references(principal, items)
    try:
        return await run_aside(is_heavy(items, body.tools), _read_run_request, principal, body, items)
    except RecursionError:
        raise Refused("the request is nested too deeply") from None


def _read_run_request(principal: Principal, body: CreateResponse, items: str | list[Any] | None) -> RunRequest:
    model = find_agent(principal, body.model)
    conversation = body.conversation.id if isinstance(body.conversation, Conversation) else body.conversation
    tools, answer_format = read_tools(body.tools), read_format(body.text)
    options = RunOptions(
        # Whoever fetches the stream of a background response later sees it speak.
        stream=bool(body.stream or body.background),
        tools=check_tools(tools) if tools else UNSET,
        tool_choice=read_tool_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        model_settings=check_settings(read_settings(body), "") or UNSET,
        model_profile=check_profile(body.model_profile) if body.model_profile else UNSET,
        instructions=body.instructions or UNSET,
        response_format=UNSET if answer_format is UNSET else check_format(answer_format, "/text/format"),
        request=check_object(collect_echo(body, model=model, conversation=conversation and {"id": conversation}), ""),
    )
    given = read_checked_input(principal, items)
    require_permissions(principal, given)
    refuse_wrong_functions(options, principal.engine.registry)
    return RunRequest(
        model=model,
        input=given,
        options=options,
        conversation=conversation,
        previous=_read_previous(body.previous_response_id),
    )


def read_checked_input(principal: Principal, items: str | list[Any] | None, param: str = "input") -> Input:
    """An input as messages that may be kept. Raises Refused, InvalidRequest, TooLarge."""
    given = read_input(items, param)
    with map_error_params(given):
        given.messages = list(check_messages(given.messages, "/messages", principal.engine.limits.max_messages))
    return given


def find_agent(principal: Principal, model: str | None) -> str:
    """The name of the agent that a model stands for. Raises ModelNotFound."""
    registry = principal.engine.registry
    if model is None:
        return registry.default
    try:
        return registry.get(model).name
    except AgentNotFound:
        raise ModelNotFound(model, registry.names) from None


def _read_previous(name: str | None) -> ResponseId | None:
    if name is None:
        return None
    previous = parse_response_id(name)
    if previous is None:
        raise make_previous_not_found(name)
    return previous


def make_previous_not_found(name: str) -> Refused:
    message = f"there is no response {name[:300]!r} to continue from"
    return Refused(message, "previous_response_id", code="previous_response_not_found")
