"""Session logs to try things on, and hypothesis strategies that make them.

Two kinds: those that a server writes, driven by `next_step` and the commands, with whatever may happen to a session
(`conversations`, `logs`), and those that no server ever wrote (`hostile_logs`). Both hang on a `Dice`, so they come
from hypothesis, which shrinks them, or from a seed, which is quicker: `conversation(SeededDice(7))`.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.domain.codec import Json, encode_text
from swarmkeep.domain.compaction.planning import CompactionPlan, plan_compaction
from swarmkeep.domain.compaction.requests import build_summary_request
from swarmkeep.domain.decisions.commands import StartRun, cancel_run, create_session, start_run, update_session
from swarmkeep.domain.decisions.concurrent_calls import find_batch
from swarmkeep.domain.decisions.drafts import draft_events
from swarmkeep.domain.decisions.guardrails import Trip, find_new_input, refuse_input, refuse_reply
from swarmkeep.domain.decisions.importing import finish_import
from swarmkeep.domain.decisions.partial import NOTHING_SAID, PartialReply
from swarmkeep.domain.decisions.removing import hide_run, remove_message
from swarmkeep.domain.decisions.resuming import Approval, ToolAnswer, resume_run
from swarmkeep.domain.decisions.settling import Approvals, settle
from swarmkeep.domain.decisions.steps import PERSON, AskModel, CallTool, CallTools, Compact, next_step
from swarmkeep.domain.decisions.takeovers import answer, hand_back, take_over
from swarmkeep.domain.decisions.turns import ToolOutcome, end_run, record_reply, record_result, start_tool
from swarmkeep.domain.envelope import EventDraft, RecordedEvent, encode_payload
from swarmkeep.domain.errors import DomainError
from swarmkeep.domain.events import (
    ApprovalDecided,
    ApprovalRequested,
    CompletionRecord,
    ContextUpdated,
    GuardrailTripped,
    HandoffIgnored,
    HandoffMade,
    MessageAdded,
    PendingCall,
    RequestRecord,
    RunCancelled,
    RunCompleted,
    RunError,
    RunFailed,
    RunHidden,
    RunInterrupted,
    RunQueued,
    RunResumed,
    RunStarted,
    RunWaiting,
    SessionCreated,
    SessionEvent,
    SessionForked,
    SessionImported,
    SessionRedacted,
    SessionUpdated,
    ToolRecord,
    ToolStarted,
    UnknownFact,
    Usage,
)
from swarmkeep.domain.facts.compaction import CompactionFailed, CompactionStarted, CompactionSummarised
from swarmkeep.domain.facts.history import MessageRemoved
from swarmkeep.domain.facts.takeovers import SessionHandedBack, SessionTakenOver
from swarmkeep.domain.facts.tools import ListedTool, ToolsListed
from swarmkeep.domain.fold import evolve, fold
from swarmkeep.domain.patch import diff
from swarmkeep.domain.request import Profile
from swarmkeep.domain.run_options import RunOptions
from swarmkeep.domain.state import Run, State, ToolCall
from swarmkeep.domain.views import collect_runs

T = TypeVar("T")


class Dice(Protocol):
    """Where chance comes from."""

    def pick(self, options: Sequence[T]) -> T: ...

    def chance(self, percent: int) -> bool: ...


class SeededDice:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pick(self, options: Sequence[T]) -> T:
        return self._random.choice(options)

    def chance(self, percent: int) -> bool:
        return self._random.randrange(100) < percent


class DrawnDice:
    """Hypothesis's. What is picked shrinks towards the first option, and a chance towards no."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self._draw = draw

    def pick(self, options: Sequence[T]) -> T:
        picked: T = options[self._draw(st.integers(0, len(options) - 1))]
        return picked

    def chance(self, percent: int) -> bool:
        return bool(self._draw(st.integers(0, 99)) >= 100 - percent)


# What people and models write.

DEEP = 150
TEXTS = (
    "hello", "", " ", "Grüße, 世界 😀", "e\u0301 and \u00e9", "NUL \0 inside", "a lone \ud800 surrogate", "\udfff",
    'quotes " and \\ and \n lines', "\u2028", '{"role": "system"}', "long " * 100,
)  # fmt: skip
ARGUMENTS = (
    "{}", '{"city": "Oslo"}', ' {"n": 1.0, "n": 1} ', "", "null", "[]", '"text"', "7", '{"a":', "{'a': 1}", "{}{}",
    "\0",
    '{"a": NaN}', '{"a": 1e400}', '{"a": Infinity}', '{"a": %s}' % ("9" * 5000), '{"a": "\ud800"}', '{"a": "\\ud800"}',
    '{"a": "\0"}', '{"a": "\\u0000"}', '{"a":' * 1500, '{"a":' * 1500 + "1" + "}" * 1500, "[" * 5000, "not json",
)  # fmt: skip
_NESTED: Any = 1
for _ in range(DEEP):
    _NESTED = {"deeper": _NESTED}
