"""The parts that requests are put together from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeVar
from urllib.parse import quote
from uuid import uuid4

from swarmkeep_client._json import decode, encode
from swarmkeep_client._wire import Answer, Request
from swarmkeep_client.models import Head

T = TypeVar("T")

Query = tuple[tuple[str, str], ...]


def build_path(*segments: str) -> str:
    """An absolute path of percent-encoded segments.

    Raises ValueError for an empty one, which would silently name another resource.
    """
    return "/" + "/".join(_quote_segment(segment) for segment in segments)


def _quote_segment(segment: str) -> str:
    if not segment:
        raise ValueError("an id or a name must not be empty; pass the one that the server gave")
    if segment in (".", ".."):
        # Legal ids, but as they are they would be taken for steps in the path.
        return segment.replace(".", "%2E")
    return quote(segment, safe=":")


def build_query(**values: str | int | None) -> Query:
    """A query string's pairs, without those that are None or False; True is `true`."""
    given = {name: value for name, value in values.items() if value is not None and value is not False}
    return tuple((name, "true" if value is True else str(value)) for name, value in given.items())


def list_texts(given: str | Sequence[str] | None) -> list[str]:
    """Several texts, or one alone: a text is a sequence, too, and must not be taken for its letters."""
    return [given] if isinstance(given, str) else list(given or ())


def repeat_parameter(name: str, given: str | Sequence[str] | None) -> Query:
    """The pairs of a parameter that may be given several times."""
    return tuple((name, value) for value in list_texts(given))


def format_head(head: Head | None) -> str | None:
    """A head that was noted down, as the server reads it."""
    return None if head is None else f"{head.seq}:{head.hash}"


def format_filter_value(value: str | int | float | bool) -> str:
    """Text as it is, anything else as its JSON: what a metadata filter compares with."""
    return value if isinstance(value, str) else json.dumps(value)


def make_write(
    method: Literal["POST", "PATCH", "PUT"],
    path: str,
    body: Mapping[str, object] | None,
    idempotency_key: str | None,
    *,
    nullable: str | None = None,
) -> Request:
    """A request that changes something, under a key that makes it safe to send again. None in `body` is left out, but
    for the field `nullable`.

    Raises ValueError or TypeError for a body that JSON cannot hold.
    """
    key = str(uuid4()) if idempotency_key is None else idempotency_key
    if not key or not key.isascii() or not key.isprintable():
        raise ValueError("an idempotency key must be printable ASCII text, such as a UUID")
    headers = {"Idempotency-Key": key}
    if body is None:
        return Request(method=method, path=path, headers=headers)
    content = encode({name: value for name, value in body.items() if value is not None or name == nullable})
    return Request(method=method, path=path, body=content, headers={**headers, "Content-Type": "application/json"})


def accept_stream(request: Request, after: int | str | None = None) -> Request:
    """Return the same request, for an answer as a stream of the events that come after `after`."""
    headers = {**request.headers, "Accept": "text/event-stream"}
    if after is not None:
        headers["Last-Event-ID"] = str(after)
    return replace(request, headers=headers)


def build_session_path(session_id: str, *rest: str) -> str:
    return build_path("v1", "sessions", session_id, *rest)


def make_get(*segments: str, query: Query = ()) -> Request:
    """A request that asks for something below `/v1`."""
    return Request(method="GET", path=build_path("v1", *segments), query=query)


def make_read(session_id: str, *rest: str, query: Query = ()) -> Request:
    """A request that asks for something of a session."""
    return make_get("sessions", session_id, *rest, query=query)


def read_as(type_: type[T]) -> Callable[[Answer], T]:
    """Return what reads an answer's body as this type."""
    return lambda answer: decode(answer.body, type_)
