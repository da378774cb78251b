"""The loop, cut after any commit or event: resumed, it comes to the same history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from swarmkeep import Agent, Result, ToolCallId, tool
from swarmkeep.decide.commands import StartRun, start_run
from swarmkeep.events.codec import Json
from swarmkeep.events.facts import RecordedEvent
from swarmkeep.events.fold import fold
from swarmkeep.events.messages import INTERRUPTED
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.loop import make_loop
from swarmkeep.runs.tool_runners import InlineRunner
from tests.runs.loop.memory import RUN, FixedPolicy, RememberingLog, ScriptedReplies, advance, make_calls, open_run
from tests.support.rules import find_body_faults


class Town:
    """Agents whose tools leave traces, and the replies that make them use every kind of tool."""

    def __init__(self) -> None:
        self.ran: list[str] = []

        def look(city: str) -> str:
            self.ran.append(f"look {city}")
            return f"rain in {city}"

        @tool(idempotent=True)
        def pay(amount: int, tool_call_id: ToolCallId) -> str:
            self.ran.append(f"pay {tool_call_id}")
            return f"paid {amount}"

        def remember(context_variables: Json, city: str) -> Result:
            self.ran.append("remember")
            context_variables["seen"] = [*context_variables["seen"], city]
            return Result("ok", context_variables={"last": city})

        def hand_over() -> Agent:
            self.ran.append("hand_over")
            return self.b

        def back() -> Agent:
            self.ran.append("back")
            return self.a

        def fail() -> str:
            self.ran.append("fail")
            raise RuntimeError("no")

        self.b = Agent(name="B", instructions=lambda context_variables: f"B {context_variables['last']}")
        self.b.functions = [back, pay]
        self.a = Agent(name="A", functions=[look, pay, remember, hand_over, fail])

    agents = property(lambda self: (self.a, self.b))

    @staticmethod
    def replies() -> list[Json | str]:
        return [
            make_calls(("1", "look", '{"city": "Oslo"}'), ("2", "remember", '{"city": "Oslo"}')),
            make_calls(("3", "pay", '{"amount": 5}'), ("4", "fail"), ("5", "nobody")),
            make_calls(("6", "hand_over"), ("7", "remember", '{"city": "Rome"}')),
            make_calls(("8", "pay", '{"amount": 6}'), ("9", "back"), text="Back to you."),
            "Done.",
        ]

    async def run_through(self) -> tuple[RememberingLog, ScriptedReplies]:
        log = await open_run(self.a, context={"seen": []})
        model = ScriptedReplies(*self.replies())
        await advance(log, model, *self.agents)
        return log, model


def strip_varying(events: Sequence[RecordedEvent]) -> list[tuple[Any, ...]]:
    """Events without what differs from one time to the next."""
    found = []
    for event in events:
        fact = event.fact
        data = {name: getattr(fact, name) for name in fact.__struct_fields__}
        if data.get("tool") is not None:
            data["tool"] = (data["tool"].name, data["tool"].status, data["tool"].handoff)
        found.append((event.seq, event.type, event.run_id, event.agent, repr(data)))
    return found


def find_open_start(events: Sequence[RecordedEvent]) -> Any:
    """The tool that had been started, and whose result was never recorded, if there is one."""
    run = fold(events).run
    started = [call for call in run.calls if call.attempts and not call.done] if run is not None else []
    return started[0] if started else None


@pytest.mark.parametrize("number", range(2, 17))
async def test_resume_after_any_commit_gives_same_history(number: int) -> None:
    whole, model = await Town().run_through()
    assert len(whole.commits) == 16
    before = [event for commit in whole.commits[:number] for event in commit]
    town, turns = Town(), sum(event.fact.completion is not None for event in before if event.type == "message.added")  # type: ignore[union-attr]
    log = RememberingLog(before)
    rest = ScriptedReplies(*town.replies()[turns:])
    await advance(log, rest, *town.agents)
    assert rest.left == []
    started = find_open_start(before)
    if started is None:
        assert strip_varying([*before, *log.events]) == strip_varying(whole.events)
        assert [asked.body() for asked in rest.asked] == [asked.body() for asked in model.asked[turns:]]
    elif started.name == "pay":
        again = log.events[0]
        assert (again.type, again.fact.tool_call_id, again.fact.attempt) == ("tool.started", started.id, 2)  # type: ignore[union-attr]
        # But for the second start, it is the same again; and the tool is given the same id.
        same = [(kind, run, agent, data) for _, kind, run, agent, data in strip_varying([*before, *log.events[1:]])]
        assert same == [(kind, run, agent, data) for _, kind, run, agent, data in strip_varying(whole.events)]
        assert town.ran[0] == f"pay {started.id}"
    else:
        assert log.events[0].fact.tool.status == "unknown_outcome"  # type: ignore[union-attr]
        results = [entry for entry in log.state.messages if entry.message.get("tool_call_id") == started.id]
        assert len(results) == 1
        assert "may or may not have taken effect" in results[0].message["content"]
        assert not any(ran.startswith(started.name) for ran in town.ran[:1])
        # The model is told.
        sent = next(message for message in rest.asked[0].messages if message.get("tool_call_id") == started.id)
        assert "may or may not have taken effect" in sent["content"]


async def test_cut_after_any_event_keeps_requests_valid() -> None:
    whole, _ = await Town().run_through()
    events = whole.events
    for end in range(2, len(events)):
        town = Town()
        log = RememberingLog(events[:end])
        model = ScriptedReplies(*[f"reply {n}" for n in range(5)])
        await advance(log, model, *town.agents)
        assert log.state.run is None
        for asked in model.asked:
            assert not find_body_faults(asked.body()), f"cut after event {end}"


async def test_recorded_start_of_this_loop_runs() -> None:
    town = Town()
    whole, _ = await town.run_through()
    before = [event for commit in whole.commits[:3] for event in commit]
    assert before[-1].type == "tool.started"
    town = Town()
    log = RememberingLog(before)
    await advance(log, ScriptedReplies("Done."), *town.agents, begun=before[-1:])
    assert town.ran[0] == "look Oslo"


async def test_repeatedly_cut_idempotent_tool_keeps_one_id() -> None:
    town = Town()
    log = await open_run(town.a, context={"seen": []})
    loop = make_loop(
        log,
        Registry(town.agents),
        ScriptedReplies(make_calls(("c", "pay", '{"amount": 1}'))),
        InlineRunner(),
        FixedPolicy(),
    )
    async for event in loop.advance():
        if event.type == "tool.started":  # type: ignore[union-attr]
            break
    for _ in range(3):
        loop = make_loop(log, Registry(town.agents), ScriptedReplies(), InlineRunner(), FixedPolicy())
        async for event in loop.advance():
            assert event.type == "tool.started"  # type: ignore[union-attr]
            break
    model = ScriptedReplies("Paid.")
    await advance(log, model, *town.agents)
    assert town.ran == ["pay c"]
    starts = [event.fact for event in log.events if event.type == "tool.started"]
    assert [(fact.tool_call_id, fact.attempt) for fact in starts] == [("c", n) for n in range(1, 6)]  # type: ignore[union-attr]


async def test_missing_tool_after_restart_has_unknown_outcome() -> None:
    town = Town()
    whole, _ = await town.run_through()
    cut = next(n for n, event in enumerate(whole.events) if event.type == "tool.started" and "pay" in repr(event.fact))
    log = RememberingLog(whole.events[: cut + 1])
    model = ScriptedReplies("I see.")
    await advance(log, model, Agent(name="A"), Agent(name="B"))
    statuses = [entry.tool.status for entry in log.state.messages if entry.tool]
    assert statuses[-3:] == ["unknown_outcome", "error", "error"]


async def test_interrupted_messages_are_completed_for_next_run() -> None:
    town = Town()
    whole, _ = await town.run_through()
    before = [event for commit in whole.commits[:3] for event in commit]
    log = RememberingLog(before)
    from swarmkeep.decide.commands import cancel_run

    await log.commit(lambda state: cancel_run(state, RUN))
    await log.commit(
        lambda state: start_run(state, StartRun(run_id="r2", messages=({"role": "user", "content": "?"},)))
    )
    model = ScriptedReplies("I see.")
    await advance(log, model, *town.agents)
    sent = model.asked[0].messages
    assert [message["content"] for message in sent if message["role"] == "tool"] == [INTERRUPTED] * 2
