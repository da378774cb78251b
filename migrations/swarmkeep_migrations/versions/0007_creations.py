"""Adds creations: which session an idempotency key made.

It begins empty: which of the keys that are known made a session, and which changed one, their rows do not tell.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def text(name: str, **options: Any) -> sa.Column[str]:
    """Text compared by code point, whatever the database's locale."""
    return sa.Column(name, sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), nullable=False, **options)


def upgrade() -> None:
    op.create_table(
        "creations",
        text("tenant"),
        text("key"),
        text("session_id"),
        sa.PrimaryKeyConstraint("tenant", "key", name="pk_creations"),
        comment="which session an idempotency key made; what it came with is in idempotency",
    )
    op.create_index("ix_creations_session", "creations", ["tenant", "session_id"])


def downgrade() -> None:
    op.drop_index("ix_creations_session", "creations")
    op.drop_table("creations")
