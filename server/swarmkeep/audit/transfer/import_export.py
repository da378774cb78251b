"""Sessions taken in from an export: all that is in the file is verified before anything of it is recorded."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import BinaryIO, Literal

import msgspec

from swarmkeep.audit.transfer.export_reader import (
    MAX_LINE_VALUES,
    ExportedSession,
    read_chunks,
    verify_export,
)
from swarmkeep.audit.transfer.import_bounds import MAX_QUEUED_RUNS
from swarmkeep.domain.checking.inputs import check_id
from swarmkeep.domain.decisions.importing import finish_import
from swarmkeep.domain.decisions.sizes import UNBOUNDED, SizeLimits
from swarmkeep.domain.envelope import EventDraft
from swarmkeep.domain.errors import InvalidImport, SessionExists
from swarmkeep.domain.events import SessionImported
from swarmkeep.domain.state import State
from swarmkeep.store.ports import EventStore, Restoration, SessionHead, SessionKey, StorageQuota
from swarmkeep.store.ports.audit import AuditAction

EXPORT = "export"
ImportOutcome = Literal["imported", "present"]
MAX_LISTED_SESSIONS = 1000
_PIECE_BYTES = 1024 * 1024
_HEADS_AT_ONCE = 1000


class ImportedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session of the file. `present`: it existed already, with everything that the file has of it."""

    id: str
    seq: int
    hash: str
    outcome: ImportOutcome


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an import did, or with `dry_run` would do. `sessions` names the first thousand."""

    dry_run: bool
    imported: int
    present: int
    events: int
    sessions: list[ImportedSession]


async def import_export(
    store: EventStore,
    tenant: str,
    file: BinaryIO,
    *,
    as_id: str | None = None,
    dry_run: bool = False,
    by: str | None = None,
    max_line_values: int = MAX_LINE_VALUES,
    max_queued_runs: int = MAX_QUEUED_RUNS,
    sizes: SizeLimits = UNBOUNDED,
    quota: StorageQuota | None = None,
) -> ImportReport:
    """Record the sessions of an export as they were recorded: the same seqs, times, hashes and texts.

    The whole file is verified first, and checked against what is here. Then each session is recorded in a transaction
    of its own; one that is here already is left as it is, so an import that was broken off can be made again. That
    it was imported, and by whom, becomes an event of each, and an entry of the audit log (see `finish_import`).

    Raises InvalidImport, TooLarge for a session that is larger in a way than `sizes` allow, and SessionExists for
    another session under the same id; nothing was recorded then. Raises QuotaExceeded for the first session that is
    more than `quota` allows; those before it in the file were recorded.
    """
    if as_id is not None:
        check_id(as_id, "/query/as")
    places, digest = await asyncio.to_thread(_verify_file, file, max_line_values, max_queued_runs, sizes)
    if as_id is not None and len(places) != 1:
        raise InvalidImport(f"a new id needs a file with one session; this file has {len(places)}", line=1)
    keys = [SessionKey(tenant, as_id or place.session_id) for place in places]
    known = await read_known_heads(store, keys)
    present = [
        key in known and await _is_still_here(store, key, place) for key, place in zip(keys, places, strict=True)
    ]
    if not dry_run:
        new = [number for number, was in enumerate(present) if not was]
        made = await store.restore(
            (_make_restoration(keys[number], places[number], file, digest, by) for number in new),
            action=make_import_action(EXPORT, digest, by),
            quota=quota,
        )
        for number, end in zip(new, made, strict=True):
            if end is None:
                # Somebody else has just recorded it, and may even have deleted it since.
                await _is_still_here(store, keys[number], places[number])
                present[number] = True
    return _build_report(keys, places, present, dry_run)


async def read_known_heads(store: EventStore, keys: Sequence[SessionKey]) -> dict[SessionKey, SessionHead]:
    """Where those of the sessions end that are here."""
    known: dict[SessionKey, SessionHead] = {}
    for start in range(0, len(keys), _HEADS_AT_ONCE):
        known |= await store.read_heads(keys[start : start + _HEADS_AT_ONCE])
    return known


def _verify_file(
    file: BinaryIO, max_line_values: int, max_queued_runs: int, sizes: SizeLimits
) -> tuple[list[ExportedSession], str]:
    found = verify_export(
        file, max_line_values=max_line_values, max_queued_runs=max_queued_runs, check_session=sizes.check_session
    )
    return list(found), digest_file(file)


def digest_file(file: BinaryIO) -> str:
    """The SHA-256 of all its bytes."""
    file.seek(0)
    digest = hashlib.sha256()
    while piece := file.read(_PIECE_BYTES):
        digest.update(piece)
    return digest.hexdigest()


def make_import_action(source: str, digest: str, by: str | None) -> AuditAction:
    """The entry of the audit log for a session out of a file."""
    return AuditAction(type=SessionImported.type, by=by, details={"source": source, "digest": digest})


def _make_restoration(
    key: SessionKey, place: ExportedSession, file: BinaryIO, digest: str, by: str | None
) -> Restoration:
    def finish(state: State) -> list[EventDraft]:
        return finish_import(state, source=EXPORT, digest=digest, by=by)

    return Restoration(key, lambda: read_chunks(file, place, key.id), finish)


async def _is_still_here(store: EventStore, key: SessionKey, place: ExportedSession) -> bool:
    """Whether a session that was here has not been deleted since; if so, it has all that the file has of it.

    A hash stands for everything up to it. Raises SessionExists if it is another one.
    """
    seq = place.begin.seq
    events = await store.read(key, after=seq - 1, upto=seq)
    if not events and await store.read_head(key) is None:
        return False
    if not events or events[0].hash != place.begin.hash:
        raise SessionExists(key.id, "exists already, with another history")
    return True


def _build_report(
    keys: Sequence[SessionKey], places: Sequence[ExportedSession], present: Sequence[bool], dry_run: bool
) -> ImportReport:
    found = list(zip(keys, places, present, strict=True))
    return ImportReport(
        dry_run=dry_run,
        imported=present.count(False),
        present=present.count(True),
        events=sum(place.begin.seq for _, place, was in found if not was),
        sessions=[
            ImportedSession(
                id=key.id, seq=place.begin.seq, hash=place.begin.hash, outcome="present" if was else "imported"
            )
            for key, place, was in found[:MAX_LISTED_SESSIONS]
        ],
    )
