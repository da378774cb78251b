"""The document of /openai/v1: its own, complete, and valid."""

from __future__ import annotations

from swarmkeep.http.openapi import get_operation_id
from swarmkeep.openai.document import ROUTES
from tests.http.server import RunningServer


async def test_openai_api_has_own_document(plain: RunningServer) -> None:
    document = (await plain.get("/openai/v1/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    paths = document["paths"]
    assert all(path.startswith("/openai/v1/") for path in paths)
    operations = {operation["operationId"] for path in paths.values() for operation in path.values()}
    assert operations == {get_operation_id(handler) for handler in ROUTES}
    main = (await plain.get("/openapi.json")).json()
    assert not [path for path in main["paths"] if path.startswith("/openai")]
    refs = document["components"]["schemas"]
    assert {"Response", "Conversation", "Error", "CreateResponse"} <= set(refs)
