"""The schema of 0.2.0.

Files, totals for quotas, sums of usage by day, an index of words, key expiry, and lists by status and activity.

It has ten steps, which were revisions of their own while 0.2.0 was made: a database from that time has done some.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TSVECTOR

revision = "0015"
down_revision = "0005"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""Text compared by code point, whatever the database's locale."""
PLACE = ("created_at", "id")
DAY = ("tenant", "day", "agent", "model")
COUNTS = (
    "model_calls",
    "tool_calls",
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "cached_tokens",
    "reasoning_tokens",
)
TIMES = ("model_ms", "tool_ms")


def text(name: str, **options: Any) -> sa.Column[str]:
    return sa.Column(name, TEXT, nullable=False, **options)


def count(name: str, **options: Any) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, **options)


def number(name: str, comment: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, nullable=False, autoincrement=False, comment=comment)


def index_some(name: str, table: str, columns: list[str], condition: str) -> None:
    """Make an index of the rows that meet a condition."""
    where = sa.text(condition)
    op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)


def is_sqlite() -> bool:
    return op.get_context().dialect.name == "sqlite"


def upgrade() -> None:
    config = op.get_context().config
    assert config is not None
    for step in STEPS[config.attributes["steps"]]:
        step()


def add_partial_replies() -> None:
    comment = "what its model has said so far (JSON); empty while a server that is to end its run waits for that"
    op.add_column("sessions", sa.Column("partial", TEXT, comment=comment))


def add_creations() -> None:
    """It begins empty: the rows of known keys do not tell which of them made a session, and which changed one."""
    op.create_table(
        "creations",
        text("tenant"),
        text("key"),
        text("session_id"),
        sa.PrimaryKeyConstraint("tenant", "key", name="pk_creations"),
        comment="which session an idempotency key made; what it came with is in idempotency",
    )
    op.create_index("ix_creations_session", "creations", ["tenant", "session_id"])


def add_key_expiry() -> None:
    with op.batch_alter_table("api_keys") as table:
        table.add_column(sa.Column("expires_at", sa.Text))


def add_totals() -> None:
    """Count what is stored. The tokens of the day begin at zero: they are those that were used since."""
    op.create_table(
        "totals",
        text("tenant"),
        number("slice", "by the session; -1: of recounts"),
        count("sessions"),
        count("bytes", comment="of events' payloads and of texts"),
        text("day", comment="of the tokens, in UTC; empty without any"),
        count("tokens", comment="of that day's model calls, deleted sessions included"),
        sa.PrimaryKeyConstraint("tenant", "slice", name="pk_totals"),
        comment="what each tenant has stored and used, for its quotas; sessions and bytes can be counted again",
    )
    size = "length(CAST({} AS BLOB))" if is_sqlite() else "octet_length({})"
    # All that there is so far stands in the slice of recounts.
    op.execute(f"""
        INSERT INTO totals (tenant, slice, sessions, bytes, day, tokens)
        SELECT tenant, -1, SUM(sessions), SUM(bytes), '', 0 FROM (
            SELECT tenant, COUNT(*) AS sessions, 0 AS bytes FROM sessions GROUP BY tenant
            UNION ALL SELECT tenant, 0, SUM({size.format("payload")}) FROM events GROUP BY tenant
            UNION ALL SELECT tenant, 0, SUM({size.format("text")}) FROM blobs GROUP BY tenant
        ) AS found GROUP BY tenant
    """)


