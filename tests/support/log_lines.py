"""The log as programs read it: its lines as JSON objects, whichever test of this process they come from."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from swarmkeep.events.codec import Json
from swarmkeep.logs import JsonFormatter
from swarmkeep.models.failures import Secrets


class LogLines:
    def __init__(self) -> None:
        self._text = io.StringIO()
        self.handler = logging.StreamHandler(self._text)
        self.handler.setFormatter(JsonFormatter(Secrets().mask))

    def read(self, logger: str = "") -> list[Json]:
        """The lines so far of the loggers whose names begin so."""
        found = [json.loads(line) for line in self._text.getvalue().splitlines()]
        return [line for line in found if line["logger"].startswith(logger)]


@contextmanager
def read_log_lines(level: int = logging.INFO) -> Iterator[LogLines]:
    lines, root = LogLines(), logging.getLogger()
    before = root.level
    root.setLevel(level)
    root.addHandler(lines.handler)
    try:
        yield lines
    finally:
        root.removeHandler(lines.handler)
        root.setLevel(before)
