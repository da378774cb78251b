"""`verify`: whether a stored session is what it was when it was recorded, and where it is not.

What is found: any change, insertion, removal or reordering of events, and anything beside them that does not follow
from them. Two changes cannot be found from the rows alone: a log that was rewritten from some event on with all
hashes recomputed, or cut off together with its head row. A head that was noted down elsewhere finds both.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from swarmkeep.events.chain import Chain
from swarmkeep.events.errors import HistoryDamaged, InvalidRequest, SessionNotFound
from swarmkeep.events.facts import (
    MessageAdded,
    RecordedEvent,
    RunCompleted,
    RunQueued,
    RunStarted,
    SessionForked,
    ToolStarted,
)
from swarmkeep.events.fold import evolve
from swarmkeep.events.messages import list_fact_files, list_text_hashes
from swarmkeep.events.state import State, ToolCall
from swarmkeep.events.views import view_stored_session
from swarmkeep.events.words import FIRST_MESSAGES
from swarmkeep.history.export import LOSSES
from swarmkeep.store.archives import ArchiveOutage
from swarmkeep.store.audit import SessionRows, SqlSnapshot
from swarmkeep.store.hashing import SealedEvent
from swarmkeep.store.integrity import (
    ChainCheck,
    IntegrityKeys,
    check_ends,
    check_head,
    check_person_key,
    check_stamp,
    is_erased,
)
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import ArchiveUnavailable, SealedBatch, SessionKey, labels_of
from swarmkeep.store.runs import find_reopened, make_run_rows
from swarmkeep.store.usage import make_usage_row

# Problems that a check found: stable codes, listed up to a bound, the earliest event first.

MAX_PROBLEMS = 100
MAX_REDACTED = 1000

CODES: Mapping[str, str] = {
    "event_missing": "there is no event with this seq, although there are later ones, or the head row names a later "
    "one",
    "event_beyond_head": "the event comes after the last one that the head row names",
    "event_unreadable": "the row does not hold an event",
    "hash_differs": "the event's hash does not match the event and the hash before it",
    "payload_differs": "the payload is not the one that was recorded",
    "payload_invalid": "an event of this type and version cannot have this payload",
    "salt_invalid": "the salt does not have 16 bytes, as that of every recorded payload",
    "row_differs": "the row is not written as a server writes it, although it may mean the same",
    "payload_missing": "the payload was removed, and no `session.redacted` event says so",
    "stand_in_differs": "what is in place of a removed payload is not what redaction left there",
    "redaction_undone": "a `session.redacted` event says that the payload was removed, but it is there",
    **LOSSES,
    "head_missing": "the session has rows, but no head row",
    "head_differs": "a column of the head row does not match the events",
    "stamp_missing": "the head row has no stamp, although there is an integrity key",
    "stamp_differs": "the head row's stamp is not one of this head by an integrity key",
    "labels_differ": "the labels that lists are filtered by do not match the metadata",
    "run_differs": "the row of a run in the table of runs does not match its events",
    "usage_differs": "the usage row of a call, from which tokens and time are summed up, does not match its event",
    "lease_invalid": "the head row's lease is not one that a server could have left",
    "blob_differs": "an instructions text or a tool schema does not match the hash that is its name",
    "blob_missing": "an instructions text or a tool schema that an event names is missing",
    "blob_stray": "there is an instructions text or a tool schema that no event names",
    "file_differs": "a file or picture does not match the hash that is its name",
    "file_missing": "a file or picture that an event refers to is missing",
    "file_stray": "there is a file or picture that no event refers to",
    "mark_dangling": "an idempotency key leads to an event or a run that does not exist",
    "mark_invalid": "an idempotency key's row is not one that a server could have left",
    "fork_differs": "the session that this one was forked from has another history, or the `session.forked` event "
    "names another one",
    "result_without_call": "a tool's result answers no call of its turn",
    "result_twice": "a call of a tool has two results",
    "start_without_call": "a tool was started that no call of its turn asked for",
    "start_after_result": "a tool was started again after its result was recorded",
    "call_without_result": "a run was completed while a call of its last turn had no result",
    "run_overlaps": "a run was started while another one was active",
    "table_replaced": "a table is not a plain table but, for example, a view, which may show what is not stored",
    "truncated": "the log ends before the head that was recorded earlier",
    "rewritten": "the event of the head that was recorded earlier has another hash now",
}
"""Every code that a problem can have, and what it means. Codes never change their meaning."""


class ChainProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong."""

    seq: int | None
    """The event where it appears; null if it does not belong to an event."""
    code: str
    """A stable word."""
    detail: str
    """The same in words."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The last event of a log, to keep elsewhere."""

    seq: int
    """Its number."""
    hash: str
    """Its hash (hex)."""


