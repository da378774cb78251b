"""Removing what events say, for good, so that the chain still verifies."""

from __future__ import annotations

import asyncio
import logging
import math
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.decide.commands import refuse_if_busy, refuse_if_held
from swarmkeep.decide.turns import OUTPUT_INVALID
from swarmkeep.events.codec import digest
from swarmkeep.events.errors import EventNotFound, InvalidRequest, OnHold, SessionBusy, SessionNotFound
from swarmkeep.events.facts import (
    FACTS,
    ApprovalDecided,
    ApprovalRequested,
    CompactionFailed,
    CompactionStarted,
    CompactionSummarised,
    ContextUpdated,
    EventDraft,
    GuardrailTripped,
    MessageAdded,
    RecordedEvent,
    RunEnded,
    RunQueued,
    RunResumed,
    RunStarted,
    RunWaiting,
    SessionCreated,
    SessionEvent,
    SessionHandedBack,
    SessionRedacted,
    ToolsListed,
    ToolStarted,
    UnknownFact,
    is_redacted,
)
from swarmkeep.events.fold import fold
from swarmkeep.events.messages import read_tool_calls
from swarmkeep.events.redaction import REDACTED, redact_payload
from swarmkeep.events.state import Run, State, refuse_damaged
from swarmkeep.events.views import SessionView, view_session
from swarmkeep.history.verify import read_pages
from swarmkeep.runs.identifiers import derive_child_run
from swarmkeep.runs.loop import decide_until_recorded
from swarmkeep.runs.runs import IdempotentRequest, find_record, run_once
from swarmkeep.runs.sessions import MAX_REASON, Publish, refuse_if_held_above
from swarmkeep.store.hashing import SealedEvent
from swarmkeep.store.integrity import LogCheck
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import AppendResult, IdempotencyRecord, IdempotencyRecordExists, SessionKey
from swarmkeep.store.threads import free_aside, free_state_aside

# The copies that the server makes of a text: redacting one of them redacts all.

Events = Sequence[RecordedEvent]


class Copies(msgspec.Struct, frozen=True):
    """Redacting one of `sources` redacts `copies`, too."""

    sources: Collection[int]
    copies: Collection[int]


def _share(*seqs: int) -> Copies:
    """Events that say the same: each of them is a copy of the others."""
    return Copies(seqs, seqs)


def _find_summaries(events: Events) -> Iterator[Copies]:
    for event in events:
        if isinstance(event.fact, CompactionSummarised):
            yield Copies(range(event.fact.first_seq, min(event.fact.last_seq, event.seq) + 1), (event.seq,))


def _find_summary_requests(events: Events) -> Iterator[Copies]:
    begins, has_text = 0, False
    for event in events:
        if isinstance(event.fact, CompactionStarted):
            begins, has_text = event.seq, event.fact.instructions is not None
        elif has_text and isinstance(event.fact, CompactionSummarised):
            yield Copies((begins,), (event.seq,))


def _find_held_changes(events: Events) -> Iterator[Copies]:
    results: dict[object, int] = {}
    for event in events:
        fact = event.fact
        if isinstance(fact, MessageAdded) and fact.tool is not None and fact.tool.context is not UNSET:
            results[fact.message.get("tool_call_id")] = event.seq
        elif isinstance(fact, ContextUpdated) and (result := results.get(fact.tool_call_id)) is not None:
            yield _share(result, event.seq)


def _find_options(events: Events) -> Iterator[Copies]:
    for run in _list_runs(events):
        asking = [event for event in run if isinstance(event.fact, RunQueued | RunStarted | RunResumed)]
        places = [event.seq for event in asking]
        yield _share(*places)
        if any(_has_texts(event) for event in asking):
            answers = [event.seq for event in run if _is_answer(event)]
            yield Copies(places, answers)


