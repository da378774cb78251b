"""Finds sessions by words, and shows where in them these stand.

The index gives the sessions; what is shown comes out of the events themselves. So nothing is shown that is not there
any more, and an index that was damaged finds too little, and never what it should not.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    LargeBinary,
    Select,
    Table,
    Text,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    literal_column,
    select,
    text,
    type_coerce,
    union,
    update,
)

from swarmkeep.events.codec import Json, MalformedJson, decode
from swarmkeep.events.errors import Overloaded
from swarmkeep.events.facts import MessageAdded, MessageRemoved
from swarmkeep.events.views import ListedSession, Match
from swarmkeep.events.words import MAX_TEXT_CHARACTERS, Term, list_labels, list_said, list_words, make_snippet
from swarmkeep.store.contents import is_archived
from swarmkeep.store.reading import upcast
from swarmkeep.store.records import OutcomeUnknown, SessionKey, StoreUnavailable
from swarmkeep.store.statements import OnDatabase, PreparedStatement, Render, build_insert
from swarmkeep.store.tables import (
    IS_BEHIND,
    SEARCH_TABLES,
    archives,
    as_text,
    escape,
    events,
    mark_words,
    of_bound_session,
    of_session,
    search,
    search_marks,
    session_columns,
    sessions,
    stored_bytes,
    unescape,
)

# Marks: how far each session is in the index of words. They move in the transaction that records the events.


class Mark(msgspec.Struct, frozen=True):
    """A session that is to be found up to `seq`, and is up to `done`. It holds for one `round`: see `void_words`."""

    key: SessionKey
    seq: int
    done: int
    round: int


def set_mark(connection: Connection, key: SessionKey, seq: int) -> None:
    """Have a session indexed up to this event."""
    _prepare_mark(connection.dialect.name).execute(connection, _make_row(key, seq))


def set_marks(connection: Connection, ends: Iterable[tuple[SessionKey, int]]) -> None:
    """`set_mark` for some sessions, each of which is named once."""
    _prepare_mark(connection.dialect.name).insert_many(connection, [_make_row(key, seq) for key, seq in ends])


def _make_row(key: SessionKey, seq: int) -> dict[str, Any]:
    return {"tenant": key.tenant, "session_id": key.id, "seq": seq, "done": 0, "round": 0}


@functools.cache
def _prepare_mark(dialect: str) -> PreparedStatement:
    return PreparedStatement.of_rows(move_mark(build_insert(search_marks, dialect)))


def build_marks(dialect: str, heads: Any, *conditions: Any) -> Any:
    """An insert of a mark for each of these head rows, of whose sessions nothing is indexed."""
    zero: Any = literal_column("0")
    source = select(heads.c.tenant, heads.c.id, heads.c.head_seq, zero, zero).where(*conditions)
    return build_insert(search_marks, dialect).from_select([column.name for column in search_marks.c], source)


def move_mark(given: Any) -> Any:
    """Have an insert (see `build_insert`) move the mark that is there."""
    mine = [search_marks.c.tenant, search_marks.c.session_id]
    return given.on_conflict_do_update(index_elements=mine, set_={"seq": given.excluded.seq})


def void_words(connection: Connection, key: SessionKey) -> None:
    """Take a session out of the index, and have it indexed again.

    Who has read it before this, and writes words of it after, finds another round.
    """
    # First, because it waits for who writes words of it now: then these are there to be deleted.
    again = update(search_marks).where(*of_session(search_marks, key))
    connection.execute(again.values(done=0, round=search_marks.c.round + 1))
    connection.execute(delete(search).where(*of_session(search, key)))


def find_marks(connection: Connection, limit: int) -> list[Mark]:
    """Some sessions that are not indexed up to where they are to be."""
    return [read_mark(row) for row in _FIND.fetch_all(connection, {"most": limit})]


def read_mark(row: Sequence[Any]) -> Mark:
    """A mark from a row of its table's columns, as they are stored."""
    tenant, name, *numbers = row
    return Mark(SessionKey(unescape(as_text(tenant)), unescape(as_text(name))), *numbers)


