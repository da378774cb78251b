"""The chain of a log: that each event follows from the one before, and holds what was recorded."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.events.codec import decode, digest, encode
from swarmkeep.events.facts import FACTS, RecordedEvent, SessionRedacted, UnknownFact
from swarmkeep.events.redaction import is_stand_in
from swarmkeep.events.state import NOTHING_SAID, Damage, PartialReply, State
from swarmkeep.events.views import SessionView, find_last_run_status, view_stored_session
from swarmkeep.store import hashing
from swarmkeep.store.person_keys import Erased
from swarmkeep.store.records import SessionKey


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
        self, findings: Findings, noted: NotedHead | None = None, *, after: int = 0, previous: bytes = hashing.GENESIS
    ) -> None:
        self.last = after
        self._findings = findings
        self._noted = noted
        # The hashes that the next event may build on: as stored and as computed, so that one changed hash is one
        # problem and not two. None after a gap, where nothing is known.
        self._previous: tuple[bytes, ...] | None = (previous,)
        self._format = hashing.FORMATS[0]
        self._has_content = False
        self._redacted_digests: dict[int, str] = {}
        self._explained_seqs: set[int] = set()
        self._redactions: list[tuple[int, tuple[int, ...]]] = []

    def take(self, sealed: hashing.SealedEvent) -> None:
        event = sealed.event
        if not self._is_sound(sealed):
            self._examine(sealed)
        if isinstance(event.fact, SessionRedacted):
            self._check_redaction(event.seq, event.fact)
        elif sealed.salt is not None:
            self._has_content = True
        if self._noted is not None and event.seq == self._noted.seq and event.hash != self._noted.hash:
            detail = f"event {event.seq} had the hash {self._noted.hash} in the earlier head, and now has {event.hash}"
            self._findings.add("rewritten", detail, event.seq)

    def _is_sound(self, sealed: hashing.SealedEvent) -> bool:
        """Whether the event is of the present format, has its payload and follows the one before: of nearly all there
        is no more to say, and this is quick."""
        event, salt, before = sealed.event, sealed.salt, self._previous
        if (
            before is None
            or len(before) != 1
            or event.seq != self.last + 1
            or salt is None
            or len(salt) != hashing.SALT_BYTES
            or not sealed.as_written
            or type(event.fact) is UnknownFact
            or not hashing.continues(before[0], sealed, salt)
        ):
            return False
        self.last = event.seq
        self._previous, self._format = (bytes.fromhex(event.hash),), hashing.FORMAT
        return True

    def _examine(self, sealed: hashing.SealedEvent) -> None:
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

    def _check_hash(self, sealed: hashing.SealedEvent) -> tuple[int, ...]:
        """Compare the event's hash with what it is made of. Returns the formats that it may be of: one if it fits."""
        event = sealed.event
        header = hashing.header_of(event.seq, event.type, event.version, event.run_id, event.agent, event.at)
        stored = bytes.fromhex(event.hash)
        if self._previous is None:
            self._previous = (stored,)
            return hashing.FORMATS
        for previous in self._previous:
            if (found := hashing.find_format(previous, header, sealed.commitment, stored)) is not None:
                self._previous, self._format = (stored,), found
                return (found,)
        detail = f"event {event.seq} ({event.type}): its hash does not match it and the hash before it"
        self._findings.add("hash_differs", detail, event.seq)
        self._previous = (stored, hashing.link(self._previous[-1], header, sealed.commitment, self._format))
        return hashing.FORMATS

    def _check_payload(self, sealed: hashing.SealedEvent, formats: tuple[int, ...]) -> None:
        event, salt = sealed.event, sealed.salt
        name = f"event {event.seq} ({event.type})"
        if salt is None:
            self._redacted_digests[event.seq] = digest(event.payload)
            if sealed.erased:
                self._explained_seqs.add(event.seq)
            if not is_stand_in(event):
                detail = f"{name}: its payload was removed, but what is in its place is not what redaction leaves there"
                self._findings.add("stand_in_differs", detail, event.seq)
        elif all(hashing.commitment_of(salt, event.payload, format) != sealed.commitment for format in formats):
            self._findings.add("payload_differs", f"{name}: its payload is not the one that was recorded", event.seq)
        if salt is not None and len(salt) != hashing.SALT_BYTES:
            # In the first format a longer or shorter one takes text from the payload, or gives it some.
            self._findings.add(
                "salt_invalid", f"{name}: its salt has {len(salt)} bytes, not {hashing.SALT_BYTES}", event.seq
            )
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

    @property
    def is_emptied(self) -> bool:
        """Tell if no event has its payload but those that say that others were redacted."""
        return not self._has_content

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
    """Tell if an event of its type and version can have this payload; an object, if it is of a later release."""
    fact = event.fact
    if not isinstance(fact, UnknownFact):
        return True
    known = FACTS.get(event.type)
    return isinstance(fact.data, dict) and (known is None or event.version > known.version)


