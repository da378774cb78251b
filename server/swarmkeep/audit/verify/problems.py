"""Problems that a check found: stable codes, listed up to a bound, the earliest event first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from swarmkeep.domain.errors import InvalidRequest

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
    "head_missing": "the session has rows, but no head row",
    "head_differs": "a column of the head row does not match the events",
    "stamp_missing": "the head row has no stamp, although there is an integrity key",
    "stamp_differs": "the head row's stamp is not one of this head by an integrity key",
    "labels_differ": "the labels that lists are filtered by do not match the metadata",
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
    """One thing that is wrong. `seq` is the event where it appears; null if it does not belong to an event."""

    seq: int | None
    code: str
    detail: str


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The last event of a log, to keep elsewhere: its seq and its hash (hex)."""

    seq: int
    hash: str


def parse_head(text: str) -> Head:
    """A head that is written `SEQ:HASH`. Raises InvalidRequest."""
    found = _HEAD_PATTERN.fullmatch(text)
    if found is None:
        raise InvalidRequest("write the head as SEQ:HASH, with the hash as 64 hexadecimal digits", "/query/head")
    return Head(seq=int(found[1]), hash=found[2].lower())


_HEAD_PATTERN = re.compile(r"([1-9][0-9]{0,15}):([0-9a-fA-F]{64})", re.ASCII)


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The result of checking a log. `problems` lists the first problems; `problem_count` counts all of them.

    `redacted` lists the events whose payload was removed, and `redacted_count` counts all of them. With an earlier
    head, only events up to it that were redacted since then count.
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