def count_behind(connection: Connection, most: int | None) -> int:
    """Count the sessions that are not indexed up to where they are to be; no more than `most` are counted."""
    [[count]] = _COUNT.fetch_all(connection, {"most": _MANY if most is None else most})
    return int(count)


_MANY = (1 << 63) - 1
# In the order of the index, because PostgreSQL takes a third of the rows to be behind: so many that it would rather
# read the table than an index which hardly ever has any.
_IN_ORDER = (search_marks.c.tenant, search_marks.c.session_id)
# What is archived is indexed once it is back.
_IS_HERE = ~exists().where(
    archives.c.tenant == search_marks.c.tenant,
    archives.c.session_id == search_marks.c.session_id,
    archives.c.state == literal_column("'archived'"),
)
_FIND = PreparedStatement(
    select(*search_marks.c).where(IS_BEHIND, _IS_HERE).order_by(*_IN_ORDER).limit(bindparam("most"))
)
_BEHIND: Select[Any] = (
    select(literal_column("1")).select_from(search_marks).where(IS_BEHIND, _IS_HERE).order_by(*_IN_ORDER)
)
_COUNT = PreparedStatement(select(func.count()).select_from(_BEHIND.limit(bindparam("most")).subquery()))


def void_all(connection: Connection) -> None:
    """Empty the index, and have all sessions indexed again."""
    delete_strays(connection)
    connection.execute(update(search_marks).values(done=0, round=search_marks.c.round + 1))
    for statement in _VOID[connection.dialect.name]:
        connection.exec_driver_sql(statement)
    add_marks(connection)


_VOID = {
    # Without the trigger, which would take each row out of the index of words by itself.
    "sqlite": (
        "DROP TRIGGER search_removed",
        "DELETE FROM search",
        "INSERT INTO search_index (search_index) VALUES ('delete-all')",
        "CREATE TRIGGER search_removed AFTER DELETE ON search BEGIN"
        " INSERT INTO search_index (search_index, rowid, words)"
        f" VALUES ('delete', old.number, {mark_words('old.words')}); END",
    ),
    # So that words are gone from the pages of the index, too, which forgets none that it has had.
    "postgresql": ("TRUNCATE search",),
}


def count_strays(connection: Connection) -> int:
    """Count the sessions in the index that were deleted by a program that does not know it."""
    found = [select(table.c.tenant, table.c.session_id).where(_is_stray(table)) for table in SEARCH_TABLES]
    return connection.scalar(select(func.count()).select_from(union(*found).subquery())) or 0


def delete_strays(connection: Connection) -> None:
    """Remove what there is of these. In the transaction of a `write` that erases."""
    for table in SEARCH_TABLES:
        connection.execute(delete(table).where(_is_stray(table)))


def _is_stray(table: Table) -> ColumnElement[bool]:
    return ~exists().where(sessions.c.tenant == table.c.tenant, sessions.c.id == table.c.session_id)


def add_marks(connection: Connection) -> None:
    """Have every session indexed that has no mark."""
    is_marked = exists().where(search_marks.c.tenant == sessions.c.tenant, search_marks.c.session_id == sessions.c.id)
    # One that was made meanwhile has its own.
    connection.execute(build_marks(connection.dialect.name, sessions, ~is_marked).on_conflict_do_nothing())


# What is to be indexed next: events of a few sessions, as they are stored.

_EVENTS_AT_ONCE = 500
_BYTES_OF_SESSION = 1_000_000
_BYTES_AT_ONCE = 4_000_000
_SESSIONS_AT_ONCE = 50
_MARK_COLUMNS = len(search_marks.c)


class Part(msgspec.Struct, frozen=True):
    """The part of a session to be indexed next: events as they are stored, oldest first.

    `view`: how lists show it, if that is to be indexed, too.
    """

    mark: Mark
    rows: Sequence[Any]
    upto: int
    view: str | None


def read_parts(connection: Connection) -> list[Part]:
    """Read the parts to be indexed next. What does not fit in is read the next time."""
    read = _read_together if connection.dialect.name == "postgresql" else _read_each
    return [_make_part(connection, mark, rows) for mark, rows in read(connection)]


