"""On SQLite, words to search for without their tenant's mark before each: a row has it once, before the first.

The index of words keeps it before each. PostgreSQL has the words in the index alone.
"""

from __future__ import annotations

from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

MARK = "substr({0}, 1, 8)"
LONG = f"{MARK} || replace(substr({{0}}, 9), ' ', ' ' || {MARK})"
SHORT = f"{MARK} || replace(substr({{0}}, 9), ' ' || {MARK}, ' ')"


def upgrade() -> None:
    rewrite(SHORT, indexed=LONG)


def downgrade() -> None:
    rewrite(LONG, indexed="{0}")


def rewrite(words: str, indexed: str) -> None:
    """Change the words of all rows, and how the triggers make of a row's words those of the index, which stay."""
    if op.get_bind().dialect.name != "sqlite":
        return
    op.execute("DROP TRIGGER search_added")
    op.execute("DROP TRIGGER search_removed")
    op.execute(f"UPDATE search SET words = {words.format('words')}")
    op.execute(
        "CREATE TRIGGER search_added AFTER INSERT ON search BEGIN"
        f" INSERT INTO search_index (rowid, words) VALUES (new.number, {indexed.format('new.words')}); END"
    )
    op.execute(
        "CREATE TRIGGER search_removed AFTER DELETE ON search BEGIN"
        " INSERT INTO search_index (search_index, rowid, words)"
        f" VALUES ('delete', old.number, {indexed.format('old.words')}); END"
    )