def parse_head(text: str) -> Head:
    """A head that is written `SEQ:HASH`. Raises InvalidRequest."""
    found = _HEAD_PATTERN.fullmatch(text)
    if found is None:
        raise InvalidRequest("write the head as SEQ:HASH, with the hash as 64 hexadecimal digits", "/query/head")
    return Head(seq=int(found[1]), hash=found[2].lower())


_HEAD_PATTERN = re.compile(r"([1-9][0-9]{0,15}):([0-9a-fA-F]{64})", re.ASCII)


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The result of checking a log."""

    valid: bool
    """Nothing is wrong."""
    events: int
    """How many there are."""
    head: Head | None
    """The last one, or null."""
    problems: list[ChainProblem]
    """The first 100."""
    problem_count: int
    """How many there are in all."""
    redacted: list[int] = []
    """The first 1,000 events whose payload was removed; with an earlier head, those up to it that were removed
    since."""
    redacted_count: int = 0
    """How many there are in all."""


class Problems:
    """Collects problems. Those beyond the bound are only counted."""

    def __init__(self) -> None:
        self.count = 0
        self._kept: list[ChainProblem] = []

    def add(self, code: str, detail: str, seq: int | None = None) -> None:
        assert code in CODES
        self.count += 1
        if len(self._kept) < MAX_PROBLEMS:
            self._kept.append(ChainProblem(seq=seq, code=code, detail=detail))

    def add_replaced_tables(self, names: Sequence[str]) -> None:
        for name in names:
            self.add("table_replaced", f"`{name}` is not a plain table, so it may show what is not stored")

    def make_verification(self, events: int, head: Head | None, redacted: Sequence[int] = ()) -> Verification:
        problems = sorted(self._kept, key=lambda problem: (problem.seq is None, problem.seq or 0))
        return Verification(
            valid=not self.count,
            events=events,
            head=head,
            problems=problems,
            problem_count=self.count,
            redacted=list(redacted[:MAX_REDACTED]),
            redacted_count=len(redacted),
        )


# The rows beside the events: that each says what the events say.

_DIGEST = re.compile(r"[0-9a-f]{64}|")


def check_labels(evidence: SessionRows, state: State, findings: Problems) -> None:
    if evidence.labels != {(label, state.created_at) for label in labels_of(state.metadata)}:
        findings.add("labels_differ", "the labels that lists are filtered by do not match the metadata")


class ReferenceCheck:
    """The check of the things that the events name besides each other: texts, files, and runs that idempotency keys may
    lead to."""

    def __init__(self, evidence: SessionRows, findings: Problems) -> None:
        self._evidence = evidence
        self._findings = findings
        self._texts: set[str] = set()
        self._missing_texts: dict[str, int] = {}
        self._files: set[str] = set()
        self._unknown_runs = {record["run_id"] for record in evidence.idempotency_rows} - {None}

    def check_text(self, name: str, seq: int) -> None:
        """Check a text that an event names, the first time that one does."""
        if name not in self._texts:
            self._texts.add(name)
            if name not in self._evidence.blobs:
                # A redaction may say why.
                self._missing_texts[name] = seq
            else:
                self._check_content("blob", self._evidence.blobs[name], f"event {seq} names the text {name}", seq)

    def check_file(self, name: str, seq: int) -> None:
        """Check a file that an event refers to, the first time that one does."""
        if name not in self._files:
            self._files.add(name)
            self._check_content("file", self._evidence.files.get(name), f"event {seq} refers to the file {name}", seq)

    def _check_content(self, kind: str, is_sound: bool | None, reference: str, seq: int) -> None:
        if is_sound is None:
            self._findings.add(f"{kind}_missing", f"{reference}, which is missing", seq)
        elif not is_sound:
            self._findings.add(f"{kind}_differs", f"{reference}, which was changed", seq)

    def note_run(self, run_id: str | None) -> None:
        """Note that a run exists."""
        self._unknown_runs.discard(run_id)

    def finish(self, last: int, forgotten_texts: Collection[str]) -> None:
        """Report what no event names, what is missing without being forgotten, and idempotency records that lead
        nowhere. `last` is the last event's seq."""
        for name, seq in self._missing_texts.items():
            if name not in forgotten_texts:
                self._check_content("blob", None, f"event {seq} names the text {name}", seq)
        for name in sorted(self._evidence.blobs.keys() - self._texts):
            self._findings.add("blob_stray", f"no event names the text {name}")
        for name in sorted(self._evidence.files.keys() - self._files):
            self._findings.add("file_stray", f"no event refers to the file {name}")
        for record in self._evidence.idempotency_rows:
            seq = record["seq"]
            if not isinstance(seq, int) or not 0 < seq <= last or record["run_id"] in self._unknown_runs:
                self._findings.add("mark_dangling", "an idempotency key leads to an event or a run that does not exist")
            if not isinstance(record["digest"], str) or not _DIGEST.fullmatch(record["digest"]):
                self._findings.add("mark_invalid", "an idempotency key's row holds no digest of a request")
        self._check_creation()

    def _check_creation(self) -> None:
        """A session is made once; the record of the request that made it is written beside its key."""
        made_by = self._evidence.creation_keys
        if len(made_by) > 1:
            self._findings.add("mark_invalid", "several idempotency keys claim to have made the session")
        recorded = {record["key"] for record in self._evidence.idempotency_rows if record["run_id"] is None}
        if not recorded.issuperset(made_by):
            self._findings.add("mark_dangling", "an idempotency key that made the session has no record of its request")


