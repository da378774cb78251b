"""What is left of requests with long addresses."""

from __future__ import annotations

from tests.api.server import RunningServer
from tests.support.growth import count_holders

# In none of this file's own texts.
MARKER = "-".join(("long", "address"))


async def test_of_long_addresses_nothing_is_kept(plain: RunningServer) -> None:
    async def ask(first: int) -> int:
        for number in range(first, first + 6):
            long = f"{MARKER}-{number}" + "x" * 1000
            for path in (f"/v1/sessions/{long}", f"/v1/sessions?metadata.team={long}", f"/docs?{long}=1", f"/{long}"):
                answer = await plain.get(path)
                assert answer.status_code in (200, 400, 404)
        return count_holders(MARKER)

    kept = await ask(0)
    assert await ask(6) == kept
