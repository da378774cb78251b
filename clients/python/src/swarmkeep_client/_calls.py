"""Every route of the API as a function from its arguments to a Call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from swarmkeep_client._json import decode
from swarmkeep_client._requests import Query, as_type, path, plain, query, read, session_path, streamed, write
from swarmkeep_client._wire import Answer, Call, Request
from swarmkeep_client.errors import ended
from swarmkeep_client.models import (
    AgentInfo,
    Event,
    Health,
    Json,
    Message,
    Page,
    ResumeInput,
    Run,
    RunOptions,
    SessionState,
)

T = TypeVar("T")

Input = str | Sequence[Message]
EventTypes = str | Sequence[str] | None
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
    return Call(write("POST", path("v1", "sessions"), body, idempotency_key), as_type(SessionState))


def list_sessions(
    *,
    agent: str | None,
    status: str | None,
    metadata: Mapping[str, MetadataValue] | None,
    page_size: int | None,
) -> Call[Page[SessionState]]:
    wanted = {f"metadata.{key}": plain(value) for key, value in (metadata or {}).items()}
    filters = query(agent=agent, status=status, **wanted, limit=page_size)
    return Call(Request(method="GET", path=path("v1", "sessions"), query=filters), as_type(Page[SessionState]))


def get_session(session_id: str, *, at: int | None = None) -> Call[SessionState]:
    return Call(read(session_id, query=query(at=at)), as_type(SessionState))


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
    request = write("PATCH", session_path(session_id), body, idempotency_key)
    if if_match is not None:
        request = replace(request, headers={**request.headers, "If-Match": f'"{if_match}"'})
    return Call(request, as_type(SessionState))


def delete_session(session_id: str, *, force: bool, reason: str | None, if_match: int | None) -> Call[None]:
    filters = query(force="true" if force else None, reason=reason)
    headers = {} if if_match is None else {"If-Match": f'"{if_match}"'}
    return Call(Request(method="DELETE", path=session_path(session_id), query=filters, headers=headers), _nothing)


def fork(
    session_id: str,
    *,
    at: int | None,
    id: str | None,
    metadata: Json | None,
    agent: str | None,
    idempotency_key: str | None,
) -> Call[SessionState]:
    body = {"at": at, "id": id, "metadata": metadata, "agent": agent}
    return Call(write("POST", session_path(session_id, "fork"), body, idempotency_key), as_type(SessionState))


def messages(session_id: str, *, at: int | None) -> Call[Page[Message]]:
    return Call(read(session_id, "messages", query=query(at=at)), as_type(Page[Message]))


def events(session_id: str, *, after: int | None, type: EventTypes, page_size: int | None) -> Call[Page[Event]]:
    filters = (*query(after=after, limit=page_size), *_types(type))
    return Call(read(session_id, "events", query=filters), as_type(Page[Event]))


def follow(session_id: str, *, after: int, type: EventTypes) -> Request:
    return streamed(read(session_id, "events", query=(*query(after=after), *_types(type))), after)


def run(session_id: str, input: Input, options: RunOptions, *, background: bool) -> Call[Run]:
    return Call(_run(session_id, input, options, background=background or None), _ended)


def run_stream(session_id: str, input: Input, options: RunOptions) -> Request:
    return streamed(_run(session_id, input, options, stream=True))


def runs(session_id: str, *, page_size: int | None) -> Call[Page[Run]]:
    return Call(read(session_id, "runs", query=query(limit=page_size)), as_type(Page[Run]))


def get_run(session_id: str, run_id: str) -> Call[Run]:
    return Call(read(session_id, "runs", run_id), as_type(Run))


def join(session_id: str, run_id: str, *, after: int | None) -> Request:
    return streamed(read(session_id, "runs", run_id, "stream"), after)


def cancel(session_id: str, run_id: str, *, idempotency_key: str | None) -> Call[Run]:
    return Call(write("POST", session_path(session_id, "runs", run_id, "cancel"), None, idempotency_key), as_type(Run))


def resume(session_id: str, run_id: str, given: ResumeInput) -> Call[Run]:
    return Call(_resume(session_id, run_id, given), _ended)


def resume_stream(session_id: str, run_id: str, given: ResumeInput) -> Request:
    return streamed(_resume(session_id, run_id, given, stream=True))


def list_agents() -> Call[Page[AgentInfo]]:
    return Call(Request(method="GET", path=path("v1", "agents")), as_type(Page[AgentInfo]))


def get_agent(name: str) -> Call[AgentInfo]:
    return Call(Request(method="GET", path=path("v1", "agents", name)), as_type(AgentInfo))


def health() -> Call[Health]:
    # 503 is the answer "not ready", and not a reason to try again.
    return Call(Request(method="GET", path=path("health", "ready"), accepts=(503,)), _health)


def _run(
    session_id: str,
    input: Input,
    options: RunOptions,
    *,
    stream: bool | None = None,
    background: bool | None = None,
) -> Request:
    _known(options, RunOptions)
    given = {name: value for name, value in options.items() if name != "idempotency_key"}
    body = {
        "input": input if isinstance(input, str) else list(input),
        "stream": stream,
        "background": background,
        **given,
    }
    return write("POST", session_path(session_id, "runs"), body, options.get("idempotency_key"))


def _resume(session_id: str, run_id: str, given: ResumeInput, *, stream: bool | None = None) -> Request:
    _known(given, ResumeInput)
    body = {"tool_results": given.get("tool_results"), "approvals": given.get("approvals"), "stream": stream}
    return write("POST", session_path(session_id, "runs", run_id, "resume"), body, given.get("idempotency_key"))


def _known(given: Mapping[str, object], words: type) -> None:
    unknown = given.keys() - words.__annotations__.keys()
    if unknown:
        raise TypeError(f"unexpected arguments: {', '.join(sorted(unknown))}")


def _types(type: EventTypes) -> Query:
    names = [type] if isinstance(type, str) else type or ()
    return tuple(("type", name) for name in names)


def _health(answer: Answer) -> Health:
    return Health(ready=answer.status == 200, detail=decode(answer.body, dict[str, Any]))


def _ended(answer: Answer) -> Run:
    return ended(decode(answer.body, Run))


def _nothing(answer: Answer) -> None:
    return None
