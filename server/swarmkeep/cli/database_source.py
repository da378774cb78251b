"""Sessions in a database, without a server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Unpack

import msgspec

from swarmkeep.cli.configure import load_prices
from swarmkeep.cli.conversion import (
    follow_walk,
    iterate_pages,
    make_missing_session_error,
    parse_name,
    to_client_verification,
    to_session_counts,
    to_session_state,
)
from swarmkeep.cli.output import Background
from swarmkeep.cli.sources import NEEDS_SERVER, DocumentForm, FileForm, SessionFilter, Walk, name_operator
from swarmkeep.cli.terminal import Refused, say
from swarmkeep.events.codec import Json, decode
from swarmkeep.events.facts import RecordedEvent
from swarmkeep.events.messages import list_shown
from swarmkeep.events.usage import UsageQuery
from swarmkeep.runs import sessions as stored
from swarmkeep.runs.reader import SessionReader
from swarmkeep.store.index import ActiveStatus
from swarmkeep.store.records import DEFAULT_TENANT, SessionKey, StoreUnavailable, is_full_page
from swarmkeep_client import (
    ActiveRun,
    AuditEntry,
    Checkpoint,
    Comparison,
    DueSession,
    Head,
    ImportReport,
    Leaf,
    Message,
    Redaction,
    SessionState,
    StateDiff,
    UsageRow,
    Verification,
)

if TYPE_CHECKING:
    from swarmkeep.history.checkpoints import CheckpointHead
    from swarmkeep.history.proofs import HeadLog
    from swarmkeep.history.recordings import RecordedSession
    from swarmkeep.history.verify import Verification as StoredVerification
    from swarmkeep_client import Session, SessionCounts


POLL_SECONDS = 0.5
PAGE_SIZE = 500
USAGE_PAGE_SIZE = 20_000


class DatabaseSource:
    """The sessions of one tenant. Opened without `writes`, it cannot change a byte of the database."""

    def __init__(self, url: str | None, tenant: str | None, *, writes: bool, creates: bool = False) -> None:
        from swarmkeep.cli.configure import load_settings
        from swarmkeep.store.opening import open_store
        from swarmkeep.store.urls import SqliteFile, locate

        self._tenant = tenant or DEFAULT_TENANT
        self._named_tenant = tenant
        self._settings = settings = load_settings(database_url=url)
        location = settings.database_url
        if creates and isinstance(locate(location), SqliteFile):
            from swarmkeep.store.schema import upgrade

            upgrade(location)
        self._open_to_write = partial(open_store, location, integrity_key=settings.integrity_keys)
        self._store = self._open_to_write(read_only=not writes)
        self._background = Background()
        self._reader = SessionReader(self._store, poll_seconds=POLL_SECONDS)
        try:
            self._background.run(self._store.ping())
        except BaseException:
            self.close()
            raise

    def sessions(self, **wanted: Unpack[SessionFilter]) -> Iterator[SessionState]:
        wanted = {"children": False, **wanted}
        run, read = self._background.run, partial(self._reader.list_page, self._tenant, **wanted)
        for page in iterate_pages(lambda cursor: run(read(cursor=cursor))):
            yield from map(to_session_state, page.sessions)

    def active_runs(self, status: ActiveStatus) -> Iterator[ActiveRun]:
        run, read = self._background.run, partial(self._store.list_active_runs, self._tenant, status)
        for page in iterate_pages(lambda cursor: run(read(cursor=cursor))):
            yield from msgspec.convert(msgspec.to_builtins(page.runs), list[ActiveRun])

    def session(self, session_id: str, *, at: int | None = None) -> SessionState:
        return to_session_state(self._background.run(self._reader.view(self._key(session_id), at=at)))

    def messages(self, session_id: str, *, at: int | None = None) -> list[Message]:
        state = self._background.run(self._reader.state(self._key(session_id), at=at))
        return [entry.view() for entry in list_shown(state.messages)]

    def events(self, session_id: str, *, after: int = 0, types: Sequence[str] = ()) -> Iterator[RecordedEvent]:
        while True:
            read = self._reader.read_events(self._key(session_id), after=after, types=types, limit=PAGE_SIZE)
            page = self._background.run(read)
            yield from page
            if not is_full_page(page, PAGE_SIZE, self._reader.page_bytes):
                return
            after = page[-1].seq

    def follow(self, session_id: str, *, after: int = 0, types: Sequence[str] = ()) -> Iterator[RecordedEvent]:
        key = self._key(session_id)
        self._background.run(self._reader.state(key))
        for item in self._background.iterate(self._reader.follow(key, after=after)):
            if isinstance(item, RecordedEvent) and (not types or item.type in types):
                yield item

    def fork(self, session_id: str, *, at: int | None, new_id: str | None, metadata: Json | None) -> SessionState:
        key = self._key(session_id)
        return to_session_state(
            self._background.run(stored.fork_session(self._store, key, at=at, session_id=new_id, metadata=metadata))
        )

    def label(self, session_id: str, metadata: Json) -> SessionState:
        key = self._key(session_id)
        return to_session_state(self._background.run(stored.label_stored_session(self._store, key, metadata)))

    def delete(
        self, session_id: str, *, force: bool = False, reason: str | None = None, if_match: int | None = None
    ) -> None:
        key = self._key(session_id)
        self._background.run(
            stored.delete_session(self._store, key, force=force, if_match=if_match, by=name_operator(), reason=reason)
        )

    def remove_message(self, session_id: str, seq: int, *, tool_call_id: str | None) -> None:
        key, by = self._key(session_id), name_operator()
        self._background.run(stored.remove_stored_message(self._store, key, seq, tool_call_id, by=by))

    def open_on_server(self, session_id: str) -> Session:
        raise Refused(NEEDS_SERVER)

    def redact(
        self, session_id: str, seqs: Sequence[int], reason: str, *, include_forks: bool, dry_run: bool
    ) -> Redaction:
        from swarmkeep.history.redact import redact

        key, by = self._key(session_id), name_operator()
        done = self._background.run(
            redact(self._store, key, seqs, reason, by=by, include_forks=include_forks, dry_run=dry_run)
        )
        return msgspec.convert(msgspec.to_builtins(done), Redaction)

    def hold(self, session_id: str, reason: str | None) -> SessionState:
        key, by = self._key(session_id), name_operator()
        if reason is None:
            return to_session_state(self._background.run(stored.release_session(self._store, key, by=by)))
        return to_session_state(self._background.run(stored.hold_session(self._store, key, reason, by=by)))

    def verify_audit_head(self, tenant: str | None, head: Head) -> Verification:
        from swarmkeep.history.checkpoints import verify_audit_log
        from swarmkeep.history.verify import Head as NotedHead

        noted = NotedHead(seq=head.seq, hash=head.hash)
        return to_client_verification(
            self._background.run(verify_audit_log(self._store, tenant or self._tenant, noted=noted))
        )

    def heads(self) -> Iterator[CheckpointHead]:
        from swarmkeep.history.checkpoints import CheckpointHead

        named = self._named_tenant
        after: SessionKey | None = None
        while keys := self._background.run(self._store.list_session_keys(named, after=after)):
            found = self._background.run(self._store.read_heads(keys))
            for key in keys:
                if key in found:
                    head = found[key]
                    yield CheckpointHead(tenant=key.tenant, session_id=key.id, seq=head.seq, hash=head.hash)
            after = keys[-1]
        for tenant, checked in self.verify_audit():
            if checked.head is not None:
                end, first = checked.head, next(self.audit(tenant)).hash
                yield CheckpointHead(tenant=tenant, session_id=None, seq=end.seq, hash=end.hash, first=first)

    def audit(self, tenant: str | None = None, *, after: int = 0) -> Iterator[AuditEntry]:
        from swarmkeep.history.checkpoints import view_entry

        while page := self._background.run(self._store.read_audit_log(tenant or self._tenant, after=after)):
            for entry in page:
                data = decode(view_entry(entry).data)
                yield AuditEntry(
                    seq=entry.seq, type=entry.type, by=entry.by, at=entry.at, data=data, hash=entry.hash.hex()
                )
            after = page[-1].seq

    def checkpoint(self, number: int | None = None, *, since: int | None = None) -> Checkpoint:
        log = self._open_log()
        made = self._background.run(log.make(self._tenant) if number is None else log.read(self._tenant, number))
        if since is not None:
            made = self._background.run(log.add_consistency(self._tenant, made, since))
        return msgspec.convert(msgspec.to_builtins(made), Checkpoint)

    def _open_log(self) -> HeadLog:
        from swarmkeep.history.checkpoints import load_signer
        from swarmkeep.history.proofs import HeadLog

        signer = load_signer(self._settings.signing_key)
        return HeadLog(self._store, origin=self._settings.log_origin, signer=signer)

    def due(self, before: datetime) -> Iterator[DueSession]:
        from swarmkeep.history.retention import RetentionError, iterate_due, read_retention

        try:
            rules = read_retention(self._settings.retention)
        except RetentionError as error:
            raise Refused(str(error)) from None
        if not rules:
            say("SWARMKEEP_RETENTION is not set: no session goes by itself")
        for due in self._background.iterate(iterate_due(self._store, self._tenant, rules, before=before)):
            yield msgspec.convert(msgspec.to_builtins(due), DueSession)

    def evidence(self, ids: Sequence[str], signing_key: Path | None, size: int | None) -> Iterator[bytes]:
        from swarmkeep.history.checkpoints import load_signer
        from swarmkeep.history.evidence import make_package, read_blocks

        signer = load_signer(signing_key or self._settings.signing_key)
        named = [self._key(session_id).id for session_id in ids]
        made = make_package(
            self._store, self._tenant, named, log=self._open_log(), signer=signer, with_audit=True, size=size
        )
        with self._background.run(made) as file:
            yield from read_blocks(file)

    def leaves(self) -> Iterator[Leaf]:
        from swarmkeep.history.proofs import view_leaf

        after = -1
        read = self._store.read_leaves
        while page := self._background.run(read(self._tenant, after=after, limit=PAGE_SIZE)):
            yield from msgspec.convert(msgspec.to_builtins([view_leaf(one) for one in page]), list[Leaf])
            after = page[-1].index

    def verify_audit(self) -> Iterator[tuple[str, Verification]]:
        from swarmkeep.history.checkpoints import verify_audit_log

        named = self._named_tenant
        for tenant in [named] if named else self._background.run(self._store.list_audit_log_tenants()):
            yield tenant, to_client_verification(self._background.run(verify_audit_log(self._store, tenant)))

    def count_sessions(self, *, of_all_tenants: bool = False) -> int | None:
        totals = self._background.run(self._store.list_totals())
        wanted = self._named_tenant if of_all_tenants else self._tenant
        return sum(one.sessions for tenant, one in totals.items() if wanted in (None, tenant))

    def counts(self, *, children: bool) -> SessionCounts:
        return to_session_counts(self._background.run(self._store.count_sessions(self._tenant, children=children)))

    def export(
        self, ids: Sequence[str], *, agent: str | None, status: str | None, metadata: Mapping[str, str], walk: Walk
    ) -> Iterator[bytes]:
        from swarmkeep.history.export import filter_sessions, find_sessions, iterate_keys, write_export

        if ids:
            keys = self._background.run(find_sessions(self._store, self._tenant, ids))
            chosen, alone = iterate_keys(keys), len(keys) == 1
        else:
            named = {"agent": agent, "status": status, "metadata": metadata}
            chosen, alone = filter_sessions(self._store, self._tenant, **named), False  # type: ignore[arg-type]
        return self._background.iterate(write_export(self._store, follow_walk(chosen, walk), alone=alone))

    def conversations(self, ids: Sequence[str]) -> Iterator[RecordedSession]:
        from swarmkeep.history.replay import load_recorded_session

        for session_id in ids or (one.id for one in self.sessions(children=True)):
            yield self._background.run(load_recorded_session(self._store, self._key(session_id)))

    def transcript(self, session_id: str, form: DocumentForm) -> Iterator[bytes]:
        from swarmkeep.history.transcript import open_transcript

        pieces = self._background.run(open_transcript(self._store, self._key(session_id), form))
        return self._background.iterate(pieces)

    def usage(self, asked: UsageQuery) -> Iterator[UsageRow]:
        # A page may cost as much as the whole: groups of runs are sorted again for each.
        run, change, prices = self._background.run, msgspec.structs.replace, load_prices()
        asked = change(asked, limit=USAGE_PAGE_SIZE, with_shares=prices is not None)
        for page in iterate_pages(
            lambda cursor: run(self._store.sum_usage(self._tenant, change(asked, cursor=cursor)))
        ):
            rows = page.rows if prices is None else prices.price_rows(page)
            yield from msgspec.convert(msgspec.to_builtins(rows), list[UsageRow])

    def import_sessions(
        self, file: BinaryIO, *, form: FileForm, agent: str | None, as_id: str | None, dry_run: bool
    ) -> ImportReport:
        from swarmkeep.history.conversations import import_conversations
        from swarmkeep.history.import_export import import_export

        where, by = (self._store, self._tenant, file), name_operator()
        if form == "export":
            work = import_export(*where, as_id=as_id, dry_run=dry_run, by=by)
        else:
            work = import_conversations(*where, form, agent=agent, as_id=as_id, dry_run=dry_run, by=by)
        report = self._background.run(work)
        return msgspec.convert(report, ImportReport, from_attributes=True)

    def diff(self, session_id: str, before: int, after: int) -> StateDiff:
        from swarmkeep.history.compare import diff_session

        found = self._background.run(diff_session(self._store, self._key(session_id), before, after))
        return msgspec.convert(found, StateDiff, from_attributes=True)

    def compare(self, session_id: str, other: str) -> Comparison:
        from swarmkeep.history.compare import compare_sessions

        found = self._background.run(compare_sessions(self._store, self._key(session_id), self._key(other)))
        return msgspec.convert(found, Comparison, from_attributes=True)

    def request(self, session_id: str, seq: int, *, redacted: bool) -> bytes:
        from swarmkeep.history.replay import rebuild_request, rebuild_what_is_left

        rebuild = rebuild_what_is_left if redacted else rebuild_request
        return self._background.run(rebuild(self._store, self._key(session_id), seq))

    def blob(self, session_id: str, sha256: str) -> bytes:
        return self._background.run(stored.read_stored_file(self._store, self._key(session_id), sha256))

    def verify(self, session_id: str, *, head: Head | None = None, tenant: str | None = None) -> Verification:
        from swarmkeep.history.verify import Head as NotedHead
        from swarmkeep.history.verify import verify

        noted = None if head is None else NotedHead(seq=head.seq, hash=head.hash)
        key = SessionKey(tenant or self._tenant, session_id)
        found = self._background.run(verify(self._store, key, noted=noted))
        self._release(key, found)
        return to_client_verification(found)

    def _release(self, key: SessionKey, found: StoredVerification) -> None:
        """Have a session that was set aside go on, if it is what was recorded again and the database can be written
        to."""
        if not found.valid or self._background.run(self._store.find_damaged_seq(key)) is None:
            return

        async def release() -> None:
            store = self._open_to_write()
            try:
                await store.check(key)
            finally:
                await store.close()

        with suppress(StoreUnavailable):
            self._background.run(release())

    def verify_all(self, *, first: str | None = None) -> Iterator[tuple[str, Verification]]:
        from swarmkeep.history.verify import verify_all

        begin = None if first is None else parse_name(first, self._named_tenant)
        if begin is not None and self._background.run(self._reader.head(begin)) is None:
            raise make_missing_session_error(first)
        checked = verify_all(self._store, self._named_tenant, first=begin)
        for key, found in self._background.iterate(checked):
            self._release(key, found)
            yield key.id if self._named_tenant else f"{key.tenant}/{key.id}", to_client_verification(found)

    def read_clock(self) -> datetime:
        return self._background.run(self._store.read_clock())

    def close(self) -> None:
        try:
            self._background.run(self._store.close())
        finally:
            self._background.close()

    def _key(self, session_id: str) -> SessionKey:
        return SessionKey(self._tenant, session_id)
