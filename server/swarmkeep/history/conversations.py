"""Conversations from elsewhere, recorded as sessions that can go on: all of a file, or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import BinaryIO

import msgspec

from swarmkeep.decide.checks import check_id, check_messages, check_object
from swarmkeep.decide.commands import create_session
from swarmkeep.decide.drafts import apply_drafts, draft_events
from swarmkeep.decide.files import ANY_FILES, FileLimits, take_out_files
from swarmkeep.decide.importing import finish_import
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import InvalidImport, InvalidRequest, SessionExists
from swarmkeep.events.facts import EventDraft, MessageAdded, RecordedEvent, decode_fact
from swarmkeep.events.sizes import UNBOUNDED, SizeLimits
from swarmkeep.events.state import State
from swarmkeep.history.foreign import (
    ConversationReader,
    ForeignConversation,
    ForeignFormat,
    read_chats,
    read_documents,
    read_threads,
)
from swarmkeep.history.import_export import (
    MAX_LINE_VALUES,
    MAX_LISTED_SESSIONS,
    ImportedSession,
    ImportReport,
    digest_file,
    make_import_action,
    read_known_heads,
)
from swarmkeep.store.hashing import SealedEvent, seal
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import Restoration, SealedBatch, SessionHead, SessionKey, StorageQuota

READERS: dict[ForeignFormat, ConversationReader] = {"chat": read_chats, "swarm": read_chats, "assistants": read_threads}


MAX_CONVERSATIONS = 100_000
"""In one file: what is planned for each is kept until all are checked."""
_PLANNED = msgspec.msgpack.Decoder(list[tuple[bytes, str, str]])


class PlannedEvents(msgspec.Struct, frozen=True, gc=False):
    """Events that are to be recorded, as one piece of memory.

    A file has many: as objects they would take several times as much, and each search for garbage would walk through
    all of them while others wait.
    """

    count: int
    packed: bytes

    @classmethod
    def pack(cls, sealed: Sequence[SealedEvent]) -> PlannedEvents:
        # A name may be any text; payloads have lone surrogates escaped, as JSON does.
        names = [one.event.agent.encode(errors="surrogatepass") for one in sealed]
        events = [(name, one.event.type, one.event.payload) for name, one in zip(names, sealed, strict=True)]
        return cls(len(events), msgspec.msgpack.encode(events))

    def draft(self) -> list[EventDraft]:
        found = _PLANNED.decode(self.packed)
        return [
            EventDraft(agent=name.decode(errors="surrogatepass"), run_id=None, fact=decode_fact(type_, text))
            for name, type_, text in found
        ]

    def list_payloads(self) -> list[str]:
        return [text for _, _, text in _PLANNED.decode(self.packed)]


class ImportPlan(msgspec.Struct, frozen=True, gc=False):
    """A session that is to be made."""

    key: SessionKey
    events: PlannedEvents
    files: Mapping[str, bytes] | None = None
    inline: PlannedEvents | None = None
    """The events as they were once recorded, with their files in the messages."""


async def import_conversations(
    store: SqlStore,
    tenant: str,
    file: BinaryIO,
    form: ForeignFormat,
    *,
    agent: str | None = None,
    default_agent: str | None = None,
    as_id: str | None = None,
    dry_run: bool = False,
    by: str | None = None,
    max_line_values: int = MAX_LINE_VALUES,
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
        tenant=tenant,
        form=form,
        agent=agent,
        default_agent=default_agent,
        as_id=as_id,
        max_line_values=max_line_values,
        sizes=sizes,
        files=files,
    )
    plans = await asyncio.to_thread(planner.plan_all, file)
    digest = await asyncio.to_thread(digest_file, file)
    known = await read_known_heads(store, [plan.key for plan in plans])
    for plan in plans:
        if plan.key in known and not await _is_still_here(store, plan):
            del known[plan.key]
    ends: dict[SessionKey, SessionHead] = {}
    new = [plan for plan in plans if plan.key not in known]
    if not dry_run:
        made = await store.restore(
            (_make_restoration(plan, form, digest, by) for plan in new),
            action=make_import_action(form, digest, by),
            quota=quota,
        )
        for plan, end in zip(new, made, strict=True):
            if end is not None:
                ends[plan.key] = end
            # Another process has just recorded it, and may even have deleted it since.
            elif await _is_still_here(store, plan):
                known |= await store.read_heads([plan.key])
    return _build_report(plans, known, ends, dry_run)


def _build_report(
    plans: Sequence[ImportPlan],
    known: Mapping[SessionKey, SessionHead],
    ends: Mapping[SessionKey, SessionHead],
    dry_run: bool,
) -> ImportReport:
    sessions = []
    for plan in plans:
        head = known.get(plan.key) or ends.get(plan.key)
        sessions.append(
            ImportedSession(
                id=plan.key.id,
                seq=plan.events.count + 1 if head is None else head.seq,
                hash="" if head is None else head.hash,
                outcome="imported" if plan.key in ends or (dry_run and plan.key not in known) else "present",
            )
        )
    new = [one for one in sessions if one.outcome == "imported"]
    return ImportReport(
        dry_run=dry_run,
        imported=len(new),
        present=len(sessions) - len(new),
        events=sum(one.seq for one in new),
        sessions=sessions[:MAX_LISTED_SESSIONS],
    )


def _make_restoration(plan: ImportPlan, form: ForeignFormat, digest: str, by: str | None) -> Restoration:
    def finish(state: State) -> list[EventDraft]:
        drafts = plan.events.draft()
        made = apply_drafts(state, drafts)
        return [*drafts, *finish_import(made, source=form, digest=digest, by=by)]

    def give_files() -> list[SealedBatch]:
        return [SealedBatch((), {}, plan.files)] if plan.files else []

    return Restoration(plan.key, give_files, finish)


class _Planner(msgspec.Struct, frozen=True, kw_only=True):
    """Plans sessions: what is the same for all conversations of a file."""

    tenant: str
    form: ForeignFormat
    agent: str | None
    default_agent: str | None
    as_id: str | None
    max_line_values: int
    sizes: SizeLimits
    files: FileLimits

    def plan_all(self, file: BinaryIO) -> list[ImportPlan]:
        plans: dict[str, ImportPlan] = {}
        count = 0
        for found in READERS[self.form](read_documents(file, max_line_values=self.max_line_values)):
            count += 1
            if count > MAX_CONVERSATIONS:
                raise found.make_error(f"the file has more than {MAX_CONVERSATIONS} conversations; import it in parts")
            plan = self._plan_session(found)
            if self.as_id is None and plan.key.id in plans:
                raise found.make_error(f"session {plan.key.id!r} is in this file twice")
            plans[plan.key.id] = plan
        if self.as_id is not None and count != 1:
            raise InvalidImport(f"a new id needs a file with one session; this file has {count}")
        return list(plans.values())

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
            found = error.errors[0]
            raise conversation.make_error(found["detail"], found["pointer"]) from None
        self.sizes.check_messages(taken.messages, "message")
        self.sizes.check_metadata(metadata)
        self.sizes.check_context(variables)
        if not name:
            raise conversation.make_error("nothing says which agent is to continue; name one as `agent` (`--agent`)")

        def plan(said: Sequence[Json]) -> PlannedEvents:
            named = [
                {**message, "sender": name} if message["role"] == "assistant" and "sender" not in message else message
                for message in said
            ]
            drafts = draft_events(name, create_session(name, variables, metadata, named), None)
            try:
                # What no log can hold is found here, before anything is recorded.
                return PlannedEvents.pack(seal("", State(), drafts, at=""))
            except InvalidRequest as error:
                raise conversation.make_error(str(error)) from None

        key = SessionKey(self.tenant, self.as_id or conversation.id or conversation.derived_id)
        events = plan(taken.messages)
        return ImportPlan(key, events, taken.files, plan(messages)) if taken.files else ImportPlan(key, events)


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


async def _is_still_here(store: SqlStore, plan: ImportPlan) -> bool:
    """Tell if a session that was here has not been deleted since; if so, it was made of this conversation, and may have
    gone on. Raises SessionExists if it is another one."""
    count = plan.events.count
    events = await store.read(plan.key, upto=count + 1)
    if not events:
        return False
    longer = len(events) > count and isinstance(events[count].fact, MessageAdded) and events[count].run_id is None
    if longer or not await asyncio.to_thread(_are_recorded, plan, events[:count]):
        raise SessionExists(plan.key.id, "exists already, with another history")
    return True


def _are_recorded(plan: ImportPlan, events: Sequence[RecordedEvent]) -> bool:
    recorded = [event.payload for event in events]
    return any(made is not None and recorded == made.list_payloads() for made in (plan.events, plan.inline))
