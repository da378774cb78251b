"""Routes that answer about the past, as functions from their arguments to a Call."""

from __future__ import annotations

from collections.abc import Sequence

from swarmkeep_client._fields import SessionFields
from swarmkeep_client._requests import build_query, build_session_path, make_read, make_write, read_as
from swarmkeep_client._wire import Call
from swarmkeep_client.comparisons import Comparison, Replay, StateDiff
from swarmkeep_client.models import Head, Json, Verification


def get_model_request(session_id: str, seq: int) -> Call[Json]:
    return Call(make_read(session_id, "events", str(seq), "request"), read_as(Json))


def get_model_request_body(session_id: str, seq: int) -> Call[bytes]:
    return Call(make_read(session_id, "events", str(seq), "request"), lambda answer: answer.body)


def verify_session(session_id: str, head: Head | None = None) -> Call[Verification]:
    noted = None if head is None else f"{head.seq}:{head.hash}"
    return Call(make_read(session_id, "verify", query=build_query(head=noted)), read_as(Verification))


def replay_session(session_id: str, *, ignore: Sequence[str], idempotency_key: str | None) -> Call[Replay]:
    body = {"ignore": list(ignore)} if ignore else None
    return Call(make_write("POST", build_session_path(session_id, "replay"), body, idempotency_key), read_as(Replay))


def diff_states(session_id: str, before: int, after: int) -> Call[StateDiff]:
    return Call(make_read(session_id, "diff", query=build_query(before=before, after=after)), read_as(StateDiff))


def compare_sessions(session_id: str, other: str | SessionFields) -> Call[Comparison]:
    other_id = other if isinstance(other, str) else other.id
    return Call(make_read(session_id, "compare", query=(("with", other_id),)), read_as(Comparison))
