"""Calls that the end of a reply cut: none is started, by whichever door it came, and its model is told so."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from swarmkeep import Agent, tool
from swarmkeep.events.codec import Json
from swarmkeep.events.facts import ApprovalRequested, MessageAdded, ToolStarted
from swarmkeep.events.messages import find_cut_calls
from swarmkeep.events.records import CallerFunction, CallerTool, CompletionRecord, RequestRecord, RunOptions
from swarmkeep.history.replay import replay_session
from swarmkeep.runs.agents import Registry
from swarmkeep.store.records import SessionKey
from tests.runs.cluster import KEY, EngineCluster, Server, kill_engine, list_results
from tests.support.scripted import ScriptedModel
from tests.support.scripted.replies import Call

pytestmark = pytest.mark.one_database

RAN: list[str] = []
CALLER_TOOL = CallerTool(
    function=CallerFunction(name="shop", parameters={"type": "object", "properties": {"q": {"type": "string"}}})
)


class Order(BaseModel):
    sku: str = "A-17"


@pytest.fixture(autouse=True)
def ran() -> list[str]:
    RAN.clear()
    return RAN


def cancel_orders(which: str = "all") -> str:
    RAN.append(f"cancel {which}")
    return f"canceled {which}"


def ping() -> str:
    RAN.append("ping")
    return "pong"


@tool(requires_approval=True)
def pay(amount: int = 5000) -> str:
    RAN.append(f"pay {amount}")
    return "paid"


@tool(concurrent=True)
def look(where: str = "everywhere") -> str:
    RAN.append(f"look {where}")
    return "seen"


CLERK = Agent(name="Clerk")
DESK = Agent(
    name="Desk",
    functions=[cancel_orders, ping, pay, look, CLERK.as_tool("ask_clerk", "Ask the clerk.")],
    concurrent_tools=True,
)
BY_CALL = Agent(name="Desk", output_type=Order, output_mode="tool", functions=[cancel_orders])
FORMED = Agent(name="Desk", output_type=Order)


def stream_calls(calls: Sequence[tuple[str, str]], finish_reason: str | None) -> list[Json]:
    """The chunks of a reply with these calls."""
    pieces = [
        {"index": at, "id": f"c{at}", "type": "function", "function": {"name": name, "arguments": text}}
        for at, (name, text) in enumerate(calls)
    ]
    deltas: list[Json] = [{"tool_calls": [piece]} for piece in pieces]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    ends = [] if finish_reason is None else [{"index": 0, "delta": {}, "finish_reason": finish_reason}]
    return [{"id": "x", "object": "chat.completion.chunk", "choices": [choice]} for choice in [*choices, *ends]]


def script_calls(model: ScriptedModel, how: str, *calls: tuple[str, str]) -> None:
    if how == "no finish":
        model.chunks(stream_calls(calls, None))
        return
    given = [Call(name, text, f"c{at}") for at, (name, text) in enumerate(calls)]
    model.calls(given, finish_reason=how.removeprefix("streamed "))


def options_of(how: str, **options: Any) -> RunOptions:
    return RunOptions(stream=how.startswith("streamed") or how == "no finish", **options)


ENDS_CUT = ["length", "streamed length", "streamed MAX_TOKENS", "no finish"]
HOW = pytest.mark.parametrize("how", ENDS_CUT)
# Half of the arguments, none of them, and what some servers send first. A stream without a reason that ends within the
# arguments is a failure of the provider: see below.
PIECES = pytest.mark.parametrize(
    ("how", "arguments"),
    [(how, text) for how in ENDS_CUT for text in ('{"wh', "", "{}") if how != "no finish" or text != '{"wh'],
)


async def check_log(engine: Server, model: ScriptedModel) -> None:
    """Nothing was started or asked, and the log is in order."""
    events = await engine.read_log()
    assert not [event for event in events if isinstance(event.fact, ApprovalRequested | ToolStarted)]
    await engine.check_log(model)


@PIECES
@pytest.mark.parametrize("name", ["cancel_orders", "pay", "look", "ask_clerk", "unknown"])
async def test_cut_call_is_told_not_run(
    cluster: EngineCluster, model: ScriptedModel, how: str, arguments: str, name: str
) -> None:
    engine = await cluster.begin(DESK)
    script_calls(model, how, (name, arguments))
    model.say("Sorry.")
    view = await engine.run(options=options_of(how))
    assert (view.status, view.stop_reason, view.pending) == ("completed", "end_turn", ())
    [(status, text)] = list_results(await engine.read_log())
    assert status == "error"
    assert f"{name} was not run" in text
    assert ("cut off" if how != "no finish" else "without saying") in text
    assert RAN == []
    await check_log(engine, model)


@HOW
async def test_whole_calls_before_cut_one_run(cluster: EngineCluster, model: ScriptedModel, how: str) -> None:
    engine = await cluster.begin(DESK)
    given = [("look", '{"where": "a"}'), ("look", "{}"), ("cancel_orders", '{"which": "A-1"}'), ("pay", "{}")]
    script_calls(model, how, *given)
    model.say("Done.")
    view = await engine.run(options=options_of(how))
    assert view.status == "completed"
    assert sorted(RAN) == ["cancel A-1", "look a", "look everywhere"]
    assert sorted(status for status, _ in list_results(await engine.read_log())) == ["error", "ok", "ok", "ok"]
    assert [message["tool_call_id"] for message in model.requests[1]["messages"][-4:]] == ["c0", "c1", "c2", "c3"]
    assert (await replay_session(engine.store, Registry([DESK]), KEY)).matches


@HOW
@pytest.mark.parametrize("arguments", ["", "{}", "null"])
async def test_functions_without_parameters_need_no_arguments(
    cluster: EngineCluster, model: ScriptedModel, how: str, arguments: str
) -> None:
    engine = await cluster.begin(DESK)
    script_calls(model, how, ("ping", arguments))
    model.say("Done.")
    await engine.run(options=options_of(how))
    assert (RAN, list_results(await engine.read_log())) == (["ping"], [("ok", "pong")])


async def test_complete_calls_may_omit_arguments(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(DESK)
    function = {"name": "cancel_orders"}
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c0", "type": "function", "function": function}],
    }
    model.raw({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    model.call("cancel_orders", "")
    model.call("cancel_orders", "null")
    model.say("Done.")
    await engine.run()
    assert RAN == ["cancel all", "cancel all"]
    assert [status for status, _ in list_results(await engine.read_log())] == ["ok", "ok", "error"]


@PIECES
@pytest.mark.parametrize("outside", ["caller's", "not executed"])
async def test_cut_caller_function_ends_the_run(
    cluster: EngineCluster, model: ScriptedModel, how: str, arguments: str, outside: str
) -> None:
    engine = await cluster.begin(DESK)
    name = "shop" if outside == "caller's" else "cancel_orders"
    given: Json = {"tools": (CALLER_TOOL,)} if outside == "caller's" else {"execute_tools": False}
    script_calls(model, how, (name, arguments))
    view = await engine.run(options=options_of(how, **given))
    assert (view.status, view.stop_reason, view.pending) == ("failed", "error", ())
    assert (view.error.code, name in view.error.message) == ("reply_cut", True)
    assert [status for status, _ in list_results(await engine.read_log())] == ["error"]
    await check_log(engine, model)


async def test_whole_caller_calls_stay_pending(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(DESK)
    script_calls(model, "length", ("shop", '{"q": "tea"}'), ("shop", '{"q": "ca'))
    view = await engine.run(options=RunOptions(tools=(CALLER_TOOL,)))
    assert (view.status, [call.tool_call_id for call in view.pending]) == ("waiting", ["c0"])
    await check_log(engine, model)


@PIECES
async def test_a_cut_output_is_not_taken(
    cluster: EngineCluster, model: ScriptedModel, how: str, arguments: str
) -> None:
    engine = await cluster.begin(BY_CALL)
    script_calls(model, how, ("final_output", arguments))
    model.call("final_output", {"sku": "B-2"})
    view = await engine.run(options=options_of(how))
    assert (view.status, view.output) == ("completed", {"sku": "B-2"})
    assert [status for status, _ in list_results(await engine.read_log())] == ["error", "ok"]
    assert "cut off" in (list_results(await engine.read_log()))[0][1]
    await check_log(engine, model)


@pytest.mark.parametrize("text", ['{"sku": "A', "Two of"])
async def test_cut_text_is_not_paid_twice(cluster: EngineCluster, model: ScriptedModel, text: str) -> None:
    engine = await cluster.begin(FORMED)
    model.say(text, finish_reason="length")
    view = await engine.run()
    assert (view.status, view.error.code) == ("failed", "output_invalid")
    assert "cut off at the limit of tokens" in view.error.message
    await check_log(engine, model)


async def test_cut_number_is_no_output(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(Agent(name="Desk", output_type={"type": "integer"}))
    model.say("12", finish_reason="length")
    assert (await engine.run()).status == "failed"


@pytest.mark.parametrize(("options", "turns", "reason"), [({}, 3, "error"), ({"max_turns": 2}, 2, "max_turns")])
async def test_always_cut_replies_end_the_run(
    cluster: EngineCluster, model: ScriptedModel, options: Json, turns: int, reason: str
) -> None:
    engine = await cluster.begin(DESK)
    for number in range(turns):
        script_calls(model, "length", ("cancel_orders", '{"which": "' + "A" * number))
    view = await engine.run(options=RunOptions(**options))
    assert (view.status, view.stop_reason, view.error.code) == ("failed", reason, "reply_cut")
    assert "max_tokens" in view.error.message
    await check_log(engine, model)
    # The next run begins to count anew.
    script_calls(model, "length", ("cancel_orders", '{"wh'))
    model.say("Sorry.")
    assert (await engine.run("Again.", "r2")).status == "completed"


@pytest.mark.parametrize("stream", [False, True])
async def test_filtered_reply_runs_no_calls(cluster: EngineCluster, model: ScriptedModel, stream: bool) -> None:
    engine = await cluster.begin(DESK)
    model.calls([Call("cancel_orders", '{"which": "A-1"}'), Call("pay", "{}")], finish_reason="content_filter")
    view = await engine.run(options=RunOptions(stream=stream))
    assert (view.status, view.error.code, RAN) == ("failed", "content_filter", [])


@pytest.mark.parametrize(("arguments", "is_dropped"), [("{}", True), ('{"wh', True), ('{"wh', False)])
async def test_broken_stream_runs_nothing(
    cluster: EngineCluster, model: ScriptedModel, arguments: str, is_dropped: bool
) -> None:
    engine = await cluster.begin(DESK)
    model.chunks(stream_calls([("cancel_orders", arguments)], None), done=not is_dropped, drop=is_dropped)
    view = await engine.run(options=RunOptions(stream=True))
    assert (view.status, view.error.code, RAN) == ("failed", "provider_stream_cut", [])


async def test_fork_within_commit_starts_nothing(cluster: EngineCluster, model: ScriptedModel) -> None:
    """The reply alone, as after a crash of a release that recorded no more: what follows is derived from it."""
    engine = await cluster.begin(DESK)
    script_calls(model, "length", ("pay", '{"amount": 1}'), ("cancel_orders", "{}"))
    view = await engine.run()
    assert view.status == "waiting"
    reply = next(e.seq for e in await engine.read_log() if isinstance(e.fact, MessageAdded) and e.fact.completion)
    fork = SessionKey(KEY.tenant, "fork")
    await engine.sessions.fork(KEY, at=reply, session_id=fork.id)
    await engine.runs.resume(fork, "r1")
    view = await engine.wait(key=fork)
    assert (view.status, [call.name for call in view.pending], RAN) == ("waiting", ["pay"], [])
    await kill_engine(engine)
    other = await cluster.open_engine(DESK)
    results = [e.fact for e in await other.read_log(fork) if isinstance(e.fact, MessageAdded) and e.fact.tool]
    assert [fact.message["tool_call_id"] for fact in results] == ["c1"]


OBJECTS = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5) | st.none(), max_size=3).map(
    json.dumps
)
ENDS: Sequence[Callable[[], CompletionRecord]] = [
    lambda: CompletionRecord(finish_reason="length"),
    lambda: CompletionRecord(finish_reason="max_tokens"),
    lambda: CompletionRecord(finish_reason="content_filter"),
    lambda: CompletionRecord(finish_reason="network_error"),
    lambda: CompletionRecord(request=RequestRecord(instructions="", params={"stream": True})),
]


@given(st.lists(OBJECTS, min_size=1, max_size=4), st.data())
def test_only_a_whole_last_call_counts(texts: list[str], data: st.DataObject) -> None:
    end = data.draw(st.integers(0, len(texts[-1])))
    cut = [*texts[:-1], texts[-1][:end]]
    calls = [{"id": f"c{at}", "function": {"name": "f", "arguments": text}} for at, text in enumerate(cut)]
    is_whole = end == len(texts[-1]) and json.loads(texts[-1]) != {}
    for make_end in ENDS:
        found = find_cut_calls({"tool_calls": calls}, make_end())
        assert list(found) == ([] if is_whole else [f"c{len(cut) - 1}"])
    for reason in ("stop", "tool_calls", "function_call", None):
        assert find_cut_calls({"tool_calls": calls}, CompletionRecord(finish_reason=reason)) == {}
