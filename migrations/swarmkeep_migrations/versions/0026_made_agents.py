"""Agents that clients make, and their versions. There are none yet."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "made_agents",
        sa.Column("tenant", TEXT, nullable=False),
        sa.Column("id", TEXT, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False, comment="the last one"),
        sa.Column("created_at", sa.BigInteger, nullable=False, comment="in seconds"),
        sa.Column("updated_at", sa.BigInteger, nullable=False, comment="when the last version was made, in seconds"),
        sa.Column("request", TEXT, nullable=False, comment="the digest of the request that made it, if it had a key"),
        sa.PrimaryKeyConstraint("tenant", "id", name="pk_made_agents"),
        comment="agents that clients have made",
    )
    op.create_table(
        "made_agent_versions",
        sa.Column("tenant", TEXT, nullable=False),
        sa.Column("agent_id", TEXT, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("data", TEXT, nullable=False, comment="how the agent is to be"),
        sa.Column("updated_at", sa.BigInteger, nullable=False, comment="when the version was made, in seconds"),
        sa.PrimaryKeyConstraint("tenant", "agent_id", "version", name="pk_made_agent_versions"),
        comment="the last versions of agents that clients have made",
    )


def downgrade() -> None:
    op.drop_table("made_agent_versions")
    op.drop_table("made_agents")
