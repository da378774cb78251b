"""Plain appends: which they are, and the parameters of the one statement that does them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Dialect

from swarmkeep.domain.events import SessionForked
from swarmkeep.store.sql.appending.statement import Shape, name_parameters, prepare_append
from swarmkeep.store.sql.audit_log import has_audited_events
from swarmkeep.store.sql.columns import escape
from swarmkeep.store.sql.counting.totals import make_totals_row
from swarmkeep.store.sql.counting.usage import make_usage_row
from swarmkeep.store.sql.heads import AppendPlan, make_advance_row
from swarmkeep.store.sql.indexes.usage_days import make_day_rows, sum_rows
from swarmkeep.store.sql.tables import blobs, events, usage, usage_days
from swarmkeep.store.sql.writes import make_event_rows, measure_growth

Row = dict[str, Any]

# Each number of rows is a statement of its own, which every connection prepares.
_MAX_EVENTS = 8
_MAX_TEXTS = 4
# The most that a quota is compared with: more than anybody has, and an integer of the database's.
_MANY_BYTES = 2**62


def is_plain(plan: AppendPlan) -> bool:
    """Whether an append is of the usual kind: to a session that is there, changing no labels and no audit log."""
    return (
        plan.base.seq > 0
        and 0 < len(plan.sealed) <= _MAX_EVENTS
        and len(plan.blobs) <= _MAX_TEXTS
        and not any(isinstance(text, bytes) for text in plan.blobs.values())
        and plan.state.metadata is plan.base.metadata
        and not has_audited_events(plan.sealed)
        and not (plan.idempotency is not None and plan.base.forgot_keys)
        and not any(isinstance(one.event.fact, SessionForked) for one in plan.sealed)
    )


def render_append(plan: AppendPlan, dialect: Dialect) -> tuple[str, Sequence[Any]]:
    """The statement of a plain append, and its parameters."""
    calls = [row for row in (make_usage_row(one.event) for one in plan.sealed) if row is not None]
    days = make_day_rows(plan.key, sum_rows(calls))
    shape = Shape(
        mode=plan.lease_mode,
        running=plan.is_running,
        changes_index=plan.changes_index,
        event_count=len(plan.sealed),
        call_count=len(calls),
        day_count=len(days),
        text_count=len(plan.blobs),
        has_record=plan.idempotency is not None,
        has_quota=plan.quota is not None,
    )
    row = make_advance_row(plan)
    row |= name_parameters(events, make_event_rows(plan.key, plan.sealed))
    row |= name_parameters(usage, calls)
    row |= name_parameters(usage_days, days)
    row |= name_parameters(blobs, [{"hash": name, "text": text} for name, text in plan.blobs.items()])
    return prepare_append(shape).render(dialect, row | _make_record_row(plan) | _make_totals_row(plan))


def _make_record_row(plan: AppendPlan) -> Row:
    record = plan.idempotency
    if record is None:
        return {}
    return {"record_key": record.key, "record_digest": record.digest, "record_run_id": record.run_id}


def _make_totals_row(plan: AppendPlan) -> Row:
    growth = measure_growth(plan)
    row = {f"totals_{name}": value for name, value in make_totals_row(plan.key, growth).items()}
    if plan.quota is not None:
        # As if all texts were new: where that makes the difference, the quota is checked by the general way.
        texts = sum(len(escape(text).encode()) for text in plan.blobs.values() if isinstance(text, str))
        row["spare_bytes"] = min(plan.quota.max_bytes - growth.bytes - texts, _MANY_BYTES)
    return row
