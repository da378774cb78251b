"""Work that may take more than a few milliseconds, which others do not wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def run_aside(is_long: bool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What it returns: done in a thread if it is long, and at once if not."""
    return await asyncio.to_thread(work, *args, **kwargs) if is_long else work(*args, **kwargs)
