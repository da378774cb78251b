"""The loop on a session in memory: what it commits together, and that it goes on from wherever it was cut."""

from __future__ import annotations

from asyncio import timeout
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from swarmkeep import Agent, Result, ToolCallId, tool
from swarmkeep.domain.checking.files import FileLimits
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.commands import StartRun, create_session, start_run
from swarmkeep.domain.decisions.drafts import draft_events
from swarmkeep.domain.decisions.resuming import Approval, ToolAnswer, resume_run
from swarmkeep.domain.decisions.settling import settle
from swarmkeep.domain.decisions.sizes import UNBOUNDED
from swarmkeep.domain.envelope import EventDraft, RecordedEvent
from swarmkeep.domain.events import CompletionRecord, RunError, RunResumed
from swarmkeep.domain.fold import fold
from swarmkeep.domain.messages import INTERRUPTED
from swarmkeep.domain.request import ModelRequest
from swarmkeep.domain.run_options import RunOptions
from swarmkeep.domain.state import Run, State
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.loop import make_loop
from swarmkeep.engine.models.model import Deltas, Reply, TurnFailed
from swarmkeep.engine.models.secrets import NO_SECRETS
from swarmkeep.engine.policy import AskedAgents, Decide, NobodyAsked, RunTimedOut
from swarmkeep.engine.streams.items import Item, MessageDeltas, MessageStarted
from swarmkeep.engine.swarm.memory_log import MemorySessionLog
from swarmkeep.engine.tool_runners import InlineRunner
from tests.support.rules import find_body_faults

RUN = "r1"
PLAIN = RunOptions()


class RememberingLog(MemorySessionLog):
    """Remembers its commits."""

    def __init__(self, events: Sequence[RecordedEvent] = ()) -> None:
        super().__init__()
        self.state = fold(events)
        self.commits: list[list[RecordedEvent]] = []

    @property
    def events(self) -> list[RecordedEvent]:
        return [event for commit in self.commits for event in commit]

    async def commit(self, decide: Decide, blobs: Mapping[str, str] | None = None, **how: Any) -> list[RecordedEvent]:
        events = await super().commit(decide, blobs, **how)
        if events:
            self.commits.append(events)
        return events


class ScriptedReplies:
    """A model that says what its script says next, and remembers what it was asked."""

    def __init__(self, *replies: Json | str | TurnFailed) -> None:
        self.left = list(replies)
        self.asked: list[ModelRequest] = []

    async def ask(self, request: ModelRequest, *, stream: bool) -> AsyncGenerator[Deltas | Reply]:
        self.asked.append(request)
        reply = self.left.pop(0)
        if isinstance(reply, TurnFailed):
            raise reply
        message = {"role": "assistant", "content": reply} if isinstance(reply, str) else reply
        if stream:
            yield Deltas([{"content": message["content"], "tool_calls": message.get("tool_calls")}])
        yield Reply(message, CompletionRecord(request=request.record))


class FixedPolicy:
    """A policy with fixed answers."""

    tool_seconds = None
    compacts_history = True

    def __init__(
        self,
        *,
        streams: bool = False,
        expires_at: str | None = None,
        seconds: float | None = None,
        shortens: bool = True,
    ) -> None:
        self._streams = streams
        self._expires_at = expires_at
        self._seconds = seconds
        self.shortens_history = shortens
        self.agents: AskedAgents = NobodyAsked()

    @asynccontextmanager
    async def time_limit(self, run: Run) -> AsyncGenerator[None]:
        try:
            async with timeout(self._seconds) as limit:
                yield
        except TimeoutError:
            assert limit.expired()
            assert self._seconds is not None
            raise RunTimedOut(self._seconds) from None

    secrets = NO_SECRETS
    sizes = UNBOUNDED
    files = FileLimits()

    def should_stream(self, run: Run) -> bool:
        return self._streams

    async def run_aside(self, work: Callable[[], Any]) -> Any:
        return work()

    async def check_tokens_left(self) -> None:
        """As many as it takes."""

    async def approval_expires_at(self) -> str | None:
        return self._expires_at


def make_calls(*asked: tuple[str, str] | tuple[str, str, str], text: str | None = None) -> Json:
    """A reply that calls: `(id, name)` or `(id, name, arguments)`."""
    made = [
        {"id": call[0], "type": "function", "function": {"name": call[1], "arguments": call[2] if call[2:] else "{}"}}
        for call in asked
    ]
    return {"role": "assistant", "content": text, "tool_calls": made}


