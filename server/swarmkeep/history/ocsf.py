"""Entries of the audit log, and events of sessions, as events of OCSF 1.5 (schema.ocsf.io), for a SIEM, and the way to
one over HTTP."""

from __future__ import annotations

import time
from contextlib import suppress

from swarmkeep.events.codec import Json, parse_timestamp

OCSF_VERSION = "1.5.0"
MEDIA_TYPE = "application/x-ndjson"
_SECONDS = 30.0
_ANSWER_BYTES = 64_000
_APPLICATION = 6
_API_ACTIVITY, _LIFECYCLE = 6003, 6002
_CREATE, _UPDATE, _DELETE, _OTHER = 1, 3, 4, 99
_START, _STOP = 3, 4
_INFORMATIONAL, _MEDIUM, _HIGH = 1, 3, 4

_ACTIVITIES = {
    "session.imported": _CREATE,
    "session.deleted": _DELETE,
    "session.redacted": _UPDATE,
    "session.held": _UPDATE,
    "session.released": _UPDATE,
    "approval.decided": _UPDATE,
    "key.created": _CREATE,
    "key.revoked": _DELETE,
    "webhook.created": _CREATE,
    "webhook.updated": _UPDATE,
    "webhook.rotated": _UPDATE,
    "webhook.disabled": _UPDATE,
    "webhook.deleted": _DELETE,
    "agent.created": _CREATE,
    "agent.updated": _UPDATE,
    "agent.deleted": _DELETE,
}
_SEVERITIES = {
    "session.deleted": _MEDIUM,
    "session.redacted": _MEDIUM,
    "session.released": _MEDIUM,
    "session.damaged": _HIGH,
    "key.created": _MEDIUM,
    "key.revoked": _MEDIUM,
    "webhook.created": _MEDIUM,
    "webhook.updated": _MEDIUM,
}
_NAMES = {_CREATE: "Create", _UPDATE: "Update", _DELETE: "Delete", _OTHER: "Other"}


class NotDelivered(Exception):
    """The SIEM did not take the events; the sentence says why."""


def to_ocsf(
    seq: int, type: str, by: str | None, at: str, data: Json, hash: str, *, version: str, log: str = "audit"
) -> Json:
    """An entry of a `log` as an event: API Activity, or Application Lifecycle for the starts and stops of servers.

    `metadata.uid` is the entry's hash and `metadata.sequence` its seq: an event that comes twice can be told.
    `version` is the product's. What OCSF has no place for is in `unmapped`.
    """
    recorded = parse_timestamp(at)
    product = {"name": "Swarmkeep", "vendor_name": "Swarmkeep", "version": version}
    event: Json = {
        "category_uid": _APPLICATION,
        "metadata": {
            "product": product,
            "version": OCSF_VERSION,
            "log_name": log,
            "uid": hash,
            "sequence": seq,
            "event_code": type,
        },
        "severity_id": _SEVERITIES.get(type, _INFORMATIONAL),
        "status_id": 1,
        "time": 0 if recorded is None else int(recorded.timestamp() * 1000),
        "message": f"{type} by {by}" if by else type,
        "unmapped": data,
    }
    if type in ("server.started", "server.stopped"):
        activity = _START if type == "server.started" else _STOP
        name = "Start" if activity == _START else "Stop"
        return {**event, **_classify(_LIFECYCLE, "Application Lifecycle", activity, name), "app": product}
    activity = _ACTIVITIES.get(type, _OTHER)
    return {
        **event,
        **_classify(_API_ACTIVITY, "API Activity", activity, _NAMES[activity]),
        "actor": {"user": {"name": by or "unknown"}},
        "api": {"operation": type, "service": {"name": "Swarmkeep"}},
        # The log does not have the caller's address.
        "src_endpoint": {"name": by or "unknown"},
        "resources": [
            {"type": kind, "uid": str(data[name])}
            for kind, name in (("session", "session_id"), ("api_key", "key_id"))
            if data.get(name) is not None
        ],
    }


def session_event_to_ocsf(
    cursor: str,
    session_id: str,
    seq: int,
    type: str,
    agent: str | None,
    at: str,
    data: object,
    hash: str,
    *,
    version: str,
) -> Json:
    """An event of a session, done by its agent. `unmapped` has its place in the feed, the agent and the data."""
    by = data.get("by") if isinstance(data, dict) else None
    unmapped = {"cursor": cursor, "session_id": session_id, "agent": agent, "data": data}
    who = by if isinstance(by, str) else agent
    return to_ocsf(seq, type, who, at, unmapped, hash, version=version, log="events")


def _classify(class_uid: int, class_name: str, activity: int, name: str) -> Json:
    return {
        "class_uid": class_uid,
        "class_name": class_name,
        "activity_id": activity,
        "activity_name": name,
        "type_uid": class_uid * 100 + activity,
    }


def deliver(url: str, content: bytes, media_type: str, authorization: str | None) -> bytes:
    """POST a body; give the beginning of the answer. Raises NotDelivered unless it was taken (any 2xx)."""
    import httpx2

    said = b""
    headers = {"Content-Type": media_type}
    if authorization is not None:
        headers["Authorization"] = authorization
    try:
        with httpx2.stream("POST", url, content=content, headers=headers, timeout=_SECONDS) as answer:
            status = answer.status_code
            # The status says that it was taken, also where the rest of the answer does not come.
            until = time.monotonic() + _SECONDS
            with suppress(httpx2.HTTPError):
                for piece in answer.iter_bytes():
                    said += piece
                    if len(said) > _ANSWER_BYTES or time.monotonic() > until:
                        break
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise NotDelivered(f"no answer from {url}: {error}") from None
    if not 200 <= status < 300:
        raise NotDelivered(f"{url} did not take the events ({status})")
    return said
