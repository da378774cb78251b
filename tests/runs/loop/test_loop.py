"""The loop on a session in memory: what it commits together, what it waits for, and its one history when cut."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

import pytest

from swarmkeep import Agent, Result, ToolCallId, tool
from swarmkeep.decide.commands import Approval, resume_run
from swarmkeep.decide.drafts import draft_events
from swarmkeep.decide.settle import settle
from swarmkeep.events.codec import Json
from swarmkeep.events.facts import EventDraft, RecordedEvent, RunResumed
from swarmkeep.events.fold import fold
from swarmkeep.events.state import State
from swarmkeep.models.model import Deltas, Reply
from swarmkeep.request.request import ModelRequest
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.hub import MessageDeltas, MessageStarted
from swarmkeep.runs.loop import make_loop
from swarmkeep.runs.policy import Decide
from swarmkeep.runs.tool_runners import InlineRunner
from tests.runs.loop.memory import (
    RUN,
    FixedPolicy,
    RememberingLog,
    ScriptedReplies,
    advance,
    group_commits,
    list_types,
    make_calls,
    open_run,
)
from tests.support.rules import find_body_faults


async def test_each_tool_adds_one_commit() -> None:
    def look() -> str:
        return "rain"

    agent = Agent(name="A", functions=[look])
    log = await open_run(agent)
    await advance(
        log, ScriptedReplies(make_calls(("1", "look"), ("2", "look")), make_calls(("3", "look")), "Rain."), agent
    )
    assert group_commits(log) == [
        ["run.started", "message.added"],
        ["message.added", "tool.started"],
        ["message.added", "tool.started"],
        ["message.added"],
        ["message.added", "tool.started"],
        ["message.added"],
        ["message.added", "run.completed"],
    ]


async def test_recorded_events_are_given_once_in_order() -> None:
    def look() -> str:
        return "rain"

    agent = Agent(name="A", functions=[look])
    log = await open_run(agent)
    before = len(log.events)
    items = await advance(
        log, ScriptedReplies(make_calls(("1", "look")), "Rain."), agent, policy=FixedPolicy(streams=True)
    )
    assert [item for item in items if isinstance(item, RecordedEvent)] == log.events[before:]
    passing = [item for item in items if not isinstance(item, RecordedEvent)]
    assert [type(item) for item in passing] == [MessageStarted, MessageDeltas] * 2
    assert {item.run_id for item in passing} == {RUN}


# What is recorded of a turn.


async def test_reply_names_its_exact_request() -> None:
    kept: dict[str, str] = {}

    class Blobs(RememberingLog):
        async def commit(
            self, decide: Decide, blobs: Mapping[str, str] | None = None, **how: Any
        ) -> list[RecordedEvent]:
            kept.update(blobs or {})
            return await super().commit(decide, blobs, **how)

    def look() -> str:
        """Look."""
        return ""

    agent = Agent(name="A", instructions="Be brief.", functions=[look])
    started = await open_run(agent)
    log = Blobs(started.events)
    model = ScriptedReplies("Hello.")
    await advance(log, model, agent)
    [asked] = model.asked
    completion = log.state.messages[-1].completion
    record = completion.request
    assert kept[record.instructions] == "Be brief."
    assert record.tools is not None
    assert '"description":"Look."' in kept[record.tools]
    assert record.params == {"model": "gpt-4o", "parallel_tool_calls": True}
    assert not find_body_faults(asked.body())


@pytest.mark.parametrize(
    ("agent", "code"),
    [(Agent(name="A", instructions=lambda: 1 / 0), "instructions_failed"), (Agent(name="B"), "agent_unavailable")],
)
async def test_unaskable_agent_fails_the_run(agent: Agent, code: str) -> None:
    log = await open_run(agent)
    await advance(log, ScriptedReplies(), *([agent] if agent.name == "A" else [Agent(name="other")]))
    error = log.state.finished[-1].error
    assert error.code == code


async def test_agent_with_unusable_function_fails_run() -> None:
    agent = Agent(name="A")
    registry = Registry([agent])
    agent.functions.append(lambda: 1)
    log = await open_run(agent)
    async for _ in make_loop(log, registry, ScriptedReplies(), InlineRunner(), FixedPolicy()).advance():
        pass
    error = log.state.finished[-1].error
    assert error.code == "agent_invalid"


async def test_unserved_handoff_is_a_call_error() -> None:
    def hand_over() -> Result:
        return Result("ok", agent=Agent(name="Stranger"), context_variables={"n": 1})

    agent = Agent(name="A", functions=[hand_over])
    log = await open_run(agent)
    await advance(log, ScriptedReplies(make_calls(("1", "hand_over")), "Sorry."), agent)
    entry = log.state.messages[2]
    assert entry.tool.status == "error"
    assert "'Stranger' is not served here" in entry.message["content"]
    assert log.state.agent == "A"
    assert log.state.context_variables == {}


async def test_cancelled_run_is_not_continued() -> None:
    from swarmkeep.decide.commands import cancel_run

    def look() -> str:
        return "rain"

    agent = Agent(name="A", functions=[look])
    log = await open_run(agent)

    class Cancelling(ScriptedReplies):
        async def ask(self, request: ModelRequest, *, stream: bool) -> AsyncGenerator[Deltas | Reply]:
            async for piece in super().ask(request, stream=stream):
                await log.commit(lambda state: cancel_run(state, RUN))
                yield piece

    await advance(log, Cancelling(make_calls(("1", "look"))), agent)
    assert group_commits(log)[-1] == ["run.cancelled"]


# The loop, cut after any commit or event: resumed, it comes to the same history.


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
    async for events in loop.advance():
        if "tool.started" in list_types(events):
            break
    for _ in range(3):
        loop = make_loop(log, Registry(town.agents), ScriptedReplies(), InlineRunner(), FixedPolicy())
        async for events in loop.advance():
            assert list_types(events) == ["tool.started"]
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


# The loop waits for approvals and for results from outside, and goes on with what was decided.


class Gatekeeper:
    def __init__(self) -> None:
        self.ran: list[str] = []

        @tool(requires_approval=True)
        def launch(where: str) -> str:
            self.ran.append(f"launch {where}")
            return f"launched to {where}"

        def look() -> str:
            self.ran.append("look")
            return "rain"

        self.agent = Agent(name="A", functions=[launch, look])

    async def run_until_waiting(self, reply: Json, policy: FixedPolicy | None = None) -> RememberingLog:
        log = await open_run(self.agent)
        await advance(log, ScriptedReplies(reply), self.agent, policy=policy)
        assert log.state.run.status == "waiting"
        return log

    async def resume(
        self, log: RememberingLog, model: ScriptedReplies, decide: Callable[[State], list[EventDraft]]
    ) -> None:
        events = await log.commit(decide)
        await advance(log, model, self.agent, begun=events)


async def test_approved_cut_call_does_not_rerun() -> None:
    keeper = Gatekeeper()
    log = await keeper.run_until_waiting(make_calls(("1", "launch", '{"where": "Mars"}')))
    approved = [Approval(tool_call_id="1", decision="approve")]
    await log.commit(lambda state: resume_run(state, RUN, (), approved))
    # The process that recorded the start is gone; this is another one, which recorded nothing.
    await log.commit(lambda state: draft_events("A", [RunResumed(reason="recovery")], RUN))
    await advance(log, ScriptedReplies("Who knows."), keeper.agent)
    assert keeper.ran == []
    assert [entry.tool.status for entry in log.state.messages if entry.tool] == ["unknown_outcome"]


async def test_in_memory_a_refusal_records_nothing() -> None:
    log = await open_run(Agent(name="A"))
    state, count = log.state, len(log.commits)
    assert await log.commit(lambda state: None) == []
    assert log.state is state
    assert len(log.commits) == count
    assert settle(state, []) == []
