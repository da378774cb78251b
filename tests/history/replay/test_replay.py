"""Today's agents against what was recorded; every past request, put together again, is what the model received."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as for_any
from hypothesis import settings
from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep import Agent, tool
from swarmkeep.decide.commands import Approval
from swarmkeep.events.codec import decode, encode_text
from swarmkeep.events.errors import EventNotFound, InvalidRequest, RequestNotKept, SessionNotFound
from swarmkeep.events.facts import MessageAdded, RecordedEvent, UnknownFact
from swarmkeep.events.redaction import redact_payload
from swarmkeep.history.divergences import Replayed, check_kinds
from swarmkeep.history.recordings import get_request_record
from swarmkeep.history.replay import rebuild_request, replay, replay_session
from swarmkeep.models.model import ChatModel
from swarmkeep.runs.agents import Registry
from swarmkeep.store.opening import open_store
from swarmkeep.store.reading import upcast
from swarmkeep.store.records import SessionKey
from tests.history.replay.team import TEAM, GeneratedConversation, a, b, open_scripted_model, remember, to_b
from tests.runs.cluster import KEY, LIMITS, EngineCluster, Server, ToolGate, kill_engine
from tests.support.hypothesis_profiles import examples
from tests.support.logs import SeededDice, any_logs
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


@asynccontextmanager
async def generate_sessions(cluster: EngineCluster, seed: int) -> AsyncGenerator[tuple[Server, list[SessionKey]]]:
    """An engine, and the sessions that a generated life on it has left."""
    generated = GeneratedConversation(SeededDice(seed))
    async with open_scripted_model(generated) as (_, client):
        engine = await cluster.open_engine(*TEAM, model=ChatModel(client))
        yield engine, list(await generated.run_conversation(engine))


@pytest.mark.parametrize("seed", range(6))
async def test_the_same_agents_match_whatever_happened(cluster: EngineCluster, seed: int) -> None:
    async with generate_sessions(cluster, seed) as (engine, keys):
        for key in keys:
            replayed = await replay_session(engine.store, engine.registry, key)
            events = await engine.read_log(key)
            assert replayed.divergences == []
            assert replayed.matches
            assert replayed.last_seq == events[-1].seq


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
async def test_same_agents_match_despite_redaction(cluster: EngineCluster, seed: int) -> None:
    async with generate_sessions(cluster, seed) as (engine, (key, _)):
        events = await engine.read_log(key)
        texts = await engine.store.read_blobs(key, sorted(_collect_text_names(events)))
    emptied = [replace_by_stand_in(event) for event in events]
    for number, event in enumerate(emptied):
        replayed = replay_talk(([*events[:number], event, *events[number + 1 :]], texts))
        assert replayed.divergences == [], f"event {event.seq} ({event.type})"
        assert set(replayed.redacted) <= {event.seq}
        assert replayed.last_seq == len(events)
    replayed = replay_talk((emptied, texts))
    assert (replayed.divergences, replayed.last_seq, replayed.turns) == ([], len(events), 0)
    assert set(replayed.redacted) >= {event.seq for event in events if get_request_record(event)}


@pytest.mark.parametrize("seed", range(3))
async def test_same_agents_match_in_any_fork(cluster: EngineCluster, seed: int) -> None:
    async with generate_sessions(cluster, seed) as (engine, (key, _)):
        for seq in range(1, (await engine.reader.view(key)).seq + 1):
            fork = SessionKey(key.tenant, f"fork-{seq}")
            await engine.sessions.fork(key, at=seq, session_id=fork.id)
            assert (await replay_session(engine.store, engine.registry, fork)).divergences == [], seq


# What is different today is named.


async def record_talk(cluster: EngineCluster, model: ScriptedModel) -> tuple[list[RecordedEvent], dict[str, str]]:
    """A asks for the weather, keeps something, hands over to B, which forgets it and answers."""
    engine = await cluster.begin(*TEAM)
    model.call("look", {"city": "Oslo"})
    model.call("remember", {"key": "k"})
    model.call("to_b")
    model.call("forget")
    model.say("Done.")
    await engine.run()
    events = await engine.read_log()
    return events, await engine.store.read_blobs(KEY, sorted(_collect_text_names(events)))


def _collect_text_names(events: Iterable[RecordedEvent]) -> set[str]:
    records = [get_request_record(event) for event in events]
    return {name for record in records if record for name in (record.instructions, record.tools) if name}


@pytest.fixture
async def talk(cluster: EngineCluster, model: ScriptedModel) -> tuple[list[RecordedEvent], dict[str, str]]:
    return await record_talk(cluster, model)


Talk = tuple[list[RecordedEvent], dict[str, str]]


def replay_talk(talk: Talk, *agents: Agent, ignore: Collection[str] = (), today: Agent = a, **changes: Any) -> Replayed:
    """Replay with the team as it is, but for `changes` of the agent `today`; or with these `agents` only."""

    def replayed() -> Replayed:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in changes.items():
                patch.setattr(today, name, value)
            return replay(talk[0], Registry(agents or TEAM), talk[1], ignore=ignore)

    # Not in this test's event loop, as the server does.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(replayed).result()


def list_kinds(replayed: Replayed) -> list[str]:
    return [divergence.kind for divergence in replayed.divergences]


async def test_timed_out_replay_tells_its_progress(talk: Talk) -> None:
    whole = await asyncio.to_thread(replay, talk[0], Registry(TEAM), talk[1], seconds=600.0)
    assert (whole.matches, whole.turns, whole.cut_short) == (True, 5, UNSET)
    cut = await asyncio.to_thread(replay, talk[0], Registry(TEAM), talk[1], seconds=-1.0)
    assert (cut.matches, cut.turns, cut.divergences, cut.cut_short) == (False, 0, [], True)
    assert 0 < cut.last_seq < whole.last_seq


def test_changed_instruction_told_once_with_texts(talk: Talk) -> None:
    replayed = replay_talk(talk, instructions="You are somebody else.")
    (found,) = replayed.divergences
    assert (found.kind, found.recorded, found.actual) == ("instructions", "You are A.", "You are somebody else.")
    assert found.seq == 4
    assert (replayed.matches, replayed.turns, replayed.last_seq) == (False, 5, talk[0][-1].seq)
    assert replay_talk(talk, instructions="You are somebody else.", ignore=["instructions"]).matches


def test_missing_texts_named_by_hash(talk: Talk) -> None:
    replayed = replay_talk((talk[0], {}), instructions="Other.")
    assert replayed.divergences[0].recorded.startswith("sha256:")


def test_tool_model_and_parameter_changes_distinguished(talk: Talk) -> None:
    def look(city: str, days: int = 1) -> str:
        """Look ahead."""
        raise AssertionError("no tool is called")

    functions = [look, *a.functions[1:]]
    replayed = replay_talk(talk, functions=functions, model="another", parallel_tool_calls=False)
    assert list_kinds(replayed) == ["tool_schemas", "model", "parameters"]
    schemas, model, parameters = replayed.divergences
    assert schemas.actual[0]["function"]["description"] == "Look ahead."
    assert (model.recorded, model.actual) == ("gpt-4o", "another")
    assert parameters.actual["parallel_tool_calls"] is False


def test_missing_function_told_and_rest_continues(talk: Talk) -> None:
    replayed = replay_talk(talk, functions=a.functions[1:], ignore=["tool_schemas"])
    (found,) = replayed.divergences
    assert (found.kind, found.recorded) == ("missing_tool", "look")
    assert "remember" in found.actual
    assert replayed.last_seq == talk[0][-1].seq


def test_newly_refused_arguments_told(talk: Talk) -> None:
    def look(city: str, country: str) -> str:
        """Look at the weather."""
        raise AssertionError("no tool is called")

    replayed = replay_talk(talk, functions=[look, *a.functions[1:]], ignore=["tool_schemas"])
    (found,) = replayed.divergences
    assert (found.kind, found.recorded) == ("arguments", 'look: {"city": "Oslo"}')
    assert "country" in found.actual


def test_missing_agent_told_others_still_compared(talk: Talk) -> None:
    alone = Agent(name="A", functions=a.functions[:-1], instructions="Other.")
    replayed = replay_talk(talk, alone, ignore=["tool_schemas", "missing_tool"])
    assert list_kinds(replayed) == ["instructions", "agent"]
    assert (replayed.divergences[1].recorded, replayed.divergences[1].actual) == ("B", ["A"])
    assert (replayed.turns, replayed.last_seq) == (5, talk[0][-1].seq)


def test_newly_approved_function_told_and_rest_continues(talk: Talk) -> None:
    asking = tool(requires_approval=True)(lambda city: "never")
    asking.__name__, asking.__doc__, asking.__annotations__ = "look", "Look at the weather.", {"city": str}
    replayed = replay_talk(talk, functions=[asking, *a.functions[1:]], ignore=["tool_schemas"])
    assert list_kinds(replayed) == ["approval"]
    assert replayed.divergences[0].actual == "look needs an approval"
    assert replayed.last_seq == talk[0][-1].seq


def test_instructions_that_fail_today_are_told(talk: Talk) -> None:
    def failing() -> str:
        raise KeyError("gone")

    replayed = replay_talk(talk, instructions=failing)
    (found,) = replayed.divergences
    assert (found.kind, found.recorded) == ("instructions", "You are A.")
    assert "KeyError" in found.actual


def test_differently_read_context_shows(talk: Talk) -> None:
    def greeting(context_variables: dict[str, Any]) -> str:
        return f"You are B. Known: {sorted(context_variables)}"

    replayed = replay_talk(talk, today=b, instructions=greeting)
    assert list_kinds(replayed) == ["instructions", "instructions"]


def test_unreadable_event_ends_replay_and_named(talk: Talk) -> None:
    events = list(talk[0])
    events[5] = replace(events[5], fact=UnknownFact(), payload="null")
    assert events[5].type == "message.added"
    replayed = replay_talk((events, talk[1]))
    (found,) = replayed.divergences
    assert (found.kind, found.seq, found.recorded) == ("unreadable", 6, "message.added")


def test_a_redacted_input_changes_nothing(talk: Talk) -> None:
    events = list(talk[0])
    events[2] = replace(events[2], fact=UnknownFact(), payload="null")
    assert replay_talk((events, talk[1])).matches


def redact_event(event: RecordedEvent, **changes: Any) -> RecordedEvent:
    """The event with a stand-in, as a redaction leaves it."""
    return replace_payload(event, **changes, redacted=True)


def test_redacted_parts_passed_over_context_told(talk: Talk) -> None:
    events = list(talk[0])
    call = decode(events[3].payload)["message"]
    call["tool_calls"][0]["function"]["arguments"] = "{}"
    events[3] = redact_event(events[3], message=call)
    events[5] = redact_event(events[5])
    assert replay_talk((events, talk[1])).matches
    changes = [number for number, event in enumerate(events) if event.type == "context.updated"]
    events[changes[0]] = redact_event(events[changes[0]], patch={})
    replayed = replay_talk((events, talk[1]))
    assert replayed.matches
    assert replayed.redacted == [4, events[changes[0]].seq]
    assert replayed.last_seq == events[-1].seq


def test_redacted_run_options_are_not_missed(talk: Talk) -> None:
    events, begun = list(talk[0]), next(event for event in talk[0] if event.type == "run.started")
    options = {**decode(begun.payload)["options"], "model_settings": {"seed": 7}}
    events[begun.seq - 1] = begun = replace_payload(begun, options=options)
    for place, event in enumerate(events):
        record = get_request_record(event)
        if record is not None and event.run_id == begun.run_id:
            completion = decode(event.payload)["completion"]
            completion["request"]["params"]["seed"] = 7
            events[place] = replace_payload(event, completion=completion)
    assert replay_talk((events, talk[1])).matches
    events[begun.seq - 1] = replace_by_stand_in(begun)
    replayed = replay_talk((events, talk[1]))
    assert (replayed.divergences, replayed.redacted) == ([], [begun.seq])


def replace_payload(event: RecordedEvent, **changes: Any) -> RecordedEvent:
    payload = encode_text({**decode(event.payload), **changes})
    return replace(event, payload=payload, fact=upcast(event.type, event.version, payload))


def replace_by_stand_in(event: RecordedEvent) -> RecordedEvent:
    payload = redact_payload(event)
    return replace(event, payload=payload, fact=upcast(event.type, event.version, payload))


def test_differences_show_beside_redactions(talk: Talk) -> None:
    events = [replace_by_stand_in(event) if event.seq == 4 else event for event in talk[0]]
    replayed = replay_talk((events, talk[1]), instructions="You are somebody else.", functions=[remember, to_b])
    assert list_kinds(replayed)[:2] == ["missing_tool", "instructions"]
    assert (replayed.redacted, replayed.matches) == ([4], False)


async def test_instructions_may_be_asynchronous(talk: Talk) -> None:
    async def made() -> str:
        return "You are A."

    assert replay_talk(talk, instructions=made).matches


def test_events_in_another_order_are_told(talk: Talk) -> None:
    events = [event for event in talk[0] if event.seq != 5]
    replayed = replay_talk((events, talk[1]))
    assert list_kinds(replayed)[-1] == "order"


def test_unknown_kind_refused() -> None:
    with pytest.raises(InvalidRequest, match="tool_schemas"):
        check_kinds(["colour"])


async def test_replay_has_no_side_effects(
    cluster: EngineCluster, model: ScriptedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ready_url: str
) -> None:
    file = tmp_path / "effects"

    def effect() -> str:
        """Have an effect."""
        with file.open("a") as opened:
            opened.write("done\n")
        return "done"

    team = Agent(name="A", functions=[effect])
    engine = await cluster.begin(team)
    model.call("effect")
    model.say("Done.")
    await engine.run()
    assert file.read_text() == "done\n"
    before = await engine.read_log()
    store = open_store(ready_url, read_only=True)
    await store.ping()
    connect = socket.socket.connect

    def blocked(self: socket.socket, address: Any) -> None:
        # PostgreSQL's own socket is a file.
        assert self.family == socket.AF_UNIX, f"the network was used: {address}"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", blocked)
    replayed = await replay_session(store, Registry([team]), KEY)
    await store.close()
    assert (replayed.matches, replayed.turns) == (True, 2)
    assert file.read_text() == "done\n"
    assert await engine.read_log() == before


async def test_approved_call_cut_by_crash_matches(cluster: EngineCluster, model: ScriptedModel) -> None:
    gate = ToolGate()

    @tool(requires_approval=True)
    def pay() -> str:
        gate.enter()
        return "paid"

    team = Agent(name="A", functions=[pay])
    first = await cluster.begin(team)
    model.call("pay")
    asked = await first.run()
    approval = Approval(tool_call_id=asked.pending[0].tool_call_id, decision="approve")
    await first.runs.resume(KEY, "r1", approvals=[approval])
    await gate.wait_until_reached()
    await kill_engine(first)
    model.say("Done.")
    second = await cluster.open_engine(team)
    await second.wait()
    await gate.open()
    replayed = await replay_session(second.store, second.registry, KEY)
    assert (replayed.divergences, replayed.turns) == ([], 2)


async def test_missing_session_refused(cluster: EngineCluster) -> None:
    engine = await cluster.open_engine(a, b)
    with pytest.raises(SessionNotFound):
        await replay_session(engine.store, engine.registry, SessionKey("default", "nobody"))


@for_any(any_logs())
@settings(max_examples=examples(150))
def test_no_log_breaks_the_replay(events: list[RecordedEvent]) -> None:
    replayed = replay(events, Registry(TEAM), {})
    assert replayed.last_seq <= len(events)


# Every past request, put together again, is what the model received: to the byte.


async def find_answers(engine: Server, key: SessionKey = KEY) -> list[int]:
    """The seqs of the model's answers, in order."""
    facts = [(event.seq, event.fact) for event in await engine.read_log(key)]
    return [
        seq
        for seq, fact in facts
        if isinstance(fact, MessageAdded) and fact.completion is not None and fact.completion.request is not None
    ]


