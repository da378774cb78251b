"""Indexes for what lists are narrowed down by, each in the order of the list; and sums of usage by day."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


DAY = ("tenant", "day", "agent", "model")
COUNTS = (
    "model_calls",
    "tool_calls",
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "cached_tokens",
    "reasoning_tokens",
)
TIMES = ("model_ms", "tool_ms")


def text(name: str, **options: Any) -> sa.Column[str]:
    """Text compared by code point, whatever the database's locale."""
    return sa.Column(name, sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), nullable=False, **options)


def upgrade() -> None:
    busy = sa.text("status <> 'idle'")
    op.create_index("ix_sessions_agent", "sessions", ["tenant", "agent", "created_at", "id"])
    place = ["created_at", "id"]
    for name, columns in (("ix_sessions_busy", ["status"]), ("ix_sessions_busy_agent", ["agent", "status"])):
        op.create_index(name, "sessions", ["tenant", *columns, *place], sqlite_where=busy, postgresql_where=busy)
    op.create_index("ix_api_keys_tenant", "api_keys", ["tenant", "created_at", "id"])
    # A server of the release before, which may still run, writes labels without the time.
    comment = "the session's: lists are in its order"
    op.add_column("session_labels", text("created_at", server_default="", comment=comment))
    op.execute(
        "UPDATE session_labels SET created_at = sessions.created_at FROM sessions"
        " WHERE sessions.tenant = session_labels.tenant AND sessions.id = session_labels.session_id"
    )
    op.drop_index("ix_session_labels_label", "session_labels")
    op.create_index("ix_session_labels_label", "session_labels", ["tenant", "label", "created_at", "session_id"])
    op.create_index("ix_usage_run", "usage", ["tenant", "run_id"])
    op.create_table(
        "usage_days",
        *(text(name) for name in DAY),
        sa.Column(
            "part",
            sa.Integer,
            nullable=False,
            autoincrement=False,
            comment="one of a few: not all wait for one row",
        ),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in COUNTS),
        *(sa.Column(name, sa.Double, nullable=False) for name in TIMES),
        sa.PrimaryKeyConstraint(*DAY, "part", name="pk_usage_days"),
        comment="sums of usage, kept with each change of it; they can be rebuilt",
    )
    names, sums = ", ".join(DAY), ", ".join(f"sum({name})" for name in (*COUNTS, *TIMES))
    op.execute(
        f"INSERT INTO usage_days ({names}, part, {', '.join((*COUNTS, *TIMES))})"
        f" SELECT {names}, 0, {sums} FROM usage GROUP BY {names}"
    )


def downgrade() -> None:
    op.drop_table("usage_days")
    op.drop_index("ix_usage_run", "usage")
    op.drop_index("ix_session_labels_label", "session_labels")
    op.create_index("ix_session_labels_label", "session_labels", ["tenant", "label"])
    with op.batch_alter_table("session_labels") as table:
        table.drop_column("created_at")
    op.drop_index("ix_api_keys_tenant", "api_keys")
    op.drop_index("ix_sessions_busy_agent", "sessions")
    op.drop_index("ix_sessions_busy", "sessions")
    op.drop_index("ix_sessions_agent", "sessions")
