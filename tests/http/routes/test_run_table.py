"""Tables of runs, active ones and usage over HTTP and by the client."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import msgspec
import pytest
from sqlalchemy import insert

from swarmkeep.events.run_table import CSV_COLUMNS, list_cells, write_csv
from swarmkeep.serve.app import ServeError
from swarmkeep.store.tables import runs
from swarmkeep_client import ActiveRun, AsyncClient, EndedRun
from tests.http.auth.keys import create_key
from tests.http.server import RunningServer, check_problem, scripted, start_server
from tests.support.scripted import ScriptedModel


async def play(service: RunningServer, model: ScriptedModel) -> None:
    """One run with a call, one that failed, and one that waits."""
    model.call("get_weather", {"city": "Rome"}, id="c1")
    model.say("It is sunny.")
    await service.run(await service.session(id="s"), "Weather?")
    model.fail(400)
    await service.run(await service.session(id="t"), "Hi")
    model.call("get_weather", {"city": "Rome"}, id="c2")
    await service.run(await service.session(id="w"), "Weather?", execute_tools=False)


async def test_runs_that_are_over_are_listed(service: RunningServer, model: ScriptedModel) -> None:
    await play(service, model)
    found = (await service.get("/v1/runs?status=ended")).json()
    failed, completed = found["data"]
    assert found["next_cursor"] is None
    told = (await service.get(f"/v1/sessions/s/runs/{completed['id']}")).json()
    for name in ("id", "session_id", "agent", "status", "stop_reason", "created_at", "finished_at"):
        assert completed[name] == told[name], name
    assert completed["total_tokens"] == told["usage"]["total_tokens"]
    assert (completed["model_calls"], completed["tool_calls"], completed["tool_errors"]) == (2, 1, 0)
    assert completed["latency_ms"] > 0
    assert (failed["session_id"], failed["status"], failed["error"]) == ("t", "failed", "provider_bad_request")
    for query, ids in (
        ("status=failed", ["t"]),
        ("session=s", ["s"]),
        ("sort=total_tokens", ["s", "t"]),
        ("sort=created_at", ["t", "s"]),
        ("error=provider_bad_request&status=completed", []),
        (f"created_after={failed['created_at']}", ["t"]),
        (f"created_before={failed['created_at']}", ["s"]),
        ("stop_reason=end_turn&agent=Front", ["s"]),
    ):
        listed = (await service.get(f"/v1/runs?{query}")).json()["data"]
        assert [run["session_id"] for run in listed] == ids, query
    first = (await service.get("/v1/runs?status=ended&limit=1")).json()
    second = (await service.get(f"/v1/runs?status=ended&limit=1&cursor={first['next_cursor']}")).json()
    assert [*first["data"], *second["data"]] == [failed, completed]
    assert [run["session_id"] for run in (await service.get("/v1/runs?status=waiting")).json()["data"]] == ["w"]
    await service.client.delete("/v1/sessions/t")
    assert (await service.get("/v1/runs?status=ended")).json()["data"] == [completed]


async def test_runs_come_as_files(service: RunningServer, model: ScriptedModel) -> None:
    await play(service, model)
    data = (await service.get("/v1/runs?status=ended")).json()["data"]
    lines = await service.client.get("/v1/runs", headers={"Accept": "application/x-ndjson"})
    assert lines.headers["content-type"].startswith("application/x-ndjson")
    assert [json.loads(line) for line in lines.text.splitlines()] == data
    table = await service.client.get("/v1/runs?sort=total_tokens&limit=1", headers={"Accept": "text/csv"})
    assert table.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(table.text)))
    assert [row["session_id"] for row in rows] == ["s", "t"]
    assert [float(row["latency_ms"]) for row in rows] == [run["latency_ms"] for run in reversed(data)]
    assert (rows[1]["model"], rows[1]["error"], rows[1]["cost"]) == ("", "provider_bad_request", "")


async def test_many_runs_come_whole(sqlite_ready: str, model: ScriptedModel) -> None:
    async with start_server(scripted(sqlite_ready, model, prices='{"m": {"input": 1, "output": 1}}')) as service:
        row = {
            "tenant": "default", "agent": "=cmd|'/c calc'!A1", "model": "m", "status": "completed", "stop_reason": "",
            "error": "", "created_at": "2026-03-01T12:00:00.000000Z", "finished_at": "2026-03-01T12:00:01.000000Z",
            "latency_ms": 1000.0, "waited_ms": 0.0, "first_token_ms": None, "model_calls": 0, "tool_calls": 0,
            "tool_errors": 0, "prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0,
        }  # fmt: skip
        rows = [{**row, "session_id": f"s{n:04}", "seq": 3, "run_id": f"r{n}"} for n in range(450)]
        store = service.app.state.service.engine.store
        await store.database.write(lambda connection: connection.execute(insert(runs), rows) and None)
        table = await service.client.get("/v1/runs?sort=latency_ms", headers={"Accept": "text/csv"})
        found = list(csv.DictReader(io.StringIO(table.text)))
        assert [row["session_id"] for row in found] == [f"s{n:04}" for n in reversed(range(450))]
        # A spreadsheet shows it, and computes nothing.
        assert found[0]["agent"] == "'=cmd|'/c calc'!A1"


async def test_runs_are_counted_with_percentiles(service: RunningServer, model: ScriptedModel) -> None:
    await play(service, model)
    (whole,) = (await service.get("/v1/runs/figures")).json()["data"]
    assert (whole["runs"], whole["completed"], whole["failed"]) == (2, 1, 1)
    assert whole["latency_ms"]["p50"] <= whole["latency_ms"]["p90"] == whole["latency_ms"]["p99"]
    assert "day" not in whole
    rows = (await service.get("/v1/runs/figures?group_by=model,agent")).json()["data"]
    assert [(row["agent"], row["model"] is None, row["runs"]) for row in rows] == [
        ("Front", True, 1),
        ("Front", False, 1),
    ]
    day = datetime.now(UTC).date()
    (today,) = (await service.get("/v1/runs/figures?group_by=day&status=failed")).json()["data"]
    assert (today["runs"], today["failed"]) == (1, 1)
    for query in (f"to={day - timedelta(days=2)}", f"from={day + timedelta(days=2)}", "from=0001-01-01&to=0001-01-02"):
        assert (await service.get(f"/v1/runs/figures?group_by=day&{query}")).json()["data"] == []
    assert (await service.get("/v1/runs/figures?group_by=day&to=9999-12-31")).status_code == 200
    assert (await service.get("/v1/runs/figures?to=0001-01-01")).json()["data"][0]["runs"] == 0


async def test_wrong_questions_are_refused(plain: RunningServer) -> None:
    for path in (
        "runs?status=idle", "runs?sort=cost", "runs?status=ended&cursor=x", "runs?status=running&agent=Front",
        "runs?status=waiting&sort=latency_ms", "runs?created_after=yesterday", "runs?limit=0",
        "runs/figures?group_by=colour", "runs/figures?from=2026-1-1", "runs/figures?from=2026-01-01&to=2026-12-31",
        "runs/figures?status=running", "runs/figures?group_by=day&cursor=x",
    ):  # fmt: skip
        check_problem(await plain.get(f"/v1/{path}"), 400, "invalid_request")
    for form in ("text/csv", "application/x-ndjson"):
        check_problem(await plain.client.get("/v1/runs?cursor=x", headers={"Accept": form}), 400, "invalid_request")
    refused = await plain.client.get("/v1/runs?status=running", headers={"Accept": "text/csv"})
    assert "status=ended" in check_problem(refused, 400, "invalid_request")["detail"]


@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
def test_no_cell_is_a_formula(sign: str) -> None:
    # A provider's answer names the model.
    listed = SimpleNamespace(**{**dict.fromkeys(CSV_COLUMNS, f"{sign}1+1"), "cost": None})
    (row,) = csv.reader(io.StringIO(write_csv([list_cells(listed)]).decode(), newline=""))
    assert {cell[:2] for cell in row} == {f"'{sign}", ""}


async def test_tenants_see_their_own_runs(service: RunningServer, model: ScriptedModel) -> None:
    acme, other = await create_key(service, "acme"), await create_key(service, "other")
    await service.post("/v1/sessions", {"id": "s"}, headers=acme)
    model.say("Hello.")
    await service.post("/v1/sessions/s/runs", {"input": "Hi"}, headers=acme)
    for headers, count in ((acme, 1), (other, 0)):
        listed = (await service.client.get("/v1/runs?status=ended", headers=headers)).json()["data"]
        (figures,) = (await service.client.get("/v1/runs/figures", headers=headers)).json()["data"]
        lines = await service.client.get("/v1/runs", headers={**headers, "Accept": "application/x-ndjson"})
        assert (len(listed), figures["runs"], len(lines.text.splitlines())) == (count, count, count)


async def test_client_reads_the_table(ready_url: str, model: ScriptedModel) -> None:
    prices = '{"scripted-*": {"input": 2, "cached_input": 0.5, "output": 100}}'
    async with start_server(scripted(ready_url, model, prices=prices, currency="EUR")) as service:
        await play(service, model)
        data = (await service.get("/v1/runs?status=ended")).json()["data"]
        assert data[1]["cost"]["currency"] == "EUR"
        async with AsyncClient(service.url) as client:
            listed = [run async for run in client.runs.list(page_size=1)]
            assert listed == msgspec.convert(data, list[EndedRun])
            assert [run.session_id async for run in client.runs.list(status="failed", sort="latency_ms")] == ["t"]
            lines = b"".join([piece async for piece in client.runs.export("jsonl")])
            assert [json.loads(line) for line in lines.splitlines()] == data
            table = b"".join([piece async for piece in client.runs.export(status="completed")]).decode()
            (row,) = csv.DictReader(io.StringIO(table))
            assert (float(row["cost"]), row["currency"]) == (data[1]["cost"]["amount"], "EUR")
            (figures,) = [row async for row in client.runs.figures("agent", status="completed")]
            assert (figures.agent, figures.runs, figures.latency_ms.p99) == ("Front", 1, data[1]["latency_ms"])


# The runs that are active, over HTTP and by the client.


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


# Usage over HTTP.


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


async def test_eval_case_is_made_of_run(service: RunningServer, model: ScriptedModel) -> None:
    session = await service.session()
    model.say("It is Tuesday.")
    first = await service.run(session, "Which day is it?")
    model.say("It is May.")
    await service.run(session, "And which month?")
    case = await service.get(f"{session}/case?run_id={first['id']}&name=days")
    assert case.headers["Content-Type"].startswith("application/yaml")
    assert "- name: days\n" in case.text
    assert "And which month?" not in case.text
    assert "- And which month?\n" in (await service.get(f"{session}/case")).text
    check_problem(await service.get(f"{session}/case?run_id=none"), 404, "run_not_found")
    check_problem(await service.get("/v1/sessions/none/case"), 404, "session_not_found")
    empty = await service.session()
    problem = check_problem(await service.get(f"{empty}/case"), 400, "invalid_request")
    assert problem["errors"][0]["pointer"] == "/query/run_id"