# Check that calls and results belong together, and that runs follow one another.


def check_turn(before: State, event: RecordedEvent, findings: Problems) -> None:
    """Say what does not fit, if this event is the one after `before`.

    Messages from outside are not looked at: a history that a caller brings may be as odd as it likes.
    """
    fact = event.fact
    if isinstance(fact, MessageAdded):
        if fact.tool is not None:
            _check_result(before, event, fact, findings)
    elif isinstance(fact, ToolStarted):
        _check_start(before, event, fact, findings)
    elif isinstance(fact, RunStarted):
        if before.run is not None:
            findings.add("run_overlaps", f"run {event.run_id} starts while {before.run.id} is active", event.seq)
    elif isinstance(fact, RunCompleted):
        _check_end(before, event, findings)


def _find_calls(state: State, event: RecordedEvent) -> tuple[ToolCall, ...] | None:
    """Return the calls of the turn that an event belongs to; None if it belongs to none, or that is unknown."""
    run = state.run
    if run is None or run.id != event.run_id:
        return None
    return run.calls


def _check_result(before: State, event: RecordedEvent, fact: MessageAdded, findings: Problems) -> None:
    calls = _find_calls(before, event)
    if calls is None:
        return
    call_id = fact.message.get("tool_call_id")
    call = next((call for call in calls if call.id == call_id), None)
    if call is None:
        findings.add("result_without_call", f"event {event.seq} is the result of no call: {call_id}", event.seq)
    elif call.done:
        findings.add("result_twice", f"event {event.seq} is a second result of call {call_id}", event.seq)


def _check_start(before: State, event: RecordedEvent, fact: ToolStarted, findings: Problems) -> None:
    calls = _find_calls(before, event)
    if calls is None:
        return
    call = next((call for call in calls if call.id == fact.tool_call_id), None)
    if call is None:
        findings.add("start_without_call", f"event {event.seq} starts no call: {fact.tool_call_id}", event.seq)
    elif call.done:
        detail = f"event {event.seq} starts call {fact.tool_call_id}, which already has a result"
        findings.add("start_after_result", detail, event.seq)


