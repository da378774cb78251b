"""The feed of all events of a tenant. It begins empty, and is filled by its readers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "feed",
        sa.Column("tenant", TEXT, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("session_id", TEXT, nullable=False),
        sa.Column("after_seq", sa.BigInteger, nullable=False),
        sa.Column("upto_seq", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "position", name="pk_feed"),
        comment="the order in which a tenant's events are given to those who read them all; numbers are given once",
    )
    op.create_index("ix_feed_session", "feed", ["tenant", "session_id", "upto_seq"])
    op.create_table(
        "feed_positions",
        sa.Column("tenant", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False, comment="a consumer's; empty: the last number that was given"),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "name", name="pk_feed_positions"),
        comment="how far the feed goes, and how far its consumers have read",
    )


def downgrade() -> None:
    op.drop_table("feed_positions")
    op.drop_table("feed")
