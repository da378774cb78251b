"""When traces are made: what the setting says, and what the standard variables do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from swarmkeep.models.secrets import NO_SECRETS
from swarmkeep.serve.traces import open_tracing
from tests.http.server import server_settings
from tests.support.cases import first

COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


@pytest.mark.parametrize(
    ("mode", "environment"),
    [
        ("auto", {}),
        ("auto", {"OTEL_EXPORTER_OTLP_ENDPOINT": " "}),
        ("off", COLLECTOR),
        ("on", {"OTEL_SDK_DISABLED": "true"}),
        ("on", {"OTEL_TRACES_EXPORTER": "none"}),
        ("auto", {**COLLECTOR, "OTEL_SDK_DISABLED": "TRUE"}),
    ],
)
def test_no_traces_are_made(mode: str, environment: dict[str, str]) -> None:
    assert open_tracing(server_settings(traces=mode), NO_SECRETS, "1", environment) is None


PROGRAM = """
from swarmkeep.models.secrets import NO_SECRETS
from swarmkeep.serve.traces import TracesError, open_tracing
from swarmkeep.serve.settings import Settings
try:
    opened = open_tracing(Settings(_env_file=None), NO_SECRETS, "1")
except TracesError as error:
    print("refused:", error)
else:
    print("open" if opened else "none")
"""


@pytest.mark.parametrize(
    ("environment", "said", "logged"),
    first(
        3,
        [
            ({"SWARMKEEP_TRACES": "on"}, "open", ""),
            ({"OTEL_TRACES_EXPORTER": "console"}, "open", ""),
            (
                {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "SWARMKEEP_TRACES": "ON"},
                "refused: traces are sent by http/protobuf only, not by grpc: see OTEL_EXPORTER_OTLP_PROTOCOL",
                "",
            ),
            ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", **COLLECTOR}, "none", "by http/protobuf only, not by grpc"),
            (
                {"OTEL_PROPAGATORS": "b3", **COLLECTOR},
                "none",
                "OpenTelemetry refuses its settings: Propagator b3 not found",
            ),
            ({"OTEL_TRACES_EXPORTER": "zipkin"}, "none", "OTEL_TRACES_EXPORTER is 'zipkin'; use otlp, console or none"),
        ],
    ),
)
def test_process_without_provider_makes_one(environment: dict[str, str], said: str, logged: str) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SWARMKEEP_", "OTEL_"))}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=kept | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert run.stdout == f"{said}\n"
    assert logged in run.stderr
    assert bool(run.stderr) is bool(logged)
