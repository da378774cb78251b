"""Conversations from elsewhere, recorded as sessions that can go on: all of a file, or nothing."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any, BinaryIO

import msgspec
from msgspec.structs import replace

from swarmkeep.decide.checks import ANY_FILES, FileLimits, check_id, check_messages, check_object, take_out_files
from swarmkeep.decide.commands import create_session
from swarmkeep.decide.drafts import apply_drafts, draft_events
from swarmkeep.decide.settle import finish_import
from swarmkeep.events.codec import Json, make_timestamp
from swarmkeep.events.errors import InvalidImport, InvalidRequest, TooLarge
from swarmkeep.events.facts import (
    EventDraft,
    MessageAdded,
    SessionCreated,
    SessionEvent,
    SessionForked,
    decode_fact,
)
from swarmkeep.events.sizes import UNBOUNDED, SizeLimits
from swarmkeep.events.state import State
from swarmkeep.history.additions import Added, Additions, WantedSession, choose_fork_id
from swarmkeep.history.foreign.conversation import ForeignConversation
from swarmkeep.history.foreign.formats import ForeignFormat, find_title, read_conversations
from swarmkeep.history.import_export import (
    HEADS_AT_ONCE,
    MAX_LINE_VALUES,
    MAX_LISTED_SESSIONS,
    ImportedSession,
    ImportReport,
    digest_file,
    make_import_action,
)
from swarmkeep.store.hashing import SealedEvent, seal
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import (
    AuditAction,
    Restoration,
    SealedBatch,
    SessionHead,
    SessionKey,
    StorageQuota,
)

ROLES = ("user", "assistant", "system", "developer", "tool")
MAX_CONVERSATIONS = 100_000
"""In one file: of each its id and a digest are kept until all are checked."""
_AT_ONCE = 200
_BYTES_AT_ONCE = 4 * 1024 * 1024
_COMPARED_AT_ONCE = 16
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

    @property
    def digest(self) -> bytes:
        """What tells these events from others."""
        return digest_payloads([text for _, _, text in _PLANNED.decode(self.packed)])


def digest_payloads(payloads: Iterable[str]) -> bytes:
    found = hashlib.sha256()
    for payload in payloads:
        text = payload.encode()
        found.update(b"%d:" % len(text))
        found.update(text)
    return found.digest()


class ImportPlan(msgspec.Struct, frozen=True, gc=False):
    """A session that is to be made, as little of it as tells it from others: the rest is read again from the file.

    `digests` are those of its events, and of these as they were once recorded, with their files in the messages. A fork
    begins with `shared` events of its `trunk`, and then says so.
    """

    id: str
    count: int
    digests: tuple[bytes, ...]
    trunk: str | None = None
    shared: int = 0


class PlannedSession(msgspec.Struct, frozen=True, gc=False):
    """A plan and its events; those of a fork are the ones behind the event that says that it is one."""

    plan: ImportPlan
    events: PlannedEvents
    files: Mapping[str, bytes]

    @property
    def size(self) -> int:
        return len(self.events.packed) + sum(map(len, self.files.values()))


class PlannedConversation(msgspec.Struct, frozen=True, gc=False):
    """The sessions that a conversation becomes: it, and its branches as forks of it."""

    sessions: Sequence[PlannedSession]


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
    file is checked before anything is recorded, and then read again: no more than a few conversations are in memory. A
    session that is there already, made of the same conversation, is left as it is, and so is one that is in the file
    twice. A conversation that has grown since is added to (see `Additions`).

    Raises InvalidImport, TooLarge for what is larger than `sizes` allow, and SessionExists for another session under
    the same id; nothing was recorded then.
    """
    planner = _Planner(
        form=form,
        agent=agent,
        default_agent=default_agent,
        as_id=as_id,
        max_line_values=max_line_values,
        sizes=sizes,
        files=files,
    )
    found = await asyncio.to_thread(planner.check_all, file)
    digest = "" if dry_run else await asyncio.to_thread(digest_file, file)
    make_additions = partial(Additions, store, tenant, source=form, digest=digest, by=by, sizes=sizes, quota=quota)
    recorder = _Recorder(store, tenant, found.plans, form, by, quota, make_additions(dry_run=False), digest)
    await recorder.find_present()
    if recorder.has_changed:
        await recorder.find_additions(planner.plan_all(file), make_additions(dry_run=True))
    if not dry_run:
        await recorder.record(planner.plan_all(file))
    return recorder.make_report(found, dry_run)