async def open_run(agent: Agent, *, options: RunOptions = PLAIN, context: Json | None = None) -> RememberingLog:
    """A session of which the first run has just been started."""
    log = RememberingLog()
    await log.commit(lambda state: draft_events(agent.name, create_session(agent.name, context or {}, {}, []), None))
    command = StartRun(run_id=RUN, messages=({"role": "user", "content": "Go"},), options=options)
    await log.commit(lambda state: start_run(state, command))
    return log


async def advance(
    log: RememberingLog,
    model: ScriptedReplies,
    *agents: Agent,
    policy: FixedPolicy | None = None,
    begun: Sequence[RecordedEvent] = (),
) -> list[Item]:
    loop = make_loop(log, Registry(agents), model, InlineRunner(), policy or FixedPolicy(), begun)
    return [item async for item in loop.advance()]


def list_types(events: Sequence[Any]) -> list[str]:
    return [event.type for event in events]


def group_commits(log: RememberingLog) -> list[list[str]]:
    """The types of each commit after the session's own."""
    return [list_types(commit) for commit in log.commits[1:]]


# What is committed together.


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


async def test_a_tools_changes_share_the_commit_of_its_result() -> None:
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


async def test_the_last_turn_that_is_allowed_ends_with_its_tool() -> None:
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


async def test_every_recorded_event_is_given_once_and_in_order() -> None:
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


async def test_the_next_run_of_the_queue_follows() -> None:
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


async def test_a_reply_names_the_exact_request_behind_it() -> None:
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


async def test_a_failed_turn_ends_the_run_and_keeps_what_was_said() -> None:
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
async def test_an_agent_that_cannot_be_asked_fails_the_run(agent: Agent, code: str) -> None:
    log = await open_run(agent)
    await advance(log, ScriptedReplies(), *([agent] if agent.name == "A" else [Agent(name="other")]))
    error = log.state.finished[-1].error
    assert error is not None
    assert error.code == code


async def test_an_agent_that_a_function_was_added_to_in_vain_fails_the_run() -> None:
    agent = Agent(name="A")
    registry = Registry([agent])
    agent.functions.append(lambda: 1)
    log = await open_run(agent)
    async for _ in make_loop(log, registry, ScriptedReplies(), InlineRunner(), FixedPolicy()).advance():
        pass
    error = log.state.finished[-1].error
    assert error is not None
    assert error.code == "agent_invalid"


async def test_a_handoff_to_an_agent_that_is_not_served_is_an_error_of_the_call() -> None:
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


async def test_what_was_cancelled_meanwhile_is_not_gone_on_with() -> None:
    from swarmkeep.domain.decisions.commands import cancel_run

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


# Cut anywhere, resumed anywhere.


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
async def test_cut_after_any_commit_and_resumed_gives_the_same_history(number: int) -> None:
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


async def test_cut_after_any_event_every_request_is_valid() -> None:
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


async def test_a_start_that_was_recorded_for_this_loop_is_carried_out() -> None:
    town = Town()
    whole, _ = await town.run_through()
    before = [event for commit in whole.commits[:3] for event in commit]
    assert before[-1].type == "tool.started"
    town = Town()
    log = RememberingLog(before)
    await advance(log, ScriptedReplies("Done."), *town.agents, begun=before[-1:])
    assert town.ran[0] == "look Oslo"


async def test_an_idempotent_tool_that_is_cut_off_again_and_again_runs_under_one_id() -> None:
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


async def test_a_tool_that_is_gone_after_the_restart_has_an_unknown_outcome() -> None:
    town = Town()
    whole, _ = await town.run_through()
    cut = next(n for n, event in enumerate(whole.events) if event.type == "tool.started" and "pay" in repr(event.fact))
    log = RememberingLog(whole.events[: cut + 1])
    model = ScriptedReplies("I see.")
    await advance(log, model, Agent(name="A"), Agent(name="B"))
    statuses = [entry.tool.status for entry in log.state.messages if entry.tool]
    assert statuses[-3:] == ["unknown_outcome", "error", "error"]


async def test_messages_of_an_interrupted_run_are_completed_for_the_next() -> None:
    town = Town()
    whole, _ = await town.run_through()
    before = [event for commit in whole.commits[:3] for event in commit]
    log = RememberingLog(before)
    from swarmkeep.domain.decisions.commands import cancel_run

    await log.commit(lambda state: cancel_run(state, RUN))
    await log.commit(
        lambda state: start_run(state, StartRun(run_id="r2", messages=({"role": "user", "content": "?"},)))
    )
    model = ScriptedReplies("I see.")
    await advance(log, model, *town.agents)
    sent = model.asked[0].messages
    assert [message["content"] for message in sent if message["role"] == "tool"] == [INTERRUPTED] * 2


