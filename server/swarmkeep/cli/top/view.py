"""What a person looks at, and what a key changes of it. Nothing is drawn here, and nothing is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from swarmkeep.cli.top.rates import Rates
from swarmkeep.cli.top.snapshot import Row, Snapshot

Mode = Literal["list", "filter", "confirm", "events"]


@dataclass(frozen=True)
class Job:
    """What somebody is asked for because of a key. `call_id` is the call that is decided about, as it was shown."""

    kind: Literal["quit", "cancel", "find_call", "decide", "open", "close"]
    row: Row | None = None
    decision: Literal["approve", "deny"] = "approve"
    call_id: str = ""
    arguments_digest: str | None = None


@dataclass
class View:
    snapshot: Snapshot
    taken: float
    """When the snapshot was taken, by this process's monotonic clock."""
    rates: Rates | None = None
    mode: Mode = "list"
    selected: str | None = None
    filter: str = ""
    notice: str = ""
    trouble: str = ""
    question: str = ""
    asked: Job | None = None
    opened: Row | None = None
    lines: list[str] = field(default_factory=list)
    """Of the session that is open."""
    scrolled: int = 0
    """How many of these are below the screen."""
    moved: int = 0
    """How many leases have changed hands since it is watched."""

    def list_rows(self) -> list[Row]:
        """Those that the filter leaves."""
        wanted = self.filter.casefold()
        return [row for row in self.snapshot.runs if not wanted or wanted in _describe(row)]

    def find_chosen(self) -> Row | None:
        """The run that keys are about: the one that was selected, as long as it is there, or else the first."""
        rows = self.list_rows()
        return next((row for row in rows if row.id == self.selected), rows[0] if rows else None)

    def show(self, snapshot: Snapshot, taken: float, rates: Rates | None) -> None:
        """From now on it is this."""
        servers = {row.id: row.server for row in self.snapshot.runs if row.server}
        self.moved += sum(1 for row in snapshot.runs if row.server and servers.get(row.id, row.server) != row.server)
        self.snapshot, self.taken, self.rates, self.trouble = snapshot, taken, rates, ""

    def ask(self, question: str, job: Job) -> None:
        """Ask whether to do it."""
        self.mode, self.question, self.asked = "confirm", question, job

    def press(self, key: str) -> Job | None:
        """What is to be done about a key; most change what is looked at only."""
        self.notice = ""
        match self.mode:
            case "list":
                return self._press_in_list(key)
            case "filter":
                self._press_in_filter(key)
            case "confirm":
                return self._press_in_question(key)
            case "events":
                return self._press_in_events(key)
        return None

    def _press_in_list(self, key: str) -> Job | None:
        row = self.find_chosen()
        if key == "q":
            return Job("quit")
        if key in _STEPS:
            self._move(_STEPS[key])
        elif key == "/":
            self.mode = "filter"
        elif key == "escape":
            self.filter = ""
        elif row is not None and key == "enter":
            self.mode, self.opened, self.lines, self.scrolled = "events", row, [], 0
            return Job("open", row)
        elif row is not None and key == "c":
            self.ask(f"cancel the run in {row.session_id}?", Job("cancel", row))
        elif row is not None and key in ("a", "d"):
            if row.status != "waiting":
                self.notice = "this run does not wait for a decision"
                return None
            return Job("find_call", row, decision="approve" if key == "a" else "deny")
        return None

    def _move(self, step: int) -> None:
        rows, row = self.list_rows(), self.find_chosen()
        if row is not None:
            self.selected = rows[min(max(rows.index(row) + step, 0), len(rows) - 1)].id

    def _press_in_filter(self, key: str) -> None:
        if key in ("enter", "escape"):
            self.mode = "list"
            self.filter = "" if key == "escape" else self.filter
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self.filter += key

    def _press_in_question(self, key: str) -> Job | None:
        asked, self.mode, self.asked = self.asked, "list", None
        if key == "y":
            return asked
        self.notice = "nothing was done"
        return None

    def _press_in_events(self, key: str) -> Job | None:
        if key in ("q", "escape"):
            self.mode, self.opened = "list", None
            return Job("close")
        if key in _STEPS:
            self.scrolled = min(max(self.scrolled - _STEPS[key], 0), max(len(self.lines) - 1, 0))
        return None


_STEPS = {"up": -1, "down": 1, "k": -1, "j": 1, "pageup": -10, "pagedown": 10}


def _describe(row: Row) -> str:
    return f"{row.session_id} {row.title or ''} {row.agent} {row.status} {row.server or ''}".casefold()
