"""Sessions, their events, and what is kept beside them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def text(name: str, **options: Any) -> sa.Column[str]:
    """Text compared by code point, whatever the database's locale."""
    return sa.Column(name, sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), **options)


def upgrade() -> None:
    op.create_table(
        "sessions",
        text("tenant", nullable=False),
        text("id", nullable=False),
        sa.Column("head_seq", sa.BigInteger, nullable=False),
        sa.Column("head_hash", sa.LargeBinary, nullable=False),
        text("agent", nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        text("created_at", nullable=False),
        text("updated_at", nullable=False),
        sa.Column("view", sa.Text, nullable=False, comment="SessionView as JSON: what lists show"),
        text("lease_owner"),
        sa.Column("lease_epoch", sa.BigInteger, nullable=False),
        sa.Column("lease_expires_at", sa.Double, comment="seconds since 1970, by this database's clock"),
        sa.PrimaryKeyConstraint("tenant", "id", name="pk_sessions"),
        comment="one row per session: its last event, what lists show, and its lease",
    )
    op.create_index("ix_sessions_created", "sessions", ["tenant", "created_at", "id"])
    running = sa.text("status = 'running'")
    op.create_index("ix_sessions_running", "sessions", ["lease_owner"], sqlite_where=running, postgresql_where=running)
    op.create_table(
        "session_labels",
        text("tenant", nullable=False),
        text("session_id", nullable=False),
        sa.Column("label", sa.LargeBinary, nullable=False, comment="digest of a metadata key and its value's text"),
        sa.PrimaryKeyConstraint("tenant", "session_id", "label", name="pk_session_labels"),
        comment="an index of sessions by metadata; it can be rebuilt from the events",
    )
    op.create_index("ix_session_labels_label", "session_labels", ["tenant", "label"])
    op.create_table(
        "events",
        text("tenant", nullable=False),
        text("session_id", nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        text("run_id"),
        text("type", nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        text("agent", nullable=False),
        sa.Column("recorded_at", sa.Text, nullable=False),
        sa.Column("payload", sa.Text, nullable=False, comment="the exact text that the commitment covers"),
        sa.Column("salt", sa.LargeBinary, comment="null once the payload was redacted"),
        sa.Column("commitment", sa.LargeBinary, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "session_id", "seq", name="pk_events"),
    )
    op.create_table(
        "blobs",
        text("tenant", nullable=False),
        text("session_id", nullable=False),
        text("hash", nullable=False),
        text("text", nullable=False),
        sa.PrimaryKeyConstraint("tenant", "session_id", "hash", name="pk_blobs"),
        comment="instructions and tool schemas, once per session and content",
    )
    op.create_table(
        "idempotency",
        text("tenant", nullable=False),
        text("session_id", nullable=False),
        text("key", nullable=False),
        text("digest", nullable=False),
        text("run_id"),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "session_id", "key", name="pk_idempotency"),
    )
    op.create_table(
        "api_keys",
        text("id", nullable=False),
        text("tenant", nullable=False),
        text("name", nullable=False),
        sa.Column("key_hash", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("revoked_at", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.UniqueConstraint("key_hash", name="uq_api_keys_key_hash"),
    )


def downgrade() -> None:
    for table in ("api_keys", "idempotency", "blobs", "events", "session_labels", "sessions"):
        op.drop_table(table)
