"""`swarmkeep top`: the runs that go on, wait or are queued, as they do; what keys change in it, and how it is drawn."""

from __future__ import annotations

import os
import re
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.client import HTTPException
from itertools import islice
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple
from urllib.request import Request, urlopen

import typer
from prompt_toolkit.input import Input
from prompt_toolkit.input.defaults import create_input
from prompt_toolkit.keys import Keys
from rich.cells import cell_len, chop_cells
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.segment import Segment, SegmentLines
from rich.table import Table
from rich.text import Text

from swarmkeep.cli.opening import open_source
from swarmkeep.cli.options import Commands
from swarmkeep.cli.outcomes import make_console
from swarmkeep.cli.render import format_event_line
from swarmkeep.cli.sources import SourceOptions
from swarmkeep.cli.terminal import (
    INTERRUPTED,
    Refused,
    exit_on_signals,
    find_refusal,
    has_cursor,
    is_interactive,
    put,
    put_json,
    put_table,
)
from swarmkeep.events.codec import parse_timestamp, to_timestamp
from swarmkeep.events.records import UsageQuery
from swarmkeep.events.wording import escape_line, format_call, pluralize
from swarmkeep_client import ActiveRun, Approval, ConnectionFailed, UsageRow

if TYPE_CHECKING:
    from swarmkeep.cli.sources import Source

# What is read: the runs that go on or wait, what calls took, and the few metrics of a server that a person watches.

# More than a person looks through, and what one reading costs at most.
MOST_RUNS, MOST_FAILURES, EVENTS_AT_FIRST, MOST_LINES = 500, 100, 200, 2000
FAILURES_EVERY_SECONDS, RATES_OVER_SECONDS, METRICS_SECONDS = 15.0, 60.0, 5.0
_MOST_METRICS_BYTES = 4_000_000
_SAMPLE = re.compile(r"^swarmkeep_([a-z_]+?)(?:_total)?(?:\{[^\n]*\})? ([0-9.e+]+)$", re.ASCII | re.MULTILINE)
_METRICS = {
    "stream_readers": "streams", "sessions_driven": "sessions_driven", "writes_waiting": "writes_waiting",
    "takeovers": "takeovers", "run_errors": "run_errors",
}  # fmt: skip
_RUN_FIELDS = (
    "id", "session_id", "title", "status", "agent", "since", "age_seconds", "seq", "server", "lease_seconds",
    "lease_epoch", "queued_runs", "model_calls", "tool_calls", "prompt_tokens", "completion_tokens", "total_tokens",
)  # fmt: skip


class Snapshot(NamedTuple):
    """The runs, those that wait first, then the oldest. `is_cut`: there are more than are listed.

    `today` are the totals of this day's calls (UTC) over all servers, with the mean seconds of a call.
    `failed_last_hour` are sessions whose last run has failed since, counted up to 100. `server` is what the one that
    was asked counts, of all tenants and since its start; None of a database, and where it does not say.
    """

    at: str
    counts: dict[str, int]
    runs: list[ActiveRun]
    is_cut: bool
    today: dict[str, int | float | None]
    failed_last_hour: int
    server: dict[str, int] | None

    def view(self) -> dict[str, object]:
        """Return all of it as JSON shows it."""
        ages = ((run, {"age_seconds": measure_age(run, self.at)}) for run in self.runs)
        runs = [{name: age[name] if name in age else getattr(run, name) for name in _RUN_FIELDS} for run, age in ages]
        return {**self._asdict(), "runs": runs}


def measure_age(run: ActiveRun, at: str) -> float:
    now = parse_timestamp(at)
    since = parse_timestamp(run.since)
    return 0.0 if now is None or since is None else round(max(0.0, (now - since).total_seconds()), 1)


def _mean_seconds(milliseconds: float, calls: int) -> float | None:
    return round(milliseconds / calls / 1000, 3) if calls > 0 else None


