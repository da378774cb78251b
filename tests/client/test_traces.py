"""What a program with traces tells the server of them."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

from swarmkeep_client import AsyncClient, Client
from tests.client import samples
from tests.client.stub_server import DROPPED, StubServer, make_json_reply

TRACE, SPAN = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7


def test_request_names_current_span_on_each_send(server: StubServer, client: Client) -> None:
    tracer = TracerProvider().get_tracer("tests")
    server.script(DROPPED, make_json_reply(samples.make_session(), 201))
    with tracer.start_as_current_span("a caller") as span:
        client.sessions.create(agent="A")
    context = span.get_span_context()
    named = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    assert [request.headers["traceparent"] for request in server.received] == [named, named]
    assert "tracestate" not in server.last.headers


async def test_current_trace_and_state_passed_on(server: StubServer, async_client: AsyncClient) -> None:
    server.script(make_json_reply(samples.make_session(), 201))
    context = SpanContext(TRACE, SPAN, True, TraceFlags(0), TraceState([("vendor", "1")]))
    with trace.use_span(NonRecordingSpan(context)):
        await async_client.sessions.create(agent="A")
    assert server.last.headers["traceparent"] == f"00-{TRACE:032x}-{SPAN:016x}-00"
    assert server.last.headers["tracestate"] == "vendor=1"


def test_no_span_sends_no_trace(server: StubServer, client: Client) -> None:
    server.script(make_json_reply(samples.make_session(), 201))
    client.sessions.create(agent="A")
    assert not [name for name in server.last.headers if name.lower().startswith("trace")]
