"""Adds totals: how many sessions and bytes each tenant has, counted from what is stored.

The tokens of the day begin at zero: they are those that were used since.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def text(name: str, **options: Any) -> sa.Column[str]:
    """Text compared by code point, whatever the database's locale."""
    return sa.Column(name, sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), nullable=False, **options)


def count(name: str, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger, nullable=False, **options)


def upgrade() -> None:
    op.create_table(
        "totals",
        text("tenant"),
        sa.Column("slice", sa.Integer, nullable=False, autoincrement=False, comment="by the session; -1: of recounts"),
        count("sessions"),
        count("bytes", comment="of events' payloads and of texts"),
        text("day", comment="of the tokens, in UTC; empty without any"),
        count("tokens", comment="of that day's model calls, deleted sessions included"),
        sa.PrimaryKeyConstraint("tenant", "slice", name="pk_totals"),
        comment="what each tenant has stored and used, for its quotas; sessions and bytes can be counted again",
    )
    connection = op.get_bind()
    connection.execute(sa.text(FILL[connection.dialect.name]))


def downgrade() -> None:
    op.drop_table("totals")


# All that there is so far stands in the slice of recounts.
FILL_QUERY = """
    INSERT INTO totals (tenant, slice, sessions, bytes, day, tokens)
    SELECT tenant, -1, SUM(sessions), SUM(bytes), '', 0 FROM (
        SELECT tenant, COUNT(*) AS sessions, 0 AS bytes FROM sessions GROUP BY tenant
        UNION ALL SELECT tenant, 0, SUM({payload}) FROM events GROUP BY tenant
        UNION ALL SELECT tenant, 0, SUM({text}) FROM blobs GROUP BY tenant
    ) AS found GROUP BY tenant
"""
FILL = {
    "sqlite": FILL_QUERY.format(payload="length(CAST(payload AS BLOB))", text="length(CAST(text AS BLOB))"),
    "postgresql": FILL_QUERY.format(payload="octet_length(payload)", text="octet_length(text)"),
}
