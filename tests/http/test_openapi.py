"""The OpenAPI document and its page; and whatever it allows, and much that it does not, is never answered by a 5xx."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import swarmkeep
from swarmkeep.events.codec import Json
from tests.http.server import RunningServer
from tests.http.test_errors import CODES
from tests.serve.test_serve import ServeProcess

METHODS = {"get", "post", "patch", "put", "delete"}


async def read_document(service: RunningServer) -> Json:
    answer = await service.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    found: Json = answer.json()
    return found


async def test_every_route_is_described(plain: RunningServer) -> None:
    made = await read_document(plain)
    routes = {
        (method.lower(), route.path_format)
        for route in plain.app.routes
        for method in getattr(route, "methods", ())
        if route.path != "/" and not route.path.startswith(("/docs", "/openai", "/openapi", "/page"))
    }
    described = {(method, path) for path, item in made["paths"].items() for method in item}
    assert described == {(method, path) for method, path in routes if method in METHODS}
    operations = [operation for item in made["paths"].values() for operation in item.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert all(operation["summary"] and operation["tags"] for operation in operations)
    assert made["info"]["version"] == swarmkeep.__version__


async def test_every_code_described_with_status(plain: RunningServer) -> None:
    made = await read_document(plain)
    # Of the router.
    elsewhere = {"not_found", "method_not_allowed"}
    found: dict[int, set[str]] = {}
    for item in made["paths"].values():
        for operation in item.values():
            for status, answer in operation["responses"].items():
                if int(status) >= 400:
                    forms = set(answer["content"])
                    # The protocol of MCP has its own, beside ours.
                    assert forms == {"application/problem+json"} or operation["operationId"] == "speak_mcp"
                    if "application/problem+json" in forms:
                        found.setdefault(int(status), set()).update(re.findall(r"`(\w+)`", answer["description"]))
    assert found == {status: left for status, codes in CODES.items() if (left := codes - elsewhere)}


async def test_bodies_and_answers_have_schemas(plain: RunningServer) -> None:
    made = await read_document(plain)
    schemas = made["components"]["schemas"]
    references = set(re.findall(r"#/components/schemas/(\w+)", str(made)))
    assert references == set(schemas)
    for name in ("NewSession", "SessionPatch", "Fork", "NewRun", "Resume"):
        assert schemas[name]["additionalProperties"] is False
    run = made["paths"]["/v1/sessions/{session_id}/runs"]["post"]
    assert run["requestBody"]["required"] is True
    assert made["paths"]["/v1/sessions"]["post"]["requestBody"]["required"] is False
    assert set(run["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    assert set(run["responses"]["202"]["content"]) == {"application/json"}
    events = made["paths"]["/v1/sessions/{session_id}/events"]["get"]["responses"]["200"]["content"]
    assert set(events) == {"application/json", "text/event-stream", "application/x-ndjson"}


async def test_json_routes_describe_their_refusals(plain: RunningServer) -> None:
    made = await read_document(plain)
    operations = [operation for item in made["paths"].values() for operation in item.values()]
    taking = [one for one in operations if "application/json" in one.get("requestBody", {}).get("content", {})]
    silent = {
        one["operationId"]: missing for one in taking if (missing := {"413", "415", "422"} - set(one["responses"]))
    }
    # The first changes nothing, the others nothing twice, so that a key makes no difference to them.
    assert silent == {
        "replay_session": {"422"},
        "hold_session": {"422"},
        "erase_person": {"422"},
        "move_consumer": {"422"},
        "update_webhook": {"422"},
        "speak_mcp": {"422"},
    }


async def test_the_page_loads_nothing_from_outside(plain: RunningServer) -> None:
    page = await plain.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "http" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert loaded
    for address in loaded:
        if not address.startswith("data:"):
            assert "//" not in address
            assert (await plain.get(f"/{address}")).status_code == 200
    assert "<script>" not in page.text
    styles = (await plain.get("/docs/swagger-ui.css")).text
    assert all(address.startswith("data:") for address in re.findall(r"url\(\s*[\"']?([^)\"']*)", styles))
    assert "@import" not in styles


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    with ServeProcess(tmp_path_factory.mktemp("fuzz")) as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.output()


@pytest.mark.long
@pytest.mark.parametrize("document", ["/openapi.json", "/openai/v1/openapi.json"])
def test_no_input_breaks_the_server(server: ServeProcess, document: str) -> None:
    # Schemathesis takes seconds to import, which the short run would pay for nothing.
    from tests.http.fuzzing import attack_every_operation

    attack_every_operation(server, document)
    assert server.request("GET", "/health/ready")[0] == 200
