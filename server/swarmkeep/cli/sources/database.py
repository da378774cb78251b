"""Sessions in a database, without a server."""

from __future__ import annotations

import getpass
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import msgspec

from swarmkeep.audit.compare import compare_sessions, diff_session
from swarmkeep.audit.redact import redact
from swarmkeep.audit.replay.recorded_sessions import RecordedSession
from swarmkeep.audit.replay.requests import rebuild_request
from swarmkeep.audit.replay.session import load_recorded_session
from swarmkeep.audit.verify import problems
from swarmkeep.audit.verify import session as verification
from swarmkeep.audit.verify.audit_log import verify_audit_log, view_entry
from swarmkeep.audit.verify.checkpoints import CheckpointHead
from swarmkeep.cli.background import Background
from swarmkeep.cli.forms import FileForm, Form
from swarmkeep.cli.sources.conversion import to_client_event, to_session_state
from swarmkeep.domain.codec import decode
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.usage import UsageQuery
from swarmkeep.engine.reader import SessionReader
from swarmkeep.engine.stored_sessions import delete_session, fork_session
from swarmkeep.store.archive import Archive
from swarmkeep.store.ports import DEFAULT_TENANT, SessionKey
from swarmkeep_client import (
    AuditEntry,
    Comparison,
    Event,
    Head,
    ImportReport,
    Message,
    Redaction,
    SessionState,
    StateDiff,
    UsageRow,
    Verification,
)

Json = dict[str, Any]
POLL_SECONDS = 0.5
PAGE_SIZE = 500
USAGE_PAGE_SIZE = 20_000


