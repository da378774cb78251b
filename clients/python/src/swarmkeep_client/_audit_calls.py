"""The routes of the API that check and remove, as functions from their arguments to a Call."""

from __future__ import annotations

from collections.abc import Sequence

from swarmkeep_client._requests import build_query, build_session_path, format_head, make_get, make_write, read_as
from swarmkeep_client._wire import Call
from swarmkeep_client.auditing import AuditEntry, Redaction
from swarmkeep_client.models import Head, Page, Verification


def redact(
    session_id: str,
    seqs: Sequence[int],
    reason: str,
    *,
    include_forks: bool,
    dry_run: bool,
    idempotency_key: str | None,
) -> Call[Redaction]:
    body = {
        "seqs": list(seqs),
        "reason": reason,
        "include_forks": include_forks or None,
        "dry_run": dry_run or None,
    }
    return Call(make_write("POST", build_session_path(session_id, "redact"), body, idempotency_key), read_as(Redaction))


def list_audit(*, after: int | None, page_size: int | None) -> Call[Page[AuditEntry]]:
    return Call(make_get("audit", query=build_query(after=after, limit=page_size)), read_as(Page[AuditEntry]))


def verify_audit(head: Head | None) -> Call[Verification]:
    return Call(make_get("audit", "verify", query=build_query(head=format_head(head))), read_as(Verification))