class _Found(msgspec.Struct, frozen=True):
    """What a file has: sessions by their ids, how many of them it has once more, and what is not taken of it."""

    plans: dict[str, ImportPlan]
    repeated: int
    left_out: dict[str, int]


class _Planner(msgspec.Struct, frozen=True, kw_only=True):
    """Plans sessions: what is the same for all conversations of a file."""

    form: ForeignFormat
    agent: str | None
    default_agent: str | None
    as_id: str | None
    max_line_values: int
    sizes: SizeLimits
    files: FileLimits

    def check_all(self, file: BinaryIO) -> _Found:
        """Plan all conversations once, and keep what tells them from others. Raises InvalidImport, which names the
        format, and TooLarge."""
        try:
            return self._check_all(file)
        except InvalidImport as error:
            title = find_title(self.form)
            if title in error.why:
                raise
            raise InvalidImport(f"{error.why} (the file is read as {title})", line=error.line) from None

    def _check_all(self, file: BinaryIO) -> _Found:
        plans: dict[str, ImportPlan] = {}
        left_out: Counter[str] = Counter()
        count = repeated = 0
        for conversation in self._read(file):
            left_out.update(conversation.left_out)
            if conversation.empty:
                continue
            count += 1
            if count > MAX_CONVERSATIONS:
                why = f"the file has more than {MAX_CONVERSATIONS} conversations; import it in parts"
                raise conversation.make_error(why)
            if self.as_id is not None and count > 1:
                # All are counted, to say how many there are.
                continue
            try:
                sessions = self._plan(conversation).sessions
            except TooLarge as error:
                raise TooLarge(str(conversation.make_error(str(error)))) from None
            for session in sessions:
                plan = session.plan
                known = plans.setdefault(plan.id, plan)
                if known is not plan:
                    if known != plan:
                        raise conversation.make_error(f"session {plan.id!r} is in this file twice, with other content")
                    repeated += 1
        if self.as_id is not None and count != 1:
            raise InvalidImport(f"a new id needs a file with one session; this file has {count}")
        return _Found(plans, repeated, dict(sorted((+left_out).items())))

    def plan_all(self, file: BinaryIO) -> Generator[PlannedConversation]:
        """Plan all conversations again, one after the other."""
        with closing(self._read(file)) as found:
            for conversation in found:
                if not conversation.empty:
                    yield self._plan(conversation)

    def _read(self, file: BinaryIO) -> Generator[ForeignConversation]:
        return read_conversations(file, self.form, max_line_values=self.max_line_values)

    def _plan(self, conversation: ForeignConversation) -> PlannedConversation:
        said = self._check(conversation, conversation.messages)
        agent = self.agent or conversation.agent or _find_last_speaker(said) or self.default_agent
        if not agent:
            raise conversation.make_error("nothing says which agent is to continue; name one as `agent` (`--agent`)")
        metadata = {**conversation.metadata, "imported": {"from": self.form, **conversation.origin}}
        try:
            metadata, variables = check_object(metadata, ""), check_object(conversation.context_variables, "")
        except InvalidRequest as error:
            raise _explain(conversation, error) from None
        self.sizes.check_metadata(metadata)
        self.sizes.check_context(variables)

        def make(messages: Sequence[Json]) -> list[SessionEvent]:
            return create_session(agent, variables, metadata, [_name_speaker(message, agent) for message in messages])

        id = self.as_id or conversation.id or conversation.derived_id
        trunk = self._make_session(conversation, ImportPlan(id, 0, ()), agent, said, make)
        forks = []
        for branch in conversation.branches:
            shared = said[: branch.shared]
            fork = ImportPlan(choose_fork_id(id, branch.name), 0, (), trunk=id, shared=1 + len(shared))
            own = self._check(conversation, branch.messages)
            forks.append(self._make_session(conversation, fork, agent, (*shared, *own), make))
        return PlannedConversation([trunk, *forks])

    def _check(self, conversation: ForeignConversation, messages: Sequence[Any]) -> tuple[Json, ...]:
        """The messages as they are kept. Raises InvalidImport with the place of the first that cannot be."""
        for number, message in enumerate(messages):
            if not isinstance(message, dict) or message.get("role") not in ROLES:
                why = f"message {number + 1} has no role that a message can have ({', '.join(ROLES)})"
                raise conversation.make_error(why, f"/{number}" + ("/role" if isinstance(message, dict) else ""))
        try:
            check_id(self.as_id or conversation.id or "x", "")
            return check_messages(list(messages), "")
        except InvalidRequest as error:
            raise _explain(conversation, error) from None

    def _make_session(
        self,
        conversation: ForeignConversation,
        plan: ImportPlan,
        agent: str,
        messages: Sequence[Json],
        make: Callable[[Sequence[Json]], list[SessionEvent]],
    ) -> PlannedSession:
        try:
            taken = take_out_files(messages, "", self.files)
            self.sizes.check_messages(taken.messages, "message")
            # What no log can hold is found here, before anything is recorded.
            drafts = draft_events(agent, make(taken.messages), None)
            events = PlannedEvents.pack(seal("", State(), drafts, at=""))
            digests = [events.digest]
            if taken.files:
                inline = draft_events(agent, make(messages), None)
                digests.append(PlannedEvents.pack(seal("", State(), inline, at="")).digest)
        except InvalidRequest as error:
            raise _explain(conversation, error) from None
        # The event that says that it is a fork stands between those that it shares and its own.
        count = events.count + (plan.trunk is not None)
        return PlannedSession(replace(plan, count=count, digests=tuple(digests)), events, taken.files)


