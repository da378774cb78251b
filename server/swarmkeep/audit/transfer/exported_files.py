"""The files of one session in an export: each is what its hash names, and what the event after it refers to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from swarmkeep.audit.transfer.export_lines import EventLine, FileLine
from swarmkeep.domain.errors import InvalidImport
from swarmkeep.domain.files.facts import list_fact_references

MakeError = Callable[[str], InvalidImport]


class ExportedFiles:
    """What was brought and referred to so far."""

    def __init__(self) -> None:
        self._named: dict[str, int] = {}
        self._waiting: dict[str, int] = {}

    def take(self, line: FileLine, make_error: MakeError) -> None:
        """A file that the next event refers to. Raises InvalidImport."""
        if hashlib.sha256(line.content).hexdigest() != line.sha256:
            raise make_error("the file does not match its hash")
        if line.sha256 in self._waiting or line.sha256 in self._named:
            raise make_error("it has a file that an earlier line already had")
        self._waiting[line.sha256] = len(line.content)

    def check(self, line: EventLine, make_error: MakeError) -> None:
        """The event that the files since the last one are for. Raises InvalidImport."""
        named = list_fact_references(line.sealed.event.fact)
        if not self._waiting.keys() <= {one.sha256 for one in named}:
            raise make_error("the line before it has a file that it does not refer to")
        self._named |= self._waiting
        # How much of a history is sent goes by what its events say.
        if any(self._named.setdefault(one.sha256, one.size) != one.size for one in named):
            raise make_error("it names the wrong size of a file")
        self._waiting.clear()
