"""The routes for whole sessions as files, as functions from their arguments to a Call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import BinaryIO

from swarmkeep_client._calls import MetadataValue
from swarmkeep_client._requests import (
    build_path,
    build_query,
    format_filter_value,
    make_get,
    make_read,
    make_write,
    read_as,
    repeat_parameter,
)
from swarmkeep_client._wire import Call, Request
from swarmkeep_client.models import ImportReport


def export_sessions(
    ids: str | Sequence[str] | None,
    *,
    agent: str | None = None,
    status: str | None = None,
    metadata: Mapping[str, MetadataValue] | None = None,
) -> Request:
    wanted = {f"metadata.{key}": format_filter_value(value) for key, value in (metadata or {}).items()}
    filters = build_query(agent=agent, status=status, **wanted)
    return make_get("export", query=(*filters, *repeat_parameter("id", ids)))


def get_transcript(session_id: str, form: str, *, at: int | None) -> Call[str]:
    request = make_read(session_id, "transcript", query=build_query(format=form, at=at))
    return Call(request, lambda answer: answer.body.decode())


def import_sessions(
    file: bytes | BinaryIO, *, source: str, agent: str | None, as_id: str | None, dry_run: bool
) -> Call[ImportReport]:
    # Sent again it does nothing more, so it may be sent again.
    request = make_write("POST", build_path("v1", "import"), None, None)
    # Words of Python's own, which are no names of arguments.
    words = {"as": as_id, "from": None if source == "export" else source}
    request = replace(
        request,
        body=file,
        query=build_query(**words, agent=agent, dry_run=dry_run),
        headers={**request.headers, "Content-Type": "application/x-ndjson"},
    )
    return Call(request, read_as(ImportReport))
