"""A tenant's audit log, and an index that finds the forks of a session."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def text(name: str, **options: Any) -> sa.Column[str]:
    """Text compared by code point, whatever the database's locale."""
    return sa.Column(name, sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), **options)


def upgrade() -> None:
    op.create_table(
        "trail",
        text("tenant", nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        text("type", nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        text("actor", nullable=False, comment="who did it; empty where nobody knows"),
        sa.Column("recorded_at", sa.Text, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("salt", sa.LargeBinary, nullable=False),
        sa.Column("commitment", sa.LargeBinary, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "seq", name="pk_trail"),
        comment="a tenant's audit log: what was done that no session's events can tell, chained like them",
    )
    first = sa.text("seq = 1")
    op.create_index("ix_events_first", "events", ["tenant", "hash"], sqlite_where=first, postgresql_where=first)


def downgrade() -> None:
    op.drop_index("ix_events_first", "events")
    op.drop_table("trail")
