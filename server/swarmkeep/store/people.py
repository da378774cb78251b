"""Sessions of people: all that is recorded of them is encrypted by their keys, until those are erased."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from msgspec import UNSET
from sqlalchemy import Connection, select, update

from swarmkeep.events.codec import Json, decode, encode_text, to_timestamp
from swarmkeep.events.errors import PersonErased
from swarmkeep.events.state import State
from swarmkeep.events.views import SessionView
from swarmkeep.store.audit import record_action
from swarmkeep.store.automations import delete_owned
from swarmkeep.store.heads import AppendPlan
from swarmkeep.store.person_keys import (
    KEYS_ELSEWHERE,
    OBJECT,
    VIEW,
    Keyring,
    PersonKey,
    about_file,
    about_text,
    call_source,
    encrypt_events,
    find_current_key,
    get_keyring,
    hold_key,
    list_keys,
    list_sessions_of_key,
    make_person,
    take_key,
)
from swarmkeep.store.records import AuditAction, Clock, SealedBatch, SessionKey, StoreUnavailable, utc_now
from swarmkeep.store.statements import Database, OnDatabase
from swarmkeep.store.tables import of_session, person_keys, sessions


class SqlPeople(OnDatabase):
    """Which session belongs to whom, and the keys of people."""

    def __init__(
        self, database: Database, *, clock: Clock = utc_now, person: str | None = None, keyring: Keyring | None = None
    ) -> None:
        OnDatabase.__init__(self, database)
        self.keyring = Keyring() if keyring is None else keyring
        self.person = person
        """The metadata key whose value names the person that a session belongs to."""
        self._clock = clock

    async def find_person_key(self, key: SessionKey) -> str | None:
        """The id of the key that a session is encrypted by; None if it is not, or is not there."""
        query = select(sessions.c.person_key).where(*of_session(sessions, key))
        return await self.database.read(lambda connection: connection.scalar(query))

    async def refuse_erased(self, key: SessionKey) -> None:
        """Raises PersonErased for a session whose key was erased, by whichever server, or is lost."""
        id = await self.find_person_key(key)
        if id is None:
            return
        erased = select(person_keys.c.id).where(person_keys.c.id == id, person_keys.c.erased_at != "")
        if await self.database.read(lambda connection: connection.scalar(erased)) is not None:
            raise PersonErased(key.id)
        await self.read_person_key(id, key.id)

    async def has_keys_elsewhere(self) -> bool:
        """Tell if the secrets of any keys are not in the database."""
        kept = select(person_keys.c.id).where(person_keys.c.secret.is_(None), person_keys.c.erased_at == "")
        return await self.database.read(lambda connection: connection.scalar(kept.limit(1))) is not None

    async def find_person_keys(self, tenant: str, value: object) -> list[str]:
        """The ids of all keys that a person has had."""
        person = make_person(tenant, value)
        return await self.database.read(lambda connection: list_keys(connection, tenant, person))

    async def list_encrypted(self, tenant: str, id: str, *, unredacted: bool = False) -> list[SessionKey]:
        """The sessions that belong to a key; with `unredacted`, those that hold something which it encrypts."""
        return await self.database.read(
            lambda connection: list_sessions_of_key(connection, tenant, id, unredacted=unredacted)
        )

    async def erase_person_key(self, id: str, action: AuditAction, count: int) -> bool:
        """Erase a key for good with its automations, and record that. False if any session is encrypted by it.

        `count`: of its sessions. Raises StoreUnavailable if the source of keys cannot be reached.
        """
        at = to_timestamp(self._clock())
        return await self.database.write(lambda connection: erase_key(connection, id, action, at, count), erases=True)

    async def read_person_key(self, id: str, session_id: str) -> PersonKey:
        key = self.keyring.get(id)
        if key is None:
            found = await self.database.read(lambda connection: self.keyring.find(connection, [id]))
            key = found.get(id)
        if not isinstance(key, PersonKey):
            raise PersonErased(session_id)
        return key

    async def encrypt_batches(self, key: SessionKey, batches: Sequence[SealedBatch]) -> list[SealedBatch]:
        """What is to be stored of a session again. Raises PersonErased."""
        id = await self.find_person_key(key)
        if id is None:
            return list(batches)
        person_key = await self.read_person_key(id, key.id)
        return await asyncio.to_thread(lambda: [encrypt_batch(batch, person_key) for batch in batches])

    async def encrypt_object(self, key: SessionKey, content: bytes) -> bytes:
        """What is to be stored of a session outside the database. Raises PersonErased."""
        id = await self.find_person_key(key)
        if id is None:
            return content
        return await asyncio.to_thread((await self.read_person_key(id, key.id)).encrypt, content, OBJECT)

    async def decrypt_object(self, key: SessionKey, content: bytes) -> bytes:
        """What `encrypt_object` was given. Raises PersonErased."""
        id = await self.find_person_key(key)
        if id is None:
            return content
        found = await asyncio.to_thread((await self.read_person_key(id, key.id)).decrypt, content, OBJECT)
        return content if found is None else found

    async def find_key_of_new(self, key: SessionKey, state: State, parent: str | None = None) -> str | None:
        """The id of the key for a session that is to be made: that of its person, or of the session that asks it, its
        `parent`."""
        parent = parent if state.parent is None else state.parent.session_id
        if parent is not None:
            return await self.find_person_key(SessionKey(key.tenant, parent))
        return await self.take_key_of(key.tenant, state.metadata)

    async def take_key_of(self, tenant: str, metadata: Json) -> str | None:
        """The id of the key of the person whom metadata name, which is made if there is none; None if they name none.

        Raises StoreUnavailable.
        """
        if self.person is None or (value := metadata.get(self.person)) is None:
            return None
        person, at = make_person(tenant, value), to_timestamp(self._clock())
        known = await self.database.read(lambda connection: find_current_key(connection, tenant, person))
        return known or await self.database.write(lambda connection: take_key(connection, tenant, person, at))


def encrypt_plan(plan: AppendPlan, key: PersonKey) -> AppendPlan:
    """The same append, with all that it says encrypted."""
    return msgspec.structs.replace(
        plan,
        state=msgspec.structs.replace(plan.state, person_key=key.id),
        sealed=encrypt_events(plan.sealed, key),
        blobs={name: _encrypt_content(name, content, key) for name, content in plan.blobs.items()},
        view=encrypt_view(plan, key),
    )


def encrypt_view(plan: AppendPlan, key: PersonKey) -> str:
    """A view for lists, and what of it is shown without the key: whose it is, and what it says, are not."""
    stand_in = msgspec.structs.replace(
        decode(plan.view, SessionView), context_variables={}, metadata={}, title=None,
        taken_over=UNSET, hold=UNSET, assignee=UNSET,
    )  # fmt: skip
    return key.encrypt_text(plan.view.encode(), VIEW, encode_text(stand_in))


def encrypt_batch(batch: SealedBatch, key: PersonKey) -> SealedBatch:
    return SealedBatch(
        encrypt_events(batch.events, key),
        {
            name: key.encrypt_text(text.encode(errors="surrogatepass"), about_text(name))
            for name, text in batch.blobs.items()
        },
        {name: key.encrypt(content, about_file(name)) for name, content in batch.files.items()},
    )


def _encrypt_content(name: str, content: str | bytes, key: PersonKey) -> str | bytes:
    if isinstance(content, bytes):
        return key.encrypt(content, about_file(name))
    return key.encrypt_text(content.encode(errors="surrogatepass"), about_text(name))


def hold_plan_key(connection: Connection, plan: AppendPlan) -> None:
    """Keep the key of a session from being erased until the transaction ends. Raises PersonErased if it is."""
    if plan.state.person_key is not None:
        hold_key(connection, plan.state.person_key, plan.key.id)


def erase_key(connection: Connection, id: str, action: AuditAction, at: str, count: int) -> bool:
    """Erase a key that encrypts nothing any more but automations, which go with it. False if it does."""
    row = connection.execute(select(person_keys).where(person_keys.c.id == id).with_for_update()).one_or_none()
    if row is None or list_sessions_of_key(connection, row.tenant, id, unredacted=True):
        return False
    keyring = get_keyring(connection)
    if (source := keyring.source) is not None:
        call_source(connection, lambda: source.erase(id))
    elif row.secret is None and not row.erased_at:
        raise StoreUnavailable(KEYS_ELSEWHERE)
    keyring.forget(id)
    delete_owned(connection, row.tenant, person_key=id)
    if not row.erased_at:
        connection.execute(update(person_keys).where(person_keys.c.id == id).values(secret=None, erased_at=at))
        record_action(connection, row.tenant, action, {"key": id, "sessions": count}, at)
    return True
