"""Reads what clients of OpenAI's Agents API ask for: how a session's agent is to be, and what a session is given."""

from __future__ import annotations

from typing import Any, Literal, cast

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.agent.output import is_strict
from swarmkeep.decide.checks import check_format, check_messages, check_object, check_settings, check_tools
from swarmkeep.decide.commands import Approval, ToolAnswer
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import AgentNotFound, InvalidRequest, quote
from swarmkeep.events.records import RunOptions
from swarmkeep.events.state import Run
from swarmkeep.http.auth import Principal
from swarmkeep.http.bodies import Body
from swarmkeep.openai.fields import (
    Metadata,
    ReasoningOptions,
    StreamOptions,
    TextOptions,
    read_effort,
    read_tools,
    refuse_unknown,
)
from swarmkeep.openai.history import find_asked_call
from swarmkeep.openai.items import list_requests_below, read_content, read_text_output
from swarmkeep.openai.problems import Refused, to_param
from swarmkeep.runs.approvals import refuse_wrong_functions
from swarmkeep.runs.automations import CONFIG
from swarmkeep.runs.teams import ApprovalBelow

# Bodies. A field of the type None is refused unless it is null; one that is not named here is unknown.


class AgentConfig(Body, frozen=True, kw_only=True):
    """What the agent of a session is to be like. `model` names an agent of this server."""

    model: str | None = None
    instructions: str | None = None
    tools: list[Json] | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    service_tier: Literal["auto", "default"] | None = None

    multi_agent: Json | None = None
    compaction: None = None
    experimental: None = None


class NewSession(Body, frozen=True, kw_only=True):
    """How a session is to be, and what it begins with."""

    environment: Json
    agent: AgentConfig | None = None
    agent_id: str | None = None
    input: str | list[Any] | None = None
    metadata: Metadata | None = None
    vault_ids: list[str] | None = None


