"""Guardrails of calls, input and output: what they refuse never runs, and goes to no model and no caller."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest
from msgspec.structs import replace
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from swarmkeep import Agent, AsyncSwarm, Refusal, Swarm, tool
from swarmkeep.events.facts import GuardrailTripped, MessageAdded
from swarmkeep.events.records import RunOptions
from swarmkeep.guardrails import ask_model, limit_length
from swarmkeep.history.redact import redact
from swarmkeep.history.replay import replay_session
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.hub import MessageDeltas
from swarmkeep.store.records import SessionKey
from tests.runs.cluster import KEY, LIMITS, EngineCluster, Server, ToolGate, kill_engine
from tests.runs.swarm.runners import AsyncRunner, SyncRunner
from tests.support.scripted import ScriptedModel
from tests.support.scripted.replies import Call

pytestmark = pytest.mark.one_database

SECRET = "swordfish"


def no_secrets(passing: Any, context_variables: dict[str, Any]) -> Refusal | None:
    """Refuses whatever has the secret in it, whatever is about to pass."""
    text = json.dumps(passing)
    context_variables["seen"] = text
    return Refusal("Let us speak of something else.") if SECRET in text else None


async def no_secrets_async(passing: Any, context_variables: dict[str, Any]) -> Refusal | None:
    await asyncio.sleep(0)
    return no_secrets(passing, context_variables)


def broken(passing: Any, context_variables: dict[str, Any]) -> Refusal | None:
    raise LookupError(f"no idea what {json.dumps(passing)} is")


def careless(passing: Any, context_variables: dict[str, Any]) -> Any:
    return "no"


async def endless(passing: Any, context_variables: dict[str, Any]) -> Refusal | None:
    await asyncio.Event().wait()
    return None


def list_trips(events: Any) -> list[GuardrailTripped]:
    return [event.fact for event in events if isinstance(event.fact, GuardrailTripped)]


def refuse_all(passing: Any, context_variables: dict[str, Any]) -> Refusal:
    return Refusal("Nor here.")


def list_statuses(events: Any) -> list[str]:
    facts = [event.fact for event in events]
    return [fact.tool.status for fact in facts if isinstance(fact, MessageAdded) and fact.tool is not None]


async def list_kinds(engine: Server, *agents: Agent) -> list[str]:
    return [kind for kind, _, _ in await find_divergences(engine, *agents)]


async def find_divergences(engine: Server, *agents: Agent, key: SessionKey = KEY) -> list[tuple[str, Any, Any]]:
    replayed = await replay_session(engine.store, Registry(agents), key)
    return [(found.kind, found.recorded, found.actual) for found in replayed.divergences]


def make_payer(calls: list[str], *guardrails: Any, **options: Any) -> Any:
    @tool(guardrails=guardrails, **options)
    def pay(to: str) -> str:
        """Pay somebody."""
        calls.append(to)
        return f"paid {to}"

    return pay


async def test_refused_call_is_told_and_never_runs(cluster: EngineCluster, model: ScriptedModel) -> None:
    paid: list[str] = []
    passing: list[Any] = []

    def watch(call: Any, context_variables: dict[str, Any]) -> None:
        passing.append((call, context_variables))

    agent = Agent(name="A", functions=[make_payer(paid, watch, no_secrets)])
    engine = await cluster.open_engine(agent)
    await engine.open_session(context_variables={"k": 1})
    model.calls([Call("pay", {"to": SECRET}, id="c1"), Call("pay", {"to": "Lee"}, id="c2")])
    model.say("Done.")
    view = await engine.run()
    assert (view.stop_reason, paid) == ("end_turn", ["Lee"])
    assert passing[0] == ({"id": "c1", "name": "pay", "arguments": {"to": SECRET}}, {"k": 1})
    told = [message["content"] for message in model.requests[1]["messages"] if message["role"] == "tool"]
    assert told == ["Refused: pay did not run. Let us speak of something else.", "paid Lee"]
    (trip,) = list_trips(await engine.read_log())
    assert (trip.stage, trip.name, trip.tool_call_id) == ("tool", "no_secrets", "c1")
    assert list_statuses(await engine.read_log()) == ["refused", "ok"]
    await engine.check_log(model)
    assert await list_kinds(engine, Agent(name="A", functions=[make_payer([])])) == ["guardrail"]
    assert await list_kinds(engine, Agent(name="A", functions=[make_payer([], broken)])) == ["guardrail"] * 2
    assert paid == ["Lee"]


async def test_failing_guardrail_blocks_its_call(cluster: EngineCluster, model: ScriptedModel) -> None:
    paid: list[str] = []
    engine = await cluster.begin(Agent(name="A", functions=[make_payer(paid, broken)]))
    model.call("pay", {"to": "Lee"}, id="c1")
    model.say("Sorry.")
    assert (await engine.run()).stop_reason == "end_turn"
    assert paid == []
    assert "the guardrail broken failed" in json.dumps(model.requests[1])


@pytest.mark.parametrize("idempotent", [False, True])
async def test_kill_at_guardrail_never_skips_it(cluster: EngineCluster, model: ScriptedModel, idempotent: bool) -> None:
    paid: list[str] = []
    gate = ToolGate()

    def slow(call: Any, context_variables: dict[str, Any]) -> None:
        gate.enter()

    def make_agent(*guardrails: Any) -> Agent:
        return Agent(name="A", functions=[make_payer(paid, *guardrails, idempotent=idempotent)])

    first = await cluster.begin(make_agent(slow))
    model.call("pay", {"to": SECRET}, id="c1")
    model.say("Sorry.")
    await first.start_run(gate=gate)
    await kill_engine(first)
    second = await cluster.open_engine(make_agent(no_secrets))
    assert (await second.wait()).stop_reason == "end_turn"
    await gate.open()
    assert paid == []
    assert list_statuses(await second.read_log()) == ["refused" if idempotent else "unknown_outcome"]


# Guardrails of what comes in: what they refuse is an event, is sent to no model, and is shown to no caller.


def test_length_limit_counts_text_only() -> None:
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * 1000}"}}
    messages = [{"content": [{"type": "text", "text": "Look!"}, picture]}, {"content": None}, {"content": "Well?"}]
    assert limit_length(24)(messages, {}) is None
    assert limit_length(23)(messages, {}) == Refusal("This is too long.")


@pytest.mark.parametrize("guardrail", [no_secrets, no_secrets_async])
async def test_refused_input_reaches_no_model(cluster: EngineCluster, model: ScriptedModel, guardrail: Any) -> None:
    agent = Agent(name="A", input_guardrails=[guardrail])
    engine = await cluster.open_engine(agent)
    await engine.open_session(context_variables={"k": 1})
    view = await engine.run(f"It is {SECRET}.")
    assert (view.status, view.stop_reason, view.error) == ("completed", "guardrail", None)
    assert view.output_text == "Let us speak of something else."
    assert (view.usage.model_calls, view.context_variables) == (0, {"k": 1})
    assert [(message["role"], message["sender"], message.get("guardrail")) for message in view.messages] == [
        ("user", "user", guardrail.__name__),
        ("assistant", "A", guardrail.__name__),
    ]
    (trip,) = list_trips(await engine.read_log())
    assert (trip.stage, trip.name, trip.message, trip.messages) == (
        "input", guardrail.__name__, "Let us speak of something else.", (3,),
    )  # fmt: skip
    assert await engine.read_types() == [
        "session.created", "run.started", "message.added", "guardrail.tripped", "message.added", "run.completed",
    ]  # fmt: skip
    assert model.requests == []
    # It trips on new messages only.
    model.say("Hello!")
    model.say("Bye!")
    for run_id, text in (("r2", "Hello?"), ("r3", "Bye?")):
        assert (await engine.run(text, run_id)).stop_reason == "end_turn"
    assert [message["content"] for message in model.requests[1]["messages"][1:]] == ["Hello?", "Hello!", "Bye?"]
    assert len(list_trips(await engine.read_log())) == 1
    await engine.check_log(model)


async def test_guardrail_sees_every_message_once(cluster: EngineCluster, model: ScriptedModel) -> None:
    seen: list[list[str]] = []

    def watch(messages: Any, context_variables: dict[str, Any]) -> None:
        seen.append([message["content"] for message in messages])

    def look() -> str:
        return "rain"

    agent = Agent(name="A", input_guardrails=[watch], functions=[look])
    engine = await cluster.open_engine(agent)
    await engine.open_session(messages=[{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}])
    await engine.sessions.add_messages(KEY, [{"role": "user", "content": "3"}])
    model.call("look", {}, id="c1")
    model.say("rain")
    await engine.run("4")
    model.say("again")
    await engine.run("5", "r2")
    assert seen == [["1", "2"], ["3", "4"], ["5"]]


@pytest.mark.parametrize("text", ["Hello?", f"And {SECRET}?"])
async def test_refused_history_is_left_out(cluster: EngineCluster, model: ScriptedModel, text: str) -> None:
    agent = Agent(name="A", input_guardrails=[no_secrets])
    engine = await cluster.open_engine(agent)
    said = [("user", "1"), ("assistant", "2"), ("user", "3"), ("assistant", f"It is {SECRET}."), ("user", "5")]
    await engine.open_session(messages=[{"role": role, "content": content} for role, content in said])
    passes = SECRET not in text
    if passes:
        model.say("Hi.")
    view = await engine.run(text)
    assert view.stop_reason == ("end_turn" if passes else "guardrail")
    trips = list_trips(await engine.read_log())
    assert [(trip.stage, trip.messages) for trip in trips] == [
        ("history", (4, 5)),
        *([] if passes else [("input", (6, 8))]),
    ]
    model.say("Bye.")
    await engine.run("And now?", "r2")
    assert SECRET not in json.dumps(model.requests)
    assert [message["content"] for message in model.requests[0]["messages"]][1:3] == ["1", "2"]
    await engine.check_log(model)
    assert [kind for kind, _, _ in await find_divergences(engine, Agent(name="A"))] != []
    await engine.sessions.fork(KEY, session_id="fork")
    assert await find_divergences(engine, agent, key=SessionKey(KEY.tenant, "fork")) == []


async def test_handoff_target_checks_input_itself(cluster: EngineCluster, model: ScriptedModel) -> None:
    second = Agent(name="Second", input_guardrails=[no_secrets])

    def hand_over() -> Agent:
        return second

    first = Agent(name="First", functions=[hand_over])
    engine = await cluster.begin(first, second)
    model.call("hand_over", {}, id="c1")
    view = await engine.run(f"It is {SECRET}.")
    assert (view.stop_reason, view.agent, view.messages[-1]["sender"]) == ("guardrail", "Second", "Second")
    model.say("Hello!")
    assert (await engine.run("Hello?", "r2")).stop_reason == "end_turn"
    assert SECRET not in json.dumps(model.requests[1])
    await engine.check_log(model)


@pytest.mark.parametrize(
    ("guardrail", "error"),
    [
        (broken, "LookupError: no idea what"),
        (careless, "it returned a str, and not None or a Refusal"),
        (endless, "it took longer than 0.05 s"),
    ],
)
async def test_failing_input_guardrail_refuses_with_notice(
    cluster: EngineCluster, model: ScriptedModel, guardrail: Any, error: str
) -> None:
    agent = Agent(name="A", input_guardrails=[guardrail])
    limits = replace(LIMITS, tool_seconds=0.05) if guardrail is endless else LIMITS
    engine = await cluster.begin(agent, limits=limits)
    view = await engine.run()
    assert view.output_text == f"This was refused, because the guardrail {guardrail.__name__} failed."
    (trip,) = list_trips(await engine.read_log())
    assert isinstance(trip.error, str)
    assert trip.error.startswith(error)
    assert model.requests == []


async def test_invalid_guardrail_is_refused_at_agent_creation() -> None:
    for wrong in ("no_secrets", [no_secrets, 3], [lambda messages: None]):
        with pytest.raises(ValueError, match="input_guardrails of agent 'A'"):
            Agent(name="A", input_guardrails=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="guardrails"):
        tool(guardrails=[lambda: None])  # type: ignore[list-item, misc]
    for message in ("", "x" * 10_001, "\ud800"):
        with pytest.raises(ValueError, match=r"refusal|surrogates"):
            Refusal(message)


async def test_killed_server_decides_again_unless_recorded(cluster: EngineCluster, model: ScriptedModel) -> None:
    gate = ToolGate()

    def slow(messages: Any, context_variables: dict[str, Any]) -> Refusal:
        gate.enter()
        return Refusal("Not here.")

    first = await cluster.begin(Agent(name="A", input_guardrails=[slow]))
    await first.start_run(gate=gate)
    # The verdict was not recorded: another server asks its own.
    await kill_engine(first)
    gate.opened.set()
    second = await cluster.open_engine(Agent(name="A", input_guardrails=[refuse_all]))
    view = await second.wait()
    assert (view.stop_reason, view.output_text) == ("guardrail", "Nor here.")
    assert len(list_trips(await second.read_log())) == 1
    await kill_engine(second)
    # The verdict is recorded with all that follows from it: there is nothing to go on with.
    third = await cluster.open_engine(Agent(name="A"))
    assert (await third.wait()).output_text == "Nor here."
    assert (await third.read_state()).status == "idle"
    assert model.requests == []


async def test_forks_after_refusal_do_not_send_input(cluster: EngineCluster, model: ScriptedModel) -> None:
    agent = Agent(name="A", input_guardrails=[no_secrets])
    engine = await cluster.begin(agent)
    await engine.run(f"It is {SECRET}.")
    last = (await engine.read_state()).seq
    refused_at = []
    for at in range(2, last + 1):
        fork = SessionKey(KEY.tenant, f"fork{at}")
        await engine.sessions.fork(KEY, at=at, session_id=fork.id)
        forked = await engine.read_state(fork)
        assert forked.status == "idle"
        model.say("Hello!")
        # Where it was not refused yet, it is new again, and refused then.
        view = await engine.run("Hello?", f"again{at}", fork)
        if view.stop_reason == "guardrail":
            refused_at.append(at)
            view = await engine.run("Hello?", f"more{at}", fork)
        assert view.stop_reason == "end_turn"
        assert SECRET not in json.dumps(model.requests)
    assert refused_at == [3]


async def test_redacted_guardrail_reason_keeps_input_refused(cluster: EngineCluster, model: ScriptedModel) -> None:

    def quote(messages: Any, context_variables: dict[str, Any]) -> Refusal | None:
        return Refusal(f"No {SECRET}!") if SECRET in str(messages) else None

    agent = Agent(name="A", input_guardrails=[quote])
    engine = await cluster.begin(agent)
    await engine.run(f"It is {SECRET}.")
    events = await engine.read_log()
    seqs = [event.seq for event in events if SECRET in event.payload]
    await redact(engine.store, KEY, seqs, reason="asked to", by=None)
    events = await engine.read_log()
    assert not [event for event in events if SECRET in event.payload]
    model.say("Hello!")
    await engine.run("Hello?", "r2")
    assert [message["content"] for message in model.requests[0]["messages"][1:]] == ["Hello?"]
    assert await find_divergences(engine, agent) == []


@pytest.mark.parametrize("kind", [SyncRunner, AsyncRunner])
def test_guardrails_do_not_get_attachments(kind: Any) -> None:
    seen: list[Any] = []

    def watch(messages: Any, context_variables: dict[str, Any]) -> None:
        seen.extend(messages)

    agent = Agent(name="A", model="m", input_guardrails=[watch])
    message = {"role": "assistant", "content": "Hm.", "reasoning_content": "SEALED"}
    with ScriptedModel(strict=False) as model:
        swarm = kind(model.url)
        model.raw({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
        first = swarm.run(agent, "1").messages
        model.say("Yes?")
        swarm.run(agent, [{"role": "user", "content": "1"}, *first, {"role": "user", "content": "2"}])
        assert model.requests[1]["messages"][2]["reasoning_content"] == "SEALED"
    assert [message["content"] for message in seen] == ["1", "1", "Hm.", "2"]
    assert [message for message in seen if "SEALED" in json.dumps(message) or "provider" in message] == []


# Guardrails of what goes out: a refused reply is shown to no caller, not even in pieces.


@pytest.mark.parametrize("stream", [False, True])
async def test_refused_reply_is_never_shown(cluster: EngineCluster, model: ScriptedModel, stream: bool) -> None:
    agent = Agent(name="A", output_guardrails=[no_secrets])
    engine = await cluster.begin(agent)
    # In two pieces, neither of which has it.
    model.say(["It is sword", "fish, really."])
    feed = engine.reader.open_feed(KEY)
    await engine.start_run(options=RunOptions(stream=stream))
    items = await engine.collect_stream(feed=feed)
    view = await engine.wait()
    assert (view.status, view.stop_reason, view.output_text) == (
        "completed", "guardrail", "Let us speak of something else.",
    )  # fmt: skip
    assert [item for item in items if isinstance(item, MessageDeltas)] == []
    events = await engine.read_log()
    assert not [event for event in events if "fish" in event.payload]
    (trip,) = list_trips(events)
    assert (trip.stage, trip.digest) == ("output", hashlib.sha256(b"It is swordfish, really.").hexdigest())
    # The model's work is counted, and its request kept.
    assert (view.usage.model_calls, view.usage.total_tokens > 0) == (1, True)
    model.say("Hello!")
    await engine.run("Hello?", "r2")
    assert [message["content"] for message in model.requests[1]["messages"][1:]] == [
        "hello", "Let us speak of something else.", "Hello?",
    ]  # fmt: skip
    await engine.check_log(model)
    assert await list_kinds(engine, Agent(name="A")) == ["guardrail"]


async def test_passing_reply_streams_after_check(cluster: EngineCluster, model: ScriptedModel) -> None:
    agent = Agent(name="A", output_guardrails=[no_secrets])
    engine = await cluster.begin(agent)
    model.say(["It is ", "a ", "fish."])
    feed = engine.reader.open_feed(KEY)
    await engine.start_run(options=RunOptions(stream=True))
    assert (await engine.wait()).output_text == "It is a fish."
    # As they passed: a reader who was sent to the log meanwhile has the whole message from there.
    assert [item.deltas for item in feed.items if isinstance(item, MessageDeltas)] == [[{"content": "It is a fish."}]]
    feed.close()
    assert await find_divergences(engine, agent) == []
    stricter = Agent(name="A", output_guardrails=[limit_length(3)])
    ((kind, recorded, actual),) = await find_divergences(engine, stricter)
    assert (kind, recorded["refused"], actual["refused"]) == ("guardrail", False, True)


async def test_text_is_checked_and_refused_calls_skipped(cluster: EngineCluster, model: ScriptedModel) -> None:
    paid: list[str] = []
    engine = await cluster.begin(Agent(name="A", functions=[make_payer(paid)], output_guardrails=[no_secrets]))
    model.call("pay", {"to": "Lee"}, id="c1", text=f"First {SECRET}.")
    view = await engine.run()
    assert (view.stop_reason, paid) == ("guardrail", [])
    assert not [event for event in await engine.read_log() if SECRET in event.payload]


async def test_withheld_text_is_in_no_partial(cluster: EngineCluster, model: ScriptedModel) -> None:
    agent = Agent(name="A", output_guardrails=[no_secrets])
    engine = await cluster.begin(agent)
    await engine.start_hanging_run(model, f"It is {SECRET}", options=RunOptions(stream=True))
    await engine.runs.cancel(KEY, "r1")
    model.release()
    # One that breaks off by itself: the model is not asked again for what has begun.
    model.half_stream([f"It is {SECRET}", " and"])
    view = await engine.run(run_id="r2", options=RunOptions(stream=True))
    assert view.status == "failed"
    assert not [event for event in await engine.read_log() if SECRET in event.payload]


async def test_output_guardrail_error_hides_reply(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(Agent(name="A", output_guardrails=[broken]))
    model.say(f"It is {SECRET}.")
    assert (await engine.run()).stop_reason == "guardrail"
    events = await engine.read_log()
    assert [trip.error for trip in list_trips(events)] == ["LookupError"]
    assert not [event for event in events if SECRET in event.payload]


class Answer(BaseModel):
    answer: str


@pytest.mark.parametrize(
    "text",
    [
        '{"answer": "sword\\u0066ish"}',
        '{"answer": "a \\u0073wordfish"',
        '["sword\\u0066ish"]',
        '{"answer": "sword\\u0066ish", "answer": "fine"}',
        '{"answer": "{\\"a\\": \\"sword\\\\u0066ish\\"}"}',
    ],
)
@pytest.mark.parametrize("options", [{"output_type": Answer}, {"output_type": Answer, "output_mode": "tool"}, {}])
async def test_what_readers_decode_is_looked_at(
    cluster: EngineCluster, model: ScriptedModel, text: str, options: dict[str, Any]
) -> None:
    agent = Agent(name="A", output_guardrails=[no_secrets], **options)
    engine = await cluster.begin(agent)
    if options.get("output_mode") == "tool":
        model.call("final_output", text)
    else:
        model.say(text)
    view = await engine.run()
    assert (view.stop_reason, view.output, view.output_text) == ("guardrail", None, "Let us speak of something else.")
    assert await find_divergences(engine, agent) == []


# Guardrails in replays, of models, and in programs without a server.


async def test_replay_reports_changed_verdicts(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(Agent(name="A", input_guardrails=[no_secrets]))
    await engine.run(f"It is {SECRET}.")
    model.say("Hello!")
    await engine.run("Hello?", "r2")
    refused = {"stage": "input", "refused": True, "name": "no_secrets", "message": "Let us speak of something else."}
    passed = {"stage": "input", "refused": False}
    lenient = Agent(name="A", input_guardrails=[limit_length(1000)])
    assert await find_divergences(engine, lenient) == [("guardrail", refused, passed)]
    assert [(kind, recorded) for kind, recorded, _ in await find_divergences(engine, Agent(name="A"))] == [
        ("guardrail", refused)
    ]
    strict = Agent(name="A", input_guardrails=[limit_length(3, "Too long.")])
    today = {"stage": "input", "refused": True, "name": "length_limit", "message": "Too long."}
    assert await find_divergences(engine, strict) == [("guardrail", refused, today), ("guardrail", passed, today)]


async def test_fork_within_refusal_replays_alike(cluster: EngineCluster, model: ScriptedModel) -> None:
    guards = {"input_guardrails": [no_secrets], "output_guardrails": [no_secrets]}
    agent = Agent(name="A", functions=[make_payer([], no_secrets)], **guards)
    engine = await cluster.begin(agent)
    model.calls([Call("pay", {"to": SECRET}, id="c1"), Call("pay", {"to": "Lee"}, id="c2")])
    model.say(f"It is {SECRET}.")
    await engine.run()
    await engine.run(f"It is {SECRET}.", "r2")
    assert [trip.stage for trip in list_trips(await engine.read_log())] == ["tool", "output", "input"]
    for at in range(1, (await engine.read_state()).seq + 1):
        fork = SessionKey(KEY.tenant, f"fork{at}")
        await engine.sessions.fork(KEY, at=at, session_id=fork.id)
        assert await find_divergences(engine, agent, key=fork) == [], at


async def test_replay_asks_no_guardrail_model(
    cluster: EngineCluster, model: ScriptedModel, async_client: AsyncOpenAI
) -> None:
    with ScriptedModel() as judge:
        client = AsyncOpenAI(base_url=judge.url, api_key="k", max_retries=0)
        agent = Agent(name="A", input_guardrails=[ask_model("Is it rude?", client=client, model="gpt-4o")])
        engine = await cluster.begin(agent)
        for answer in ("Yes.", "no", "Maybe"):
            judge.say(answer)
        model.say("Hello!")
        views = [await engine.run(f"text {number}", f"r{number}") for number in range(3)]
        assert [view.stop_reason for view in views] == ["guardrail", "end_turn", "guardrail"]
        assert judge.requests[0]["messages"][-1] == {"role": "user", "content": "text 0"}
        assert await find_divergences(engine, agent) == []
        await client.close()


def test_swarm_in_process_has_guardrails(model: ScriptedModel, client: OpenAI) -> None:
    agent = Agent(name="A", input_guardrails=[no_secrets], output_guardrails=[limit_length(10)])
    swarm = Swarm(client)
    history = [{"role": "user", "content": SECRET}, {"role": "assistant", "content": "?"}]
    model.say("Hello!")
    assert swarm.run(agent, [*history, {"role": "user", "content": "Hi"}]).messages[-1]["content"] == "Hello!"
    response = swarm.run(agent, [{"role": "user", "content": SECRET}])
    assert [message["content"] for message in response.messages] == ["Let us speak of something else."]
    model.say("Hello, hello, hello!")
    frames = list(swarm.run(agent, [{"role": "user", "content": "Hi"}], stream=True))
    assert [frame.get("content") for frame in frames[:-1] if "content" in frame] == ["This is too long."]
    assert frames[0] == {"delim": "start"}


async def test_async_swarm_has_guardrails(async_client: AsyncOpenAI) -> None:
    agent = Agent(name="A", input_guardrails=[no_secrets_async])
    response = await AsyncSwarm(async_client).run(agent, [{"role": "user", "content": SECRET}])
    assert response.messages[-1]["content"] == "Let us speak of something else."