class DatabaseSource:
    """The sessions of one tenant. Opened without `writes`, it cannot change a byte of the database."""

    def __init__(self, url: str | None, tenant: str | None, *, writes: bool, creates: bool = False) -> None:
        from swarmkeep.cli.configure import load_settings
        from swarmkeep.store.schema import upgrade
        from swarmkeep.store.sql.store import open_store
        from swarmkeep.store.urls import SqliteFile, locate

        self._tenant = tenant or DEFAULT_TENANT
        self._named_tenant = tenant
        location = load_settings(database_url=url).database_url
        if creates and isinstance(locate(location), SqliteFile):
            upgrade(location)
        self._store: Archive = open_store(location, read_only=not writes)
        self._background = Background()
        self._reader = SessionReader(self._store, poll_seconds=POLL_SECONDS)
        try:
            self._background.run(self._store.ping())
        except BaseException:
            self.close()
            raise

    def sessions(self, *, agent: str | None, status: str | None, metadata: Mapping[str, str]) -> Iterator[SessionState]:
        cursor = None
        while True:
            page = self._background.run(
                self._reader.list_page(
                    self._tenant,
                    agent=agent,
                    status=status,  # type: ignore[arg-type]
                    metadata=metadata,
                    cursor=cursor,
                )
            )
            yield from map(to_session_state, page.sessions)
            if page.next_cursor is None:
                return
            cursor = page.next_cursor

    def session(self, session_id: str, *, at: int | None = None) -> SessionState:
        return to_session_state(self._background.run(self._reader.view(self._key(session_id), at=at)))

    def messages(self, session_id: str, *, at: int | None = None) -> list[Message]:
        state = self._background.run(self._reader.state(self._key(session_id), at=at))
        return [entry.view() for entry in state.messages]

    def events(self, session_id: str, *, after: int = 0, types: Sequence[str] = ()) -> Iterator[Event]:
        while True:
            page = self._background.run(
                self._reader.read_events(self._key(session_id), after=after, types=types, limit=PAGE_SIZE)
            )
            yield from map(to_client_event, page)
            if len(page) < PAGE_SIZE:
                return
            after = page[-1].seq

    def follow(self, session_id: str, *, after: int = 0, types: Sequence[str] = ()) -> Iterator[Event]:
        key = self._key(session_id)
        self._background.run(self._reader.state(key))
        for item in self._background.iterate(self._reader.follow(key, after=after)):
            if isinstance(item, RecordedEvent) and (not types or item.type in types):
                yield to_client_event(item)

    def fork(self, session_id: str, *, at: int | None, new_id: str | None, metadata: Json | None) -> SessionState:
        key = self._key(session_id)
        return to_session_state(
            self._background.run(fork_session(self._store, key, at=at, session_id=new_id, metadata=metadata))
        )

    def delete(
        self, session_id: str, *, force: bool = False, reason: str | None = None, if_match: int | None = None
    ) -> None:
        key = self._key(session_id)
        self._background.run(
            delete_session(self._store, key, force=force, if_match=if_match, by=_name_operator(), reason=reason)
        )

    def redact(self, session_id: str, seqs: Sequence[int], reason: str, *, include_forks: bool) -> Redaction:
        key, by = self._key(session_id), _name_operator()
        done = self._background.run(redact(self._store, key, seqs, reason, by=by, include_forks=include_forks))
        return msgspec.convert(done, Redaction, from_attributes=True)

    def verify_audit_head(self, tenant: str | None, head: Head) -> Verification:
        noted = problems.Head(seq=head.seq, hash=head.hash)
        return _to_client_verification(
            self._background.run(verify_audit_log(self._store, tenant or self._tenant, noted=noted))
        )

    def heads(self) -> Iterator[CheckpointHead]:
        named = self._named_tenant
        after: SessionKey | None = None
        while keys := self._background.run(self._store.keys(named, after=after)):
            found = self._background.run(self._store.heads(keys))
            for key in keys:
                if key in found:
                    head = found[key]
                    yield CheckpointHead(tenant=key.tenant, session_id=key.id, seq=head.seq, hash=head.hash)
            after = keys[-1]
        for tenant, checked in self.verify_audit():
            if checked.head is not None:
                yield CheckpointHead(tenant=tenant, session_id=None, seq=checked.head.seq, hash=checked.head.hash)

    def audit(self, tenant: str | None = None) -> Iterator[AuditEntry]:
        after = 0
        while page := self._background.run(self._store.read_audit_log(tenant or self._tenant, after=after)):
            for entry in page:
                data = decode(view_entry(entry).data)
                yield AuditEntry(
                    seq=entry.seq, type=entry.type, by=entry.by, at=entry.at, data=data, hash=entry.hash.hex()
                )
            after = page[-1].seq

    def verify_audit(self) -> Iterator[tuple[str, Verification]]:
        named = self._named_tenant
        for tenant in [named] if named else self._background.run(self._store.list_audit_log_tenants()):
            yield tenant, _to_client_verification(self._background.run(verify_audit_log(self._store, tenant)))

    def export(
        self, ids: Sequence[str], *, agent: str | None, status: str | None, metadata: Mapping[str, str]
    ) -> Iterator[bytes]:
        from swarmkeep.audit.transfer.export import filter_sessions, find_sessions, iterate_keys, write_export

        if ids:
            keys = self._background.run(find_sessions(self._store, self._tenant, ids))
            chosen, alone = iterate_keys(keys), len(keys) == 1
        else:
            alone = False
            chosen = filter_sessions(
                self._store,
                self._tenant,
                agent=agent,
                status=status,  # type: ignore[arg-type]
                metadata=metadata,
            )
        return self._background.iterate(write_export(self._store, chosen, alone=alone))

    def conversations(self, ids: Sequence[str]) -> Iterator[RecordedSession]:
        for session_id in ids or (one.id for one in self.sessions(agent=None, status=None, metadata={})):
            yield self._background.run(load_recorded_session(self._store, self._key(session_id)))

    def transcript(self, session_id: str, form: Form) -> Iterator[bytes]:
        from swarmkeep.audit.transcript.document import open_transcript

        pieces = self._background.run(open_transcript(self._store, self._key(session_id), form))
        return self._background.iterate(pieces)

    def usage(self, asked: UsageQuery) -> Iterator[UsageRow]:
        # A page may cost as much as the whole: groups of runs are sorted anew for each.
        asked = msgspec.structs.replace(asked, limit=USAGE_PAGE_SIZE)
        while True:
            page = self._background.run(self._store.usage(self._tenant, asked))
            yield from msgspec.convert(msgspec.to_builtins(page.rows), list[UsageRow])
            if page.next_cursor is None:
                return
            asked = msgspec.structs.replace(asked, cursor=page.next_cursor)

    def import_sessions(
        self, file: BinaryIO, *, form: FileForm, agent: str | None, as_id: str | None, dry_run: bool
    ) -> ImportReport:
        from swarmkeep.audit.transfer.import_conversations import import_conversations
        from swarmkeep.audit.transfer.import_export import import_export

        where = (self._store, self._tenant, file)
        if form == "export":
            work = import_export(*where, as_id=as_id, dry_run=dry_run)
        else:
            work = import_conversations(*where, form, agent=agent, as_id=as_id, dry_run=dry_run)
        report = self._background.run(work)
        return msgspec.convert(report, ImportReport, from_attributes=True)

    def diff(self, session_id: str, before: int, after: int) -> StateDiff:
        found = self._background.run(diff_session(self._store, self._key(session_id), before, after))
        return msgspec.convert(found, StateDiff, from_attributes=True)

    def compare(self, session_id: str, other: str) -> Comparison:
        found = self._background.run(compare_sessions(self._store, self._key(session_id), self._key(other)))
        return msgspec.convert(found, Comparison, from_attributes=True)

    def request(self, session_id: str, seq: int) -> bytes:
        return self._background.run(rebuild_request(self._store, self._key(session_id), seq))

    def verify(self, session_id: str, *, head: Head | None = None, tenant: str | None = None) -> Verification:
        noted = None if head is None else problems.Head(seq=head.seq, hash=head.hash)
        checking = verification.verify(self._store, SessionKey(tenant or self._tenant, session_id), noted=noted)
        return _to_client_verification(self._background.run(checking))

    def verify_all(self) -> Iterator[tuple[str, Verification]]:
        checked = verification.verify_all(self._store, self._named_tenant)
        for key, found in self._background.iterate(checked):
            yield key.id if self._named_tenant else f"{key.tenant}/{key.id}", _to_client_verification(found)

    def close(self) -> None:
        try:
            self._background.run(self._store.close())
        finally:
            self._background.close()

    def _key(self, session_id: str) -> SessionKey:
        return SessionKey(self._tenant, session_id)


def _name_operator() -> str:
    """The user of the operating system, for the record of what they do without a server."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):
        # In a container a user may have a number only.
        return "cli"


def _to_client_verification(found: problems.Verification) -> Verification:
    return msgspec.convert(found, Verification, from_attributes=True)
