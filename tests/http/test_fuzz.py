"""Whatever the OpenAPI document allows, and much that it does not, is answered as the document says: never by a 5xx."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serve.test_serve import ServeProcess


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
