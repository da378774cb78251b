"""The tables. Every primary key of session data begins with the tenant and the session, and nothing spans sessions.

The one exception is `creations`, by which a tenant's idempotency key makes one session.

Changes here need a migration; `swarmkeep db check` compares the two.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Double, Index, Integer, LargeBinary, MetaData, Table, Text, bindparam, text

from swarmkeep.store.ports.keys import SessionKey
from swarmkeep.store.sql.columns import Verbatim, Words

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

# The conditions of eight indexes, for statements that are to use them. The migrations set them: said of an index here,
# they would load both dialects wherever a statement is made.
IS_RUNNING = text("status = 'running'")
IS_DUE = text("due_at IS NOT NULL")
IS_BUSY = text("status <> 'idle'")
IS_FIRST = text("seq = 1")
HAS_TROUBLE = text("last_run IN ('failed', 'interrupted')")
IS_BEHIND = text("done < seq")
IS_DAMAGED = text("damaged_seq IS NOT NULL")
IS_SOUND = text("damaged_seq IS NULL")

sessions = Table(
    "sessions",
    metadata,
    Column("tenant", Verbatim, primary_key=True),
    Column("id", Verbatim, primary_key=True),
    Column("head_seq", BigInteger, nullable=False),
    Column("head_hash", LargeBinary, nullable=False),
    Column("agent", Verbatim, nullable=False),
    Column("status", Text, nullable=False),
    Column("created_at", Verbatim, nullable=False),
    Column("updated_at", Verbatim, nullable=False),
    Column("view", Text, nullable=False, comment="SessionView as JSON: what lists show"),
    Column("lease_owner", Verbatim),
    Column("lease_epoch", BigInteger, nullable=False),
    Column("lease_expires_at", Double, comment="seconds since 1970, by this database's clock"),
    Column("due_at", Double, comment="when somebody has to go on with it though it is not running; seconds since 1970"),
    Column(
        "partial",
        Verbatim,
        comment="what its model has said so far (JSON); empty while a server that is to end its run waits for that",
    ),
    Column("last_run", Text, comment="the status of its last run; null before the first"),
    Column(
        "active_at",
        Verbatim,
        nullable=False,
        server_default="",
        comment="updated_at, but while a run is running what that was as it began: lists by activity are in this order",
    ),
    Column("stamp", LargeBinary, comment="that a server with an integrity key wrote this end of the log"),
    Column("damaged_seq", BigInteger, comment="from where on what is stored was found not to be what was recorded"),
    # Ranges that lists are read from (see session_search). Most sessions are idle most of the time, and only those that
    # are not stand in the last two: a turn changes them twice, and they stay small.
    Index("ix_sessions_created", "tenant", "created_at", "id"),
    Index("ix_sessions_agent", "tenant", "agent", "created_at", "id"),
    Index("ix_sessions_busy", "tenant", "status", "created_at", "id"),
    Index("ix_sessions_busy_agent", "tenant", "agent", "status", "created_at", "id"),
    # Of the first both columns change only when a run begins or ends, as the status does, and not with every append.
    Index("ix_sessions_active", "tenant", "active_at", "id"),
    Index("ix_sessions_trouble", "tenant", "last_run", "created_at", "id"),
    Index("ix_sessions_damaged", "tenant", "created_at", "id"),
    # For renewing a process's leases and for finding those that nobody renews. The expiry stays out of it: it changes
    # with every append, and PostgreSQL keeps updates of unindexed columns within the page.
    Index("ix_sessions_running", "lease_owner"),
    Index("ix_sessions_due_at", "due_at"),
    comment="one row per session: its last event, what lists show, and its lease",
)

session_labels = Table(
    "session_labels",
    metadata,
    Column("tenant", Verbatim, primary_key=True),
    Column("session_id", Verbatim, primary_key=True),
    Column("label", LargeBinary, primary_key=True, comment="digest of a metadata key and its value's text"),
    Column("created_at", Verbatim, nullable=False, server_default="", comment="the session's: lists are in its order"),
    Index("ix_session_labels_label", "tenant", "label", "created_at", "session_id"),
    comment="an index of sessions by metadata; it can be rebuilt from the events",
)

events = Table(
    "events",
    metadata,
    Column("tenant", Verbatim, primary_key=True),
    Column("session_id", Verbatim, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("run_id", Verbatim),
    Column("type", Verbatim, nullable=False),
    Column("version", Integer, nullable=False),
    Column("agent", Verbatim, nullable=False),
    Column("recorded_at", Text, nullable=False),
    Column("payload", Text, nullable=False, comment="the exact text that the commitment covers"),
    Column("salt", LargeBinary, comment="null once the payload was redacted"),
    Column("commitment", LargeBinary, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    # A session and its forks begin with the same event: this finds the others.
    Index("ix_events_first", "tenant", "hash"),
)

audit_log = Table(
    "trail",
    metadata,
    Column("tenant", Verbatim, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("type", Verbatim, nullable=False),
    Column("version", Integer, nullable=False),
    Column("actor", Verbatim, nullable=False, comment="who did it; empty where nobody knows"),
    Column("recorded_at", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("salt", LargeBinary, nullable=False),
    Column("commitment", LargeBinary, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    comment="a tenant's audit log: what was done that no session's events can tell, chained like them",
)

blobs = Table(
    "blobs",
    metadata,
    Column("tenant", Verbatim, primary_key=True),
    Column("session_id", Verbatim, primary_key=True),
    Column("hash", Verbatim, primary_key=True),
    Column("text", Verbatim, nullable=False),
    comment="instructions and tool schemas, once per session and content",
)

files = Table(
    "files",
    metadata,
    Column("tenant", Verbatim, primary_key=True),
    Column("session_id", Verbatim, primary_key=True),
    Column("hash", Verbatim, primary_key=True),
    Column("content", LargeBinary, nullable=False),
    comment="pictures and files that messages refer to, once per session and content",
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("tenant", Verbatim, primary_key=True),
    Column("session_id", Verbatim, primary_key=True),
    Column("key", Verbatim, primary_key=True),
    Column("digest", Verbatim, nullable=False),
    Column("run_id", Verbatim),
    Column("seq", BigInteger, nullable=False),
)

creations = Table(
    "creations",
    metadata,
    Column("tenant", Verbatim, primary_key=True),
    Column("key", Verbatim, primary_key=True),
    Column("session_id", Verbatim, nullable=False),
    Index("ix_creations_session", "tenant", "session_id"),
    comment="which session an idempotency key made; what it came with is in idempotency",
)

usage = Table(
    "usage",
    metadata,
    Column("tenant", Verbatim, primary_key=True),
    Column("session_id", Verbatim, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("day", Verbatim, nullable=False, comment="of the event's time, in UTC"),
    Column("run_id", Verbatim, nullable=False, comment="empty outside a run"),
    Column("agent", Verbatim, nullable=False),
    Column("model", Verbatim, nullable=False, comment="empty for a tool call"),
    Column("model_calls", Integer, nullable=False),
    Column("tool_calls", Integer, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("total_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False),
    Column("model_ms", Double, nullable=False),
    Column("tool_ms", Double, nullable=False),
    Index("ix_usage_day", "tenant", "day"),
    Index("ix_usage_run", "tenant", "run_id"),
    comment="what each model and tool call took; an index of the events that can be rebuilt",
)

totals = Table(
    "totals",
    metadata,
    Column("tenant", Verbatim, primary_key=True),
    Column("slice", Integer, primary_key=True, autoincrement=False, comment="by the session; -1: of recounts"),
    Column("sessions", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False, comment="of events' payloads and of texts"),
    Column("day", Verbatim, nullable=False, comment="of the tokens, in UTC; empty without any"),
    Column("tokens", BigInteger, nullable=False, comment="of that day's model calls, deleted sessions included"),
    comment="what each tenant has stored and used, for its quotas; sessions and bytes can be counted again",
)

usage_days = Table(
    "usage_days",
    metadata,
    Column("tenant", Verbatim, primary_key=True),
    Column("day", Verbatim, primary_key=True),
    Column("agent", Verbatim, primary_key=True),
    Column("model", Verbatim, primary_key=True),
    Column("part", Integer, primary_key=True, autoincrement=False, comment="one of a few: not all wait for one row"),
    Column("model_calls", BigInteger, nullable=False),
    Column("tool_calls", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("total_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False),
    Column("model_ms", Double, nullable=False),
    Column("tool_ms", Double, nullable=False),
    comment="sums of usage, kept with each change of it; they can be rebuilt",
)

search_marks = Table(
    "search_marks",
    metadata,
    Column("tenant", Verbatim, primary_key=True),
    Column("session_id", Verbatim, primary_key=True),
    Column("seq", BigInteger, nullable=False, comment="up to where it is to be found by its words"),
    Column("done", BigInteger, nullable=False, comment="up to where it is"),
    Column("round", BigInteger, nullable=False, comment="moves on when all of it is to be indexed anew"),
    Index("ix_search_marks_behind", "tenant", "session_id"),
    comment="how far each session is in the index of words",
)

search = Table(
    "search",
    metadata,
    Column("tenant", Verbatim, primary_key=True),
    Column("session_id", Verbatim, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False, comment="of a message; 0: id and metadata"),
    Column("number", BigInteger, nullable=False, comment="greater the later it was indexed; on SQLite the index's"),
    Column("words", Words, nullable=False),
    Index("ix_search_number", "number"),
    comment="the words that sessions are found by; an index of the events that can be rebuilt",
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Verbatim, primary_key=True),
    Column("tenant", Verbatim, nullable=False),
    Column("name", Verbatim, nullable=False),
    Column("key_hash", LargeBinary, nullable=False, unique=True),
    Column("created_at", Text, nullable=False),
    Column("revoked_at", Text),
    Column("role", Text, nullable=False, server_default="write"),
    Column("last_used_at", Text),
    Column("expires_at", Text),
    Index("ix_api_keys_tenant", "tenant", "created_at", "id"),
)

SESSION_TABLES = (events, blobs, files, idempotency, creations, session_labels, usage)
"""The tables that hold a session's rows beside its head row; each has `tenant` and `session_id`."""

SEARCH_TABLES = (search_marks, search)
"""Those of the index of words, which have them, too. It follows behind, so that it proves nothing.

The marks are first wherever both are changed: who indexes holds a session's mark while its words are written.
"""


def of_session(table: Table, key: SessionKey) -> tuple[Any, Any]:
    """The conditions that a row belongs to a session."""
    return table.c.tenant == key.tenant, (table.c.id if table is sessions else table.c.session_id) == key.id


def of_bound_session(table: Table) -> tuple[Any, Any]:
    """`of_session` for a statement that is prepared: the session is what `session_columns` give."""
    name = table.c.id if table is sessions else table.c.session_id
    tenant, session_id = (bindparam(one, type_=Verbatim()) for one in ("tenant", "session_id"))
    return table.c.tenant == tenant, name == session_id


def session_columns(key: SessionKey) -> dict[str, Any]:
    """The values by which a row belongs to a session."""
    return {"tenant": key.tenant, "session_id": key.id}
