"""Requests and answers as plain values, and what an answer means. No input or output happens here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, BinaryIO, Generic, Literal, TypeVar
from urllib.parse import urlencode

import msgspec

from swarmkeep_client._json import decode
from swarmkeep_client.errors import ERROR_BY_CODE, ApiError, ConnectionFailed, SwarmkeepError
from swarmkeep_client.models import Page

T = TypeVar("T")

Method = Literal["GET", "POST", "PATCH", "PUT", "DELETE"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, below the server's base URL. `path` is percent-encoded.

    A `body` that is a file is sent from its beginning. `accepts` names the statuses beside 2xx that are an answer and
    no refusal.
    """

    method: Method
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | BinaryIO | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    accepts: tuple[int, ...] = ()

    @property
    def target(self) -> str:
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    @property
    def is_repeatable(self) -> bool:
        """Return whether sending it twice does no more than sending it once."""
        return self.method in ("GET", "DELETE") or "Idempotency-Key" in self.headers

    def is_settled_by(self, answer: Answer) -> bool:
        return 200 <= answer.status < 300 or answer.status in self.accepts


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer. The names in `headers` are looked up in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def request_id(self) -> str | None:
        return self.headers.get("x-request-id")

    @property
    def retry_after(self) -> float | None:
        """The seconds that the server asks to wait, given as a number or as a date."""
        text = self.headers.get("retry-after", "").strip()
        if text.isascii() and text.isdigit():
            return float(text)
        try:
            return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class LostAnswer:
    """No answer, or only a part of one. `temporary`: it may go better the next time."""

    reason: str
    cause: Exception | None = None
    temporary: bool = True


Outcome = Answer | LostAnswer


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request, and how its answer is read."""

    request: Request
    read: Callable[[Answer], T]

    def settle(self, outcome: Outcome, *, resent: bool) -> T:
        """Return the value of the call, or raise its error.

        Raises the refusal's class, or ConnectionFailed.
        """
        if isinstance(outcome, Answer):
            if self.request.is_settled_by(outcome):
                return self._read(outcome)
            if resent and self.request.method == "DELETE" and outcome.status == 404:
                # The first attempt may have done it, and only its answer got lost. Gone is what was asked for.
                return self.read(outcome)
        raise make_failure(self.request, outcome)

    def _read(self, answer: Answer) -> T:
        try:
            return self.read(answer)
        except (ValueError, RecursionError) as error:
            raise make_unexpected(self.request, answer, str(error)) from error


def next_page(call: Call[Page[T]], cursor: str) -> Call[Page[T]]:
    """The call for the page that `cursor` stands for."""
    kept = tuple(pair for pair in call.request.query if pair[0] != "cursor")
    return replace(call, request=replace(call.request, query=(*kept, ("cursor", cursor))))


def make_failure(request: Request, outcome: Outcome) -> SwarmkeepError:
    """The exception that an outcome is, if it is final."""
    if isinstance(outcome, LostAnswer):
        error = ConnectionFailed(f"{request.method} {request.path}: {outcome.reason}")
        error.__cause__ = outcome.cause
        return error
    problem = _read_problem(outcome)
    if problem is None:
        return make_unexpected(request, outcome, "this is not an answer from a Swarmkeep server")
    code = str(problem["code"])
    return ERROR_BY_CODE.get(code, ApiError)(
        str(problem.get("detail") or problem.get("title") or ""),
        status=outcome.status,
        code=code,
        title=str(problem.get("title") or ""),
        problem=problem,
        retry_after=outcome.retry_after,
        request_id=outcome.request_id,
    )


def make_unexpected(request: Request, answer: Answer, reason: str) -> ApiError:
    """The error for an answer that the contract does not know: often a proxy's page."""
    text = " ".join(answer.body[:2000].decode(errors="replace").split())
    excerpt = text if len(text) <= 200 else text[:200] + "…"
    return ApiError(
        f"{request.method} {request.path} was answered with {answer.status} "
        f"{answer.content_type or 'without a content type'}: {reason}: {excerpt or '(empty)'}",
        status=answer.status,
        code="unexpected_answer",
        title=_status_phrase(answer.status),
        retry_after=answer.retry_after,
        request_id=answer.request_id,
    )


def _status_phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _read_problem(answer: Answer) -> dict[str, Any] | None:
    try:
        problem = decode(answer.body, dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return None
    return problem if isinstance(problem.get("code"), str) else None
