"""What calls took, as an index of the events; filled from those that there are."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from swarmkeep.store.sql.usage import rebuild_usage

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
    rebuild_usage(op.get_bind())


def downgrade() -> None:
    op.drop_table("usage")