VALUES = (
    1, None, True, False, 0, 1.0, -0.0, 2**63, -(2**63) - 1, 10**40, 5e-324, 1.7976931348623157e308, 0.1, "", "text",
    "\ud800", [], {}, [None], {"a": None}, {"a": {"b": None}}, [1, {"c": None}, [True]], {"": {"~/": 1}}, _NESTED,
)  # fmt: skip
KEYS = ("city", "user", "", "a/b", "~", "~1", "\ud800", "é")
TOOLS = ("look_up", "transfer_to_b", "transfer_to_c", "remember", "forget", "danger", "explode", "no such tool!", "")
DANGEROUS = ("danger", "forget")
CONCURRENT = ("look_up", "remember", "forget", "transfer_to_c")
AGENTS = ("a", "b", "c", "ä \ud800")
USAGES: tuple[Json | None, ...] = (
    {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}, None, {}, {"total_tokens": "many"},
    {"prompt_tokens": None, "details": {"cached": 1}},
)  # fmt: skip
PROFILES = tuple(
    Profile(name="a", model="m", instructions=text, tools=tools, tool_choice=choice)
    for text in ("You are helpful.", "", "\ud800 \0")
    for tools, choice in (
        (None, None),
        ('[{"type":"function","function":{"name":"look_up","parameters":{}}}]', "auto"),
        ('[{"type":"function","function":{"name":"danger"}}]', {"type": "function", "function": {"name": "danger"}}),
    )
)


def make_messy_history(dice: Dice) -> list[Json]:
    """Messages as an import may bring them: results without calls, calls without results, ids used again, late ones."""
    return [_make_messy_message(dice) for _ in range(dice.pick(range(7)))]


def _make_messy_message(dice: Dice) -> Json:
    role = dice.pick(("user", "assistant", "tool", "assistant", "tool", "system", "developer"))
    message: Json = {"role": role, "content": dice.pick(TEXTS)}
    if role == "tool":
        message["tool_call_id"] = dice.pick(("h1", "h2", "h3"))
    elif dice.chance(20):
        message["name"] = dice.pick(("John", "John Smith", "", "a|b\ud800"))
    if role == "assistant" and dice.chance(60):
        message["tool_calls"] = [
            {
                "id": dice.pick(("h1", "h2", "h3")),
                "type": "function",
                "function": {"name": dice.pick(TOOLS), "arguments": dice.pick(ARGUMENTS)},
            }
            for _ in range(dice.pick(range(4)))
        ]
        message["content"] = dice.pick((None, "", "Let me see."))
    if role == "user" and dice.chance(20):
        message["content"] = [{"type": "text", "text": dice.pick(TEXTS)}]
    if dice.chance(20):
        message |= {"sender": "somebody", "seq": 99, "annotations": [], "refusal": None}
    return message


def record_drafts(drafts: Iterable[EventDraft]) -> list[RecordedEvent]:
    """The drafts as a log: numbered from 1, hashed one onto the other."""
    events: list[RecordedEvent] = []
    for draft in drafts:
        events.append(record_draft(draft, events[-1].seq if events else 0, events[-1].hash if events else ""))
    return events


def record_draft(draft: EventDraft, seq: int, previous: str) -> RecordedEvent:
    """The draft as the event after event `seq`."""
    fact = draft.fact
    payload = encode_text(fact.data) if isinstance(fact, UnknownFact) else encode_payload(fact)
    seq += 1
    return RecordedEvent(
        session_id="session",
        seq=seq,
        type="agent.dreamed" if isinstance(fact, UnknownFact) else fact.type,
        version=fact.version,
        run_id=draft.run_id,
        agent=draft.agent,
        at=f"2026-01-01T{seq // 3600:02}:{seq // 60 % 60:02}:{seq % 60:02}.000000Z",
        hash=hashlib.sha256(f"{previous}{payload}".encode()).hexdigest(),
        payload=payload,
        fact=fact,
    )


