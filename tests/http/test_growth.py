"""What a server holds does not grow with what it was used for."""

from __future__ import annotations

from collections import Counter
from uuid import uuid4

import pytest

from tests.http.server import RunningServer, server_settings, start_server
from tests.http.test_streams import wait_until, wait_until_nobody_reads
from tests.support.growth import measure


async def use_everything(service: RunningServer) -> None:
    """Sessions, runs, streams, OpenAI's API and refusals, under names of which each is new; then all is deleted."""
    name = uuid4().hex
    path = await service.session(id=name, metadata={name: name}, messages=[{"role": "user", "content": name}])
    await service.run(path, f"Say {name}.", model=f"model-{name}", instructions=name)
    waiting = await service.run(path, "Wait.", execute_tools=False, background=True)
    await service.post(f"{path}/runs/{waiting['id']}/cancel")
    async with service.stream(f"{path}/runs", {"input": "Hello!", "stream": True}, method="POST") as frames:
        await frames.next()
    async with service.stream(f"{path}/events") as frames, service.stream("/v1/sessions") as changes:
        await frames.next()
        await changes.next()
    await service.post(f"{path}/fork", {"id": f"{name}-fork"})
    await service.post(f"{path}/redact", {"seqs": [2], "reason": name})
    await service.post(f"{path}/replay")
    for store in (True, False):
        body = {"model": "Front", "input": name, "store": store}
        await service.post("/openai/v1/responses", body, headers={"idempotency-key": f"{name}{store}"})
    chat = {"model": "Front", "messages": [{"role": "user", "content": name}]}
    await service.post("/openai/v1/chat/completions", chat, headers={"x-session-id": f"{name}-chat"})
    for refused in (f"/v1/sessions/{name}-none", f"/v1/{name}", f"/v1/sessions?{name}=1", f"/v1/sessions?q={name}"):
        await service.get(refused, headers={"x-request-id": name, "authorization": f"Bearer sk_{name}"})
    for session in (await service.get("/v1/sessions?children=true&limit=200")).json()["data"]:
        await service.delete(f"/v1/sessions/{session['id']}?force=true")


ROUNDS = 2
# What is prepared for the database when it is first needed is not of interest, and comes when it comes.
PACKAGES = ("swarmkeep.events.", "swarmkeep.http.", "swarmkeep.openai.", "swarmkeep.runs.", "swarmkeep.store.records.")


@pytest.mark.long
@pytest.mark.one_database
async def test_server_memory_does_not_grow(ready_url: str) -> None:
    def measure_held() -> Counter[str]:
        return measure(service.app.state.service, *PACKAGES)

    async with start_server(server_settings(database_url=ready_url)) as service:
        for _ in range(ROUNDS):
            await use_everything(service)
        await wait_until_nobody_reads(service)
        held = measure_held()
        for _ in range(ROUNDS):
            await use_everything(service)
        # What only happens to be there is less than one for each round.
        await wait_until(lambda: all(count < ROUNDS for count in (measure_held() - held).values()))
