"""Where tools run, how long, and that whatever they do becomes an outcome that a model can read."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from swarmkeep import Agent, Result, tool
from swarmkeep.agent import Tool
from swarmkeep.decide.turns import ToolOutcome
from swarmkeep.events.codec import Json
from swarmkeep.events.state import ToolCall
from swarmkeep.runs.calls import call_tool, make_unknown_tool_outcome
from swarmkeep.runs.tool_runners import InlineRunner, ThreadRunner, ToolRunner, ToolTimeout

SECONDS = 20.0


@pytest.fixture(params=[InlineRunner, ThreadRunner])
def runner(request: pytest.FixtureRequest) -> ToolRunner:
    made: ToolRunner = request.param()
    return made


async def call_function(
    function: Callable[..., Any],
    arguments: str = "{}",
    *,
    context: Json | None = None,
    runner: ToolRunner | None = None,
    seconds: float | None = SECONDS,
) -> ToolOutcome:
    made = Tool(function)
    call = ToolCall(id="c1", name=made.name, arguments=arguments, attempts=1)
    return (await call_tool(made, call, context or {}, runner or ThreadRunner(), seconds))[0]


# Both runners.


async def test_plain_and_async_functions_return_values(runner: ToolRunner) -> None:
    async def waits() -> int:
        await asyncio.sleep(0)
        return 1

    assert await runner(lambda: 1, is_async=False, seconds=None) == 1
    assert await runner(waits, is_async=True, seconds=None) == 1


async def test_awaitable_from_plain_function_is_awaited(runner: ToolRunner) -> None:
    async def waits() -> int:
        await asyncio.sleep(0)
        return 1

    assert await runner(lambda: waits(), is_async=False, seconds=None) == 1
    assert await runner(lambda: waits(), is_async=False, seconds=SECONDS) == 1


@pytest.mark.parametrize("error", [ValueError("no"), TimeoutError("its own"), SystemExit(1)])
async def test_what_a_function_raises_is_raised(runner: ToolRunner, error: BaseException) -> None:
    def fails() -> None:
        raise error

    async def fails_later() -> None:
        await asyncio.sleep(0)
        raise error

    for seconds in (None, SECONDS):
        with pytest.raises(type(error)) as raised:
            await runner(fails, is_async=False, seconds=seconds)
        assert raised.value is error
    if not isinstance(error, SystemExit):  # which would stop the loop that Inline starts
        with pytest.raises(type(error)):
            await runner(fails_later, is_async=True, seconds=SECONDS)


async def test_slow_plain_function_is_given_up(runner: ToolRunner) -> None:
    released, ended = threading.Event(), threading.Event()

    def blocks() -> str:
        released.wait(SECONDS)
        ended.set()
        return "late"

    with pytest.raises(ToolTimeout):
        await runner(blocks, is_async=False, seconds=0.01)
    released.set()
    assert ended.wait(SECONDS)
    # Its late result reaches nobody.
    assert await runner(lambda: "in time", is_async=False, seconds=SECONDS) == "in time"


async def test_slow_async_function_is_cancelled(runner: ToolRunner) -> None:
    seen: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    with pytest.raises(ToolTimeout):
        await runner(waits, is_async=True, seconds=0.01)
    assert seen == ["cancelled"]


async def test_the_context_is_carried(runner: ToolRunner) -> None:
    who = contextvars.ContextVar("who", default="nobody")

    async def asks() -> str:
        return who.get()

    who.set("Ann")
    for seconds in (None, SECONDS):
        assert await runner(who.get, is_async=False, seconds=seconds) == "Ann"
        assert await runner(asks, is_async=True, seconds=seconds) == "Ann"


# Inline: the runner's thread.


def finish(coroutine: Any) -> Any:
    """As the synchronous loop does: the coroutine never suspends."""
    with pytest.raises(StopIteration) as stop:
        coroutine.send(None)
    return stop.value.value


def test_inline_stays_in_callers_thread() -> None:
    async def waits() -> int:
        await asyncio.sleep(0)
        return 2

    here = threading.current_thread()
    assert finish(InlineRunner()(threading.current_thread, is_async=False, seconds=None)) is here
    assert finish(InlineRunner()(waits, is_async=True, seconds=None)) == 2
    # Only a time-out takes a thread: nothing else can end a function that blocks.
    assert finish(InlineRunner()(threading.current_thread, is_async=False, seconds=SECONDS)) is not here


# InThreads: neither the loop nor the process waits for anybody.


async def test_plain_functions_use_own_daemon_threads() -> None:
    both = threading.Barrier(2)

    def meet() -> tuple[int, bool]:
        both.wait(SECONDS)
        return threading.get_ident(), threading.current_thread().daemon

    runner = ThreadRunner()
    one, two = await asyncio.gather(*(runner(meet, is_async=False, seconds=SECONDS) for _ in range(2)))
    assert one != two
    assert one[1]
    assert one[0] != threading.get_ident()


async def test_function_reuses_only_returned_threads() -> None:
    runner, released = ThreadRunner(), threading.Event()
    try:
        with pytest.raises(ToolTimeout):
            await runner(released.wait, is_async=False, seconds=0.01)
        # Not that one's: it would have to wait for it. How many are idle by now nobody knows.
        used = [await runner(threading.current_thread, is_async=False, seconds=SECONDS) for _ in range(200)]
    finally:
        released.set()
    assert len(set(used)) < 100
    for thread in set(used):
        await asyncio.to_thread(thread.join, SECONDS)
        assert not thread.is_alive()


async def test_function_sees_no_previous_event_loop() -> None:
    def leave_one() -> threading.Thread:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        loop.close()
        return threading.current_thread()

    def find_one() -> tuple[threading.Thread, bool]:
        try:
            asyncio.get_event_loop()
        except RuntimeError:
            return threading.current_thread(), False
        return threading.current_thread(), True

    runner, left, found = ThreadRunner(), None, None
    while left is None or left is not found:
        left = await runner(leave_one, is_async=False, seconds=SECONDS)
        found, has_loop = await runner(find_one, is_async=False, seconds=SECONDS)
        assert not has_loop


FORKING = """
import os
from swarmkeep.runs import tool_runners