def _has_texts(event: RecordedEvent) -> bool:
    """Tell if the options of a run hold texts that the requests to its model repeat."""
    options = event.fact.options if isinstance(event.fact, RunQueued | RunStarted | RunResumed) else UNSET
    if options is UNSET:
        return False
    texts = (options.instructions, options.tools, options.tool_choice, options.response_format)
    return any(text is not UNSET for text in texts) or _has_text(options.model_settings)


def _has_text(value: object) -> bool:
    """Tell if there is anything in settings but numbers and switches."""
    if isinstance(value, Mapping):
        return any(map(_has_text, value.values()))
    return any(map(_has_text, value)) if isinstance(value, list | tuple) else isinstance(value, str)


def _find_queued_input(events: Events) -> Iterator[Copies]:
    for run in _list_runs(events):
        queued = [event.seq for event in run if isinstance(event.fact, RunQueued)]
        if queued:
            yield _share(*queued, *(event.seq for event in run if _is_input(event)))


def _find_queued_context(events: Events) -> Iterator[Copies]:
    for run in _list_runs(events):
        queued = [event.seq for event in run if isinstance(event.fact, RunQueued)]
        for event in run if queued else ():
            if isinstance(event.fact, MessageAdded):
                # Any change of the context from here on was not asked for with the run.
                break
            if isinstance(event.fact, ContextUpdated):
                yield _share(*queued, event.seq)


def _find_arguments(events: Events) -> Iterator[Copies]:
    for call in _list_calls(events):
        places = (call.message, *call.requests, *call.waits, *call.starts)
        yield _share(*places)
        # What is wrong with arguments is said in their words.
        yield Copies(places, call.failures)


def _find_changed_arguments(events: Events) -> Iterator[Copies]:
    for call in _list_calls(events):
        if call.edits:
            yield _share(*call.edits, *call.edited_starts, *call.results)


def _find_denials(events: Events) -> Iterator[Copies]:
    for call in _list_calls(events):
        if call.denials:
            yield _share(*call.denials, *call.results)


def _find_notes(events: Events) -> Iterator[Copies]:
    noted = 0
    for event in events:
        fact = event.fact
        if isinstance(fact, SessionHandedBack) and fact.note is not UNSET:
            noted = event.seq
        elif (
            noted and isinstance(fact, MessageAdded) and fact.person is not UNSET and fact.message.get("role") == "user"
        ):
            # It may come later, in a message of its own.
            yield _share(noted, event.seq)
            noted = 0


def _find_refusals(events: Events) -> Iterator[Copies]:
    """A guardrail's words are in what stands for the answer, before or after it, or in the call's result."""
    for run in _list_runs(events):
        for place, event in enumerate(run):
            fact = event.fact
            if not isinstance(fact, GuardrailTripped):
                continue
            beside = (*run[place + 1 : place + 2], *run[max(place - 1, 0) : place])
            yield _share(event.seq, *(other.seq for other in beside if _says_refusal(fact, other)))
            if fact.messages is not UNSET:
                # It is about them, and may repeat what it refuses.
                yield Copies(fact.messages, (event.seq, *(other.seq for other in beside if _says_refusal(fact, other))))


def _says_refusal(fact: GuardrailTripped, event: RecordedEvent) -> bool:
    said = event.fact
    if not isinstance(said, MessageAdded):
        return False
    if fact.tool_call_id is not UNSET:
        return said.message.get("tool_call_id") == fact.tool_call_id
    return said.guardrail is not UNSET


def _find_corrections(events: Events) -> Iterator[Copies]:
    for run in _list_runs(events):
        answer = 0
        for event in run:
            fact = event.fact
            if _is_answer(event):
                answer = event.seq
            elif not answer:
                continue
            elif _says_what_is_wrong(fact):
                yield Copies((answer,), (event.seq,))


def _says_what_is_wrong(fact: SessionEvent) -> bool:
    if isinstance(fact, RunEnded):
        return fact.error is not None and fact.error.code == OUTPUT_INVALID
    return isinstance(fact, MessageAdded) and fact.correction is not UNSET


