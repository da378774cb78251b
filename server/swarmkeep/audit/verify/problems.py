"""Problems that a check found: stable codes, listed up to a bound, the earliest event first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from swarmkeep.domain.errors import InvalidRequest

MAX_PROBLEMS = 100
MAX_REDACTED = 1000

CODES: Mapping[str, str] = {
    "event_missing": "there is no event with this seq, and there are later ones, or the head row says so",
    "event_beyond_head": "the event comes after the one that the head row says is the last",
    "event_unreadable": "the row does not hold an event",
    "hash_differs": "the event's hash does not follow from the event and from the hash before it",
    "payload_differs": "the payload is not the one that was recorded",
    "payload_invalid": "the payload is not one that an event of this type and version can have",
    "salt_invalid": "the salt is not one of 16 bytes, as every payload is recorded with",
    "row_differs": "the row is not written as a server writes it, though it may read the same",
    "payload_missing": "the payload was removed, and no `session.redacted` event says so",
    "stand_in_differs": "what stands in the place of a removed payload is not what redaction left there",
    "redaction_undone": "a `session.redacted` event says that the payload was removed, and there is one",
    "head_missing": "the session has rows, but no head row",
    "head_differs": "a column of the head row is not what the events add up to",
    "labels_differ": "the labels that lists are filtered by are not those of the metadata",
    "usage_differs": "what is kept of a call, for sums of tokens and time, is not what its event says",
    "lease_invalid": "the head row's lease is not one that a server can have left",
    "blob_differs": "an instructions text or a tool schema is not the one that its name, a hash, says",
    "blob_missing": "an instructions text or a tool schema that an event names is not there",
    "blob_stray": "there is an instructions text or a tool schema that no event names",
    "file_differs": "a file or picture is not the one that its name, a hash, says",
    "file_missing": "a file or picture that an event refers to is not there",
    "file_stray": "there is a file or picture that no event refers to",
    "mark_dangling": "an idempotency key leads to an event or a run that is not there",
    "mark_invalid": "an idempotency key's row is not one that a server can have left",
    "fork_differs": "the session that this one was forked from has another history, or the fork's first event lies",
    "result_without_call": "a tool's result answers no call of its turn",
    "result_twice": "a call of a tool has two results",
    "start_without_call": "a tool was started that no call of its turn asked for",
    "start_after_result": "a tool was started again after its result was recorded",
    "call_without_result": "a run was completed while a call of its last turn had no result",
    "run_overlaps": "a run was started while another one was active",
    "table_replaced": "a table is a view or the like, which may show what is not stored",
    "truncated": "the log ends before the event that was noted down",
    "rewritten": "the event that was noted down has another hash now",
}
"""Every code that a problem can have, and what it means. Codes never change their meaning."""


class ChainProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong. `seq` is the event where it shows, null if it is no event's."""

    seq: int | None
    code: str
    detail: str


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The last event of a log, as one notes it down: its seq and its hash (hex)."""

    seq: int
    hash: str


def parse_head(text: str) -> Head:
    """A head that is written `SEQ:HASH`. Raises InvalidRequest."""
    found = _HEAD_PATTERN.fullmatch(text)
    if found is None:
        raise InvalidRequest("write the head as SEQ:HASH, the hash in 64 hexadecimal digits", "/query/head")
    return Head(seq=int(found[1]), hash=found[2].lower())


_HEAD_PATTERN = re.compile(r"([1-9][0-9]{0,15}):([0-9a-fA-F]{64})", re.ASCII)


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """What a check of a log came to. `problems` lists the first of them; `problem_count` counts all.

    `redacted` lists the events whose payload was removed, and `redacted_count` counts all: if a head was noted down, of
    the events up to it those that were redacted since.
    """

    valid: bool
    events: int
    head: Head | None
    problems: list[ChainProblem]
    problem_count: int
    redacted: list[int] = []
    redacted_count: int = 0


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
            self.add("table_replaced", f"`{name}` is not a plain table: what it shows may not be what is stored")

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