run = tool_runners._run_with_timeout
run(os.getpid, 60)
while not tool_runners._threads._idle:
    pass
child = os.fork()
if not child:
    os._exit(0 if run(os.getpid, 60) == os.getpid() else 1)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot fork here")
def test_forked_process_has_own_threads() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKING], check=True, timeout=SECONDS)


async def test_cancelled_run_drops_late_call_result() -> None:
    reached, released, ended = threading.Event(), threading.Event(), threading.Event()

    class Value:
        pass

    kept: list[weakref.ref[Value]] = []

    def blocks() -> Value:
        value = Value()
        kept.append(weakref.ref(value))
        reached.set()
        released.wait(SECONDS)
        ended.set()
        return value

    task = asyncio.create_task(ThreadRunner()(blocks, is_async=False, seconds=None))
    assert await asyncio.to_thread(reached.wait, SECONDS)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    released.set()
    assert await asyncio.to_thread(ended.wait, SECONDS)
    for thread in threading.enumerate():
        if thread.name == "swarmkeep-tool":
            await asyncio.to_thread(thread.join, SECONDS)
    await asyncio.sleep(0)
    gc.collect()
    assert [ref() for ref in kept] == [None]


def test_result_after_loop_close_is_dropped() -> None:
    released, begun = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def blocks() -> str:
        threads.append(threading.current_thread())
        begun.set()
        released.wait(SECONDS)
        return "late"

    async def give_up() -> None:
        with pytest.raises(ToolTimeout):
            await ThreadRunner()(blocks, is_async=False, seconds=0.01)

    asyncio.run(give_up())
    assert begun.wait(SECONDS)
    released.set()
    threads[0].join(SECONDS)
    assert not threads[0].is_alive()


@pytest.mark.parametrize("word", [KeyboardInterrupt, GeneratorExit, StopIteration])
async def test_system_exit_in_thread_is_error(word: type[BaseException]) -> None:
    def stops() -> None:
        raise word("now")

    with pytest.raises(RuntimeError, match=f"{word.__name__}: now"):
        await ThreadRunner()(stops, is_async=False, seconds=None)


