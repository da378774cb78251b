"""The lines of the screen: as many and as long as there is room for."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Literal

from prompt_toolkit.input import Input
from prompt_toolkit.input.defaults import create_input
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.keys import Keys
from rich.cells import cell_len, chop_cells, set_cell_size
from rich.live import Live
from rich.text import Text

from swarmkeep.cli.outcomes import make_console
from swarmkeep.cli.render import format_event_line
from swarmkeep.cli.terminal import find_refusal
from swarmkeep.cli.top_snapshot import Rates, Reader, Reading, RecentReadings, Row, Snapshot
from swarmkeep.events.wording import escape_line, format_call
from swarmkeep_client import ConnectionFailed

if TYPE_CHECKING:
    from swarmkeep.cli.sources import Source
    from swarmkeep_client import Approval, PendingCall


# The view that a person looks at, and its changes by keys. Nothing is drawn here, and nothing is asked.

Mode = Literal["list", "filter", "confirm", "events"]


@dataclass(frozen=True)
class Job:
    """The work that a key asks for. `call_id` is the call that is decided about, as it was shown."""

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
        """Return the job to be done about a key; most change what is looked at only."""
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


_WIDE = 110
_TALL = 16
_CUT = "…and more: the session's events have all of it (n, then Enter)"
_KEYS = {
    "list": "up/down choose  Enter events  c cancel  a approve  d deny  / filter  q quit",
    "filter": "type to filter   Enter keep   Esc clear",
    "confirm": "y yes   any other key no",
    "events": "up/down scroll   q or Esc back",
}


@dataclass(frozen=True)
class Room:
    """The size of the screen, and the characters it knows."""

    width: int
    height: int
    encoding: str = "utf-8"

    def fit(self, text: str, width: int) -> str:
        """Text on one line that is exactly so wide."""
        shown = escape_line(text).encode(self.encoding, "replace").decode(self.encoding)
        return set_cell_size(shown, max(width, 0))


@dataclass(frozen=True)
class _Column:
    heading: str
    width: int
    cell: Callable[[Row, float], str]
    is_number: bool = False


def draw(view: View, where: str, room: Room, now: float) -> Text:
    """The whole screen."""
    # On a low screen, what is chosen and asked counts more.
    head = _draw_head(view, where, room.width if room.height >= _TALL else sys.maxsize)
    # The last line is for the keys.
    space = max(room.height - len(head) - 1, 1)
    if view.mode == "events":
        body = _draw_events(view, space)
    elif view.mode == "confirm" and cell_len(_ask(view)) > room.width:
        body = _draw_question(view, room.width, space)
    else:
        body = _draw_list(view, room, space, passed=max(now - view.taken, 0.0))
    lines = [*head, *body]
    lines = lines[: max(room.height - 1, 0)]
    lines += [("", "")] * (room.height - 1 - len(lines)) + [(_KEYS[view.mode], "dim")]
    return Text("\n").join(Text(room.fit(text, room.width), style=style) for text, style in lines)


def _draw_head(view: View, where: str, width: int) -> list[tuple[str, str]]:
    shown = view.snapshot
    return [
        (f"swarmkeep top   {where}   {shown.at[11:19]} UTC", "bold"),
        *((line, "") for line in _fill_lines([describe_counts(shown), *_describe_rates(view.rates)], width)),
        *((line, "") for line in _fill_lines(_describe_troubles(view), width)),
        _describe_state(view),
    ]


def _fill_lines(parts: Sequence[str], width: int) -> list[str]:
    """The parts side by side, on as many lines as it takes for none to be cut."""
    lines = [parts[0]]
    for part in parts[1:]:
        longer = f"{lines[-1]}   {part}"
        lines[-1:] = [longer] if cell_len(longer) <= width else [lines[-1], part]
    return lines


def describe_counts(shown: Snapshot) -> str:
    more = " and more" if shown.is_cut else ""
    return f"{shown.counts.running} running, {shown.counts.waiting} waiting, {shown.counts.queued} queued{more}"


def _describe_rates(rates: Rates | None) -> list[str]:
    if rates is None:
        return []
    return [
        f"{rates.turns:.0f} turns/min, {format_count(rates.tokens)} tokens/min",
        f"model {format_seconds(rates.model_seconds)}, tool {format_seconds(rates.tool_seconds)}",
    ]


def _describe_troubles(view: View) -> list[str]:
    shown = view.snapshot
    parts = [f"failed in the last hour {shown.failed_last_hour}", f"leases moved {view.moved}"]
    if shown.server is not None:
        counts = shown.server
        parts += [f"streams {counts.streams}", f"take-overs {counts.takeovers}", f"run errors {counts.run_errors}"]
    return parts


def _describe_state(view: View) -> tuple[str, str]:
    if view.mode == "confirm":
        return _ask(view), "bold yellow"
    if view.mode == "filter":
        return f"filter: {view.filter}_", "bold"
    if view.trouble:
        return view.trouble, "bold red"
    if view.notice:
        return view.notice, "yellow"
    return (f"filter: {view.filter}", "") if view.filter else ("", "")


def _ask(view: View) -> str:
    return escape_line(f"{view.question} y/n")


def _draw_question(view: View, width: int, space: int) -> list[tuple[str, str]]:
    """Draw all of the question, in the place of the list: no user should agree to an unseen text."""
    lines = [("", ""), *((line, "bold yellow") for line in chop_cells(_ask(view), max(width, 2)))]
    return lines if len(lines) <= space else [*lines[: space - 1], (_CUT, "bold red")]


def _draw_list(view: View, room: Room, space: int, *, passed: float) -> list[tuple[str, str]]:
    columns = choose_columns(room.width)
    rows, chosen = view.list_rows(), view.find_chosen()
    space = max(space - 1, 1)
    place = rows.index(chosen) if chosen is not None else 0
    first = max(0, place - space + 1)
    head = "  " + " ".join(_fit_cell(room, one, one.heading) for one in columns)
    lines = [(head, "bold")]
    for row in rows[first : first + space]:
        cells = " ".join(_fit_cell(room, one, one.cell(row, passed)) for one in columns)
        lines.append((f"{'>' if row is chosen else ' '} {cells}", _find_style(row, is_chosen=row is chosen)))
    if not rows:
        lines.append(
            ("  no run is active, waiting or queued" if not view.filter else "  no run matches the filter", "dim")
        )
    return lines


def _fit_cell(room: Room, column: _Column, text: str) -> str:
    if column.is_number:
        return text[: column.width].rjust(column.width)
    return room.fit(text, column.width)


def _find_style(row: Row, *, is_chosen: bool) -> str:
    colour = "yellow" if row.status == "waiting" else ""
    return f"reverse {colour}".strip() if is_chosen else colour


def _draw_events(view: View, space: int) -> list[tuple[str, str]]:
    opened = view.opened
    name = "" if opened is None else f"{opened.session_id}  {opened.title or ''}"
    space = max(space - 1, 1)
    end = max(len(view.lines) - view.scrolled, 1)
    return [(name, "bold"), *((line, "") for line in view.lines[max(end - space, 0) : end])]


def choose_columns(width: int) -> Sequence[_Column]:
    """The last takes what is left."""
    wide = width >= _WIDE
    columns = [
        _Column("STATUS", 10, lambda row, _: describe_status(row)),
        _Column("AGE", 6, lambda row, passed: format_age(row.age_seconds + passed), is_number=True),
        _Column("AGENT", 24 if wide else 14, lambda row, _: row.agent),
        _Column("TURNS", 5, lambda row, _: str(row.model_calls), is_number=True),
        _Column("TOKENS", 6, lambda row, _: format_count(row.total_tokens), is_number=True),
        _Column("SERVER", 8, lambda row, _: (row.server or "-")[:8]),
        _Column("LEASE", 7, lambda row, passed: format_lease(row, passed)),
    ]
    if wide:
        columns.append(_Column("SESSION", 28, lambda row, _: row.session_id))
        columns.append(_Column("TITLE", 0, lambda row, _: row.title or ""))
    else:
        columns.append(_Column("SESSION", 0, lambda row, _: row.title or row.session_id))
    taken = 2 + sum(one.width for one in columns) + len(columns) - 1
    last = columns[-1]
    return [*columns[:-1], _Column(last.heading, max(width - taken, 8), last.cell)]


def describe_status(row: Row) -> str:
    return f"{row.status} +{row.queued_runs}" if row.queued_runs else row.status


def format_lease(row: Row, passed: float = 0.0) -> str:
    if row.lease_seconds is None:
        return "-"
    left = row.lease_seconds - passed
    return "expired" if left <= 0 else f"{left:.0f} s"


def format_age(seconds: float) -> str:
    """`9s`, `12m`, `3h`, `2d`: how many of the largest unit have passed."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds // 1:.0f}s"


