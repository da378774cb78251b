"""Errors as problem documents (RFC 9457). The table here alone decides on the status of a domain error."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException
from litestar.handlers import BaseRouteHandler
from litestar.openapi.datastructures import ResponseSpec

from swarmkeep.events import errors as domain
from swarmkeep.http.auth import RequestTimeout, Unauthenticated
from swarmkeep.http.bodies import JsonResponse
from swarmkeep.http.parameters import describe_parameter
from swarmkeep.logs import outage_log
from swarmkeep.store.records import ArchiveUnavailable, SchemaBehind, StoreUnavailable

log = logging.getLogger(__name__)

PROBLEM_JSON = "application/problem+json"
_MAX_PATH_CHARACTERS = 200
MAX_DETAIL_CHARACTERS = 10_000
_METHODS_WITHOUT_BODY = ("GET", "DELETE")
_OPENAI_ROUTE = re.compile(r"(?:/v1)?/(?:responses|chat/completions|conversations|models|embeddings)(?:/|\Z)")
_ASSISTANTS_ROUTE = re.compile(r"(?:/openai)?(?:/v1)?/(?:assistants|threads)(?:/|\Z)")
_POINTERS_OUTSIDE_BODY = ("/query", "/path", "/header")

# By its code: the status of each error, of the framework's and the database's, too, and its phrase.
_ERRORS = {
    "invalid_request": (400, "The request is not valid"),
    "invalid_import": (400, "The file cannot be imported"),
    "unauthenticated": (401, "An API key is needed"),
    "forbidden": (403, "This is not allowed"),
    "not_found": (404, "There is nothing here"),
    "session_not_found": (404, "No such session"),
    "run_not_found": (404, "No such run"),
    "event_not_found": (404, "No such event"),
    "blob_not_found": (404, "No such file"),
    "checkpoint_not_found": (404, "No such checkpoint"),
    "not_in_checkpoint": (404, "The session is not in this checkpoint"),
    "consumer_not_found": (404, "No such consumer of the feed"),
    "person_not_found": (404, "No key of this person"),
    "webhook_not_found": (404, "No such webhook"),
    "delivery_not_found": (404, "Nothing to deliver there"),
    "agent_not_found": (404, "No such agent"),
    "key_not_found": (404, "No such API key"),
    "method_not_allowed": (405, "This method is not allowed here"),
    "request_timeout": (408, "The request did not arrive in time"),
    "session_exists": (409, "The session already exists"),
    "session_busy": (409, "A run is active in this session"),
    "run_not_waiting": (409, "The run is not waiting"),
    "not_taken_over": (409, "Nobody has taken the session over"),
    "on_hold": (409, "A legal hold keeps the session from being redacted or deleted"),
    "person_erased": (409, "The session's person was erased"),
    "taken_over": (409, "Somebody else has taken the session over"),
    "session_damaged": (409, "The session's log is damaged"),
    "history_damaged": (409, "What is stored of the session is not what was recorded"),
    "log_damaged": (409, "The log of heads is not what was written"),
    "request_not_kept": (409, "The request cannot be rebuilt exactly"),
    "already_decided": (409, "This was already decided"),
    "arguments_changed": (409, "The arguments are not those that were shown"),
    "agent_unavailable": (409, "The session's agent is not available here"),
    "seq_mismatch": (412, "The session has changed"),
    "too_large": (413, "The request is too large"),
    "unsupported_media_type": (415, "The body is not JSON"),
    "idempotency_mismatch": (422, "The idempotency key was used with another request"),
    "rate_limited": (429, "Too many requests"),
    "quota_exceeded": (429, "A quota or limit is exceeded"),
    "internal_error": (500, "The server met an unexpected error"),
    "search_off": (501, "Search is turned off here"),
    "draining": (503, "The server is shutting down"),
    "overloaded": (503, "The server is overloaded"),
    "store_unavailable": (503, "The database, or the archive, cannot be used"),
    "schema_behind": (503, "The database does not have this release's schema"),
}
STATUS = {code: status for code, (status, _) in _ERRORS.items()}
TITLES = {code: title for code, (_, title) in _ERRORS.items()}

_CODE_OF_STATUS = {
    400: "invalid_request",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
}


class FieldError(msgspec.Struct, frozen=True):
    """One thing that is wrong with a request."""

    pointer: str
    """Where (RFC 6901): in the body, or, as `/query/NAME` and `/header/NAME`, a parameter or a header."""
    detail: str
    """What is wrong."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The reason for refusing a request (RFC 9457)."""

    type: str
    """`urn:swarmkeep:problem:` and the code."""
    title: str
    """What the code means."""
    status: int
    """The HTTP status."""
    detail: str
    """The reason, for people."""
    code: str
    """A word that never changes its meaning."""
    errors: list[FieldError] | msgspec.UnsetType = msgspec.UNSET
    """Each thing that is wrong with the request."""
    known_agents: list[str] | msgspec.UnsetType = msgspec.UNSET
    """The agents that there are."""
    active_run_id: str | msgspec.UnsetType = msgspec.UNSET
    """The run that keeps the session busy."""
    session_id: str | msgspec.UnsetType = msgspec.UNSET
    """The session that is in the way, where it may be another than the one that was asked for."""
    seq: int | msgspec.UnsetType = msgspec.UNSET
    """The session's last event; of `history_damaged` the first that is not as recorded."""
    line: int | msgspec.UnsetType = msgspec.UNSET
    """The line of the file that cannot be imported."""


