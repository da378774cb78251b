"""Failures of model servers, told apart by what is to be done; and this process's secrets, taken out of them."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from html import unescape
from typing import Any, ClassVar, TypeVar
from urllib.parse import unquote

import msgspec

from swarmkeep.events.codec import Json
from swarmkeep.events.facts import RunError

T = TypeVar("T")

REMOVED = "[secret removed]"

# What is shorter stands in too many texts that have nothing to do with it.
_SHORTEST = 8
_SECRET_NAMES = re.compile(r"key|token|secret|passw|credential", re.IGNORECASE)
# Headers for a collector of traces: `name=value,name=value`, percent-encoded.
_HEADER_NAMES = re.compile(r"OTEL_EXPORTER_OTLP_(\w+_)?HEADERS")
_PASSWORD_IN_URL = re.compile(r"://(?:[^/?#@\s:]*:([^/?#@\s]+)@|[^\s#?]*\?(?:[^\s#]*&)?password=([^&#\s]+))")


class Secrets:
    """Texts that must not be recorded, logged or shown."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        written = {form for text in texts if len(text) >= _SHORTEST for form in _list_forms(text)}
        # The longest first, so that one that is part of another does not leave the rest of that.
        found = sorted(written, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, found))) if found else None

    def mask(self, value: T) -> T:
        """The same JSON value, each secret in its texts and keys replaced; the very value if there is none."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self._pattern.sub(REMOVED, value)  # type: ignore[return-value]
        if isinstance(value, list):
            return [self.mask(item) for item in value]  # type: ignore[return-value]
        if isinstance(value, dict):
            return {self.mask(key): self.mask(item) for key, item in value.items()}  # type: ignore[return-value]
        return value

    def mask_content(self, content: bytes) -> bytes:
        """A file without secrets, if it is text in UTF-8; any other as it is, which a change would break."""
        if self._pattern is None:
            return content
        try:
            return self._pattern.sub(REMOVED, content.decode()).encode()
        except UnicodeDecodeError:
            return content


NO_SECRETS = Secrets()


def _list_forms(text: str) -> set[str]:
    """A text as it is, and as it stands in JSON, which calls' arguments and many results are, or in what Python prints:
    a key of several lines looks otherwise there."""
    # Files end with a line break, which does not always come along.
    plain = {text, text.strip()} if len(text.strip()) >= _SHORTEST else {text}
    quoted = (form for each in plain for form in (json.dumps(each), json.dumps(each, ensure_ascii=False), repr(each)))
    return {*plain, *(form[1:-1] for form in quoted)}


def find_secrets(environment: Mapping[str, str], *more: str | None) -> Secrets:
    """The values of variables that are named like secrets, the passwords in those that hold URLs, the values of headers
    for a collector of traces, and `more` texts."""
    named = [value for name, value in environment.items() if _SECRET_NAMES.search(name)]
    texts = [*environment.values(), *(text for text in more if text)]
    headers = [
        value for name, text in environment.items() if _HEADER_NAMES.fullmatch(name) for value in _read_headers(text)
    ]
    passwords = ["".join(found) for text in texts for found in _PASSWORD_IN_URL.findall(text)]
    passwords += [unquote(password) for password in passwords]
    return Secrets([*named, *(text for text in more if text and "://" not in text), *passwords, *headers])


def _read_headers(text: str) -> list[str]:
    """The values of headers, as they are written and as they are sent; of `Bearer abc`, `abc` as well."""
    written = [value.strip() for _, _, value in (pair.partition("=") for pair in text.split(","))]
    sent = [unquote(value) for value in written]
    return [*written, *sent, *(value.rpartition(" ")[2] for value in sent)]


# Describes a failed model call as data: a stable code, whether a retry makes sense, and whether at once.

# Recognize the kind of answer that a `Content-Type` names.


def _read_media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def is_web_page(content_type: str) -> bool:
    """Tell if it is a web page, which no model sends but many a proxy does."""
    return _read_media_type(content_type) == "text/html"


def is_event_stream(content_type: str) -> bool:
    return _read_media_type(content_type) == "text/event-stream"


def may_be_stream(content_type: str) -> bool:
    """Tell if an answer to a request for a stream is one; some servers send the whole at once."""
    return _read_media_type(content_type) not in ("application/json", "text/html")


# Answers of a model that cannot be used, and why.

_MAX_REASON_CHARACTERS = 200


class MalformedReply(Exception):
    """The model's answer is no Chat Completion. `is_transient`: the call may be made again by itself."""

    code: ClassVar[str] = "provider_malformed"
    retryable: ClassVar[bool] = True
    is_transient: ClassVar[bool] = False


