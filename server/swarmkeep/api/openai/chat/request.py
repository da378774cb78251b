"""From a request for a chat completion to what is asked for: options, messages, and the session that it names."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from litestar.datastructures import Headers
from msgspec import UNSET

from swarmkeep.api.aside import run_aside
from swarmkeep.api.auth.context import Principal
from swarmkeep.api.openai.chat.fields import (
    CreateChatCompletion,
    collect_echo,
    read_format,
    read_settings,
    read_tool_choice,
)
from swarmkeep.api.openai.chat.messages import read_messages
from swarmkeep.api.openai.errors import Refused, to_param
from swarmkeep.api.openai.parameters import read_tools
from swarmkeep.api.openai.run_request import find_agent
from swarmkeep.domain.checking.caller_tools import check_tools
from swarmkeep.domain.checking.inputs import check_id, check_messages
from swarmkeep.domain.checking.model_requests import check_format, check_profile, check_settings
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.sizes import is_heavy
from swarmkeep.domain.run_options import RunOptions
from swarmkeep.engine.agents.caller_tools import refuse_wrong_functions

SESSION_HEADER = "X-Session-Id"
# Those of programs that name their chats. A setting adds others.
_SESSION_HEADERS = (SESSION_HEADER, "X-OpenWebUI-Chat-Id")


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`model` is the agent that begins, `messages` all that were sent; `session_id` is None where none is named."""

    model: str
    messages: list[Json]
    options: RunOptions
    session_id: str | None
    include_usage: bool


async def read_chat_request(principal: Principal, body: CreateChatCompletion, headers: Headers) -> ChatRequest:
    """What a request means; a long one is read in a thread. Raises Refused, InvalidRequest, TooLarge."""
    session_id = read_session_id(headers, principal.service.session_headers, body.metadata or {})
    is_long = is_heavy(body.messages, body.tools, body.response_format)
    return await run_aside(is_long, _read_request, principal, body, session_id)


def _read_request(principal: Principal, body: CreateChatCompletion, session_id: str | None) -> ChatRequest:
    body.check_fields()
    model = find_agent(principal, body.model)
    tools, answer_format = read_tools(body.tools), read_format(body.response_format)
    options = RunOptions(
        stream=bool(body.stream),
        tools=check_tools(tools) if tools else UNSET,
        tool_choice=read_tool_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        model_settings=check_settings(read_settings(body), "") or UNSET,
        model_profile=check_profile(body.model_profile) if body.model_profile else UNSET,
        response_format=UNSET if answer_format is UNSET else check_format(answer_format),
        request=collect_echo(body, model),
    )
    # Before a session is made for it.
    refuse_wrong_functions(options, principal.engine.registry)
    messages = check_messages(read_messages(body.messages), "/messages", principal.engine.limits.max_messages)
    return ChatRequest(
        model=model,
        messages=list(messages),
        options=options,
        session_id=session_id,
        include_usage=body.include_usage,
    )


def read_session_id(headers: Headers, more_headers: tuple[str, ...], metadata: Mapping[str, str]) -> str | None:
    """The session that a request names, by a header or in its metadata.

    Raises InvalidRequest for an id that no session may have, and Refused for two of them.
    """
    named = [(name, f"/header/{name}") for name in dict.fromkeys((*_SESSION_HEADERS, *more_headers))]
    # Some programs send an empty one for a chat that has no id yet.
    found = [(value, pointer) for name, pointer in named for value in headers.getall(name, []) if value]
    if "session_id" in metadata:
        found.append((metadata["session_id"], "/metadata/session_id"))
    for value, pointer in found:
        check_id(value, pointer)
        if value != found[0][0]:
            raise Refused("the request names two sessions", to_param(pointer))
    return found[0][0] if found else None
