"""What the model of a running run has said so far, where another server wants to know."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    comment = "what its model has said so far (JSON); empty while a server that is to end its run waits for that"
    op.add_column("sessions", sa.Column("partial", text, comment=comment))


def downgrade() -> None:
    with op.batch_alter_table("sessions") as table:
        table.drop_column("partial")
