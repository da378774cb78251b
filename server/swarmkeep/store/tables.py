"""The tables. Every primary key of session data begins with the tenant and the session, and nothing spans sessions.

The one exception is `creations`, by which a tenant's idempotency key makes one session.

Changes here need a migration; `swarmkeep db check` compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    bindparam,
    inspect,
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import SchemaItem
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from swarmkeep.events.codec import decode, encode_text
from swarmkeep.store.records import UPGRADE_HINT, SchemaBehind, SessionKey
from swarmkeep_migrations import REVISIONS, STEPS

# Column types for both databases: any text, compared by code point; and the database's clock.


def escape(text: str) -> str:
    """Any Python text in a form that both databases hold: itself, or a JSON string if it has NUL or lone surrogates.

    Text that begins with a quotation mark is written as JSON, too, so that `unescape` can tell.
    """
    if text.startswith('"') or "\0" in text or not (text.isascii() or _is_utf8(text)):
        return encode_text(text)
    return text


def unescape(text: str) -> str:
    """The text that `escape` was given. Total: text that was damaged is left as it is."""
    if not text.startswith('"'):
        return text
    try:
        return decode(text, str)
    except (ValueError, TypeError):
        return text


def is_as_written(value: object) -> bool:
    """Tell if a stored value is text in the one form that `escape` gives it: others may read the same."""
    if not isinstance(value, str):
        return False
    # Nearly all names are of this kind, and are asked about with each row.
    if value.isascii() and '"' not in value and "\0" not in value:
        return True
    return escape(unescape(value)) == value


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_text(value: Any) -> str:
    """A value of any type as text, for SQLite holds any in any column; text stays as it is."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else str(value)


def as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else as_text(value).encode(errors="replace")


class Verbatim(TypeDecorator[str]):
    """Text that comes back exactly as given, compared and sorted by code point."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        # Any other collation sorts by the server's locale: not as SQLite does, and not the same after an upgrade.
        return Text(collation="C") if dialect.name == "postgresql" else Text()

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else escape(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else unescape(as_text(value))


class Words(TypeDecorator[str]):
    """Words with spaces between them: text on SQLite, where another table is their index; tsvector on PostgreSQL."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name != "postgresql":
            return Text()
        from sqlalchemy.dialects.postgresql import TSVECTOR

        return TSVECTOR()


class _Expression(FunctionElement[Any]):
    """What the two databases write differently; `sql` has a place for arguments, if it takes some."""

    sql: ClassVar[Mapping[str, str]]


@compiles(_Expression)
def _compile_expression(element: _Expression, compiler: Any, **kw: Any) -> str:
    return element.sql[compiler.dialect.name].format(compiler.process(element.clauses, **kw))


class database_now(_Expression):
    """Seconds since 1970 by the database's clock, which is the only one that leases go by."""

    type = Double()
    inherit_cache = True
    # unixepoch('subsec') needs SQLite 3.42.
    sql: ClassVar = {
        "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
        "postgresql": "CAST(extract(epoch FROM clock_timestamp()) AS double precision)",
    }


class database_tomorrow(_Expression):
    """The day after today (UTC) by the database's clock, written as in 2026-01-31."""

    type = Text()
    inherit_cache = True
    sql: ClassVar = {
        "sqlite": "date('now', '+1 day')",
        "postgresql": "to_char(CAST(clock_timestamp() AT TIME ZONE 'UTC' AS date) + 1, 'YYYY-MM-DD')",
    }


class stored_bytes(_Expression):
    """The number of bytes that a text takes; PostgreSQL tells it without reading the text."""

    type = BigInteger()
    inherit_cache = True
    # octet_length() needs SQLite 3.43.
    sql: ClassVar = {"sqlite": "length(CAST({} AS BLOB))", "postgresql": "octet_length({})"}


metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

# The conditions of many indexes, for statements that are to use them. The migrations set them: said of an index here,
# they would load both dialects wherever a statement is made.
IS_RUNNING = text("status = 'running'")
IS_DUE = text("due_at IS NOT NULL")
IS_BUSY = text("status <> 'idle'")
# The second part is always true. Statements that do not say it cannot take this index, whose order is not theirs.
IS_WAITING = text("status = 'waiting' AND active_at >= ''")
IS_FIRST = text("seq = 1")
HAS_TROUBLE = text("last_run IN ('failed', 'interrupted')")
IS_BEHIND = text("done < seq")
IS_ASSIGNED = text("assignee IS NOT NULL")
IS_STREAMED = text("first_token_ms IS NOT NULL")
HAS_ENDED_BADLY = text("status <> 'completed'")
IS_RATED = text("feedback IS NOT NULL")
IS_ENCRYPTED = text("person_key IS NOT NULL")
IS_PLAIN = text("person_key IS NULL")
IS_DAMAGED = text("damaged_seq IS NOT NULL")
IS_SOUND = text("damaged_seq IS NULL")