def format_count(count: float) -> str:
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**4, "k")):
        if count >= size:
            return f"{count / (1000 if unit == 'k' else size):.1f}{unit}"
    return f"{count:.0f}"


def format_seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"


# Carry out the requests to the source: in a thread of its own, so that the screen never waits for a server.

Change = Callable[[View], None]

EVENTS_AT_FIRST = 200
MOST_LINES = 2000


class Work:
    """Reads every `seconds`, and does jobs in between. What comes of it is put into `changes`, for the view."""

    def __init__(self, source: Source, reader: Reader, first: Reading, *, seconds: float) -> None:
        self._source = source
        self._reader = reader
        self._seconds = seconds
        self._recent = RecentReadings()
        self._recent.add(first)
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._open: tuple[str, int] | None = None
        self.changes: SimpleQueue[Change | BaseException] = SimpleQueue()

    def start(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._thread = threading.Thread(target=self._run, name="top", daemon=True)
        self._thread.start()

    def do(self, job: Job) -> None:
        self._jobs.put(job)

    def end(self, seconds: float) -> None:
        """End after what is being asked now, for which it waits no longer than that."""
        self._jobs.put(Job("quit"))
        self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=self._seconds)
            except Empty:
                job = None
            if job is not None and job.kind == "quit":
                return
            try:
                if job is not None:
                    self._do(job)
                self._read()
            except Exception as error:
                refused = find_refusal(error)
                if refused is None:
                    self._publish(error)
                    return
                gone = "no answer from the server: " if isinstance(error, ConnectionFailed) else ""
                self._publish(_make_report(job, f"{gone}{refused.sentence}"))

    def _publish(self, change: Change | BaseException) -> None:
        self.changes.put(change)
        self._wake()

    def _read(self) -> None:
        reading = self._reader.read()
        self._recent.add(reading)
        rates = self._recent.compute_rates()
        self._publish(lambda view: view.show(reading.snapshot, reading.taken, rates))
        if self._open is not None:
            self._read_events(*self._open)

    def _read_events(self, session_id: str, after: int) -> None:
        found = [*self._source.events(session_id, after=after)]
        if found:
            self._open = session_id, found[-1].seq
            lines = [format_event_line(event, clock_only=True) for event in found]
            self._publish(lambda view: _add_lines(view, session_id, lines))

    def _do(self, job: Job) -> None:
        row = job.row
        if row is None:
            self._open = None
        elif job.kind == "open":
            self._open = row.session_id, max(0, row.seq - EVENTS_AT_FIRST)
        elif job.kind == "cancel":
            self._source.open_on_server(row.session_id).cancel(row.id)
            self._publish(_make_notice(f"cancelled the run in {row.session_id}"))
        elif job.kind == "find_call":
            self._find_call(job)
        elif job.kind == "decide":
            self._decide(job)

    def _find_call(self, job: Job) -> None:
        """Ask about the first call that waits for a decision here."""
        assert job.row is not None
        run = self._source.open_on_server(job.row.session_id).get_run(job.row.id)
        call = next((one for one in run.pending if one.reason == "approval"), None)
        if call is None:
            self._publish(_make_notice(_explain_no_call(run.pending)))
            return
        question = f"{job.decision} {format_call(call.name, call.arguments)}?"
        call_id, digest = call.tool_call_id, call.arguments_digest
        decide = Job("decide", job.row, decision=job.decision, call_id=call_id, arguments_digest=digest)
        self._publish(lambda view: view.ask(question, decide) if view.mode == "list" else None)

    def _decide(self, job: Job) -> None:
        assert job.row is not None
        session = self._source.open_on_server(job.row.session_id)
        approval: Approval = {"tool_call_id": job.call_id, "decision": job.decision}
        if job.arguments_digest is not None:
            approval["arguments_digest"] = job.arguments_digest
        items = session.resume_stream(job.row.id, approvals=[approval])
        # It goes on by itself: its first item says that the decision is recorded.
        next(items, None)
        items.close()
        done = "approved" if job.decision == "approve" else "denied"
        self._publish(_make_notice(f"{done} the call in {job.row.session_id}"))


