"""How a log line is written: as text for people, or as a JSON object for programs. Secrets are masked in both."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from swarmkeep.domain.wording import escape_line
from swarmkeep.logs.context import current_fields
from swarmkeep.logs.traces import current_trace_ids

Mask = Callable[[str], str]
ErrorInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

_LAYOUT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_TRACEBACK_INDENT = "    "
# What every record has; whatever else it has came as `extra`. The last one is uvicorn's, for terminals.
_STANDARD = {*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName", "color_message"}


class TextFormatter(logging.Formatter):
    """Lines that nobody else can begin: names, texts and exceptions of others stay in theirs."""

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
        # The line's own fields come first, and are nobody else's to set.
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
