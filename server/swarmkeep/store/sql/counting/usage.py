"""Usage of model and tool calls: an index of the events, one row for each call, written with the event.

It can be rebuilt. A call is counted where it was made: what a fork shares with its original has no rows in the fork.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import CompletionRecord, MessageAdded, SessionForked
from swarmkeep.domain.facts.compaction import CompactionSummarised
from swarmkeep.domain.facts.records import read_count
from swarmkeep.store.ports.keys import SessionKey
from swarmkeep.store.sql.prepared import PreparedStatement
from swarmkeep.store.sql.tables import of_bound_session, of_session, session_columns, usage

Row = dict[str, Any]
# Longer than any call can take.
_MAX_MILLISECONDS = float(2**40)

SUMS = (
    "model_calls", "tool_calls", "prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens",
    "reasoning_tokens", "model_ms", "tool_ms",
)  # fmt: skip
_INSERT = PreparedStatement.of_rows(insert(usage))


def record_usage(connection: Connection, key: SessionKey, events: Iterable[RecordedEvent]) -> list[Row]:
    """Write the rows of these events, which have just been recorded, and return them."""
    rows: list[Row] = []
    for event in events:
        if isinstance(event.fact, SessionForked):
            rows.clear()
            mine = of_session(usage, key)
            connection.execute(delete(usage).where(*mine))
        elif (row := make_usage_row(event)) is not None:
            rows.append({**session_columns(key), **row})
    insert_usage(connection, rows)
    return rows


def insert_usage(connection: Connection, rows: Sequence[Row]) -> None:
    if rows:
        _INSERT.insert_many(connection, rows)


def rewrite_usage(connection: Connection, key: SessionKey, events: Iterable[RecordedEvent]) -> None:
    """Write the rows of these events anew, as far as they have some."""
    for event in events:
        if _DELETE_CALL.execute(connection, {**session_columns(key), "at_seq": event.seq}):
            record_usage(connection, key, [event])


_DELETE_CALL = PreparedStatement(delete(usage).where(*of_bound_session(usage), usage.c.seq == bindparam("at_seq")))


def make_usage_row(event: RecordedEvent) -> Row | None:
    """The row of an event that is a call; None for any other."""
    fact = event.fact
    completion = fact.completion if isinstance(fact, MessageAdded | CompactionSummarised) else None
    tool = fact.tool if isinstance(fact, MessageAdded) else None
    if completion is None and tool is None:
        return None
    row: Row = {"seq": event.seq, "day": event.at[:10], "run_id": event.run_id or "", "agent": event.agent, "model": ""}
    row |= dict.fromkeys(SUMS, 0)
    if completion is not None:
        row |= _count_model_call(completion)
    elif tool is not None:
        row |= {"tool_calls": 1, "tool_ms": _read_duration(tool.duration_ms)}
    return row


def _count_model_call(completion: CompletionRecord) -> Row:
    reported = completion.usage or {}
    requested = completion.request.params.get("model") if completion.request is not None else None
    return {
        "model": completion.model or (requested if isinstance(requested, str) else "") or "",
        "model_calls": 1,
        "prompt_tokens": _read_count(reported, "prompt_tokens"),
        "completion_tokens": _read_count(reported, "completion_tokens"),
        "total_tokens": _read_count(reported, "total_tokens"),
        "cached_tokens": _read_count(reported.get("prompt_tokens_details"), "cached_tokens"),
        "reasoning_tokens": _read_count(reported.get("completion_tokens_details"), "reasoning_tokens"),
        "model_ms": _read_duration(completion.duration_ms),
    }


def _read_count(reported: object, name: str) -> int:
    return read_count(reported.get(name)) if isinstance(reported, dict) else 0


def _read_duration(milliseconds: float) -> float:
    return max(0.0, min(float(milliseconds), _MAX_MILLISECONDS))