class CreateAgentSession(NewSession, frozen=True, kw_only=True):
    """`POST agents/sessions`."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    review: Literal["none"] | None = None

    prompt_cache_options: None = None


class UpdateAgentSession(Body, frozen=True, kw_only=True):
    """The metadata takes the place of what there was. What its agent is to be like a session says when it is made."""

    metadata: Metadata | UnsetType | None = UNSET
    review: Literal["none"] | None = None

    agent: None = None
    prompt_cache_options: None = None


class SubmitEvents(Body, frozen=True, kw_only=True):
    """`POST agents/sessions/{id}/events`."""

    events: list[Json]


# How a session's agent is to be.

MADE_LABEL = "openai_agent_id"
"""The key in the metadata of a session under which lists find those of an agent that a client has made."""


def find_served(principal: Principal, name: str) -> str | None:
    """The name of an agent of this server, which may be asked for by an earlier one; None if there is none."""
    registry = principal.engine.registry
    return registry.get(name).name if name in registry else None


def choose_agent(principal: Principal, data: NewSession) -> str:
    """The agent that a session begins with. Raises Refused."""
    named = data.agent_id or (None if data.agent is None else data.agent.model)
    param = "agent_id" if data.agent_id else "agent.model"
    if named is None:
        raise Refused("name an agent in `agent_id` or `agent.model`", "agent_id")
    other = None if data.agent is None else data.agent.model
    registry = principal.engine.registry
    try:
        name = registry.get(named).name
        if other is None or registry.get(other).name == name:
            return name
    except AgentNotFound:
        known = ", ".join(registry.names)
        raise Refused(
            f"there is no agent {quote(named)}; known: {known}", param, code="not_found", status=404
        ) from None
    raise Refused("a model is an agent here: name the same one in `agent_id` and `agent.model`", "agent.model")


def refuse_unserved(data: NewSession) -> None:
    """Raise Refused, by name, for what this server does not have."""
    kind = data.environment.get("type")
    if kind != "none":
        message = (
            f"environments of type {quote(kind)} are not served; use `none`: functions run on this server or yours"
        )
        raise Refused(message, "environment.type")
    refuse_unknown(data.environment, ("type",), "environment")
    if data.vault_ids:
        raise Refused("vaults are not served; an agent's functions have their own credentials", "vault_ids")
    refuse_label(data.metadata)


def refuse_label(metadata: Metadata | UnsetType | None) -> None:
    """Raise Refused for metadata that would tell lists of another agent."""
    if metadata and MADE_LABEL in metadata:
        raise Refused("this key is the server's", f"metadata.{MADE_LABEL}")


def _name_field(place: str, field: str) -> str:
    return f"{place}.{field}" if place else field


def _refuse_multi_agent(asked: Json | None, place: str) -> None:
    if asked is None:
        return
    if asked.get("enabled"):
        param = _name_field(place, "multi_agent.enabled")
        raise Refused("which agents an agent may ask is said in its Python file", param)
    refuse_unknown(asked, ("enabled",), _name_field(place, "multi_agent"))


def _read_format(text: TextOptions | None, param: str) -> Json | UnsetType:
    asked = None if text is None else text.format
    match asked:
        case None:
            return UNSET
        case {"type": "text"}:
            refuse_unknown(asked, ("type",), param)
            return UNSET
        case {"type": "json_schema", "schema": dict() as schema}:
            refuse_unknown(asked, ("type", "schema"), param)
            described = {"name": "answer", "schema": schema, "strict": is_strict(schema)}
            return {"type": "json_schema", "json_schema": described}
        case _:
            raise Refused("`format` must be text, or json_schema with a `schema`", param)


def _read_tools(tools: list[Json] | None, place: str) -> list[Json]:
    for number, tool in enumerate(tools or ()):
        if tool.get("async"):
            raise Refused(
                "an agent waits for the results of its functions", _name_field(place, f"tools[{number}].async")
            )
    bare = [
        {name: value for name, value in tool.items() if name not in ("async", "defer_loading")} for tool in tools or ()
    ]
    deferred = next((number for number, tool in enumerate(tools or ()) if tool.get("defer_loading")), None)
    if deferred is not None:
        param = _name_field(place, f"tools[{deferred}].defer_loading")
        raise Refused("functions are not searched for: all are sent", param)
    try:
        return read_tools(bare)
    except Refused as error:
        raise Refused(str(error), _name_field(place, error.param or "tools")) from None


def read_options(
    principal: Principal, config: AgentConfig | None, name: str, made: Json | None = None, place: str = "agent"
) -> RunOptions:
    """The options of a session's first run, and of those after it. `made` says which agent of a client they are of,
    `place` where in the body the config stands.

    Raises Refused, InvalidRequest.
    """
    config = config or AgentConfig()
    _refuse_multi_agent(config.multi_agent, place)
    settings = read_effort(config.reasoning, config.text)
    tools = _read_tools(config.tools, place)
    answer_format = _read_format(config.text, _name_field(place, "text.format"))
    asked = {"reasoning": config.reasoning, "text": config.text}
    kept = {field: msgspec.to_builtins(value) for field, value in asked.items() if value is not None}
    pointer = "/" + _name_field(place, "text.format").replace(".", "/")
    options = RunOptions(
        stream=True,
        tools=check_tools(tools) if tools else UNSET,
        model_settings=check_settings(settings, "") or UNSET,
        instructions=config.instructions or UNSET,
        response_format=UNSET if answer_format is UNSET else check_format(answer_format, pointer),
        request=check_object({"model": name, CONFIG: {**(made or {}), **kept}}, ""),
    )
    refuse_wrong_functions(options, principal.engine.registry)
    return options


def read_messages(given: object, param: str, most: int) -> list[Json]:
    """What users say, as messages that may be kept. Raises Refused, InvalidRequest, TooLarge."""
    if isinstance(given, str):
        given = [{"role": "user", "content": [{"type": "input_text", "text": given}]}]
    messages: list[Json] = []
    for place, message in enumerate(cast("list[object]", given) if isinstance(given, list) else ()):
        match message:
            case {"role": "user", "content": list() as content}:
                refuse_unknown(cast(Json, message), ("role", "content", "type"), f"{param}[{place}]")
                messages.append({"role": "user", "content": read_content(content, f"{param}[{place}].content")})
            case _:
                raise Refused(
                    "an input must be a message with the role `user` and `content` parts", f"{param}[{place}]"
                )
    if not messages:
        raise Refused("give at least one message", param)
    try:
        return list(check_messages(messages, "/messages", most))
    except InvalidRequest as error:
        found = to_param(error.errors[0]["pointer"]) or ""
        raise Refused(str(error), param + found.removeprefix("messages")) from None


# What a session is given.

_INPUT = "agent.session.input."
MESSAGE, RESULT, DECISION, CANCEL = "message", "tool_result", "mcp_approval_request_result", "cancel"
_FIELDS = {
    MESSAGE: ("input",),
    RESULT: ("call_id", "turn_id", "success", "output", "error"),
    DECISION: ("request_id", "response"),
    CANCEL: (),
}


def read_kind(event: Json, param: str) -> str:
    """Raises Refused."""
    kind = str(event.get("type")).removeprefix(_INPUT)
    if kind not in _FIELDS or event.get("type") != f"{_INPUT}{kind}":
        known = ", ".join(f"{_INPUT}{name}" for name in _FIELDS)
        raise Refused(f"events of type {quote(event.get('type'))} are not taken here; known: {known}", f"{param}.type")
    refuse_unknown(event, ("type", *_FIELDS[kind]), param)
    return kind


def make_unknown_call(call_id: str) -> Refused:
    # Clients look for exactly these words, and the code, and try again then.
    return Refused(f"Unknown pending tool call: {call_id}", "call_id", code="invalid_request_error")


def read_result(run: Run | None, event: Json, param: str) -> ToolAnswer:
    """The result of a call that waits for one. Raises Refused."""
    call_id, success, error = event.get("call_id"), event.get("success"), event.get("error")
    if not isinstance(call_id, str) or not isinstance(event.get("turn_id"), str):
        raise Refused("a result needs `call_id` and `turn_id`", param)
    if not isinstance(success, bool):
        raise Refused("`success` must be true or false", f"{param}.success")
    if error is not None and not isinstance(error, str):
        raise Refused("`error` must be a text", f"{param}.error")
    pending = () if run is None or run.status != "waiting" or run.id != event["turn_id"] else run.pending
    if not any(call.tool_call_id == call_id and call.reason == "tool_results" for call in pending):
        raise make_unknown_call(call_id)
    output = event.get("output")
    content = "" if output is None else read_text_output(output, f"{param}.output")
    return ToolAnswer(tool_call_id=call_id, content=content if success else error or content, is_error=not success)


def read_decision(
    principal: Principal, session_id: str, run: Run | None, event: Json, param: str
) -> Approval | ApprovalBelow:
    """A decision on a call that waits for one, here or where another agent is asked. Raises Refused."""
    match event.get("response"):
        case {"type": "mcp_tool_call", "decision": "approve" | "deny" | "cancel" as word, **rest} if not rest:
            decision: Literal["approve", "deny"] = "approve" if word == "approve" else "deny"
        case _:
            raise Refused("`response` must have the type mcp_tool_call, and a `decision`", f"{param}.response")
    approval = Approval(
        tool_call_id="",
        decision=decision,
        reason="the request was cancelled" if word == "cancel" else None,
        by=principal.name,
        may_be_own=not principal.service.separate_approvers,
    )
    request_id = str(event.get("request_id"))
    if run is not None and run.status == "waiting":
        for item_id, call in list_requests_below(session_id, run.last_wait, run.pending):
            if item_id == request_id:
                decided = msgspec.structs.replace(approval, tool_call_id=call.tool_call_id)
                return ApprovalBelow(call.session_id, call.run_id, decided)
        call_id = find_asked_call(session_id, run, request_id)
        if call_id is not None:
            return msgspec.structs.replace(approval, tool_call_id=call_id)
    raise Refused(f"there is no open request {quote(request_id)}", f"{param}.request_id")
