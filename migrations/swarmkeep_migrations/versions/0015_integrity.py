"""Which sessions were found damaged; and a place for the stamps of servers that have an integrity key."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    stamp = "that a server with an integrity key wrote this end of the log"
    op.add_column("sessions", sa.Column("stamp", sa.LargeBinary, comment=stamp))
    damaged = "from where on what is stored was found not to be what was recorded"
    op.add_column("sessions", sa.Column("damaged_seq", sa.BigInteger, comment=damaged))
    is_damaged = sa.text("damaged_seq IS NOT NULL")
    op.create_index(
        "ix_sessions_damaged",
        "sessions",
        ["tenant", "created_at", "id"],
        sqlite_where=is_damaged,
        postgresql_where=is_damaged,
    )


def downgrade() -> None:
    op.drop_index("ix_sessions_damaged", "sessions")
    with op.batch_alter_table("sessions") as table:
        table.drop_column("damaged_seq")
        table.drop_column("stamp")
