"""What a model attaches to its replies: recorded, sent back to that model only, rebuilt, removed with its message."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from swarmkeep import Agent
from swarmkeep.events.codec import Json
from swarmkeep.events.records import RunOptions
from swarmkeep.history.export import iterate_keys, write_export
from swarmkeep.history.import_export import import_export
from swarmkeep.history.redact import redact
from swarmkeep.history.replay import rebuild_request, replay_session
from swarmkeep.runs.agents import Registry
from swarmkeep.store.records import SessionKey
from tests.runs.cluster import KEY, EngineCluster, Server, kill_engine
from tests.support.dialects import DIALECTS, Answer, DialectModel
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

SERVERS = ("gemini", "deepseek", "openrouter", "mistral", "litellm")


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def transfer() -> Agent:
    """Hand over."""
    return SECOND


FIRST = Agent(name="First", model=DIALECTS["gemini"].model, functions=[get_weather, transfer])
SECOND = Agent(name="Second", model=DIALECTS["openai"].model)


def reply_to(messages: Sequence[Json]) -> Answer:
    """Calls what the user names, function by function, and says so."""
    last = max(place for place, message in enumerate(messages) if message["role"] == "user")
    said = messages[last]["content"]
    names = said.split()
    done = sum(message["role"] == "assistant" for message in messages[last:])
    if messages[0]["content"].startswith("You sum up"):
        return Answer("They spoke of the weather.")
    if done < len(names) and names[done] in ("get_weather", "transfer"):
        arguments = {"city": "Rome"} if names[done] == "get_weather" else {}
        return Answer(calls=((names[done], arguments),))
    return Answer(f"Done after {done}.")


@pytest.fixture
def fake() -> DialectModel:
    return DialectModel(reply_to)


@pytest.fixture
def model(fake: DialectModel) -> Iterator[ScriptedModel]:
    with ScriptedModel(default=fake, strict=False) as scripted:
        yield scripted


async def check_rebuilt(engine: Server, model: ScriptedModel, key: SessionKey = KEY) -> None:
    answers = await engine.find_answers(key)
    assert [await rebuild_request(engine.store, key, seq) for seq in answers] == model.raw_requests[-len(answers) :]


def find_attached(request: Json) -> list[Any]:
    """What each assistant's message of a request has beside Chat Completions' own keys."""
    own = {"role", "content", "tool_calls", "refusal"}
    found = []
    for message in request["messages"]:
        if message["role"] == "assistant":
            calls = [
                key for call in message.get("tool_calls", []) for key in call if key not in ("id", "type", "function")
            ]
            parts = [part["type"] for part in message["content"]] if isinstance(message["content"], list) else []
            found.append([*sorted(message.keys() - own), *calls, *parts])
    return found


@pytest.mark.parametrize("name", SERVERS)
async def test_attachments_come_back_to_their_model(
    name: str, cluster: EngineCluster, model: ScriptedModel, fake: DialectModel
) -> None:
    agent = Agent(name="A", model=DIALECTS[name].model, functions=[get_weather])
    engine = await cluster.begin(agent)
    for number, text in enumerate(("get_weather", "get_weather")):
        ended = await engine.run(text, f"r{number}")
        assert (ended.status, ended.error) == ("completed", None)
    assert fake.refused == []
    assert find_attached(model.requests[-1])[0]
    assert find_attached(model.requests[-1])[2]
    await check_rebuilt(engine, model)
    views = [entry.view() for entry in (await engine.read_state()).messages]
    assert [view for view in views if "provider" in view or isinstance(view["content"], list)] == []
    replayed = await replay_session(engine.store, Registry([agent]), KEY)
    assert (replayed.matches, replayed.turns) == (True, 4)


async def test_another_model_is_not_sent_attachments(
    cluster: EngineCluster, model: ScriptedModel, fake: DialectModel
) -> None:
    engine = await cluster.begin(FIRST, SECOND)
    await engine.run("get_weather transfer")
    await engine.sessions.update(KEY, agent="First")
    await engine.run("get_weather", "r2")
    assert fake.refused == []
    signed = ["extra_content"]
    assert [find_attached(request) for request in model.requests] == [
        [], [signed], [[], []], [signed, signed, []], [signed, signed, [], signed],
    ]  # fmt: skip
    await check_rebuilt(engine, model)


async def test_attachments_outlive_crash_fork_and_compaction(
    cluster: EngineCluster, model: ScriptedModel, fake: DialectModel
) -> None:
    agent = Agent(name="A", model=DIALECTS["gemini"].model, functions=[get_weather])
    first = await cluster.begin(agent)
    await first.run("get_weather", "r0")
    await kill_engine(first)
    engine = await cluster.open_engine(agent)
    await engine.run("get_weather", "r1")
    await check_rebuilt(engine, model)
    await engine.sessions.fork(KEY, session_id="fork")
    fork = SessionKey(KEY.tenant, "fork")
    await engine.run("get_weather", "r2", fork)
    assert await rebuild_request(engine.store, fork, (await engine.find_answers(fork))[-1]) == model.raw_requests[-1]
    assert [attached for attached in find_attached(model.requests[-1]) if attached] == [["extra_content"]] * 3
    await engine.compactions.compact(KEY, keep_turns=1)
    await engine.run("get_weather", "r3")
    assert ["extra_content"] in find_attached(model.requests[-1])
    assert await rebuild_request(engine.store, KEY, (await engine.find_answers())[-1]) == model.raw_requests[-1]
    assert fake.refused == []


@pytest.mark.parametrize("way", ["redacted", "content", "call", "message"])
async def test_attachments_go_with_what_they_came_with(way: str, cluster: EngineCluster, model: ScriptedModel) -> None:
    attached: Json = {"reasoning_content": "secret thought", "extra": [1]}
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Rome"}'}}
    message = {"role": "assistant", "content": "Look.", "tool_calls": [{**call, "seal": "secret seal"}], **attached}
    engine = await cluster.begin(Agent(name="A", model=DIALECTS["openai"].model, functions=[get_weather]))
    model.raw({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
    model.raw(
        {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Sunny."}, "finish_reason": "stop"}]}
    )
    await engine.run()
    seq = (await engine.find_answers())[0]
    assert "secret seal" in model.raw_requests[-1].decode()
    assert "secret thought" in model.raw_requests[-1].decode()
    match way:
        case "redacted":
            await redact(engine.store, KEY, [seq], reason="asked to")
            assert "secret" not in "".join(event.payload for event in await engine.read_log())
        case "call":
            await engine.sessions.remove_message(KEY, seq, "c1")
        case _:
            await engine.sessions.remove_message(KEY, seq)
    model.raw({"choices": [{"index": 0, "message": {"role": "assistant", "content": "Bye."}, "finish_reason": "stop"}]})
    await engine.run("bye", "r2")
    sent = model.raw_requests[-1].decode()
    assert "secret seal" not in sent
    assert ("secret thought" in sent) == (way == "call")


async def test_exports_keep_attachments(cluster: EngineCluster, model: ScriptedModel, fake: DialectModel) -> None:
    agent = Agent(name="A", model=DIALECTS["gemini"].model, functions=[get_weather])
    engine = await cluster.begin(agent)
    await engine.run("get_weather")
    exported = [piece async for piece in write_export(engine.store, iterate_keys([KEY]), alone=True)]
    file = io.BytesIO(b"".join(exported))
    await import_export(engine.store, "other", file)
    key = SessionKey("other", KEY.id)
    await engine.run("get_weather", "r2", key)
    assert fake.refused == []
    assert [attached for attached in find_attached(model.requests[-1]) if attached] == [["extra_content"]] * 2


async def test_a_run_may_overrule_the_profile(cluster: EngineCluster, model: ScriptedModel, fake: DialectModel) -> None:
    engine = await cluster.begin(Agent(name="A", model=DIALECTS["deepseek"].model, functions=[get_weather]))
    await engine.run("get_weather")
    profile: Json = {"attachments": "omit", "parallel_tool_calls": "omit"}
    ended = await engine.run("hello", "r2", options=RunOptions(model_profile=profile))
    assert ended.error is not None
    assert "parallel_tool_calls" not in model.requests[-1]
    assert find_attached(model.requests[-1]) == [[], []]
