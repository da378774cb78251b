"""A session as a server records it, driven by `next_step` and the commands, with whatever may happen to one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from swarmkeep.decide.commands import (
    Approval,
    StartRun,
    ToolAnswer,
    cancel_run,
    create_session,
    resume_run,
    start_run,
    update_session,
)
from swarmkeep.decide.drafts import draft_events
from swarmkeep.decide.people import answer, hand_back, hide_run, hold, release, remove_message, take_over
from swarmkeep.decide.settle import Approvals, finish_import, settle
from swarmkeep.decide.steps import AskModel, CallTool, CallTools, Compact, next_step
from swarmkeep.decide.turns import (
    ToolOutcome,
    Trip,
    end_run,
    find_batch,
    find_new_input,
    record_reply,
    record_result,
    refuse_history,
    refuse_input,
    refuse_reply,
    start_tool,
)
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import DomainError
from swarmkeep.events.facts import (
    CompactionFailed,
    CompactionStarted,
    CompactionSummarised,
    EventDraft,
    FeedbackAdded,
    ListedTool,
    NoteAdded,
    RecordedEvent,
    RunError,
    RunFailed,
    RunInterrupted,
    RunResumed,
    SessionAssigned,
    SessionEvent,
    SessionForked,
    SessionRedacted,
    ToolsListed,
    ToolStarted,
    UnknownFact,
)
from swarmkeep.events.fold import evolve, fold
from swarmkeep.events.patch import diff
from swarmkeep.events.records import CompletionRecord, RequestRecord, RunOptions
from swarmkeep.events.state import NOTHING_SAID, PartialReply, Run, State, ToolCall
from swarmkeep.events.views import collect_runs
from swarmkeep.request.compaction import build_summary_request, plan_compaction
from tests.support.logs.dice import Dice
from tests.support.logs.recording import record_draft
from tests.support.logs.words import (
    AGENTS,
    ARGUMENTS,
    CONCURRENT,
    DANGEROUS,
    KEYS,
    TEXTS,
    TOOLS,
    USAGES,
    VALUES,
    make_messy_history,
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
        moves += [self.remove, self.hide, self.compact, self.list_tools, self.take_over, self.hold]
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
        plan = CompactionStarted(
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

    def hold(self) -> None:
        if self.state.hold is not None and self.dice.chance(50):
            self._commit_unless_refused(lambda: release(self.state, by="Lee"))
        else:
            self._commit_unless_refused(lambda: hold(self.state, reason=self.dice.pick(("a case", "b")), by="Lee"))

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
            SessionAssigned(to=self.dice.pick((None, "billing")), by="Lee"),
            NoteAdded(text=self.dice.pick(TEXTS), by="Lee"),
            FeedbackAdded(seq=self.dice.pick(range(1, self.state.seq + 1)), value=self.dice.pick(("up", "down"))),
        ]
        self.commit([EventDraft(self.dice.pick(facts), None, self.state.agent)])

    def crash(self) -> None:
        """The process dies, and another one takes over."""
        self._started_here.clear()
        self.commit([EventDraft(RunResumed(reason="recovery"), self.state.run.id, self.state.agent)])

    def give_up(self) -> None:
        error = RunError(code="too_many_recoveries", message="in vain")
        self._end_run(lambda run: end_run(self.state, run, RunInterrupted, "interrupted", error))

    def fail(self) -> None:
        error = RunError(code="provider_error", message=self.dice.pick(TEXTS), retryable=True, provider_status=503)
        self._end_run(lambda run: end_run(self.state, run, RunFailed, "error", error, partial=self._pick_partial()))

    def cut_off(self) -> None:
        """A cancel while the model speaks: what it had said by then is kept."""
        self.commit(cancel_run(self.state, self.state.run.id, self._pick_partial()))

    def _pick_partial(self) -> PartialReply:
        state = self.state
        if state.run is None or not isinstance(next_step(state), AskModel):
            return NOTHING_SAID
        return PartialReply(run_id=state.run.id, seq=state.seq, agent=state.agent, text=self.dice.pick(TEXTS))

    def _end_run(self, facts: Callable[[Run], list[SessionEvent]]) -> None:
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
        new = find_new_input(self.state, run, self.state.agent)
        if new.entries and dice.chance(7):
            past = refuse_history([(trip, new.history[:2])] if new.history else [])
            facts = [*past, *refuse_input(self.state.agent, trip, new.entries)]
            self.commit(draft_events(self.state.agent, facts, run.id))
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
