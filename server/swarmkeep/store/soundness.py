"""Check what is read before anything is made of it: the chain of the events, and the head row against their fold.

`verify` finds more, and says all of it. This is what every session goes through that is read from the database, at a
cost of a few microseconds an event; whoever would add to a session that does not pass is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.domain.codec import decode, encode
from swarmkeep.domain.decisions.partial import NOTHING_SAID, PartialReply
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.state import Damage, State
from swarmkeep.domain.views import SessionView, find_last_run_status, view_stored_session
from swarmkeep.store.chain_check import ChainCheck, Findings
from swarmkeep.store.hashing import SealedEvent, last_hash
from swarmkeep.store.ports.keys import SessionKey
from swarmkeep.store.stamps import NO_KEYS, IntegrityKeys


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
        self._chain = ChainCheck(self.findings, after=known.seq, previous=last_hash(known))

    def follow(self, log: Iterable[SealedEvent]) -> Iterator[RecordedEvent]:
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
    """Check that whoever wrote the head had the integrity key, if there is one."""
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
    wrong = [name for name, value in told.items() if row[name] != value]
    if not _is_same_view(row["view"], view):
        wrong.append("view")
    # One from before it was kept says nothing, until something is recorded.
    if row["last_run"] not in (None, find_last_run_status(state)):
        wrong.append("last_run")
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


def _is_same_view(text: Any, view: SessionView) -> bool:
    try:
        kept = decode(text, SessionView)
        # What was recorded by a release that gave no titles has none, and does not count what is queued.
        if kept.title is UNSET:
            view = replace(view, title=UNSET)
        return encode(kept) == encode(replace(view, queued_runs=UNSET) if kept.queued_runs is UNSET else view)
    except (ValueError, TypeError):
        return False


def _is_possible_activity(at: Any, earliest: str, latest: str) -> bool:
    """Whether it may be the time of an event. A server of the release before leaves none, or an older one.

    A clock may have been set back: then neither the first event is the earliest, nor the last the latest.
    """
    return isinstance(at, str) and (not at or earliest <= at <= latest)


def _is_possible_lease(row: Mapping[str, Any], state: State) -> bool:
    owner, epoch, expires = row["lease_owner"], row["lease_epoch"], row["lease_expires_at"]
    if not isinstance(epoch, int) or epoch < 0 or (owner is None) != (expires is None):
        return False
    return owner is None or (state.status == "running" and isinstance(expires, int | float))


def _is_possible_partial(text: Any, state: State) -> bool:
    """Whether it is nothing, a wish, or what the model of the running run may be saying."""
    if text is None:
        return True
    if state.status != "running" or not isinstance(text, str):
        return False
    try:
        partial = decode(text, PartialReply) if text else NOTHING_SAID
    except ValueError:
        return False
    return partial == NOTHING_SAID or (state.run is not None and partial.run_id == state.run.id)