def _make_part(connection: Connection, mark: Mark, rows: Sequence[Any]) -> Part:
    # What is not read now is read next. A seq of another type is damage, which `verify` names.
    upto = rows[-1][0] if rows and isinstance(rows[-1][0], int) else mark.seq
    is_labelled = mark.done == 0 or any(as_text(row[1]).startswith("session.") for row in rows)
    return Part(mark, rows, upto, _read_view(connection, mark.key) if is_labelled else None)


def _read_view(connection: Connection, key: SessionKey) -> str:
    found = _VIEW.fetch_all(connection, session_columns(key))
    return as_text(found[0][0]) if found else "{}"


def _read_each(connection: Connection) -> Iterator[tuple[Mark, list[Any]]]:
    """One session after the other: SQLite gives each row as it is asked for, and no statement costs a round trip."""
    left = _BYTES_AT_ONCE
    for mark in find_marks(connection, _SESSIONS_AT_ONCE):
        rows: list[Any] = []
        size = 0
        given = {**session_columns(mark.key), "after": mark.done, "upto": mark.seq}
        for row in _EACH.iterate(connection, given):
            rows.append(row)
            size += len(as_text(row[3]))
            if size >= _BYTES_OF_SESSION:
                break
        yield mark, rows
        left -= size
        if left <= 0:
            break


def _read_together(connection: Connection) -> Iterator[tuple[Mark, list[Any]]]:
    """All by one statement, within which PostgreSQL adds up what it gives."""
    found = _TOGETHER.fetch_all(connection, {"most": _SESSIONS_AT_ONCE})
    for mark, rows in itertools.groupby(found, lambda row: tuple(row[:_MARK_COLUMNS])):
        events_of_it = [row[_MARK_COLUMNS:] for row in rows]
        yield read_mark(mark), [row for row in events_of_it if row[0] is not None]


def _select_rows() -> Select[Any]:
    columns = events.c
    page = (columns.seq > bindparam("after"), columns.seq <= bindparam("upto"))
    wanted = (columns.seq, type_coerce(columns.type, Text).label("type"), columns.version, columns.payload)
    some = select(*wanted, columns.salt, columns.hash).where(*of_bound_session(events), *page).order_by(columns.seq)
    return some.limit(literal_column(str(_EVENTS_AT_ONCE)))


_EACH = PreparedStatement(_select_rows())
# What a session has beyond its limit takes no room from the others. One without any event is a row of its mark.
_TOGETHER = PreparedStatement(
    text(
        "WITH behind AS (SELECT tenant, session_id, seq AS upto, done, round FROM search_marks WHERE done < seq"
        " AND NOT EXISTS (SELECT 1 FROM archives WHERE archives.tenant = search_marks.tenant"
        " AND archives.session_id = search_marks.session_id AND archives.state = 'archived')"
        " ORDER BY tenant, session_id LIMIT :most),"
        " found AS (SELECT behind.*, event.*, coalesce(octet_length(payload), 0) AS size FROM behind LEFT JOIN LATERAL"
        " (SELECT seq, type, version, payload, salt, hash FROM events WHERE events.tenant = behind.tenant"
        " AND events.session_id = behind.session_id AND events.seq > done AND events.seq <= upto"
        f" ORDER BY seq LIMIT {_EVENTS_AT_ONCE}) AS event ON true),"
        " of_session AS (SELECT *, sum(size) OVER (PARTITION BY tenant, session_id ORDER BY seq) - size AS before"
        " FROM found),"
        " of_all AS (SELECT *, sum(size) OVER (ORDER BY tenant, session_id, seq) - size AS before_it FROM of_session"
        f" WHERE before < {_BYTES_OF_SESSION})"
        " SELECT tenant, session_id, upto, done, round, seq, type, version, payload, salt, hash FROM of_all"
        f" WHERE before_it < {_BYTES_AT_ONCE} ORDER BY tenant, session_id, seq"
    ).bindparams(bindparam("most", type_=BigInteger()))
)
_VIEW = PreparedStatement(select(sessions.c.view).where(*of_bound_session(sessions)))


