"""The loop on a session in memory: what it commits together, and what is recorded of a turn."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest

from swarmkeep import Agent, Result
from swarmkeep.decide.commands import StartRun, start_run
from swarmkeep.events.facts import RecordedEvent, RunError
from swarmkeep.events.records import RunOptions
from swarmkeep.models.model import Deltas, Reply, TurnFailed
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
    make_calls,
    open_run,
)
from tests.support.rules import find_body_faults


async def test_a_plain_turn_is_two_commits() -> None:
    agent = Agent(name="A")
    log = await open_run(agent)
    await advance(log, ScriptedReplies("Hello."), agent)
    assert group_commits(log) == [["run.started", "message.added"], ["message.added", "run.completed"]]
    assert log.state.finished[-1].stop_reason == "end_turn"


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


async def test_tool_changes_share_result_commit() -> None:
    def hand_over() -> Result:
        return Result("ok", agent=b, context_variables={"n": 1})

    b = Agent(name="B")
    a = Agent(name="A", functions=[hand_over])
    log = await open_run(a)
    await advance(log, ScriptedReplies(make_calls(("1", "hand_over"), ("2", "hand_over")), "Hello."), a)
    assert group_commits(log)[2:4] == [
        ["message.added", "context.updated", "tool.started"],
        ["message.added", "handoff.ignored", "handoff.made"],
    ]
    events = log.events
    assert [event.agent for event in events if event.type == "message.added"] == ["A", "A", "A", "A", "B"]


async def test_last_allowed_turn_ends_with_tool() -> None:
    def look() -> str:
        return "rain"

    agent = Agent(name="A", functions=[look])
    log = await open_run(agent, options=RunOptions(max_turns=1))
    await advance(log, ScriptedReplies(make_calls(("1", "look"))), agent)
    assert group_commits(log)[-1] == ["message.added", "run.completed"]
    assert log.state.finished[-1].stop_reason == "max_turns"


async def test_no_turn_allowed_is_one_commit() -> None:
    agent = Agent(name="A")
    log = await open_run(agent, options=RunOptions(max_turns=0))
    assert await advance(log, ScriptedReplies(), agent) == []
    assert group_commits(log) == [["run.started", "message.added", "run.completed"]]


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


async def test_next_queued_run_follows() -> None:
    agent = Agent(name="A")
    log = await open_run(agent)
    second = StartRun(run_id="r2", messages=({"role": "user", "content": "Next"},), on_busy="queue")
    await log.commit(lambda state: start_run(state, second))
    await advance(log, ScriptedReplies("First.", "Second."), agent)
    assert [kind for commit in group_commits(log)[1:] for kind in commit] == [
        "run.queued",
        *("message.added", "run.completed"),
        *("run.started", "message.added"),
        *("message.added", "run.completed"),
    ]


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
    assert completion is not None
    record = completion.request
    assert record is not None
    assert kept[record.instructions] == "Be brief."
    assert record.tools is not None
    assert '"description":"Look."' in kept[record.tools]
    assert record.params == {"model": "gpt-4o", "parallel_tool_calls": True}
    assert not find_body_faults(asked.body())


async def test_failed_turn_ends_run_and_keeps_words() -> None:
    agent = Agent(name="A")
    log = await open_run(agent)
    error = RunError(code="provider_error", message="no", retryable=True, provider_status=503)
    await advance(log, ScriptedReplies(TurnFailed(error, "Half a")), agent)
    assert group_commits(log)[-1] == ["message.added", "run.failed"]
    run = log.state.finished[-1]
    assert (run.status, run.stop_reason, run.error) == ("failed", "error", error)
    last = log.state.messages[-1]
    assert last.message["content"] == "Half a"
    assert last.completion is not None
    assert last.completion.partial is True


@pytest.mark.parametrize(
    ("agent", "code"),
    [
        (Agent(name="A", instructions=lambda: 1 / 0), "instructions_failed"),
        (Agent(name="B"), "agent_unavailable"),
    ],
)
async def test_unaskable_agent_fails_the_run(agent: Agent, code: str) -> None:
    log = await open_run(agent)
    await advance(log, ScriptedReplies(), *([agent] if agent.name == "A" else [Agent(name="other")]))
    error = log.state.finished[-1].error
    assert error is not None
    assert error.code == code


async def test_agent_with_unusable_function_fails_run() -> None:
    agent = Agent(name="A")
    registry = Registry([agent])
    agent.functions.append(lambda: 1)
    log = await open_run(agent)
    async for _ in make_loop(log, registry, ScriptedReplies(), InlineRunner(), FixedPolicy()).advance():
        pass
    error = log.state.finished[-1].error
    assert error is not None
    assert error.code == "agent_invalid"


async def test_unserved_handoff_is_a_call_error() -> None:
    def hand_over() -> Result:
        return Result("ok", agent=Agent(name="Stranger"), context_variables={"n": 1})

    agent = Agent(name="A", functions=[hand_over])
    log = await open_run(agent)
    await advance(log, ScriptedReplies(make_calls(("1", "hand_over")), "Sorry."), agent)
    entry = log.state.messages[2]
    assert entry.tool is not None
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
