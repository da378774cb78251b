"""Routes for export and import. An import is verified before anything is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from tempfile import SpooledTemporaryFile
from typing import IO, Annotated, Any, BinaryIO, Literal, cast

from litestar import Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from swarmkeep.events.errors import InvalidRequest
from swarmkeep.events.state import SessionStatus
from swarmkeep.history.conversations import import_conversations
from swarmkeep.history.evidence import make_package, read_blocks
from swarmkeep.history.export import JSON_LINES, filter_sessions, find_sessions, iterate_keys, write_export
from swarmkeep.history.foreign.formats import ForeignFormat, recognise
from swarmkeep.history.import_export import ImportReport, import_export
from swarmkeep.http.auth import Principal
from swarmkeep.http.bodies import JsonRequest
from swarmkeep.http.errors import problem_specs
from swarmkeep.http.openapi import EvidenceOperation, ExportOperation, ImportOperation
from swarmkeep.http.parameters import MAX_SEQ, OPEN_QUERY_PREFIX, read_metadata_filter
from swarmkeep.http.sse import ZIP, StreamResponse

ImportFormat = Literal["export", "auto", ForeignFormat]
_MAX_BYTES_IN_MEMORY = 1024 * 1024
_MAX_IDS = 200
_PACKAGE_HEADERS = {"Content-Disposition": 'attachment; filename="case.zip"'}


@get(
    "/export",
    summary="Export sessions",
    operation_class=ExportOperation,
    response_description="The export, in JSON lines; one that was cut off has no last line",
    opt={OPEN_QUERY_PREFIX: "metadata."},
    responses=problem_specs("session_not_found", "history_damaged"),
)
async def export_sessions(
    request: Request[Any, Any, Any],
    principal: NamedDependency[Principal],
    ids: Annotated[
        list[str] | None,
        QueryParameter(name="id", description="Only these sessions (repeat, up to 200), in this order."),
    ] = None,
    agent: Annotated[str | None, QueryParameter(description="Only those with this active agent.")] = None,
    status: Annotated[SessionStatus | None, QueryParameter(description="Only those in this state.")] = None,
) -> Response[Any]:
    """Newest first. Parameters `metadata.KEY=VALUE` select the sessions with that metadata. An export that was cut off
    has no last line. A session that the archive does not give back has a line that says so (`"record": "missing"`);
    the export of only that one is refused."""
    store, metadata = principal.store, read_metadata_filter(request)
    if not ids:
        keys = filter_sessions(store, principal.tenant, agent=agent, status=status, metadata=metadata)
        return await _stream_export(write_export(store, keys))
    if agent or status or metadata:
        raise InvalidRequest("give ids or filters, not both", "/query/id")
    if len(ids) > _MAX_IDS:
        raise InvalidRequest(f"give at most {_MAX_IDS} ids", "/query/id")
    for session_id in ids:
        principal.session_key(session_id)
    chosen = await find_sessions(store, principal.tenant, ids)
    return await _stream_export(write_export(store, iterate_keys(chosen), alone=len(chosen) == 1))


async def _stream_export(pieces: AsyncGenerator[bytes]) -> StreamResponse:
    # What cannot be read at all has a status of its own.
    first = await anext(pieces, b"")

    async def stream() -> AsyncGenerator[bytes]:
        async with aclosing(pieces):
            yield first
            async for piece in pieces:
                yield piece

    return StreamResponse(stream(), JSON_LINES)


@post(
    "/import",
    status_code=200,
    summary="Import sessions",
    operation_class=ImportOperation,
    responses=problem_specs(
        "invalid_import", "agent_not_found", "session_exists", "too_large", "quota_exceeded", "overloaded"
    ),
)
async def import_sessions(
    request: JsonRequest,
    principal: NamedDependency[Principal],
    as_id: Annotated[
        str | None, QueryParameter(name="as", description="The id for the session, if the file has only one.")
    ] = None,
    dry_run: Annotated[bool, QueryParameter(description="Verify and check only.")] = False,
    source: Annotated[
        ImportFormat,
        QueryParameter(name="from", description="The format of the file; `auto` to have it recognised."),
    ] = "export",
    agent: Annotated[
        str | None,
        QueryParameter(
            description="For files other than exports: the agent that is to continue; by default the one that spoke "
            "last, or the first one served.",
        ),
    ] = None,
) -> ImportReport:
    """The body is an export, or has conversations that were kept elsewhere. All of it is verified before anything is
    recorded. Sessions that exist already, with everything that the file has of them, are left as they are; a
    conversation that has grown since it was imported gets what is new.
    """
    registry, by = principal.engine.registry, principal.name
    limits = principal.engine.limits
    sizes, quota = limits.sizes, limits.storage_quota
    if agent is not None:
        _refuse_agent_of(source)
        registry.get(agent)
    with SpooledTemporaryFile(max_size=_MAX_BYTES_IN_MEMORY) as spooled:
        file = cast(BinaryIO, spooled)
        async with aclosing(request.stream_file()) as pieces:
            async for piece in pieces:
                file.write(piece)
        form = await asyncio.to_thread(recognise, file) if source == "auto" else source
        if form == "export":
            if agent is not None:
                _refuse_agent_of(form)
            return await import_export(
                principal.store,
                principal.tenant,
                file,
                as_id=as_id,
                dry_run=dry_run,
                by=by,
                max_line_values=request.app.state.body_limits.max_values,
                max_queued_runs=limits.max_queued_runs,
                sizes=sizes,
                quota=quota,
            )
        return await import_conversations(
            principal.store,
            principal.tenant,
            file,
            form,
            agent=agent,
            default_agent=registry.default,
            as_id=as_id,
            dry_run=dry_run,
            by=by,
            max_line_values=request.app.state.body_limits.max_values,
            sizes=sizes,
            files=limits.files,
            quota=quota,
        )


def _refuse_agent_of(source: ImportFormat) -> None:
    if source == "export":
        raise InvalidRequest("an export already names the active agent; leave `agent` out", "/query/agent")


@get(
    "/evidence",
    summary="Pack sessions so that a stranger can check them",
    operation_class=EvidenceOperation,
    response_description="A ZIP file",
    responses=problem_specs(
        "session_not_found",
        "checkpoint_not_found",
        "not_in_checkpoint",
        "log_damaged",
        "history_damaged",
        "too_large",
        "overloaded",
    ),
)
async def make_evidence(
    principal: NamedDependency[Principal],
    ids: Annotated[list[str], QueryParameter(name="id", description="These sessions (repeat), in this order.")],
    size: Annotated[
        int | None,
        QueryParameter(ge=1, le=MAX_SEQ, description="Prove them from the log's checkpoint of so many leaves."),
    ] = None,
) -> Response[Any]:
    """Their events, files and transcripts, what the audit log says of them (for keys that may read it), their signed
    ends, and the program that checks all of it with nothing but Python. A server process makes one package per tenant
    at a time, of up to `SWARMKEEP_MAX_IMPORT_BYTES`."""
    service = principal.service
    if len(ids) > _MAX_IDS:
        raise InvalidRequest(f"give at most {_MAX_IDS} ids", "/query/id")
    for session_id in ids:
        principal.session_key(session_id)
    async with service.packages.enter(principal.tenant):
        file = await make_package(
            principal.store,
            principal.tenant,
            ids,
            log=service.head_log,
            signer=service.head_log.signer,
            with_audit=principal.may("audit"),
            size=size,
            max_bytes=service.max_package_bytes,
        )
    return StreamResponse(_stream_file(file), ZIP, headers=_PACKAGE_HEADERS)


async def _stream_file(file: IO[bytes]) -> AsyncGenerator[bytes]:
    with file:
        for block in read_blocks(file):
            yield block


EXPORT_ROUTES = [export_sessions, make_evidence]
IMPORT_ROUTES = [import_sessions]