def _find_errors(events: Events) -> Iterator[Copies]:
    """A provider may repeat what it was sent, which is all of the history; a function may, and the context."""
    for event in events:
        if _has_error(event.fact):
            yield Copies(range(1, event.seq), (event.seq,))


def _has_error(fact: SessionEvent) -> bool:
    if isinstance(fact, GuardrailTripped):
        return fact.error is not UNSET
    return isinstance(fact, CompactionFailed) or (isinstance(fact, RunEnded) and fact.error is not None)


def _find_listings(events: Events) -> Iterator[Copies]:
    by_server: dict[str, list[int]] = {}
    for event in events:
        if isinstance(event.fact, ToolsListed):
            by_server.setdefault(event.fact.server, []).append(event.seq)
    for seqs in by_server.values():
        yield _share(*seqs)


COPIES: dict[str, Callable[[Events], Iterator[Copies]]] = {
    "messages in a summary": _find_summaries,
    "a compaction's instructions in its requests": _find_summary_requests,
    "a change of the context in the result that held it": _find_held_changes,
    "a run's options in each event that it begins or goes on with, and in its answers' requests": _find_options,
    "a queued run's input": _find_queued_input,
    "a queued run's context variables": _find_queued_context,
    "a call's arguments in its approval, its waits, its start, and in what is wrong with them": _find_arguments,
    "arguments that a person has changed": _find_changed_arguments,
    "the reason of a denial in the result": _find_denials,
    "a note for the agent": _find_notes,
    "a guardrail's refusal": _find_refusals,
    "an answer in what is wrong with it": _find_corrections,
    "all that was said before in an error": _find_errors,
    "a server's tools in each of its lists": _find_listings,
}
"""Each kind of copy within a session, by what is copied and where to."""


def find_same_text(events: Events, seqs: Collection[int]) -> set[int]:
    """The seqs of what repeats any of these events, or is repeated by it, in `events`: all of a session's."""
    named, in_order = set(seqs), sorted(seqs)
    found: set[int] = set()
    for find in COPIES.values():
        for group in find(events):
            if _touches(group.sources, named, in_order):
                found.update(group.copies)
    return found


def _touches(sources: Collection[int], named: set[int], in_order: Sequence[int]) -> bool:
    if not isinstance(sources, range):
        return not named.isdisjoint(sources)
    # One may cover all of a session.
    at = bisect_left(in_order, sources.start)
    return at < len(in_order) and in_order[at] < sources.stop


def find_forgotten_texts(events: Events, seqs: Collection[int]) -> list[str]:
    """The texts of requests, by their hashes, that have the lists of tools among these events: the answers that name
    them stay, and the texts are removed."""
    named, found = set(seqs), dict[str, None]()
    redacted: dict[str, set[str]] = {}
    for event in events:
        fact = event.fact
        if isinstance(fact, ToolsListed):
            of_agent = redacted.setdefault(event.agent, set())
            (of_agent.add if event.seq in named else of_agent.discard)(fact.server)
        elif isinstance(fact, MessageAdded) and redacted.get(event.agent) and event.seq not in named:
            request = None if fact.completion is None else fact.completion.request
            if request is not None and request.tools is not None:
                found[request.tools] = None
    return list(found)


def _list_runs(events: Events) -> list[list[RecordedEvent]]:
    """The events of each run."""
    runs: dict[str, list[RecordedEvent]] = {}
    for event in events:
        if event.run_id is not None:
            runs.setdefault(event.run_id, []).append(event)
    return list(runs.values())


class _Call(msgspec.Struct):
    """A call, by the seqs of what is recorded of it: `message` asks for it."""

    run_id: str | None
    id: str
    message: int
    requests: list[int] = []
    waits: list[int] = []
    starts: list[int] = []
    edits: list[int] = []
    edited_starts: list[int] = []
    denials: list[int] = []
    results: list[int] = []
    failures: list[int] = []
    changes: list[int] = []
    session_id: str | None = None


