"""Removing what events say, for good, so that the chain still verifies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from itertools import chain

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.audit.redaction_copies import (
    find_copies_above,
    find_copies_below,
    find_forgotten_texts,
    find_parent,
    find_same_text,
    list_asked,
    list_touched,
)
from swarmkeep.audit.verify.session import read_pages
from swarmkeep.domain.decisions.commands import refuse_if_busy
from swarmkeep.domain.envelope import EventDraft, RecordedEvent
from swarmkeep.domain.errors import (
    EventNotFound,
    InvalidRequest,
    SessionBusy,
    SessionNotFound,
)
from swarmkeep.domain.events import (
    SessionRedacted,
)
from swarmkeep.domain.fold import fold
from swarmkeep.domain.redaction import redact_payload
from swarmkeep.domain.request import digest
from swarmkeep.domain.state import State, refuse_damaged
from swarmkeep.domain.views import SessionView, view_session
from swarmkeep.engine.attempts import decide_until_recorded
from swarmkeep.engine.idempotency import IdempotentRequest, find_record, run_once
from swarmkeep.engine.teams.links import derive_child_run
from swarmkeep.store.archive import Archive
from swarmkeep.store.aside import free_aside, free_state_aside
from swarmkeep.store.hashing import SealedEvent
from swarmkeep.store.ports import AppendResult, IdempotencyRecord, IdempotencyRecordExists, SessionKey
from swarmkeep.store.soundness import LogCheck

log = logging.getLogger(__name__)

Publish = Callable[[SessionKey, list[RecordedEvent]], None]

MAX_SEQS = 1000
MAX_REASON = 1000


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """Another session that holds the same events, or the same text where one of its agents was asked or has asked.

    `redacted`: they were removed there, too.
    """

    session_id: str
    seqs: list[int]
    redacted: bool


class Redaction(msgspec.Struct, frozen=True, kw_only=True):
    """What was removed: `seqs`, recorded by the event `seq` (null: there was nothing left to remove)."""

    session: SessionView
    seqs: list[int]
    seq: int | None
    forks: list[Copy]


async def redact(
    store: Archive,
    key: SessionKey,
    seqs: Sequence[int],
    reason: str,
    *,
    by: str | None = None,
    include_forks: bool = False,
    dry_run: bool = False,
    idempotency: IdempotentRequest | None = None,
    publish: Publish | None = None,
) -> Redaction:
    """Remove the payloads of events, and every copy of them in the database that belongs to this session.

    The sessions of agents that ask one another are redacted with it, as far as they repeat it and are not busy. Of
    others that hold copies, forks of this one and those it is from, `include_forks` redacts those that are not busy;
    otherwise they are named. Done again, it removes nothing twice. `publish` is told what was recorded. A `dry_run`
    says what would be removed, and of which sessions, and removes nothing.

    Raises SessionNotFound, EventNotFound, SessionBusy, InvalidRequest, IdempotencyMismatch.
    """
    _check_request(seqs, reason)
    if dry_run:
        return await _preview(store, key, seqs)
    redact_one = partial(_redact_session, store, reason=reason, by=by, publish=publish)
    made = await run_once(store, key, idempotency, lambda: redact_one(key, seqs, idempotency=idempotency))
    at = made.seq if isinstance(made, IdempotencyRecord) else made.state.seq if isinstance(made, AppendResult) else None
    told = await store.read(key, after=0 if at is None else at - 1, upto=at, types=["session.redacted"])
    fact = told[-1].fact if told and at is not None else None
    removed = {*seqs, *(fact.seqs if isinstance(fact, SessionRedacted) else ())}
    # Done again with its idempotency key it is told as it was then, whatever has followed.
    state = await store.state(key, at=at)
    return Redaction(
        session=view_session(key.id, state),
        seqs=list(fact.seqs) if isinstance(fact, SessionRedacted) else [],
        seq=None if fact is None else at,
        forks=[
            *await _handle_linked(store, key, removed, redact_one),
            *await _handle_copies(store, key, sorted(removed), redact_one if include_forks else None),
        ],
    )


async def _preview(store: Archive, key: SessionKey, seqs: Sequence[int]) -> Redaction:
    log = await read_whole_log(store, key)
    plan = await asyncio.to_thread(_plan, key, log, seqs)
    copies = await _find_copies(store, key, log, seqs)
    return Redaction(
        session=view_session(key.id, plan.state),
        seqs=list(plan.texts),
        seq=None,
        forks=[
            *await _handle_linked(store, key, {*seqs, *plan.texts}, None),
            *(Copy(session_id=other.id, seqs=held, redacted=False) for other, held in copies.items()),
        ],
    )


def _check_request(seqs: Sequence[int], reason: str) -> None:
    if not 0 < len(seqs) <= MAX_SEQS:
        raise InvalidRequest(f"name 1 to {MAX_SEQS} events", "/seqs")
    if not 0 < len(reason) <= MAX_REASON:
        raise InvalidRequest(f"give a reason, of up to {MAX_REASON} characters", "/reason")


async def _redact_session(
    store: Archive,
    key: SessionKey,
    seqs: Sequence[int],
    *,
    reason: str,
    by: str | None,
    publish: Publish | None,
    idempotency: IdempotentRequest | None = None,
) -> AppendResult | None:
    """Redact one session; None if there was nothing left to remove."""

    async def remove() -> AppendResult | None:
        # With the head row, which is not a part of the log.
        await store.sound_state(key)
        stored = await read_whole_log(store, key)
        plan = await asyncio.to_thread(_plan, key, stored, seqs)
        if not plan.texts:
            # There is nothing to record a key with; but it may be the one that the removal came with.
            if (earlier := await find_record(store, key, idempotency)) is not None:
                raise IdempotencyRecordExists(earlier)
            return None
        kept = tuple(map(digest, plan.texts.values()))
        forgotten = tuple(plan.forgotten_texts)
        fact = SessionRedacted(
            seqs=tuple(plan.texts), reason=reason, by=by, kept=kept, texts=forgotten if forgotten else UNSET
        )
        record = None if idempotency is None else idempotency.make_record()
        return await store.redact(key, stored, plan.texts, EventDraft(fact, None, plan.state.agent), idempotency=record)

    made = await decide_until_recorded(remove)
    if made is not None and publish is not None:
        publish(key, made.events)
    return made


class _Plan(msgspec.Struct, frozen=True):
    """A session, what is to stand in the place of its payloads, by seq, and the texts, by hash, that are to go although
    events name them."""

    state: State
    texts: dict[int, str]
    forgotten_texts: list[str]


def _plan(key: SessionKey, log: Sequence[SealedEvent], seqs: Sequence[int]) -> _Plan:
    """Raises SessionBusy, EventNotFound and HistoryDamaged."""
    check = LogCheck()
    state = fold(check.follow(log))
    free_state_aside(state)
    refuse_damaged(key.id, replace(state, damage=check.findings.make_damage(state.seq)))
    refuse_if_busy(state)
    known = {one.event.seq: one for one in log}
    for seq in seqs:
        if seq not in known:
            raise EventNotFound.out_of_range(key.id, state.seq, seq)
    events = [one.event for one in log]
    wanted = {*seqs, *find_same_text(events, seqs)}
    chosen = sorted(seq for seq in wanted if seq in known and known[seq].salt is not None)
    stand_ins = {seq: redact_payload(known[seq].event) for seq in chosen}
    return _Plan(state, stand_ins, find_forgotten_texts(events, wanted))


async def read_whole_log(store: Archive, key: SessionKey) -> list[SealedEvent]:
    """All of a session. Raises SessionNotFound."""
    log = await store.read_snapshot(lambda stored: list(chain.from_iterable(read_pages(stored, key, upto=None))))
    if not log:
        raise SessionNotFound(key.id)
    free_aside(log)
    return log


async def _find_copies(
    store: Archive, key: SessionKey, log: Sequence[SealedEvent], seqs: Sequence[int]
) -> dict[SessionKey, list[int]]:
    """The sessions that hold any of these events, or of what repeats them here: a fork may have no more than that."""

    def find_hashes() -> dict[int, bytes]:
        wanted = {*seqs, *find_same_text([one.event for one in log], seqs)}
        return {one.event.seq: bytes.fromhex(one.event.hash) for one in log if one.event.seq in wanted}

    return await store.find_copies(key, await asyncio.to_thread(find_hashes))


async def _handle_copies(
    store: Archive,
    key: SessionKey,
    seqs: Sequence[int],
    redact_one: Callable[[SessionKey, Sequence[int]], Awaitable[object]] | None,
) -> list[Copy]:
    """The sessions that hold copies; redacted, too, if it is said how."""
    copies = await _find_copies(store, key, await read_whole_log(store, key), seqs)
    found = []
    for other, held in copies.items():
        gone = False
        if redact_one is not None:
            try:
                await redact_one(other, held)
                gone = True
            except SessionBusy:
                pass
            except SessionNotFound:
                continue
        found.append(Copy(session_id=other.id, seqs=held, redacted=gone))
    return found


async def _handle_linked(
    store: Archive,
    key: SessionKey,
    seqs: Collection[int],
    redact_one: Callable[[SessionKey, Sequence[int]], Awaitable[object]] | None,
) -> list[Copy]:
    """The sessions of agents that ask one another, as far as they repeat what is removed from one of them: redacted,
    too, if it is said how."""
    found: list[Copy] = []
    known = {key}
    waiting: list[tuple[SessionKey, Collection[int]]] = [(key, seqs)]
    while waiting:
        here, gone = waiting.pop()
        for other, held in await _find_linked(store, here, gone):
            if other in known:
                continue
            known.add(other)
            is_redacted = False
            if redact_one is not None:
                try:
                    await redact_one(other, held)
                    is_redacted = True
                except SessionBusy:
                    log.info("session %s: it is busy, and not redacted with session %s", other.id, key.id)
                except SessionNotFound:
                    continue
            found.append(Copy(session_id=other.id, seqs=held, redacted=is_redacted))
            waiting.append((other, held))
    return found


async def _find_linked(store: Archive, key: SessionKey, seqs: Collection[int]) -> list[tuple[SessionKey, list[int]]]:
    """The sessions right below one and right above it that repeat any of these events, and where."""
    here = await _read_events(store, key)
    found: list[tuple[SessionKey, list[int]]] = []
    for asked in await asyncio.to_thread(list_touched, here, seqs):
        other = SessionKey(key.tenant, asked.session_id)
        below = await _read_events(store, other)
        if find_parent(below) in (None, key.id):
            run_id = derive_child_run(other)
            found.append((other, sorted(await asyncio.to_thread(find_copies_below, seqs, below, asked, run_id))))
    parent = find_parent(here)
    if parent is not None:
        other = SessionKey(key.tenant, parent)
        above = await _read_events(store, other)
        for asked in await asyncio.to_thread(list_asked, above):
            if asked.session_id == key.id:
                held = await asyncio.to_thread(find_copies_above, here, seqs, asked, derive_child_run(key))
                found.append((other, sorted(held)))
    return [(other, held) for other, held in found if held]


async def _read_events(store: Archive, key: SessionKey) -> list[RecordedEvent]:
    """All of a session; nothing where it is not there any more."""
    try:
        return [one.event for one in await read_whole_log(store, key)]
    except SessionNotFound:
        return []
