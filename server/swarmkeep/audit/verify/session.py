"""`verify`: whether a stored session is what it was when it was recorded, and where it is not.

What is found: any change, insertion, removal or reordering of events, and anything beside them that does not follow
from them. What cannot be found from the rows alone: a log that was rewritten from some event on with all hashes made
anew, or cut off together with its head row. A head that was noted down elsewhere finds both.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from swarmkeep.audit.verify.problems import Head, Problems, Verification
from swarmkeep.audit.verify.rows import ReferenceCheck, check_labels
from swarmkeep.audit.verify.turns import check_turn
from swarmkeep.domain.chain import Chain
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.errors import HistoryDamaged, SessionNotFound
from swarmkeep.domain.events import RunQueued, RunStarted, SessionForked
from swarmkeep.domain.files.facts import list_fact_files
from swarmkeep.domain.finding.titles import FIRST_MESSAGES
from swarmkeep.domain.fold import evolve
from swarmkeep.domain.request import list_text_hashes
from swarmkeep.domain.state import State
from swarmkeep.domain.views import view_stored_session
from swarmkeep.store.archive import Archive
from swarmkeep.store.chain_check import ChainCheck
from swarmkeep.store.hashing import SealedEvent
from swarmkeep.store.ports import SessionKey
from swarmkeep.store.ports.audit import SessionRows, Snapshot
from swarmkeep.store.soundness import check_ends, check_head, check_stamp
from swarmkeep.store.sql.counting.usage import make_usage_row
from swarmkeep.store.stamps import IntegrityKeys

_MIN_SEQ, _MAX_SEQ = -(2**63), 2**63 - 1
_MAX_PAGE_ROWS = 512
_PAGE_BYTES = 1_000_000
# How much of a session's past is kept while its events go by: more than any event looks back.
_MAX_KEPT_MESSAGES = 1000


async def verify(store: Archive, key: SessionKey, *, noted: Head | None = None) -> Verification:
    """Check all that is stored of a session, against `noted` too if a head was noted down earlier.

    It is checked as it is at one moment, however busy it may be. Reads event by event, in memory that does not grow
    with the log. Raises SessionNotFound if there is no row of it.
    """
    found = await store.read_snapshot(lambda snapshot: _check(snapshot, key, noted, store.integrity_keys))
    if found is None:
        raise SessionNotFound(key.id)
    return found


async def follow_verification(store: Archive, key: SessionKey, found: Verification) -> None:
    """Have a session set aside if what it consists of was found damaged, and released if it verifies again."""
    with contextlib.suppress(SessionNotFound, HistoryDamaged):
        if not found.valid or (await store.state(key)).damage is not None:
            await store.check(key)


def _check(stored: Snapshot, key: SessionKey, noted: Head | None, keys: IntegrityKeys) -> Verification | None:
    evidence = stored.read_session_rows(key)
    if evidence.is_empty:
        return None
    check = _SessionCheck(evidence, noted)
    check.findings.add_replaced_tables(stored.find_replaced_tables())
    after = _MIN_SEQ
    for page in read_pages(stored, key, upto=check.head_seq):
        for sealed in page:
            check.take(sealed)
        check.drop_old_messages()
        last = page[-1].event.seq
        if isinstance(last, int):
            check.compare_usage(page, stored.read_usage_rows(key, after=after, upto=last))
            after = last
    check.compare_usage([], stored.read_usage_rows(key, after=after, upto=_MAX_SEQ))
    check.finish(key, keys)
    if check.forked is not None:
        _check_fork(stored, key, check)
    head = Head(seq=check.state.seq, hash=check.state.hash) if check.count else None
    return check.findings.make_verification(check.count, head, check.list_redacted())


def read_pages(stored: Snapshot, key: SessionKey, *, upto: int | None) -> Iterator[list[SealedEvent]]:
    """A session's events, a bounded number of bytes at a time."""
    after = _MIN_SEQ
    while page := stored.read_sealed(key, after=after, upto=upto, limit=_MAX_PAGE_ROWS, max_bytes=_PAGE_BYTES):
        yield page
        if not isinstance(page[-1].event.seq, int):
            return
        after = page[-1].event.seq


