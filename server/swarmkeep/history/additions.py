"""Conversations that were imported before and have grown since: what is new of them is added to their sessions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import takewhile

import msgspec
from msgspec import UNSET

from swarmkeep.decide.checks import check_id
from swarmkeep.decide.drafts import apply_drafts, draft_events
from swarmkeep.decide.settle import finish_import
from swarmkeep.events.codec import Json, encode
from swarmkeep.events.errors import InvalidRequest, PersonErased, SeqConflict, SessionExists, SessionNotFound
from swarmkeep.events.facts import (
    ContextUpdated,
    EventDraft,
    MessageAdded,
    RecordedEvent,
    SessionCreated,
    SessionEvent,
    SessionImported,
    SessionUpdated,
    is_redacted,
)
from swarmkeep.events.messages import list_fact_files
from swarmkeep.events.patch import diff, has_effect
from swarmkeep.events.sizes import SizeLimits
from swarmkeep.events.state import State
from swarmkeep.history.import_export import ImportOutcome
from swarmkeep.runs.sessions import fork_session
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import AppendResult, SessionKey, StorageQuota

_AT_ONCE = 200
_BYTES_AT_ONCE = 4 * 1024 * 1024
_MOST_TRIES = 5
_READ_TYPES = (SessionCreated.type, MessageAdded.type, SessionImported.type)
_EVENTS_OF_FORK = 4
"""Beside its messages: how it began, the import of that, and that it is a fork with more that was imported."""


class WantedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session as the file has it, and the files of its messages."""

    id: str
    created: SessionCreated
    messages: list[MessageAdded]
    files: Mapping[str, bytes]


