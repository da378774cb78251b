"""Watches what single callbacks of an event loop take: nobody else gets a turn before one ends.

In processor time of the loop's thread, which a busy machine does not lengthen, and against what the same machine needs
for a known piece of work. Collections of garbage are left out: here they go over a whole test run.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SAMPLE_SECONDS = 0.004


class LoopWatch:
    """How many callbacks there were, which took the most, and where it was when looked at."""

    def __init__(self) -> None:
        self.count = 0
        self.longest_seconds = 0.0
        self.longest = ""
        self._thread = threading.get_ident()
        self._began: float | None = None
        self._collected = 0.0
        self._samples: list[str] = []
        self._is_over = threading.Event()

    def run(self, handle: Any, run: Any) -> None:
        if threading.get_ident() != self._thread:
            # Another thread's own loop.
            return run(handle)
        self.count += 1
        self._samples, self._collected = [], 0.0
        began = time.thread_time()
        self._began = time.monotonic()
        try:
            run(handle)
        finally:
            self._began = None
            taken = time.thread_time() - began - self._collected
            if taken > self.longest_seconds:
                self.longest_seconds = taken
                self.longest = f"{1000 * taken:.1f} ms in {handle!r}\n" + "\n".join(self._samples[-3:])

    def note_collection(self, phase: str, info: dict[str, int]) -> None:
        if threading.get_ident() == self._thread:
            self._collected += time.thread_time() if phase == "stop" else -time.thread_time()

    def sample(self) -> None:
        while not self._is_over.wait(_SAMPLE_SECONDS):
            began, frame = self._began, sys._current_frames().get(self._thread)
            if began is not None and frame is not None and time.monotonic() - began > 2 * _SAMPLE_SECONDS:
                self._samples.append("".join(traceback.format_stack(frame, 16)))

    def stop(self) -> None:
        self._is_over.set()


@contextmanager
def watch_callbacks() -> Iterator[LoopWatch]:
    """While this lasts, each callback of the running loop is measured."""
    watch = LoopWatch()
    run = asyncio.Handle._run
    sampler = threading.Thread(target=watch.sample, daemon=True)
    sampler.start()
    gc.callbacks.append(watch.note_collection)
    asyncio.Handle._run = lambda handle: watch.run(handle, run)  # type: ignore[method-assign]
    try:
        yield watch
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]
        gc.callbacks.remove(watch.note_collection)
        watch.stop()
        sampler.join()


@functools.cache
def measure_limit() -> float:
    """The processor time that this machine needs for what takes 50 ms on an ordinary one."""
    value = {str(number): [number, str(number), {"a": None}] for number in range(100)}
    times = []
    for _ in range(5):
        began = time.thread_time()
        for _ in range(340):
            json.loads(json.dumps(value))
        times.append(time.thread_time() - began)
    return min(times)
