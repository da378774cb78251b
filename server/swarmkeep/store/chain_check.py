"""The chain of a log: that each event follows from the one before, and holds what was recorded."""

from __future__ import annotations

import itertools
from typing import Protocol

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import FACTS, SessionRedacted, UnknownFact
from swarmkeep.domain.redaction import is_stand_in
from swarmkeep.domain.request import digest
from swarmkeep.store.hashing import (
    FORMAT,
    FORMATS,
    GENESIS,
    SALT_BYTES,
    SealedEvent,
    commitment_of,
    continues,
    find_format,
    header_of,
    link,
)


class Findings(Protocol):
    """Takes what is wrong with a log."""

    def add(self, code: str, detail: str, seq: int | None = None) -> None: ...


class NotedHead(Protocol):
    """The last event of a log as it was at some time: its seq, and its hash in hex."""

    @property
    def seq(self) -> int: ...
    @property
    def hash(self) -> str: ...


class ChainCheck:
    """Takes a log's events in order, and says what is wrong with each. Its memory is that of the redacted events.

    It begins after event `after`, whose hash is `previous`: by default with the first.
    """

    def __init__(
        self, findings: Findings, noted: NotedHead | None = None, *, after: int = 0, previous: bytes = GENESIS
    ) -> None:
        self.last = after
        self._findings = findings
        self._noted = noted
        # The hashes that the next event may build on: as stored and as computed, so that one changed hash is one
        # problem and not two. None after a gap, where nothing is known.
        self._previous: tuple[bytes, ...] | None = (previous,)
        self._format = FORMATS[0]
        self._redacted_digests: dict[int, str] = {}
        self._explained_seqs: set[int] = set()
        self._redactions: list[tuple[int, tuple[int, ...]]] = []

    def take(self, sealed: SealedEvent) -> None:
        event = sealed.event
        if not self._is_sound(sealed):
            self._examine(sealed)
        if isinstance(event.fact, SessionRedacted):
            self._check_redaction(event.seq, event.fact)
        if self._noted is not None and event.seq == self._noted.seq and event.hash != self._noted.hash:
            detail = f"event {event.seq} had the hash {self._noted.hash} in the earlier head, and now has {event.hash}"
            self._findings.add("rewritten", detail, event.seq)

    def _is_sound(self, sealed: SealedEvent) -> bool:
        """Whether the event is of the present format, has its payload and follows the one before: of nearly all there
        is no more to say, and this is quick."""
        event, salt, before = sealed.event, sealed.salt, self._previous
        if (
            before is None
            or len(before) != 1
            or event.seq != self.last + 1
            or salt is None
            or len(salt) != SALT_BYTES
            or not sealed.as_written
            or type(event.fact) is UnknownFact
            or not continues(before[0], sealed, salt)
        ):
            return False
        self.last = event.seq
        self._previous, self._format = (bytes.fromhex(event.hash),), FORMAT
        return True

    def _examine(self, sealed: SealedEvent) -> None:
        event = sealed.event
        if event.seq != self.last + 1:
            self._note_gap(event.seq)
        self.last = event.seq
        self._check_payload(sealed, self._check_hash(sealed))

    def _note_gap(self, seq: int) -> None:
        if seq <= self.last:
            self._findings.add("event_unreadable", f"an event has the seq {seq}; the first one is 1", seq)
        else:
            gone = f"events {self.last + 1} to {seq - 1} are" if seq > self.last + 2 else f"event {seq - 1} is"
            self._findings.add("event_missing", f"{gone} missing", self.last + 1)
            self._previous = None

    def _check_hash(self, sealed: SealedEvent) -> tuple[int, ...]:
        """Compare the event's hash with what it is made of. Returns the formats that it may be of: one if it fits."""
        event = sealed.event
        header = header_of(event.seq, event.type, event.version, event.run_id, event.agent, event.at)
        stored = bytes.fromhex(event.hash)
        if self._previous is None:
            self._previous = (stored,)
            return FORMATS
        for previous in self._previous:
            if (found := find_format(previous, header, sealed.commitment, stored)) is not None:
                self._previous, self._format = (stored,), found
                return (found,)
        detail = f"event {event.seq} ({event.type}): its hash does not match it and the hash before it"
        self._findings.add("hash_differs", detail, event.seq)
        self._previous = (stored, link(self._previous[-1], header, sealed.commitment, self._format))
        return FORMATS

    def _check_payload(self, sealed: SealedEvent, formats: tuple[int, ...]) -> None:
        event, salt = sealed.event, sealed.salt
        name = f"event {event.seq} ({event.type})"
        if salt is None:
            self._redacted_digests[event.seq] = digest(event.payload)
            if not is_stand_in(event):
                detail = f"{name}: its payload was removed, but what is in its place is not what redaction leaves there"
                self._findings.add("stand_in_differs", detail, event.seq)
        elif all(commitment_of(salt, event.payload, format) != sealed.commitment for format in formats):
            self._findings.add("payload_differs", f"{name}: its payload is not the one that was recorded", event.seq)
        if salt is not None and len(salt) != SALT_BYTES:
            # In the first format a longer or shorter one takes text from the payload, or gives it some.
            self._findings.add("salt_invalid", f"{name}: its salt has {len(salt)} bytes, not {SALT_BYTES}", event.seq)
        if not is_possible_payload(event):
            self._findings.add("payload_invalid", f"{name}: an event of this type cannot have this payload", event.seq)
        if not sealed.as_written:
            self._findings.add("row_differs", f"{name}: its row is not written as a server writes it", event.seq)

    def _check_redaction(self, at: int, fact: SessionRedacted) -> None:
        self._redactions.append((at, fact.seqs))
        for seq, kept in itertools.zip_longest(fact.seqs, fact.kept):
            if seq is None or not 0 < seq < at:
                self._findings.add("event_unreadable", f"event {at} names events that do not come before it", at)
                return
            if seq not in self._redacted_digests:
                detail = f"event {at} says that the payload of event {seq} was removed, but it is there"
                self._findings.add("redaction_undone", detail, seq)
            elif self._redacted_digests[seq] != kept:
                detail = f"event {seq}: what is in place of its payload is not what event {at} left there"
                self._findings.add("stand_in_differs", detail, seq)
            self._explained_seqs.add(seq)

    def list_redacted(self) -> list[int]:
        """The events without their payload; those that lost it since, of what was there when a head was noted down."""
        if self._noted is None:
            return sorted(self._redacted_digests)
        gone_before: set[int] = set()
        # The latest first: what says that an event was gone before may have lost its own payload since, and then
        # anybody may have put its words there.
        for at, seqs in reversed(self._redactions):
            if at <= self._noted.seq and (at not in self._redacted_digests or at in gone_before):
                gone_before.update(seqs)
        return [seq for seq in sorted(self._redacted_digests.keys() - gone_before) if seq <= self._noted.seq]

    def finish(self) -> None:
        """Say what only the end can tell."""
        for seq in sorted(self._redacted_digests.keys() - self._explained_seqs):
            detail = f"event {seq}: its payload was removed, and no event says that it was redacted"
            self._findings.add("payload_missing", detail, seq)
        if self._noted is not None and self._noted.seq > self.last:
            detail = f"the log ends with event {self.last}, but the earlier head is event {self._noted.seq}"
            self._findings.add("truncated", detail, self.last + 1)


def is_possible_payload(event: RecordedEvent) -> bool:
    """Whether an event of its type and version can have this payload; an object, if it is of a later release."""
    fact = event.fact
    if not isinstance(fact, UnknownFact):
        return True
    known = FACTS.get(event.type)
    return isinstance(fact.data, dict) and (known is None or event.version > known.version)
