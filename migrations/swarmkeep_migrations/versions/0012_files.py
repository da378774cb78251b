"""Adds files: the pictures and files that messages refer to, once for each session and content."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def text(name: str) -> sa.Column[str]:
    """Text compared by code point, whatever the database's locale."""
    return sa.Column(name, sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), nullable=False)


def upgrade() -> None:
    op.create_table(
        "files",
        text("tenant"),
        text("session_id"),
        text("hash"),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "session_id", "hash", name="pk_files"),
        comment="pictures and files that messages refer to, once per session and content",
    )
    if op.get_context().dialect.name == "postgresql":
        # Pictures are compressed already: to try again costs time at every write, and gains nothing.
        op.execute("ALTER TABLE files ALTER COLUMN content SET STORAGE EXTERNAL")


def downgrade() -> None:
    # The bytes go, so they are not counted any more: in the slice of recounts.
    op.execute("""
        INSERT INTO totals (tenant, slice, sessions, bytes, day, tokens)
        SELECT tenant, -1, 0, 0, '', 0 FROM files GROUP BY tenant
        ON CONFLICT DO NOTHING
    """)
    op.execute("""
        UPDATE totals SET bytes = bytes - (SELECT COALESCE(SUM(length(content)), 0) FROM files
        WHERE files.tenant = totals.tenant) WHERE slice = -1
    """)
    op.drop_table("files")