def _explain(conversation: ForeignConversation, error: InvalidRequest) -> InvalidImport:
    found = error.errors[0] if error.errors else {"detail": str(error), "pointer": ""}
    return conversation.make_error(found["detail"], found["pointer"])


def _name_speaker(message: Json, agent: str) -> Json:
    return {**message, "sender": agent} if message["role"] == "assistant" and "sender" not in message else message


def _find_last_speaker(messages: Sequence[Json]) -> str | None:
    """The agent that spoke last, if its messages say who they are from."""
    for message in reversed(messages):
        sender = message.get("sender")
        if message["role"] == "assistant" and isinstance(sender, str) and sender not in ("", "assistant"):
            return sender
    return None


class _Recorder:
    """Records what was planned, a few sessions at a time, and counts what became of each."""

    def __init__(
        self,
        store: SqlStore,
        tenant: str,
        plans: Mapping[str, ImportPlan],
        form: ForeignFormat,
        by: str | None,
        quota: StorageQuota | None,
        additions: Additions,
        digest: str,
    ) -> None:
        self._store = store
        self._tenant = tenant
        self._plans = plans
        self._form = form
        self._by = by
        self._quota = quota
        self._additions = additions
        self._digest = digest
        self._present: set[str] = set()
        self._changed: set[str] = set()
        self._imported: dict[str, int] = {}
        self._extended: dict[str, int] = {}
        self._settled: dict[str, Added] = {}
        self._listed = dict.fromkeys(islice(plans, MAX_LISTED_SESSIONS))
        self._heads: dict[str, SessionHead] = {}

    def _key(self, id: str) -> SessionKey:
        return SessionKey(self._tenant, id)

    @property
    def has_changed(self) -> bool:
        """Tell if sessions are here with something else than the file has."""
        return bool(self._changed)

    async def find_present(self) -> None:
        """Find the sessions that are here already, and those of them that the file has otherwise."""
        ids = iter(self._plans)
        while some := [self._key(id) for id in islice(ids, HEADS_AT_ONCE)]:
            known = iter(await self._store.read_heads(some))
            while compared := list(islice(known, _COMPARED_AT_ONCE)):
                here = await asyncio.gather(*(self._is_still_here(self._plans[key.id]) for key in compared))
                for key, is_same in zip(compared, here, strict=True):
                    if is_same is not None:
                        await self._note_here(key.id, is_same)

    async def _note_here(self, id: str, is_same: bool) -> None:
        (self._present if is_same else self._changed).add(id)
        if id in self._listed:
            self._heads |= {key.id: head for key, head in (await self._store.read_heads([self._key(id)])).items()}

    async def find_additions(self, planned: Generator[PlannedConversation], additions: Additions) -> None:
        """Find out what would become of what is here and has changed. Raises SessionExists for another session under
        the same id."""
        with closing(planned):
            changed = (
                one
                for one in planned
                if self._is_here(one) and any(session.plan.id in self._changed for session in one.sessions)
            )
            while some := await asyncio.to_thread(lambda: list(islice(changed, _COMPARED_AT_ONCE))):
                await self._add_some(some, additions)

    async def _add_some(self, conversations: Sequence[PlannedConversation], additions: Additions) -> None:
        """Add what is new of conversations whose trunks are here, or of their forks; several at once."""
        left = iter(conversations)
        while some := list(islice(left, _COMPARED_AT_ONCE)):
            done = await asyncio.gather(*(self._add(one, additions) for one in some), return_exceptions=True)
            for failure in done:
                if failure is not None:
                    raise failure

    async def _add(self, conversation: PlannedConversation, additions: Additions) -> None:
        trunk, *forks = (_want(session) for session in conversation.sessions)
        if trunk.id in self._changed:
            self._settled[trunk.id] = await additions.add(trunk, branches=forks)
        for fork in forks:
            if fork.id not in self._present and fork.id not in self._imported:
                self._settled[fork.id] = await additions.add(fork, trunk.id)

    async def record(self, planned: Generator[PlannedConversation]) -> None:
        """Record what is not here. Raises InvalidImport if the file is no longer what was checked."""
        self._settled.clear()
        action = make_import_action(self._form, self._digest, self._by)
        with closing(planned):
            batches = self._split(planned)
            while some := await asyncio.to_thread(next, batches, None):
                here = [one for one in some if self._is_here(one)]
                new = [one for one in some if not self._is_here(one)]
                await self._record_some([each for one in new for each in await self._restore(one)], action)
                await self._add_some(here, self._additions)

    def _is_here(self, conversation: PlannedConversation) -> bool:
        id = conversation.sessions[0].plan.id
        return id in self._present or id in self._changed or id in self._imported

    def _split(self, planned: Iterable[PlannedConversation]) -> Iterator[list[PlannedConversation]]:
        """The conversations of which something is not here, as many at once as are recorded together."""
        taken: list[PlannedConversation] = []
        seen: set[str] = set(self._present)
        count = size = 0
        for conversation in planned:
            trunk = conversation.sessions[0].plan.id
            for session in conversation.sessions:
                if self._plans.get(session.plan.id) != session.plan:
                    raise InvalidImport("the file was changed while it was read")
            new = [session for session in conversation.sessions if session.plan.id not in seen]
            if not new:
                continue
            # What stands in the file once more, with other forks, needs the events of a trunk that is recorded.
            is_again = trunk in seen and trunk not in self._present
            if taken and (is_again or count >= _AT_ONCE or size >= _BYTES_AT_ONCE):
                yield taken
                taken, count, size = [], 0, 0
            seen.update(session.plan.id for session in new)
            taken.append(conversation)
            count, size = count + len(new), size + sum(session.size for session in new)
        if taken:
            yield taken

    async def _record_some(self, restorations: list[Restoration], action: AuditAction) -> None:
        made = await self._store.restore(restorations, action=action, quota=self._quota)
        for restoration, end in zip(restorations, made, strict=True):
            id = restoration.key.id
            if end is not None:
                self._imported[id] = end.seq
                if id in self._listed:
                    self._heads[id] = end
            # Another process has just recorded it, and may even have deleted it since.
            elif (is_same := await self._is_still_here(self._plans[id])) is not None:
                await self._note_here(id, is_same)

    async def _restore(self, conversation: PlannedConversation) -> list[Restoration]:
        """The sessions of a conversation whose trunk is not here. Forks begin with the very events of their trunk."""
        trunk, *forks = conversation.sessions
        missing = [fork for fork in forks if fork.plan.id not in self._present and fork.plan.id not in self._changed]
        if not missing:
            return [self._begin(trunk, ())]
        begun = await asyncio.to_thread(seal, trunk.plan.id, State(), trunk.events.draft(), at=make_timestamp())
        return [self._begin(trunk, begun), *(self._fork(fork, begun) for fork in missing)]

    def _begin(self, session: PlannedSession, begun: Sequence[SealedEvent]) -> Restoration:
        """A session of its own. Events that forks share have been sealed before."""

        def finish(state: State) -> list[EventDraft]:
            drafts = [] if begun else session.events.draft()
            return [*drafts, *self._finish(apply_drafts(state, drafts))]

        return Restoration(self._key(session.plan.id), lambda: _make_batches(begun, session.files), finish)

    def _fork(self, session: PlannedSession, trunk: Sequence[SealedEvent]) -> Restoration:
        plan = session.plan
        assert plan.trunk is not None
        shared = [replace(one, event=replace(one.event, session_id=plan.id)) for one in trunk[: plan.shared]]
        fact = SessionForked(from_session_id=plan.trunk, from_seq=plan.shared, from_hash=shared[-1].event.hash)

        def finish(state: State) -> list[EventDraft]:
            own = session.events.draft()[plan.shared :]
            drafts = [*draft_events(state.agent, [fact], None), *own]
            return [*drafts, *self._finish(apply_drafts(state, drafts))]

        return Restoration(self._key(plan.id), lambda: _make_batches(shared, session.files), finish)

    def _finish(self, state: State) -> list[EventDraft]:
        return finish_import(state, source=self._form, digest=self._digest, by=self._by)

    async def _is_still_here(self, plan: ImportPlan) -> bool | None:
        """Tell if a session begins with all that the conversation has, and may have gone on; None if it is not here."""
        # The event that says that it is a fork is not one of the conversation's.
        count = plan.count - (plan.trunk is not None)
        types = [SessionCreated.type, MessageAdded.type]
        events = await self._store.read(self._key(plan.id), types=types, limit=count)
        if not events:
            return None
        found = await asyncio.to_thread(digest_payloads, (event.payload for event in events))
        return found in plan.digests and all(event.run_id is None for event in events)

    def make_report(self, found: _Found, dry_run: bool) -> ImportReport:
        made = dict(self._imported)
        if dry_run:
            here = {*self._present, *self._changed, *self._settled}
            made = {id: plan.count + 1 for id, plan in self._plans.items() if id not in here}
        added = {one.id: one for one in self._settled.values() if one.outcome != "present"}
        made |= {id: one.events for id, one in added.items() if one.outcome == "imported"}
        extended = {id: one.events for id, one in added.items() if one.outcome == "extended"}
        sessions = []
        for id in islice({**self._listed, **added}, MAX_LISTED_SESSIONS):
            end = added.get(id) or self._heads.get(id)
            sessions.append(
                ImportedSession(
                    id=id,
                    seq=self._plans[id].count + 1 if end is None else end.seq,
                    hash="" if end is None else end.hash,
                    outcome="imported" if id in made else "extended" if id in extended else "present",
                )
            )
        return ImportReport(
            dry_run=dry_run,
            imported=len(made),
            present=sum(id not in made and id not in extended for id in self._plans) + found.repeated,
            extended=len(extended),
            events=sum(made.values()) + sum(extended.values()),
            sessions=sessions,
            format=self._form,
            forks=sum(id not in self._plans or self._plans[id].trunk is not None for id in made),
            left_out=found.left_out,
        )


def _want(session: PlannedSession) -> WantedSession:
    created, *messages = (draft.fact for draft in session.events.draft())
    assert isinstance(created, SessionCreated)
    said = [fact for fact in messages if isinstance(fact, MessageAdded)]
    return WantedSession(id=session.plan.id, created=created, messages=said, files=session.files)


def _make_batches(events: Sequence[SealedEvent], files: Mapping[str, bytes]) -> list[SealedBatch]:
    return [SealedBatch(events, {}, files)] if events or files else []