_CALLS_AT_ONCE = Approvals(find_batch=lambda state, run: find_batch(run, CONCURRENT, ()))


class RandomSession:
    """A session that is being lived: its log so far, and what may happen to it next.

    `commits` are its appends, in the form that a store takes; a fork begins anew with what it copied.
    """

    def __init__(self, dice: Dice) -> None:
        self.dice = dice
        self.state = State()
        self.events: list[RecordedEvent] = []
        self.commits: list[list[EventDraft]] = []
        self._started_here: set[tuple[str, int]] = set()
        self._id_count = 0

    def commit(self, drafts: Sequence[EventDraft]) -> list[EventDraft]:
        """Append the drafts with what follows from them, as the loop does."""
        settled = settle(self.state, drafts, approvals=_CALLS_AT_ONCE)
        for draft in settled:
            event = record_draft(draft, self.state.seq, self.state.hash)
            self.events.append(event)
            self.state = evolve(self.state, event)
            if isinstance(draft.fact, ToolStarted):
                self._started_here.add((draft.fact.tool_call_id, draft.fact.attempt))
        if settled:
            self.commits.append(settled)
        return settled

    def create(self) -> None:
        dice = self.dice
        agent = dice.pick(AGENTS)
        facts = create_session(agent, self._make_context(), {"label": dice.pick(VALUES)}, make_messy_history(dice))
        self.commit(draft_events(agent, facts, None))

    def advance(self) -> bool:
        """Do what comes next, if anything does; what the model and the tools answer is up to the dice."""
        run = self.state.run
        match next_step(self.state):
            case None:
                return False
            case AskModel() if run is not None:
                self._answer_as_model(run)
            case Compact():
                self._sum_up()
            case CallTool(call=call) if run is not None and call.attempts:
                self._answer_call(run, call)
            case CallTools(calls=calls) if run is not None:
                self._answer_call(run, self.dice.pick(calls))
            case _:
                self.commit([])
        return True

    def disrupt(self) -> None:
        """Something from outside, or a mishap. What the session refuses leaves no trace."""
        moves = [self.start, self.update, self.resume, self.cancel, self.add_unknown_event, self.fork, self.carry_over]
        moves += [self.remove, self.hide, self.compact, self.list_tools, self.take_over]
        if self.state.taken_over is not None:
            moves += [self.answer, self.hand_back] * 4
        if self.state.run is not None and self.state.run.status == "running":
            moves += [self.crash, self.crash, self.give_up, self.fail, self.cut_off]
        if self.state.run is not None and self.state.run.status == "waiting":
            moves += [self.resume] * 8
        self.dice.pick(moves)()

    def start(self) -> None:
        dice = self.dice
        command = StartRun(
            run_id=self._new_id("run"),
            messages=tuple(
                make_messy_history(dice) if dice.chance(20) else [{"role": "user", "content": dice.pick(TEXTS)}]
            ),
            options=RunOptions(
                max_turns=dice.pick((None, 0, 1, 2, 5)),
                model=dice.pick((None, "other")),
                execute_tools=not dice.chance(25),
                stream=dice.chance(50),
            ),
            agent=dice.pick((None, None, *AGENTS)),
            context_variables=dice.pick(({}, {"run": self._id_count}, {"city": None})),
            idempotency_key=dice.pick((None, "key")),
            on_busy=dice.pick(("queue", "reject", "interrupt")),
        )
        if command.on_busy == "interrupt" and self.state.run is not None:
            self.commit(cancel_run(self.state, self.state.run.id))
        self._commit_unless_refused(lambda: start_run(self.state, command))

    def remove(self) -> None:
        """Take a message out, or one call of it; or something that is neither."""
        dice = self.dice
        seq = dice.pick([entry.seq for entry in self.state.messages] or [1])
        call_id = dice.pick((None, "call_0", "call_1", "h1")) if dice.chance(50) else None
        self._commit_unless_refused(lambda: remove_message(self.state, seq, call_id, dice.pick((None, "me"))))

    def hide(self) -> None:
        run_id = self.dice.pick([run.id for run in collect_runs(self.state)] or ["nobody"])
        self._commit_unless_refused(lambda: hide_run(self.state, run_id, self.dice.pick((None, "me"))))

    def list_tools(self) -> None:
        """A server offers other tools than before, or cannot be asked."""
        tools = tuple(ListedTool(name=name) for name in self.dice.pick(((), ("read",), ("read", "write"))))
        fact = ToolsListed(server="files", tools=tools) if tools else ToolsListed(server="files", error="gone")
        self.commit(draft_events(self.state.agent, [fact], self._active_run_id))

    def compact(self) -> None:
        """Begin to make the history shorter for the model."""
        dice = self.dice
        plan = CompactionPlan(
            reason=dice.pick(("tokens", "too_long", "asked")),
            keep_turns=dice.pick((1, 2, 4)),
            result_characters=dice.pick((4, 100)),
            of_tokens=dice.pick((None, 100)),
            by=dice.pick((None, "me")),
        )
        started = None if self.state.compaction is not None else plan_compaction(self.state, plan)
        if started is not None:
            self.commit(draft_events(self.state.agent, [started], self._active_run_id))

    def take_over(self) -> None:
        dice = self.dice
        by, note, force = dice.pick((None, "Lee", "Ana")), dice.pick((None, "I do")), dice.chance(50)
        self._commit_unless_refused(lambda: take_over(self.state, by=by, note=note, force=force))

    def answer(self) -> None:
        by = self.dice.pick((None, "Lee", "Ana"))
        self._commit_unless_refused(lambda: answer(self.state, self.dice.pick(TEXTS) or "yes", by=by))

    def hand_back(self) -> None:
        note = self.dice.pick((None, "be kind", "\ud800"))
        self._commit_unless_refused(lambda: hand_back(self.state, by="Lee", note=note, force=True))

    @property
    def _active_run_id(self) -> str | None:
        return None if self.state.run is None else self.state.run.id

    def _sum_up(self) -> None:
        dice, state = self.dice, self.state
        assert state.compaction is not None
        request, piece = build_summary_request(state, "m", 2_000)
        fact: SessionEvent = CompactionFailed(code="provider_error", message=dice.pick(TEXTS))
        if dice.chance(80):
            fact = CompactionSummarised(
                first_seq=piece.first_seq,
                last_seq=piece.last_seq,
                summary=f"summary {dice.pick(TEXTS)}",
                characters=2_000,
                completion=CompletionRecord(model="m", usage=dice.pick(USAGES), request=request.record),
            )
        self.commit(draft_events(state.agent, [fact], self._active_run_id))

    def update(self) -> None:
        dice = self.dice
        facts = update_session(
            self.state,
            agent=dice.pick((None, *AGENTS)),
            context_variables={dice.pick(KEYS): dice.pick(VALUES)},
            metadata=dice.pick((None, {"label": dice.pick(VALUES)})),
        )
        self.commit(draft_events(self.state.agent, facts, None if self.state.run is None else self.state.run.id))

    def resume(self) -> None:
        """Answer some of what the run waits for, in any order; or try an interrupted run again."""
        dice, run = self.dice, self.state.run
        if run is None:
            run_id = self.state.finished[-1].id if self.state.finished else "nobody"
            return self._commit_unless_refused(lambda: resume_run(self.state, run_id))
        approvals, answers = [], []
        pending = [call for call in run.pending if dice.chance(70)]
        for call in reversed(pending) if dice.chance(30) else pending:
            if call.reason == "approval":
                decision = dice.pick(("approve", "deny"))
                reason = dice.pick((None, "no", "\ud800"))
                edited = {"city": dice.pick(VALUES)} if decision == "approve" and dice.chance(30) else None
                approvals.append(
                    Approval(
                        tool_call_id=call.tool_call_id, decision=decision, reason=reason, by="me", arguments=edited
                    )
                )
            else:
                answer = ToolAnswer(tool_call_id=call.tool_call_id, content=dice.pick(TEXTS), is_error=dice.chance(20))
                answers.append(answer)
        return self._commit_unless_refused(lambda: resume_run(self.state, run.id, answers, approvals))

    def cancel(self) -> None:
        runs = [queued.run_id for queued in self.state.queue]
        runs += [] if self.state.run is None else [self.state.run.id]
        if runs and self.dice.chance(50):
            self.commit(cancel_run(self.state, self.dice.pick(runs)))

    def fork(self) -> None:
        """Go on in a copy of the first few events, or of all of them."""
        if self.dice.chance(70):
            return
        kept = self.events[: self.dice.pick(range(1, len(self.events) + 1))]
        self.events, self.state = list(kept), fold(kept)
        copied = [EventDraft(event.fact, event.run_id, event.agent) for event in kept]
        fact = SessionForked(from_session_id="original", from_seq=self.state.seq, from_hash=self.state.hash)
        self.commits = [copied + self.commit([EventDraft(fact, None, self.state.agent)])]

    def carry_over(self) -> None:
        """Go on elsewhere, where it was imported."""
        if self.dice.chance(70):
            return
        self._started_here.clear()
        self.commit(finish_import(self.state, source="export", digest="", by=self.dice.pick((None, "Lee"))))

    def add_unknown_event(self) -> None:
        """An event of a later release, or a redaction."""
        facts: list[SessionEvent] = [
            UnknownFact(data={"dream": self.dice.pick(VALUES)}),
            SessionRedacted(seqs=(1,), reason=self.dice.pick(TEXTS)),
        ]
        self.commit([EventDraft(self.dice.pick(facts), None, self.state.agent)])

    def crash(self) -> None:
        """The process dies, and another one takes over."""
        self._started_here.clear()
        assert self.state.run is not None
        self.commit([EventDraft(RunResumed(reason="recovery"), self.state.run.id, self.state.agent)])

    def give_up(self) -> None:
        error = RunError(code="too_many_recoveries", message="in vain")
        self._end_run(lambda run: end_run(self.state, run, RunInterrupted, "interrupted", error))

    def fail(self) -> None:
        error = RunError(code="provider_error", message=self.dice.pick(TEXTS), retryable=True, provider_status=503)
        self._end_run(lambda run: end_run(self.state, run, RunFailed, "error", error, partial=self._pick_partial()))

    def cut_off(self) -> None:
        """A cancel while the model speaks: what it had said by then is kept."""
        assert self.state.run is not None
        self.commit(cancel_run(self.state, self.state.run.id, self._pick_partial()))

    def _pick_partial(self) -> PartialReply:
        state = self.state
        if state.run is None or not isinstance(next_step(state), AskModel):
            return NOTHING_SAID
        return PartialReply(run_id=state.run.id, seq=state.seq, agent=state.agent, text=self.dice.pick(TEXTS))

    def _end_run(self, facts: Callable[[Run], list[SessionEvent]]) -> None:
        assert self.state.run is not None
        self.commit(draft_events(self.state.agent, facts(self.state.run), self.state.run.id))

    def _commit_unless_refused(self, decide: Callable[[], list[EventDraft]]) -> None:
        try:
            self.commit(decide())
        except DomainError:
            return

    def _answer_as_model(self, run: Run) -> None:
        dice = self.dice
        calls = [self._make_call() for _ in range(dice.pick((0, 1, 2, 3, 4)))]
        message: Json = {"role": "assistant", "content": dice.pick(TEXTS), "sender": self.state.agent}
        if calls:
            message |= {"tool_calls": calls, "content": dice.pick((None, "", "Let me see."))}
        completion = CompletionRecord(
            id="chatcmpl-1",
            model="m",
            finish_reason="tool_calls" if calls else "stop",
            usage=dice.pick(USAGES),
            duration_ms=12.5,
            request=RequestRecord(instructions="0" * 64, tools=None, params={"model": "m"}),
        )
        expires_at = dice.pick((None, "2026-01-02T00:00:00.000000Z"))
        trip = Trip(name="g", message=dice.pick(TEXTS) or "no", error=dice.pick((None, "KeyError")))
        entries = find_new_input(self.state, run, self.state.agent)
        if entries and dice.chance(7):
            self.commit(draft_events(self.state.agent, refuse_input(self.state.agent, trip, entries), run.id))
            return
        if dice.chance(5):
            facts = refuse_reply(self.state.agent, trip, "secret", completion)
            self.commit(draft_events(self.state.agent, facts, run.id))
            return
        facts = record_reply(run, message, completion, needs_approval=DANGEROUS, expires_at=expires_at)
        self.commit(draft_events(self.state.agent, facts, run.id))

    def _make_call(self) -> Json:
        dice = self.dice
        # Some servers count the ids anew each turn, and a few give the same one twice.
        call_id = dice.pick((self._new_id("call"), "call_0", "\ud800")) if dice.chance(20) else self._new_id("call")
        function = {"name": dice.pick(TOOLS), "arguments": dice.pick(ARGUMENTS)}
        return {"id": call_id, "type": "function", "function": function}

    def _answer_call(self, run: Run, call: ToolCall) -> None:
        if (call.id, call.attempts) in self._started_here:
            self._started_here.discard((call.id, call.attempts))
            outcome = self._make_outcome(call)
        elif self.dice.chance(50):
            self.commit(draft_events(call.agent or self.state.agent, [start_tool(call)], run.id))
            return
        else:
            outcome = ToolOutcome(status="unknown_outcome", content="It may or may not have taken effect.")
        self.commit(draft_events(self.state.agent, record_result(self.state, run, call, outcome), run.id))

    def _make_outcome(self, call: ToolCall) -> ToolOutcome:
        if call.name.startswith("transfer_to_"):
            to = call.name.removeprefix("transfer_to_")
            return ToolOutcome(status="ok", content=f"Transferred to {to}.", handoff=to)
        if call.name in ("remember", "forget"):
            patch, nulls = diff(self.state.context_variables, self._change_context(call.name == "forget"))
            values = {self.dice.pick(KEYS): self.dice.pick(VALUES)} if self.dice.chance(20) else {}
            return ToolOutcome(status="ok", content="done", patch=patch, nulls=nulls, values=values)
        if call.name == "look_up":
            return ToolOutcome(status="ok", content=self.dice.pick(TEXTS), duration_ms=1.5)
        if self.dice.chance(20):
            return ToolOutcome(status="refused", content="Refused.", trip=Trip(name="g", message="no"))
        return ToolOutcome(status=self.dice.pick(("error", "timeout")), content=f"Error: {call.name}")

    def _change_context(self, forget: bool) -> Json:
        context = dict(self.state.context_variables)
        if forget and context:
            del context[self.dice.pick(sorted(context))]
        return {**context, self.dice.pick(KEYS): self.dice.pick(VALUES)}

    def _make_context(self) -> Json:
        return {self.dice.pick(KEYS): self.dice.pick(VALUES) for _ in range(self.dice.pick(range(3)))}

    def _new_id(self, kind: str) -> str:
        self._id_count += 1
        return f"{kind}_{self._id_count}"