class RecentUsage:
    """The sums of the last minute, of which rates come."""

    def __init__(self) -> None:
        self._sums: deque[tuple[float, UsageRow]] = deque()

    def add(self, taken: float, now: UsageRow) -> tuple[str, ...]:
        """Describe the turns and tokens per minute, and the mean seconds of a call; nothing of the first sum."""
        sums = self._sums
        if sums and sums[-1][1].model_calls > now.model_calls:
            # A new day has begun, or sessions were deleted: the sums begin again.
            sums.clear()
        sums.append((taken, now))
        # One that is older stays, so that the whole minute lies between it and the last.
        while len(sums) > 2 and taken - sums[1][0] >= RATES_OVER_SECONDS:
            sums.popleft()
        (began, was), turns = sums[0], now.model_calls - sums[0][1].model_calls
        if len(sums) < 2:
            return ()
        minutes, tokens = max(taken - began, 0.001) / 60, max(now.total_tokens - was.total_tokens, 0)
        model = format_seconds(_mean_seconds(now.model_ms - was.model_ms, turns))
        tool = format_seconds(_mean_seconds(now.tool_ms - was.tool_ms, now.tool_calls - was.tool_calls))
        per_minute = f"{turns / minutes:.0f} turns/min, {format_count(tokens / minutes)} tokens/min"
        return per_minute, f"model {model}, tool {tool}"


class Reader:
    """Takes snapshots of a source, and of the server at `url`."""

    def __init__(self, source: Source, url: str | None) -> None:
        self._source, self._url = source, url
        self._recent = RecentUsage()
        self._failures = (-FAILURES_EVERY_SECONDS, 0)

    def read(self) -> tuple[Snapshot, tuple[str, ...]]:
        now = datetime.now(UTC)
        day = now.date().isoformat()
        usage = next(iter(self._source.usage(UsageQuery(by=(), first_day=day, last_day=day))))
        (waiting, is_cut), (running, is_cut_too) = self._list("waiting"), self._list("running")
        queued = sum(run.queued_runs for run in (*waiting, *running))
        snapshot = Snapshot(
            at=to_timestamp(now),
            counts={"running": len(running), "waiting": len(waiting), "queued": queued},
            runs=[*waiting, *running],
            is_cut=is_cut or is_cut_too,
            today={
                **{name: getattr(usage, name) for name in ("model_calls", "tool_calls", "total_tokens")},
                "model_seconds": _mean_seconds(usage.model_ms, usage.model_calls),
                "tool_seconds": _mean_seconds(usage.tool_ms, usage.tool_calls),
            },
            failed_last_hour=self._count_failures(now),
            server=None if self._url is None else read_metrics(self._url),
        )
        return snapshot, self._recent.add(time.monotonic(), usage)

    def _list(self, status: Literal["running", "waiting"]) -> tuple[list[ActiveRun], bool]:
        found = self._source.active_runs(status)
        runs = sorted(islice(found, MOST_RUNS), key=lambda run: (run.since, run.id))
        return runs, next(found, None) is not None

    def _count_failures(self, now: datetime) -> int:
        """Count now and then only: of many sessions it takes a while."""
        if time.monotonic() - self._failures[0] >= FAILURES_EVERY_SECONDS:
            since = to_timestamp(now - timedelta(hours=1))
            failed = self._source.sessions(last_run="failed", order="activity", active_after=since, children=True)
            self._failures = time.monotonic(), sum(1 for _ in islice(failed, MOST_FAILURES))
        return self._failures[1]


def read_metrics(url: str) -> dict[str, int] | None:
    """None where the server does not say: once it has API keys, it asks for SWARMKEEP_METRICS_TOKEN."""
    token = os.environ.get("SWARMKEEP_METRICS_TOKEN")
    asked = Request(f"{url.rstrip('/')}/metrics", headers={"Authorization": f"Bearer {token}"} if token else {})
    # What else is asked says what is the matter.
    with suppress(OSError, HTTPException, ValueError), urlopen(asked, timeout=METRICS_SECONDS) as answer:
        return parse_metrics(answer.read(_MOST_METRICS_BYTES).decode(errors="replace"))
    return None


