"""Requests as spans: children of the caller's, parents of the runs that they start."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind, StatusCode

from tests.http.server import RunningServer, scripted, start_server
from tests.http.websocket.client import connect_session
from tests.support.scripted import ScriptedModel
from tests.support.spans import CaughtSpans, get_attributes, get_id
from tests.support.waiting import wait_until

pytestmark = pytest.mark.one_database

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
RUNS = "POST /v1/sessions/{session_id}/runs"


@pytest.fixture(scope="session")
def provider() -> TracerProvider:
    """The process's own, as the agents' code or an auto-instrumentation would set it."""
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        trace.set_tracer_provider(TracerProvider())
    found = trace.get_tracer_provider()
    assert isinstance(found, TracerProvider)
    return found


@pytest.fixture
def spans(provider: TracerProvider) -> CaughtSpans:
    return CaughtSpans(provider)


@pytest.fixture
async def traced(ready_url: str, model: ScriptedModel, spans: CaughtSpans) -> AsyncIterator[RunningServer]:
    settings = scripted(ready_url, model, traces="on").model_copy(update={"model": "m"})
    async with start_server(settings) as running:
        yield running


async def wait_for_span(spans: CaughtSpans, name: str) -> None:
    """A request's span ends after its answer."""
    await wait_until(lambda: spans.named(name))


async def test_request_span_links_caller_and_run(
    traced: RunningServer, model: ScriptedModel, spans: CaughtSpans
) -> None:
    session = await traced.session(context_variables={"name": "you"})
    model.say("hello")
    sent = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1"}
    await traced.post(f"{session}/runs", {"input": "hello"}, headers=sent)
    await wait_for_span(spans, RUNS)

    request, run = spans.one(RUNS), spans.one("invoke_agent Front")
    assert request.kind == SpanKind.SERVER
    assert request.parent is not None
    assert (f"{request.parent.trace_id:032x}", f"{request.parent.span_id:016x}") == (TRACE, SPAN)
    assert spans.tree()[-1] == [RUNS, ["invoke_agent Front", "chat m"]]
    assert run.get_span_context().trace_state.to_header() == "vendor=1"  # type: ignore[union-attr]
    described = get_attributes(request)
    assert described.pop("server.port") == int(traced.url.rpartition(":")[2])
    assert described == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": "/v1/sessions/{session_id}/runs",
        "network.protocol.version": "1.1",
        "server.address": "127.0.0.1",
        "url.path": f"{session}/runs",
        "url.scheme": "http",
    }
    started = next(event for event in await traced.events(session) if event["type"] == "run.started")
    assert started["data"]["traceparent"] == f"00-{TRACE}-{get_id(request):016x}-01"
    # Nothing of it goes to the model's server.
    assert not any(name.lower().startswith("trace") for headers in model.headers for name in headers)


async def test_unsampled_caller_trace_is_not_kept(
    traced: RunningServer, model: ScriptedModel, spans: CaughtSpans
) -> None:
    session = await traced.session(context_variables={"name": "you"})
    model.say("hello")
    await traced.post(f"{session}/runs", {"input": "hello"}, headers={"traceparent": f"00-{TRACE}-{SPAN}-00"})
    started = next(event for event in await traced.events(session) if event["type"] == "run.started")
    assert re.fullmatch(f"00-{TRACE}-[0-9a-f]{{16}}-00", started["data"]["traceparent"])
    await wait_for_span(spans, "GET /v1/sessions/{session_id}/events")
    assert spans.names == ["POST /v1/sessions", "GET /v1/sessions/{session_id}/events"]


async def test_requests_that_fail(traced: RunningServer, spans: CaughtSpans) -> None:
    await traced.get("/v1/sessions/none")
    await traced.get("/nowhere/else")
    await traced.client.request("PROPFIND", "/v1/sessions")
    await traced.get("/v1/sessions", headers={"traceparent": "00-zz"})
    await wait_for_span(spans, "GET /v1/sessions")
    missing, nowhere = spans.one("GET /v1/sessions/{session_id}"), spans.one("GET")
    assert [get_attributes(span)["http.response.status_code"] for span in (missing, nowhere)] == [404, 404]
    assert missing.status.status_code == StatusCode.UNSET
    assert "http.route" not in get_attributes(nowhere)
    odd = [span for span in spans.all if span.name.startswith("HTTP")]
    assert [get_attributes(span)["http.request.method"] for span in odd] == ["_OTHER"]
    assert spans.one("GET /v1/sessions").parent is None


async def test_health_probes_make_no_spans(traced: RunningServer, spans: CaughtSpans) -> None:
    for path in ("/health/live", "/health/ready", "/metrics"):
        assert (await traced.get(path)).status_code == 200
    await traced.get("/v1/agents")
    await wait_for_span(spans, "GET /v1/agents")
    assert spans.names == ["GET /v1/agents"]


async def test_live_connection_span_parents_its_runs(
    traced: RunningServer, model: ScriptedModel, spans: CaughtSpans
) -> None:
    session = await traced.session(context_variables={"name": "you"})
    model.say("hello")
    async with connect_session(traced, session) as live:
        await live.send("run.create", input="hello")
        await live.until("done")
    name = "GET /v1/sessions/{session_id}/live"
    await wait_for_span(spans, name)
    assert get_attributes(spans.one(name))["http.response.status_code"] == 101
    assert spans.tree()[-1] == [name, ["invoke_agent Front", "chat m"]]


async def test_a_server_without_traces_makes_none(plain: RunningServer, spans: CaughtSpans) -> None:
    session = await plain.session(context_variables={"name": "you"})
    await plain.post(f"{session}/runs", {"input": "hello"}, headers={"traceparent": f"00-{TRACE}-{SPAN}-01"})
    assert spans.names == []
    assert not any("traceparent" in event["data"] for event in await plain.events(session))


async def test_replay_makes_no_model_span(traced: RunningServer, model: ScriptedModel, spans: CaughtSpans) -> None:
    session = await traced.session(context_variables={"name": "you"})
    model.call("get_weather", {"city": "Oslo"})
    model.say("hello")
    await traced.run(session)
    await wait_for_span(spans, RUNS)
    spans.clear()
    answer = await traced.post(f"{session}/replay", {})
    assert answer.status_code == 200, answer.text
    assert answer.json()["divergences"] == []
    await wait_for_span(spans, "POST /v1/sessions/{session_id}/replay")
    assert spans.names == ["POST /v1/sessions/{session_id}/replay"]
