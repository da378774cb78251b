"""Requests of every kind that the OpenAPI document allows, and of many that it does not."""

from __future__ import annotations

from typing import Any

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

from tests.serve.test_serve import ServeProcess
from tests.support.hypothesis_profiles import examples, some


@schemathesis.serializer("application/x-ndjson")
def serialize_unchanged(ctx: Any, value: Any) -> bytes:
    """An import is a text that the document cannot say more about."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


# Few of each, because starting the generators costs more than the requests.
EXAMPLES = examples(10)
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def attack_every_operation(server: ServeProcess, document: str) -> None:
    url = f"http://127.0.0.1:{server.port}"
    schema = schemathesis.openapi.from_url(f"{url}{document}")
    operations: list[Any] = [result.ok() for result in schema.get_all_operations()]  # type: ignore[union-attr]
    assert len({operation.label for operation in operations}) == len(operations)
    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    with requests.Session() as session:
        for number, operation in enumerate(operations):
            # Of any text in a path, none is wrong. Where few examples are wanted, one mode is tried, in turn.
            takes_both = operation.body or operation.query
            for mode in some((modes[number % 2], modes[1 - number % 2])) if takes_both else modes[:1]:
                _attack(server, url, session, operation, mode)


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
        if isinstance(case.query.get("wait"), int | float):
            # A long poll of something that never happens takes as long as it may.
            case.query["wait"] = min(case.query["wait"], 1)
        answer = case.call(base_url=url, session=session, timeout=20)
        case.validate_response(answer, checks=CHECKS)

    attack()


# A stream of a session that exists ends with that only.
_ENDLESS = ("stream_agent_session_events",)


def _point_at_what_exists(server: ServeProcess, case: Case[Any]) -> None:
    """Let the request meet a session and a run; invented ids get no further than 404."""
    if "response_id" in case.path_parameters:
        _, response = server.request("POST", "/openai/v1/responses", {"input": "hi"})
        case.path_parameters["response_id"] = response["id"]
    if "conversation_id" in case.path_parameters:
        _, made = server.request("POST", "/openai/v1/conversations", {})
        case.path_parameters["conversation_id"] = made["id"]
    if "session_id" not in case.path_parameters or case.operation.definition.raw["operationId"] in _ENDLESS:
        return
    server.request("POST", "/v1/sessions", {"id": "known"})
    case.path_parameters["session_id"] = "known"
    if "run_id" in case.path_parameters:
        _, run = server.request("POST", "/v1/sessions/known/runs", {"input": "hi", "on_busy": "interrupt"})
        case.path_parameters["run_id"] = run["id"]
    if "turn_id" in case.path_parameters:
        _, run = server.request("POST", "/v1/sessions/known/runs", {"input": "hi", "on_busy": "interrupt"})
        case.path_parameters["turn_id"] = run["id"]
