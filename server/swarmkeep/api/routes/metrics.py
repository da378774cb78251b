"""Route for the metrics, which have a token of their own."""

from __future__ import annotations

from secrets import compare_digest
from typing import Any

from litestar import Request, Response, get
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from swarmkeep.api.errors import problem_specs
from swarmkeep.api.http_errors import Unauthenticated
from swarmkeep.api.service import Service


@get(
    "/metrics",
    operation_id="metrics",
    summary="The server's metrics, for Prometheus",
    media_type="text/plain",
    response_description="The text format of Prometheus",
    responses=problem_specs("unauthenticated", keyless=True),
)
async def get_metrics(request: Request[Any, Any, Any]) -> Response[str]:
    """Over all tenants. Open while the server has no API keys; afterwards it needs a token of its own
    (SWARMKEEP_METRICS_TOKEN)."""
    service: Service = request.app.state.service
    counts = service.metrics
    if counts.token is not None or await service.keyring.is_locked():
        _require_token(counts.token, request.headers.get("authorization", ""))
    # As a header of its own: to a media type the framework would add the charset once more.
    return Response[Any](await counts.render(), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


def _require_token(token: str | None, authorization: str) -> None:
    scheme, _, shown = authorization.partition(" ")
    shown = shown.strip() if scheme.lower() == "bearer" else ""
    if token is None or not compare_digest(shown.encode(), token.encode()):
        raise Unauthenticated(key_given=bool(shown), credential="metrics token (the server's SWARMKEEP_METRICS_TOKEN)")


ROUTES = [get_metrics]
