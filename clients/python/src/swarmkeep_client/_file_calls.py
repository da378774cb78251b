"""The routes for whole sessions as files, and for figures about many: as functions from their arguments to a Call."""

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
)
from swarmkeep_client._wire import Call, Request
from swarmkeep_client.models import ImportReport, Page
from swarmkeep_client.prices import Prices
from swarmkeep_client.usage import Quotas, SessionCounts, UsageRow


def export_sessions(
    ids: Sequence[str] | None,
    *,
    agent: str | None = None,
    status: str | None = None,
    metadata: Mapping[str, MetadataValue] | None = None,
) -> Request:
    wanted = {f"metadata.{key}": format_filter_value(value) for key, value in (metadata or {}).items()}
    filters = build_query(agent=agent, status=status, **wanted)
    return make_get("export", query=(*filters, *(("id", session_id) for session_id in ids or ())))


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


def get_quotas() -> Call[Quotas]:
    return Call(make_get("quotas"), read_as(Quotas))


def get_counts(*, children: bool) -> Call[SessionCounts]:
    return Call(make_get("counts", query=build_query(children=children)), read_as(SessionCounts))


def get_prices() -> Call[Prices]:
    return Call(make_get("prices"), read_as(Prices))


def get_usage(
    *,
    group_by: Sequence[str],
    first_day: str | None,
    last_day: str | None,
    agent: str | None,
    model: str | None,
    session: str | None,
    page_size: int | None,
) -> Call[Page[UsageRow]]:
    filters = build_query(
        **{"from": first_day, "to": last_day}, agent=agent, model=model, session=session, limit=page_size
    )
    groups = tuple(("group_by", name) for name in group_by)
    return Call(make_get("usage", query=(*groups, *filters)), read_as(Page[UsageRow]))
