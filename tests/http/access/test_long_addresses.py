"""What is left of requests with long addresses."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from tests.http.server import RunningServer
from tests.support.growth import count_holders

# In none of this file's own texts.
MARKER = "-".join(("long", "address"))


async def test_of_long_addresses_nothing_is_kept(plain: RunningServer) -> None:
    async def ask(numbers: range) -> tuple[int, dict[str, int]]:
        made = [f"{MARKER}-{number}" + "x" * 1000 for number in numbers]
        for long in made:
            for path in (f"/v1/sessions/{long}", f"/v1/sessions?metadata.team={long}", f"/docs?{long}=1", f"/{long}"):
                answer = await plain.get(path)
                assert answer.status_code in (200, 400, 404)
        for long in made:
            await plain.get("/v1/nowhere", headers={"Host": long})
        # Not every cache shows what it holds: the garbage collector passes over tuples of nothing but texts.
        return count_holders(MARKER), {one.__qualname__: one.cache_info().currsize for one in list_caches()}

    kept = await ask(range(6))
    assert await ask(range(6, 15)) == kept


def list_caches() -> Iterator[Any]:
    """The framework's functions that keep what they were called with."""
    for module in [module for name, module in sys.modules.items() if name.startswith("litestar")]:
        for one in vars(module).values():
            members = [getattr(one, name, None) for name in vars(one)] if isinstance(one, type) else [one]
            yield from (member for member in members if hasattr(member, "cache_info"))