def make_random_session(dice: Dice, *, moves: int = 20) -> RandomSession:
    """A session in which that many things happen, most of them what comes next."""
    session = RandomSession(dice)
    session.create()
    session.start()
    for _ in range(moves):
        if dice.chance(20) or not session.advance():
            session.disrupt()
    return session


def make_random_log(dice: Dice, *, moves: int = 20) -> list[RecordedEvent]:
    return make_random_session(dice, moves=moves).events


# What no server ever wrote.

_STRANGE_CALLS: tuple[Any, ...] = (
    None, "calls", {}, [], [None], [{}], [{"id": "x1"}], [{"id": None, "function": {"name": "f", "arguments": "{}"}}],
    [{"id": "x1", "function": None}], [{"id": "x1", "type": "custom", "custom": {"name": "f", "input": "text"}}],
    [{"id": "x1", "function": {"name": None, "arguments": None}}], [{"id": ["x1"], "function": {"name": "f"}}],
    [{"id": "x1", "function": {"name": "a b" * 50, "arguments": {"already": "an object"}}}] * 2,
    [{"id": "", "function": {"name": "f"}}, {"id": "\ud800", "function": {}}, {"id": "\ud801", "function": {}}],
)  # fmt: skip
_STRANGE_IDS: tuple[Any, ...] = ("x1", "h1", "call_1", "call_0", "\ud800", "\ufffd", "", None, 7, ["x1"], {"id": "x1"})
_STRANGE_CONTENT: tuple[Any, ...] = (
    "text", None, [], [None], ["text"], [{}], [{"type": 1}], [{"type": "text", "text": "\ud800"}], {"type": "text"}, 7,
    False, [{"type": "text", "text": None}, {"type": "image_url", "image_url": {"url": "data:,"}}],
)  # fmt: skip