def _make_report(job: Job | None, sentence: str) -> Change:
    """Report an error: of a key once, of the reading until it goes well again."""
    if job is not None and job.kind in ("cancel", "find_call", "decide"):
        return _make_notice(sentence)

    def trouble(view: View) -> None:
        view.trouble = f"{sentence}; trying again"

    return trouble


def _make_notice(text: str) -> Change:
    def note(view: View) -> None:
        view.notice = text

    return note


def _add_lines(view: View, session_id: str, lines: list[str]) -> None:
    if view.opened is not None and view.opened.session_id == session_id:
        view.lines = [*view.lines, *lines][-MOST_LINES:]
        if view.scrolled:
            # What is looked at stays where it is.
            view.scrolled = min(view.scrolled + len(lines), len(view.lines) - 1)


def _explain_no_call(pending: list[PendingCall]) -> str:
    elsewhere = [str(one.session_id) for one in pending if one.reason == "session"]
    if elsewhere:
        return f"the decision has to be made in session {', and in session '.join(elsewhere)}"
    return "no call of this run waits for an approval"


# Keys of a terminal, one by one.

# How long what begins like the code of a key may stay unfinished before it is the Escape key.
_ESCAPE_SECONDS = 0.1
_NAMES = {
    Keys.Up: "up",
    Keys.Down: "down",
    Keys.PageUp: "pageup",
    Keys.PageDown: "pagedown",
    Keys.Enter: "enter",
    Keys.ControlJ: "enter",
    Keys.Escape: "escape",
    Keys.Backspace: "backspace",
    Keys.ControlC: "ctrl-c",
    Keys.ControlD: "ctrl-d",
}