# Words put into the index, with the mark that says how far a session is in it.

# Each number of rows is a statement of its own, which every connection prepares.
_FEW_ROWS = 8


class FoundWords(msgspec.Struct, frozen=True):
    """A part, worked out: words by the seq of a message, and what is not to be found any more.

    `last` is the last event that was read, with its hash: the session must still have it.
    """

    mark: Mark
    upto: int
    words: dict[int, str]
    removed: set[int]
    last: tuple[int, bytes] | None


def store_words(connection: Connection, some: Sequence[FoundWords]) -> None:
    """Put words into the index, but for sessions that have changed their past since they were read."""
    # First, because it holds the row: no process removes a session, or its texts, until the words are there.
    current = [words for words in some if _move(connection, words)]
    for words in current:
        for seq in sorted(words.removed):
            _REMOVE.execute(connection, {**session_columns(words.mark.key), "seq": seq})
    found = [(words.mark.key, seq, text) for words in current for seq, text in words.words.items() if text]
    statement = _prepare_insert(connection.dialect.name)
    for few in statement.cut(connection, found):
        # Each statement counts on from the last one's greatest number.
        rows = [
            {**session_columns(key), "seq": seq, "number": place, "words": text}
            for place, (key, seq, text) in enumerate(few, 1)
        ]
        statement.insert_together(connection, rows)


def _move(connection: Connection, words: FoundWords) -> bool:
    mark = words.mark
    row = {**session_columns(mark.key), "upto": words.upto, "done_": mark.done, "round_": mark.round}
    if words.last is not None:
        row |= {"seq_": words.last[0], "hash_": words.last[1]}
    return _prepare_move(connection.dialect.name, words.last is not None).execute(connection, row) > 0


@functools.cache
def _prepare_move(dialect: str, is_same: bool) -> PreparedStatement:
    columns = search_marks.c
    same = (columns.done == bindparam("done_"), columns.round == bindparam("round_"))
    move = (
        update(search_marks)
        .where(*of_bound_session(search_marks), *same)
        .values(done=bindparam("upto", type_=BigInteger()))
    )
    if is_same:
        move = move.where(_HAS_LAST)
    return PreparedStatement(move.returning(text(_NOT_AWAITED)) if dialect == "postgresql" else move)


# The commit is not waited for by who gets the row: after a crash of the database the words may be missing, and with
# them what says that they are there. Then they are put in again.
_NOT_AWAITED = "set_config('synchronous_commit', 'off', true)"
_HAS_LAST = exists().where(
    *of_bound_session(events),
    events.c.seq == bindparam("seq_", type_=BigInteger()),
    events.c.hash == bindparam("hash_"),
)
_REMOVE = PreparedStatement(delete(search).where(*of_bound_session(search), search.c.seq == bindparam("seq")))


_NUMBERS: dict[str, Any] = {
    # It is the row's place in the index, which takes less room the smaller the steps are.
    "sqlite": literal_column("(SELECT coalesce(max(number), 0) FROM search)"),
    "postgresql": literal_column("CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)"),
}


@functools.cache
def _prepare_insert(dialect: str) -> PreparedStatement:
    columns: dict[str, Any] = {name: bindparam(name, type_=each.type) for name, each in search.c.items()}
    columns["number"] = _NUMBERS[dialect] + columns["number"]
    if dialect == "postgresql":
        columns["words"] = text(f"array_to_tsvector(string_to_array({mark_words('CAST(:words AS text)')}, ' '))")
    return PreparedStatement(insert(search).values(columns))


def render_words(found: FoundWords) -> Render | None:
    """The statement that stores the words of a plain turn on PostgreSQL, in one round trip; none for all else."""
    said = [(seq, words) for seq, words in found.words.items() if words]
    if found.removed or found.last is None or len(said) > _FEW_ROWS:
        return None
    mark, (seq, digest) = found.mark, found.last
    row = {**session_columns(mark.key), "upto": found.upto, "done_": mark.done, "round_": mark.round}
    row |= {"seq_": seq, "hash_": digest}
    for place, (said_seq, words) in enumerate(said):
        row |= {f"seq_{place}": said_seq, f"words_{place}": words}
    return lambda dialect: _prepare_statement(len(said)).render(dialect, row)


