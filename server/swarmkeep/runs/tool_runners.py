"""Run tools for a limited time: on the event loop, in threads, or in the caller's own thread."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

_IDLE_SECONDS = 1.0


class ToolTimeout(Exception):
    """The tool did not return in the time it was given."""


class ToolRunner(Protocol):
    """The place where tools run."""

    async def __call__(self, function: Callable[[], Any], *, is_async: bool, seconds: float | None) -> Any:
        """Call it and return its value. Raises ToolTimeout, and the function's own errors."""
        ...


class ThreadRunner:
    """Async tools on the loop, others each in a thread that no other has meanwhile: neither can hold up anybody else.

    The threads are daemons: one that never returns is abandoned, its late result dropped, and it does not keep the
    process from exiting.
    """

    async def __call__(self, function: Callable[[], Any], *, is_async: bool, seconds: float | None) -> Any:
        try:
            async with asyncio.timeout(seconds) as limit:
                value = function() if is_async else await _run_in_thread(function)
                # A plain function may wrap an async one and hand its coroutine through.
                return await value if inspect.isawaitable(value) else value
        except TimeoutError:
            if limit.expired():
                raise ToolTimeout from None
            raise


class InlineRunner:
    """For the synchronous loop: tools run in the caller's thread, as in Swarm; nothing here ever suspends."""

    async def __call__(self, function: Callable[[], Any], *, is_async: bool, seconds: float | None) -> Any:
        if not is_async:
            value = function() if seconds is None else _run_with_timeout(function, seconds)
            if not inspect.isawaitable(value):
                return value
            function, is_async = (lambda: value), True

        def run() -> Any:
            return asyncio.run(_await_call(function, seconds))

        # A loop may already be running in this thread (in a notebook, say); another cannot be started beside it.
        return _run_with_timeout(run, None) if is_loop_running() else run()


async def _await_call(function: Callable[[], Any], seconds: float | None) -> Any:
    return await ThreadRunner()(function, is_async=True, seconds=seconds)


def stops_this_program(error: BaseException) -> bool:
    """Tell if it is this program that is to stop, rather than the function that gave up with the same word."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task() if is_loop_running() else None
        return task is not None and task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | GeneratorExit)


def read_error_text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the text of an exception is a team's code, too
        return "(it has no text)"


def is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run_with_timeout(function: Callable[[], Any], seconds: float | None) -> Any:
    answers: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
    _start(function, answers.put)
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise ToolTimeout from None
    return answer()


async def _run_in_thread(function: Callable[[], Any]) -> Any:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Callable[[], Any]] = loop.create_future()

    def deliver(answer: Callable[[], Any]) -> None:
        def settle() -> None:
            if not done.done():
                done.set_result(answer)

        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:
            # The loop has closed: no task waits for this result any more.
            return

    _start(function, deliver)
    return (await done)()


class _Threads:
    """Daemon threads. Each has one function at a time, and waits a moment for the next: to start one takes longer than
    most functions."""

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[Callable[[], None]]] = []

    def run(self, work: Callable[[], None]) -> None:
        try:
            given = self._idle.pop()
        except IndexError:
            threading.Thread(target=self._serve, args=(work,), name="swarmkeep-tool", daemon=True).start()
        else:
            given.put(work)

    def forget(self) -> None:
        """Give those that are idle nothing more to do."""
        self._idle.clear()

    def _serve(self, work: Callable[[], None]) -> None:
        given: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        while True:
            work()
            # The function's result belongs to its caller alone; nor is the next to find its event loop, closed.
            del work
            asyncio.set_event_loop(None)
            self._idle.append(given)
            try:
                work = given.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                try:
                    self._idle.remove(given)
                except ValueError:
                    # Another thread has just chosen it.
                    work = given.get()
                else:
                    return


_threads = _Threads()
if hasattr(os, "register_at_fork"):
    # A child process has none of them.
    os.register_at_fork(after_in_child=_threads.forget)


def _start(function: Callable[[], Any], deliver: Callable[[Callable[[], Any]], None]) -> None:
    """Run it in a thread; what `deliver` is called with there gives or raises what came of it."""
    context = contextvars.copy_context()

    def work() -> None:
        try:
            value = context.run(function)
        except BaseException as error:
            deliver(_make_raiser(error))
        else:
            deliver(lambda: value)

    _threads.run(work)


def _make_raiser(error: BaseException) -> Callable[[], Any]:
    def raise_it() -> Any:
        # A StopIteration cannot pass through a coroutine as itself; an interrupt from a thread is no Ctrl-C.
        if isinstance(error, StopIteration | KeyboardInterrupt | GeneratorExit):
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        raise error

    return raise_it