def parse_metrics(text: str) -> dict[str, int] | None:
    """Add up over labels and workers. None of what is no text of such metrics."""
    samples = [(_METRICS[name], value) for name, value in _SAMPLE.findall(text) if name in _METRICS]
    try:
        sums = {name: int(sum(float(value) for found, value in samples if found == name)) for name in _METRICS.values()}
    except (ValueError, OverflowError):
        return None
    return sums if samples else None


# What a person looks at, and its changes by keys. Nothing is drawn here, and nothing is asked.


Decision = Literal["approve", "deny"]
Job = Callable[["Work"], None]
"""What a key asks for beside a change of the view."""


class Quit(Exception):
    """The person has seen enough."""


_STEPS = {"up": -1, "down": 1, "k": -1, "j": 1, "pageup": -10, "pagedown": 10}
_ENTER = ("c-m", "c-j")


@dataclass
class View:
    snapshot: Snapshot
    taken: float
    """When the snapshot was taken, by this process's monotonic clock."""
    rates: Sequence[str] = ()
    mode: Literal["list", "filter", "confirm", "events"] = "list"
    selected: str | None = None
    filter: str = ""
    notice: str = ""
    trouble: str = ""
    question: str = ""
    asked: Job | None = None
    opened: ActiveRun | None = None
    lines: list[str] = field(default_factory=list)
    """Of the session that is open."""
    scrolled: int = 0
    """How many of these are below the screen."""
    moved: int = 0
    """How many leases have changed hands since it is watched."""

    def list_runs(self) -> list[ActiveRun]:
        """List those that the filter leaves."""
        wanted = self.filter.casefold()
        texts = ((run, (run.session_id, run.title, run.agent, run.status, run.server)) for run in self.snapshot.runs)
        return [run for run, text in texts if wanted in " ".join(part or "" for part in text).casefold()]

    def find_chosen(self) -> ActiveRun | None:
        """The run that keys are about: the one that was selected, as long as it is there, or else the first."""
        runs = self.list_runs()
        return next((run for run in runs if run.id == self.selected), runs[0] if runs else None)

    def show(self, snapshot: Snapshot, taken: float, rates: Sequence[str]) -> None:
        """From now on it is this."""
        servers = {run.id: run.server for run in self.snapshot.runs if run.server}
        self.moved += sum(1 for run in snapshot.runs if run.server and servers.get(run.id, run.server) != run.server)
        self.snapshot, self.taken, self.rates, self.trouble = snapshot, taken, rates, ""

    def ask(self, question: str, job: Job) -> None:
        """Ask whether to do it."""
        self.mode, self.question, self.asked = "confirm", question, job

    def add_lines(self, session_id: str, lines: list[str]) -> None:
        """Add events of a session, if it is the one that is open."""
        if self.opened is not None and self.opened.session_id == session_id:
            self.lines = [*self.lines, *lines][-MOST_LINES:]
            if self.scrolled:
                # What is looked at stays where it is.
                self.scrolled = min(self.scrolled + len(lines), len(self.lines) - 1)

    def press(self, key: str) -> Job | None:
        """Return the job to be done about a key; most change what is looked at only."""
        self.notice = ""
        match self.mode:
            case "list":
                return self._press_in_list(key, self.find_chosen())
            case "filter" if key in (*_ENTER, "escape"):
                self.mode, self.filter = "list", "" if key == "escape" else self.filter
            case "filter":
                added = key if len(key) == 1 and key.isprintable() else ""
                self.filter = self.filter[:-1] if key == "c-h" else self.filter + added
            case "confirm":
                self.mode, self.notice = "list", "" if key == "y" else "nothing was done"
                return self.asked if key == "y" else None
            case "events" if key in ("q", "escape"):
                self.mode, self.opened = "list", None
                return lambda work: work.open(None)
            case "events":
                self.scrolled = min(max(self.scrolled - _STEPS.get(key, 0), 0), max(len(self.lines) - 1, 0))
        return None

    def _press_in_list(self, key: str, run: ActiveRun | None) -> Job | None:
        if key == "q":
            raise Quit
        if key == "/":
            self.mode = "filter"
        elif key == "escape":
            self.filter = ""
        elif run is None:
            return None
        elif key in _STEPS:
            runs = self.list_runs()
            self.selected = runs[min(max(runs.index(run) + _STEPS[key], 0), len(runs) - 1)].id
        elif key in _ENTER:
            self.mode, self.opened, self.lines, self.scrolled = "events", run, [], 0
            return lambda work: work.open(run)
        elif key == "c":
            self.ask(f"cancel the run in {run.session_id}?", lambda work: work.cancel(run))
        elif key in ("a", "d") and run.status == "waiting":
            return lambda work: work.find_call(run, "approve" if key == "a" else "deny")
        elif key in ("a", "d"):
            self.notice = "this run does not wait for a decision"
        return None