@functools.cache
def _prepare_statement(count: int) -> PreparedStatement:
    """A row if it was done, and none where the session has changed its past."""
    moved = (
        "moved AS (UPDATE search_marks SET done = :upto WHERE tenant = :tenant AND session_id = :session_id"
        " AND done = :done_ AND round = :round_ AND EXISTS (SELECT 1 FROM events WHERE events.tenant = :tenant"
        " AND events.session_id = :session_id AND events.seq = :seq_ AND events.hash = :hash_)"
        " RETURNING tenant, session_id)"
    )
    rows = ", ".join(f"(CAST(:seq_{place} AS bigint), {place}, CAST(:words_{place} AS text))" for place in range(count))
    said = (
        ", said AS (INSERT INTO search (tenant, session_id, seq, number, words) SELECT moved.tenant, moved.session_id,"
        f" given.seq, {_NUMBERS['postgresql']} + given.place,"
        f" array_to_tsvector(string_to_array({mark_words('given.words')}, ' '))"
        f" FROM moved CROSS JOIN (VALUES {rows}) AS given (seq, place, words))"
    )
    statement = text(f"WITH {moved}{said if count else ''} SELECT {_NOT_AWAITED} FROM moved")
    types: dict[str, Any] = {"tenant": search.c.tenant.type, "session_id": search.c.session_id.type}
    types |= dict.fromkeys(("upto", "done_", "round_", "seq_"), BigInteger()) | {"hash_": LargeBinary()}
    return PreparedStatement(statement.bindparams(*(bindparam(name, type_=of) for name, of in types.items())))


# In the indexes of both databases each word begins with its tenant's mark. A row has that once (see `mark_words`).


def join_words(tenant: str, words: Sequence[str]) -> str:
    """Words of a text, for a row of the index."""
    return _mark_tenant(tenant) + " ".join(words) if words else ""


def write_query(dialect: str, tenant: str, terms: Sequence[Term]) -> str:
    """Write the query that finds the rows that have all terms. The keys are letters and digits, so nothing in them is
    an operator."""
    mark = _mark_tenant(tenant)
    keys = dict.fromkeys(mark + key for term in terms for key in term.keys)
    if dialect == "sqlite":
        return " AND ".join(f'"{key}"*' for key in keys)
    return " & ".join(f"'{key}':*" for key in keys)


def _mark_tenant(tenant: str) -> str:
    # Two that have the same one share a range of the index, and nothing else.
    return f"{zlib.crc32(tenant.encode(errors='surrogatepass')):08x}"


# The indexer: it adds what was recorded since a session was indexed last, behind the appends.

log = logging.getLogger(__name__)

LABELS = 0
"""The seq of a session's id and metadata in the index."""


# Who only looks on wants no more counted.
MANY_BEHIND = 1000


class SqlSearchIndexer(OnDatabase):
    """The index of words, which follows behind what is recorded."""

    async def index_some(self) -> int:
        """Index the next few sessions; returns how many there were."""
        parts = await self.database.read_snapshot(read_parts)
        if not parts:
            return 0
        found = await asyncio.to_thread(lambda: [_work_out_or_skip(part) for part in parts])
        for words, error in zip(
            found, await self.database.write_each(store_words, found, render=render_words), strict=True
        ):
            if isinstance(error, StoreUnavailable | OutcomeUnknown | Overloaded):
                raise error
            if error is not None:
                await self.database.write(functools.partial(store_words, some=[_skip(words.mark, words.upto, error)]))
        return len(parts)

    async def count_sessions_behind(self, most: int | None = MANY_BEHIND) -> int:
        """Count the sessions that are not found yet by all that is in them; no more than `most` are counted."""
        return await self.database.read(lambda connection: count_behind(connection, most))

    async def void_search_index(self) -> None:
        """Empty the index, so that all of it is made again."""
        await self.database.write(void_all, erases=True)

    async def add_missing_marks(self) -> None:
        """Have sessions indexed that were made by who does not know the index."""
        await self.database.write(add_marks)


