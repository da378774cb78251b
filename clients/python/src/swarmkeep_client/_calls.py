"""Every route of the API as a function from its arguments to a Call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, BinaryIO, Literal, TypeAlias, TypeVar

from swarmkeep_client._fields import SessionFields
from swarmkeep_client._json import decode
from swarmkeep_client._requests import (
    accept_stream,
    build_path,
    build_query,
    build_session_path,
    format_filter_value,
    format_head,
    list_texts,
    make_get,
    make_read,
    make_write,
    read_as,
    repeat_parameter,
)
from swarmkeep_client._tools import CallerTools
from swarmkeep_client._wire import Answer, Call, Request
from swarmkeep_client.errors import check_completed
from swarmkeep_client.keys import ApiKey, Caller, CreatedKey
from swarmkeep_client.models import (
    ActiveRun,
    ActiveStatus,
    AgentInfo,
    AuditEntry,
    Checkpoint,
    Compaction,
    Comparison,
    Consumer,
    DueSession,
    Erasure,
    Event,
    FeedPage,
    Head,
    Health,
    ImportReport,
    Json,
    Leaf,
    Message,
    Page,
    Prices,
    Proof,
    Quotas,
    RedactedRequest,
    Redaction,
    Replay,
    ResumeInput,
    Role,
    Run,
    RunOptions,
    SessionCounts,
    SessionState,
    StateDiff,
    UsageRow,
    Verification,
)
from swarmkeep_client.run_table import EndedRun, EndedRunStatus, RunFigures, RunSort
from swarmkeep_client.webhooks import Webhook, WebhookDelivery, WebhookTest, WebhookWithSecret

T = TypeVar("T")

Input = str | Sequence[Message]
EventTypes = str | Sequence[str] | None
Included = Literal["context_variables"]
SessionOrder = Literal["created", "activity", "oldest_activity"]
FileFormat: TypeAlias = Literal[
    "auto", "export", "chat", "swarm", "assistants", "conversations", "chatgpt", "open-webui", "librechat", "sharegpt",
    "agents-sdk", "adk", "langgraph",
]  # fmt: skip
"""What a file that is to be imported is; `auto` has the server recognise it."""

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
    assignee: str | None,
    feedback: Literal["up", "down"] | None,
    page_size: int | None,
) -> Call[Page[SessionState]]:
    wanted = {f"metadata.{key}": format_filter_value(value) for key, value in (metadata or {}).items()}
    filters = build_query(
        q=q,
        active_after=active_after,
        active_before=active_before,
        damaged=damaged,
        assignee=assignee,
        feedback=feedback,
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


def list_ended_runs(
    *, status: EndedRunStatus | None, sort: RunSort | None, page_size: int | None, **filters: str | None
) -> Call[Page[EndedRun]]:
    query = build_query(status=status or "ended", sort=sort, limit=page_size, **filters)
    return Call(make_get("runs", query=query), read_as(Page[EndedRun]))


def export_runs(
    form: Literal["csv", "jsonl"], *, status: EndedRunStatus | None, sort: RunSort | None, **filters: str | None
) -> Request:
    accepted = {"csv": "text/csv", "jsonl": "application/x-ndjson"}[form]
    request = make_get("runs", query=build_query(status=status or "ended", sort=sort, **filters))
    return replace(request, headers={"Accept": accepted})


def get_run_figures(
    *,
    group_by: str | Sequence[str],
    first_day: str | None,
    last_day: str | None,
    page_size: int | None,
    **filters: str | None,
) -> Call[Page[RunFigures]]:
    query = build_query(**{"from": first_day, "to": last_day}, limit=page_size, **filters)
    groups = repeat_parameter("group_by", group_by)
    return Call(make_get("runs", "figures", query=(*groups, *query)), read_as(Page[RunFigures]))


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


def add_messages(
    session_id: str, messages: Sequence[Message], *, relayed: bool, idempotency_key: str | None
) -> Call[Page[Message]]:
    path = build_session_path(session_id, "messages")
    body = {"messages": list(messages), "relayed": relayed or None}
    return Call(make_write("POST", path, body, idempotency_key), read_as(Page[Message]))


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


def redact(
    session_id: str,
    seqs: Sequence[int],
    reason: str,
    *,
    include_forks: bool,
    dry_run: bool,
    idempotency_key: str | None,
) -> Call[Redaction]:
    body = {
        "seqs": list(seqs),
        "reason": reason,
        "include_forks": include_forks or None,
        "dry_run": dry_run or None,
    }
    return Call(make_write("POST", build_session_path(session_id, "redact"), body, idempotency_key), read_as(Redaction))


def erase_person(person: MetadataValue, reason: str, *, dry_run: bool) -> Call[Erasure]:
    body = {"person": person, "reason": reason, "dry_run": dry_run or None}
    return Call(make_write("POST", build_path("v1", "people", "erase"), body, None), read_as(Erasure))


def read_feed(
    *,
    after: str | None,
    consumer: str | None,
    type: EventTypes,
    agent: EventTypes,
    metadata: Mapping[str, MetadataValue] | None,
    page_size: int | None = None,
) -> Call[FeedPage]:
    wanted = {f"metadata.{key}": format_filter_value(value) for key, value in (metadata or {}).items()}
    filters = build_query(after=after, consumer=consumer, **wanted, limit=page_size)
    query = (*filters, *repeat_parameter("type", type), *repeat_parameter("agent", agent))
    return Call(make_get("events", query=query), read_as(FeedPage))


def list_consumers() -> Call[Page[Consumer]]:
    return Call(make_get("consumers"), read_as(Page[Consumer]))


def get_consumer(name: str) -> Call[Consumer]:
    return Call(make_get("consumers", name), read_as(Consumer))


def move_consumer(name: str, cursor: str) -> Call[Consumer]:
    return Call(make_write("PUT", build_path("v1", "consumers", name), {"cursor": cursor}, None), read_as(Consumer))


def delete_consumer(name: str) -> Call[None]:
    return Call(Request(method="DELETE", path=build_path("v1", "consumers", name)), _read_nothing)


def list_webhooks() -> Call[Page[Webhook]]:
    return Call(make_get("webhooks"), read_as(Page[Webhook]))


def create_webhook(url: str, given: Mapping[str, object], *, idempotency_key: str | None) -> Call[WebhookWithSecret]:
    body = {"url": url, **given}
    return Call(make_write("POST", build_path("v1", "webhooks"), body, idempotency_key), read_as(WebhookWithSecret))


def get_webhook(webhook_id: str) -> Call[Webhook]:
    return Call(make_get("webhooks", webhook_id), read_as(Webhook))


def update_webhook(webhook_id: str, given: Mapping[str, object]) -> Call[Webhook]:
    return Call(make_write("PATCH", build_path("v1", "webhooks", webhook_id), given, None), read_as(Webhook))


def delete_webhook(webhook_id: str) -> Call[None]:
    return Call(Request(method="DELETE", path=build_path("v1", "webhooks", webhook_id)), _read_nothing)


def rotate_webhook_secret(
    webhook_id: str, *, keep_seconds: float | None, idempotency_key: str | None
) -> Call[WebhookWithSecret]:
    path = build_path("v1", "webhooks", webhook_id, "rotate")
    return Call(make_write("POST", path, {"keep_seconds": keep_seconds}, idempotency_key), read_as(WebhookWithSecret))


def test_webhook(webhook_id: str) -> Call[WebhookTest]:
    return Call(make_write("POST", build_path("v1", "webhooks", webhook_id, "test"), None, None), read_as(WebhookTest))


def list_deliveries(webhook_id: str, *, state: str | None, page_size: int | None) -> Call[Page[WebhookDelivery]]:
    query = build_query(state=state, limit=page_size)
    return Call(make_get("webhooks", webhook_id, "deliveries", query=query), read_as(Page[WebhookDelivery]))


def resend_delivery(webhook_id: str, cursor: str) -> Call[WebhookDelivery]:
    path = build_path("v1", "webhooks", webhook_id, "deliveries", cursor, "resend")
    return Call(make_write("POST", path, None, None), read_as(WebhookDelivery))


def list_audit(*, after: int | None, page_size: int | None) -> Call[Page[AuditEntry]]:
    return Call(make_get("audit", query=build_query(after=after, limit=page_size)), read_as(Page[AuditEntry]))


def verify_audit(head: Head | None) -> Call[Verification]:
    return Call(make_get("audit", "verify", query=build_query(head=format_head(head))), read_as(Verification))


def get_checkpoint(number: int | None, since: int | None) -> Call[Checkpoint]:
    return Call(make_get("checkpoint", query=build_query(number=number, since=since)), read_as(Checkpoint))


def list_due(*, before: datetime | str | None, page_size: int | None) -> Call[Page[DueSession]]:
    at = before.isoformat() if isinstance(before, datetime) else before
    return Call(make_get("retention", query=build_query(before=at, limit=page_size)), read_as(Page[DueSession]))


def list_leaves(*, after: int | None, page_size: int | None) -> Call[Page[Leaf]]:
    query = build_query(after=after, limit=page_size)
    return Call(make_get("checkpoint", "leaves", query=query), read_as(Page[Leaf]))


def prove_session(session_id: str, checkpoint: int | None) -> Call[Proof]:
    return Call(make_read(session_id, "proof", query=build_query(checkpoint=checkpoint)), read_as(Proof))


def export_sessions(
    ids: str | Sequence[str] | None,
    *,
    agent: str | None = None,
    status: str | None = None,
    metadata: Mapping[str, MetadataValue] | None = None,
) -> Request:
    wanted = {f"metadata.{key}": format_filter_value(value) for key, value in (metadata or {}).items()}
    filters = build_query(agent=agent, status=status, **wanted)
    return make_get("export", query=(*filters, *repeat_parameter("id", ids)))


def make_evidence(ids: str | Sequence[str], *, size: int | None) -> Request:
    return make_get("evidence", query=(*build_query(size=size), *repeat_parameter("id", ids)))


def get_transcript(session_id: str, form: str, *, at: int | None) -> Call[str]:
    request = make_read(session_id, "transcript", query=build_query(format=form, at=at))
    return Call(request, lambda answer: answer.body.decode())


def get_eval_case(session_id: str, *, run_id: str | None, name: str | None) -> Call[str]:
    request = make_read(session_id, "case", query=build_query(run_id=run_id, name=name))
    return Call(request, lambda answer: answer.body.decode())


def import_sessions(
    file: bytes | BinaryIO, *, source: str, agent: str | None, as_id: str | None, dry_run: bool
) -> Call[ImportReport]:
    # Sent again it does nothing more, so it may be sent again.
    request = make_write("POST", build_path("v1", "import"), None, None)
    # Words of Python's own, which are no names of arguments.
    words = {"as": as_id, "from": None if source == "export" else source}
    request = replace(
        request,
        body=file,
        query=build_query(**words, agent=agent, dry_run=dry_run),
        headers={**request.headers, "Content-Type": "application/x-ndjson"},
    )
    return Call(request, read_as(ImportReport))


def get_model_request(session_id: str, seq: int) -> Call[Json]:
    return Call(make_read(session_id, "events", str(seq), "request"), read_as(Json))


def get_model_request_body(session_id: str, seq: int) -> Call[bytes]:
    return Call(make_read(session_id, "events", str(seq), "request"), lambda answer: answer.body)


def get_redacted_request(session_id: str, seq: int) -> Call[RedactedRequest]:
    query = build_query(redacted=True)
    return Call(make_read(session_id, "events", str(seq), "request", query=query), read_as(RedactedRequest))


def get_blob(session_id: str, sha256: str) -> Call[bytes]:
    return Call(make_read(session_id, "blobs", sha256), lambda answer: answer.body)


def verify_session(session_id: str, head: Head | None = None) -> Call[Verification]:
    return Call(make_read(session_id, "verify", query=build_query(head=format_head(head))), read_as(Verification))


def replay_session(session_id: str, *, ignore: str | Sequence[str], idempotency_key: str | None) -> Call[Replay]:
    body = {"ignore": list_texts(ignore)} if ignore else None
    return Call(make_write("POST", build_session_path(session_id, "replay"), body, idempotency_key), read_as(Replay))


def compact_session(
    session_id: str, *, keep_turns: int | None, instructions: str | None, idempotency_key: str | None
) -> Call[Compaction]:
    body = {"keep_turns": keep_turns, "instructions": instructions}
    path = build_session_path(session_id, "compact")
    return Call(make_write("POST", path, body, idempotency_key), read_as(Compaction))


def diff_states(session_id: str, before: int, after: int) -> Call[StateDiff]:
    return Call(make_read(session_id, "diff", query=build_query(before=before, after=after)), read_as(StateDiff))


def list_forks(session_id: str, *, page_size: int | None) -> Call[Page[SessionState]]:
    return Call(make_read(session_id, "forks", query=build_query(limit=page_size)), read_as(Page[SessionState]))


def compare_sessions(session_id: str, other: str | SessionFields) -> Call[Comparison]:
    other_id = other if isinstance(other, str) else other.id
    return Call(make_read(session_id, "compare", query=(("with", other_id),)), read_as(Comparison))


def create_key(
    *, name: str, role: Role, expires_at: datetime | str | None, idempotency_key: str | None
) -> Call[CreatedKey]:
    body = {"name": name, "role": role, "expires_at": _format_time(expires_at)}
    return Call(make_write("POST", build_path("v1", "keys"), body, idempotency_key), read_as(CreatedKey))


def _format_time(at: datetime | str | None) -> str | None:
    if isinstance(at, datetime) and at.tzinfo is None:
        raise ValueError("expires_at needs a time zone, as in datetime.now(UTC) + timedelta(days=90)")
    return at.isoformat() if isinstance(at, datetime) else at


def get_caller() -> Call[Caller]:
    return Call(make_get("me"), read_as(Caller))


def list_keys(*, page_size: int | None) -> Call[Page[ApiKey]]:
    return Call(make_get("keys", query=build_query(limit=page_size)), read_as(Page[ApiKey]))


def revoke_key(key_id: str) -> Call[ApiKey]:
    # Sent again it does nothing more, so it may be sent again.
    return Call(make_write("POST", build_path("v1", "keys", key_id, "revoke"), None, None), read_as(ApiKey))


def take_over(session_id: str, *, note: str | None, force: bool, idempotency_key: str | None) -> Call[SessionState]:
    return _change(session_id, "takeover", note, force, idempotency_key)


def hand_back(session_id: str, *, note: str | None, force: bool, idempotency_key: str | None) -> Call[SessionState]:
    return _change(session_id, "handback", note, force, idempotency_key)


def assign(session_id: str, to: str | None, *, reason: str | None, idempotency_key: str | None) -> Call[SessionState]:
    path = build_session_path(session_id, "assign")
    body = {"to": to, "reason": reason}
    return Call(make_write("POST", path, body, idempotency_key, nullable="to"), read_as(SessionState))


def add_feedback(
    session_id: str,
    value: Literal["up", "down"],
    *,
    seq: int | None,
    run_id: str | None,
    comment: str | None,
    idempotency_key: str | None,
) -> Call[Event]:
    path = build_session_path(session_id, "feedback")
    body = {"value": value, "seq": seq, "run_id": run_id, "comment": comment}
    return Call(make_write("POST", path, body, idempotency_key), read_as(Event))


def add_note(session_id: str, text: str, *, idempotency_key: str | None) -> Call[Event]:
    path = build_session_path(session_id, "notes")
    return Call(make_write("POST", path, {"text": text}, idempotency_key), read_as(Event))


def hold(session_id: str, reason: str) -> Call[SessionState]:
    path = build_session_path(session_id, "hold")
    return Call(make_write("PUT", path, {"reason": reason}, None), read_as(SessionState))


def release(session_id: str) -> Call[SessionState]:
    return Call(Request(method="DELETE", path=build_session_path(session_id, "hold")), read_as(SessionState))


def answer(session_id: str, content: str, *, idempotency_key: str | None) -> Call[Page[Message]]:
    path = build_session_path(session_id, "answer")
    return Call(make_write("POST", path, {"content": content}, idempotency_key), read_as(Page[Message]))


def _change(
    session_id: str, what: str, note: str | None, force: bool, idempotency_key: str | None
) -> Call[SessionState]:
    body = {"note": note, "force": force or None}
    return Call(make_write("POST", build_session_path(session_id, what), body, idempotency_key), read_as(SessionState))


def get_quotas() -> Call[Quotas]:
    return Call(make_get("quotas"), read_as(Quotas))


def get_counts(*, children: bool) -> Call[SessionCounts]:
    return Call(make_get("counts", query=build_query(children=children)), read_as(SessionCounts))


def get_prices() -> Call[Prices]:
    return Call(make_get("prices"), read_as(Prices))


def get_usage(
    *,
    group_by: str | Sequence[str],
    first_day: str | None,
    last_day: str | None,
    agent: str | None,
    model: str | None,
    session: str | None,
    page_size: int | None,
) -> Call[Page[UsageRow]]:
    filters = build_query(
        **{"from": first_day, "to": last_day}, agent=agent, model=model, session=session, limit=page_size
    )
    groups = repeat_parameter("group_by", group_by)
    return Call(make_get("usage", query=(*groups, *filters)), read_as(Page[UsageRow]))
