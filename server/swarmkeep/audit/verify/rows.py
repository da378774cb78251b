"""The rows beside the events: that each says what the events say."""

from __future__ import annotations

import re
from collections.abc import Collection

from swarmkeep.audit.verify.problems import Problems
from swarmkeep.domain.state import State
from swarmkeep.store.labels import labels_of
from swarmkeep.store.ports.audit import SessionRows

_DIGEST = re.compile(r"[0-9a-f]{64}|")


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