class _SessionCheck:
    """One pass over a log: the chain, the fold and what the events name."""

    def __init__(self, evidence: SessionRows, noted: Head | None) -> None:
        self.findings = Problems()
        self.state = State()
        self.count = 0
        self.forked: tuple[SessionForked, str, str] | None = None
        self._evidence = evidence
        self._dropped_count = 0
        self._usage_rows = 0
        self._first_hash = ""
        self._span = ("", "")
        self._chain = ChainCheck(self.findings, noted)
        self._references = ReferenceCheck(evidence, self.findings)

    @property
    def head_seq(self) -> int | None:
        """The last event by the head row."""
        seq = None if self._evidence.head is None else self._evidence.head["head_seq"]
        return seq if isinstance(seq, int) else None

    def list_redacted(self) -> list[int]:
        return self._chain.list_redacted()

    def take(self, sealed: SealedEvent) -> None:
        event = sealed.event
        if not isinstance(event.seq, int):
            self.findings.add("event_unreadable", f"a row has the seq {event.seq!r}")
            return
        self.count += 1
        self._first_hash = self._first_hash or event.hash
        self._chain.take(sealed)
        check_turn(self.state, event, self.findings)
        self._note_references(event)
        self.state = evolve(self.state, event)
        earliest, latest = self._span
        self._span = min(earliest or event.at, event.at), max(latest, event.at)

    def _note_references(self, event: RecordedEvent) -> None:
        fact = event.fact
        for name in list_text_hashes(fact):
            self._references.check_text(name, event.seq)
        for name in list_fact_files(fact):
            self._references.check_file(name, event.seq)
        if isinstance(fact, RunStarted | RunQueued):
            self._references.note_run(event.run_id)
        elif isinstance(fact, SessionForked):
            self.forked = (fact, self.state.hash, self._first_hash)
            if (fact.from_seq, fact.from_hash) != (self.state.seq, self.state.hash):
                detail = f"event {event.seq} names another event than the one that it follows"
                self.findings.add("fork_differs", detail, event.seq)

    def compare_usage(self, page: Sequence[SealedEvent], rows: Mapping[int, Mapping[str, Any]]) -> None:
        """Compare what is kept of calls, for sums, with the events of calls that were not copied from elsewhere."""
        own = [one.event for one in page if isinstance(one.event.seq, int) and one.event.seq > self._evidence.forked_at]
        self._usage_rows += len(rows)
        told = {event.seq: row for event in own if (row := make_usage_row(event)) is not None}
        for seq in sorted(told.keys() | rows.keys()):
            if told.get(seq) != rows.get(seq):
                detail = f"the usage row of the call of event {seq} does not match the event"
                self.findings.add("usage_differs", detail)

    def drop_old_messages(self) -> None:
        """Let go of what no later event looks back to."""
        messages = self.state.messages
        excess = len(messages) - _MAX_KEPT_MESSAGES
        if excess <= 0:
            return
        self._dropped_count += excess
        # The first ones say what the session is called.
        messages = Chain([*messages[:FIRST_MESSAGES], *messages[FIRST_MESSAGES + excess :]])
        self.state = replace(self.state, messages=messages, finished=Chain(self.state.finished[-1:]))

    def finish(self, key: SessionKey, keys: IntegrityKeys) -> None:
        self._chain.finish()
        self._references.finish(self._chain.last, self.state.forgotten_texts)
        evidence, head = self._evidence, self._evidence.head
        if self._usage_rows != evidence.usage_row_count:
            self.findings.add("usage_differs", "a usage row of a call belongs to no event")
        if head is None:
            self.findings.add("head_missing", "the session has rows, but no head row")
            return
        self._check_ends(head)
        view = view_stored_session(key.id, self.state)
        shown = len(self.state.messages) + self._dropped_count - self.state.removed_messages
        view = replace(view, message_count=max(shown, 0))
        check_head(head, self.state, view, self._span, self.findings)
        check_stamp(head, key, keys, self.findings)
        check_labels(evidence, self.state, self.findings)

    def _check_ends(self, head: Mapping[str, Any]) -> None:
        check_ends(head["head_seq"], self._chain.last, self._evidence.last_seq, self.findings)
        if self._evidence.last_seq < 0:
            self.findings.add("event_unreadable", "there is a row whose seq is not a number")


def _check_fork(stored: Snapshot, key: SessionKey, check: _SessionCheck) -> None:
    """Compare with the session that this one was forked from, if that is still there."""
    assert check.forked is not None
    fact, _, first_hash = check.forked
    source = SessionKey(key.tenant, fact.from_session_id)
    first = stored.read_sealed(source, after=0, upto=1, limit=1)
    # Deleted, and perhaps made anew under its id.
    if not first or first[0].event.hash != first_hash:
        return
    shared = stored.read_sealed(source, after=fact.from_seq - 1, upto=fact.from_seq, limit=1)
    if not shared or shared[0].event.hash != fact.from_hash:
        detail = f"event {fact.from_seq} of {source.id}, from which this session was forked, is a different one there"
        check.findings.add("fork_differs", detail, fact.from_seq)


async def verify_all(
    store: Archive, tenant: str | None = None, *, first: SessionKey | None = None
) -> AsyncGenerator[tuple[SessionKey, Verification]]:
    """Check every session, of one tenant or of all, by tenant and id: also those whose head row is gone.

    `first` is the one to begin with, or where it would be.
    """
    after: SessionKey | None = None
    while keys := await store.list_session_keys(tenant, after=after):
        for key in keys:
            if first is not None and (key.tenant, key.id) < (first.tenant, first.id):
                continue
            try:
                yield key, await verify(store, key)
            except SessionNotFound:
                # Deleted meanwhile.
                continue
        after = keys[-1]