def add_lists() -> None:
    """Index what lists are narrowed down by, each in the order of the list, and sum usage by day."""
    op.create_index("ix_sessions_agent", "sessions", ["tenant", "agent", *PLACE])
    index_some("ix_sessions_busy", "sessions", ["tenant", "status", *PLACE], "status <> 'idle'")
    index_some("ix_sessions_busy_agent", "sessions", ["tenant", "agent", "status", *PLACE], "status <> 'idle'")
    op.create_index("ix_api_keys_tenant", "api_keys", ["tenant", *PLACE])
    # A server of the release before, which may still run, writes labels without the time.
    comment = "the session's: lists are in its order"
    op.add_column("session_labels", text("created_at", server_default="", comment=comment))
    op.execute(
        "UPDATE session_labels SET created_at = sessions.created_at FROM sessions"
        " WHERE sessions.tenant = session_labels.tenant AND sessions.id = session_labels.session_id"
    )
    op.drop_index("ix_session_labels_label", "session_labels")
    op.create_index("ix_session_labels_label", "session_labels", ["tenant", "label", "created_at", "session_id"])
    op.create_index("ix_usage_run", "usage", ["tenant", "run_id"])
    op.create_table(
        "usage_days",
        *(text(name) for name in DAY),
        number("part", "one of a few: not all wait for one row"),
        *(count(name) for name in COUNTS),
        *(sa.Column(name, sa.Double, nullable=False) for name in TIMES),
        sa.PrimaryKeyConstraint(*DAY, "part", name="pk_usage_days"),
        comment="sums of usage, kept with each change of it; they can be rebuilt",
    )
    names, sums = ", ".join(DAY), ", ".join(f"sum({name})" for name in (*COUNTS, *TIMES))
    op.execute(
        f"INSERT INTO usage_days ({names}, part, {', '.join((*COUNTS, *TIMES))})"
        f" SELECT {names}, 0, {sums} FROM usage GROUP BY {names}"
    )


def keep_idempotency_once() -> None:
    rebuild_idempotency(with_rowid=False)


def rebuild_idempotency(*, with_rowid: bool) -> None:
    """Keep the records, on SQLite, in their key's index alone, or once more beside it."""
    if not is_sqlite():
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
    names = 'tenant, session_id, "key", digest, run_id, seq'
    # In the order of the key: pages that are filled from one end to the other are full.
    op.execute(
        f"INSERT INTO idempotency ({names}) SELECT {names} FROM idempotency_before ORDER BY tenant, session_id, key"
    )
    op.drop_table("idempotency_before")


def add_files() -> None:
    op.create_table(
        "files",
        text("tenant"),
        text("session_id"),
        text("hash"),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "session_id", "hash", name="pk_files"),
        comment="pictures and files that messages refer to, once per session and content",
    )
    if not is_sqlite():
        # Pictures are compressed already: to try again costs time at every write, and gains nothing.
        op.execute("ALTER TABLE files ALTER COLUMN content SET STORAGE EXTERNAL")


def add_activity() -> None:
    """Say of each session when something happened in it last, and how its last run stands.

    How that ended is not known of a session until something is recorded in it.
    """
    op.add_column(
        "sessions", sa.Column("last_run", sa.Text, comment="the status of its last run; null before the first")
    )
    # A server of the release before, which may still run, writes sessions without the time.
    comment = "updated_at, but while a run is running what that was as it began: lists by activity are in this order"
    op.add_column("sessions", text("active_at", server_default="", comment=comment))
    op.execute("UPDATE sessions SET active_at = updated_at")
    op.create_index("ix_sessions_active", "sessions", ["tenant", "active_at", "id"])
    trouble = "last_run IN ('failed', 'interrupted')"
    index_some("ix_sessions_trouble", "sessions", ["tenant", "last_run", *PLACE], trouble)


