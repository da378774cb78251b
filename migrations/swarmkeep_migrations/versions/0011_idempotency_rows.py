"""On SQLite, idempotency records are kept in their key's index alone, and not once more beside it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

NAMES = ("tenant", "session_id", "key", "digest", "run_id", "seq")


def upgrade() -> None:
    _rebuild(with_rowid=False)


def downgrade() -> None:
    _rebuild(with_rowid=True)


def _rebuild(*, with_rowid: bool) -> None:
    if op.get_context().dialect.name != "sqlite":
        return
    op.rename_table("idempotency", "idempotency_before")
    op.create_table(
        "idempotency",
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "session_id", "key", name="pk_idempotency"),
        sqlite_with_rowid=with_rowid,
    )
    names = ", ".join(f'"{name}"' for name in NAMES)
    # In the order of the key: pages that are filled from one end to the other are full.
    op.execute(
        f"INSERT INTO idempotency ({names}) SELECT {names} FROM idempotency_before ORDER BY tenant, session_id, key"
    )
    op.drop_table("idempotency_before")