def _list_calls(events: Events) -> list[_Call]:
    """Every call that a model has asked for. One that asks under an id that was used before is another one."""
    found: list[_Call] = []
    current: dict[object, _Call] = {}
    for event in events:
        fact = event.fact
        if isinstance(fact, MessageAdded) and fact.tool is None:
            for call_id, _, _ in read_tool_calls(fact.message):
                current[call_id] = _Call(event.run_id, call_id, event.seq)
                found.append(current[call_id])
        elif isinstance(fact, MessageAdded):
            _note_place(current.get(fact.message.get("tool_call_id")), event)
        elif isinstance(fact, RunWaiting):
            for pending in fact.pending:
                _note_place(current.get(pending.tool_call_id), event)
        elif isinstance(fact, ApprovalRequested | ApprovalDecided | ToolStarted | ContextUpdated):
            _note_place(current.get(fact.tool_call_id), event)
    return found


def _note_place(call: _Call | None, event: RecordedEvent) -> None:
    if call is None:
        return
    match event.fact:
        case MessageAdded(tool=tool):
            call.results.append(event.seq)
            if tool is not None and tool.status == "error":
                call.failures.append(event.seq)
        case RunWaiting():
            call.waits.append(event.seq)
        case ApprovalRequested():
            call.requests.append(event.seq)
        case ApprovalDecided(decision="deny"):
            call.denials.append(event.seq)
        case ApprovalDecided(arguments=edited) if edited is not UNSET:
            call.edits.append(event.seq)
        case ToolStarted(session_id=session_id):
            (call.edited_starts if call.edits else call.starts).append(event.seq)
            call.session_id = call.session_id if session_id is UNSET else session_id
        case ContextUpdated():
            call.changes.append(event.seq)


def _is_input(event: RecordedEvent) -> bool:
    fact = event.fact
    return isinstance(fact, MessageAdded) and fact.tool is None and fact.completion is None and fact.person is UNSET


def _is_answer(event: RecordedEvent) -> bool:
    return isinstance(event.fact, MessageAdded) and event.fact.completion is not None


class AskedSession(msgspec.Struct, frozen=True):
    """A session in which an agent is asked, for a call of the session above. `has_context`: it began with a copy of
    context variables that are in question."""

    session_id: str
    call: _Call
    has_context: bool = False

    @property
    def question(self) -> tuple[int, ...]:
        call = self.call
        return (call.message, *call.requests, *call.starts, *call.edits, *call.edited_starts)

    @property
    def begun(self) -> int:
        """The event with which it was asked."""
        return min((*self.call.starts, *self.call.edited_starts))


def list_asked(events: Events) -> list[AskedSession]:
    """The sessions in which a session's agents asked others."""
    return [AskedSession(call.session_id, call) for call in _list_calls(events) if call.session_id is not None]


def list_touched(above: Events, seqs: Collection[int]) -> list[AskedSession]:
    """Those of the asked sessions that may repeat any of `seqs`."""
    first = _find_first_context(above, seqs)
    named = set(seqs)
    return [
        msgspec.structs.replace(asked, has_context=first < asked.begun)
        for asked in list_asked(above)
        if first < asked.begun
        or not named.isdisjoint((*asked.question, *asked.call.results, *asked.call.changes, *asked.call.waits))
    ]


def find_copies_below(seqs: Collection[int], below: Events, asked: AskedSession, asked_run: str) -> set[int]:
    """The events of an asked session that repeat any of `seqs` in the session above it."""
    named, found = set(seqs), set[int]()
    for upper, lower in _pair_copies(below, asked, asked_run):
        if not named.isdisjoint(upper):
            found.update(lower)
    if asked.has_context:
        found.update(event.seq for event in below if isinstance(event.fact, SessionCreated))
    return found


