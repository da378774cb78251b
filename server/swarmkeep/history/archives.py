"""Sessions that were not used for long, moved to object storage and brought back when they are asked for.

A session's object is its export, compressed. It is read back and verified before the rows are deleted, and verified to
the last hash before they are inserted again. Object stores are reached by `obstore`: S3 and what speaks it, Google,
Azure, and folders.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import io
import logging
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Protocol
from urllib.parse import quote
from weakref import WeakValueDictionary

from msgspec.structs import replace

from swarmkeep.events.codec import to_timestamp
from swarmkeep.events.errors import HistoryDamaged, InvalidImport, PersonErased, SessionNotFound
from swarmkeep.events.state import Damage
from swarmkeep.history.export import LOSSES, iterate_keys, write_export
from swarmkeep.history.import_export import MAX_SESSION_BYTES, read_chunks, verify_export
from swarmkeep.history.retention import RetentionError, read_retention, repeating_hourly, subtract
from swarmkeep.store.archives import ArchivableSession, ArchivedSession
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import (
    ArchiveUnavailable,
    AuditAction,
    Clock,
    SealedBatch,
    SessionKey,
    StoreUnavailable,
    utc_now,
)

log = logging.getLogger(__name__)

_PAGE_SESSIONS = 100
# What was brought back stays for so long, however old it is: who reads it once, reads more of it.
_KEPT = timedelta(hours=1)
# An upload that has not ended by then never will.
_LONGEST_UPLOAD = timedelta(days=1)
# A caller waits for a session.
_RETRIES: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=20)}
_TIMEOUTS: Any = {"timeout": timedelta(seconds=60), "connect_timeout": timedelta(seconds=5)}
_LEVEL = 6
# Most of the time goes into waiting for the object store.
_AT_ONCE = 8
_SCHEMES = ("s3://", "gs://", "az://", "file:///")
# So that an empty bucket, or another one, is not taken for an archive that has lost its objects.
_MARKER = "README.txt"
_MARKER_BYTES = 1000
_ADVICE = {
    "archive_missing": "put the object back, or delete the session with `force`",
    "archive_differs": "put back the object as it was, or delete the session with `force`",
    "archive_erased": "delete the session with `force`",
}


class ArchiveError(Exception):
    """The setting cannot be used; `why` says the reason."""

    def __init__(self, why: str, setting: str = "SWARMKEEP_ARCHIVE") -> None:
        super().__init__(f"{setting}: {why}")
        self.why = why


class ObjectStore:
    """Objects by name, in a bucket or a folder. The library is loaded with the first that is opened."""

    def __init__(self, url: str) -> None:
        try:
            import obstore
            from obstore.store import LocalStore, from_url
        except ImportError:
            raise ArchiveError("it needs `pip install 'swarmkeep[archive]'`") from None
        self._obstore: Any = obstore
        self.url = url
        # The library also has stores in memory, and ones that only read.
        if not url.startswith(_SCHEMES):
            raise ArchiveError(f"{url} cannot be used: begin it with one of {', '.join(_SCHEMES)}")
        try:
            if url.startswith("file://"):
                self._store: Any = LocalStore.from_url(url, mkdir=True)
            else:
                # Buckets with Object Lock take nothing without a checksum.
                more: Any = {"checksum_algorithm": "SHA256"} if url.startswith("s3://") else {}
                # Said here, since options for the client take the place of what the environment says.
                plain = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true")
                options: Any = {**_TIMEOUTS, "allow_http": plain}
                self._store = from_url(url, retry_config=_RETRIES, client_options=options, **more)
        except Exception as error:
            raise ArchiveError(f"{url} cannot be used: {error}") from None

    async def put(self, name: str, content: bytes) -> None:
        """Raises StoreUnavailable."""
        with self._explain_failure():
            await self._obstore.put_async(self._store, name, content, use_multipart=False)

    async def get(self, name: str, max_bytes: int) -> bytes | None:
        """The object; None if it is not there, and nothing of one that is larger. Raises StoreUnavailable."""
        with self._explain_failure():
            try:
                found = await self._obstore.get_async(self._store, name)
                # Others who may write there may have put anything in its place.
                return bytes(await found.bytes_async()) if found.meta["size"] <= max_bytes else b""
            except FileNotFoundError:
                return None

    async def is_marked(self) -> bool:
        """Tell if anything was ever archived there. Raises ArchiveUnavailable."""
        return await self.get(_MARKER, _MARKER_BYTES) is not None

    async def delete(self, name: str) -> None:
        """Raises StoreUnavailable, also where a lock keeps it."""
        with self._explain_failure(), contextlib.suppress(FileNotFoundError):
            await self._obstore.delete_async(self._store, name)

    @contextlib.contextmanager
    def _explain_failure(self) -> Iterator[None]:
        try:
            yield
        except (self._obstore.exceptions.BaseError, OSError) as error:
            said = str(error).strip().splitlines()
            raise ArchiveUnavailable(
                f"the archive at {self.url}: {said[0] if said else type(error).__name__}"
            ) from None


class Archive:
    """The archive of a database: moves sessions there, and brings them back for a store that asks for them, unless that
    is `read_only`."""

    def __init__(
        self, store: SqlStore, objects: ObjectStore, *, read_only: bool = False, clock: Clock = utc_now
    ) -> None:
        self._store = store
        self._objects = objects
        self._is_read_only = read_only
        self._clock = clock
        self._is_marked = False
        self._bringing: WeakValueDictionary[SessionKey, asyncio.Lock] = WeakValueDictionary()
        store.on_archived = self.bring_back
        store.on_read_archived = self.read

    async def bring_back(self, key: SessionKey) -> bool:
        """Insert a session's rows again, if it is archived. False if it is not.

        Raises StoreUnavailable, and HistoryDamaged if the object is missing, not what was archived, or encrypted by a
        key that is gone.
        """
        if await self._store.find_archived(key) is None:
            return False
        if self._is_read_only:
            raise StoreUnavailable(
                f"session {key.id!r} is archived: run `swarmkeep archive --bring-back {key.id}` first"
            )
        lock = self._bringing.setdefault(key, asyncio.Lock())
        async with lock:
            record = await self._store.find_archived(key)
            if record is not None:
                batches = await self._store.encrypt_batches(key, await self._fetch(record))
                await self._store.put_back(record, batches, self._now())
        return True

    async def read(self, key: SessionKey) -> list[SealedBatch] | None:
        """A session in the archive; None if it is not there. Raises as `bring_back` does."""
        record = await self._store.find_archived(key)
        return None if record is None else await self._fetch(record)

    async def _fetch(self, record: ArchivedSession) -> list[SealedBatch]:
        content = await self._objects.get(record.name, record.size)
        if content is None and not await self._objects.is_marked():
            raise ArchiveUnavailable(f"there is nothing of Swarmkeep's in the archive at {self._objects.url}")
        try:
            if content is None:
                raise InvalidImport("the object is missing")
            return await asyncio.to_thread(_read_object, record, await self._decrypt(record, content))
        except (InvalidImport, PersonErased) as error:
            unreadable = "archive_erased" if isinstance(error, PersonErased) else "archive_differs"
            code = "archive_missing" if content is None else unreadable
            log.error("session %s: its object %s in the archive: %s", record.key.id, record.name, error)
            await self._store.note_damage(record.key, Damage(seq=2, code=code))
            raise HistoryDamaged(record.key.id, 2, problem=code, detail=f"{LOSSES[code]}; {_ADVICE[code]}") from None

    async def _decrypt(self, record: ArchivedSession, content: bytes) -> bytes:
        if hashlib.sha256(content).digest() != record.sha256:
            raise InvalidImport("it is not what was written there")
        return await self._store.decrypt_object(record.key, content)

    async def archive(self, session: ArchivableSession, *, by: str) -> bool:
        """Move a session to the archive. False if it has changed since, or is too large. Raises StoreUnavailable, and
        HistoryDamaged."""
        record = await self._find_current_copy(session) or await self._upload(session)
        if record is None:
            return False
        return await self._store.archive(record, AuditAction(type="session.archived", by=by))

    async def _find_current_copy(self, session: ArchivableSession) -> ArchivedSession | None:
        """The object that a session was brought back from, if nothing has happened in it since."""
        copy = await self._store.find_copy(session.key)
        if copy is None or (copy.seq, copy.hash) != (session.seq, session.hash):
            return None
        content = await self._objects.get(copy.name, copy.size)
        if content is None or hashlib.sha256(content).digest() != copy.sha256:
            return None
        return replace(copy, state="archived", at=self._now())

    async def _upload(self, session: ArchivableSession) -> ArchivedSession | None:
        key = session.key
        state = await self._store.sound_state(key)
        if (state.seq, bytes.fromhex(state.hash)) != (session.seq, session.hash):
            return None
        lines = await self._export(key)
        if lines is None:
            return None
        plain = await asyncio.to_thread(gzip.compress, lines, _LEVEL, mtime=0)
        content = await self._store.encrypt_object(key, plain)
        sha256 = hashlib.sha256(content).digest()
        # Another content gets another name: what was written once is never written over.
        name = f"{quote(key.tenant, safe='')}/{quote(key.id, safe='')}/{session.seq}-{sha256.hex()[:16]}.jsonl.gz"
        record = ArchivedSession(
            key=key, name=name, seq=session.seq, hash=session.hash, sha256=sha256, size=len(content),
            state="archived", at=self._now(),
        )  # fmt: skip
        try:
            await asyncio.to_thread(_read_object, record, plain)
        except InvalidImport:
            # Something has been recorded meanwhile.
            return None
        if not self._is_marked:
            await self._objects.put(_MARKER, b"Sessions of a Swarmkeep database: export lines, compressed by gzip.\n")
            self._is_marked = True
        if not await self._store.begin_upload(record):
            return None
        await self._objects.put(name, content)
        if await self._objects.get(name, len(content)) != content:
            raise ArchiveUnavailable(f"the archive at {self._objects.url} does not give back what it took")
        return record

    async def _export(self, key: SessionKey) -> bytes | None:
        """The session's export; None if it is too large, or was deleted meanwhile."""
        lines = io.BytesIO()
        try:
            async for piece in write_export(self._store, iterate_keys([key]), alone=True):
                lines.write(piece)
                if lines.tell() > MAX_SESSION_BYTES:
                    log.info("session %s is not archived: it is larger than %d bytes", key.id, MAX_SESSION_BYTES)
                    return None
        except StoreUnavailable:
            if await self._store.read_head(key) is None:
                return None
            raise
        return lines.getvalue()

    async def list_due(
        self, tenant: str, age: timedelta, *, after: ArchivableSession | None = None, limit: int = _PAGE_SESSIONS
    ) -> list[ArchivableSession]:
        """The sessions of a tenant in which nothing has happened for so long, the longest first."""
        now = self._clock()
        return await self._store.list_archivable(
            tenant,
            subtract(now, age),
            after=after,
            copied_before=to_timestamp(now - min(_KEPT, age)),
            limit=limit,
        )

    async def archive_due(self, age: timedelta, *, by: str = "archive") -> int:
        """Archive the sessions of all tenants in which nothing has happened for so long; return how many. Several
        servers may do so at once. Then delete what is not needed there any more."""
        count = 0
        turns = asyncio.Semaphore(_AT_ONCE)

        async def archive_one(session: ArchivableSession) -> bool:
            async with turns:
                return await self._archive_if_sound(session, by)

        for tenant in await self._store.list_totals():
            after: ArchivableSession | None = None
            while page := await self.list_due(tenant, age, after=after):
                moved = await asyncio.gather(*map(archive_one, page), return_exceptions=True)
                for outcome in moved:
                    if isinstance(outcome, BaseException):
                        raise outcome
                    count += outcome
                after = page[-1]
        await self.delete_garbage()
        return count

    async def _archive_if_sound(self, session: ArchivableSession, by: str) -> bool:
        try:
            return await self.archive(session, by=by)
        except (SessionNotFound, PersonErased):
            # Deleted meanwhile, or of a person whose key is gone: nothing encrypts what is left of it.
            return False
        except HistoryDamaged:
            log.warning("session %s is not archived: it does not verify", session.key.id)
            return False

    async def delete_garbage(self) -> int:
        """Delete objects of sessions that were deleted, redacted or archived again; return how many. What a lock keeps
        is tried again the next time."""
        count = 0
        for record in await self._store.list_garbage(to_timestamp(self._clock() - _LONGEST_UPLOAD), 10_000):
            try:
                await self._objects.delete(record.name)
            except StoreUnavailable as error:
                log.warning("an object of session %s cannot be deleted yet: %s", record.key.id, error)
                continue
            await self._store.forget_object(record)
            count += 1
        return count

    def _now(self) -> str:
        return to_timestamp(self._clock())


