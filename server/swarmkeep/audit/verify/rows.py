"""The rows beside the events: that each says what the events say."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.audit.verify.problems import Problems
from swarmkeep.domain.codec import decode, encode
from swarmkeep.domain.decisions.partial import NOTHING_SAID, PartialReply
from swarmkeep.domain.state import State
from swarmkeep.domain.views import SessionView, find_last_run_status
from swarmkeep.store.labels import labels_of
from swarmkeep.store.ports.audit import SessionRows

_DIGEST = re.compile(r"[0-9a-f]{64}|")


def check_head(
    row: Mapping[str, Any], state: State, view: SessionView, span: tuple[str, str], findings: Problems
) -> None:
    """Compare the head row with what the events add up to. `span` is from their earliest time to their latest."""
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
    if not _is_possible_activity(row["active_at"], *span):
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


def check_labels(evidence: SessionRows, state: State, findings: Problems) -> None:
    if evidence.labels != {(label, state.created_at) for label in labels_of(state.metadata)}:
        findings.add("labels_differ", "the labels that lists are filtered by do not match the metadata")


class ReferenceCheck:
    """What the events name besides each other: texts, files, and runs that idempotency keys may lead to."""

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