class Keyboard:
    """Waits for a key or for a wake-up from another thread, whichever comes first."""

    def __init__(self, terminal: Input) -> None:
        self._terminal = terminal
        self._wake, self._waker = os.pipe()

    def wake(self) -> None:
        """End the wait; for any thread."""
        os.write(self._waker, b".")

    def wait(self, seconds: float) -> list[str]:
        """The keys that were pressed. Ends early when it is woken. Raises EOFError once the terminal is gone."""
        ready = self._select(seconds)
        if self._wake in ready:
            os.read(self._wake, 4096)
        if self._terminal.fileno() not in ready:
            return []
        pressed = self._terminal.read_keys()
        if self._terminal.closed:
            raise EOFError
        if not self._select(_ESCAPE_SECONDS, self._terminal.fileno()):
            pressed += self._terminal.flush_keys()
        return [name for key in pressed if (name := _find_name(key))]

    def close(self) -> None:
        os.close(self._wake)
        os.close(self._waker)

    def _select(self, seconds: float, *files: int) -> list[int]:
        return select.select(files or (self._terminal.fileno(), self._wake), (), (), seconds)[0]


@contextmanager
def open_keyboard() -> Iterator[Keyboard]:
    """Within, keys come as they are pressed, and none is shown. At the end the terminal is as it was."""
    terminal = create_input()
    with terminal.raw_mode():
        keyboard = Keyboard(terminal)
        try:
            yield keyboard
        finally:
            keyboard.close()


def _find_name(key: KeyPress) -> str:
    if isinstance(key.key, Keys):
        return _NAMES.get(key.key, "")
    return key.key


# The live view: draws, waits for keys, and draws again.

REDRAW_SECONDS = 0.5
_END_SECONDS = 1.0


def watch(source: Source, where: str, url: str | None, *, seconds: float) -> None:
    """Show it until `q`. Raises KeyboardInterrupt for Ctrl-C; the terminal is as it was by then."""
    reader = Reader(source, url)
    # What is the matter at once is said as by every command.
    first = reader.read()
    view = View(first.snapshot, first.taken)
    work = Work(source, reader, first, seconds=seconds)
    # Exported once, these would be the size for ever.
    console = make_console(
        _environ={name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    )
    with (
        _end_on_signals(),
        open_keyboard() as keyboard,
        Live(
            console=console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        ) as live,
    ):
        work.start(keyboard.wake)
        try:
            _run(view, work, keyboard, live, where)
        finally:
            work.end(_END_SECONDS)


def _run(view: View, work: Work, keyboard: Keyboard, live: Live, where: str) -> None:
    while True:
        _apply(view, work)
        # Asked for each time: terminals change their size.
        width, height = live.console.size
        room = Room(width, height, live.console.encoding)
        live.update(draw(view, where, room, time.monotonic()), refresh=True)
        for key in keyboard.wait(REDRAW_SECONDS):
            if key == "ctrl-c":
                raise KeyboardInterrupt
            job = view.press(key) if key != "ctrl-d" else None
            if key == "ctrl-d" or (job is not None and job.kind == "quit"):
                return
            if job is not None:
                work.do(job)


def _apply(view: View, work: Work) -> None:
    while True:
        try:
            change = work.changes.get_nowait()
        except Empty:
            return
        if isinstance(change, BaseException):
            raise change
        change(view)


@contextmanager
def _end_on_signals() -> Iterator[None]:
    """Within, a signal that ends the process lets it put the terminal back first."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = [(number, signal.signal(number, end)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