# Waiting.


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
        assert log.state.run is not None
        assert log.state.run.status == "waiting"
        return log

    async def resume(
        self, log: RememberingLog, model: ScriptedReplies, decide: Callable[[State], list[EventDraft]]
    ) -> None:
        events = await log.commit(decide)
        await advance(log, model, self.agent, begun=events)


LAUNCHES = make_calls(("1", "look"), ("2", "launch", '{"where": "Mars"}'), ("3", "launch", '{"where": "Venus"}'))


async def test_calls_that_need_an_approval_wait_for_it_after_those_before_them_ran() -> None:
    keeper = Gatekeeper()
    log = await keeper.run_until_waiting(LAUNCHES, FixedPolicy(expires_at="2026-01-01T00:00:00.000000Z"))
    assert keeper.ran == ["look"]
    assert group_commits(log)[1:] == [
        ["message.added", "approval.requested", "approval.requested", "tool.started"],
        ["message.added", "run.waiting"],
    ]
    assert log.state.run is not None
    pending = log.state.run.pending
    assert [(call.tool_call_id, call.reason) for call in pending] == [("2", "approval"), ("3", "approval")]
    assert {call.expires_at for call in pending} == {"2026-01-01T00:00:00.000000Z"}
    assert pending[0].arguments == '{"where": "Mars"}'


async def test_what_is_approved_runs_and_what_is_denied_does_not() -> None:
    keeper = Gatekeeper()
    log = await keeper.run_until_waiting(LAUNCHES)
    decisions = [
        Approval(tool_call_id="3", decision="approve"),
        Approval(tool_call_id="2", decision="deny", reason="too far"),
    ]
    await keeper.resume(log, ScriptedReplies("Launched."), lambda state: resume_run(state, RUN, (), decisions))
    assert keeper.ran == ["look", "launch Venus"]
    results = [entry for entry in log.state.messages if entry.tool is not None]
    assert [entry.tool.status for entry in results if entry.tool] == ["ok", "denied", "ok"]
    assert "too far" in results[1].message["content"]
    assert group_commits(log)[3:] == [
        ["approval.decided", "approval.decided", "run.resumed", "message.added", "tool.started"],
        ["message.added"],
        ["message.added", "run.completed"],
    ]


async def test_a_run_waits_until_the_last_decision() -> None:
    keeper = Gatekeeper()
    log = await keeper.run_until_waiting(LAUNCHES)
    one = [Approval(tool_call_id="2", decision="approve")]
    await keeper.resume(log, ScriptedReplies(), lambda state: resume_run(state, RUN, (), one))
    assert keeper.ran == ["look"]
    other = [Approval(tool_call_id="3", decision="approve")]
    await keeper.resume(log, ScriptedReplies("Launched."), lambda state: resume_run(state, RUN, (), other))
    assert keeper.ran == ["look", "launch Mars", "launch Venus"]


async def test_an_approved_call_that_is_cut_off_is_not_run_again() -> None:
    keeper = Gatekeeper()
    log = await keeper.run_until_waiting(make_calls(("1", "launch", '{"where": "Mars"}')))
    approved = [Approval(tool_call_id="1", decision="approve")]
    await log.commit(lambda state: resume_run(state, RUN, (), approved))
    # The process that recorded the start is gone; this is another one, which recorded nothing.
    await log.commit(lambda state: draft_events("A", [RunResumed(reason="recovery")], RUN))
    await advance(log, ScriptedReplies("Who knows."), keeper.agent)
    assert keeper.ran == []
    assert [entry.tool.status for entry in log.state.messages if entry.tool] == ["unknown_outcome"]


async def test_results_from_outside() -> None:
    keeper = Gatekeeper()
    log = await open_run(keeper.agent, options=RunOptions(execute_tools=False))
    await advance(log, ScriptedReplies(make_calls(("1", "look"), ("2", "anything"))), keeper.agent)
    assert log.state.run is not None
    assert [call.reason for call in log.state.run.pending] == ["tool_results"] * 2
    answers = [ToolAnswer(tool_call_id="2", content="no", is_error=True), ToolAnswer(tool_call_id="1", content="sun")]
    model = ScriptedReplies("Done.")
    await keeper.resume(log, model, lambda state: resume_run(state, RUN, answers))
    assert keeper.ran == []
    tools = [(m["tool_call_id"], m["content"]) for m in model.asked[0].messages if m["role"] == "tool"]
    assert tools == [("1", "sun"), ("2", "no")]
    assert [entry.tool.status for entry in log.state.messages if entry.tool] == ["error", "external"]


async def test_in_memory_a_refusal_records_nothing() -> None:
    log = await open_run(Agent(name="A"))
    state, count = log.state, len(log.commits)
    assert await log.commit(lambda state: None) == []
    assert log.state is state
    assert len(log.commits) == count
    assert settle(state, []) == []
