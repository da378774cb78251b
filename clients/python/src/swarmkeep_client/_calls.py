"""Every route of the API as a function from its arguments to a Call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from swarmkeep_client._json import decode
from swarmkeep_client._requests import (
    accept_stream,
    build_path,
    build_query,
    build_session_path,
    format_filter_value,
    make_get,
    make_read,
    make_write,
    read_as,
    repeat_parameter,
)
from swarmkeep_client._tools import CallerTools
from swarmkeep_client._wire import Answer, Call, Request
from swarmkeep_client.active_runs import ActiveRun, ActiveStatus
from swarmkeep_client.agents import AgentInfo
from swarmkeep_client.errors import check_completed
from swarmkeep_client.inputs import ResumeInput, RunOptions
from swarmkeep_client.models import Event, Health, Json, Message, Page, Run, SessionState

T = TypeVar("T")

Input = str | Sequence[Message]
EventTypes = str | Sequence[str] | None
Included = Literal["context_variables"]
SessionOrder = Literal["created", "activity"]
EndedRunStatus = Literal["completed", "failed", "cancelled", "interrupted"]
MetadataValue = str | int | float | bool


def create_session(
    *,
    id: str | None,
    agent: str | None,
    context_variables: Json | None,
    metadata: Json | None,
    messages: Sequence[Message] | None,
    idempotency_key: str | None,
) -> Call[SessionState]:
    body = {
        "id": id,
        "agent": agent,
        "context_variables": context_variables,
        "metadata": metadata,
        "messages": None if messages is None else list(messages),
    }
    return Call(make_write("POST", build_path("v1", "sessions"), body, idempotency_key), read_as(SessionState))


def list_sessions(
    *,
    agent: str | None,
    status: str | None,
    last_run: EndedRunStatus | None,
    order: SessionOrder | None,
    metadata: Mapping[str, MetadataValue] | None,
    include: Included | None,
    children: bool,
    q: str | None,
    active_after: str | None,
    active_before: str | None,
    damaged: bool | None,
    page_size: int | None,
) -> Call[Page[SessionState]]:
    wanted = {f"metadata.{key}": format_filter_value(value) for key, value in (metadata or {}).items()}
    filters = build_query(
        q=q,
        active_after=active_after,
        active_before=active_before,
        damaged=damaged,
        agent=agent,
        status=status,
        last_run=last_run,
        order=order,
        **wanted,
        include=include,
        children=children,
        limit=page_size,
    )
    return Call(make_get("sessions", query=filters), read_as(Page[SessionState]))


def follow_sessions() -> Request:
    return accept_stream(make_get("sessions"))


def list_active_runs(*, status: ActiveStatus, page_size: int | None) -> Call[Page[ActiveRun]]:
    return Call(make_get("runs", query=build_query(status=status, limit=page_size)), read_as(Page[ActiveRun]))


def get_session(session_id: str, *, at: int | None = None) -> Call[SessionState]:
    return Call(make_read(session_id, query=build_query(at=at)), read_as(SessionState))


def update_session(
    session_id: str,
    *,
    context_variables: Json | None,
    metadata: Json | None,
    agent: str | None,
    if_match: int | None,
    idempotency_key: str | None,
) -> Call[SessionState]:
    body = {"context_variables": context_variables, "metadata": metadata, "agent": agent}
    request = make_write("PATCH", build_session_path(session_id), body, idempotency_key)
    if if_match is not None:
        request = replace(request, headers={**request.headers, "If-Match": f'"{if_match}"'})
    return Call(request, read_as(SessionState))


def delete_session(session_id: str, *, force: bool, reason: str | None, if_match: int | None) -> Call[None]:
    filters = build_query(force=force, reason=reason)
    headers = {} if if_match is None else {"If-Match": f'"{if_match}"'}
    return Call(
        Request(method="DELETE", path=build_session_path(session_id), query=filters, headers=headers), _read_nothing
    )


def fork_session(
    session_id: str,
    *,
    at: int | None,
    id: str | None,
    metadata: Json | None,
    agent: str | None,
    idempotency_key: str | None,
) -> Call[SessionState]:
    body = {"at": at, "id": id, "metadata": metadata, "agent": agent}
    return Call(
        make_write("POST", build_session_path(session_id, "fork"), body, idempotency_key), read_as(SessionState)
    )


def list_messages(session_id: str, *, at: int | None) -> Call[Page[Message]]:
    return Call(make_read(session_id, "messages", query=build_query(at=at)), read_as(Page[Message]))


def add_messages(session_id: str, messages: Sequence[Message], *, idempotency_key: str | None) -> Call[Page[Message]]:
    path = build_session_path(session_id, "messages")
    return Call(make_write("POST", path, {"messages": list(messages)}, idempotency_key), read_as(Page[Message]))


def remove_message(session_id: str, seq: int, *, tool_call_id: str | None) -> Call[None]:
    path = build_session_path(session_id, "messages", str(seq))
    return Call(Request(method="DELETE", path=path, query=build_query(tool_call_id=tool_call_id)), _read_nothing)


def list_events(session_id: str, *, after: int | None, type: EventTypes, page_size: int | None) -> Call[Page[Event]]:
    filters = (*build_query(after=after, limit=page_size), *repeat_parameter("type", type))
    return Call(make_read(session_id, "events", query=filters), read_as(Page[Event]))


def follow_events(session_id: str, *, after: int, type: EventTypes) -> Request:
    return accept_stream(
        make_read(session_id, "events", query=(*build_query(after=after), *repeat_parameter("type", type))), after
    )


def start_run(session_id: str, input: Input, options: RunOptions, *, background: bool) -> Call[Run]:
    return Call(_make_run_request(session_id, input, options, background=background or None), _read_run)


def stream_run(session_id: str, input: Input, options: RunOptions) -> Request:
    return accept_stream(_make_run_request(session_id, input, options, stream=True))


def list_runs(session_id: str, *, page_size: int | None) -> Call[Page[Run]]:
    return Call(make_read(session_id, "runs", query=build_query(limit=page_size)), read_as(Page[Run]))


def get_run(session_id: str, run_id: str) -> Call[Run]:
    return Call(make_read(session_id, "runs", run_id), read_as(Run))


def join_run(session_id: str, run_id: str, *, after: int | None) -> Request:
    return accept_stream(make_read(session_id, "runs", run_id, "stream"), after)


def cancel_run(session_id: str, run_id: str, *, idempotency_key: str | None) -> Call[Run]:
    return Call(
        make_write("POST", build_session_path(session_id, "runs", run_id, "cancel"), None, idempotency_key),
        read_as(Run),
    )


def resume_run(session_id: str, run_id: str, given: ResumeInput) -> Call[Run]:
    return Call(_make_resume_request(session_id, run_id, given), _read_run)


def stream_resumed_run(session_id: str, run_id: str, given: ResumeInput) -> Request:
    return accept_stream(_make_resume_request(session_id, run_id, given, stream=True))


def list_agents() -> Call[Page[AgentInfo]]:
    return Call(make_get("agents"), read_as(Page[AgentInfo]))


def get_agent(name: str) -> Call[AgentInfo]:
    return Call(make_get("agents", name), read_as(AgentInfo))


def get_health() -> Call[Health]:
    # 503 is the answer "not ready", and not a reason to try again.
    return Call(Request(method="GET", path=build_path("health", "ready"), accepts=(503,)), _read_health)


def _make_run_request(
    session_id: str,
    input: Input,
    options: RunOptions,
    *,
    stream: bool | None = None,
    background: bool | None = None,
) -> Request:
    _refuse_unknown(options, RunOptions)
    given: Json = {name: value for name, value in options.items() if name != "idempotency_key"}
    if tools := options.get("tools"):
        given["tools"] = CallerTools(tools).definitions
    body = {
        "input": input if isinstance(input, str) else list(input),
        "stream": stream,
        "background": background,
        **given,
    }
    return make_write("POST", build_session_path(session_id, "runs"), body, options.get("idempotency_key"))


def _make_resume_request(session_id: str, run_id: str, given: ResumeInput, *, stream: bool | None = None) -> Request:
    _refuse_unknown(given, ResumeInput)
    body = {"tool_results": given.get("tool_results"), "approvals": given.get("approvals"), "stream": stream}
    return make_write(
        "POST", build_session_path(session_id, "runs", run_id, "resume"), body, given.get("idempotency_key")
    )


def _refuse_unknown(given: Mapping[str, object], words: type) -> None:
    unknown = given.keys() - words.__annotations__.keys()
    if unknown:
        raise TypeError(
            f"unexpected arguments: {', '.join(sorted(unknown))}; known: {', '.join(words.__annotations__)}"
        )


def _read_health(answer: Answer) -> Health:
    return Health(ready=answer.status == 200, detail=decode(answer.body, dict[str, Any]))


def _read_run(answer: Answer) -> Run:
    return check_completed(decode(answer.body, Run))


def _read_nothing(answer: Answer) -> None:
    return None