# The screen.

_WIDE, _TALL = 110, 16
# All columns but the last have a width of their own; what a narrower screen has no room for is cut off.
_NARROWEST = 77
_KEYS = {
    "list": "up/down choose  Enter events  c cancel  a approve  d deny  / filter  q quit",
    "filter": "type to filter   Enter keep   Esc clear",
    "confirm": "y yes   any other key no",
    "events": "up/down scroll   q or Esc back",
}
_CUT = "…and more: the session's events have all of it (n, then Enter)"
HEADINGS = ("STATUS", "AGE", "AGENT", "TURNS", "TOKENS", "SERVER", "LEASE", "SESSION", "TITLE")
_NUMBERS = ("AGE", "TURNS", "TOKENS")


def draw(view: View, where: str, console: Console, now: float) -> SegmentLines:
    """The whole screen: what is the case, the runs or the events of one, and the keys in the last line."""
    width, height = console.size

    def clean(text: str, style: str = "") -> Text:
        shown = escape_line(text).encode(console.encoding, "replace").decode(console.encoding)
        return Text(shown, style, no_wrap=True, overflow="crop")

    # On a low screen, what is chosen and asked counts more.
    head = [clean(*line) for line in _list_head(view, where, width if height >= _TALL else sys.maxsize)]
    space = max(height - len(head) - 1, 1)
    question = escape_line(f"{view.question} y/n")
    body: list[RenderableType]
    if view.mode == "events":
        end = max(len(view.lines) - view.scrolled, 1)
        name = "" if view.opened is None else f"{view.opened.session_id}  {view.opened.title or ''}"
        body = [clean(name, "bold"), *map(clean, view.lines[max(end - max(space - 1, 1), 0) : end])]
    elif view.mode == "confirm" and cell_len(question) > width:
        # All of it, in the place of the list: no user should agree to an unseen text.
        body = [Text(), *(clean(line, "bold yellow") for line in chop_cells(question, max(width, 2)))]
        body = body if len(body) <= space else [*body[: space - 1], clean(_CUT, "bold red")]
    else:
        body = [_make_table(view, clean, width, max(space - 1, 1), passed=max(now - view.taken, 0.0))]
        if not view.list_runs():
            why = "matches the filter" if view.filter else "is active, waiting or queued"
            body.append(clean(f"  no run {why}", "dim"))
    options = console.options.update(width=max(width, _NARROWEST), height=None)
    lines = console.render_lines(Group(*head, *body), options)[: max(height - 1, 0)]
    keys = console.render_lines(clean(_KEYS[view.mode], "dim"), options)
    blank = [list[Segment]() for _ in range(height - 1 - len(lines))]
    return SegmentLines([*lines, *blank, *keys], new_lines=True)