def _read_object(record: ArchivedSession, content: bytes) -> list[SealedBatch]:
    """The session in an object, verified to its last hash. Raises InvalidImport."""
    file = io.BytesIO(gzip.decompress(content))
    places = list(verify_export(file, max_session_bytes=sys.maxsize, max_line_values=sys.maxsize))
    if [(place.session_id, place.begin.seq, bytes.fromhex(place.begin.hash)) for place in places] != [
        (record.key.id, record.seq, record.hash)
    ]:
        raise InvalidImport("it is another session, or ends elsewhere")
    return list(read_chunks(file, places[0], record.key.id))


class ArchiveSettings(Protocol):
    archive: str | None
    archive_after: str | None


def open_archive(store: SqlStore, settings: ArchiveSettings, *, read_only: bool = False) -> Archive | None:
    """The archive that the settings name, for this store. Raises ArchiveError."""
    if settings.archive is None:
        if settings.archive_after:
            raise ArchiveError("it needs SWARMKEEP_ARCHIVE, which says where", "SWARMKEEP_ARCHIVE_AFTER")
        return None
    return Archive(store, ObjectStore(settings.archive), read_only=read_only)


def read_age(text: str | None) -> timedelta | None:
    """The time of `SWARMKEEP_ARCHIVE_AFTER`. Raises ArchiveError."""
    if not text:
        return None
    try:
        [rule] = read_retention(text)
        if rule.tenant is not None or rule.metadata or rule.time is None:
            raise ValueError(text)
    except (RetentionError, ValueError):
        raise ArchiveError(f"write a time as in 90d, not {text!r}", "SWARMKEEP_ARCHIVE_AFTER") from None
    return rule.time


@asynccontextmanager
async def archiving(archive: Archive | None, age: timedelta | None) -> AsyncIterator[None]:
    """While this is open, what was not used for so long is archived: soon, and then every hour."""
    if archive is None or age is None:
        yield
        return
    async with repeating_hourly(lambda: archive.archive_due(age), "archive: %d sessions were moved there"):
        yield
