"""Routes that answer about the past, as functions from their arguments to a Call."""

from __future__ import annotations

from collections.abc import Sequence

from swarmkeep_client._fields import SessionFields
from swarmkeep_client._requests import (
    build_query,
    build_session_path,
    format_head,
    list_texts,
    make_read,
    make_write,
    read_as,
)
from swarmkeep_client._wire import Call
from swarmkeep_client.comparisons import Compaction, Comparison, Replay, StateDiff
from swarmkeep_client.models import Head, Json, Page, SessionState, Verification


def get_model_request(session_id: str, seq: int) -> Call[Json]:
    return Call(make_read(session_id, "events", str(seq), "request"), read_as(Json))


def get_model_request_body(session_id: str, seq: int) -> Call[bytes]:
    return Call(make_read(session_id, "events", str(seq), "request"), lambda answer: answer.body)


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