def _work_out_or_skip(part: Part) -> FoundWords:
    try:
        return work_out(part)
    except Exception as error:
        return _skip(part.mark, part.upto, error)


def _skip(mark: Mark, upto: int, error: Exception) -> FoundWords:
    """Nothing, in the place of what cannot be indexed: it must not keep the others from being found."""
    # Not the error's text, nor where it came from: a session's text may stand there.
    log.error("session %s: the words of some of its events cannot be indexed: %s", mark.key.id, type(error).__name__)
    return FoundWords(mark, upto, {}, set(), None)


def work_out(part: Part) -> FoundWords:
    """The words of what was read."""
    texts: dict[int, str] = {}
    removed: set[int] = set()
    for seq, type_, version, payload, salt, _ in part.rows:
        # What stands in the place of what was removed says nothing.
        if salt is None or type_ not in (MessageAdded.type, MessageRemoved.type):
            continue
        match upcast(type_, version, as_text(payload)):
            case MessageAdded(message=message):
                texts[seq] = list_said(message)
            case MessageRemoved(message_seq=one, seqs=seqs, content=content):
                removed |= {*seqs, *((one,) if content is True else ())}
            case _:
                continue
    if part.view is not None:
        removed.add(LABELS)
        texts[LABELS] = list_labels(part.mark.key.id, read_metadata(part.view))
    tenant = part.mark.key.tenant
    found = {seq: join_words(tenant, list_words(text)) for seq, text in texts.items() if seq not in removed or not seq}
    seq, *_, digest = part.rows[-1] if part.rows else (0, None)
    last = (seq, digest) if isinstance(digest, bytes) else None
    return FoundWords(part.mark, part.upto, found, removed, last)


def read_metadata(view: str) -> Json:
    """The metadata of a session as its head row has it; none if that is damaged."""
    try:
        return decode(view, _Labelled).metadata
    except (ValueError, TypeError):
        return {}


class _Labelled(msgspec.Struct, frozen=True):
    metadata: Json = {}


MAX_ROWS = 50_000
"""Of the messages that have all words only so many are looked at, those first that were indexed last."""
_MAX_MATCHES = 3
# Some of those that the index gives may not be one: of characters that follow one another it knows two at a time.
_MAX_CANDIDATES = 12
_MAX_PAYLOAD_BYTES = 300_000
MAX_PAGE_CHARACTERS = 2_000_000
"""Of all that a page looks through for what it shows; behind these it says only where words are."""

# Of all sessions at once. The rows of one alone are no shorter way on SQLite, where FTS5 would go through all places of
# a word for each of them.
_LAST_PLACES = (
    "SELECT session_id, seq FROM"
    " (SELECT session_id, seq, row_number() OVER (PARTITION BY session_id ORDER BY seq DESC) AS place FROM {found})"
    f" AS placed WHERE place <= {_MAX_CANDIDATES}"
)
_PLACES = {
    "sqlite": text(
        _LAST_PLACES.format(
            found="(SELECT rowid AS number FROM search_index WHERE search_index MATCH :query"
            f" ORDER BY rowid DESC LIMIT {MAX_ROWS}) AS found"
            " CROSS JOIN search ON search.number = found.number WHERE +search.tenant = :tenant"
        )
    ),
    # Nothing but the words says which rows: other indexes would be taken for a short way to the first few.
    "postgresql": text(
        _LAST_PLACES.format(
            found="(SELECT tenant, session_id, seq FROM search WHERE words @@ CAST(:query AS tsquery)"
            f" ORDER BY number + 0 DESC LIMIT {MAX_ROWS}) AS found WHERE tenant = :tenant"
        )
    ),
}