def _make_strange_message(dice: Dice) -> Json:
    """Anything that is an object."""
    message: Json = {
        "role": dice.pick(("tool", "assistant", "user", "assistant", "tool", "function", "", None, 1, ["user"])),
        "content": dice.pick(_STRANGE_CONTENT),
        "tool_call_id": dice.pick(_STRANGE_IDS),
        "tool_calls": dice.pick(_STRANGE_CALLS),
        "name": dice.pick((None, "John Smith", 7, {"first": "John"}, "\ud800")),
        "refusal": dice.pick((None, "No.", 7)),
        "function_call": {"name": "f", "arguments": "{}"},
    }
    return {key: value for key, value in message.items() if dice.chance(70)}


def make_strange_fact(dice: Dice) -> SessionEvent:
    """A fact that has the shape of one and makes no sense where it stands."""
    call_id = dice.pick([item for item in _STRANGE_IDS if isinstance(item, str)])
    name, agent, text = dice.pick(TOOLS), dice.pick(AGENTS), dice.pick(TEXTS)
    arguments = dice.pick(ARGUMENTS)
    values = {dice.pick(KEYS): dice.pick(VALUES)}
    pending = PendingCall(tool_call_id=call_id, name=name, arguments=arguments, reason="approval")
    usage = Usage(prompt_tokens=-1, total_tokens=2**70)
    ending: Json = {"stop_reason": dice.pick(("end_turn", "error", "approval")), "usage": usage}
    makers: list[Callable[[], SessionEvent]] = [
        lambda: MessageAdded(message=_make_strange_message(dice)),
        lambda: MessageAdded(message=_make_strange_message(dice), completion=CompletionRecord(usage=dice.pick(USAGES))),
        lambda: MessageAdded(
            message=_make_strange_message(dice), tool=ToolRecord(name=name, status="ok", handoff=agent)
        ),
        lambda: MessageAdded(
            message=_make_strange_message(dice),
            tool=dice.pick((None, ToolRecord(name=name, status="ok", output=True))),
            correction=dice.pick((UNSET, 0, -1, 2**40)),
        ),
        lambda: SessionCreated(agent=agent, context_variables=values, metadata=values),
        lambda: SessionForked(from_session_id=text, from_seq=-1, from_hash=""),
        lambda: SessionImported(source=text, digest=text, last_seq=-1, by=text),
        lambda: SessionUpdated(metadata=values) if dice.chance(50) else SessionUpdated(agent=agent),
        lambda: SessionRedacted(seqs=(1, 1, 10**6), reason=text),
        lambda: MessageRemoved(
            message_seq=dice.pick((-1, 0, 2, 3, 4, 5, 2**70)),
            tool_call_id=dice.pick((None, call_id)),
            seqs=dice.pick(((), (2,), (3, 4), (4, 4, 4), (-1, 9, 2**70), (5, 3, 2))),
            by=text,
            content=dice.pick((UNSET, True, False)),
        ),
        lambda: RunHidden(by=text, part=dice.pick((UNSET, 0, 1, -1, 2**70))),
        lambda: CompactionStarted(
            reason=text,
            keep_turns=-1,
            last_seq=dice.pick((0, 3, -1, 2**70)),
            shortened=(3, 3, -1, 2**70),
            result_characters=dice.pick((0, 1, -5, 100)),
            piece_characters=dice.pick((0, -1, 50)),
        ),
        lambda: CompactionSummarised(
            first_seq=dice.pick((0, 2, -1)), last_seq=dice.pick((1, 4, 9, -1, 2**70)), summary=text, characters=-1
        ),
        lambda: CompactionFailed(code=text, message=text),
        lambda: ToolsListed(server=text, tools=(ListedTool(name=text, tool=text, idempotent=True),), schemas=None),
        lambda: ToolsListed(server=text, error=text),
        lambda: RunQueued(options=RunOptions(), messages=(_make_strange_message(dice),), agent=agent),
        lambda: RunStarted(options=RunOptions(max_turns=dice.pick((None, 0, -1, 2**63)), model=text)),
        lambda: RunStarted(
            options=RunOptions(
                model_settings={"messages": [], "tools": values, "seed": 1, "extra_body": dice.pick((1, {"n": 2}))},
                instructions=text,
                response_format=dice.pick((UNSET, {}, {"type": ["text"]})),
            )
        ),
        lambda: ToolStarted(tool_call_id=call_id, name=name, arguments=arguments, attempt=dice.pick((1, 0, -1, 9))),
        lambda: GuardrailTripped(
            stage=dice.pick(("input", "output", "tool", text)),
            name=name,
            message=text,
            messages=dice.pick((UNSET, (), (1, 2, 3), (5, 5, -1, 2**40), tuple(range(40)))),
            tool_call_id=dice.pick((UNSET, call_id)),
        ),
        lambda: MessageAdded(message=_make_strange_message(dice), guardrail=name),
        lambda: HandoffMade(from_agent=agent, to_agent=text, tool_call_id=call_id),
        lambda: HandoffIgnored(from_agent=agent, to_agent=text, tool_call_id=dice.pick((None, call_id))),
        lambda: ContextUpdated(patch=values, nulls=dice.pick(((), ("",), ("/",), ("/~/a",), ("/city/x/y", "/city")))),
        lambda: ApprovalRequested(tool_call_id=call_id, name=name, arguments=arguments),
        lambda: ApprovalDecided(
            tool_call_id=call_id, decision=dice.pick(("approve", "deny")), arguments=dice.pick((UNSET, arguments))
        ),
        lambda: SessionTakenOver(by=text, note=text) if dice.chance(50) else SessionHandedBack(by=text, note=text),
        lambda: MessageAdded(message=_make_strange_message(dice), person=text),
        lambda: RunWaiting(pending=dice.pick(((), (pending, pending), (PERSON,)))),
        lambda: RunResumed(reason=dice.pick(("approval", "tool_results", "recovery", "person"))),
        lambda: RunCompleted(**ending),
        lambda: RunFailed(**ending, error=RunError(code="x", message=text)),
        lambda: RunCancelled(**ending),
        lambda: RunInterrupted(**ending),
        lambda: UnknownFact(data=dice.pick(VALUES)),
    ]
    return dice.pick(makers)()


