"""Whatever the OpenAPI document allows, and much that it does not, is answered as the document says: never by a 5xx."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.app.test_serve import ServeProcess
from tests.support.hypothesis_profiles import examples


@schemathesis.serializer("application/x-ndjson")
def serialize_unchanged(ctx: Any, value: Any) -> bytes:
    """An import is a text that the document cannot say more about."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


# Few of each, because starting the generators costs more than the requests.
EXAMPLES = examples(25)
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    with ServeProcess(tmp_path_factory.mktemp("fuzz")) as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.output()


@pytest.mark.long
def test_nothing_that_is_sent_breaks_the_server(server: ServeProcess) -> None:
    url = f"http://127.0.0.1:{server.port}"
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    seen = set()
    with requests.Session() as session:
        for result in schema.get_all_operations():
            operation: Any = result.ok()  # type: ignore[union-attr]
            seen.add(operation.label)
            _attack(server, url, session, operation, GenerationMode.POSITIVE)
            # Of any text in a path, none is wrong.
            if operation.body or operation.query:
                _attack(server, url, session, operation, GenerationMode.NEGATIVE)
    assert len(seen) == len(list(schema.get_all_operations()))
    assert server.request("GET", "/health/ready")[0] == 200


def _attack(server: ServeProcess, url: str, session: requests.Session, operation: Any, mode: GenerationMode) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), known=st.booleans())
    def attack(case: Case[Any], known: bool) -> None:
        if known:
            _point_at_what_exists(server, case)
        answer = case.call(base_url=url, session=session, timeout=20)
        case.validate_response(answer, checks=CHECKS)

    attack()


def _point_at_what_exists(server: ServeProcess, case: Case[Any]) -> None:
    """Let the request meet a session and a run; invented ids get no further than 404."""
    if "session_id" not in case.path_parameters:
        return
    server.request("POST", "/v1/sessions", {"id": "known"})
    case.path_parameters["session_id"] = "known"
    if "run_id" in case.path_parameters:
        _, run = server.request("POST", "/v1/sessions/known/runs", {"input": "hi", "on_busy": "interrupt"})
        case.path_parameters["run_id"] = run["id"]
