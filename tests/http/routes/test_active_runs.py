"""The runs that are active, over HTTP and by the client."""

from __future__ import annotations

from swarmkeep_client import ActiveRun, AsyncClient
from tests.http.server import RunningServer, check_problem
from tests.support.scripted import ScriptedModel


async def test_all_runs_listed_by_activity(service: RunningServer, model: ScriptedModel) -> None:
    model.call("get_weather", {"city": "Rome"}, id="c1")
    waiting = await service.run(await service.session(id="s"), "Weather?", execute_tools=False)
    model.say("Hello.")
    await service.run(await service.session(id="done"), "Hi")
    assert (await service.get("/v1/runs")).json() == {"data": [], "next_cursor": None}
    (found,) = (await service.get("/v1/runs?status=waiting")).json()["data"]
    assert (found["id"], found["session_id"], found["title"], found["server"]) == (waiting["id"], "s", "Weather?", None)
    assert (found["model_calls"], found["total_tokens"]) == (1, waiting["usage"]["total_tokens"])
    async with AsyncClient(service.url) as client:
        (run,) = [one async for one in client.active_runs("waiting")]
    assert run == ActiveRun(**found)
    check_problem(await service.get("/v1/runs?status=idle"), 400, "invalid_request")
    check_problem(await service.get("/v1/runs?cursor=x"), 400, "invalid_request")
