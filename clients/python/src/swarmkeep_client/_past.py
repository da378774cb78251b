"""Routes that answer about the past, as functions from their arguments to a Call."""

from __future__ import annotations

from collections.abc import Sequence

from swarmkeep_client._fields import SessionFields
from swarmkeep_client._requests import as_type, query, read, session_path, write
from swarmkeep_client._wire import Call
from swarmkeep_client.comparisons import Comparison, Replay, StateDiff
from swarmkeep_client.models import Head, Json, Verification


def model_request(session_id: str, seq: int) -> Call[Json]:
    return Call(read(session_id, "events", str(seq), "request"), as_type(Json))


def model_request_body(session_id: str, seq: int) -> Call[bytes]:
    return Call(read(session_id, "events", str(seq), "request"), lambda answer: answer.body)


def verify(session_id: str, head: Head | None = None) -> Call[Verification]:
    noted = None if head is None else f"{head.seq}:{head.hash}"
    return Call(read(session_id, "verify", query=query(head=noted)), as_type(Verification))


def replay(session_id: str, *, ignore: Sequence[str], idempotency_key: str | None) -> Call[Replay]:
    body = {"ignore": list(ignore)} if ignore else None
    return Call(write("POST", session_path(session_id, "replay"), body, idempotency_key), as_type(Replay))


def diff(session_id: str, before: int, after: int) -> Call[StateDiff]:
    return Call(read(session_id, "diff", query=query(before=before, after=after)), as_type(StateDiff))


def compare(session_id: str, other: str | SessionFields) -> Call[Comparison]:
    other_id = other if isinstance(other, str) else other.id
    return Call(read(session_id, "compare", query=(("with", other_id),)), as_type(Comparison))