def make_hostile_log(dice: Dice, *, moves: int = 8) -> list[RecordedEvent]:
    """Two sessions' facts in each other's way, some lost, some twice, some exchanged, with nonsense in between."""
    drafts = [
        EventDraft(event.fact, event.run_id, event.agent)
        for session in (make_random_session(dice, moves=moves), make_random_session(dice, moves=moves // 2))
        for event in session.events
    ]
    for _ in range(dice.pick(range(12))):
        place = dice.pick(range(len(drafts) + 1))
        other = dice.pick(range(len(drafts) + 1))
        match dice.pick(("insert", "insert", "insert", "lose", "repeat", "exchange", "another run")):
            case "insert":
                run_id = dice.pick((None, "run_1", "run_2", ""))
                drafts.insert(place, EventDraft(make_strange_fact(dice), run_id, dice.pick(AGENTS)))
            case "lose":
                del drafts[place : place + dice.pick((1, 3, 8))]
            case "repeat":
                drafts[other:other] = drafts[place : place + dice.pick((1, 3))]
            case "exchange" if max(place, other) < len(drafts):
                drafts[place], drafts[other] = drafts[other], drafts[place]
            case "another run" if place < len(drafts):
                drafts[place] = replace(drafts[place], run_id=dice.pick((None, "run_1", "run_99")))
    return record_drafts(drafts[dice.pick((0, 0, 1, 3)) :])


# Strategies.


@st.composite
def random_sessions(draw: st.DrawFn, *, moves: int = 20) -> RandomSession:
    """Sessions as a server records them."""
    return make_random_session(DrawnDice(draw), moves=draw(st.integers(0, moves)))


def random_logs(*, moves: int = 20) -> st.SearchStrategy[list[RecordedEvent]]:
    """The events of `conversations`."""
    return random_sessions(moves=moves).map(lambda session: session.events)


@st.composite
def hostile_logs(draw: st.DrawFn, *, moves: int = 8) -> list[RecordedEvent]:
    """Logs that no server wrote: every event can be read, and nothing else is sure."""
    return make_hostile_log(DrawnDice(draw), moves=draw(st.integers(0, moves)))


def any_logs() -> st.SearchStrategy[list[RecordedEvent]]:
    return st.one_of(random_logs(), hostile_logs())


def profiles() -> st.SearchStrategy[Profile]:
    return st.sampled_from(PROFILES)


def texts(max_size: int = 12) -> st.SearchStrategy[str]:
    """Any text that JSON can tell from others: NUL and lone surrogates too. A pair of them is one character."""
    return st.text(st.characters(exclude_categories=()), max_size=max_size).map(
        lambda text: text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    )


def json_values(max_leaves: int = 12) -> st.SearchStrategy[Any]:
    """Whatever JSON holds."""
    scalars = (
        st.none()
        | st.booleans()
        | st.integers(-(10**40), 10**40)
        | st.floats(allow_nan=False, allow_infinity=False)
        | texts()
        | st.sampled_from((0, 0.0, -0.0, 1, 1.0, True, False, 2**63, 2**64, -(2**63) - 1))
    )
    return st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | _objects(inner), max_leaves=max_leaves)


def json_objects(max_leaves: int = 12) -> st.SearchStrategy[Json]:
    return _objects(json_values(max_leaves))


def _objects(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    # Few keys, so that two objects often share some.
    return st.dictionaries(st.sampled_from(("a", "b", "", "/", "~", "~1")) | texts(3), values, max_size=4)