async def rebuild_all(engine: Server, key: SessionKey = KEY) -> list[bytes]:
    return [await rebuild_request(engine.store, key, seq) for seq in await find_answers(engine, key)]


@pytest.mark.parametrize("seed", range(100, 106))
async def test_every_request_rebuilt_exactly(cluster: EngineCluster, seed: int) -> None:
    generated = GeneratedConversation(SeededDice(seed))
    async with open_scripted_model(generated) as (model, client):
        engine = await cluster.open_engine(*TEAM, model=ChatModel(client))
        original, fork = await generated.run_conversation(engine)
        sent = model.raw_requests
        assert sent
        assert await rebuild_all(engine, original) == sent
        shared = await rebuild_all(engine, fork)
        assert shared == sent[: len(shared)]


async def test_request_with_partial_history_rebuilt(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(Agent(name="A"), limits=replace(LIMITS, history_turns=2))
    for number in range(4):
        model.say(f"answer {number}")
        await engine.run(f"question {number}", f"r{number}")
    assert len(model.requests[-1]["messages"]) < 8
    assert await rebuild_all(engine) == model.raw_requests


async def test_shortened_request_rebuilt(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(Agent(name="A"))
    for number in range(3):
        model.say(f"answer {number}")
        await engine.run(f"question {number}", f"r{number}")
    model.fail(400, code="context_length_exceeded")
    model.say("short")
    await engine.run("and now?", "last")
    assert (await rebuild_all(engine))[-1] == model.raw_requests[-1] != model.raw_requests[-2]


async def test_request_after_take_over_rebuilt(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(Agent(name="A"))
    await engine.start_hanging_run(model)
    await kill_engine(engine)
    model.say("again")
    other = await cluster.open_engine(Agent(name="A"))
    await other.wait()
    await other.wait_for_state(lambda state: state.run is None)
    assert await rebuild_all(other) == model.raw_requests[-1:]
    model.release()


async def test_non_answer_has_no_request(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(Agent(name="A"))
    model.say("hi")
    await engine.run()
    for seq in (1, 2, 3):
        with pytest.raises(EventNotFound):
            await rebuild_request(engine.store, KEY, seq)
    with pytest.raises(EventNotFound):
        await rebuild_request(engine.store, KEY, 99)


async def test_request_with_lost_parts_refused(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(Agent(name="A"))
    model.say("hi")
    await engine.run()
    (seq,) = await find_answers(engine)
    marked = (
        """UPDATE events SET payload = substr(payload, 1, length(payload) - 1) || ',"redacted":true}' WHERE seq = 3"""
    )
    await damage(engine, marked)
    with pytest.raises(RequestNotKept, match="event 3 was redacted"):
        await rebuild_request(engine.store, KEY, seq)
    await damage(engine, "UPDATE events SET payload = replace(payload, ',\"redacted\":true', '') WHERE seq = 3")
    await damage(engine, "DELETE FROM blobs")
    with pytest.raises(RequestNotKept, match="instructions"):
        await rebuild_request(engine.store, KEY, seq)
    await damage(engine, "UPDATE events SET payload = 'null' WHERE seq = 3")
    with pytest.raises(RequestNotKept, match="event 3 was redacted"):
        await rebuild_request(engine.store, KEY, seq)


async def damage(engine: Server, statement: str) -> None:
    await engine.store.database.write(  # type: ignore[attr-defined]
        lambda connection: connection.exec_driver_sql(statement)
    )
