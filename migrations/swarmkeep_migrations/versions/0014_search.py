"""The index of words that sessions are found by, and how far each session is in it.

Nothing is indexed here: servers do that, a few sessions at a time, and `swarmkeep db reindex`.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TSVECTOR

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def text(name: str) -> sa.Column[str]:
    """Text compared by code point, whatever the database's locale."""
    return sa.Column(name, sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), nullable=False)


def number(name: str, **options: object) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, autoincrement=False, **options)  # type: ignore[arg-type]


def upgrade() -> None:
    op.create_table(
        "search_marks",
        text("tenant"),
        text("session_id"),
        number("seq", comment="up to where it is to be found by its words"),
        number("done", comment="up to where it is"),
        number("round", comment="moves on when all of it is to be indexed anew"),
        sa.PrimaryKeyConstraint("tenant", "session_id", name="pk_search_marks"),
        comment="how far each session is in the index of words",
    )
    op.execute(
        "INSERT INTO search_marks (tenant, session_id, seq, done, round)"
        " SELECT tenant, id, head_seq, 0, 0 FROM sessions"
    )
    behind = sa.text("done < seq")
    op.create_index(
        "ix_search_marks_behind",
        "search_marks",
        ["tenant", "session_id"],
        sqlite_where=behind,
        postgresql_where=behind,
    )
    op.create_table(
        "search",
        text("tenant"),
        text("session_id"),
        number("seq", comment="of a message; 0: id and metadata"),
        number("number", comment="greater the later it was indexed; on SQLite the index's"),
        sa.Column("words", sa.Text().with_variant(TSVECTOR(), "postgresql"), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "session_id", "seq", name="pk_search"),
        comment="the words that sessions are found by; an index of the events that can be rebuilt",
    )
    op.create_index("ix_search_number", "search", ["number"])
    if op.get_context().dialect.name == "postgresql":
        op.execute("CREATE INDEX ix_search_words ON search USING gin (words)")
        return
    # Without the words themselves, which are in the table, and without where in a text they stand.
    op.execute(
        "CREATE VIRTUAL TABLE search_index USING fts5(words, content='', tokenize='ascii', detail='none', columnsize=0)"
    )
    # So that whoever changes the table, with whatever statement, changes the index.
    op.execute(
        "CREATE TRIGGER search_added AFTER INSERT ON search BEGIN"
        " INSERT INTO search_index (rowid, words) VALUES (new.number, new.words); END"
    )
    op.execute(
        "CREATE TRIGGER search_removed AFTER DELETE ON search BEGIN"
        " INSERT INTO search_index (search_index, rowid, words) VALUES ('delete', old.number, old.words); END"
    )


def downgrade() -> None:
    op.drop_table("search")
    if op.get_context().dialect.name == "sqlite":
        op.execute("DROP TABLE search_index")
    op.drop_table("search_marks")
