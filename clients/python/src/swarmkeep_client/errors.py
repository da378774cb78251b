"""Exceptions: one class per error code of the API, and a few that arise on this side."""

from __future__ import annotations

from typing import Any

import msgspec

from swarmkeep_client._json import decode, encode
from swarmkeep_client.models import Run, RunError


class SwarmkeepError(Exception):
    """Anything that this package raises by itself.

    `status` is the HTTP status, None if there was no answer. `code` is stable, `title` and `detail` are for people.
    `problem` is the whole problem document (RFC 9457), empty if there was none. `retry_after` is in seconds.
    `request_id` is what the server's log knows the request by, None if there was no answer, or one without it.
    """

    code: str = "swarmkeep_error"

    def __init__(
        self,
        detail: str,
        *,
        status: int | None = None,
        code: str | None = None,
        title: str = "",
        problem: dict[str, Any] | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(detail)
        if code is not None:
            self.code = code
        self.status = status
        self.title = title
        self.detail = detail
        self.problem = problem or {}
        self.retry_after = retry_after
        self.request_id = request_id

    def __str__(self) -> str:
        where = self.code if self.status is None else f"{self.status} {self.code}"
        return f"{where}: {self.detail}" if self.detail else where


class ConnectionFailed(SwarmkeepError):
    """The server could not be reached, or the connection broke, as often as it was tried."""

    code = "connection_failed"


class RunNotCompleted(SwarmkeepError):
    """A run ended otherwise than by completing. What it produced before is in `run` and stays in the session."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.error = run.error or RunError(code=run.status, message=f"run {run.id} was {run.status}")
        super().__init__(self.error.message, code=self.error.code)

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is copied, and sent to other processes, by calling its class with `args`: here those are a text.
        return type(self), (self.run,), self.__dict__


class RunFailed(RunNotCompleted):
    """The run failed, or was interrupted: recovery gave up on it. `error` says why, and whether a retry may help."""


class RunCancelled(RunNotCompleted):
    """The run was cancelled before its end."""


class ApiError(SwarmkeepError):
    """The server refused a request; the subclass names the code. Codes that this release does not know come as this."""


class FieldError(msgspec.Struct, frozen=True):
    """One thing that is wrong in a request. `pointer` is a JSON pointer into its body."""

    pointer: str = ""
    detail: str = ""


class InvalidRequest(ApiError):
    code = "invalid_request"

    @property
    def errors(self) -> list[FieldError]:
        """The errors, field by field."""
        return decode(encode(self.problem.get("errors") or []), list[FieldError])


class InvalidImport(ApiError):
    code = "invalid_import"

    @property
    def line(self) -> int | None:
        """The line of the file where it shows, if the file has lines."""
        return self.problem.get("line")


class Unauthenticated(ApiError):
    code = "unauthenticated"


class Forbidden(ApiError):
    code = "forbidden"


class SessionNotFound(ApiError):
    code = "session_not_found"


class SearchOff(ApiError):
    """The server does not search in what was said."""

    code = "search_off"


class RunNotFound(ApiError):
    code = "run_not_found"


class AgentNotFound(ApiError):
    code = "agent_not_found"

    @property
    def known_agents(self) -> list[str]:
        """The agents that the server has."""
        return list(self.problem.get("known_agents") or [])


class BlobNotFound(ApiError):
    code = "blob_not_found"


class ApiKeyNotFound(ApiError):
    code = "key_not_found"


class SessionBusy(ApiError):
    code = "session_busy"

    @property
    def active_run_id(self) -> str | None:
        """The run that is in the way: wait for it, resume it or cancel it."""
        return self.problem.get("active_run_id")


class SessionExists(ApiError):
    code = "session_exists"


class AlreadyDecided(ApiError):
    code = "already_decided"


class RunNotWaiting(ApiError):
    code = "run_not_waiting"


class OnHold(ApiError):
    """A legal hold keeps the session from being redacted or deleted."""

    code = "on_hold"


class PersonErased(ApiError):
    """The session's person was erased: nothing can be added to it."""

    code = "person_erased"


class PersonNotFound(ApiError):
    """There is no key of this person, so that nothing is encrypted by it."""

    code = "person_not_found"


class NotTakenOver(ApiError):
    code = "not_taken_over"


class TakenOverByOther(ApiError):
    code = "taken_over"


class AgentUnavailable(ApiError):
    code = "agent_unavailable"

    @property
    def known_agents(self) -> list[str]:
        """The agents that the server has."""
        return list(self.problem.get("known_agents") or [])


class SeqMismatch(ApiError):
    code = "seq_mismatch"

    @property
    def seq(self) -> int | None:
        """The last event that the session really has."""
        return self.problem.get("seq")


class TooLarge(ApiError):
    code = "too_large"


class IdempotencyMismatch(ApiError):
    code = "idempotency_mismatch"


class RateLimited(ApiError):
    code = "rate_limited"


class QuotaExceeded(ApiError):
    """More than the tenant, or the session, may have; `detail` names the limit."""

    code = "quota_exceeded"


class Draining(ApiError):
    code = "draining"


class RouteNotFound(ApiError):
    """The server has no such path: it is of another release, or the base URL leads elsewhere."""

    code = "not_found"


class EventNotFound(ApiError):
    """The session has no such event, or it has not what was asked for."""

    code = "event_not_found"


class CheckpointNotFound(ApiError):
    """There is no such checkpoint, or none yet."""

    code = "checkpoint_not_found"


class ConsumerNotFound(ApiError):
    """No place in the feed is kept by that name."""

    code = "consumer_not_found"


class WebhookNotFound(ApiError):
    """There is no such webhook."""

    code = "webhook_not_found"


class DeliveryNotFound(ApiError):
    """The webhook has delivered this event, or it is gone."""

    code = "delivery_not_found"


class NotInCheckpoint(ApiError):
    """The session is newer than the checkpoint: ask for a new one first."""

    code = "not_in_checkpoint"


class LogDamaged(ApiError):
    """Rows of the log of heads are missing, or not as they were written."""

    code = "log_damaged"


class MethodNotAllowed(ApiError):
    code = "method_not_allowed"


class RequestTimeout(ApiError):
    """The request's body took too long to arrive."""

    code = "request_timeout"


class RequestNotKept(ApiError):
    """The request behind an answer cannot be rebuilt exactly: something in it was redacted, or is lost."""

    code = "request_not_kept"


class SessionDamaged(ApiError):
    """The log has lost its end, or was changed there: nothing can be added, and `verify` says more."""

    code = "session_damaged"


class HistoryDamaged(ApiError):
    """What is stored is not what was recorded, from event `seq` on: the session can be read, and not continued."""

    code = "history_damaged"

    @property
    def seq(self) -> int | None:
        """The first event that does not verify."""
        seq = self.problem.get("seq")
        return seq if isinstance(seq, int) else None


class ArgumentsChanged(ApiError):
    """The call that was decided on has other arguments than those whose digest was given. Look at it again."""

    code = "arguments_changed"


class UnsupportedMediaType(ApiError):
    code = "unsupported_media_type"


class InternalError(ApiError):
    """The server failed unexpectedly; its log has more, under `request_id`."""

    code = "internal_error"


class Overloaded(ApiError):
    code = "overloaded"


class StoreUnavailable(ApiError):
    """The server cannot reach its database."""

    code = "store_unavailable"


class SchemaBehind(ApiError):
    """The server's database waits for `swarmkeep db upgrade`."""

    code = "schema_behind"


ERROR_BY_CODE: dict[str, type[ApiError]] = {error.code: error for error in ApiError.__subclasses__()}


def check_completed(run: Run) -> Run:
    """The run itself, unless it ended otherwise than by completing or waiting.

    Raises RunFailed or RunCancelled.
    """
    match run.status:
        case "failed" | "interrupted":
            raise RunFailed(run)
        case "cancelled":
            raise RunCancelled(run)
        case _:
            return run
