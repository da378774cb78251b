"""The routes of API keys, as functions from their arguments to a Call."""

from __future__ import annotations

from datetime import datetime

from swarmkeep_client._requests import build_path, build_query, make_get, make_write, read_as
from swarmkeep_client._wire import Call
from swarmkeep_client.keys import ApiKey, Caller, CreatedKey, Role
from swarmkeep_client.models import Page


def create_key(
    *, name: str, role: Role, expires_at: datetime | str | None, idempotency_key: str | None
) -> Call[CreatedKey]:
    body = {"name": name, "role": role, "expires_at": _format_time(expires_at)}
    return Call(make_write("POST", build_path("v1", "keys"), body, idempotency_key), read_as(CreatedKey))


def _format_time(at: datetime | str | None) -> str | None:
    if isinstance(at, datetime) and at.tzinfo is None:
        raise ValueError("expires_at needs a time zone, as in datetime.now(UTC) + timedelta(days=90)")
    return at.isoformat() if isinstance(at, datetime) else at


def get_caller() -> Call[Caller]:
    return Call(make_get("me"), read_as(Caller))


def list_keys(*, page_size: int | None) -> Call[Page[ApiKey]]:
    return Call(make_get("keys", query=build_query(limit=page_size)), read_as(Page[ApiKey]))


def revoke_key(key_id: str) -> Call[ApiKey]:
    # Sent again it does nothing more, so it may be sent again.
    return Call(make_write("POST", build_path("v1", "keys", key_id, "revoke"), None, None), read_as(ApiKey))