def _make_table(view: View, clean: Callable[[str], Text], width: int, room: int, *, passed: float) -> Table:
    is_wide = width >= _WIDE
    widths = (10, 6, 24 if is_wide else 14, 5, 6, 8, 7, *((28,) if is_wide else ()))
    table = Table("", box=None, pad_edge=False, padding=(0, 1, 0, 0), expand=True, header_style="bold")
    table.columns[0].width = 1
    for number, name in enumerate(HEADINGS[: len(widths) + 1]):
        is_last = number == len(widths)
        table.add_column(
            name, width=None if is_last else widths[number], ratio=1 if is_last else None, no_wrap=True,
            overflow="crop", justify="right" if name in _NUMBERS else "left",
        )  # fmt: skip
    runs, chosen = view.list_runs(), view.find_chosen()
    first = max(0, runs.index(chosen) - room + 1) if chosen is not None else 0
    for run in runs[first : first + room]:
        cells = format_run(run, view.snapshot.at, passed)
        shown = cells if is_wide else (*cells[:-2], cells[-1] or cells[-2])
        colour = "yellow" if run.status == "waiting" else ""
        style = f"reverse {colour}".strip() if run is chosen else colour
        table.add_row(">" if run is chosen else " ", *map(clean, shown), style=style)
    return table


def _list_head(view: View, where: str, width: int) -> Iterator[tuple[str, str]]:
    shown = view.snapshot
    yield f"swarmkeep top   {where}   {shown.at[11:19]} UTC", "bold"
    yield from ((line, "") for line in _fill_lines([format_counts(shown), *view.rates], width))
    parts = [f"failed in the last hour {shown.failed_last_hour}", f"leases moved {view.moved}"]
    yield from ((line, "") for line in _fill_lines([*parts, *format_server(shown)], width))
    if view.mode == "confirm":
        yield f"{view.question} y/n", "bold yellow"
    elif view.mode == "filter":
        yield f"filter: {view.filter}_", "bold"
    elif view.trouble or view.notice:
        yield view.trouble or view.notice, "bold red" if view.trouble else "yellow"
    else:
        yield f"filter: {view.filter}" if view.filter else "", ""


def _fill_lines(parts: Sequence[str], width: int) -> list[str]:
    """The parts side by side, on as many lines as it takes for none to be cut."""
    lines = [parts[0]]
    for part in parts[1:]:
        longer = f"{lines[-1]}   {part}"
        lines[-1:] = [longer] if cell_len(longer) <= width else [lines[-1], part]
    return lines


def format_run(run: ActiveRun, at: str, passed: float = 0.0) -> tuple[str, ...]:
    """A cell for each heading; `passed` are the seconds since `at`."""
    left = None if run.lease_seconds is None else run.lease_seconds - passed
    return (
        f"{run.status} +{run.queued_runs}" if run.queued_runs else run.status,
        format_age(measure_age(run, at) + passed),
        run.agent,
        str(run.model_calls),
        format_count(run.total_tokens),
        (run.server or "-")[:8],
        "-" if left is None else f"{left:.0f} s" if left > 0 else "expired",
        run.session_id,
        run.title or "",
    )


def format_counts(shown: Snapshot) -> str:
    more = " and more" if shown.is_cut else ""
    return ", ".join(f"{count} {status}" for status, count in shown.counts.items()) + more


def format_server(shown: Snapshot) -> list[str]:
    names = {"streams": "streams", "takeovers": "take-overs", "run_errors": "run errors"}
    return [f"{text} {shown.server[name]}" for name, text in names.items()] if shown.server else []


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


# Work for the view, in a thread of its own, so that the screen never waits for a server.

Change = Callable[[View], None]


