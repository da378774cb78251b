"""What went wrong at the model's end, as data: a stable code, and whether trying again makes sense."""

from __future__ import annotations

import sys
from typing import Any

from swarmkeep.domain.events import RunError
from swarmkeep.engine.assemble import MalformedReply, StreamCut

CONTEXT_TOO_LONG = "context_length_exceeded"

_BY_STATUS = {
    400: ("provider_bad_request", False),
    401: ("provider_authentication", False),
    403: ("provider_permission", False),
    404: ("provider_not_found", False),
    408: ("provider_timeout", True),
    409: ("provider_conflict", True),
    413: (CONTEXT_TOO_LONG, False),
    422: ("provider_bad_request", False),
    429: ("provider_rate_limited", True),
}
_TOO_LONG = (CONTEXT_TOO_LONG, "maximum context length", "context window", "too many tokens")
_FILTERED = ("content_filter", "content management policy")


def run_error(error: Exception) -> RunError:
    """Describe an exception that a client raised; the message is the provider's, without a traceback."""
    if isinstance(error, StreamCut):
        return RunError(code="provider_stream_cut", message=str(error), retryable=True)
    if isinstance(error, MalformedReply):
        return RunError(code="provider_malformed", message=str(error), retryable=True)
    openai = sys.modules.get("openai")
    if openai is not None and isinstance(error, openai.APIStatusError):
        return _status_error(error)
    if openai is not None and isinstance(error, openai.APITimeoutError):
        return RunError(code="provider_timeout", message="the model did not answer in time", retryable=True)
    if openai is not None and isinstance(error, openai.APIConnectionError):
        reason = error.__cause__ or error
        return RunError(code="provider_unreachable", message=f"the model cannot be reached: {reason}", retryable=True)
    httpx2 = sys.modules.get("httpx2")
    if httpx2 is not None and isinstance(error, httpx2.TimeoutException):
        return RunError(code="provider_timeout", message="the model fell silent in mid-answer", retryable=True)
    if httpx2 is not None and isinstance(error, httpx2.HTTPError):
        return RunError(code="provider_stream_cut", message=f"the model's stream was cut: {error}", retryable=True)
    return RunError(code="model_client_error", message=f"{type(error).__name__}: {error}")


def _status_error(error: Any) -> RunError:
    status: int = error.status_code
    message = _message(error)
    haystack = f"{getattr(error, 'code', '') or ''} {message}".lower()
    code, retryable = _BY_STATUS.get(status, ("provider_error", status >= 500))
    if status < 500 and any(sign in haystack for sign in _TOO_LONG):
        code, retryable = CONTEXT_TOO_LONG, False
    elif status < 500 and any(sign in haystack for sign in _FILTERED):
        code, retryable = "content_filter", False
    elif status == 429 and "insufficient_quota" in haystack:
        code, retryable = "provider_quota_exceeded", False
    return RunError(code=code, message=message, retryable=retryable, provider_status=status)


def _message(error: Any) -> str:
    body = error.body
    text = body.get("message") if isinstance(body, dict) else None
    return text if isinstance(text, str) and text else str(error)
