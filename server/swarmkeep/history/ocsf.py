"""Entries of the audit log as events of OCSF 1.5 (schema.ocsf.io), for a SIEM, and the way to one over HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from swarmkeep.events.codec import Json, encode, parse_timestamp

OCSF_VERSION = "1.5.0"
MEDIA_TYPE = "application/x-ndjson"
_SECONDS = 30.0
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
}
_SEVERITIES = {
    "session.deleted": _MEDIUM,
    "session.redacted": _MEDIUM,
    "session.released": _MEDIUM,
    "session.damaged": _HIGH,
    "key.created": _MEDIUM,
    "key.revoked": _MEDIUM,
}
_NAMES = {_CREATE: "Create", _UPDATE: "Update", _DELETE: "Delete", _OTHER: "Other"}


class NotDelivered(Exception):
    """The SIEM did not take the events; the sentence says why."""


def to_ocsf(seq: int, type: str, by: str | None, at: str, data: Json, hash: str, *, version: str) -> Json:
    """An entry as an event: API Activity, or Application Lifecycle for the starts and stops of servers.

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
            "log_name": "audit",
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


def _classify(class_uid: int, class_name: str, activity: int, name: str) -> Json:
    return {
        "class_uid": class_uid,
        "class_name": class_name,
        "activity_id": activity,
        "activity_name": name,
        "type_uid": class_uid * 100 + activity,
    }


def write_lines(events: Iterable[Json]) -> bytes:
    return b"".join(encode(event) + b"\n" for event in events)


def deliver(url: str, events: Sequence[Json], authorization: str | None) -> None:
    """Send events as JSON lines. Raises NotDelivered unless they were taken (any 2xx)."""
    import httpx2

    headers = {"Content-Type": MEDIA_TYPE}
    if authorization is not None:
        headers["Authorization"] = authorization
    try:
        with httpx2.stream("POST", url, content=write_lines(events), headers=headers, timeout=_SECONDS) as answer:
            status = answer.status_code
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise NotDelivered(f"no answer from {url}: {error}") from None
    if not 200 <= status < 300:
        raise NotDelivered(f"{url} did not take the events ({status})")
