"""The log of heads, of which checkpoints are made and proofs given. It begins empty."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "log_leaves",
        sa.Column("tenant", TEXT, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("session_id", TEXT, nullable=False, comment="empty: the tenant's audit log"),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.Column("nodes", sa.LargeBinary, nullable=False, comment="hashes of the complete subtrees that end here"),
        sa.PrimaryKeyConstraint("tenant", "position", name="pk_log_leaves"),
        comment="a Merkle tree for each tenant: where sessions ended when checkpoints were made; only ever added to",
    )
    op.create_index("ix_log_leaves_session", "log_leaves", ["tenant", "session_id", "seq", "position"])
    op.create_table(
        "log_checkpoints",
        sa.Column("tenant", TEXT, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("size", sa.BigInteger, nullable=False, comment="how many leaves it is of"),
        sa.Column("root", sa.LargeBinary, nullable=False),
        sa.Column("at", sa.Text, nullable=False),
        sa.Column("note", TEXT, nullable=False, comment="as it was signed, with all signatures"),
        sa.PrimaryKeyConstraint("tenant", "number", name="pk_log_checkpoints"),
        comment="checkpoints of the log of heads",
    )


def downgrade() -> None:
    op.drop_table("log_checkpoints")
    op.drop_table("log_leaves")
