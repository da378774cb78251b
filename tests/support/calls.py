"""Counts what is called: the same each time, unlike the time that it takes."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any


@contextmanager
def count_calls() -> Iterator[Counter[CodeType]]:
    """How often each function of Python's is called in this thread."""
    found: Counter[CodeType] = Counter()

    def note(called: FrameType, kind: str, argument: object) -> None:
        if kind == "call":
            found[called.f_code] += 1

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)


@contextmanager
def count_steps() -> Iterator[Counter[CodeType]]:
    """How many steps of its bytecode each function of Python's takes in this thread: those of loops show, too."""
    found: Counter[CodeType] = Counter()

    def note(frame: FrameType, kind: str, argument: object) -> Any:
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if kind == "opcode":
            found[frame.f_code] += 1
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        yield found
    finally:
        sys.settrace(before)