def _check_end(before: State, event: RecordedEvent, findings: Problems) -> None:
    missing = [call.id for call in _find_calls(before, event) or () if not call.done]
    if missing:
        detail = f"run {event.run_id} was completed without a result of {', '.join(missing)}"
        findings.add("call_without_result", detail, event.seq)


Row = Mapping[str, Any]

_MIN_SEQ, _MAX_SEQ = -(2**63), 2**63 - 1
_MAX_PAGE_ROWS = 512
_PAGE_BYTES = 1_000_000
# How much of a session's past is kept while its events go by: more than any event looks back.
_MAX_KEPT_MESSAGES = 1000


async def verify(store: SqlStore, key: SessionKey, *, noted: Head | None = None) -> Verification:
    """Check all that is stored of a session, against `noted` too if a head was noted down earlier.

    It is checked as it is at one moment, however busy it may be. Reads event by event, in memory that does not grow
    with the log. Raises SessionNotFound if there is no row of it.
    """
    try:
        found = await _check_present(store, key, noted)
        if any(problem.code == "fork_differs" for problem in found.problems):
            for other in await store.list_archived_family(key):
                await store.bring_back(other)
            found = await _check_present(store, key, noted)
    except HistoryDamaged as error:
        if error.problem is None:
            raise
        findings = Problems()
        findings.add(error.problem, CODES[error.problem], error.seq)
        return findings.make_verification(0, None)
    return found


async def _check_present(store: SqlStore, key: SessionKey, noted: Head | None) -> Verification:
    """Check what the database has, once it has all of it. Raises SessionNotFound, and HistoryDamaged if the archive
    does not give it back."""

    def check(snapshot: SqlSnapshot) -> tuple[bool, Verification | None]:
        if snapshot.is_archived(key):
            return True, None
        return False, _check(snapshot, key, noted, store.integrity_keys)

    while True:
        is_away, found = await store.read_snapshot(check)
        if is_away:
            batches, head = await store.read_archived(key), await store.read_head(key)
            # It may have been brought back at this moment.
            if batches is None or head is None:
                continue
            if batches[-1].events[-1].event.seq == head.seq:
                return await asyncio.to_thread(_check_archived, batches, noted)
            # Something was recorded by who did not need to read it.
            await store.require_present(key)
        elif found is None:
            raise SessionNotFound(key.id)
        else:
            return found


def _check_archived(batches: Sequence[SealedBatch], noted: Head | None) -> Verification:
    """Check what is in the archive, to the hash that the database has. What is stored beside it was checked as it was
    archived, and is again once it is back."""
    findings = Problems()
    chain = ChainCheck(findings, noted)
    for sealed in itertools.chain.from_iterable(batch.events for batch in batches):
        chain.take(sealed)
    chain.finish()
    last = batches[-1].events[-1].event
    return findings.make_verification(last.seq, Head(seq=last.seq, hash=last.hash), chain.list_redacted())


async def follow_verification(store: SqlStore, key: SessionKey, found: Verification) -> None:
    """Have a session set aside if what it consists of was found damaged, and released if it verifies again."""
    with contextlib.suppress(SessionNotFound, HistoryDamaged):
        if not found.valid or (await store.state(key)).damage is not None:
            await store.check(key)


def _check(stored: SqlSnapshot, key: SessionKey, noted: Head | None, keys: IntegrityKeys) -> Verification | None:
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
            check.compare_runs(stored.read_run_rows(key, after=after, upto=last))
            after = last
    check.compare_usage([], stored.read_usage_rows(key, after=after, upto=_MAX_SEQ))
    check.compare_runs(stored.read_run_rows(key, after=after, upto=_MAX_SEQ), is_end=True)
    check.finish(key, keys)
    if check.forked is not None:
        _check_fork(stored, key, check)
    head = Head(seq=check.state.seq, hash=check.state.hash) if check.count else None
    return check.findings.make_verification(check.count, head, check.list_redacted())