# Stamps on head rows: who wrote the end of a log had a key that is not in the database.

_SIZE = struct.Struct(">Q")
_ID_BYTES = 8
UNSTAMPED = "unstamped"
STAMP_BYTES = _ID_BYTES + hashlib.sha256().digest_size
_NAME = b"swarmkeep head v1"


class IntegrityKeys:
    """The keys of one installation, separated by commas: the first signs. Without any, nothing is signed or asked.

    With the word `unstamped` among them, heads without a stamp are accepted: some servers may not have the key yet.
    """

    def __init__(self, text: str = "") -> None:
        parts = [part.strip() for part in text.split(",")]
        keys = [part.encode() for part in parts if part not in ("", UNSTAMPED)]
        self.accepts_unstamped = UNSTAMPED in parts
        self._keys: Mapping[bytes, bytes] = {_find_id(key): key for key in keys}
        self._first = next(iter(self._keys), None)

    def __bool__(self) -> bool:
        return self._first is not None

    def sign(self, key: SessionKey, seq: int, hash: bytes) -> bytes | None:
        """The stamp of a head; None without a key."""
        return None if self._first is None else self._first + _make_mac(self._keys[self._first], key, seq, hash)

    def find_fault(self, stamp: object, key: SessionKey, seq: object, hash: object) -> str | None:
        """The code of what is wrong with a head's stamp: that there is none, or that it is another one's."""
        if stamp is None:
            return "stamp_missing" if self and not self.accepts_unstamped else None
        if not isinstance(stamp, bytes) or len(stamp) != STAMP_BYTES:
            return "stamp_differs"
        if not self:
            # Its owner is not known here.
            return None
        secret = self._keys.get(stamp[:_ID_BYTES])
        if secret is None or not isinstance(seq, int) or not isinstance(hash, bytes):
            return "stamp_differs"
        right = hmac.compare_digest(stamp[_ID_BYTES:], _make_mac(secret, key, seq, hash))
        return None if right else "stamp_differs"

    def is_current(self, stamp: object) -> bool:
        """Whether it says that it is of the key that signs now."""
        return isinstance(stamp, bytes) and self._first is not None and stamp[:_ID_BYTES] == self._first


NO_KEYS = IntegrityKeys()


def _find_id(key: bytes) -> bytes:
    return hashlib.sha256(b"swarmkeep integrity key" + key).digest()[:_ID_BYTES]


def _make_mac(secret: bytes, key: SessionKey, seq: int, hash: bytes) -> bytes:
    parts = (_NAME, _encode(key.tenant), _encode(key.id), seq.to_bytes(8, "big", signed=True), hash)
    return hmac.digest(secret, b"".join([_SIZE.pack(len(part)) + part for part in parts]), "sha256")


def _encode(name: str) -> bytes:
    # A tenant may have any text as its name.
    return name.encode(errors="surrogatepass")


# Check what is read before anything is made of it: the chain of the events, and the head row against their fold.


class FirstFinding:
    """Findings of which the earliest is kept. Those that belong to no event come after all others."""

    def __init__(self) -> None:
        self.seq: int | None = None
        self.code = ""

    def add(self, code: str, detail: str, seq: int | None = None) -> None:
        if not self.code or (seq is not None and (self.seq is None or seq < self.seq)):
            self.seq, self.code = seq, code

    def make_damage(self, last: int) -> Damage | None:
        """The finding; what belongs to no event is said of the last one."""
        return Damage(seq=last if self.seq is None else self.seq, code=self.code) if self.code else None


class LogCheck:
    """Checks a session's events on their way to the fold: all of them, or those that follow a state."""

    def __init__(self, known: State | None = None, keys: IntegrityKeys = NO_KEYS) -> None:
        self.findings = FirstFinding()
        self._keys = keys
        known = State() if known is None else known
        self._chain = ChainCheck(self.findings, after=known.seq, previous=hashing.last_hash(known))

    def follow(self, log: Iterable[hashing.SealedEvent]) -> Iterator[RecordedEvent]:
        """The events of the log; what is wrong with them is found on the way."""
        take = self._chain.take
        for sealed in log:
            take(sealed)
            yield sealed.event

    def note_unreadable(self, seq: object) -> None:
        """Note a row that holds no event."""
        self.findings.add("event_unreadable", f"a row has the seq {seq!r}")

    def finish(self, key: SessionKey, state: State, head: Mapping[str, Any] | None) -> None:
        """Compare what all events add up to with the head row."""
        self._chain.finish()
        if head is None:
            self.findings.add("head_missing", "the session has rows, but no head row")
            return
        said = head["head_seq"]
        check_ends(said, min(state.seq, said) if isinstance(said, int) else state.seq, state.seq, self.findings)
        check_head(head, state, view_stored_session(key.id, state), None, self.findings)
        check_person_key(head, self._chain.is_emptied, self.findings)
        check_stamp(head, key, self._keys, self.findings)