def add_search() -> None:
    """Make the index of words. Servers fill it, a few sessions at a time, and so does `swarmkeep db reindex`."""
    op.create_table(
        "search_marks",
        text("tenant"),
        text("session_id"),
        count("seq", autoincrement=False, comment="up to where it is to be found by its words"),
        count("done", autoincrement=False, comment="up to where it is"),
        count("round", autoincrement=False, comment="moves on when all of it is to be indexed anew"),
        sa.PrimaryKeyConstraint("tenant", "session_id", name="pk_search_marks"),
        comment="how far each session is in the index of words",
    )
    op.execute(
        "INSERT INTO search_marks (tenant, session_id, seq, done, round)"
        " SELECT tenant, id, head_seq, 0, 0 FROM sessions"
    )
    index_some("ix_search_marks_behind", "search_marks", ["tenant", "session_id"], "done < seq")
    op.create_table(
        "search",
        text("tenant"),
        text("session_id"),
        count("seq", autoincrement=False, comment="of a message; 0: id and metadata"),
        count("number", autoincrement=False, comment="greater the later it was indexed; on SQLite the index's"),
        sa.Column("words", sa.Text().with_variant(TSVECTOR(), "postgresql"), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "session_id", "seq", name="pk_search"),
        comment="the words that sessions are found by; an index of the events that can be rebuilt",
    )
    op.create_index("ix_search_number", "search", ["number"])
    if not is_sqlite():
        op.execute("CREATE INDEX ix_search_words ON search USING gin (words)")
        return
    # Without the words themselves, which are in the table, and without where in a text they stand.
    op.execute(
        "CREATE VIRTUAL TABLE search_index USING fts5(words, content='', tokenize='ascii', detail='none', columnsize=0)"
    )
    # Every statement that changes the table changes the index.
    op.execute(
        "CREATE TRIGGER search_added AFTER INSERT ON search BEGIN"
        " INSERT INTO search_index (rowid, words) VALUES (new.number, new.words); END"
    )
    op.execute(
        "CREATE TRIGGER search_removed AFTER DELETE ON search BEGIN"
        " INSERT INTO search_index (search_index, rowid, words) VALUES ('delete', old.number, old.words); END"
    )


def add_integrity() -> None:
    """Say which sessions were found damaged, and make a place for the stamps of servers with an integrity key."""
    stamp = "that a server with an integrity key wrote this end of the log"
    op.add_column("sessions", sa.Column("stamp", sa.LargeBinary, comment=stamp))
    damaged = "from where on what is stored was found not to be what was recorded"
    op.add_column("sessions", sa.Column("damaged_seq", sa.BigInteger, comment=damaged))
    index_some("ix_sessions_damaged", "sessions", ["tenant", *PLACE], "damaged_seq IS NOT NULL")


STEPS: tuple[Callable[[], None], ...] = (
    add_partial_replies,
    add_creations,
    add_key_expiry,
    add_totals,
    add_lists,
    keep_idempotency_once,
    add_files,
    add_activity,
    add_search,
    add_integrity,
)
"""In this order since the first of them was made: only to be added to by a new revision."""


def downgrade() -> None:
    for table in ("search", "search_marks", "files", "usage_days", "totals", "creations"):
        op.drop_table(table)
    if is_sqlite():
        op.execute("DROP TABLE search_index")
    rebuild_idempotency(with_rowid=True)
    op.drop_index("ix_usage_run", "usage")
    op.drop_index("ix_session_labels_label", "session_labels")
    op.create_index("ix_session_labels_label", "session_labels", ["tenant", "label"])
    with op.batch_alter_table("session_labels") as changed:
        changed.drop_column("created_at")
    for name in ("damaged", "trouble", "active", "busy_agent", "busy", "agent"):
        op.drop_index(f"ix_sessions_{name}", "sessions")
    with op.batch_alter_table("sessions") as changed:
        for column in ("damaged_seq", "stamp", "active_at", "last_run", "partial"):
            changed.drop_column(column)
    op.drop_index("ix_api_keys_tenant", "api_keys")
    # An older release knows no end dates and fewer roles. For it, keys with an end date are revoked, and each other key
    # has a role that allows no more than its own did.
    op.execute("UPDATE api_keys SET revoked_at = expires_at WHERE revoked_at IS NULL AND expires_at IS NOT NULL")
    op.execute("UPDATE api_keys SET role = 'read' WHERE role IN ('run', 'approve', 'support', 'audit')")
    op.execute("UPDATE api_keys SET role = 'write' WHERE role = 'admin'")
    with op.batch_alter_table("api_keys") as changed:
        changed.drop_column("expires_at")
