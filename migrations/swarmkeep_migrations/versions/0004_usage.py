"""Adds usage: one row for each model and tool call, filled from the recorded events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def text(name: str, **options: Any) -> sa.Column[str]:
    """Text compared by code point, whatever the database's locale."""
    return sa.Column(name, sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), nullable=False, **options)


def count(name: str, kind: type[sa.types.TypeEngine[Any]] = sa.BigInteger) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def upgrade() -> None:
    op.create_table(
        "usage",
        text("tenant"),
        text("session_id"),
        sa.Column("seq", sa.BigInteger, nullable=False, autoincrement=False),
        text("day", comment="of the event's time, in UTC"),
        text("run_id", comment="empty outside a run"),
        text("agent"),
        text("model", comment="empty for a tool call"),
        count("model_calls", sa.Integer),
        count("tool_calls", sa.Integer),
        count("prompt_tokens"),
        count("completion_tokens"),
        count("total_tokens"),
        count("cached_tokens"),
        count("reasoning_tokens"),
        count("model_ms", sa.Double),
        count("tool_ms", sa.Double),
        sa.PrimaryKeyConstraint("tenant", "session_id", "seq", name="pk_usage"),
        comment="what each model and tool call took; an index of the events that can be rebuilt",
    )
    op.create_index("ix_usage_day", "usage", ["tenant", "day"])
    fill_usage(op.get_bind())


def downgrade() -> None:
    op.drop_table("usage")


# The rows as this revision's release made them. Text columns are copied as they are stored: in them, text that a
# database cannot hold is written as a JSON string.
Json = dict[str, Any]

PAGE_EVENTS = 500
MAX_FIGURE = 2**40

sessions = sa.table("sessions", sa.column("tenant", sa.Text), sa.column("id", sa.Text))
events = sa.table(
    "events",
    sa.column("tenant", sa.Text),
    sa.column("session_id", sa.Text),
    sa.column("seq", sa.BigInteger),
    sa.column("run_id", sa.Text),
    sa.column("type", sa.Text),
    sa.column("agent", sa.Text),
    sa.column("recorded_at", sa.Text),
    sa.column("payload", sa.Text),
)
usage = sa.table(
    "usage",
    *(sa.column(name, sa.Text) for name in ("tenant", "session_id", "day", "run_id", "agent", "model")),
    *(sa.column(name, sa.Integer) for name in ("model_calls", "tool_calls")),
    *(sa.column(name, sa.BigInteger) for name in ("seq", "prompt_tokens", "completion_tokens", "total_tokens")),
    *(sa.column(name, sa.BigInteger) for name in ("cached_tokens", "reasoning_tokens")),
    *(sa.column(name, sa.Double) for name in ("model_ms", "tool_ms")),
)


def fill_usage(connection: sa.Connection) -> None:
    for tenant, session_id in connection.execute(sa.select(sessions.c.tenant, sessions.c.id)).all():
        mine = (events.c.tenant == tenant, events.c.session_id == session_id)
        for page in read_messages(connection, mine):
            calls = [call for event in page if (call := read_call(event)) is not None]
            if calls:
                connection.execute(sa.insert(usage), [{"tenant": tenant, "session_id": session_id, **c} for c in calls])


def read_messages(connection: sa.Connection, mine: tuple[Any, ...]) -> Iterator[list[Any]]:
    """A session's messages, oldest first. Those that a fork shares with its original count there."""
    query = sa.select(sa.func.max(events.c.seq)).where(*mine, events.c.type == "session.forked")
    after = connection.scalar(query)
    after = after if isinstance(after, int) else 0
    while True:
        query = sa.select(events).where(*mine, events.c.type == "message.added", events.c.seq > after)
        page = connection.execute(query.order_by(events.c.seq).limit(PAGE_EVENTS)).all()
        # SQLite holds a value of any type in any column.
        numbered = [event for event in page if isinstance(event.seq, int)]
        if not numbered:
            return
        yield numbered
        after = numbered[-1].seq


def read_call(event: Any) -> Json | None:
    """The row of a message that came from a model or a tool; None for any other, and for a damaged one."""
    try:
        payload = json.loads(event.payload)
    except (ValueError, TypeError, RecursionError):
        return None
    completion, tool = (payload.get(name) if isinstance(payload, dict) else None for name in ("completion", "tool"))
    row = {"seq": event.seq, "day": str(event.recorded_at)[:10], "run_id": event.run_id or "", "agent": event.agent}
    if isinstance(completion, dict):
        return {**row, **NO_FIGURES, **read_completion(completion)}
    if isinstance(tool, dict):
        return {**row, **NO_FIGURES, "tool_calls": 1, "tool_ms": read_duration(tool)}
    return None


NO_FIGURES: Json = {
    "model": "",
    "model_calls": 0,
    "tool_calls": 0,
    "prompt_tokens": 0,
    "completion_tokens": 0,
    "total_tokens": 0,
    "cached_tokens": 0,
    "reasoning_tokens": 0,
    "model_ms": 0.0,
    "tool_ms": 0.0,
}


def read_completion(completion: Json) -> Json:
    figures = read_object(completion, "usage")
    params = read_object(read_object(completion, "request"), "params")
    names = [name for name in (completion.get("model"), params.get("model")) if isinstance(name, str) and name]
    return {
        "model": escape(names[0]) if names else "",
        "model_calls": 1,
        "prompt_tokens": read_count(figures, "prompt_tokens"),
        "completion_tokens": read_count(figures, "completion_tokens"),
        "total_tokens": read_count(figures, "total_tokens"),
        "cached_tokens": read_count(read_object(figures, "prompt_tokens_details"), "cached_tokens"),
        "reasoning_tokens": read_count(read_object(figures, "completion_tokens_details"), "reasoning_tokens"),
        "model_ms": read_duration(completion),
    }


def read_object(value: Json, name: str) -> Json:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def read_count(figures: Json, name: str) -> int:
    value = figures.get(name)
    return max(0, min(value, MAX_FIGURE)) if isinstance(value, int) and not isinstance(value, bool) else 0


def read_duration(record: Json) -> float:
    value = record.get("duration_ms")
    return float(max(0, min(value, MAX_FIGURE))) if isinstance(value, int | float) else 0.0


def escape(text: str) -> str:
    """Text that begins with a quotation mark, or holds NUL or a lone surrogate, as a JSON string."""
    if any("\ud800" <= char <= "\udfff" for char in text):
        return json.dumps(text)
    return json.dumps(text, ensure_ascii=False) if text.startswith('"') or "\0" in text else text
