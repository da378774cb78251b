"""Calls that run at once: each a task of its own, whose outcome is given when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from swarmkeep.domain.decisions.turns import ToolOutcome
from swarmkeep.domain.state import ToolCall

CarryOut = Callable[[ToolCall], Awaitable[ToolOutcome]]
RunTogether = Callable[[Sequence[ToolCall], CarryOut], AsyncGenerator[tuple[ToolCall, ToolOutcome]]]


async def run_together(calls: Sequence[ToolCall], carry_out: CarryOut) -> AsyncGenerator[tuple[ToolCall, ToolOutcome]]:
    """Begin all of them, and give each with its outcome as it ends; what ends together, in the order of the calls.

    Those that still run when nobody takes outcomes any more are cancelled. To be closed by whoever stops early.
    """
    tasks = {asyncio.ensure_future(carry_out(call)): call for call in calls}
    pending = set(tasks)
    try:
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task, call in tasks.items():
                if task in done:
                    yield call, task.result()
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
