"""Format log lines: as text for people, or as a JSON object for programs. Secrets are masked in both."""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, NamedTuple

from swarmkeep.events.errors import Overloaded
from swarmkeep.events.wording import escape_line

# Keep the fields that every log line of a request or a run has: ids that its caller, wherever it is, does not have
# to hand on.

_fields: ContextVar[Mapping[str, str | int]] = ContextVar("swarmkeep_log_fields", default={})  # noqa: B039, never changed


def current_fields() -> Mapping[str, str | int]:
    """The fields of log lines from here, in the order in which they were set."""
    return _fields.get()


def bind_fields(**fields: str | int | None) -> None:
    """Set fields for the rest of this task, and for what it starts; None takes one away."""
    merged = {**_fields.get(), **fields}
    _fields.set({name: value for name, value in merged.items() if value is not None})


@contextmanager
def log_fields(**fields: str | int | None) -> Iterator[None]:
    """Set more fields meanwhile."""
    before = _fields.get()
    bind_fields(**fields)
    try:
        yield
    finally:
        _fields.set(before)


@contextmanager
def only_log_fields(**fields: str | int | None) -> Iterator[None]:
    """Set these fields alone meanwhile: a request that a kept connection begins knows nothing of the one before."""
    before = _fields.get()
    _fields.set({})
    bind_fields(**fields)
    try:
        yield
    finally:
        _fields.set(before)


# Find the trace that the code that runs just now belongs to. Loads nothing: if no traces are made, there is none.


class TraceIds(NamedTuple):
    """In hex, as traces are searched for: 32 and 16 digits."""

    trace_id: str
    span_id: str


def current_trace_ids() -> TraceIds | None:
    """The current trace and span, for a log line; None outside of every trace."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return TraceIds(f"{context.trace_id:032x}", f"{context.span_id:016x}")


Mask = Callable[[str], str]
ErrorInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

_LAYOUT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_TRACEBACK_INDENT = "    "
# The fields of every record; all others came as `extra`. The last one is uvicorn's, for terminals.
_STANDARD = {*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName", "color_message"}


class TextFormatter(logging.Formatter):
    """Lines whose beginnings cannot be forged: names, texts and exceptions of others stay in theirs."""

    def __init__(self, mask: Mask) -> None:
        super().__init__(_LAYOUT)
        self._mask = mask

    def formatMessage(self, record: logging.LogRecord) -> str:
        # Masked before it is escaped: a secret of several lines would be another text afterwards.
        record.message = escape_line(self._mask(record.message + _describe_fields(record.message)))
        return super().formatMessage(record)

    def formatException(self, ei: ErrorInfo) -> str:
        # An exception's text may have lines of its own, which would look like any other line of the log.
        return self._indent(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return self._indent(stack_info)

    def _indent(self, text: str) -> str:
        return "\n".join(_TRACEBACK_INDENT + escape_line(line) for line in self._mask(text).split("\n"))

    def format(self, record: logging.LogRecord) -> str:
        # What another handler's formatter made of the exception is kept there, neither indented nor masked.
        record.exc_text = None
        return self._mask(super().format(record))


def _describe_fields(message: str) -> str:
    """The fields that the message does not show by itself."""
    more = [f"{name}={value}" for name, value in current_fields().items() if str(value) not in message]
    return f" [{' '.join(more)}]" if more else ""


def _find_trace() -> dict[str, str]:
    ids = current_trace_ids()
    return {} if ids is None else ids._asdict()


class JsonFormatter(logging.Formatter):
    """One JSON object a line, in ASCII: what a terminal would obey, or take for the end of a line, is an escape."""

    def __init__(self, mask: Mask) -> None:
        super().__init__()
        self._mask = mask

    def format(self, record: logging.LogRecord) -> str:
        extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        # The line's own fields come first, and no other field may set them.
        fields = {**fields, **current_fields(), **_find_trace(), **extra, **fields}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = record.stack_info
        # Masked before it is encoded: a secret with a quote in it would be another text afterwards.
        return json.dumps({name: self._plain_value(value) for name, value in fields.items()})

    def _plain_value(self, value: object) -> str | int | float | None:
        if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
            return value
        return self._mask(value if isinstance(value, str) else str(value))


# A database that is away, in two log lines: what happened, and, once it is over, how many it concerned.

log = logging.getLogger(__name__)

Concerned = Literal["streams broken off", "requests refused", "changes delayed"]

# A process that waits for the database tries again within a second. If some can read and none write, it is no end.
_SETTLED_SECONDS = 1.5
_REMINDER_SECONDS = 60.0


class OutageLog:
    """The outage that goes on in this process, if there is one."""

    def __init__(
        self,
        *,
        settled_seconds: float = _SETTLED_SECONDS,
        reminder_seconds: float = _REMINDER_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settled_seconds = settled_seconds
        self._reminder_seconds = reminder_seconds
        self._clock = clock
        self._counts: Counter[Concerned] = Counter()
        self._began_at: float | None = None
        self._noted_at = self._written_at = 0.0

    def note(self, error: Exception, concerned: Concerned | None = None) -> None:
        """Note that a command could not use the database. `concerned` is what became of them; these are counted."""
        self._noted_at = self._clock()
        if concerned is not None:
            self._counts[concerned] += 1
        how = "does not keep up" if isinstance(error, Overloaded) else "cannot be used"
        if self._began_at is None:
            self._began_at = self._written_at = self._noted_at
            self._write(logging.ERROR, "the database %s: %s", how, error)
        elif self._noted_at - self._written_at >= self._reminder_seconds:
            self._written_at = self._noted_at
            seconds = self._noted_at - self._began_at
            self._write(
                logging.ERROR, "the database %s, for %.0f s now: %s%s", how, seconds, error, self._describe_counts()
            )

    def note_answer(self) -> None:
        """Note that the database has answered a regular request. The outage is over once it is not noted any more."""
        if self._began_at is None or self._clock() - self._noted_at < self._settled_seconds:
            return
        seconds = self._noted_at - self._began_at
        self._write(logging.WARNING, "the database answers again, after %.0f s%s", seconds, self._describe_counts())
        self._began_at = None
        self._counts.clear()

    def _describe_counts(self) -> str:
        counts = ", ".join(f"{concerned}: {count:,}" for concerned, count in sorted(self._counts.items()))
        return f"; {counts}" if counts else ""

    def _write(self, level: int, message: str, *values: object) -> None:
        # It is about no request or run, least of all about the one that noticed first.
        with only_log_fields():
            log.log(level, message, *values)


outage_log = OutageLog()
"""This process's."""