def find_places(connection: Connection, tenant: str, terms: Sequence[Term]) -> dict[str, list[int]]:
    """The tenant's sessions in which one message, or id and metadata, have all terms, and the last few places in each:
    seqs, of which LABELS comes first. In no order."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    if not terms:
        return places
    dialect = connection.dialect.name
    given = {"query": write_query(dialect, tenant, terms), "tenant": escape(tenant)}
    for name, seq in connection.execute(_PLACES[dialect], given):
        if seq.__class__ is int:
            # Another one is damage, and leads nowhere.
            places[unescape(as_text(name))].append(seq)
    for seqs in places.values():
        # The id and metadata first, because they say what the session is.
        seqs.sort(key=lambda seq: (seq != LABELS, -seq))
    return places


class Budget:
    """The number of characters that may still be read for a page."""

    def __init__(self) -> None:
        self.left = MAX_PAGE_CHARACTERS

    def take(self, size: int) -> bool:
        """Tell if so many are left, and take them."""
        if size > self.left:
            return False
        self.left -= size
        return True


class Candidate(msgspec.Struct, frozen=True):
    """A place where a session may have all terms, and the event as it is stored; None if that is too much to read, or
    in the archive."""

    seq: int
    payload: str | None


def read_candidates(
    connection: Connection, key: SessionKey, seqs: Sequence[int], terms: Sequence[Term], budget: Budget
) -> list[Candidate]:
    """Read the contents of a session's places, of which `make_matches` shows those that have the terms."""
    # Of words by themselves the index knows all.
    most = _MAX_CANDIDATES if any(term.is_dense for term in terms) else _MAX_MATCHES
    found: list[Candidate] = []
    for seq in seqs:
        if seq == LABELS:
            found.append(Candidate(seq, None))
        elif (one := _read_candidate(connection, key, seq, budget)) is not None:
            found.append(one)
        if len(found) == most:
            break
    return found


def _read_candidate(connection: Connection, key: SessionKey, seq: int, budget: Budget) -> Candidate | None:
    most = min(_MAX_PAYLOAD_BYTES, budget.left)
    row = connection.execute(_PAYLOAD, {**session_columns(key), "seq_": seq, "most": most}).one_or_none()
    if row is None and is_archived(connection, key):
        return Candidate(seq, None)
    # One that lost its payload at this very moment says nothing any more.
    if row is None or row.salt is None:
        return None
    payload = None if row.payload is None else as_text(row.payload)
    return Candidate(seq, payload if payload is None or budget.take(len(payload)) else None)


def fill_matches(
    found: Sequence[tuple[ListedSession, Sequence[Candidate]]], terms: Sequence[Term]
) -> list[ListedSession]:
    """The sessions, each with where it has all terms; without those that have them no more. It takes its time."""
    budget = Budget()
    shown: list[ListedSession] = []
    for session, candidates in found:
        matches = list(_make_matches(session, candidates, terms, budget))[:_MAX_MATCHES]
        if matches:
            shown.append(msgspec.structs.replace(session, matches=matches))
    return shown


def _make_matches(
    session: ListedSession, candidates: Sequence[Candidate], terms: Sequence[Term], budget: Budget
) -> Iterator[Match]:
    for one in candidates:
        said = _list_text(session, one)
        if said is None or not budget.take(min(len(said), MAX_TEXT_CHARACTERS)):
            yield Match(seq=one.seq or None, snippet="", ranges=[])
        elif (snippet := make_snippet(said, terms)) is not None:
            yield Match(seq=one.seq or None, snippet=snippet.text, ranges=snippet.ranges)


_PAYLOAD = select(
    events.c.salt,
    case((stored_bytes(events.c.payload) <= bindparam("most", type_=BigInteger()), events.c.payload)).label("payload"),
).where(*of_bound_session(events), events.c.seq == bindparam("seq_"))


def _list_text(session: ListedSession, place: Candidate) -> str | None:
    if place.seq == LABELS:
        return list_labels(session.id, session.metadata)
    return None if place.payload is None else _read_said(place.payload)


def _read_said(payload: str) -> str:
    try:
        message = decode(payload).get("message")
    except MalformedJson:
        return ""
    return list_said(message) if isinstance(message, dict) else ""
