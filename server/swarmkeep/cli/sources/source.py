"""What commands ask of sessions, whether a server has them or a database. Commands are written once, for both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO, Literal, Protocol

from swarmkeep.domain.codec import Json

if TYPE_CHECKING:
    from swarmkeep.audit.replay.recorded_sessions import RecordedSession
    from swarmkeep.audit.verify.checkpoints import CheckpointHead
    from swarmkeep.domain.envelope import RecordedEvent
    from swarmkeep.domain.usage import UsageQuery
    from swarmkeep_client import (
        AuditEntry,
        Comparison,
        Head,
        ImportReport,
        Message,
        Redaction,
        SessionState,
        StateDiff,
        UsageRow,
        Verification,
    )

Form = Literal["markdown", "html"]
FileForm = Literal["export", "chat", "swarm", "assistants"]


class ChatSource(Protocol):
    """What a chat looks up, and forks, in the sessions where it is held."""

    def session(self, session_id: str, *, at: int | None = None) -> SessionState: ...

    def messages(self, session_id: str, *, at: int | None = None) -> list[Message]: ...

    def events(self, session_id: str, *, after: int = 0) -> Iterable[RecordedEvent]: ...

    def fork(self, session_id: str, *, at: int | None, new_id: str | None, metadata: Json | None) -> SessionState: ...


class Source(ChatSource, Protocol):
    """A server's or a database's sessions."""

    def sessions(self, *, agent: str | None, status: str | None, metadata: Mapping[str, str]) -> Iterator[SessionState]:
        """Newest first, fetched as they are needed."""
        ...

    def events(self, session_id: str, *, after: int = 0, types: Sequence[str] = ()) -> Iterable[RecordedEvent]: ...

    def follow(self, session_id: str, *, after: int = 0, types: Sequence[str] = ()) -> Iterator[RecordedEvent]:
        """The events, and then each new one as it is recorded, for ever."""
        ...

    def delete(
        self, session_id: str, *, force: bool = False, reason: str | None = None, if_match: int | None = None
    ) -> None: ...

    def redact(self, session_id: str, seqs: Sequence[int], reason: str, *, include_forks: bool) -> Redaction: ...

    def audit(self, tenant: str | None = None) -> Iterator[AuditEntry]:
        """A tenant's audit log, oldest entry first; by default that of the tenant in question."""
        ...

    def verify_audit_head(self, tenant: str | None, head: Head) -> Verification:
        """Check a tenant's audit log against a head noted down earlier."""
        ...

    def heads(self) -> Iterator[CheckpointHead]:
        """Where each session and audit log ends: in a database, where no tenant is named, those of all."""
        ...

    def verify_audit(self) -> Iterator[tuple[str, Verification]]:
        """The audit logs by their tenants: where no tenant is named in a database, those of all."""
        ...

    def export(
        self, ids: Sequence[str], *, agent: str | None, status: str | None, metadata: Mapping[str, str]
    ) -> Iterator[bytes]:
        """The sessions with these ids, or all by these filters, as a file that leaves nothing out."""
        ...

    def conversations(self, ids: Sequence[str]) -> Iterator[RecordedSession]:
        """These sessions, or all, to compare agents with."""
        ...

    def transcript(self, session_id: str, form: Form) -> Iterator[bytes]:
        """The session as a document for people."""
        ...

    def usage(self, asked: UsageQuery) -> Iterator[UsageRow]:
        """A row for each group, fetched as they are needed."""
        ...

    def import_sessions(
        self, file: BinaryIO, *, form: FileForm, agent: str | None, as_id: str | None, dry_run: bool
    ) -> ImportReport: ...

    def diff(self, session_id: str, before: int, after: int) -> StateDiff: ...

    def compare(self, session_id: str, other: str) -> Comparison: ...

    def request(self, session_id: str, seq: int) -> bytes:
        """The exact model request behind an answer."""
        ...

    def verify(self, session_id: str, *, head: Head | None = None, tenant: str | None = None) -> Verification: ...

    def verify_all(self) -> Iterator[tuple[str, Verification]]:
        """Every session by its name: in a database, and where no tenant is named, of all tenants as TENANT/ID."""
        ...

    def close(self) -> None: ...
