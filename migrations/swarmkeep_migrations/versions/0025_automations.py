"""Automations, which begin runs at set times, and what became of each of those times. There are none yet."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "automations",
        sa.Column("tenant", TEXT, nullable=False),
        sa.Column("id", TEXT, nullable=False),
        sa.Column("data", TEXT, nullable=False),
        sa.Column("count", sa.BigInteger, nullable=False, comment="how many invocations it has had"),
        sa.Column("due_at", sa.BigInteger, comment="when it is due next, in seconds; null: not by itself"),
        sa.PrimaryKeyConstraint("tenant", "id", name="pk_automations"),
        comment="what begins runs at set times, by itself",
    )
    op.create_table(
        "invocations",
        sa.Column("tenant", TEXT, nullable=False),
        sa.Column("automation_id", TEXT, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("data", TEXT, nullable=False),
        sa.Column("due_at", sa.BigInteger, comment="when its run is begun, or that is tried again; null: it is over"),
        sa.PrimaryKeyConstraint("tenant", "automation_id", "number", name="pk_invocations"),
        comment="the last times of each automation, and what became of them",
    )
    for table in ("automations", "invocations"):
        condition = sa.text("due_at IS NOT NULL")
        op.create_index(f"ix_{table}_due", table, ["due_at"], sqlite_where=condition, postgresql_where=condition)


def downgrade() -> None:
    op.drop_table("invocations")
    op.drop_table("automations")