class Work(threading.Thread):
    """Reads every `seconds`, and does jobs in between. What comes of it is put into `changes`, for the view."""

    def __init__(self, source: Source, reader: Reader, *, seconds: float, wake: Callable[[], object]) -> None:
        super().__init__(name="top", daemon=True)
        self._source, self._reader, self._seconds, self._wake = source, reader, seconds, wake
        self._open: tuple[str, int] | None = None
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self.changes: SimpleQueue[Change | Exception] = SimpleQueue()

    def run(self) -> None:
        while True:
            try:
                job = self.jobs.get(timeout=self._seconds)
            except Empty:
                job = Work._read
            # An error of a key is shown once, that of the reading until it goes well again.
            if job is None or (job is not Work._read and not self._try(job, "notice", "{}")):
                return
            if not self._try(Work._read, "trouble", "{}; trying again"):
                return

    def _try(self, job: Job, place: str, form: str) -> bool:
        """Do it, and have an error shown in this place. Return False for one that is a mistake of ours."""
        try:
            job(self)
        except Exception as error:
            refused = find_refusal(error)
            if refused is None:
                self._publish(error)
                return False
            gone = "no answer from the server: " if isinstance(error, ConnectionFailed) else ""
            self._publish(lambda view: setattr(view, place, form.format(f"{gone}{refused.sentence}")))
        return True

    def _publish(self, change: Change | Exception) -> None:
        self.changes.put(change)
        self._wake()

    def _note(self, text: str) -> None:
        self._publish(lambda view: setattr(view, "notice", text))

    def _read(self) -> None:
        snapshot, rates = self._reader.read()
        taken = time.monotonic()
        self._publish(lambda view: view.show(snapshot, taken, rates))
        session_id, after = self._open or ("", 0)
        if found := [*self._source.events(session_id, after=after)] if session_id else []:
            self._open = session_id, found[-1].seq
            lines = [format_event_line(event, clock_only=True) for event in found]
            self._publish(lambda view: view.add_lines(session_id, lines))

    def open(self, run: ActiveRun | None) -> None:
        """From now on read the events of its session, too."""
        self._open = None if run is None else (run.session_id, max(0, run.seq - EVENTS_AT_FIRST))

    def cancel(self, run: ActiveRun) -> None:
        self._source.open_on_server(run.session_id).cancel(run.id)
        self._note(f"cancelled the run in {run.session_id}")

    def find_call(self, run: ActiveRun, decision: Decision) -> None:
        """Ask about the first call that waits for a decision here."""
        pending = self._source.open_on_server(run.session_id).get_run(run.id).pending
        call = next((one for one in pending if one.reason == "approval"), None)
        if call is not None:
            question = f"{decision} {format_call(call.name, call.arguments)}?"
            shown: Approval = {"tool_call_id": call.tool_call_id, "decision": decision}
            if call.arguments_digest is not None:
                shown["arguments_digest"] = call.arguments_digest
            decide: Job = lambda work: work.decide(run, shown)  # noqa: E731
            self._publish(lambda view: view.ask(question, decide) if view.mode == "list" else None)
        elif elsewhere := [str(one.session_id) for one in pending if one.reason == "session"]:
            self._note(f"the decision has to be made in session {', and in session '.join(elsewhere)}")
        else:
            self._note("no call of this run waits for an approval")

    def decide(self, run: ActiveRun, approval: Approval) -> None:
        items = self._source.open_on_server(run.session_id).resume_stream(run.id, approvals=[approval])
        # It goes on by itself: its first item says that the decision is recorded.
        next(items, None)
        items.close()
        done = "approved" if approval["decision"] == "approve" else "denied"
        self._note(f"{done} the call in {run.session_id}")


# The terminal: draw, wait for keys, and draw again.

# How long what begins like the code of a key may stay unfinished before it is the Escape key.
_ESCAPE_SECONDS = 0.1
_REDRAW_SECONDS = 0.5
_END_SECONDS = 1.0
_NAMED_KEYS = {"up", "down", "pageup", "pagedown", *_ENTER, "c-h", "escape", "c-c", "c-d"}


