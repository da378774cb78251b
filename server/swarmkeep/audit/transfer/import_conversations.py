"""Conversations from elsewhere, recorded as sessions that can go on: all of a file, or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import BinaryIO

import msgspec

from swarmkeep.audit.transfer.assistants import read_threads
from swarmkeep.audit.transfer.chats import read_chats
from swarmkeep.audit.transfer.foreign import (
    ConversationReader,
    ForeignConversation,
    ForeignFormat,
    read_documents,
)
from swarmkeep.audit.transfer.import_export import (
    MAX_LISTED_SESSIONS,
    ImportedSession,
    ImportReport,
    digest_file,
    make_import_action,
)
from swarmkeep.domain.checking.files import ANY_FILES, FileLimits, take_out_files
from swarmkeep.domain.checking.inputs import check_id, check_messages, check_object
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.commands import create_session
from swarmkeep.domain.decisions.drafts import apply_drafts, draft_events
from swarmkeep.domain.decisions.importing import finish_import
from swarmkeep.domain.decisions.sizes import UNBOUNDED, SizeLimits
from swarmkeep.domain.envelope import EventDraft, RecordedEvent, encode_payload
from swarmkeep.domain.errors import InvalidImport, InvalidRequest, SeqConflict, SessionExists
from swarmkeep.domain.events import MessageAdded
from swarmkeep.domain.state import State
from swarmkeep.store.hashing import seal
from swarmkeep.store.ports import EventStore, SealedBatch, SessionKey, StorageQuota

READERS: dict[ForeignFormat, ConversationReader] = {"chat": read_chats, "swarm": read_chats, "assistants": read_threads}


class ImportPlan(msgspec.Struct, frozen=True):
    """A session that is to be made."""

    key: SessionKey
    drafts: list[EventDraft]
    files: dict[str, bytes] = {}
    inline: list[EventDraft] | None = None
    """The drafts as they were once recorded, with their files in the messages."""


async def import_conversations(
    store: EventStore,
    tenant: str,
    file: BinaryIO,
    form: ForeignFormat,
    *,
    agent: str | None = None,
    default_agent: str | None = None,
    as_id: str | None = None,
    dry_run: bool = False,
    by: str | None = None,
    sizes: SizeLimits = UNBOUNDED,
    files: FileLimits = ANY_FILES,
    quota: StorageQuota | None = None,
) -> ImportReport:
    """Make a session of each conversation in the file, with `agent` as the one that goes on.

    Without `agent` it is the one that spoke last, if the file says who that was, or else `default_agent`. The whole
    file is checked before anything is recorded. A session that is there already, made of the same conversation, is left
    as it is.

    Raises InvalidImport, TooLarge for what is larger than `sizes` allow, and SessionExists for another session under
    the same id; nothing was recorded then.
    """
    planner = _Planner(
        tenant=tenant, form=form, agent=agent, default_agent=default_agent, as_id=as_id, sizes=sizes, files=files
    )
    plans = await asyncio.to_thread(planner.plan_all, file)
    digest = await asyncio.to_thread(digest_file, file)
    made: list[ImportedSession] = []
    present = [await _is_present(store, plan) for plan in plans]
    for plan, was in zip(plans, present, strict=True):
        if not dry_run and not was:
            try:
                await _record_session(store, plan, form, digest, by, quota)
            except SeqConflict:
                was = await _is_present(store, plan)
        head = None if dry_run and not was else await store.read_head(plan.key)
        made.append(
            ImportedSession(
                id=plan.key.id,
                seq=len(plan.drafts) + 1 if head is None else head.seq,
                hash="" if head is None else head.hash,
                outcome="present" if was else "imported",
            )
        )
    new = [one for one in made if one.outcome == "imported"]
    return ImportReport(
        dry_run=dry_run,
        imported=len(new),
        present=len(made) - len(new),
        events=sum(one.seq for one in new),
        sessions=made[:MAX_LISTED_SESSIONS],
    )


async def _record_session(
    store: EventStore,
    plan: ImportPlan,
    form: ForeignFormat,
    digest: str,
    by: str | None,
    quota: StorageQuota | None,
) -> None:
    def finish(state: State) -> list[EventDraft]:
        made = apply_drafts(state, plan.drafts)
        return [*plan.drafts, *finish_import(made, source=form, digest=digest, by=by)]

    def give_files() -> list[SealedBatch]:
        return [SealedBatch((), {}, plan.files)] if plan.files else []

    await store.restore(plan.key, give_files, finish=finish, action=make_import_action(form, digest, by), quota=quota)


class _Planner(msgspec.Struct, frozen=True, kw_only=True):
    """Plans sessions: what is the same for all conversations of a file."""

    tenant: str
    form: ForeignFormat
    agent: str | None
    default_agent: str | None
    as_id: str | None
    sizes: SizeLimits
    files: FileLimits

    def plan_all(self, file: BinaryIO) -> list[ImportPlan]:
        conversations = list(READERS[self.form](read_documents(file)))
        if self.as_id is not None and len(conversations) != 1:
            raise InvalidImport(f"a new id is for one session; this file has {len(conversations)}")
        plans = [self._plan_session(found) for found in conversations]
        repeated = find_repeated(plan.key.id for plan in plans)
        if repeated is not None:
            raise conversations[repeated].make_error(f"session {plans[repeated].key.id!r} is in this file twice")
        return plans

    def _plan_session(self, conversation: ForeignConversation) -> ImportPlan:
        try:
            check_id(self.as_id or conversation.id or "x", "")
            messages = check_messages([_as_object(message) for message in conversation.messages], "")
            taken = take_out_files(messages, "", self.files)
            name = self.agent or conversation.agent or _find_last_speaker(messages) or self.default_agent
            metadata = check_object(
                {**conversation.metadata, "imported": {"from": self.form, **conversation.origin}}, ""
            )
            variables = check_object(conversation.context_variables, "")
        except InvalidRequest as error:
            raise conversation.make_error(str(error), error.errors[0]["pointer"]) from None
        self.sizes.check_messages(taken.messages, "message")
        self.sizes.check_metadata(metadata)
        self.sizes.check_context(variables)
        if not name:
            raise conversation.make_error("nothing says which agent is to go on; name one")

        def draft(said: Sequence[Json]) -> list[EventDraft]:
            named = [
                {**message, "sender": name} if message["role"] == "assistant" and "sender" not in message else message
                for message in said
            ]
            return draft_events(name, create_session(name, variables, metadata, named), None)

        drafts = draft(taken.messages)
        try:
            # What no log can hold is found here, before anything is recorded.
            seal("", State(), drafts, at="")
        except InvalidRequest as error:
            raise conversation.make_error(str(error)) from None
        key = SessionKey(self.tenant, self.as_id or conversation.id or conversation.derived_id)
        return ImportPlan(key, drafts, taken.files, draft(messages) if taken.files else None)


def find_repeated(ids: Iterable[str]) -> int | None:
    """The place of the first id that was there before."""
    seen: set[str] = set()
    for place, session_id in enumerate(ids):
        if session_id in seen:
            return place
        seen.add(session_id)
    return None


def _as_object(message: object) -> Json:
    # What is no object has no role, and is refused with its place.
    return message if isinstance(message, dict) else {}


def _find_last_speaker(messages: Sequence[Json]) -> str | None:
    """The agent that spoke last, if its messages say who they are from."""
    for message in reversed(messages):
        sender = message.get("sender")
        if message["role"] == "assistant" and isinstance(sender, str) and sender not in ("", "assistant"):
            return sender
    return None


async def _is_present(store: EventStore, plan: ImportPlan) -> bool:
    """Whether the session was made of this conversation before; it may have gone on since."""
    if await store.read_head(plan.key) is None:
        return False
    count = len(plan.drafts)
    events = await store.read(plan.key, upto=count + 1)
    longer = len(events) > count and isinstance(events[count].fact, MessageAdded) and events[count].run_id is None
    if longer or not await asyncio.to_thread(_are_recorded, plan, events[:count]):
        raise SessionExists(plan.key.id, "is here with another history")
    return True


def _are_recorded(plan: ImportPlan, events: Sequence[RecordedEvent]) -> bool:
    recorded = [event.payload for event in events]
    return any(recorded == [encode_payload(one.fact) for one in made] for made in (plan.drafts, plan.inline or ()))
