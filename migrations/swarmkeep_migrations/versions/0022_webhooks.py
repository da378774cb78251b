"""Webhooks, and the events that they could not deliver yet."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0020"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("tenant", TEXT, nullable=False),
        sa.Column("id", TEXT, nullable=False),
        sa.Column("url", TEXT, nullable=False),
        sa.Column("wanted", TEXT, nullable=False, comment="types, agents and metadata, as JSON"),
        sa.Column("secrets", TEXT, nullable=False, comment="the newest first, as JSON"),
        sa.Column("state", sa.Text, nullable=False, comment="enabled, paused or gone"),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("updated_at", sa.Text, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False, comment="its place in the feed"),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("failures", sa.BigInteger, nullable=False, comment="since something was delivered last"),
        sa.Column("error", TEXT, nullable=False, comment="the last one; empty after a delivery"),
        sa.Column("delivered_at", sa.Text),
        sa.Column("lease_owner", sa.Text),
        sa.Column("lease_until", sa.Double),
        sa.PrimaryKeyConstraint("tenant", "id", name="pk_webhooks"),
        comment="addresses that events of the feed are sent to",
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("tenant", TEXT, nullable=False),
        sa.Column("webhook_id", TEXT, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("seq", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("session_id", TEXT, nullable=False),
        sa.Column("attempts", sa.BigInteger, nullable=False),
        sa.Column("next_at", sa.Text, comment="9: behind another one of its session; none: given up"),
        sa.Column("error", TEXT, nullable=False),
        sa.Column("updated_at", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "webhook_id", "position", "seq", name="pk_webhook_deliveries"),
        comment="the places of events that a webhook has passed and not delivered",
    )
    op.create_index("ix_webhook_deliveries_due", "webhook_deliveries", ["tenant", "webhook_id", "next_at"])
    op.create_index("ix_webhook_deliveries_session", "webhook_deliveries", ["tenant", "session_id"])


def downgrade() -> None:
    op.drop_table("webhook_deliveries")
    op.drop_table("webhooks")
