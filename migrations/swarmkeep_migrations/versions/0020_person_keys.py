"""Keys of people, by which what is recorded of them is encrypted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "person_keys",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("tenant", TEXT, nullable=False),
        sa.Column("person", sa.LargeBinary(), nullable=False, comment="a digest of what metadata call the person"),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("erased_at", sa.Text(), nullable=False, comment="empty until it is"),
        sa.Column("secret", sa.LargeBinary(), comment="null once it is erased, and where keys are kept elsewhere"),
        comment="the keys that what is recorded of people is encrypted by",
    )
    op.create_index("ix_person_keys_person", "person_keys", ["tenant", "person", "erased_at"], unique=True)
    comment = "the key that what is recorded of it is encrypted by"
    op.add_column("sessions", sa.Column("person_key", sa.Text(), comment=comment))
    condition = sa.text("person_key IS NOT NULL")
    op.create_index(
        "ix_sessions_person_key",
        "sessions",
        ["tenant", "person_key", "id"],
        sqlite_where=condition,
        postgresql_where=condition,
    )
    _comment_salt("null once the payload was redacted; empty where both are encrypted")


def downgrade() -> None:
    _comment_salt("null once the payload was redacted")
    op.drop_index("ix_sessions_person_key", "sessions")
    with op.batch_alter_table("sessions") as changed:
        changed.drop_column("person_key")
    op.drop_table("person_keys")


def _comment_salt(comment: str) -> None:
    # SQLite has no comments.
    if op.get_bind().dialect.name == "postgresql":
        op.alter_column("events", "salt", comment=comment)
