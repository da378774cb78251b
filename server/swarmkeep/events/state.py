"""The state of a session: what its events add up to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import ClassVar, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.events import facts
from swarmkeep.events.chain import Chain, work_out
from swarmkeep.events.codec import Json, parse_timestamp
from swarmkeep.events.errors import HistoryDamaged
from swarmkeep.events.messages import Entry, read_tool_calls
from swarmkeep.events.records import ContextChange, RunOptions, Usage

SessionStatus = Literal["idle", "running", "waiting"]
RunStatus = Literal["queued", "running", "waiting", "completed", "failed", "cancelled", "interrupted"]

Verdict = Literal["up", "down"]

STATUS_BY_ENDING: dict[type[facts.RunEnded], RunStatus] = {
    facts.RunCompleted: "completed",
    facts.RunFailed: "failed",
    facts.RunCancelled: "cancelled",
    facts.RunInterrupted: "interrupted",
}

# The ids of sessions in which agents are asked by others begin with it; callers cannot give such ids.
CHILD_PREFIX = "subsess"


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A tool call of the current turn. `attempts` counts its starts; `handoff` is the agent that it returned.

    `agent` is the one that asked for it: the call is to its function, even if another is active by now. It is empty
    where the log does not say. `imported`: it came out of a file. Even if the file says so, it is not approved here
    before `approval` says so. `held`: its change of the context, which has yet to be made, after those of the calls
    before it. `session_id`: where it was started, the session in which another agent is asked. `original_arguments`:
    those that the model gave, if the approver has changed them. `redacted`: its arguments were removed, and are not
    known any more.
    """

    id: str
    name: str
    arguments: str
    agent: str = ""
    attempts: int = 0
    done: bool = False
    approval: Literal["requested", "approve", "deny"] | None = None
    approval_reason: str | None = None
    original_arguments: str | None = None
    expires_at: str | None = None
    handoff: str | None = None
    imported: bool = False
    held: ContextChange | None = None
    session_id: str | None = None
    redacted: bool = False

    @property
    def decide_until(self) -> datetime | None:
        """When the request for its approval expires, if one is open and does."""
        return None if self.approval != "requested" or self.expires_at is None else parse_timestamp(self.expires_at)