def read_pages(stored: SqlSnapshot, key: SessionKey, *, upto: int | None) -> Iterator[list[SealedEvent]]:
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
        self._usage_rows = self._run_rows = 0
        self._runs: dict[int, Row] = {}
        self._stored_runs: dict[int, Row] = {}
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
        before, self.state = self.state, evolve(self.state, event)
        self._note_runs(before)
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

    def _note_runs(self, before: State) -> None:
        """Take down the row of a run that has ended, until it goes on."""
        reopened = find_reopened(before, self.state)
        if reopened is not None:
            self._runs.pop(reopened, None)
        if self.state.finished is not before.finished and self.state.seq > self._evidence.forked_at:
            self._runs.update((row["seq"], row) for row in make_run_rows(self.state, before.seq))

    def compare_runs(self, rows: Mapping[int, Row], *, is_end: bool = False) -> None:
        """Compare the table of runs with the runs that ended, but for the last one, which may go on."""
        self._run_rows += len(rows)
        self._stored_runs.update(rows)
        last = None if is_end or not self.state.finished else self.state.finished[-1].last_seq
        for seq in sorted(self._runs.keys() | self._stored_runs.keys()):
            if seq != last and self._runs.pop(seq, None) != self._stored_runs.pop(seq, None):
                self.findings.add("run_differs", f"the row of the run that ended with event {seq} does not match it")

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
        evidence, head = self._evidence, self._evidence.head
        # Of what an erased person's session named, and was found by, its events say nothing any more.
        erased = head is not None and is_erased(head)
        if not erased:
            self._references.finish(self._chain.last, self.state.forgotten_texts)
        if self._usage_rows != evidence.usage_row_count:
            self.findings.add("usage_differs", "a usage row of a call belongs to no event")
        if self._run_rows != evidence.run_row_count:
            self.findings.add("run_differs", "the row of a run belongs to no event")
        if head is None:
            self.findings.add("head_missing", "the session has rows, but no head row")
            return
        self._check_ends(head)
        view = view_stored_session(key.id, self.state)
        shown = len(self.state.messages) + self._dropped_count - self.state.removed_messages
        view = replace(view, message_count=max(shown, 0))
        check_head(head, self.state, view, self._span, self.findings)
        check_person_key(head, self._chain.is_emptied, self.findings)
        check_stamp(head, key, keys, self.findings)
        if not erased:
            check_labels(evidence, self.state, self.findings)

    def _check_ends(self, head: Mapping[str, Any]) -> None:
        check_ends(head["head_seq"], self._chain.last, self._evidence.last_seq, self.findings)
        if self._evidence.last_seq < 0:
            self.findings.add("event_unreadable", "there is a row whose seq is not a number")


def _check_fork(stored: SqlSnapshot, key: SessionKey, check: _SessionCheck) -> None:
    """Compare with the session that this one was forked from, if that is still there."""
    assert check.forked is not None
    fact, _, first_hash = check.forked
    source = SessionKey(key.tenant, fact.from_session_id)
    first = stored.read_sealed(source, after=0, upto=1, limit=1)
    # Deleted, and perhaps recreated under its id.
    if not first or first[0].event.hash != first_hash:
        return
    shared = stored.read_sealed(source, after=fact.from_seq - 1, upto=fact.from_seq, limit=1)
    if not shared or shared[0].event.hash != fact.from_hash:
        detail = f"event {fact.from_seq} of {source.id}, from which this session was forked, is a different one there"
        check.findings.add("fork_differs", detail, fact.from_seq)


async def verify_all(
    store: SqlStore, tenant: str | None = None, *, first: SessionKey | None = None
) -> AsyncGenerator[tuple[SessionKey, Verification]]:
    """Check every session, of one tenant or of all, by tenant and id: also those whose head row is gone.

    `first` is the one to begin with, or where it would be. While the archive does not answer, that is the problem of
    those in it.
    """
    outage = ArchiveOutage(store)
    after: SessionKey | None = None
    while keys := await store.list_session_keys(tenant, after=after):
        for key in keys:
            if first is not None and (key.tenant, key.id) < (first.tenant, first.id):
                continue
            try:
                yield key, await outage.attempt(key, partial(verify, store, key))
            except SessionNotFound:
                # Deleted meanwhile.
                continue
            except ArchiveUnavailable:
                findings = Problems()
                findings.add("archive_unavailable", CODES["archive_unavailable"])
                yield key, findings.make_verification(0, None)
        after = keys[-1]