# Outcomes.


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no"), "Error: fails failed: ValueError: no"),
        (KeyError("k"), "Error: fails failed: KeyError: 'k'"),
        (SystemExit(2), "Error: fails failed: SystemExit: 2"),
        (asyncio.CancelledError(), "Error: fails failed: CancelledError: "),
        (StopIteration("x"), "Error: fails failed: RuntimeError: StopIteration: x"),
        (type("Odd", (BaseException,), {})("odd"), "Error: fails failed: Odd: odd"),
    ],
)
async def test_raised_exception_is_the_outcome(error: BaseException, text: str) -> None:
    def fails() -> None:
        raise error

    made = await call_function(fails)
    assert (made.status, made.content) == ("error", text)
    assert (made.patch, made.nulls) == ({}, ())


async def test_cancelled_run_is_no_outcome() -> None:
    reached = asyncio.Event()

    async def waits() -> None:
        reached.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(call_function(waits))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_error_with_failing_text_is_outcome() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def fails() -> None:
        raise Mute

    made = await call_function(fails)
    assert made.status == "error"
    assert "Mute" in made.content


async def test_timeout_names_duration_and_uncertainty() -> None:
    released = threading.Event()

    def blocks() -> str:
        released.wait(SECONDS)
        return "late"

    assert "within 0.02 s." in (await call_function(blocks, seconds=0.02)).content
    made = await call_function(tool(timeout=0.01)(blocks), seconds=None)
    assert made.status == "timeout"
    assert made.content == "Error: blocks did not finish within 0.01 s. It may or may not have taken effect."
    released.set()


async def test_tool_timeout_beats_general_one() -> None:
    @tool(timeout=SECONDS)
    def quick() -> str:
        return "ok"

    assert (await call_function(quick, seconds=1e-9)).status == "ok"


async def test_functions_own_timeout_error_is_error() -> None:
    async def fails() -> None:
        raise TimeoutError("upstream")

    made = await call_function(fails)
    assert (made.status, made.content) == ("error", "Error: fails failed: TimeoutError: upstream")


async def test_context_is_copied_and_returned_changed() -> None:
    context: Json = {"n": 1, "list": [1]}

    def change(context_variables: Json) -> Result:
        context_variables["list"].append(2)
        context_variables["n"] = 5
        return Result("ok", context_variables={"n": 6})

    made = await call_function(change, context=context)
    assert made.patch == {"n": 6, "list": [1, 2]}
    assert context == {"n": 1, "list": [1]}


@pytest.mark.parametrize(
    ("context", "where"),
    [
        ({"a": {"b": {1, 2}}}, "context_variables.a.b is of type set"),
        ({"a": float("nan")}, "context_variables.a is the float nan"),
        ({1: 2}, "context_variables has a key of type int"),
        ({"a": [b"x"]}, "context_variables.a[0] is of type bytes"),
    ],
)
async def test_unserialisable_context_is_error_with_place(context: Any, where: str) -> None:
    def by_result() -> Result:
        return Result("ok", context_variables=context)

    def in_place(context_variables: Json) -> str:
        context_variables.update(context)
        return "ok"

    for function in (by_result, in_place):
        made = await call_function(function)
        assert made.status == "error"
        assert where in made.content


async def test_duration_is_told() -> None:
    def quick() -> str:
        return "ok"

    assert (await call_function(quick)).duration_ms > 0


async def test_handoff_is_result_with_agent() -> None:
    agent = Agent(name="Sales")
    made = Tool(_make_handoff(agent))
    given, result = await call_tool(made, ToolCall(id="c", name="hand_over", arguments="{}"), {}, ThreadRunner(), None)
    assert (given.status, given.content, result.agent) == ("ok", '{"assistant": "Sales"}', agent)


def _make_handoff(agent: Agent) -> Callable[[], Agent]:
    def hand_over() -> Agent:
        return agent

    return hand_over


def test_unknown_function_error_lists_known_ones() -> None:
    call = ToolCall(id="c", name="lok", arguments="{}")
    assert make_unknown_tool_outcome(call, ["look", "pay"]).content == (
        "Error: there is no function called 'lok'. Valid functions: look, pay."
    )
    assert make_unknown_tool_outcome(call, []).content.endswith("Valid functions: none.")
