"""Today's guardrails on what passed, or was refused, in a recorded conversation. What was decided then stands."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from msgspec import UNSET

from swarmkeep.agent import Agent, Tool
from swarmkeep.agent.guardrails import runs_in_replays
from swarmkeep.audit.replay.recorded_log import RecordedLog
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.guardrails import InputVerdict, NewInput, Trip, find_new_input
from swarmkeep.domain.envelope import RecordedEvent, is_redacted
from swarmkeep.domain.events import GuardrailTripped, MessageAdded
from swarmkeep.domain.messages import Entry
from swarmkeep.domain.run_options import RunOptions
from swarmkeep.domain.state import Run, State, ToolCall
from swarmkeep.engine.agents.guardrails import Guards
from swarmkeep.engine.policy import LoopPolicy
from swarmkeep.engine.tool_runners import ToolRunner


class RecordedGuards(Guards):
    """Stands in for what asks guardrails; a verdict that would be another one today is noted.

    Those that ask somebody outside are not asked. Of a reply that was refused no text is kept, so nothing can be
    compared there.
    """

    def __init__(self, recording: RecordedLog, runner: ToolRunner, policy: LoopPolicy) -> None:
        super().__init__(runner, policy)
        self._recording = recording

    async def check_input(self, agent: Agent, state: State, run: Run) -> InputVerdict:
        new = find_new_input(state, run, agent.name)
        event = self._recording.next_event
        recorded = self._read_verdict(new)
        seqs = [run.first_seq, *(entry.seq for entry in (*new.history, *new.entries))]
        if self._recording.knows_context and not any(map(self._recording.is_redacted_at, seqs)):
            actual = await super().check_input(_without_outside(agent), state, run)
            asks_outside = _asks_outside(agent.input_guardrails)
            self._compare("input", event, recorded.trip, actual.trip, asks_outside)
            for before, after in zip_longest(recorded.past, actual.past):
                if before is None or after is None or before[1] != after[1]:
                    self._compare("history", event, before and before[0], after and after[0], asks_outside)
                    break
                self._compare("history", event, before[0], after[0], asks_outside)
        return recorded

    def _read_verdict(self, new: NewInput) -> InputVerdict:
        """The verdict that comes next in the recorded log."""
        known = {entry.seq: entry for entry in new.history}
        past: list[tuple[Trip, tuple[Entry, ...]]] = []
        for event in self._recording.list_next():
            if (trip := read_trip(event, "history")) is not None:
                assert isinstance(event.fact, GuardrailTripped)
                seqs = () if event.fact.messages is UNSET else event.fact.messages
                past.append((trip, tuple(known[seq] for seq in seqs if seq in known)))
                continue
            return InputVerdict(trip=read_trip(event, "input"), entries=new.entries, past=tuple(past))
        return InputVerdict(entries=new.entries, past=tuple(past))

    async def check_reply(
        self, agent: Agent, message: Json, context: Json, options: RunOptions
    ) -> tuple[Trip | None, str]:
        event = self._recording.next_event
        after = self._recording.event_after_next
        if isinstance(event.fact, MessageAdded) and event.fact.guardrail is not UNSET:
            return None if after is None else read_trip(after, "output"), ""
        if self._recording.knows_context:
            actual, _ = await super().check_reply(_without_outside(agent), message, context, options)
            self._compare("output", event, None, actual, _asks_outside(agent.output_guardrails))
        return None, ""

    async def compare_call(self, tool: Tool, call: ToolCall, context: Json, recorded: Trip | None) -> None:
        """Note where today's guardrails of a function would decide otherwise."""
        if self._recording.knows_context and self._recording.knows_arguments:
            guardrails = [each for each in tool.guardrails if runs_in_replays(each)]
            actual = await self.check_call(tool, call, context, guardrails)
            self._compare("tool", self._recording.next_event, recorded, actual, _asks_outside(tool.guardrails))

    def _compare(
        self, stage: str, event: RecordedEvent, recorded: Trip | None, actual: Trip | None, asks_outside: bool
    ) -> None:
        if recorded is not None and actual is None and asks_outside:
            return
        alike = (recorded is None) == (actual is None) if is_redacted(event) else recorded == actual
        if not alike:
            self._recording.note("guardrail", _describe(stage, recorded), _describe(stage, actual))


def read_trip(event: RecordedEvent, stage: str) -> Trip | None:
    """The refusal that an event records, if it does, at that stage."""
    fact = event.fact
    if not isinstance(fact, GuardrailTripped) or fact.stage != stage:
        return None
    return Trip(name=fact.name, message=fact.message, error=None if fact.error is UNSET else fact.error)


def _without_outside(agent: Agent) -> Agent:
    kept = {
        field: [each for each in getattr(agent, field) if runs_in_replays(each)]
        for field in ("input_guardrails", "output_guardrails")
    }
    return agent.model_copy(update=kept)


def _asks_outside(guardrails: Sequence[object]) -> bool:
    return not all(map(runs_in_replays, guardrails))  # type: ignore[arg-type]


def _describe(stage: str, trip: Trip | None) -> Json:
    """A verdict as it is shown beside the other one."""
    if trip is None:
        return {"stage": stage, "refused": False}
    told = {"stage": stage, "refused": True, "name": trip.name, "message": trip.message}
    return told if trip.error is None else {**told, "error": trip.error}
