"""Erasing a person: all that is encrypted by the person's key, here and in every copy of the database."""

from __future__ import annotations

import contextlib
from itertools import chain

import msgspec

from swarmkeep.events.errors import InvalidRequest, Overloaded, PersonNotFound, SessionNotFound
from swarmkeep.history.redact import redact_wholly, refuse_unredactable
from swarmkeep.runs.automations import Automation, read_automation, read_invocation
from swarmkeep.runs.sessions import MAX_REASON, Publish
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.person_keys import make_person
from swarmkeep.store.records import AuditAction

# While others go on in the person's sessions, or make new ones.
_MOST_ROUNDS = 5


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """A person who was erased."""

    sessions: list[str]
    """The sessions that belong to the person."""
    erased: bool
    """Whether the key is gone that encrypts them; `false` for a dry run."""


async def erase_person(
    store: SqlStore,
    tenant: str,
    person: object,
    reason: str,
    *,
    by: str | None = None,
    dry_run: bool = False,
    publish: Publish | None = None,
) -> Erasure:
    """Redact all events of a person's sessions, and then erase the key that encrypts them, for good.

    `person` is what metadata call the person. Copies of the database that hold what was encrypted, and not the key, are
    unreadable from then on. Automations that tell the person something are deleted. Done again, or taken up after a
    crash, it erases what is left. Nothing can be added to these sessions any more. A `dry_run` only names them.

    Raises PersonNotFound, InvalidRequest, and OnHold, SessionBusy and HistoryDamaged for a session that cannot be
    redacted: then the key stays.
    """
    if not 0 < len(reason) <= MAX_REASON:
        raise InvalidRequest(f"give a reason, of up to {MAX_REASON} characters", "/reason")
    ids = await store.find_person_keys(tenant, person)
    if not ids:
        raise PersonNotFound
    sessions = {id: await store.list_encrypted(tenant, id) for id in ids}
    named = sorted({key.id for keys in sessions.values() for key in keys})
    # Before anything is removed: else a part of a person would be left.
    for key in chain.from_iterable(sessions.values()):
        with contextlib.suppress(SessionNotFound):
            await refuse_unredactable(store, key)
    if dry_run:
        return Erasure(sessions=named, erased=False)
    for id in ids:
        await _erase_key(store, tenant, id, reason, by, publish)
    await _delete_plain_automations(store, tenant, person)
    return Erasure(sessions=named, erased=True)


async def _delete_plain_automations(store: SqlStore, tenant: str, person: object) -> None:
    """Delete what is to begin sessions of the person, and is from before people had keys here."""

    def is_persons(automation: Automation) -> bool:
        named = automation.target.metadata.get(store.person or "")
        return named is not None and make_person(tenant, named) == make_person(tenant, person)

    for stored in await store.list_automations(tenant):
        if is_persons(read_automation(stored)):
            await store.delete_automation(tenant, stored.id)
            continue
        # Its times before it was changed have what was told then.
        made = map(read_invocation, await store.list_invocations(tenant, stored.id))
        if told := [one.number for one in made if is_persons(one.automation)]:
            await store.delete_invocations(tenant, stored.id, told)


async def _erase_key(
    store: SqlStore, tenant: str, id: str, reason: str, by: str | None, publish: Publish | None
) -> None:
    action = AuditAction(type="person.erased", by=by, reason=reason)
    for _ in range(_MOST_ROUNDS):
        for key in await store.list_encrypted(tenant, id, unredacted=True):
            try:
                await redact_wholly(store, key, reason, by=by, publish=publish)
            except SessionNotFound:
                continue
        if await store.erase_person_key(id, action, len(await store.list_encrypted(tenant, id))):
            return
    raise Overloaded(detail="the person's sessions change all the time; try again when less is going on in them")