def check_ends(said: Any, last: int, greatest: int, findings: Findings) -> None:
    """Compare the last event of a log, and the greatest seq that there is, with the event that the head row names."""
    if isinstance(said, int) and said > last:
        gone = f"events {last + 1} to {said} are" if said > last + 1 else f"event {said} is"
        findings.add("event_missing", f"{gone} missing: the last one is {said} according to the head row", last + 1)
    if isinstance(said, int) and greatest > max(said, last):
        detail = f"there is an event {greatest}, but the last one is {said} according to the head row"
        findings.add("event_beyond_head", detail, said + 1)


def check_stamp(head: Mapping[str, Any], key: SessionKey, keys: IntegrityKeys, findings: Findings) -> None:
    """Check that the writer of the head had the integrity key, if there is one."""
    code = keys.find_fault(head["stamp"], key, head["head_seq"], head["head_hash"])
    if code == "stamp_missing":
        findings.add(code, "the head row has no stamp: nothing says that its last writer had the integrity key")
    elif code is not None:
        findings.add(code, "the head row's stamp is not one of its seq and hash by an integrity key")


def check_head(
    row: Mapping[str, Any], state: State, view: SessionView, span: tuple[str, str] | None, findings: Findings
) -> None:
    """Compare the head row with what the events add up to. `span` is from their earliest time to their latest,
    where that is known."""
    told = {
        "head_seq": state.seq,
        "head_hash": bytes.fromhex(state.hash),
        "agent": state.agent,
        "status": state.status,
        "created_at": state.created_at,
        "updated_at": state.updated_at,
        "due_at": state.due_at,
    }
    if is_erased(row):
        # What the events add up to without their content is less than what it was made of.
        return
    wrong = [name for name, value in told.items() if row[name] != value]
    if not _is_same_view(row["view"], view):
        wrong.append("view")
    # One from before it was kept says nothing, until something is recorded.
    if row["last_run"] not in (None, find_last_run_status(state)):
        wrong.append("last_run")
    # Nor does one that a release wrote which did not know of it.
    if row["assignee"] not in (None, state.assignee):
        wrong.append("assignee")
    if row["feedback"] not in (None, state.feedback.verdict):
        wrong.append("feedback")
    if span is not None and not _is_possible_activity(row["active_at"], *span):
        wrong.append("active_at")
    for name in wrong:
        findings.add("head_differs", f"the head row's `{name}` does not match the events")
    if not _is_possible_lease(row, state):
        findings.add("lease_invalid", "the head row's lease is not one that a server could have left")
    if not _is_possible_partial(row["partial"], state):
        findings.add(
            "head_differs", "the head row's `partial` is not one that the running run's server could have left"
        )


def check_person_key(row: Mapping[str, Any], is_emptied: bool, findings: Findings) -> None:
    """Check that the head row names the key that its view is encrypted by. Of an erased person's nothing is."""
    if row["person_key"] != row["view_key"] and not (row["view_key"] is None and is_emptied):
        findings.add("head_differs", "the head row's `person_key` is not that of what is stored")


def is_erased(row: Mapping[str, Any]) -> bool:
    """Tell if a head row's view is gone with its person's key."""
    return isinstance(row["view"], Erased)


def _is_same_view(text: Any, view: SessionView) -> bool:
    try:
        kept = decode(text, SessionView)
        # What was recorded by a release that gave no titles has none, and does not count what is queued.
        if kept.title is UNSET:
            view = replace(view, title=UNSET)
        if kept.assignee is UNSET:
            view = replace(view, assignee=UNSET)
        if kept.feedback is UNSET:
            view = replace(view, feedback=UNSET)
        return encode(kept) == encode(replace(view, queued_runs=UNSET) if kept.queued_runs is UNSET else view)
    except (ValueError, TypeError):
        return False


def _is_possible_activity(at: Any, earliest: str, latest: str) -> bool:
    """Tell if it may be the time of an event. A server of the release before leaves none, or an older one.

    A clock may have been set back: then neither the first event is the earliest, nor the last the latest.
    """
    return isinstance(at, str) and (not at or earliest <= at <= latest)


def _is_possible_lease(row: Mapping[str, Any], state: State) -> bool:
    owner, epoch, expires = row["lease_owner"], row["lease_epoch"], row["lease_expires_at"]
    if not isinstance(epoch, int) or epoch < 0 or (owner is None) != (expires is None):
        return False
    return owner is None or (state.status == "running" and isinstance(expires, int | float))


def _is_possible_partial(text: Any, state: State) -> bool:
    """Tell if it is nothing, a wish, or a text that the model of the running run may be saying."""
    if text is None:
        return True
    if state.status != "running" or not isinstance(text, str):
        return False
    try:
        partial = decode(text, PartialReply) if text else NOTHING_SAID
    except ValueError:
        return False
    return partial == NOTHING_SAID or (state.run is not None and partial.run_id == state.run.id)
