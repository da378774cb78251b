"""Sessions in a database, without a server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar, Unpack

import msgspec

import swarmkeep_client as api
from swarmkeep.cli.configure import load_prices, load_settings
from swarmkeep.cli.output import Background
from swarmkeep.cli.sources import (
    NEEDS_SERVER,
    DocumentForm,
    FeedChoice,
    FileForm,
    SessionChoice,
    Walk,
    make_missing_session_error,
    name_operator,
    to_client,
    to_client_event,
)
from swarmkeep.cli.terminal import Refused, say
from swarmkeep.events.codec import Json, decode, encode
from swarmkeep.events.facts import RecordedEvent
from swarmkeep.events.messages import list_shown
from swarmkeep.events.records import UsageQuery
from swarmkeep.events.run_table import FiguresQuery, RunQuery
from swarmkeep.history.compare import compare_sessions, diff_session
from swarmkeep.history.export import filter_sessions, find_sessions, iterate_keys, write_export
from swarmkeep.history.retention import iterate_due, read_retention
from swarmkeep.runs import sessions as stored
from swarmkeep.runs.feed import EventFeed, view_feed_event
from swarmkeep.runs.reader import SessionReader, choose_order
from swarmkeep.store.feed import FeedFilter
from swarmkeep.store.index import ActiveStatus, SessionFilter
from swarmkeep.store.opening import open_store
from swarmkeep.store.records import DEFAULT_TENANT, SessionKey, SessionOrder, StoreUnavailable, is_full_page
from swarmkeep.store.urls import SqliteFile, locate

if TYPE_CHECKING:
    from swarmkeep.history.checkpoints import CheckpointHead
    from swarmkeep.history.proofs import HeadLog
    from swarmkeep.history.recordings import RecordedSession
    from swarmkeep.history.verify import Verification as StoredVerification


class Page(Protocol):
    @property
    def next_cursor(self) -> str | None: ...


P = TypeVar("P", bound=Page)
T = TypeVar("T")
POLL_SECONDS = 0.5
PAGE_SIZE = 500
USAGE_PAGE_SIZE = 20_000


class DatabaseSource:
    """The sessions of one tenant. Opened without `writes`, it cannot change a byte of the database."""

    def __init__(self, url: str | None, tenant: str | None, *, writes: bool, creates: bool = False) -> None:
        self._tenant = tenant or DEFAULT_TENANT
        self._named_tenant = tenant
        self._settings = settings = load_settings(database_url=url)
        location = settings.database_url
        if creates and isinstance(locate(location), SqliteFile):
            from swarmkeep.store.schema import upgrade

            upgrade(location)
        self._open_to_write = partial(open_store, location, **settings.store_options)
        self._store = self._open_to_write(read_only=not writes)
        self._background = Background()
        self._reader = SessionReader(self._store, poll_seconds=POLL_SECONDS)
        try:
            self._background.run(self._store.ping())
            self._attach_archive(read_only=not writes)
        except BaseException:
            self.close()
            raise

    def _attach_archive(self, *, read_only: bool) -> None:
        if self._settings.archive is None:
            return
        from swarmkeep.history.archives import open_archive

        open_archive(self._store, self._settings, read_only=read_only)

    def sessions(
        self,
        *,
        q: str | None = None,
        order: SessionOrder | None = None,
        children: bool = False,
        **wanted: Unpack[SessionChoice],
    ) -> Iterator[api.SessionState]:
        """Yield sessions as they are needed; with `children` also those that agents began to ask others."""
        found = SessionFilter(self._tenant, order=choose_order(order, q), children=children, **wanted)
        for page in self._read_pages(partial(self._reader.list_page, found, q=q)):
            yield from (to_client(one, api.SessionState) for one in page.sessions)

    def active_runs(self, status: ActiveStatus) -> Iterator[api.ActiveRun]:
        """Yield the runs that go on, or those that wait for an answer; fetched as they are needed."""
        for page in self._read_pages(partial(self._store.list_active_runs, self._tenant, status)):
            yield from to_client(page.runs, list[api.ActiveRun])

    def session(self, session_id: str, *, at: int | None = None) -> api.SessionState:
        return self._ask(self._reader.view(self._key(session_id), at=at), api.SessionState)

    def messages(self, session_id: str, *, at: int | None = None) -> list[api.Message]:
        state = self._background.run(self._reader.state(self._key(session_id), at=at))
        return [entry.view() for entry in list_shown(state.messages)]

    def events(
        self, session_id: str, *, after: int = 0, types: Sequence[str] = (), tenant: str | None = None
    ) -> Iterator[api.Event]:
        return map(to_client_event, self.facts(session_id, after=after, types=types, tenant=tenant))

    def facts(
        self, session_id: str, *, after: int = 0, types: Sequence[str] = (), tenant: str | None = None
    ) -> Iterator[RecordedEvent]:
        """The events as they were recorded, for what folds them."""
        key = SessionKey(tenant or self._tenant, session_id)
        while True:
            read = self._reader.read_events(key, after=after, types=types, limit=PAGE_SIZE)
            page = self._background.run(read)
            yield from page
            if not is_full_page(page, PAGE_SIZE, self._reader.page_bytes):
                return
            after = page[-1].seq

    def follow(self, session_id: str, *, after: int = 0, types: Sequence[str] = ()) -> Iterator[api.Event]:
        """The events, and then each new one as it is recorded, for ever."""
        key = self._key(session_id)
        self._background.run(self._reader.state(key))
        for item in self._background.iterate(self._reader.follow(key, after=after)):
            if isinstance(item, RecordedEvent) and (not types or item.type in types):
                yield to_client_event(item)

    def feed(self, choice: FeedChoice, *, follow: bool = False) -> Iterator[api.FeedPage]:
        """The events of all sessions, page by page; with `follow` then each new one, for ever."""
        feed, run, tenant = self._open_feed(), self._background.run, self._tenant
        place = run(feed.find_start(tenant, choice.after, choice.consumer))
        wanted = FeedFilter(types=choice.types, agents=choice.agents, metadata=choice.metadata)
        while True:
            waiting = feed.wait(tenant, place, wanted, limit=PAGE_SIZE, seconds=POLL_SECONDS if follow else 0)
            page = run(waiting)
            place = page.cursor
            shown = [decode(encode(view_feed_event(one)), api.FeedEvent) for one in page.events]
            yield api.FeedPage(data=shown, next_cursor=str(place))
            if page.is_last and not page.events and not follow:
                return

    def _open_feed(self) -> EventFeed:
        return EventFeed(self._store, poll_seconds=POLL_SECONDS, page_bytes=self._reader.page_bytes)

    def consumers(self) -> Sequence[api.Consumer]:
        kept = self._background.run(self._open_feed().list_consumers(self._tenant))
        return [
            api.Consumer(name=one.name, cursor=str(one.cursor), lag=one.lag, updated_at=one.updated_at) for one in kept
        ]

    def confirm(self, consumer: str, cursor: str) -> None:
        self._background.run(self._open_feed().confirm(self._tenant, consumer, cursor))

    def forget_consumer(self, name: str) -> None:
        self._background.run(self._store.delete_consumer(self._tenant, name))

    def fork(self, session_id: str, *, at: int | None, new_id: str | None, metadata: Json | None) -> api.SessionState:
        key = self._key(session_id)
        return self._ask(
            stored.fork_session(self._store, key, at=at, session_id=new_id, metadata=metadata),
            api.SessionState,
        )

    def label(self, session_id: str, metadata: Json) -> api.SessionState:
        """Merge into the session's metadata."""
        key = self._key(session_id)
        return self._ask(stored.label_stored_session(self._store, key, metadata), api.SessionState)

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

    def open_on_server(self, session_id: str) -> api.Session:
        raise Refused(NEEDS_SERVER)

    def redact(
        self, session_id: str, seqs: Sequence[int], reason: str, *, include_forks: bool, dry_run: bool
    ) -> api.Redaction:
        from swarmkeep.history.redact import redact

        key, by = self._key(session_id), name_operator()
        return self._ask(
            redact(self._store, key, seqs, reason, by=by, include_forks=include_forks, dry_run=dry_run), api.Redaction
        )

    def hold(self, session_id: str, reason: str | None) -> api.SessionState:
        """Put a session on hold; without a reason, lift the hold."""
        key, by = self._key(session_id), name_operator()
        if reason is None:
            return self._ask(stored.release_session(self._store, key, by=by), api.SessionState)
        return self._ask(stored.hold_session(self._store, key, reason, by=by), api.SessionState)

    def erase(self, person: str, reason: str, *, dry_run: bool) -> api.Erasure:
        """Erase a person, wherever the person's key encrypts what was recorded."""
        from swarmkeep.history.erasure import erase_person

        by = name_operator()
        return self._ask(erase_person(self._store, self._tenant, person, reason, by=by, dry_run=dry_run), api.Erasure)

    def verify_audit_head(self, tenant: str | None, head: api.Head) -> api.Verification:
        from swarmkeep.history.checkpoints import verify_audit_log
        from swarmkeep.history.verify import Head as NotedHead

        noted = NotedHead(seq=head.seq, hash=head.hash)
        return self._ask(verify_audit_log(self._store, tenant or self._tenant, noted=noted), api.Verification)

    def heads(self) -> Iterator[CheckpointHead]:
        """Yield the end of each session and audit log: in a database, where no tenant is named, those of all."""
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

    def audit(self, tenant: str | None = None, *, after: int = 0) -> Iterator[api.AuditEntry]:
        """A tenant's audit log after an entry, oldest first; by default that of the tenant in question."""
        from swarmkeep.history.checkpoints import view_entry

        while page := self._background.run(self._store.read_audit_log(tenant or self._tenant, after=after)):
            for entry in page:
                data = decode(view_entry(entry).data)
                yield api.AuditEntry(
                    seq=entry.seq, type=entry.type, by=entry.by, at=entry.at, data=data, hash=entry.hash.hex()
                )
            after = page[-1].seq

    def checkpoint(self, number: int | None = None, *, since: int | None = None) -> api.Checkpoint:
        """A checkpoint of the log of heads, by default a new one, if there is anything new; with the proof that it goes
        on from the first `since` leaves."""
        log = self._open_log()
        made = self._background.run(log.make(self._tenant) if number is None else log.read(self._tenant, number))
        if since is not None:
            made = self._background.run(log.add_consistency(self._tenant, made, since))
        return to_client(made, api.Checkpoint)

    def _open_log(self) -> HeadLog:
        from swarmkeep.history.checkpoints import load_signer
        from swarmkeep.history.proofs import HeadLog

        signer = load_signer(self._settings.signing_key)
        return HeadLog(self._store, origin=self._settings.log_origin, signer=signer)

    def list_due(self, before: datetime) -> Iterator[api.DueSession]:
        """The sessions that retention deletes before a time: a server's, or that of the settings here."""
        rules = read_retention(self._settings.retention)
        if not rules:
            say("SWARMKEEP_RETENTION is not set: no session goes by itself")
        for due in self._background.iterate(iterate_due(self._store, self._tenant, rules, before=before)):
            yield to_client(due, api.DueSession)

    def evidence(self, ids: Sequence[str], signing_key: Path | None, size: int | None) -> Iterator[bytes]:
        """These sessions as a package that a stranger can check, proven from the checkpoint of `size` leaves, or the
        newest. Raises BadCheckpoint for a key that cannot be used."""
        from swarmkeep.history.checkpoints import load_signer
        from swarmkeep.history.evidence import make_package, read_blocks

        signer = load_signer(signing_key or self._settings.signing_key)
        named = [self._key(session_id).id for session_id in ids]
        made = make_package(
            self._store, self._tenant, named, log=self._open_log(), signer=signer, with_audit=True, size=size
        )
        with self._background.run(made) as file:
            yield from read_blocks(file)

    def leaves(self) -> Iterator[api.Leaf]:
        from swarmkeep.history.proofs import view_leaf

        after = -1
        read = self._store.read_leaves
        while page := self._background.run(read(self._tenant, after=after, limit=PAGE_SIZE)):
            yield from to_client([view_leaf(one) for one in page], list[api.Leaf])
            after = page[-1].index

    def verify_audit(self) -> Iterator[tuple[str, api.Verification]]:
        """The audit logs by their tenants: where no tenant is named in a database, those of all."""
        from swarmkeep.history.checkpoints import verify_audit_log

        named = self._named_tenant
        for tenant in [named] if named else self._background.run(self._store.list_audit_log_tenants()):
            yield tenant, self._ask(verify_audit_log(self._store, tenant), api.Verification)

    def count_sessions(self, *, of_all_tenants: bool = False) -> int | None:
        """Count the sessions; `of_all_tenants`: unless one is named."""
        totals = self._background.run(self._store.list_totals())
        wanted = self._named_tenant if of_all_tenants else self._tenant
        return sum(one.sessions for tenant, one in totals.items() if wanted in (None, tenant))

    def counts(self, *, children: bool) -> api.SessionCounts:
        return self._ask(self._store.count_sessions(self._tenant, children=children), api.SessionCounts)

    def export(
        self, ids: Sequence[str], *, agent: str | None, status: str | None, metadata: Mapping[str, str], walk: Walk
    ) -> Iterator[bytes]:
        """The sessions with these ids, or all by these filters, as a file that leaves nothing out."""
        if ids:
            keys = self._background.run(find_sessions(self._store, self._tenant, ids))
            chosen, alone = iterate_keys(keys), len(keys) == 1
        else:
            named = {"agent": agent, "status": status, "metadata": metadata}
            chosen, alone = filter_sessions(self._store, self._tenant, **named), False  # type: ignore[arg-type]
        pieces = write_export(self._store, follow_walk(chosen, walk), alone=alone)
        return self._background.iterate(pieces)

    def conversations(self, ids: Sequence[str]) -> Iterator[RecordedSession]:
        """These sessions, or all, to compare agents with."""
        from swarmkeep.history.replay import load_recorded_session

        for session_id in ids or (one.id for one in self.sessions(children=True)):
            yield self._background.run(load_recorded_session(self._store, self._key(session_id)))

    def transcript(self, session_id: str, form: DocumentForm) -> Iterator[bytes]:
        from swarmkeep.history.transcript import open_transcript

        pieces = self._background.run(open_transcript(self._store, self._key(session_id), form))
        return self._background.iterate(pieces)

    def usage(self, asked: UsageQuery) -> Iterator[api.UsageRow]:
        # A page may cost as much as the whole: groups of runs are sorted again for each.
        change, prices = msgspec.structs.replace, load_prices()
        asked = change(asked, limit=USAGE_PAGE_SIZE, with_shares=prices is not None)
        for page in self._read_pages(lambda cursor: self._store.sum_usage(self._tenant, change(asked, cursor=cursor))):
            rows = page.rows if prices is None else prices.price_rows(page)
            yield from to_client(rows, list[api.UsageRow])

    def runs(self, asked: RunQuery) -> Iterator[api.EndedRun]:
        change, prices = msgspec.structs.replace, load_prices()
        asked = change(asked, with_shares=prices is not None)
        for page in self._read_pages(
            lambda cursor: self._store.list_ended_runs(self._tenant, change(asked, cursor=cursor))
        ):
            rows = page.runs if prices is None else prices.price_each(page.runs, page.shares)
            yield from to_client(rows, list[api.EndedRun])

    def run_figures(self, asked: FiguresQuery) -> Iterator[api.RunFigures]:
        """A row for each group of runs that are over, of at most 92 days."""
        change = msgspec.structs.replace
        for page in self._read_pages(lambda cursor: self._store.sum_runs(self._tenant, change(asked, cursor=cursor))):
            yield from to_client(page.rows, list[api.RunFigures])

    def import_sessions(
        self, file: BinaryIO, *, form: FileForm, agent: str | None, as_id: str | None, dry_run: bool
    ) -> api.ImportReport:
        from swarmkeep.history.conversations import import_conversations
        from swarmkeep.history.import_export import import_export

        where, by = (self._store, self._tenant, file), name_operator()
        if form == "export":
            work = import_export(*where, as_id=as_id, dry_run=dry_run, by=by)
        else:
            work = import_conversations(*where, form, agent=agent, as_id=as_id, dry_run=dry_run, by=by)
        return self._ask(work, api.ImportReport)

    def diff(self, session_id: str, before: int, after: int) -> api.StateDiff:
        return self._ask(diff_session(self._store, self._key(session_id), before, after), api.StateDiff)

    def compare(self, session_id: str, other: str) -> api.Comparison:
        return self._ask(compare_sessions(self._store, self._key(session_id), self._key(other)), api.Comparison)

    def request(self, session_id: str, seq: int, *, redacted: bool) -> bytes:
        """The exact model request behind an answer; or, with `redacted`, an object with what is left of it."""
        from swarmkeep.history.replay import rebuild_request, rebuild_what_is_left

        rebuild = rebuild_what_is_left if redacted else rebuild_request
        return self._background.run(rebuild(self._store, self._key(session_id), seq))

    def blob(self, session_id: str, sha256: str) -> bytes:
        return self._background.run(stored.read_stored_file(self._store, self._key(session_id), sha256))

    def verify(self, session_id: str, *, head: api.Head | None = None, tenant: str | None = None) -> api.Verification:
        from swarmkeep.history.verify import Head as NotedHead
        from swarmkeep.history.verify import verify

        noted = None if head is None else NotedHead(seq=head.seq, hash=head.hash)
        key = SessionKey(tenant or self._tenant, session_id)
        found = self._background.run(verify(self._store, key, noted=noted))
        self._release(key, found)
        return to_client(found, api.Verification)

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

    def verify_all(self, *, first: str | None = None) -> Iterator[tuple[str, api.Verification]]:
        """Every session by its name: in a database, and where no tenant is named, of all tenants as TENANT/ID.

        `first` is the name of the one to begin with.
        """
        from swarmkeep.history.verify import verify_all

        begin = None if first is None else parse_name(first, self._named_tenant)
        if begin is not None and self._background.run(self._reader.head(begin)) is None:
            raise make_missing_session_error(first)
        checked = verify_all(self._store, self._named_tenant, first=begin)
        for key, found in self._background.iterate(checked):
            self._release(key, found)
            yield key.id if self._named_tenant else f"{key.tenant}/{key.id}", to_client(found, api.Verification)

    def read_clock(self) -> datetime:
        """Return the database's time."""
        return self._background.run(self._store.read_clock())

    def read_metrics(self) -> None:
        return None

    def close(self) -> None:
        try:
            self._background.run(self._store.close())
        finally:
            self._background.close()

    def _key(self, session_id: str) -> SessionKey:
        return SessionKey(self._tenant, session_id)

    def _ask(self, work: Coroutine[Any, Any, object], kind: type[T]) -> T:
        """The client's form of what the store gives."""
        return to_client(self._background.run(work), kind)

    def _read_pages(self, read: Callable[..., Coroutine[Any, Any, P]]) -> Iterator[P]:
        """Each page of a list, read as it is needed."""
        cursor = None
        while True:
            page = self._background.run(read(cursor=cursor))
            yield page
            if (cursor := page.next_cursor) is None:
                return


async def follow_walk(keys: AsyncIterable[SessionKey], walk: Walk) -> AsyncGenerator[SessionKey]:
    """The sessions from the first one on, as long as the walk is not to end. Raises Refused if there is no such one."""
    begun = walk.first is None
    async for key in keys:
        begun = begun or key.id == walk.first
        if not begun:
            continue
        if walk.ends():
            walk.next = key.id
            return
        yield key
        walk.done += 1
    if not begun:
        raise make_missing_session_error(walk.first)


def parse_name(name: str, tenant: str | None) -> SessionKey:
    """The session of a name as `verify_all` gives it: TENANT/ID where no tenant is named."""
    first, slash, session_id = name.partition("/")
    return SessionKey(first, session_id) if slash and tenant is None else SessionKey(tenant or DEFAULT_TENANT, name)