class Added(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a conversation: the session that has it now, where that ends, and how many events are new."""

    id: str
    outcome: ImportOutcome
    seq: int = 0
    hash: str = ""
    events: int = 0


class _Here(msgspec.Struct, frozen=True, kw_only=True):
    """What a session says before its first run here, and where; None stands for what was redacted. `is_imported`: it
    came from a file. `goes_on`: there has been a run. `state` is no later than the messages, so that nothing is added
    behind one that is not among them.
    """

    state: State
    created: SessionCreated | None
    messages: list[Json | None]
    seqs: list[int]
    is_imported: bool
    goes_on: bool

    def count_shared(self, wanted: WantedSession) -> int:
        pairs = zip(self.messages, wanted.messages, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] in (None, _without_sender(pair[1])), pairs))

    def is_begun_by(self, wanted: WantedSession) -> bool:
        """Tell if it is the beginning of the conversation, and nothing else."""
        return not self.goes_on and self.count_shared(wanted) == len(self.messages) < len(wanted.messages)

    def find_seq(self, shared: int) -> int:
        return self.seqs[shared - 1] if shared else 1


class Additions:
    """Adds to sessions what conversations have that they have not.

    A session that begins as the conversation does gets the rest. Where both have gone on, the conversation becomes a
    fork of the session. What was redacted here stays so. With `dry_run` nothing is recorded.
    """

    def __init__(
        self,
        store: SqlStore,
        tenant: str,
        *,
        source: str,
        digest: str,
        by: str | None,
        sizes: SizeLimits,
        quota: StorageQuota | None,
        dry_run: bool,
    ) -> None:
        self._store = store
        self._tenant = tenant
        self._source = source
        self._digest = digest
        self._by = by
        self._sizes = sizes
        self._quota = quota
        self._dry_run = dry_run

    def _key(self, id: str) -> SessionKey:
        return SessionKey(self._tenant, id)

    async def add(
        self, wanted: WantedSession, trunk: str | None = None, branches: Sequence[WantedSession] = ()
    ) -> Added:
        """Have the messages in a session: the one of that name, or else a fork of it, or of the `trunk`.

        Raises SessionExists where the session of that name did not come from a file, has nothing of the conversation
        and its `branches`, or is another person's. To one whose person was erased nothing is added.
        """
        try:
            return await self._add(wanted, trunk, branches)
        except PersonErased:
            return Added(id=wanted.id, outcome="present")

    async def _add(self, wanted: WantedSession, trunk: str | None, branches: Sequence[WantedSession]) -> Added:
        parent, here = trunk, None
        if trunk is not None:
            here = await self._read(trunk, wanted)
            if here is not None and here.count_shared(wanted) == len(wanted.messages):
                return Added(id=trunk, outcome="present")
        chosen = wanted.id
        while (found := await self._read(chosen, wanted)) is not None:
            shared = found.count_shared(wanted)
            if shared == len(wanted.messages) and found.is_imported:
                return _view(chosen, found.state, 0)
            is_other = parent is None and found.messages and not any(map(found.count_shared, (wanted, *branches)))
            if is_other or not found.is_imported:
                raise SessionExists(chosen, "exists already, with another history")
            if self._is_of_other_person(found, wanted):
                raise SessionExists(chosen, f"exists already, with another {self._store.person}")
            if found.is_begun_by(wanted):
                return await self._extend(chosen, wanted, found)
            # By the first message that parts them, so that it is found again when it has grown.
            parent, here = chosen, found
            chosen = choose_fork_id(chosen, _digest(wanted.messages[shared]))
        if parent is None or here is None:
            # What it was to be a fork of was deleted meanwhile.
            return Added(id=chosen, outcome="present")
        return await self._fork(self._key(parent), here.find_seq(here.count_shared(wanted)), chosen, wanted)

    async def _fork(self, parent: SessionKey, at: int, id: str, wanted: WantedSession) -> Added:
        if self._dry_run:
            count = len(wanted.messages) + _EVENTS_OF_FORK
            return Added(id=id, outcome="imported", seq=count, events=count)
        # Another import may have just made it.
        is_made = True
        try:
            await fork_session(self._store, parent, at=at, session_id=id, sizes=self._sizes, quota=self._quota)
        except SessionExists:
            is_made = False
        made = await self._extend(id, wanted, await self._read(id, wanted))
        return msgspec.structs.replace(made, outcome="imported", events=made.seq) if is_made else made

    async def _read(self, id: str, wanted: WantedSession) -> _Here | None:
        """The session, with no more than one message more than the conversation has; None if there is none."""
        key, events, after = self._key(id), list[RecordedEvent](), 0
        # Mostly there are these two beside its messages.
        limit = len(wanted.messages) + 3
        try:
            await self._store.refuse_erased(key)
            state = await self._store.sound_state(key)
        except SessionNotFound:
            return None
        while True:
            page = await self._store.read(key, after=after, types=_READ_TYPES, limit=limit)
            events += page
            said = [event for event in events if event.type == MessageAdded.type]
            if len(page) < limit or len(said) > len(wanted.messages):
                break
            after = page[-1].seq
        if not events:
            return None
        imported = [event for event in events if event.type == SessionImported.type]
        if not imported:
            # It may stand behind more messages than were read.
            imported = await self._store.read(key, types=[SessionImported.type], limit=1)
        before = list(takewhile(lambda event: event.run_id is None, said))
        first = events[0].fact
        return _Here(
            state=state,
            created=first if isinstance(first, SessionCreated) else None,
            messages=[_read_message(event) for event in before],
            seqs=[event.seq for event in before],
            is_imported=bool(imported),
            goes_on=len(before) < len(said),
        )

    def _is_of_other_person(self, here: _Here, wanted: WantedSession) -> bool:
        name, created = self._store.person, here.created
        if name is None or created is None:
            return False
        return wanted.created.metadata.get(name) not in (created.metadata.get(name), here.state.metadata.get(name))

    async def _extend(self, id: str, wanted: WantedSession, here: _Here | None) -> Added:
        """Add the messages that the session has not. They are few in each transaction, as others write meanwhile."""
        added = conflicts = 0
        while here is not None and here.is_begun_by(wanted):
            rest = wanted.messages[len(here.messages) :]
            if self._dry_run:
                count = len(rest) + 1
                return Added(id=id, outcome="extended", seq=here.state.seq + count, events=count)
            some = list(_take_some(rest))
            facts = [*_list_changes(here, here.state, wanted.created), *some]
            try:
                done = await self._append(self._key(id), here.state, facts, wanted)
            except SeqConflict:
                conflicts += 1
                if conflicts == _MOST_TRIES:
                    raise
            else:
                added += len(done.events)
                if len(some) == len(rest):
                    return _view(id, done.state, added)
            here = await self._read(id, wanted)
        # Others have added it, or it has gone on, or is gone.
        return _view(id, State() if here is None else here.state, added)

    async def _append(
        self, key: SessionKey, state: State, facts: Sequence[SessionEvent], wanted: WantedSession
    ) -> AppendResult:
        drafts: list[EventDraft] = draft_events(state.agent, facts, None)
        finished = finish_import(apply_drafts(state, drafts), source=self._source, digest=self._digest, by=self._by)
        names = {name for fact in facts for name in list_fact_files(fact)}
        files = {name: content for name, content in wanted.files.items() if name in names}
        return await self._store.append(key, state, [*drafts, *finished], blobs=files, quota=self._quota)


def _view(id: str, state: State, added: int) -> Added:
    outcome: ImportOutcome = "extended" if added else "present"
    return Added(id=id, outcome=outcome, seq=state.seq, hash=state.hash, events=added)


def choose_fork_id(trunk: str, name: str) -> str:
    """The id of a fork: the session's and the branch's, or a digest of both where that is no id."""
    chosen = f"{trunk}:{name}"
    try:
        return check_id(chosen)
    except InvalidRequest:
        return f"import_{sha256(chosen.encode(errors='surrogatepass')).hexdigest()[:32]}"


def _read_message(event: RecordedEvent) -> Json | None:
    fact = event.fact
    return _without_sender(fact) if isinstance(fact, MessageAdded) and not is_redacted(event) else None


def _without_sender(fact: MessageAdded) -> Json:
    """The message without the name that its speaker got: it may have been imported for another agent."""
    return {name: value for name, value in fact.message.items() if name != "sender"}


def _digest(message: MessageAdded) -> str:
    return sha256(encode(_without_sender(message))).hexdigest()[:16]


def _take_some(messages: Sequence[MessageAdded]) -> Iterator[MessageAdded]:
    size = 0
    for message in messages[:_AT_ONCE]:
        if size >= _BYTES_AT_ONCE:
            return
        size += len(encode(message.message))
        yield message


def _list_changes(here: _Here, state: State, wanted: SessionCreated) -> Iterator[SessionEvent]:
    """What else the file says by now. What was changed here, and is as it was there, stays."""
    if here.created is None:
        return
    metadata, _ = diff(here.created.metadata, wanted.metadata)
    agent = wanted.agent if here.created.agent == state.agent != wanted.agent else UNSET
    if agent is not UNSET or has_effect(state.metadata, metadata):
        yield SessionUpdated(metadata=metadata if has_effect(state.metadata, metadata) else UNSET, agent=agent)
    patch, nulls = diff(here.created.context_variables, wanted.context_variables)
    if has_effect(state.context_variables, patch, nulls):
        yield ContextUpdated(patch=patch, nulls=nulls or UNSET)