class NonJsonReply(MalformedReply):
    """The answer, or a piece of a stream, is no JSON."""

    code = "provider_not_json"


class WebPageReply(MalformedReply):
    """A proxy answered, or the base URL leads to something else than a model."""

    code = "provider_web_page"
    retryable = False


class EmptyReply(MalformedReply):
    """A completion without a choice, or a choice without a message."""

    code = "provider_empty_answer"


class FailedReply(MalformedReply):
    """The model's server says that generation failed, in the place of a reason for the reply's end."""

    code = "provider_failed"
    is_transient = True

    @classmethod
    def of(cls, finish_reason: str, *, has_failed: bool) -> FailedReply:
        """The error of a reply that ended with this reason; without `has_failed`, it promises calls and has none."""
        named = repr(finish_reason[:_MAX_REASON_CHARACTERS])
        if has_failed:
            return cls(f"the model's server did not finish the answer (finish_reason {named}); send the message again")
        return cls(f"the model's answer ends with finish_reason {named} and holds no call; send the message again")


class FilteredReply(MalformedReply):
    """The provider's filter stopped the model in mid-answer."""

    code = "content_filter"
    retryable = False


class TruncatedStream(MalformedReply):
    """The stream ended before the reply did."""

    code = "provider_stream_cut"
    is_transient = True


class ReportedError(MalformedReply):
    """The provider reports an error in the place of an answer; `body` is what it says."""

    def __init__(self, body: object) -> None:
        super().__init__(f"the model reported an error: {body}")
        self.body: Mapping[str, Any] = body if isinstance(body, dict) else {"message": str(body)}


def find_reported_error(answer: Json) -> object:
    """Return the error that stands in the place of an answer or of a chunk, as servers write it; else None."""
    if answer.get("error"):
        return answer["error"]
    # vLLM and Mistral; Anthropic's events; gateways made with FastAPI.
    kinds = [str(answer.get(key)).lower() for key in ("object", "type")]
    is_error = "error" in kinds or bool(answer.get("detail"))
    return answer if is_error and not answer.get("choices") else None


class OversizedReply(MalformedReply):
    """The answer is larger than one may be."""

    code = "provider_answer_too_large"
    retryable = False


class UnreadableReply(MalformedReply):
    """The answer is compressed in a way that was not asked for."""

    retryable = False


class RedirectedReply(MalformedReply):
    """The address sends requests on to another one, which is not given the conversation."""

    code = "provider_redirected"
    retryable = False


CONTEXT_TOO_LONG = "context_length_exceeded"

