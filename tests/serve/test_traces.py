"""Server processes that send traces, one that is killed, and ones that cannot send any."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.test_serve import ServeProcess, model_environment
from tests.support.collector import Collector, ReceivedSpan
from tests.support.processes import ServerProcess
from tests.support.scripted import ScriptedModel

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

WITHOUT_THE_EXTRA = "import sys; sys.modules['opentelemetry'] = None"
SAYS_WHAT_IS_LOADED = """
loaded = {'opentelemetry.context', 'opentelemetry.trace', 'opentelemetry.sdk'} & set(sys.modules)
print('loaded:', sorted(loaded))
"""
AGENTS = """
from swarmkeep import Agent

def look(city: str) -> str:
    return f"sunny in {city}"

front = Agent(name="Front", model="m", functions=[look])
"""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as opened:
        yield opened


class AlteredServer(ServeProcess):
    """The server with lines before and after it."""

    def __init__(self, folder: Path, before: str = "", after: str = "", **environment: str) -> None:
        super().__init__(folder, **environment)
        self.command[-1] = "\n".join((before, self.command[-1], after))
        self.cold = True


def post(server: ServerProcess, path: str, body: Any, **headers: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json", **headers})
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_outliving_run_links_to_first_trace(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, model: ScriptedModel, collector: Collector
) -> None:
    url: str = request.getfixturevalue("postgres_url") if kind == "postgres" else f"sqlite:///{tmp_path / 's.db'}"
    (tmp_path / "team.py").write_text(AGENTS)
    environment = {
        **model_environment(model),
        "SWARMKEEP_LEASE_SECONDS": "1",
        "SWARMKEEP_MIGRATE": "true",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "20",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=tests",
    }

    def make_server() -> ServerProcess:
        return ServerProcess(
            tmp_path, database_url=url, agents=[str(tmp_path / "team.py")], offline=False, env=environment
        )

    model.call("look", {"city": "Oslo"})
    model.hang()
    with make_server() as first:
        post(first, "/v1/sessions", {"id": "s"})
        caller = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
        post(first, "/v1/sessions/s/runs", {"input": "hello", "background": True}, **caller)
        model.wait_for_requests(2)
        called = collector.wait_for(lambda span: span.name == "execute_tool look")
        asked = collector.wait_for(lambda span: span.name == "POST /v1/sessions/{session_id}/runs")
        first.kill()
    assert (called.trace_id, asked.trace_id, asked.parent_id) == (TRACE, TRACE, SPAN)
    assert called.resource["service.name"] == "swarmkeep"
    assert called.resource["deployment.environment.name"] == "tests"

    model.say("still here")
    with make_server() as second:
        resumed = collector.wait_for(lambda span: span.name == "invoke_agent Front")
        answered = collector.wait_for(lambda span: span.name == "chat m" and span.server == resumed.server)
        assert second.stop() == 0
    assert resumed.server != called.server
    assert resumed.links == [(TRACE, asked.span_id)]
    assert resumed.attributes["swarmkeep.run.resumed"].string_value == "recovery"
    assert (answered.trace_id, answered.parent_id) == (resumed.trace_id, resumed.span_id)
    assert resumed.trace_id != TRACE


@pytest.mark.long
def test_pending_spans_sent_at_stop(tmp_path: Path, collector: Collector) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "3600000"}
    with ServeProcess(tmp_path, OTEL_SERVICE_NAME="mine", **environment) as server:
        server.request("GET", "/v1/agents")
        assert server.stop() == 0

    def is_asked(span: ReceivedSpan) -> bool:
        return span.name == "GET /v1/agents"

    assert collector.wait_for(is_asked, seconds=1).resource["service.name"] == "mine"


@pytest.mark.long
def test_missing_collector_blocks_no_work(tmp_path: Path) -> None:
    with ServeProcess(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9", SWARMKEEP_TRACES="on") as server:
        assert server.request("POST", "/v1/sessions", {"id": "s"})[0] == 201
        assert server.request("POST", "/v1/sessions/s/runs", {"input": "hello"})[1]["status"] == "completed"
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 10


@pytest.mark.long
def test_missing_extra_prevents_traced_start(tmp_path: Path) -> None:
    server = AlteredServer(tmp_path, WITHOUT_THE_EXTRA, SWARMKEEP_TRACES="on")
    super(ServeProcess, server).start()
    assert server.wait() == 1
    assert server.output() == "refused: traces need one more library: pip install 'swarmkeep[otel]'\n"


@pytest.mark.long
def test_missing_extra_ignores_collector_environment(tmp_path: Path) -> None:
    with AlteredServer(tmp_path, WITHOUT_THE_EXTRA, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9") as server:
        assert server.request("POST", "/v1/sessions", {"id": "s"})[0] == 201
        assert server.request("POST", "/v1/sessions/s/runs", {"input": "hello"})[1]["status"] == "completed"
        assert server.stop() == 0
        (warning,) = [line for line in server.output().splitlines() if "WARNING" in line]
        assert warning.endswith(
            "no traces are made, although the environment asks for them: traces need one more library: "
            "pip install 'swarmkeep[otel]'"
        )


@pytest.mark.long
@pytest.mark.parametrize(
    "environment", [{}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "SWARMKEEP_TRACES": "off"}]
)
def test_untraced_server_loads_no_tracing(tmp_path: Path, environment: dict[str, str]) -> None:
    with AlteredServer(tmp_path, after=SAYS_WHAT_IS_LOADED, **environment) as server:
        assert server.request("POST", "/v1/sessions", {"id": "s"})[0] == 201
        assert server.request("POST", "/v1/sessions/s/runs", {"input": "hello"})[1]["status"] == "completed"
        assert server.stop() == 0
        assert server.output().splitlines()[-1] == "loaded: []"
