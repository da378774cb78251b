"""What went wrong at the model's end, as data: a stable code, whether trying again makes sense, and whether at once."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from html import unescape
from typing import Any

import msgspec

from swarmkeep.domain.events import RunError
from swarmkeep.engine.assemble import MalformedReply, ReportedError

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
_TOO_LONG = (CONTEXT_TOO_LONG, "maximum context length", "context window", "context size", "too many tokens")
_FILTERED = ("content_filter", "content management policy")
_LONGEST_MESSAGE = 2000


class Trouble(msgspec.Struct, frozen=True):
    """Why one model call gave no usable reply.

    `passing`: the same call may be made again by itself, as long as nobody was shown any of it. `wait_seconds` is how
    long the provider asks to wait before that.
    """

    error: RunError
    passing: bool = False
    wait_seconds: float | None = None


def trouble(error: Exception) -> Trouble:
    """Describe an exception that a client raised; the message is the provider's, without a traceback.

    A call that ran out of time is not passing: the model may be at work on it still, and would be asked to do the same
    once more. Neither is an answer that came whole and made no sense. What never reached the model, or was turned away
    before it began, is.
    """
    openai, httpx2 = sys.modules.get("openai"), sys.modules.get("httpx2")
    if isinstance(error, ReportedError):
        return _reported(error.body)
    if isinstance(error, MalformedReply):
        return Trouble(RunError(code=error.code, message=str(error), retryable=error.retryable), error.passing)
    if openai is not None and isinstance(error, openai.OpenAIError):
        return _of_client(openai, httpx2, error)
    if httpx2 is not None and isinstance(error, httpx2.TimeoutException):
        return Trouble(_timeout("the model fell silent in mid-answer"))
    if httpx2 is not None and isinstance(error, httpx2.HTTPError):
        text = f"the model's answer was cut off: {error}"
        return Trouble(RunError(code="provider_stream_cut", message=text, retryable=True), passing=True)
    return Trouble(RunError(code="model_client_error", message=f"{type(error).__name__}: {error}"))


def _of_client(openai: Any, httpx2: Any, error: Any) -> Trouble:
    if isinstance(error, openai.APIStatusError):
        return _status_trouble(error)
    if isinstance(error, openai.APITimeoutError):
        connecting = httpx2 is not None and isinstance(error.__cause__, httpx2.ConnectTimeout)
        if not connecting:
            return Trouble(_timeout("the model did not answer in time"))
    if isinstance(error, openai.APIConnectionError):
        reason = error.__cause__ or error
        text = f"the model cannot be reached: {str(reason) or type(reason).__name__}"
        return Trouble(RunError(code="provider_unreachable", message=text, retryable=True), passing=True)
    if isinstance(error, openai.APIError) and isinstance(error.body, dict):
        # What a stream reports, as the client's own reading of streams raises it.
        return _reported(error.body)
    return Trouble(RunError(code="model_client_error", message=f"{type(error).__name__}: {error}"))


def _timeout(message: str) -> RunError:
    return RunError(code="provider_timeout", message=message, retryable=True)


def _status_trouble(error: Any) -> Trouble:
    status: int = error.status_code
    headers: Mapping[str, str] = error.response.headers
    found = _described(status, _text(getattr(error, "code", None)), _message(error))
    told = headers.get("x-should-retry")
    passing = told != "false" and (found.retryable or told == "true")
    return Trouble(found, passing, _wait_seconds(headers))


def _reported(body: Mapping[str, Any]) -> Trouble:
    """An error that came where an answer or a piece of one was expected, so without a status of its own."""
    code, told = body.get("code"), body.get("message")
    message = told if isinstance(told, str) and told else f"the model reported an error: {dict(body)}"
    status = next((value for value in (code, body.get("status")) if _is_status(value)), None)
    if status is not None:
        found = _described(int(status), "", message)
        return Trouble(found, found.retryable)
    signs = " ".join(_text(value) for value in (code, body.get("type")))
    if "rate_limit" in signs:
        found = RunError(code="provider_rate_limited", message=message[:_LONGEST_MESSAGE], retryable=True)
    else:
        found = _precise(RunError(code="provider_error", message=message[:_LONGEST_MESSAGE], retryable=True), signs)
    return Trouble(found, found.retryable)


def _is_status(value: object) -> bool:
    return str(value).isdecimal() and 400 <= int(str(value)[:4]) < 600


def _described(status: int, provider_code: str, message: str) -> RunError:
    code, retryable = _BY_STATUS.get(status, ("provider_error", status >= 500))
    found = RunError(code=code, message=message[:_LONGEST_MESSAGE], retryable=retryable, provider_status=status)
    # A server that is out of order may mention anything.
    return found if status >= 500 else _precise(found, provider_code)


def _precise(found: RunError, signs: str) -> RunError:
    """The error under the name of what its words and the provider's own code tell, if they do."""
    haystack = f"{signs} {found.message}".lower()
    for code, words in (
        (CONTEXT_TOO_LONG, _TOO_LONG),
        ("content_filter", _FILTERED),
        ("provider_quota_exceeded", ("insufficient_quota",)),
    ):
        if any(word in haystack for word in words):
            return msgspec.structs.replace(found, code=code, retryable=False)
    return found


def _message(error: Any) -> str:
    body = error.body
    if isinstance(body, dict):
        text = body.get("message")
    else:
        text = page_title(error.response.text) if is_page(error.response) else None
    return text if isinstance(text, str) and text else str(error)


def is_page(response: Any) -> bool:
    """Whether an answer is a web page, which no model sends but many a proxy does."""
    return str(response.headers.get("content-type", "")).partition(";")[0].strip().lower() == "text/html"


def page_title(text: str) -> str:
    """What a web page says that it is, in one line."""
    found = re.search(r"<(title|h1)[^>]*>(.*?)</\1", text, flags=re.IGNORECASE | re.DOTALL)
    title = " ".join(unescape(re.sub(r"<[^>]*>", " ", found.group(2))).split()) if found else ""
    return f"a web page instead of an answer: {title[:200]}" if title else "a web page instead of an answer"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _wait_seconds(headers: Mapping[str, str]) -> float | None:
    """What `Retry-After` asks for, in seconds or as a date; and its finer form in milliseconds."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        # Written as a number, `nan` and `inf` ask for nothing that can be done.
        return max(0.0, seconds) if seconds < float("inf") else None
    try:
        return max(0.0, parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
