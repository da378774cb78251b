"""Errors in OpenAI's shape: the one table of refusals, told as these clients expect it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from litestar import Request, Response

from swarmkeep.events.codec import Json
from swarmkeep.events.errors import Draining, InvalidRequest, quote, shorten
from swarmkeep.events.facts import RunError
from swarmkeep.http.bodies import JsonResponse
from swarmkeep.http.errors import MAX_DETAIL_CHARACTERS, describe_error

PREFIX = "/openai/v1"


# OpenAI's clients send a request once more after most errors of a server. Where the model was asked already, and the
# run and its input are recorded, they would repeat both.
NO_RETRY: Mapping[str, str] = MappingProxyType({"X-Should-Retry": "false"})


class Refused(Exception):
    """A refusal that `/v1` has no word for. `param` names the field, `status` is HTTP's."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        *,
        code: str = "invalid_request",
        status: int = 400,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(message)
        self.param = param
        self.error_code = code
        self.status = status
        self.headers = headers


class ModelNotFound(Refused):
    def __init__(self, name: str, known: list[str]) -> None:
        made = "agents that clients make begin with POST agents/sessions only; " if name.startswith("agent_") else ""
        super().__init__(
            f"there is no model {quote(name)}; {made}a model is an agent here: {', '.join(known) or 'none'}",
            "model",
            code="model_not_found",
            status=404,
        )


def make_not_found(what: str, name: str, param: str | None = None) -> Refused:
    return Refused(f"there is no {what} {quote(name)}", param, code="not_found", status=404)


def make_client_gone() -> Refused:
    """For the server's log: no client reads it."""
    return Refused("the client went away", code="client_closed_request", status=499)


def make_stopping() -> Refused:
    """For a request whose run has begun, and is recorded: sent once more, it would begin another one."""
    message = "the server is shutting down; a response that has begun continues on another one"
    return Refused(message, code=Draining.code, status=503, headers=NO_RETRY)


def is_openai_path(path: str) -> bool:
    return path == PREFIX or path.startswith(f"{PREFIX}/")


def make_openai_error_response(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """The answer to a request below `/openai/v1` that ended in an error."""
    status, body, headers = make_error(error, request)
    return JsonResponse({"error": body}, status_code=status, headers=headers)


def make_error(error: Exception, request: Request[Any, Any, Any] | None = None) -> tuple[int, Json, dict[str, str]]:
    """Status, `{message, type, param, code}` and headers."""
    if isinstance(error, Refused):
        return error.status, _shape(error.status, str(error), error.param, error.error_code), dict(error.headers)
    problem, headers = describe_error(error, request)
    param = _read_param(error) or _first_pointer(problem)
    return problem["status"], _shape(problem["status"], problem["detail"], param, problem["code"]), headers


def _shape(status: int, message: str, param: str | None, code: str) -> Json:
    message, param = shorten(message, MAX_DETAIL_CHARACTERS), param and shorten(param, MAX_DETAIL_CHARACTERS)
    return {"message": message, "type": _error_type(status), "param": param, "code": code}


_TYPES = {401: "authentication_error", 403: "permission_error", 409: "conflict_error", 429: "rate_limit_error"}


def _error_type(status: int) -> str:
    return _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")


def _read_param(error: Exception) -> str | None:
    return to_param(error.errors[0]["pointer"]) if isinstance(error, InvalidRequest) and error.errors else None


def _first_pointer(problem: Json) -> str | None:
    found = problem.get("errors") or ()
    return to_param(found[0]["pointer"]) if found else None


_OUTSIDE_BODY = re.compile(r"^/(?:query|path|header)/")


def to_param(pointer: str) -> str | None:
    """`/tools/0/name` as `tools[0].name`."""
    steps = _OUTSIDE_BODY.sub("/", pointer).split("/")[1:]
    text = "".join(f"[{step}]" if step.isdecimal() else f".{step}" for step in steps)
    return text.lstrip(".") or None


# Failures of the provider, besides those whose codes begin with `provider_`.
_PROVIDER_CODES = ("model_client_error", "summary_empty")
_TOO_MANY_CODES = ("provider_rate_limited", "provider_quota_exceeded", "quota_exceeded")
# What was said cannot be answered: to say it again, or to another server, would change nothing.
_INPUT_CODES = ("context_length_exceeded", "content_filter")


def is_too_many(error: RunError) -> bool:
    """Tell if a limit of rate or quota was reached."""
    return error.provider_status == 429 or error.code in _TOO_MANY_CODES


def is_of_input(error: RunError) -> bool:
    """Tell if it is the conversation that the model does not take: too long, or filtered."""
    return error.code in _INPUT_CODES


def make_failure_refusal(error: RunError) -> Refused:
    """A failure as an error of HTTP: 429 for limits of rate and quota, 400 for a conversation that the model does not
    take, 502 for what else the provider did, 500 for the rest.
    """
    if is_too_many(error):
        status = 429
    elif is_of_input(error):
        status = 400
    else:
        from_provider = error.code.startswith("provider_") or error.code in _PROVIDER_CODES
        status = 502 if from_provider or error.provider_status is not None else 500
    return Refused(error.message, code=error.code, status=status)


def describe_failure(error: RunError) -> tuple[int, Json]:
    """Status and error of a run that failed."""
    status, body, _ = make_error(make_failure_refusal(error))
    return status, body
