"""Refusals in the words of the domain. `code` is part of the public API and never changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

_QUOTED_CHARACTERS = 300


def quote(value: object) -> str:
    """Return what a caller sent as errors repeat it: in quotes, and no more of it than a person reads."""
    text = value if isinstance(value, str) else repr(value)
    cut = shorten(text, _QUOTED_CHARACTERS)
    return repr(cut) if text is value else cut


def shorten(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


class DomainError(Exception):
    """A refusal. Nothing was recorded.

    `extra()` is what the error carries beside its sentence; HTTP adds it to the problem document.
    """

    code: ClassVar[str]

    def extra(self) -> dict[str, Any]:
        return {}


class InvalidRequest(DomainError):
    code = "invalid_request"

    def __init__(self, detail: str, pointer: str = "", *, place: str = "") -> None:
        """`place` goes before the sentence, for clients that show nothing else."""
        super().__init__(f"{place}: {detail}" if place else detail)
        self.errors = [{"pointer": pointer, "detail": detail}]

    def extra(self) -> dict[str, Any]:
        return {"errors": self.errors}


class TooLarge(DomainError):
    """More than a limit allows. The sentence names the limit, for the operator who may change it."""

    code = "too_large"


class InvalidImport(DomainError):
    """A file that was to be imported is cut, edited, or something else. `line` is where that shows, if it has lines."""

    code = "invalid_import"

    def __init__(self, why: str, *, line: int | None = None) -> None:
        super().__init__(why if line is None else f"line {line}: {why}")
        self.why = why
        self.line = line

    def extra(self) -> dict[str, Any]:
        return {} if self.line is None else {"line": self.line}


class SessionNotFound(DomainError):
    code = "session_not_found"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"there is no session {quote(session_id)}")
        self.session_id = session_id


class SessionExists(DomainError):
    code = "session_exists"

    def __init__(self, session_id: str, detail: str = "already exists and was created by a different request") -> None:
        super().__init__(f"session {session_id!r} {detail}; choose another id")
        self.session_id = session_id


class RunNotFound(DomainError):
    code = "run_not_found"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"this session has no run {quote(run_id)}")
        self.run_id = run_id


class EventNotFound(DomainError):
    code = "event_not_found"

    def __init__(self, seq: int, detail: str) -> None:
        super().__init__(detail)
        self.seq = seq

    @classmethod
    def out_of_range(cls, session_id: str, last: int, seq: int) -> EventNotFound:
        """A `seq` that is not one of a session's, which has those up to `last`."""
        return cls(seq, f"session {session_id!r} has the events 1 to {last}; there is no event {seq}")


class PersonErased(DomainError):
    """What was recorded of the session's person was erased, and nothing can be added to it."""

    code = "person_erased"

    def __init__(self, session_id: str | None) -> None:
        known = f"the person of session {quote(session_id or '')} was erased: nothing can be added to it"
        super().__init__(
            "the person was erased meanwhile; try again" if session_id is None else f"{known}; begin a new session"
        )


class PersonNotFound(DomainError):
    code = "person_not_found"

    def __init__(self) -> None:
        super().__init__(
            "there is no key of this person: what was recorded without one is not encrypted; redact or delete it"
        )


class CheckpointNotFound(DomainError):
    code = "checkpoint_not_found"

    def __init__(self, number: int | None, size: int | None = None) -> None:
        wanted = "yet" if number is None else number
        super().__init__(f"there is no checkpoint {wanted if size is None else f'of {size} leaves'}")


class NotInCheckpoint(DomainError):
    """The session is newer than the checkpoint."""

    code = "not_in_checkpoint"

    def __init__(self, session_id: str, number: int) -> None:
        super().__init__(f"session {quote(session_id)} is not in checkpoint {number}: make a new one")


class LogDamaged(DomainError):
    """Rows of the log of heads are missing, or not as they were written."""

    code = "log_damaged"


class ConsumerNotFound(DomainError):
    code = "consumer_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no consumer {quote(name)}: its first place makes one")


class WebhookNotFound(DomainError):
    code = "webhook_not_found"

    def __init__(self, webhook_id: str) -> None:
        super().__init__(f"there is no webhook {quote(webhook_id)}")


class DeliveryNotFound(DomainError):
    code = "delivery_not_found"

    def __init__(self, cursor: str) -> None:
        super().__init__(f"nothing waits at {quote(cursor)} or was given up there: it was delivered, or is gone")


class BlobNotFound(DomainError):
    code = "blob_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"this session has no file {quote(name)}")


class RequestNotKept(DomainError):
    """A past model request cannot be rebuilt to the byte."""

    code = "request_not_kept"

    def __init__(self, seq: int, reason: str) -> None:
        super().__init__(f"the request behind event {seq} cannot be rebuilt exactly: {reason}")
        self.seq = seq


class OwnApproval(DomainError):
    """An approval decided by the one who started the run, although that is for another person."""

    code = "forbidden"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"whoever started run {run_id} may not decide on its approvals; ask somebody else to do so")
        self.run_id = run_id


class ApiKeyNotFound(DomainError):
    """There is no key with this id."""

    code = "key_not_found"

    def __init__(self) -> None:
        # What was given may be the key itself, so it is not repeated.
        super().__init__("there is no API key with this id; ids begin with key_, and `swarmkeep keys list` shows them")


class AgentNotFound(DomainError):
    code = "agent_not_found"

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"no agent is called {quote(name)}; known agents: {', '.join(known) or 'none'}")
        self.known_agents = list(known)

    def extra(self) -> dict[str, Any]:
        return {"known_agents": self.known_agents}


