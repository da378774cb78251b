"""Route for a session as a document for people."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.errors import problem_specs
from swarmkeep.api.openapi_operations import TranscriptOperation
from swarmkeep.api.parameters import AtSeq
from swarmkeep.api.sse import StreamResponse
from swarmkeep.audit.transcript.document import MEDIA_TYPES, TranscriptFormat, open_transcript
from swarmkeep.audit.transcript.html import CONTENT_SECURITY_POLICY

# It is opened from where the API is, and holds what strangers said.
_TRANSCRIPT_HEADERS = {
    "Content-Security-Policy": f"{CONTENT_SECURITY_POLICY}; sandbox",
    "X-Content-Type-Options": "nosniff",
}


@get(
    "/sessions/{session_id:str}/transcript",
    operation_id="get_transcript",
    summary="Get a session as a document for people",
    operation_class=TranscriptOperation,
    response_description="The document",
    responses=problem_specs("session_not_found", "event_not_found"),
)
async def get_transcript(
    request: Request[Any, Any, Any],
    session_id: FromPath[str],
    principal: NamedDependency[Principal],
    form: Annotated[
        TranscriptFormat | None,
        QueryParameter(name="format", description="`markdown` or `html`; by default as `Accept` says."),
    ] = None,
    at: AtSeq = None,
) -> Response[Any]:
    """Markdown unless `format` or `Accept` asks for HTML. What was said is shown as text, never as markup."""
    chosen = form or ("html" if "text/html" in request.headers.get("accept", "") else "markdown")
    pieces = await open_transcript(principal.store, principal.session_key(session_id), chosen, at=at)
    return StreamResponse(pieces, MEDIA_TYPES[chosen], headers={**_TRANSCRIPT_HEADERS, "Vary": "Accept"})


ROUTES = [get_transcript]