def find_copies_above(below: Events, seqs: Collection[int], asked: AskedSession, asked_run: str) -> set[int]:
    """The events of the session above that any of `seqs` in an asked session repeat, or are repeated by. Not those of
    the context that it began with: that was all of it at once."""
    named, found = set(seqs), set[int]()
    for upper, lower in _pair_copies(below, asked, asked_run):
        if not named.isdisjoint(lower):
            found.update(upper)
    return found


def _find_first_context(events: Events, seqs: Collection[int]) -> float:
    """The first of these events that sets context variables."""
    named = set(seqs)
    setting = (event.seq for event in events if isinstance(event.fact, SessionCreated | ContextUpdated | RunQueued))
    return next((seq for seq in setting if seq in named), math.inf)


def _pair_copies(
    below: Events, asked: AskedSession, asked_run: str
) -> Iterator[tuple[Collection[int], Collection[int]]]:
    """Events of the session above, and those below it with the same text."""
    call = asked.call
    run = [event for event in below if event.run_id == asked_run]
    # What it was asked.
    yield asked.question, [event.seq for event in run if isinstance(event.fact, RunQueued) or _is_input(event)]
    # Its answer, or why there is none.
    ends = [event.seq for event in run if isinstance(event.fact, RunEnded) and event.fact.error is not None]
    said = [event.seq for event in run if _is_answer(event)][-1:]
    yield call.results, (*said, *ends)
    yield (*call.changes, *call.results), [event.seq for event in run if isinstance(event.fact, ContextUpdated)]
    # Calls that wait there are listed above.
    yield call.waits, [seq for each in _list_calls(below) for seq in (each.message, *each.requests) if each.requests]


def find_parent(below: Events) -> str | None:
    """The id of the session above an asked one, where its first event still says it."""
    fact = below[0].fact if below else None
    if not isinstance(fact, SessionCreated) or fact.parent is UNSET or fact.parent.session_id == REDACTED:
        return None
    return fact.parent.session_id


log = logging.getLogger(__name__)

MAX_SEQS = 1000


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """Another session that holds the same events, or the same text where one of its agents was asked or has asked."""

    session_id: str
    """The session."""
    seqs: list[int]
    """The events there."""
    redacted: bool
    """They were removed there, too."""


class Redaction(msgspec.Struct, frozen=True, kw_only=True):
    """What was removed."""

    session: SessionView
    """The session."""
    seqs: list[int]
    """The events that were emptied now."""
    seq: int | None
    """The `session.redacted` event; null if nothing was left to remove, or for a dry run."""
    forks: list[Copy]
    """Other sessions that hold the same."""


