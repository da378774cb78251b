"""Conversations from elsewhere, recorded as sessions that can go on: all of a file, or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import BinaryIO

import msgspec

from swarmkeep.audit.assistants import threads
from swarmkeep.audit.chats import chats
from swarmkeep.audit.foreign import Conversation, Foreign, Json, Reader, documents
from swarmkeep.audit.import_ import MOST_LISTED, ImportedSession, ImportReport
from swarmkeep.domain.commands import create_session
from swarmkeep.domain.drafts import drafted
from swarmkeep.domain.envelope import Draft, payload_of
from swarmkeep.domain.errors import InvalidImport, InvalidRequest, SeqConflict, SessionExists
from swarmkeep.domain.events import MessageAdded
from swarmkeep.domain.state import State
from swarmkeep.engine.inputs import checked_id, checked_messages, checked_object
from swarmkeep.store.hashing import seal
from swarmkeep.store.port import EventStore, SessionKey

READERS: dict[Foreign, Reader] = {"chat": chats, "swarm": chats, "assistants": threads}


class Planned(msgspec.Struct, frozen=True):
    """A session that is to be made."""

    key: SessionKey
    drafts: list[Draft]


async def import_conversations(
    store: EventStore,
    tenant: str,
    file: BinaryIO,
    form: Foreign,
    *,
    agent: str | None = None,
    default_agent: str | None = None,
    as_id: str | None = None,
    dry_run: bool = False,
) -> ImportReport:
    """Make a session of each conversation in the file, with `agent` as the one that goes on.

    Without `agent` it is the one that spoke last, if the file says who that was, or else `default_agent`. The whole
    file is checked before anything is recorded. A session that is there already, made of the same conversation, is left
    as it is.

    Raises InvalidImport, and SessionExists for another session under the same id; nothing was recorded then.
    """
    plans = await asyncio.to_thread(_planned, tenant, file, form, agent, default_agent, as_id)
    made: list[ImportedSession] = []
    present = [await _is_present(store, plan) for plan in plans]
    for plan, was in zip(plans, present, strict=True):
        if not dry_run and not was:
            try:
                await store.append(plan.key, State(), plan.drafts)
            except SeqConflict:
                was = await _is_present(store, plan)
        head = None if dry_run and not was else await store.head(plan.key)
        made.append(
            ImportedSession(
                id=plan.key.id,
                seq=len(plan.drafts) if head is None else head.seq,
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
        sessions=made[:MOST_LISTED],
    )


def _planned(
    tenant: str, file: BinaryIO, form: Foreign, agent: str | None, default_agent: str | None, as_id: str | None
) -> list[Planned]:
    conversations = list(READERS[form](documents(file)))
    if as_id is not None and len(conversations) != 1:
        raise InvalidImport(f"a new id is for one session; this file has {len(conversations)}")
    plans = [_plan(tenant, found, form, agent, default_agent, as_id) for found in conversations]
    ids = [plan.key.id for plan in plans]
    for number, conversation in enumerate(conversations):
        if ids[number] in ids[:number]:
            raise conversation.refusal(f"session {ids[number]!r} is in this file twice")
    return plans


def _plan(
    tenant: str,
    conversation: Conversation,
    form: Foreign,
    agent: str | None,
    default_agent: str | None,
    as_id: str | None,
) -> Planned:
    try:
        checked_id(as_id or conversation.id or "x", "")
        messages = checked_messages([_object(message) for message in conversation.messages], "")
        name = agent or conversation.agent or _speaker(messages) or default_agent
        metadata = checked_object({**conversation.metadata, "imported": {"from": form, **conversation.origin}}, "")
        variables = checked_object(conversation.context_variables, "")
    except InvalidRequest as error:
        raise conversation.refusal(str(error), error.errors[0]["pointer"]) from None
    if not name:
        raise conversation.refusal("nothing says which agent is to go on; name one")
    said = [
        {**message, "sender": name} if message["role"] == "assistant" and "sender" not in message else message
        for message in messages
    ]
    drafts = drafted(name, create_session(name, variables, metadata, said), None)
    try:
        # What no log can hold is found here, before anything is recorded.
        seal("", State(), drafts, at="")
    except InvalidRequest as error:
        raise conversation.refusal(str(error)) from None
    return Planned(SessionKey(tenant, as_id or conversation.id or conversation.made_id), drafts)


def _object(message: object) -> Json:
    # What is no object has no role, and is refused with its place.
    return message if isinstance(message, dict) else {}


def _speaker(messages: Sequence[Json]) -> str | None:
    """The agent that spoke last, if its messages say who they are from."""
    for message in reversed(messages):
        sender = message.get("sender")
        if message["role"] == "assistant" and isinstance(sender, str) and sender not in ("", "assistant"):
            return sender
    return None


async def _is_present(store: EventStore, plan: Planned) -> bool:
    """Whether the session was made of this conversation before; it may have gone on since."""
    if await store.head(plan.key) is None:
        return False
    count = len(plan.drafts)
    events = await store.read(plan.key, upto=count + 1)
    same = [event.payload for event in events[:count]] == [payload_of(draft.fact) for draft in plan.drafts]
    longer = len(events) > count and isinstance(events[count].fact, MessageAdded) and events[count].run_id is None
    if not same or longer:
        raise SessionExists(plan.key.id, "is here with another history")
    return True