def watch(source: Source, url: str | None, *, seconds: float) -> None:
    """Show it until `q`. Raises KeyboardInterrupt for Ctrl-C; the terminal is as it was by then."""
    reader = Reader(source, url)
    # What is the matter at once is said as by every command.
    snapshot, rates = reader.read()
    view = View(snapshot, time.monotonic(), rates)
    # Exported once, these would be the size for ever.
    sizeless = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    console = make_console(_environ=sizeless)
    terminal = create_input()
    woken, waker = os.pipe()
    work = Work(source, reader, seconds=seconds, wake=lambda: os.write(waker, b"."))
    live = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    with exit_on_signals(), terminal.raw_mode(), live, suppress(Quit):
        work.start()
        try:
            _run(view, work, live, lambda: _read_keys(terminal, woken), url or "the database")
        finally:
            work.jobs.put(None)
            work.join(_END_SECONDS)


def _run(view: View, work: Work, live: Live, read_keys: Callable[[], list[str]], where: str) -> None:
    while True:
        while not work.changes.empty():
            change = work.changes.get()
            if isinstance(change, Exception):
                raise change
            change(view)
        # The size is asked for each time: terminals change it.
        live.update(draw(view, where, live.console, time.monotonic()), refresh=True)
        for key in read_keys():
            if key == "c-c":
                raise KeyboardInterrupt
            if key == "c-d":
                raise Quit
            if (job := view.press(key)) is not None:
                work.jobs.put(job)


def _read_keys(terminal: Input, woken: int) -> list[str]:
    """Wait for keys, or until there is something new to draw. Raises EOFError once the terminal is gone."""
    ready = select.select((terminal.fileno(), woken), (), (), _REDRAW_SECONDS)[0]
    if woken in ready:
        os.read(woken, 4096)
    if terminal.fileno() not in ready:
        return []
    pressed = terminal.read_keys()
    if terminal.closed:
        raise EOFError
    if not select.select((terminal.fileno(),), (), (), _ESCAPE_SECONDS)[0]:
        pressed += terminal.flush_keys()
    keys = (str(one.key.value) if isinstance(one.key, Keys) else one.key for one in pressed)
    return [key for key in keys if len(key) == 1 or key in _NAMED_KEYS]


# `swarmkeep top`: the runs that go on, wait or are queued, as they do.

commands = Commands()


@commands.add("""
    swarmkeep top --url http://127.0.0.1:8000
    swarmkeep top --database-url postgresql://db/swarmkeep --tenant acme
    swarmkeep top --once
    swarmkeep top --once --json
""")
def top(
    where: SourceOptions,
    once: Annotated[bool, typer.Option("--once", help="Print the current state, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: print JSON.")] = False,
    seconds: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.2, max=3600, help="How often it is updated.")
    ] = 2.0,
) -> None:
    """Watch the runs that are active, waiting or queued, on a server or on all servers of a database.

    With keys you look into a session, cancel a run, and approve or deny a call.
    """
    if as_json and not once:
        raise typer.BadParameter("--json needs --once", param_hint="'--json'")
    if not once and not (is_interactive() and has_cursor(sys.stdout)):
        raise Refused("top needs a terminal; --once prints the current state")
    with open_source(where) as source:
        # The heavy part is loaded once there is something to show.

        if once:
            shown, _ = Reader(source, where.server_url).read()
            put_json(shown.view()) if as_json else _put(shown)
            return
        try:
            watch(source, where.server_url, seconds=seconds)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def _put(shown: Snapshot) -> None:

    today = shown.today
    put(format_counts(shown))
    turns, tokens = pluralize(int(today["model_calls"] or 0), "turn"), format_count(today["total_tokens"] or 0)
    put(
        f"today {turns}, {tokens} tokens; "
        f"model {format_seconds(today['model_seconds'])}, tool {format_seconds(today['tool_seconds'])}; "
        f"failed in the last hour {shown.failed_last_hour}"
    )
    if shown.server is not None:
        put(", ".join(format_server(shown)))
    if shown.runs:
        put_table(HEADINGS, [format_run(run, shown.at) for run in shown.runs])
