"""The index of sessions whose events are in object storage. It begins empty."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "archives",
        sa.Column("tenant", TEXT, nullable=False),
        sa.Column("session_id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.Column("sha256", sa.LargeBinary, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False, comment="archived, copy or garbage"),
        sa.Column("at", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "session_id", "name", name="pk_archives"),
        comment="objects that have sessions' events, texts and files instead of these tables, or beside them",
    )
    op.create_index("ix_archives_state", "archives", ["state"])


def downgrade() -> None:
    op.drop_table("archives")