def _make_tenant_table(name: str, *parts: SchemaItem, comment: str | None = None) -> Table:
    """Make a table whose key begins with the tenant."""
    return Table(name, metadata, Column("tenant", Verbatim, primary_key=True), *parts, comment=comment)


def _make_session_table(name: str, *parts: SchemaItem, comment: str | None = None) -> Table:
    """Make a table whose key begins with the tenant and the session."""
    return _make_tenant_table(name, Column("session_id", Verbatim, primary_key=True), *parts, comment=comment)


def _make_measures(count: type[TypeEngine[int]]) -> Iterator[Column[Any]]:
    """The columns of what calls took; `count` is the type of how many they were."""
    for name in ("model_calls", "tool_calls"):
        yield Column(name, count, nullable=False)
    for name in ("prompt", "completion", "total", "cached", "reasoning"):
        yield Column(f"{name}_tokens", BigInteger, nullable=False)
    for name in ("model_ms", "tool_ms"):
        yield Column(name, Double, nullable=False)


sessions = _make_tenant_table(
    "sessions",
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
    Column("assignee", Verbatim, comment="the person or queue that looks after it"),
    Column("feedback", Text, comment="down: people do not find one of its answers good; up: they find them good"),
    Column("person_key", Text, comment="the key that what is recorded of it is encrypted by"),
    # Ranges that lists are read from (see session_search). Most sessions are idle most of the time, and only those that
    # are not stand in the last two: a turn changes them twice, and they stay small.
    Index("ix_sessions_created", "tenant", "created_at", "id"),
    Index("ix_sessions_agent", "tenant", "agent", "created_at", "id"),
    Index("ix_sessions_busy", "tenant", "status", "created_at", "id"),
    Index("ix_sessions_busy_agent", "tenant", "agent", "status", "created_at", "id"),
    # Of the first both columns change only when a run begins or ends, as the status does, and not with every append.
    Index("ix_sessions_active", "tenant", "active_at", "id"),
    # Of those that wait: the ones that do so for longest come first.
    Index("ix_sessions_waiting", "tenant", "active_at", "id"),
    Index("ix_sessions_trouble", "tenant", "last_run", "created_at", "id"),
    Index("ix_sessions_damaged", "tenant", "created_at", "id"),
    Index("ix_sessions_assignee", "tenant", "assignee", "created_at", "id"),
    Index("ix_sessions_feedback", "tenant", "feedback", "created_at", "id"),
    Index("ix_sessions_person_key", "tenant", "person_key", "id"),
    # For renewing a process's leases and for finding those that none renews. The expiry stays out of it: it changes
    # with every append, and PostgreSQL keeps updates of unindexed columns within the page.
    Index("ix_sessions_running", "lease_owner"),
    Index("ix_sessions_due_at", "due_at"),
    comment="one row per session: its last event, what lists show, and its lease",
)

session_labels = _make_session_table(
    "session_labels",
    Column("label", LargeBinary, primary_key=True, comment="digest of a metadata key and its value's text"),
    Column("created_at", Verbatim, nullable=False, server_default="", comment="the session's: lists are in its order"),
    Index("ix_session_labels_label", "tenant", "label", "created_at", "session_id"),
    comment="an index of sessions by metadata; it can be rebuilt from the events",
)

