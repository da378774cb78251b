"""Usage over HTTP."""

from __future__ import annotations

import pytest

from swarmkeep.serve.app import ServeError
from tests.http.server import RunningServer, check_problem, scripted, start_server
from tests.support.scripted import ScriptedModel


async def test_usage_is_shown_in_groups(service: RunningServer, model: ScriptedModel) -> None:
    model.call("get_weather", {"city": "Rome"}, id="c1")
    model.say("It is sunny.")
    model.say("Hello.")
    session = await service.session(id="s")
    run = await service.run(session, "Weather?")
    await service.run(await service.session(id="t"), "Hi")
    (everything,) = (await service.get("/v1/usage")).json()["data"]
    assert (everything["model_calls"], everything["tool_calls"]) == (3, 1)
    rows = (await service.get("/v1/usage?group_by=session,run&session=s")).json()["data"]
    assert [(row["session_id"], row["run_id"], row["model_calls"]) for row in rows] == [("s", run["id"], 2)]
    assert rows[0]["total_tokens"] == run["usage"]["total_tokens"]
    assert "agent" not in rows[0]
    first = (await service.get("/v1/usage?group_by=session&limit=1")).json()
    second = (await service.get(f"/v1/usage?group_by=session&limit=1&cursor={first['next_cursor']}")).json()
    assert [row["session_id"] for row in first["data"] + second["data"]] == ["s", "t"]
    assert second["next_cursor"] is None
    day = (await service.get("/v1/usage?group_by=day")).json()["data"][0]["day"]
    assert (await service.get(f"/v1/usage?from={day}&to={day}")).json()["data"] == [everything]
    assert (await service.get("/v1/usage?group_by=day&to=2001-01-01")).json()["data"] == []


async def test_invalid_usage_query_refused(plain: RunningServer) -> None:
    for query in (
        "group_by=colour",
        "from=yesterday",
        "to=2026-1-1",
        "to=20260101",
        "cursor=x&group_by=day",
        "from=%00",
    ):
        check_problem(await plain.get(f"/v1/usage?{query}"), 400, "invalid_request")
    (nothing,) = (await plain.get("/v1/usage")).json()["data"]
    assert set(nothing.values()) == {0}


async def test_calls_cost_what_the_settings_say(ready_url: str, model: ScriptedModel) -> None:
    prices = '{"scripted-*": {"input": 2, "cached_input": 0.5, "output": 100}}'
    async with start_server(scripted(ready_url, model, prices=prices, currency="EUR")) as service:
        session = await service.session(id="s")
        model.say("Hello.")
        run = await service.run(session, "Hi")
        await service.session(id="t")
        cost = {"amount": 0.00052, "currency": "EUR", "unpriced_calls": 0}
        assert (await service.get(f"{session}/runs/{run['id']}")).json()["cost"] == cost
        assert (await service.get(session)).json()["cost"] == cost
        assert "cost" not in (await service.get("/v1/sessions/t")).json()
        assert "cost" not in (await service.get(f"{session}?at=2")).json()
        (row,) = (await service.get("/v1/usage")).json()["data"]
        assert row["cost"] == cost
        (row,) = (await service.get("/v1/usage?group_by=model,session")).json()["data"]
        assert (row["model"], row["cost"]) == ("scripted-model", cost)
        assert (await service.get("/v1/prices")).json() == {
            "currency": "EUR",
            "data": [{"model": "scripted-*", "input": 2.0, "cached_input": 0.5, "output": 100.0}],
        }


async def test_unpriced_server_shows_no_cost(service: RunningServer, model: ScriptedModel) -> None:
    session = await service.session()
    model.say("Hello.")
    run = await service.run(session, "Hi")
    for path in (session, f"{session}/runs/{run['id']}"):
        assert "cost" not in (await service.get(path)).json()
    assert "cost" not in (await service.get("/v1/usage")).json()["data"][0]
    assert (await service.get("/v1/prices")).json() == {"currency": None, "data": []}


async def test_invalid_prices_prevent_start(sqlite_ready: str, model: ScriptedModel) -> None:
    with pytest.raises(ServeError, match="SWARMKEEP_PRICES"):
        async with start_server(scripted(sqlite_ready, model, prices="prices.json")):
            pass