async def redact(
    store: SqlStore,
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
    linked = await _find_all_linked(store, key, seqs)
    here = sorted(linked.pop(key))
    made = await run_once(store, key, idempotency, lambda: redact_one(key, here, idempotency=idempotency))
    at = made.seq if isinstance(made, IdempotencyRecord) else made.state.seq if isinstance(made, AppendResult) else None
    told = await store.read(key, after=0 if at is None else at - 1, upto=at, types=["session.redacted"])
    fact = told[-1].fact if told and at is not None else None
    removed = {*here, *(fact.seqs if isinstance(fact, SessionRedacted) else ())}
    # Repeated with its idempotency key it is told as it was then, even if more has followed.
    state = await store.state(key, at=at)
    return Redaction(
        session=view_session(key.id, state),
        seqs=list(fact.seqs) if isinstance(fact, SessionRedacted) else [],
        seq=None if fact is None else at,
        forks=[
            *await _redact_each(linked, redact_one),
            *await _handle_copies(store, key, sorted(removed), redact_one if include_forks else None),
        ],
    )


async def _preview(store: SqlStore, key: SessionKey, seqs: Sequence[int]) -> Redaction:
    linked = await _find_all_linked(store, key, seqs)
    here = sorted(linked.pop(key))
    log = await read_whole_log(store, key)
    plan = await asyncio.to_thread(_plan, key, log, here)
    copies = await _find_copies(store, key, log, here)
    return Redaction(
        session=view_session(key.id, plan.state),
        seqs=list(plan.texts),
        seq=None,
        forks=[
            Copy(session_id=other.id, seqs=sorted(held), redacted=False)
            for other, held in (*linked.items(), *copies.items())
        ],
    )


def _check_request(seqs: Sequence[int], reason: str) -> None:
    if not 0 < len(seqs) <= MAX_SEQS:
        raise InvalidRequest(f"name 1 to {MAX_SEQS} events", "/seqs")
    if not 0 < len(reason) <= MAX_REASON:
        raise InvalidRequest(f"give a reason, of up to {MAX_REASON} characters", "/reason")


async def redact_wholly(
    store: SqlStore, key: SessionKey, reason: str, *, by: str | None, publish: Publish | None
) -> None:
    """Redact all events of one session, and keep nothing of it that a person's key encrypts.

    Raises SessionNotFound, SessionBusy, OnHold and HistoryDamaged.
    """
    await _redact_session(store, key, None, reason=reason, by=by, publish=publish)


async def refuse_unredactable(store: SqlStore, key: SessionKey) -> None:
    """Raise what `redact_wholly` would."""
    await _plan_redaction(store, key, None)


async def _redact_session(
    store: SqlStore,
    key: SessionKey,
    seqs: Sequence[int] | None,
    *,
    reason: str,
    by: str | None,
    publish: Publish | None,
    idempotency: IdempotentRequest | None = None,
) -> AppendResult | None:
    """Redact one session, with `seqs=None` all of it; None if there was nothing left to remove."""

    async def remove() -> AppendResult | None:
        stored, plan = await _plan_redaction(store, key, seqs)
        if not plan.texts and seqs is not None:
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
        draft = EventDraft(fact, None, plan.state.agent)
        return await store.redact(key, stored, plan.texts, draft, idempotency=record, erases=seqs is None)

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


async def _plan_redaction(
    store: SqlStore, key: SessionKey, seqs: Sequence[int] | None
) -> tuple[list[SealedEvent], _Plan]:
    # With the head row, which is not a part of the log.
    await refuse_if_held_above(store, key, await store.sound_state(key))
    stored = await read_whole_log(store, key)
    chosen = range(1, len(stored) + 1) if seqs is None else seqs
    return stored, await asyncio.to_thread(_plan, key, stored, chosen)


def _plan(key: SessionKey, log: Sequence[SealedEvent], seqs: Sequence[int]) -> _Plan:
    """Raises SessionBusy, EventNotFound, OnHold and HistoryDamaged."""
    check = LogCheck()
    state = fold(check.follow(log))
    free_state_aside(state)
    refuse_damaged(key.id, replace(state, damage=check.findings.make_damage(state.seq)))
    refuse_if_held(key.id, state)
    if not _is_waiting(state):
        refuse_if_busy(state, key.id)
    known = {one.event.seq: one for one in log}
    for seq in seqs:
        if seq not in known:
            raise EventNotFound.out_of_range(key.id, state.seq, seq)
    events = [one.event for one in log]
    wanted = {*seqs, *find_same_text(events, seqs)}
    chosen = sorted(seq for seq in wanted if seq in known and known[seq].salt is not None)
    if state.run is not None and not _find_awaited(events, state.run).isdisjoint(chosen):
        raise SessionBusy(state.run.id, state.run.status, key.id)
    stand_ins = {seq: redact_payload(known[seq].event) for seq in chosen}
    return _Plan(state, stand_ins, find_forgotten_texts(events, wanted))


def _is_waiting(state: State) -> bool:
    return state.run is not None and state.run.status == "waiting" and not state.queue


def _find_awaited(events: Events, run: Run) -> set[int]:
    """Find the events that a waiting run goes on from: its options, and its turn from the calls that it waits for on.

    All else may be redacted meanwhile. A call that is approved must be the one that was asked for.
    """
    waiting = {call.id for call in run.calls}
    begins = [call.message for call in _list_calls(events) if call.run_id == run.id and call.id in waiting]
    return {
        event.seq
        for event in events
        if event.run_id == run.id
        and ((begins and event.seq >= min(begins)) or isinstance(event.fact, RunQueued | RunStarted | RunResumed))
    }


async def read_whole_log(store: SqlStore, key: SessionKey) -> list[SealedEvent]:
    """All of a session. Raises SessionNotFound."""
    await store.bring_back(key)
    log = await store.read_snapshot(lambda stored: list(chain.from_iterable(read_pages(stored, key, upto=None))))
    if not log:
        raise SessionNotFound(key.id)
    free_aside(log)
    return log


async def _find_copies(
    store: SqlStore, key: SessionKey, log: Sequence[SealedEvent], seqs: Sequence[int]
) -> dict[SessionKey, list[int]]:
    """The sessions that hold any of these events, or of what repeats them here: a fork may have no more than that."""

    def find_hashes() -> dict[int, bytes]:
        wanted = {*seqs, *find_same_text([one.event for one in log], seqs)}
        return {one.event.seq: bytes.fromhex(one.event.hash) for one in log if one.event.seq in wanted}

    for other in await store.list_archived_family(key):
        await store.bring_back(other)
    return await store.find_copies(key, await asyncio.to_thread(find_hashes))


async def _handle_copies(
    store: SqlStore,
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
            except (SessionBusy, OnHold):
                pass
            except SessionNotFound:
                continue
        found.append(Copy(session_id=other.id, seqs=held, redacted=gone))
    return found


async def _redact_each(
    linked: Mapping[SessionKey, Collection[int]], redact_one: Callable[[SessionKey, Sequence[int]], Awaitable[object]]
) -> list[Copy]:
    """Redact the sessions of other agents; those that are busy are named."""
    found: list[Copy] = []
    for key, held in linked.items():
        is_redacted = False
        try:
            await redact_one(key, sorted(held))
            is_redacted = True
        except (SessionBusy, OnHold):
            log.info("session %s: it is busy or on hold, and not redacted with the one it is linked to", key.id)
        except SessionNotFound:
            continue
        found.append(Copy(session_id=key.id, seqs=sorted(held), redacted=is_redacted))
    return found


async def _find_all_linked(store: SqlStore, key: SessionKey, seqs: Collection[int]) -> dict[SessionKey, set[int]]:
    """The sessions of agents that ask one another, by what they repeat of it; the session itself, with `seqs`, is the
    first. Text may come back to it: what an agent is given with a question may be in the error that is its answer."""
    found = {key: set(seqs)}
    waiting = [(key, set(seqs))]
    while waiting:
        here, gone = waiting.pop()
        for other, held in await _find_linked(store, here, gone):
            more = set(held) - found.setdefault(other, set())
            if more:
                found[other] |= more
                waiting.append((other, more))
    return found


async def _find_linked(store: SqlStore, key: SessionKey, seqs: Collection[int]) -> list[tuple[SessionKey, list[int]]]:
    """The sessions right below one and right above it that repeat any of these events, and where."""
    here = await _read_events(store, key)
    seqs = {*seqs, *await asyncio.to_thread(find_same_text, here, seqs)}
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


async def _read_events(store: SqlStore, key: SessionKey) -> list[RecordedEvent]:
    """All of a session; nothing where it is not there any more."""
    try:
        return [one.event for one in await read_whole_log(store, key)]
    except SessionNotFound:
        return []


# Tell which events have lost their content.


def is_lost(event: RecordedEvent) -> bool:
    """Tell if an event of a known type no longer has its original content: redacted, or not readable."""
    return is_redacted(event) or (isinstance(event.fact, UnknownFact) and event.type in FACTS)