events = _make_session_table(
    "events",
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("run_id", Verbatim),
    Column("type", Verbatim, nullable=False),
    Column("version", Integer, nullable=False),
    Column("agent", Verbatim, nullable=False),
    Column("recorded_at", Text, nullable=False),
    Column("payload", Text, nullable=False, comment="the exact text that the commitment covers"),
    Column("salt", LargeBinary, comment="null once the payload was redacted; empty where both are encrypted"),
    Column("commitment", LargeBinary, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    # A session and its forks begin with the same event: this finds the others.
    Index("ix_events_first", "tenant", "hash"),
)

audit_log = _make_tenant_table(
    "trail",
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

blobs = _make_session_table(
    "blobs",
    Column("hash", Verbatim, primary_key=True),
    Column("text", Verbatim, nullable=False),
    comment="instructions and tool schemas, once per session and content",
)

files = _make_session_table(
    "files",
    Column("hash", Verbatim, primary_key=True),
    Column("content", LargeBinary, nullable=False),
    comment="pictures and files that messages refer to, once per session and content",
)

idempotency = _make_session_table(
    "idempotency",
    Column("key", Verbatim, primary_key=True),
    Column("digest", Verbatim, nullable=False),
    Column("run_id", Verbatim),
    Column("seq", BigInteger, nullable=False),
)

creations = _make_tenant_table(
    "creations",
    Column("key", Verbatim, primary_key=True),
    Column("session_id", Verbatim, nullable=False),
    Index("ix_creations_session", "tenant", "session_id"),
    comment="which session an idempotency key made; what it came with is in idempotency",
)

usage = _make_session_table(
    "usage",
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("day", Verbatim, nullable=False, comment="of the event's time, in UTC"),
    Column("run_id", Verbatim, nullable=False, comment="empty outside a run"),
    Column("agent", Verbatim, nullable=False),
    Column("model", Verbatim, nullable=False, comment="empty for a tool call"),
    *_make_measures(Integer),
    Index("ix_usage_day", "tenant", "day"),
    Index("ix_usage_run", "tenant", "run_id"),
    comment="what each model and tool call took; an index of the events that can be rebuilt",
)

runs = _make_session_table(
    "runs",
    Column("seq", BigInteger, primary_key=True, autoincrement=False, comment="of the event that ended it"),
    Column("run_id", Verbatim, nullable=False),
    Column("agent", Verbatim, nullable=False),
    Column("model", Verbatim, nullable=False, comment="of its last reply; empty without any"),
    Column("status", Text, nullable=False),
    Column("stop_reason", Verbatim, nullable=False, comment="empty without any"),
    Column("error", Verbatim, nullable=False, comment="the code of what it failed with, or empty"),
    Column("created_at", Verbatim, nullable=False),
    Column("finished_at", Verbatim, nullable=False),
    Column("latency_ms", Double, nullable=False, comment="how long it was active"),
    Column("waited_ms", Double, nullable=False, comment="how long it waited besides"),
    Column("first_token_ms", Double),
    Column("model_calls", BigInteger, nullable=False),
    Column("tool_calls", BigInteger, nullable=False),
    Column("tool_errors", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("total_tokens", BigInteger, nullable=False),
    Index("ix_runs_created_at", "tenant", "created_at", "session_id", "seq"),
    Index("ix_runs_agent", "tenant", "agent", "created_at", "session_id", "seq"),
    Index("ix_runs_status", "tenant", "status", "created_at", "session_id", "seq"),
    Index("ix_runs_latency_ms", "tenant", "latency_ms", "session_id", "seq"),
    Index("ix_runs_first_token_ms", "tenant", "first_token_ms", "session_id", "seq"),
    Index("ix_runs_total_tokens", "tenant", "total_tokens", "session_id", "seq"),
    comment="one row for each run that is over; an index of the events that can be rebuilt",
)

totals = _make_tenant_table(
    "totals",
    Column("slice", Integer, primary_key=True, autoincrement=False, comment="by the session; -1: of recounts"),
    Column("sessions", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False, comment="of events' payloads and of texts"),
    Column("day", Verbatim, nullable=False, comment="of the tokens, in UTC; empty without any"),
    Column("tokens", BigInteger, nullable=False, comment="of that day's model calls, deleted sessions included"),
    comment="what each tenant has stored and used, for its quotas; sessions and bytes can be counted again",
)

usage_days = _make_tenant_table(
    "usage_days",
    Column("day", Verbatim, primary_key=True),
    Column("agent", Verbatim, primary_key=True),
    Column("model", Verbatim, primary_key=True),
    Column("part", Integer, primary_key=True, autoincrement=False, comment="one of a few: not all wait for one row"),
    *_make_measures(BigInteger),
    comment="sums of usage, kept with each change of it; they can be rebuilt",
)

search_marks = _make_session_table(
    "search_marks",
    Column("seq", BigInteger, nullable=False, comment="up to where it is to be found by its words"),
    Column("done", BigInteger, nullable=False, comment="up to where it is"),
    Column("round", BigInteger, nullable=False, comment="moves on when all of it is to be indexed anew"),
    Index("ix_search_marks_behind", "tenant", "session_id"),
    comment="how far each session is in the index of words",
)

search = _make_session_table(
    "search",
    Column("seq", BigInteger, primary_key=True, autoincrement=False, comment="of a message; 0: id and metadata"),
    Column("number", BigInteger, nullable=False, comment="greater the later it was indexed; on SQLite the index's"),
    Column("words", Words, nullable=False),
    Index("ix_search_number", "number"),
    comment="the words that sessions are found by; an index of the events that can be rebuilt",
)


def mark_words(words: str) -> str:
    """Write SQL for a row's words as the index has them: the mark of 8 characters that they begin with before each."""
    mark = f"substr({words}, 1, 8)"
    return f"{mark} || replace(substr({words}, 9), ' ', ' ' || {mark})"


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

log_leaves = _make_tenant_table(
    "log_leaves",
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("session_id", Verbatim, nullable=False, comment="empty: the tenant's audit log"),
    Column("seq", BigInteger, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("nodes", LargeBinary, nullable=False, comment="hashes of the complete subtrees that end here"),
    Index("ix_log_leaves_session", "tenant", "session_id", "seq", "position"),
    comment="a Merkle tree for each tenant: where sessions ended when checkpoints were made; only ever added to",
)

log_checkpoints = _make_tenant_table(
    "log_checkpoints",
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("size", BigInteger, nullable=False, comment="how many leaves it is of"),
    Column("root", LargeBinary, nullable=False),
    Column("at", Text, nullable=False),
    Column("note", Verbatim, nullable=False, comment="as it was signed, with all signatures"),
    comment="checkpoints of the log of heads",
)

feed = _make_tenant_table(
    "feed",
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("session_id", Verbatim, nullable=False),
    Column("after_seq", BigInteger, nullable=False),
    Column("upto_seq", BigInteger, nullable=False),
    Index("ix_feed_session", "tenant", "session_id", "upto_seq"),
    comment="the order in which a tenant's events are given to those who read them all; numbers are given once",
)

feed_positions = _make_tenant_table(
    "feed_positions",
    Column("name", Verbatim, primary_key=True, comment="a consumer's; empty: the last number that was given"),
    Column("position", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("updated_at", Text, nullable=False),
    comment="how far the feed goes, and how far its consumers have read",
)

webhooks = _make_tenant_table(
    "webhooks",
    Column("id", Verbatim, primary_key=True),
    Column("url", Verbatim, nullable=False),
    Column("wanted", Verbatim, nullable=False, comment="types, agents and metadata, as JSON"),
    Column("secrets", Verbatim, nullable=False, comment="the newest first, as JSON"),
    Column("state", Text, nullable=False, comment="enabled, paused or gone"),
    Column("created_at", Text, nullable=False),
    Column("updated_at", Text, nullable=False),
    Column("position", BigInteger, nullable=False, comment="its place in the feed"),
    Column("seq", BigInteger, nullable=False),
    Column("failures", BigInteger, nullable=False, comment="since something was delivered last"),
    Column("error", Verbatim, nullable=False, comment="the last one; empty after a delivery"),
    Column("delivered_at", Text),
    Column("lease_owner", Text),
    Column("lease_until", Double),
    comment="addresses that events of the feed are sent to",
)

webhook_deliveries = _make_tenant_table(
    "webhook_deliveries",
    Column("webhook_id", Verbatim, primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("session_id", Verbatim, nullable=False),
    Column("attempts", BigInteger, nullable=False),
    Column("next_at", Text, comment="9: behind another one of its session; none: given up"),
    Column("error", Verbatim, nullable=False),
    Column("updated_at", Text, nullable=False),
    Index("ix_webhook_deliveries_due", "tenant", "webhook_id", "next_at"),
    Index("ix_webhook_deliveries_session", "tenant", "session_id"),
    comment="the places of events that a webhook has passed and not delivered",
)

archives = _make_session_table(
    "archives",
    Column("name", Verbatim, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("sha256", LargeBinary, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("state", Text, nullable=False, comment="archived, copy or garbage"),
    Column("at", Text, nullable=False),
    Index("ix_archives_state", "state"),
    comment="objects that have sessions' events, texts and files instead of these tables, or beside them",
)

person_keys = Table(
    "person_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Verbatim, nullable=False),
    Column("person", LargeBinary, nullable=False, comment="a digest of what metadata call the person"),
    Column("created_at", Text, nullable=False),
    Column("erased_at", Text, nullable=False, comment="empty until it is"),
    Column("secret", LargeBinary, comment="null once it is erased, and where keys are kept elsewhere"),
    Index("ix_person_keys_person", "tenant", "person", "erased_at", unique=True),
    comment="the keys that what is recorded of people is encrypted by",
)

automations = _make_tenant_table(
    "automations",
    Column("id", Verbatim, primary_key=True),
    Column("data", Verbatim, nullable=False),
    Column("count", BigInteger, nullable=False, comment="how many invocations it has had"),
    Column("due_at", BigInteger, comment="when it is due next, in seconds; null: not by itself"),
    Column("session_id", Verbatim, comment="the session that it tells something, with which it is deleted"),
    Column("person_key", Text, comment="the key that its data are encrypted by"),
    Index("ix_automations_due", "due_at"),
    Index("ix_automations_session", "tenant", "session_id"),
    comment="what begins runs at set times, by itself",
)

invocations = _make_tenant_table(
    "invocations",
    Column("automation_id", Verbatim, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("data", Verbatim, nullable=False),
    Column("due_at", BigInteger, comment="when its run is begun, or that is tried again; null: it is over"),
    Column("session_id", Verbatim, comment="the session that it tells something, with which it is deleted"),
    Column("person_key", Text, comment="the key that its data are encrypted by"),
    Index("ix_invocations_due", "due_at"),
    Index("ix_invocations_session", "tenant", "session_id"),
    comment="the last times of each automation, and what became of them",
)

made_agents = _make_tenant_table(
    "made_agents",
    Column("id", Verbatim, primary_key=True),
    Column("version", BigInteger, nullable=False, comment="the last one"),
    Column("created_at", BigInteger, nullable=False, comment="in seconds"),
    Column("updated_at", BigInteger, nullable=False, comment="when the last version was made, in seconds"),
    Column("request", Verbatim, nullable=False, comment="the digest of the request that made it, if it had a key"),
    comment="agents that clients have made",
)

made_agent_versions = _make_tenant_table(
    "made_agent_versions",
    Column("agent_id", Verbatim, primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("data", Verbatim, nullable=False, comment="how the agent is to be"),
    Column("updated_at", BigInteger, nullable=False, comment="when the version was made, in seconds"),
    comment="the last versions of agents that clients have made",
)

SESSION_TABLES = (events, blobs, files, idempotency, creations, session_labels, usage, runs)
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


# The revision of a database's schema, which must be this release's.

LATEST_REVISION = REVISIONS[-1]


def is_known(revision: str) -> bool:
    """Tell if this release can migrate a database from this revision."""
    return revision in REVISIONS or revision in STEPS


def current_revision(connection: Connection) -> str | None:
    """The revision a database is at; None for one without a schema. Raises SchemaBehind for another program's."""
    if not inspect(connection).has_table("alembic_version"):
        _refuse_foreign(connection)
        return None
    revision: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return revision


def _refuse_foreign(connection: Connection) -> None:
    foreign = set(inspect(connection).get_table_names())
    if connection.dialect.name != "sqlite":
        # Programs share such a database, and extensions have tables in it. A file belongs to one program.
        foreign &= set(metadata.tables)
    if foreign:
        raise SchemaBehind(
            f"the database belongs to another program: it has a table {min(foreign)!r} but no Swarmkeep schema; "
            "use a separate database for Swarmkeep"
        )


def require_latest(connection: Connection, display: str) -> None:
    """Raises SchemaBehind unless the database has this release's schema."""
    revision = current_revision(connection)
    if revision == LATEST_REVISION:
        return
    if revision is None:
        raise SchemaBehind(f"the database at {display} is empty; {UPGRADE_HINT}")
    if is_known(revision):
        raise SchemaBehind(
            f"the database at {display} is at revision {revision}, this release needs {LATEST_REVISION}; {UPGRADE_HINT}"
        )
    refuse_unknown(revision, display)


def refuse_unknown(revision: str | None, display: str) -> None:
    """Raises SchemaBehind for a schema that only a newer release knows, and so only that one can change."""
    if revision is None or is_known(revision):
        return
    raise SchemaBehind(
        f"the database at {display} is at revision {revision}, but this release only knows revisions "
        f"up to {LATEST_REVISION}; upgrade swarmkeep, or run `swarmkeep db downgrade` with the newer release"
    )