class Run(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A run. While it is active, `agent` and `context_variables` are those it began with; then those it ended with.

    `answered`: the last model reply asked for no tools, or gave the output; nothing was wrong with it. `corrections`:
    answers that were wrong. `tripped`: a guardrail refused its input or its answer, which ends it. `recoveries`:
    take-overs since the last model reply. `active_since`: when it began, or last went on.
    `turns_before`: those that were over when its options were given.
    `waits`: how often it has waited so far, the last time from the event `last_wait` on; `has_gone_on`: it did since.
    Its messages are those of `state.messages[first_message:last_message]` that have its id.
    `model` gave its last reply; `first_token_ms` is how long its first streamed reply took to begin. `waited_ms`: how
    long it was not active between its waits or its interruption and what followed; `waiting_since` while it waits.
    `hidden`: it is not found any more as a response; `hidden_parts`: what it did after so many waits is not.
    """

    id: str
    status: RunStatus
    options: RunOptions
    first_seq: int
    last_seq: int
    created_at: str
    active_since: str
    agent: str
    first_message: int
    last_message: int
    context_variables: Json = {}
    idempotency_key: str | None = None
    by: str | UnsetType = UNSET
    traceparent: str | UnsetType = UNSET
    turns: int = 0
    answered: bool = False
    corrections: int = 0
    tripped: bool = False
    calls: tuple[ToolCall, ...] = ()
    pending: tuple[facts.PendingCall, ...] = ()
    recoveries: int = 0
    turns_before: int = 0
    waits: int = 0
    last_wait: int = 0
    has_gone_on: bool = True
    usage: Usage = Usage()
    model: str = ""
    first_token_ms: float | None = None
    tool_calls: int = 0
    tool_errors: int = 0
    waited_ms: float = 0.0
    waiting_since: str = ""
    stop_reason: str | None = None
    error: facts.RunError | None = None
    finished_at: str | None = None
    hidden: bool = False
    hidden_parts: tuple[int, ...] = ()

    @property
    def open_calls(self) -> tuple[ToolCall, ...]:
        # Asked for with each step, and most turns have no calls.
        return tuple([call for call in self.calls if not call.done]) if self.calls else ()

    @property
    def awaited_calls(self) -> tuple[str, ...]:
        """The calls whose sessions it waits for. One that came out of a file waits for none that is here, unless it was
        approved here."""
        awaited = {call.tool_call_id for call in self.pending if call.reason == "session"}
        here = (call for call in self.open_calls if not call.imported or call.approval == "approve")
        return tuple(call.id for call in here if call.id in awaited)

    @property
    def own_open_calls(self) -> tuple[ToolCall, ...]:
        """Those that are carried out here."""
        if not self.options.execute_tools:
            return ()
        outside = self.options.caller_tool_names
        return tuple(call for call in self.open_calls if call.name not in outside)

    @property
    def outside_open_calls(self) -> tuple[ToolCall, ...]:
        """The open calls whose results come from the run's caller."""
        if not self.options.execute_tools:
            return self.open_calls
        outside = self.options.caller_tool_names
        return tuple(call for call in self.open_calls if call.name in outside)


class ApprovalNote(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """That an approval of a call was asked for, or what was decided: then `approve` says it."""

    seq: int
    run_id: str | None
    call_id: str
    approve: bool | None = None
    reason: str | None = None


class QueuedRun(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    run_id: str
    seq: int
    at: str
    fact: facts.RunQueued


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The place that a fork came from."""

    session_id: str
    """The session that was forked."""
    seq: int
    """The last event that both share."""
    hash: str
    """The hash of that event."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of the messages from `first_seq` to `last_seq`, by event `seq`."""

    seq: int
    at: str
    first_seq: int
    last_seq: int
    text: str


class OpenCompaction(msgspec.Struct, frozen=True, kw_only=True):
    """A compaction that began at `seq` and is not over."""

    seq: int
    fact: facts.CompactionStarted


class Feedback(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How people find answers of a session, each by what was said of it last."""

    up: int = 0
    """How many are found good."""
    down: int = 0
    """How many are not."""

    @property
    def verdict(self) -> Verdict | None:
        return "down" if self.down else "up" if self.up else None


class RatedAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """That an answer, by its `seq`, was found good or not."""

    seq: int
    value: Verdict


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """That what is stored of a session is not what was recorded: from the event `seq` on, by that code of `verify`."""

    seq: int
    code: str


# Not tracked by the garbage collector: nothing in it leads back to it, and each event that is folded makes one.
class State(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A session after its first `seq` events, `size` bytes of payload; seq 0 is one that does not exist yet."""

    seq: int = 0
    hash: str = ""
    agent: str = ""
    context_variables: Json = {}
    metadata: Json = {}
    messages: Chain[Entry] = msgspec.field(default_factory=Chain)
    run: Run | None = None
    queue: tuple[QueuedRun, ...] = ()
    finished: Chain[Run] = msgspec.field(default_factory=Chain)
    usage: Usage = Usage()
    approvals: Chain[ApprovalNote] = msgspec.field(default_factory=Chain)
    """Every request for one, and every decision, in order."""
    forked_from: Origin | None = None
    forked_at: int = 0
    """The seq of the event that ends what was copied from there; 0 for a session that is no fork."""
    parent: facts.Parent | None = None
    created_at: str = ""
    updated_at: str = ""
    size: int = 0
    removed_messages: int = 0
    """How many messages were taken out. They stay in `messages`, marked."""
    last_change: int = 0
    """The seq at which what models are sent of the messages so far was last changed; 0 for never."""
    compaction: OpenCompaction | None = None
    summaries: Chain[Summary] = msgspec.field(default_factory=Chain)
    """What models are sent in the place of messages: the last one. Each covers what the one before it does."""
    other_texts: Chain[str] = msgspec.field(default_factory=Chain)
    """The hashes of texts that other events than messages name: what summaries were asked for with, lists of tools."""
    queued_files: Chain[str] = msgspec.field(default_factory=Chain)
    compacted_at: int = 0
    """The seq of the last compaction's start; 0 for never."""
    listings: Chain[facts.ToolListing] = msgspec.field(default_factory=Chain)
    """Lists of tools: of each agent and server, the last one counts."""
    forgot_keys: bool = False
    """Whether the beginning of a run was redacted, and with it the idempotency key that it may have come with."""
    forgotten_texts: frozenset[str] = frozenset()
    """The hashes of texts that were removed although events name them. A later event may have brought one back."""
    taken_over: facts.TakenOver | None = None
    hold: facts.Hold | None = None
    handback_note: facts.HandbackNote | None = None
    assignee: str | None = None
    """The person or queue that looks after it."""
    rated: Chain[RatedAnswer] = msgspec.field(default_factory=Chain)
    """The answers that people found good or not: of each, the last one counts."""
    feedback: Feedback = Feedback()
    person_key: str | None = None
    """The id of the key that what is recorded is encrypted by. Set by the store, as `damage` is."""
    damage: Damage | None = None
    """Set by the store that read the events, and kept by every fold from there on: nothing is added to such a state."""

    @property
    def summary(self) -> Summary | None:
        return self.summaries[-1] if len(self.summaries) else None

    @property
    def message_count(self) -> int:
        """The number of messages to show."""
        return max(len(self.messages) - self.removed_messages, 0)

    @property
    def status(self) -> SessionStatus:
        return "idle" if self.run is None else "waiting" if self.run.status == "waiting" else "running"

    @property
    def due_at(self) -> float | None:
        """The time by which a server has to go on with a session that is not running, in seconds since 1970.

        One whose runs wait in the queue is due at once (0), one that waits for approvals when the first expires. One
        that waits for what is decided in another session is looked at now and then.
        """
        if self.run is None:
            return 0.0 if self.queue else None
        if self.run.status != "waiting":
            return None
        if self.run.awaited_calls:
            return 0.0
        ends = [call.decide_until for call in self.run.open_calls]
        return min((end.timestamp() for end in ends if end is not None), default=None)


def refuse_damaged(session_id: str, state: State) -> None:
    """Raise HistoryDamaged if what this state is made of is not what was recorded."""
    if state.damage is not None:
        raise HistoryDamaged(session_id, state.damage.seq)


def make_calls(message: Json) -> tuple[ToolCall, ...]:
    """The tool calls an assistant message asks for, each id once."""
    if not message.get("tool_calls"):
        return ()
    sender = message.get("sender")
    agent = sender if isinstance(sender, str) else ""
    return tuple(
        ToolCall(id=call_id, name=name, arguments=arguments, agent=agent)
        for call_id, name, arguments in read_tool_calls(message)
    )


# The ids that a session's calls and runs have, and no new one may have; and where each is. Known without looking
# through all of them each time.

T = TypeVar("T")

# Of most ids there is one, which takes less memory by itself.
Places = int | tuple[int, ...]


class Part(msgspec.Struct, frozen=True):
    """`size` is how many places there are, of all ids."""

    size: int
    places: Mapping[str, Places]

    def join(self, later: Part) -> Part:
        """With those that follow."""
        joined = {**self.places, **later.places}
        if len(joined) < len(self.places) + len(later.places):
            for name in self.places.keys() & later.places.keys():
                joined[name] = (*_list_places(self.places[name]), *_list_places(later.places[name]))
        return Part(self.size + later.size, joined)


class KnownIds(msgspec.Struct, frozen=True):
    """The ids of the first `upto` items: in a few parts, each at least twice as large as the next. So to add
    some costs about the same however many there are, and to look for one only a little more.

    What is kept with a chain is kept by its type: each kind of ids has one.
    """

    # An item that is exchanged for another one keeps its ids.
    outlasts_edits: ClassVar[bool] = True

    upto: int = 0
    parts: tuple[Part, ...] = ()

    def __contains__(self, name: object) -> bool:
        return any(name in part.places for part in self.parts)

    def find(self, name: str) -> tuple[int, ...]:
        """The places of the items that have this id, in order."""
        found = [_list_places(part.places[name]) for part in self.parts if name in part.places]
        return found[0] if len(found) == 1 else tuple(chain.from_iterable(found))


class CallIds(KnownIds, frozen=True):
    pass


class ResultIds(KnownIds, frozen=True):
    pass


class RunIds(KnownIds, frozen=True):
    pass


K = TypeVar("K", bound=KnownIds)


def find_call_ids(messages: Sequence[Entry]) -> CallIds:
    """Every call that the messages ask for, or asked for until it was taken out."""
    return find_ids(messages, CallIds, list_call_ids)


def find_results(messages: Sequence[Entry]) -> ResultIds:
    """Every call that a message is the result of."""
    return find_ids(messages, ResultIds, _list_answered)


def find_finished_runs(finished: Sequence[Run]) -> RunIds:
    """Every run that is over."""
    return work_out(finished, RunIds, _add_runs)


def find_ids(items: Sequence[T], kind: type[K], list_ids: Callable[[T], Iterable[str]]) -> K:
    """Return the ids of the items, of which each keeps its own even if it is exchanged. Kept with a session's own."""
    return work_out(items, kind, lambda known, later: extend_ids(known, later, list_ids))


def extend_ids(known: K, later: Sequence[T], list_ids: Callable[[T], Iterable[str]]) -> K:
    """With those of the items that follow."""
    added = _collect_places(later, known.upto, list_ids)
    parts = list(known.parts)
    while added.size and parts and parts[-1].size < 2 * added.size:
        added = parts.pop().join(added)
    return type(known)(known.upto + len(later), (*parts, added) if added.size else known.parts)


def _add_runs(known: RunIds, later: Sequence[Run]) -> RunIds:
    return extend_ids(known, later, lambda run: (run.id,))


def _collect_places(items: Iterable[T], first: int, list_ids: Callable[[T], Iterable[str]]) -> Part:
    found: dict[str, list[int]] = {}
    for place, item in enumerate(items, first):
        for name in list_ids(item):
            found.setdefault(name, []).append(place)
    size = sum(map(len, found.values()))
    return Part(size, {name: places[0] if len(places) == 1 else tuple(places) for name, places in found.items()})


def _list_places(places: Places) -> tuple[int, ...]:
    return (places,) if isinstance(places, int) else places


def list_call_ids(entry: Entry) -> list[str]:
    """The calls that a message asks for, or asked for until they were taken out, by the ids that it gives them."""
    return [call_id for call_id, _, _ in read_tool_calls(entry.message)] if entry.role == "assistant" else []


def _list_answered(entry: Entry) -> tuple[str, ...]:
    answered = entry.message.get("tool_call_id") if entry.role == "tool" else None
    return (answered,) if isinstance(answered, str) else ()


# A message that a model has not completed yet.


class PartialReply(msgspec.Struct, frozen=True, kw_only=True):
    """The text that the model of a run has said so far on the history up to `seq`, asked as `agent`; without text,
    nothing.

    `finish_reason`: what its provider said, if that ended it.
    """

    run_id: str = ""
    seq: int = 0
    agent: str = ""
    text: str = ""
    finish_reason: str | None = None

    def is_current(self, state: State, run: Run) -> bool:
        """Tell if it has text, and that is not in the log yet: no reply of the run was recorded since it was begun."""
        if not self.text or self.run_id != run.id:
            return False
        for index in range(run.last_message - 1, run.first_message - 1, -1):
            entry = state.messages[index]
            if entry.seq <= self.seq:
                break
            if entry.completion is not None and entry.run_id == run.id:
                return False
        return True


NOTHING_SAID = PartialReply()