_ERRORS_BY_STATUS = {
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
_TOO_LONG_PHRASES = (CONTEXT_TOO_LONG, "maximum context length", "context window", "context size", "too many tokens")
_FILTERED_PHRASES = ("content_filter", "content management policy")
_MAX_MESSAGE_CHARACTERS = 2000
_TITLE_CHARACTERS = 4000


class ProviderFailure(msgspec.Struct, frozen=True):
    """The reason why one model call gave no usable reply.

    `is_transient`: the same call may be made again by itself, as long as none of it was shown. `wait_seconds` is
    how long the provider asks to wait before that.
    """

    error: RunError
    is_transient: bool = False
    wait_seconds: float | None = None


def describe_failure(error: Exception) -> ProviderFailure:
    """Describe an exception that a client raised; the message is the provider's, without a traceback.

    A call that ran out of time is not transient: the model may be at work on it still, and would be asked to do the
    same once more. Neither is an answer that came whole and made no sense. What never reached the model, or was turned
    away before it began, is.
    """
    openai, httpx2 = sys.modules.get("openai"), sys.modules.get("httpx2")
    if isinstance(error, ReportedError):
        return _describe_reported_error(error.body)
    if isinstance(error, MalformedReply):
        return ProviderFailure(
            RunError(code=error.code, message=str(error), retryable=error.retryable), error.is_transient
        )
    if openai is not None and isinstance(error, openai.OpenAIError):
        return _describe_client_error(openai, httpx2, error)
    if httpx2 is not None and isinstance(error, httpx2.TimeoutException):
        return ProviderFailure(_make_timeout_error("the model fell silent in mid-answer"))
    if httpx2 is not None and isinstance(error, httpx2.HTTPError):
        text = f"the model's answer was cut off: {error}"
        return ProviderFailure(RunError(code="provider_stream_cut", message=text, retryable=True), is_transient=True)
    return ProviderFailure(RunError(code="model_client_error", message=f"{type(error).__name__}: {error}"))


def _describe_client_error(openai: Any, httpx2: Any, error: Any) -> ProviderFailure:
    if isinstance(error, openai.APIStatusError):
        return _describe_status_error(error)
    if isinstance(error, openai.APITimeoutError):
        connecting = httpx2 is not None and isinstance(error.__cause__, httpx2.ConnectTimeout)
        if not connecting:
            return ProviderFailure(_make_timeout_error("the model did not answer in time"))
    if isinstance(error, openai.APIConnectionError):
        reason = error.__cause__ or error
        text = f"the model cannot be reached: {str(reason) or type(reason).__name__}"
        return ProviderFailure(RunError(code="provider_unreachable", message=text, retryable=True), is_transient=True)
    if isinstance(error, openai.APIError) and isinstance(error.body, dict):
        # What a stream reports, as the client's own reading of streams raises it.
        return _describe_reported_error(error.body)
    return ProviderFailure(RunError(code="model_client_error", message=f"{type(error).__name__}: {error}"))


def advise(error: RunError, params: Mapping[str, Any]) -> RunError:
    """Return the error of a request that was refused with the setting that helps, where its words name one.

    `params` are the parameters that were sent.
    """
    advice = _find_advice(error.message.lower(), params) if error.code == "provider_bad_request" else None
    if advice is None:
        return error
    return msgspec.structs.replace(error, message=f"{error.message.rstrip('. ')}. To help: {advice}")


# Words of the refusal, and the field of a model's profile that helps. The first that fits counts.
_PROFILE_ADVICE = (
    (r"parallel_tool_calls", "parallel_tool_calls", "omit"),
    (r"stream_options", "stream_options", "omit"),
    (r"system (message|role|prompt)s?\b.{0,80}\b(beginning|first|start|one|leading)", "system_messages", "one_leading"),
    (r"\b(only|single|one|first)\b.{0,40}\bsystem (message|role|prompt)", "system_messages", "one_leading"),
    (r"\bdeveloper\b", "developer_role", "system"),
    (r"thought_signature", "missing_attachments", "signature"),
    (
        r"reasoning_content\b.{0,80}\b(missing|required|must)|missing.{0,40}reasoning_content",
        "missing_attachments",
        "reasoning",
    ),
    (r"extra_content|reasoning|thinking", "attachments", "omit"),
    (
        r"content.{0,80}(expected a string|must be a string|valid string)|invalid type: sequence",
        "content_parts",
        "text",
    ),
)
_REFUSED = re.compile(
    r"unsupported|not support|unknown|unrecogni[sz]ed|unexpected|extra|not (permitted|allowed)|forbidden|invalid_param"
)
_MAX_ADVISED_CHARACTERS = 1000


def _find_advice(text: str, params: Mapping[str, Any]) -> str | None:
    text = text[:_MAX_ADVISED_CHARACTERS]
    for sent, other in (("max_tokens", "max_completion_tokens"), ("max_completion_tokens", "max_tokens")):
        if sent in params and re.search(rf"\b{sent}\b", text) and _REFUSED.search(text):
            return _name_field("tokens_parameter", other)
    for words, field, choice in _PROFILE_ADVICE:
        if re.search(words, text):
            return _name_field(field, choice)
    if re.search(r"\bresponse_format\b", text) and "response_format" in params:
        return 'set output_mode="tool" on the agent, if its answers need a form'
    if re.search(r"\btool_choice\b", text) and "tool_choice" in params:
        return "set another tool_choice on the agent or the run"
    for name in params:
        if name not in ("model", "stream", "response_format", "tool_choice") and re.search(
            rf"\b{re.escape(name)}\b", text
        ):
            return f'leave {name} out of model_settings; a run takes it out with {{"{name}": null}}'
    return None


def _name_field(field: str, choice: str) -> str:
    return f'say {{"{field}": "{choice}"}} in SWARMKEEP_MODEL_PROFILE, or in model_profile of the agent or the run'


def _make_timeout_error(message: str) -> RunError:
    return RunError(code="provider_timeout", message=message, retryable=True)


def _describe_status_error(error: Any) -> ProviderFailure:
    status: int = error.status_code
    headers: Mapping[str, str] = error.response.headers
    found = _make_status_error(status, _text_or_empty(getattr(error, "code", None)), _get_message(error))
    advice = headers.get("x-should-retry")
    is_transient = advice != "false" and (found.retryable or advice == "true")
    return ProviderFailure(found, is_transient, _read_wait_seconds(headers))


def _describe_reported_error(body: Mapping[str, Any]) -> ProviderFailure:
    """An error that came where an answer or a piece of one was expected, so without a status of its own."""
    code = body.get("code")
    message = _read_message(body) or f"the model reported an error: {dict(body)}"
    status = next((value for value in (code, body.get("status")) if _is_status(value)), None)
    if status is not None:
        found = _make_status_error(int(status), "", message)
        return ProviderFailure(found, found.retryable)
    signs = " ".join(_text_or_empty(value) for value in (code, body.get("type")))
    is_limited = "rate_limit" in signs
    kind = "provider_rate_limited" if is_limited else "provider_error"
    found = RunError(code=kind, message=message[:_MAX_MESSAGE_CHARACTERS], retryable=True)
    found = found if is_limited else _refine_error(found, signs)
    return ProviderFailure(found, found.retryable)


def _is_status(value: object) -> bool:
    return str(value).isdecimal() and 400 <= int(str(value)[:4]) < 600


def _make_status_error(status: int, provider_code: str, message: str) -> RunError:
    code, retryable = _ERRORS_BY_STATUS.get(status, ("provider_error", status >= 500))
    found = RunError(code=code, message=message[:_MAX_MESSAGE_CHARACTERS], retryable=retryable, provider_status=status)
    # A server that is out of order may mention anything.
    return found if status >= 500 else _refine_error(found, provider_code)


def _refine_error(found: RunError, signs: str) -> RunError:
    """The error under the name of what its words and the provider's own code tell, if they do."""
    haystack = f"{signs} {found.message}".lower()
    for code, words in (
        (CONTEXT_TOO_LONG, _TOO_LONG_PHRASES),
        ("content_filter", _FILTERED_PHRASES),
        ("provider_quota_exceeded", ("insufficient_quota",)),
    ):
        if any(word in haystack for word in words):
            return msgspec.structs.replace(found, code=code, retryable=False)
    return found


def _get_message(error: Any) -> str:
    kind = error.response.headers.get("content-type", "")
    text = read_page_title(error.response.text) if is_web_page(kind) else _read_message(error.body)
    return text or str(error)


# Where errors say what is wrong, in the order in which it is looked for.
_MESSAGE_KEYS = ("message", "msg", "detail", "error", "errors")
_MAX_DEPTH = 5
_MAX_ERRORS = 5
_MAX_RAW_CHARACTERS = 20_000


def _read_message(body: object, depth: int = 0) -> str:
    """Return what an error says, in whichever form: Google sends a list, Mistral an object for the message, FastAPI
    (as gateways are made with) `detail`, LM Studio a text, and OpenRouter its provider's words as text of JSON."""
    if isinstance(body, str):
        return body
    if depth == _MAX_DEPTH:
        return ""
    if isinstance(body, list):
        texts = (_read_message(item, depth + 1) for item in body[:_MAX_ERRORS])
        return "; ".join(text for text in texts if text)
    if not isinstance(body, dict):
        return ""
    text = next((text for key in _MESSAGE_KEYS if (text := _read_message(body.get(key), depth + 1))), "")
    metadata = body.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    if isinstance(raw, str) and (more := _read_raw_message(raw[:_MAX_RAW_CHARACTERS], depth)):
        return f"{text}: {more}" if text else more
    return text


def _read_raw_message(raw: str, depth: int) -> str:
    try:
        return _read_message(msgspec.json.decode(raw), depth + 1) or raw
    except (msgspec.DecodeError, RecursionError):
        return raw


def read_page_title(text: str) -> str:
    """The title of a web page, in one line. A title stands at its beginning; the rest is not searched."""
    found = re.search(r"<(title|h1)[^>]*>(.*?)</\1", text[:_TITLE_CHARACTERS], flags=re.IGNORECASE | re.DOTALL)
    title = " ".join(unescape(re.sub(r"<[^>]*>", " ", found.group(2))).split()) if found else ""
    return f"a web page instead of an answer: {title[:200]}" if title else "a web page instead of an answer"


def _text_or_empty(value: object) -> str:
    return value if isinstance(value, str) else ""


def _read_wait_seconds(headers: Mapping[str, str]) -> float | None:
    """The pause that `Retry-After` asks for, in seconds or as a date; and its finer form in milliseconds."""
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
