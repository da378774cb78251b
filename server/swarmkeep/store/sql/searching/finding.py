"""Finds sessions by words, and shows where in them these stand.

The index gives the sessions; what is shown comes out of the events themselves. So nothing is shown that is not there
any more, and an index that somebody has damaged finds too little, and never what it should not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec
from sqlalchemy import BigInteger, Connection, bindparam, case, select, text

from swarmkeep.domain.codec import MalformedJson, decode
from swarmkeep.domain.finding.words import MAX_TEXT_CHARACTERS, Term, list_labels, list_said, make_snippet
from swarmkeep.domain.views import ListedSession, Match
from swarmkeep.store.ports.keys import SessionKey
from swarmkeep.store.sql.columns import as_text, escape, stored_bytes, unescape
from swarmkeep.store.sql.searching.indexing import LABELS
from swarmkeep.store.sql.searching.tokens import write_query
from swarmkeep.store.sql.tables import events, of_bound_session, session_columns

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
    """How many characters may still be read for a page."""

    def __init__(self) -> None:
        self.left = MAX_PAGE_CHARACTERS

    def take(self, size: int) -> bool:
        """Whether so many are left, which are so no more."""
        if size > self.left:
            return False
        self.left -= size
        return True


class Candidate(msgspec.Struct, frozen=True):
    """A place where a session may have all terms, and the event as it is stored; None if that is too much to read."""

    seq: int
    payload: str | None


def read_candidates(
    connection: Connection, key: SessionKey, seqs: Sequence[int], terms: Sequence[Term], budget: Budget
) -> list[Candidate]:
    """What stands at a session's places, of which `make_matches` shows those that have the terms."""
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
