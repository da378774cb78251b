"""Histories longer than a model's window: shortened, summed up, and whole in the log."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import msgspec
import pytest
from openai import AsyncOpenAI

from swarmkeep import Agent, Compaction
from swarmkeep.decide.commands import StartRun, start_run
from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import QuotaExceeded, RequestNotKept, SessionBusy
from swarmkeep.events.facts import CompactionFailed, CompactionStarted, CompactionSummarised, MessageAdded
from swarmkeep.events.messages import SHORTENED_HEADING as HEADING
from swarmkeep.events.records import RunOptions
from swarmkeep.events.state import State
from swarmkeep.history.redact import redact
from swarmkeep.history.replay import rebuild_request
from swarmkeep.history.verify import verify
from swarmkeep.models.failures import REMOVED, Secrets
from swarmkeep.models.model import ChatModel, TurnFailed
from swarmkeep.runs.unstored import UnstoredSession
from swarmkeep.store.records import SessionKey
from tests.runs.cluster import KEY, LIMITS, EngineCluster, Server, kill_engine
from tests.runs.swarm.runners import open_async
from tests.support.scripted import ScriptedModel
from tests.support.scripted.replies import Call, Completion, Raw, Reply

pytestmark = pytest.mark.one_database

SECRET = "sk-canary-0123456789"
WINDOW = 1_000
"""What the model can take, in tokens of four characters."""


def is_summary_request(request: Json) -> bool:
    return str(request["messages"][0]["content"]).startswith("You sum up a conversation")


def count_tokens(request: Json) -> int:
    return len(json.dumps(request["messages"])) // 4


class SmallModel:
    """A model that counts what it is sent, and refuses what is too much.

    It answers with the number of its replies so far, and calls a function whenever a user says `look`.
    """

    def __init__(self, *, window: int = WINDOW, counts: bool = True) -> None:
        self.window = window
        self.counts = counts
        self.refused = 0
        self.fails_summaries = False
        self.summaries = 0

    def __call__(self, request: Json) -> Reply:
        tokens = count_tokens(request)
        if tokens > self.window:
            self.refused += 1
            error = {"message": "too many tokens", "type": "x", "param": None, "code": "context_length_exceeded"}
            return Raw(body=msgspec.json.encode({"error": error}), status=400, headers={"x-should-retry": "false"})
        usage = {"prompt_tokens": tokens, "completion_tokens": 5, "total_tokens": tokens + 5} if self.counts else {}
        if is_summary_request(request):
            if self.fails_summaries:
                return Raw(body=b'{"error": {"message": "no"}}', status=403)
            self.summaries += 1
            return Completion(pieces=[f"summary {self.summaries}"], usage=usage)
        last = request["messages"][-1]
        if last["role"] == "user" and "look" in last["content"]:
            return Completion(calls=[Call("look_up", {"order": "17"})], usage=usage)
        return Completion(pieces=["It is so."], usage=usage)


def make_history(turns: int, characters: int) -> list[Json]:
    return [
        message
        for number in range(turns)
        for message in (
            {"role": "user", "content": f"{number} " + "y" * characters},
            {"role": "assistant", "content": "I see."},
        )
    ]


def look_up(order: str) -> str:
    """Look an order up."""
    return f"order {order}: " + "x" * 1_200


AGENT = Agent(
    name="A", functions=[look_up], compaction=Compaction(of_tokens=WINDOW, keep_turns=2, result_characters=300)
)


@pytest.fixture
async def opened(cluster: EngineCluster) -> Any:
    """An engine on a small model, the model, and what it was asked."""
    small = SmallModel()
    with ScriptedModel(default=small) as scripted:
        async with open_async(scripted.url) as client:
            engine = await cluster.begin(AGENT, model=ChatModel(client))
            yield engine, small, scripted


async def list_facts(engine: Server, kind: type[Any]) -> list[Any]:
    return [event.fact for event in await engine.read_log() if isinstance(event.fact, kind)]


def list_tokens_of_log(state: State) -> int:
    return sum(len(json.dumps(entry.message)) for entry in state.messages) // 4


@pytest.mark.long
async def test_tenfold_window_session_reaches_its_end(opened: Any) -> None:
    engine, small, scripted = opened
    for number in range(32):
        text = f"{number}: " + ("look" if number % 4 == 0 else "tell me") + " " + "y" * 900
        run = await engine.run(text, f"r{number}")
        assert (run.status, run.error) == ("completed", None)
    state = await engine.read_state()
    assert list_tokens_of_log(state) > 10 * WINDOW
    assert small.summaries >= 8
    assert count_tokens(scripted.requests[-1]) <= WINDOW
    summed_up = next(message for message in scripted.requests[-1]["messages"][1:] if message["role"] == "user")
    assert summed_up["content"].startswith(HEADING)
    # The log, and so each fork of it, has all of it.
    asked = [entry.message["content"] for entry in state.messages if entry.role == "user"]
    assert [text.split(":")[0] for text in asked] == [str(number) for number in range(32)]
    assert state.message_count == len(state.messages) == 32 * 2 + 8 * 2
    await engine.check_log()
    # Each request that was answered is rebuilt, the summaries' among them.
    answered = [
        raw for raw, request in zip(scripted.raw_requests, scripted.requests, strict=True)
        if count_tokens(request) <= WINDOW
    ]  # fmt: skip
    assert [await rebuild_request(engine.store, KEY, seq) for seq in await engine.find_answers()] == answered
    assert state.usage.model_calls == len(answered)
    first = (await list_facts(engine, CompactionStarted))[0]
    at = next(event.seq for event in await engine.read_log() if event.fact == first)
    fork = await engine.sessions.fork(KEY, at=at - 1)
    forked = await engine.store.state(SessionKey(KEY.tenant, fork.id))
    assert (forked.summary, any(entry.shortened for entry in forked.messages)) == (None, False)


@pytest.mark.parametrize("counts", [True, False])
async def test_compaction_decides_on_counts_or_estimates(opened: Any, counts: bool) -> None:
    engine, small, scripted = opened
    small.counts = counts
    for number in range(6):
        await engine.run("y" * 800, f"r{number}")
    started = await list_facts(engine, CompactionStarted)
    assert {(fact.reason, fact.estimated) for fact in started} == {("tokens", not counts)}
    if counts:
        sent = [count_tokens(request) for request in scripted.requests]
        assert all(fact.prompt_tokens in sent and fact.prompt_tokens >= 0.8 * WINDOW for fact in started)


async def test_long_results_are_shortened_with_their_calls(opened: Any) -> None:
    engine, _, scripted = opened
    for number in range(8):
        await engine.run(f"look {number} " + "y" * 100, f"r{number}")
    shortened = [seq for fact in await list_facts(engine, CompactionStarted) for seq in fact.shortened]
    assert shortened
    for request in scripted.requests:
        calls = [call["id"] for message in request["messages"] for call in message.get("tool_calls", ())]
        results = [message["tool_call_id"] for message in request["messages"] if message["role"] == "tool"]
        assert calls == results
    state = await engine.read_state()
    entries = [entry for entry in state.messages if entry.seq in shortened]
    assert [entry.seq for entry in entries] == sorted(shortened)
    for entry in entries:
        assert "characters left out" in entry.chat_message["content"]
        assert len(entry.view()["content"]) > 1_200


async def test_provider_overflow_compacts_before_dropping(opened: Any) -> None:
    engine, small, _ = opened
    small.window = 100_000
    for number in range(4):
        await engine.run(f"{number} " + "y" * 500, f"r{number}")
    small.window = 560
    run = await engine.run("and now?", "last")
    assert run.status == "completed"
    assert [fact.reason for fact in await list_facts(engine, CompactionStarted)] == ["too_long"]
    answer = (await list_facts(engine, MessageAdded))[-1]
    assert answer.completion.request.history_from is msgspec.UNSET


async def test_failed_summary_is_event_and_session_continues(opened: Any) -> None:
    engine, small, _ = opened
    small.fails_summaries = True
    for number in range(8):
        run = await engine.run(f"{number} " + "y" * 800, f"r{number}")
        assert run.status == "completed"
    failed = await list_facts(engine, CompactionFailed)
    assert failed
    assert failed[0].code == "provider_permission"
    small.fails_summaries = False
    for number in range(8, 12):
        assert (await engine.run(f"{number} " + "y" * 800, f"r{number}")).status == "completed"
    assert await list_facts(engine, CompactionSummarised)
    await engine.check_log()


async def test_summary_is_made_in_fitting_pieces(opened: Any) -> None:
    engine, small, scripted = opened
    small.window = 100_000
    for number in range(12):
        await engine.run(f"{number} " + "y" * 700, f"r{number}", agent=None)
    small.window = WINDOW
    pieces = await list_facts(engine, CompactionSummarised)
    done = await engine.compactions.compact(KEY, keep_turns=1)
    pieces = await list_facts(engine, CompactionSummarised)
    assert len(pieces) > 2
    assert done.error is None
    assert [fact.last_seq for fact in pieces] == sorted({fact.last_seq for fact in pieces})
    assert (done.summary, done.last_seq) == (pieces[-1].summary, pieces[-1].last_seq)
    asked = [request for request in scripted.requests if is_summary_request(request)]
    assert all("summary" in request["messages"][1]["content"] for request in asked[1:])


@pytest.mark.parametrize("asked", [False, True])
async def test_kill_during_summary_loses_nothing(
    cluster: EngineCluster, async_client: AsyncOpenAI, model: ScriptedModel, asked: bool
) -> None:
    engine = await cluster.open_engine(AGENT)
    history = make_history(6, 800)
    await engine.open_session(messages=history)
    model.hang(then="never heard")
    # What the run brings is one of the turns that stay, so there is one more to sum up.
    pieces = 2 if asked else 3
    for number in range(1, pieces + 1):
        model.say(f"{number} of {pieces}")
    model.say("Done.")
    if asked:
        task = asyncio.create_task(engine.compactions.compact(KEY))
        await model.wait_for_requests_async(1)
        task.cancel()
        await asyncio.wait([task])
    else:
        await engine.start_run("And now?", "r1")
        await model.wait_for_requests_async(1)
    assert is_summary_request(model.requests[0])
    await kill_engine(engine)
    model.release()
    second = await cluster.open_engine(AGENT)
    if asked:
        await second.start_run("And now?", "r1")
    run = await second.wait()
    assert (run.status, run.output_text) == ("completed", "Done.")
    types = await second.read_types()
    assert (types.count("compaction.started"), types.count("compaction.summarised")) == (1, pieces)
    assert model.raw_requests[0] == model.raw_requests[1]
    assert f"1 of {pieces}" in model.requests[2]["messages"][1]["content"]
    assert model.requests[-1]["messages"][1]["content"] == f"{HEADING}\n\n{pieces} of {pieces}"


async def test_redacting_covered_words_removes_summary(opened: Any) -> None:
    engine, _, scripted = opened
    for number in range(10):
        await engine.run(f"canary-{number} " + "y" * 800, f"r{number}")
    summaries = [event for event in await engine.read_log() if isinstance(event.fact, CompactionSummarised)]
    assert len(summaries) > 2
    first, second = summaries[0].fact, summaries[1].fact
    assert isinstance(first, CompactionSummarised)
    assert isinstance(second, CompactionSummarised)
    done = await redact(engine.store, KEY, [second.last_seq], "asked for", publish=engine.publish)
    assert done.seqs == sorted([second.last_seq, *(event.seq for event in summaries[1:])])
    state = await engine.read_state()
    assert (state.summary.text, state.summary.last_seq) == (first.summary, first.last_seq)
    assert (await verify(engine.store, KEY)).problems == []
    with pytest.raises(RequestNotKept):
        await rebuild_request(engine.store, KEY, (await engine.find_answers())[-1])
    assert (await engine.run("Go on.", "last")).status == "completed"
    assert await rebuild_request(engine.store, KEY, (await engine.find_answers())[-1]) == scripted.raw_requests[-1]


@pytest.mark.parametrize("crossing", ["redact", "remove", "recreate"])
async def test_summary_of_removed_words_is_dropped(cluster: EngineCluster, model: ScriptedModel, crossing: str) -> None:
    engine = await cluster.open_engine(Agent(name="A"))
    history = [{"role": role, "content": f"{SECRET} {number}"} for number in range(6) for role in ("user", "assistant")]
    await engine.open_session(messages=history)
    model.hang(then=f"They said {SECRET}.")
    asked = asyncio.ensure_future(engine.compactions.compact(KEY, keep_turns=1))
    await model.wait_for_requests_async(1)
    log = await engine.read_log()
    if crossing == "redact":
        await redact(engine.store, KEY, [event.seq for event in log], "private", publish=engine.publish)
    elif crossing == "remove":
        for entry in list((await engine.read_state()).messages):
            await engine.sessions.remove_message(KEY, entry.seq)
    else:
        await engine.sessions.delete(KEY, force=True)
        clean = [{**message, "content": "hello"} for message in history]
        await engine.open_session(messages=clean)
        await engine.store.append(KEY, await engine.read_state(), draft_events("A", [log[-1].fact], None))
    model.say("They said hello.")
    model.release()
    if crossing == "remove":
        # There is nothing left to sum up.
        model._replies.clear()
    await asked
    state = await engine.read_state()
    assert state.compaction is None
    assert SECRET not in repr(state.summaries)
    assert SECRET not in str(model.requests[1:])
    assert (await verify(engine.store, KEY)).valid


async def test_idle_session_compacts_on_request(opened: Any) -> None:
    engine, small, scripted = opened
    small.window = 100_000
    plain = SessionKey(KEY.tenant, "plain")
    history = make_history(6, 50)
    await engine.open_session(plain, messages=history)
    done = await engine.compactions.compact(plain, keep_turns=2, instructions="In French.", by="Lee")
    assert (done.summary, done.first_seq, done.error) == ("summary 1", 2, None)
    assert scripted.requests[-1]["messages"][0]["content"].endswith("In French.")
    again = await engine.compactions.compact(plain, keep_turns=2)
    assert (again.summary, again.session.seq) == (done.summary, done.session.seq)
    await engine.run("look", "r1", plain)
    scripted.hang()
    await engine.start_run("wait", "r2", key=plain)
    with pytest.raises(SessionBusy):
        await engine.compactions.compact(plain)
    scripted.release()
    await engine.wait("r2", plain)
    assert (await verify(engine.store, plain)).problems == []


async def test_forks_are_sent_their_own_summaries(opened: Any) -> None:
    """They grew from one state in memory, and are summed up by events of the same seq."""
    engine, small, scripted = opened
    small.window = 100_000
    await engine.open_session(key := SessionKey(KEY.tenant, "plain"), messages=make_history(6, 50))
    for number in (1, 2):
        fork = SessionKey(KEY.tenant, f"fork-{number}")
        await engine.sessions.fork(key, session_id=fork.id)
        await engine.compactions.compact(fork, keep_turns=2)
        await engine.run("And?", f"r{number}", fork)
        assert scripted.requests[-1]["messages"][1]["content"] == f"{HEADING}\n\nsummary {number}"
        assert (
            await rebuild_request(engine.store, fork, (await engine.find_answers(fork))[-1])
            == scripted.raw_requests[-1]
        )


async def test_unstored_session_summary_has_no_secrets(cluster: EngineCluster, model: ScriptedModel) -> None:
    def fail_with_secret(context_variables: dict[str, Any]) -> str:
        raise RuntimeError(f"cannot reach {SECRET}")

    engine = await cluster.open_engine(
        Agent(name="A"), Agent(name="B", instructions=fail_with_secret), secrets=Secrets([SECRET])
    )
    state = await engine.read_state(await engine.open_session(messages=[{"role": "user", "content": "hello"}]))
    model.fail(401, message=f"Incorrect API key provided: {SECRET}")
    with pytest.raises(TurnFailed, match=re.escape(f"provided: {REMOVED}")):
        await engine.compactions.sum_up(state)
    model.say(f"They know {SECRET}.")
    assert (await engine.compactions.sum_up(state)).text == f"They know {REMOVED}."
    asked = StartRun(run_id="r1", messages=(), agent="B")
    with pytest.raises(TurnFailed, match=re.escape(f"cannot reach {REMOVED}")):
        await engine.unstored.preview(UnstoredSession(state), lambda state: start_run(state, asked), RunOptions())


async def test_remaining_history_waits_for_tokens(cluster: EngineCluster, model: ScriptedModel) -> None:
    limits = msgspec.structs.replace(LIMITS, max_tokens_per_day=1)
    engine = await cluster.open_engine(Agent(name="A"), limits=limits)
    said = [{"role": role, "content": role * 3_000} for _ in range(3) for role in ("user", "assistant")]
    await engine.open_session(messages=said)
    model.say("The first part.")
    with pytest.raises(QuotaExceeded):
        await engine.compactions.compact(KEY, keep_turns=1)
    assert (await engine.read_state()).compaction is not None
    more = await cluster.open_engine(Agent(name="A"))
    model.say("Both parts.")
    assert (await more.compactions.compact(KEY, keep_turns=1)).summary == "Both parts."