class ArgumentsChanged(DomainError):
    """The approver was shown other arguments than those that would count."""

    code = "arguments_changed"

    def __init__(self, call_id: str) -> None:
        super().__init__(
            f"call {call_id} has other arguments than those whose digest was given; look at the call again, then decide"
        )
        self.call_id = call_id


class AgentUnavailable(DomainError):
    code = "agent_unavailable"

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(
            f"the session's agent {name!r} is not available on this server; choose another with `agent`: "
            f"{', '.join(known) or 'none'}"
        )
        self.known_agents = list(known)

    def extra(self) -> dict[str, Any]:
        return {"known_agents": self.known_agents}


class SessionBusy(DomainError):
    """`session_id` is given where the request is for several sessions."""

    code = "session_busy"

    def __init__(self, run_id: str, status: str = "running", session_id: str | None = None) -> None:
        way = "resume it" if status == "waiting" else "wait for it"
        of = "" if session_id is None else f" of session {session_id!r}"
        super().__init__(f"run {run_id}{of} is still {status}; {way}, or cancel it")
        self.run_id = run_id
        self.session_id = session_id

    def extra(self) -> dict[str, Any]:
        of = {} if self.session_id is None else {"session_id": self.session_id}
        return {"active_run_id": self.run_id, **of}


class NotTakenOver(DomainError):
    code = "not_taken_over"

    def __init__(self) -> None:
        super().__init__("nobody has taken this session over from its agent; take it over first")


class TakenOverByOther(DomainError):
    """`by` is empty for a person without a name."""

    code = "taken_over"

    def __init__(self, by: str | None, at: str) -> None:
        super().__init__(
            f"{by or 'somebody'} took this session over at {at}; to replace them, take it over with `force`"
        )
        self.by = by


class OnHold(DomainError):
    """A legal hold keeps it from being redacted or deleted."""

    code = "on_hold"

    def __init__(self, session_id: str, reason: str, at: str) -> None:
        why = shorten(reason, _QUOTED_CHARACTERS)
        super().__init__(f"session {quote(session_id)} is on hold since {at} ({why}); lift the hold first")
        self.session_id = session_id

    def extra(self) -> dict[str, Any]:
        return {"session_id": self.session_id}


class RunNotWaiting(DomainError):
    code = "run_not_waiting"

    def __init__(self, run_id: str, status: str) -> None:
        super().__init__(f"run {run_id} is {status}: there is nothing to resume")
        self.run_id = run_id


class AlreadyDecided(DomainError):
    code = "already_decided"

    def __init__(self, tool_call_id: str, decision: str) -> None:
        super().__init__(f"call {tool_call_id} was already decided: {decision}")
        self.tool_call_id = tool_call_id


class SeqMismatch(DomainError):
    """The caller's `If-Match` is stale: a refusal, unlike SeqConflict, which the engine answers by deciding again."""

    code = "seq_mismatch"

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(f"the session is at seq {actual}, not {expected}")
        self.actual = actual

    def extra(self) -> dict[str, Any]:
        return {"seq": self.actual}


class SeqConflict(DomainError):
    """An append built on a seq that is no longer the last one. Nothing was recorded."""

    code = "seq_mismatch"

    def __init__(self, session_id: str, expected: int) -> None:
        super().__init__(f"session {session_id!r} has moved on from seq {expected}")
        self.session_id = session_id
        self.expected = expected


class SessionDamaged(DomainError):
    """The log does not end where its session does, so that nothing can be added to it."""

    code = "session_damaged"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"the log of session {session_id!r} is damaged at its end; `swarmkeep verify` says more")
        self.session_id = session_id


class HistoryDamaged(DomainError):
    """What is stored of the session is not what was recorded. It can be read, and is not advanced. `seq` is the first
    event that does not verify. `problem` is the code of what is wrong, where that is not found by verifying, and
    `detail` says that, and what to do."""

    code = "history_damaged"

    def __init__(self, session_id: str, seq: int, *, problem: str | None = None, detail: str | None = None) -> None:
        place = "" if detail else f", from event {seq} on, so nothing is added to it"
        advice = detail or "look at `swarmkeep verify`, and restore the database from a backup"
        super().__init__(f"what is stored of session {session_id!r} is not what was recorded{place}: {advice}")
        self.session_id = session_id
        self.seq = seq
        self.problem = problem

    def extra(self) -> dict[str, Any]:
        return {"seq": self.seq, "session_id": self.session_id}


class LeaseLost(DomainError):
    """Another process has taken the session over; this one may not append to its run any more."""

    code = "session_busy"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"the lease on session {session_id!r} was lost")
        self.session_id = session_id


class IdempotencyMismatch(DomainError):
    code = "idempotency_mismatch"

    def __init__(self, key: str) -> None:
        super().__init__(f"the idempotency key {key!r} was used with another request")


class QuotaExceeded(DomainError):
    """More than one tenant, or one session, may have. The sentence names the limit; waiting may help, or not."""

    code = "quota_exceeded"

    def __init__(self, detail: str, retry_after_seconds: int | None = None) -> None:
        super().__init__(detail)
        self.retry_after_seconds = retry_after_seconds


class SearchOff(DomainError):
    """Sessions are not indexed by their words here."""

    code = "search_off"

    def __init__(self) -> None:
        super().__init__("search is turned off on this server (SWARMKEEP_SEARCH=off)")


class Overloaded(DomainError):
    code = "overloaded"

    def __init__(self, retry_after_seconds: int = 1, *, detail: str = "too many writes are waiting; try again") -> None:
        super().__init__(detail)
        self.retry_after_seconds = retry_after_seconds


class Draining(DomainError):
    code = "draining"

    def __init__(self) -> None:
        super().__init__("the server is shutting down; try again on another one")
        self.retry_after_seconds = 1