def make_problem_response(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """The answer to a request that ended in an error."""
    body, headers = describe_error(error, request)
    return JsonResponse(body, status_code=body["status"], media_type=PROBLEM_JSON, headers=headers)


def describe_error(
    error: Exception, request: Request[Any, Any, Any] | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """The problem document and its headers, with details of the request. Logs an unexpected error.

    There is no request where the error is answered over a WebSocket, or in its handshake.
    """
    body, headers = make_problem(error, None if request is None else request.scope.get("route_handler"))
    if body["status"] == 500:
        place = "WebSocket" if request is None else f"{request.method} {request.url.path}"
        log.error("%s: unexpected error", place, exc_info=error)
    if request is None:
        return body, headers
    if isinstance(error, HTTPException) and body["status"] in (404, 405):
        body = {**body, **_describe_missing_route(request, headers)}
    if isinstance(error, HTTPException) and body["status"] == 413:
        body = {**body, "detail": _describe_body_limit(request)}
    if "errors" in body and request.method in _METHODS_WITHOUT_BODY:
        body = {**body, "errors": [_point_at_query(found) for found in body["errors"]]}
    return body, headers


def _describe_missing_route(request: Request[Any, Any, Any], headers: dict[str, str]) -> dict[str, Any]:
    """Describe a missing route, for a caller who has mistyped it."""
    path = request.url.path
    shown = domain.shorten(path, _MAX_PATH_CHARACTERS)
    methods = next((value for name, value in headers.items() if name.lower() == "allow"), None)
    if methods is not None:
        return {"detail": f"{shown} does not support {request.method}; it supports {methods}"}
    if _OPENAI_ROUTE.match(path):
        # OpenAI's clients, with a base URL that lacks `/openai`, show only the message of an `error`.
        detail = f"no route for {request.method} {shown}; for OpenAI's clients, the base URL ends with /openai/v1"
        return {"detail": detail, "error": {"message": detail}}
    if _ASSISTANTS_ROUTE.match(path):
        detail = (
            f"no route for {request.method} {shown}: the Assistants API is not served; with the base URL "
            "/openai/v1, use conversations and responses, or beta.agents; see docs/openai.md and "
            "`/openai/v1/openapi.json`"
        )
        return {"detail": detail, "error": {"message": detail}}
    prefix = "/openai/v1" if path.startswith("/openai/v1/") else ""
    return {"detail": f"no route for {request.method} {shown}; see `{prefix}/openapi.json`"}


def _describe_body_limit(request: Request[Any, Any, Any]) -> str:
    """The limit of the body, and the setting that it comes from: files to import have one of their own."""
    max_bytes = request.route_handler.resolve_request_max_body_size()
    setting = "BODY" if max_bytes == request.app.request_max_body_size else "IMPORT"
    return f"the body has more than {max_bytes} bytes (SWARMKEEP_MAX_{setting}_BYTES)"


def _point_at_query(found: dict[str, str]) -> dict[str, str]:
    """Of requests without a body: what the engine calls `/cursor` is a query parameter."""
    inside = not found["pointer"] or found["pointer"].startswith(_POINTERS_OUTSIDE_BODY)
    return found if inside else {**found, "pointer": f"/query{found['pointer']}"}


def make_problem(error: Exception, handler: BaseRouteHandler | None = None) -> tuple[dict[str, Any], dict[str, str]]:
    """The problem document of an error, and the headers that go with it. `handler` knows the names of parameters."""
    if isinstance(error, domain.DomainError):
        seconds = getattr(error, "retry_after_seconds", None)
        headers = {} if seconds is None else {"Retry-After": str(seconds)}
        if isinstance(error, Unauthenticated):
            headers["WWW-Authenticate"] = error.challenge
        if isinstance(error, RequestTimeout):
            # The rest of the body may yet come, and must not be taken for the next request.
            headers["Connection"] = "close"
        return _make_document(STATUS[error.code], error.code, str(error), **error.extra()), headers
    if isinstance(error, StoreUnavailable):
        # The sentence names the database's host, which callers need not know.
        outage_log.note(error, "requests refused")
        place = "archive" if isinstance(error, ArchiveUnavailable) else "database"
        detail = f"the {place} cannot be reached; try again"
        return _make_document(503, "store_unavailable", detail), {"Retry-After": "1"}
    if isinstance(error, SchemaBehind):
        outage_log.note(error, "requests refused")
        return _make_document(503, "schema_behind", "run `swarmkeep db upgrade`"), {}
    if isinstance(error, HTTPException) and error.status_code < 500:
        return _make_framework_problem(error, handler)
    return _make_document(500, "internal_error", "see the server's log"), {}


def _make_framework_problem(
    error: HTTPException, handler: BaseRouteHandler | None
) -> tuple[dict[str, Any], dict[str, str]]:
    status = error.status_code if error.status_code in _CODE_OF_STATUS else 400
    code = _CODE_OF_STATUS[status]
    headers = {
        key: list_methods(value.split(", ")) for key, value in (error.headers or {}).items() if key.lower() == "allow"
    }
    if status != 400:
        return _make_document(status, code, TITLES[code].lower()), headers
    found = [_make_field_error(item, handler) for item in error.extra or () if isinstance(item, dict)]
    found = found or [{"pointer": "", "detail": error.detail}]
    return _make_document(status, code, "; ".join(item["detail"] for item in found), errors=found), headers


def _make_document(status: int, code: str, detail: str, **extra: Any) -> dict[str, Any]:
    # A caller's own text may stand in it, as long as a body may be.
    detail = domain.shorten(detail, MAX_DETAIL_CHARACTERS)
    if "errors" in extra:
        extra["errors"] = [
            {name: domain.shorten(text, MAX_DETAIL_CHARACTERS) for name, text in found.items()}
            for found in extra["errors"]
        ]
    body = {"type": f"urn:swarmkeep:problem:{code}", "title": TITLES[code], "status": status, "detail": detail}
    return {**body, "code": code, **extra}


def list_methods(methods: Iterable[str]) -> str:
    """Methods as `Allow` lists them. The framework has them in a set, so in another order in each process."""
    named = set(methods)
    return ", ".join(sorted(named | {"HEAD"} if "GET" in named else named))


def _make_field_error(found: dict[str, Any], handler: BaseRouteHandler | None) -> dict[str, str]:
    name, source, message = str(found.get("key", "")), found.get("source"), str(found.get("message", "invalid"))
    if handler is not None:
        name, message = describe_parameter(handler, name, message)
    place = f"/{getattr(source, 'value', source or 'query')}/{name}"
    text = re.sub(r"^Expected `(.+?)`", r"expected \1", message)
    return {"pointer": place, "detail": f"{name}: {text}"}


_CODES_OF_EVERY_ROUTE = ("invalid_request", "forbidden", "internal_error", "store_unavailable")
_CODES_OF_ROUTES_WITH_KEY = ("unauthenticated", "rate_limited")
# Of a change of a session that is asked for in JSON.
CODES_OF_CHANGES = (
    "idempotency_mismatch",
    "person_erased",
    "quota_exceeded",
    "too_large",
    "unsupported_media_type",
    "overloaded",
)


def problem_specs(*codes: str, keyless: bool = False) -> dict[int, ResponseSpec]:
    """For the OpenAPI document: the refusals that a call may meet, by status. `keyless`: it never needs a key."""
    by_status: dict[int, list[str]] = {}
    if "too_large" in codes:
        codes = (*codes, "request_timeout")
    if "overloaded" in codes:
        codes = (*codes, "session_damaged", "history_damaged")
    for code in (*codes, *_CODES_OF_EVERY_ROUTE, *(() if keyless else _CODES_OF_ROUTES_WITH_KEY)):
        by_status.setdefault(STATUS[code], []).append(code)
    return {
        status: ResponseSpec(
            Problem,
            description="; ".join(f"`{code}`: {TITLES[code]}" for code in found),
            media_type=PROBLEM_JSON,
            generate_examples=False,
        )
        for status, found in sorted(by_status.items())
    }
