"""Adds the table of runs that are over, filled from the recorded events.

Sessions that are in the archive are filled in as far as their events are here: not at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
PLACE = ["created_at", "session_id", "seq"]


def text(name: str, **options: Any) -> sa.Column[str]:
    return sa.Column(name, TEXT, nullable=False, **options)


def count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False)


def upgrade() -> None:
    op.create_table(
        "runs",
        text("tenant"),
        text("session_id"),
        sa.Column("seq", sa.BigInteger, nullable=False, autoincrement=False, comment="of the event that ended it"),
        text("run_id"),
        text("agent"),
        text("model", comment="of its last reply; empty without any"),
        sa.Column("status", sa.Text, nullable=False),
        text("stop_reason", comment="empty without any"),
        text("error", comment="the code of what it failed with, or empty"),
        text("created_at"),
        text("finished_at"),
        sa.Column("latency_ms", sa.Double, nullable=False, comment="how long it was active"),
        sa.Column("waited_ms", sa.Double, nullable=False, comment="how long it waited besides"),
        sa.Column("first_token_ms", sa.Double),
        *map(count, COUNTS),
        sa.PrimaryKeyConstraint("tenant", "session_id", "seq", name="pk_runs"),
        comment="one row for each run that is over; an index of the events that can be rebuilt",
    )
    fill_runs(op.get_bind())
    op.create_index("ix_runs_created_at", "runs", ["tenant", *PLACE])
    op.create_index("ix_runs_agent", "runs", ["tenant", "agent", *PLACE])
    badly = sa.text("status <> 'completed'")
    op.create_index("ix_runs_status", "runs", ["tenant", "status", *PLACE], sqlite_where=badly, postgresql_where=badly)
    for name in ("latency_ms", "total_tokens"):
        op.create_index(f"ix_runs_{name}", "runs", ["tenant", name, *PLACE[1:]])
    streamed = sa.text("first_token_ms IS NOT NULL")
    op.create_index(
        "ix_runs_first_token_ms",
        "runs",
        ["tenant", "first_token_ms", *PLACE[1:]],
        sqlite_where=streamed,
        postgresql_where=streamed,
    )


def downgrade() -> None:
    op.drop_table("runs")


# The rows as this revision's release made them. Text columns are copied as they are stored: in them, text that a
# database cannot hold is written as a JSON string.
Json = dict[str, Any]

COUNTS = ("model_calls", "tool_calls", "tool_errors", "prompt_tokens", "completion_tokens", "total_tokens")
PAGE_EVENTS = 500
MAX_FIGURE = 2**40
MAX_SUM = 2**63 - 1
STATUSES = {
    "run.completed": "completed",
    "run.failed": "failed",
    "run.cancelled": "cancelled",
    "run.interrupted": "interrupted",
}
FAILURES = ("error", "timeout", "unknown_outcome")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)

sessions = sa.table("sessions", sa.column("tenant", sa.Text), sa.column("id", sa.Text))
events = sa.table(
    "events",
    *(sa.column(name, sa.Text) for name in ("tenant", "session_id", "run_id", "type", "recorded_at", "payload")),
    sa.column("seq", sa.BigInteger),
)
runs = sa.table(
    "runs",
    *(sa.column(name, sa.Text) for name in ("tenant", "session_id", "run_id", "agent", "model", "status")),
    *(sa.column(name, sa.Text) for name in ("stop_reason", "error", "created_at", "finished_at")),
    *(sa.column(name, sa.Double) for name in ("latency_ms", "waited_ms", "first_token_ms")),
    *(sa.column(name, sa.BigInteger) for name in ("seq", *COUNTS)),
)


def fill_runs(connection: sa.Connection) -> None:
    for tenant, session_id in connection.execute(sa.select(sessions.c.tenant, sessions.c.id)).all():
        told = Told()
        for event, payload in read_events(connection, (events.c.tenant == tenant, events.c.session_id == session_id)):
            told.take(event, payload)
        ended = [told.make_row(run) for run in told.ended if run["seq"] > told.forked_at]
        if ended:
            connection.execute(sa.insert(runs), [{"tenant": tenant, "session_id": session_id, **row} for row in ended])


def read_events(connection: sa.Connection, mine: tuple[Any, ...]) -> Iterator[tuple[Any, Json]]:
    """The events of a session that runs are told by, oldest first, with their payloads as far as they can be read."""
    after = 0
    while True:
        query = sa.select(events).where(*mine, events.c.type.in_(STEPS), events.c.seq > after)
        page = connection.execute(query.order_by(events.c.seq).limit(PAGE_EVENTS)).all()
        # SQLite holds a value of any type in any column.
        numbered = [event for event in page if isinstance(event.seq, int)]
        if not numbered:
            return
        for event in numbered:
            try:
                payload = json.loads(event.payload)
            except (ValueError, TypeError, RecursionError):
                continue
            if isinstance(payload, dict):
                yield event, payload
        after = numbered[-1].seq


class Told:
    """What the events of a session have told so far of its runs."""

    def __init__(self) -> None:
        self.agent = ""
        self.run: Json | None = None
        self.queue: dict[Any, Json] = {}
        self.ended: list[Json] = []
        self.forked_at = 0

    def take(self, event: Any, payload: Json) -> None:
        STEPS[event.type](self, event, payload)

    def change_agent(self, event: Any, payload: Json) -> None:
        agent = payload.get("to" if event.type == "handoff.made" else "agent")
        if isinstance(agent, str):
            self.agent = agent

    def fork(self, event: Any, payload: Json) -> None:
        if self.run is not None:
            self.ended.append({**self.run, "seq": event.seq, "finished_at": event.recorded_at})
        self.run, self.queue, self.forked_at = None, {}, event.seq

    def queue_run(self, event: Any, payload: Json) -> None:
        self.queue[event.run_id or ""] = {**begin_run(event), "agent": payload.get("agent")}

    def start_run(self, event: Any, payload: Json) -> None:
        self.run = begin_run(event)
        self.queue.pop(event.run_id or "", None)

    def wait(self, event: Any, payload: Json) -> None:
        if self.run is not None:
            self.run["waiting_since"] = self.run["waiting_since"] or event.recorded_at

    def go_on(self, event: Any, payload: Json) -> None:
        if self.run is None and self.ended and self.ended[-1]["run_id"] == event.run_id:
            self.run = self.ended.pop()
        if self.run is not None:
            end_wait(self.run, self.run["waiting_since"] or self.run["finished_at"], event.recorded_at)
            self.run["finished_at"] = None

    def add_call(self, event: Any, payload: Json) -> None:
        run, completion, tool = self.run, payload.get("completion"), payload.get("tool")
        if run is None or event.run_id != run["run_id"]:
            return
        if isinstance(completion, dict):
            figures = read_object(completion, "usage")
            for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
                run[name] = min(run[name] + read_count(figures, name), MAX_SUM)
            run["model_calls"] += 1
            if event.type == "message.added":
                run["model"] = read_model(completion) or run["model"]
                if run["first_token_ms"] is None:
                    run["first_token_ms"] = completion.get("time_to_first_token_ms")
        elif isinstance(tool, dict):
            run["tool_calls"] += 1
            run["tool_errors"] += tool.get("status") in FAILURES

    def end_run(self, event: Any, payload: Json) -> None:
        if self.run is not None and self.run["run_id"] == event.run_id:
            run, self.run = {**self.run, "agent": self.agent}, None
        elif event.run_id in self.queue:
            run = self.queue.pop(event.run_id)
            run["agent"] = run["agent"] or self.agent
        else:
            return
        if run["waiting_since"]:
            end_wait(run, run["waiting_since"], event.recorded_at)
        code = read_object(payload, "error").get("code")
        run |= {
            "seq": event.seq,
            "status": STATUSES[event.type],
            "finished_at": event.recorded_at,
            "stop_reason": payload.get("stop_reason") or "",
            "error": code if isinstance(code, str) else "",
        }
        self.ended.append(run)

    def make_row(self, run: Json) -> Json:
        took = count_milliseconds(run["created_at"], run["finished_at"]) - run["waited_ms"]
        first = run["first_token_ms"]
        names = {name: escape(run[name]) for name in ("agent", "model", "stop_reason", "error")}
        times: Json = {"latency_ms": bound(took), "waited_ms": bound(run["waited_ms"])}
        times["first_token_ms"] = bound(first) if isinstance(first, int | float) else None
        return {**{name: value for name, value in run.items() if name != "waiting_since"}, **names, **times}


Step = Callable[[Told, Any, Json], None]
STEPS: dict[str, Step] = {
    **dict.fromkeys(("session.created", "session.updated", "handoff.made"), Told.change_agent),
    "session.forked": Told.fork,
    "run.queued": Told.queue_run,
    "run.started": Told.start_run,
    "run.waiting": Told.wait,
    "run.resumed": Told.go_on,
    **dict.fromkeys(("message.added", "compaction.summarised"), Told.add_call),
    **dict.fromkeys(STATUSES, Told.end_run),
}


def begin_run(event: Any) -> Json:
    return {
        "run_id": event.run_id or "",
        "created_at": event.recorded_at,
        "finished_at": None,
        "waiting_since": "",
        "waited_ms": 0.0,
        "model": "",
        "first_token_ms": None,
        **dict.fromkeys(COUNTS, 0),
    }


def end_wait(run: Json, since: str | None, until: str) -> None:
    if since is not None:
        run["waited_ms"] += count_milliseconds(since, until)
    run["waiting_since"] = ""


def count_milliseconds(since: str, until: str) -> float:
    try:
        first, last = (datetime.fromisoformat(text) for text in (since, until) if TIME.fullmatch(text))
    except ValueError:
        return 0.0
    return max(0.0, (last - first).total_seconds() * 1000)


def bound(milliseconds: float) -> float:
    return round(max(0.0, min(float(milliseconds), float(MAX_FIGURE))), 3)


def read_object(value: Json, name: str) -> Json:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def read_model(completion: Json) -> str:
    params = read_object(read_object(completion, "request"), "params")
    names = [name for name in (completion.get("model"), params.get("model")) if isinstance(name, str) and name]
    return names[0] if names else ""


def read_count(figures: Json, name: str) -> int:
    value = figures.get(name)
    return max(0, min(value, MAX_FIGURE)) if isinstance(value, int) and not isinstance(value, bool) else 0


def escape(text: str) -> str:
    """Text that begins with a quotation mark, or holds NUL or a lone surrogate, as a JSON string."""
    if any("\ud800" <= char <= "\udfff" for char in text):
        return json.dumps(text)
    return json.dumps(text, ensure_ascii=False) if text.startswith('"') or "\0" in text else text
