"""`swarmkeep top`: the runs that are active, wait or are queued, as they go on; keys look into them and decide."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer
from msgspec.structs import asdict
from prompt_toolkit.input import Input
from prompt_toolkit.input.defaults import create_input
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.segment import Segment, SegmentLines
from rich.table import Table
from rich.text import Text

from swarmkeep.cli.opening import open_source
from swarmkeep.cli.options import Commands
from swarmkeep.cli.render import format_event_line, format_seconds
from swarmkeep.cli.sources import SourceOptions, make_approval
from swarmkeep.cli.terminal import (
    Refused,
    exit_on_signals,
    find_refusal,
    has_cursor,
    is_interactive,
    make_console,
    put,
    put_json,
    put_table,
)
from swarmkeep.events.codec import parse_timestamp, to_timestamp
from swarmkeep.events.records import UsageQuery
from swarmkeep.events.wording import escape_line, format_call, pluralize
from swarmkeep_client import ActiveRun, Approval, ConnectionFailed, UsageRow

if TYPE_CHECKING:
    from swarmkeep.cli.opening import Source

# More than a person looks through, and what one reading costs at most.
MOST_RUNS, MOST_FAILURES, EVENTS_AT_FIRST, MOST_LINES = 500, 100, 200, 2000
FAILURES_EVERY_SECONDS, RATES_OVER_SECONDS = 15.0, 60.0


class Snapshot(NamedTuple):
    """The runs, those that wait first, then the oldest. `is_cut`: there are more than are listed.

    `today` are the totals of this day's calls (UTC) over all servers, with the mean seconds of a call, and `rates` a
    text about those of the last minute. `failed_last_hour` are sessions whose last run has failed since. `server` is
    what the one that was asked counts, of all tenants and since its start; None of a database, and where it is silent.
    """

    at: str
    counts: dict[str, int]
    runs: list[ActiveRun]
    is_cut: bool
    today: dict[str, int | float | None]
    failed_last_hour: int
    server: dict[str, int] | None
    rates: Sequence[str] = ()

    def view(self) -> dict[str, object]:
        """Return it as JSON shows it."""
        runs = [{**asdict(run), "age_seconds": self.measure_age(run)} for run in self.runs]
        return {name: value for name, value in self._asdict().items() if name != "rates"} | {"runs": runs}

    def measure_age(self, run: ActiveRun) -> float:
        now, since = parse_timestamp(self.at), parse_timestamp(run.since)
        return 0.0 if now is None or since is None else round(max(0.0, (now - since).total_seconds()), 1)


Change = Callable[["View"], object]
Job = Callable[["Work"], Change]
Decision = Literal["approve", "deny"]
_DECIDED: dict[Decision, str] = {"approve": "approved", "deny": "denied"}


class Work:
    """Asks the source for what is shown, and does what keys ask for. What comes of that is a change of the view."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._sums: deque[tuple[float, UsageRow]] = deque()
        self._failed, self._counted = 0, -FAILURES_EVERY_SECONDS

    def take_snapshot(self) -> Snapshot:
        now, taken = datetime.now(UTC), time.monotonic()
        day = now.date().isoformat()
        usage = next(iter(self._source.usage(UsageQuery(by=(), first_day=day, last_day=day))))
        (waiting, is_cut), (running, is_cut_too) = self._list("waiting"), self._list("running")
        runs = [*waiting, *running]
        if taken - self._counted >= FAILURES_EVERY_SECONDS:
            # Now and then only: of many sessions it takes a while.
            hour_ago = to_timestamp(now - timedelta(hours=1))
            failed = self._source.sessions(last_run="failed", order="activity", active_after=hour_ago, children=True)
            self._failed, self._counted = sum(1 for _ in islice(failed, MOST_FAILURES)), taken
        queued = sum(run.queued_runs for run in runs)
        return Snapshot(
            at=to_timestamp(now),
            counts={"running": len(running), "waiting": len(waiting), "queued": queued},
            runs=runs,
            is_cut=is_cut or is_cut_too,
            today={
                **{name: getattr(usage, name) for name in ("model_calls", "tool_calls", "total_tokens")},
                "model_seconds": _mean_seconds(usage.model_ms, usage.model_calls),
                "tool_seconds": _mean_seconds(usage.tool_ms, usage.tool_calls),
            },
            failed_last_hour=self._failed,
            server=self._source.read_metrics(),
            rates=describe_rates(self._sums, taken, usage),
        )

    def _list(self, status: Literal["running", "waiting"]) -> tuple[list[ActiveRun], bool]:
        found = self._source.active_runs(status)
        runs = sorted(islice(found, MOST_RUNS), key=lambda run: (run.since, run.id))
        return runs, next(found, None) is not None

    def read(self, opened: OpenSession | None) -> Change:
        snapshot = self.take_snapshot()
        if opened is None:
            return lambda view: view.show(snapshot)
        events = [*self._source.events(opened.run.session_id, after=opened.seq)]
        opened.seq = events[-1].seq if events else opened.seq
        lines = [format_event_line(event, clock_only=True) for event in events]
        return lambda view: view.show(snapshot, opened, lines)

    def cancel(self, run: ActiveRun) -> Change:
        self._source.open_on_server(run.session_id).cancel(run.id)
        return notify(f"cancelled the run in {run.session_id}")

    def find_call(self, run: ActiveRun, decision: Decision) -> Change:
        """Ask about the first call that waits for a decision here."""
        pending = self._source.open_on_server(run.session_id).get_run(run.id).pending
        call = next((one for one in pending if one.reason == "approval"), None)
        if call is not None:
            question, approval = format_call(call.name, call.arguments), make_approval(call, decision)
            return lambda view: view.ask(f"{decision} {question}?", lambda work: work.decide(run, approval))
        elsewhere = ", and in session ".join(str(one.session_id) for one in pending if one.reason == "session")
        here = "this run does not wait for a decision"
        return notify(f"the decision has to be made in session {elsewhere}" if elsewhere else here)

    def decide(self, run: ActiveRun, approval: Approval) -> Change:
        items = self._source.open_on_server(run.session_id).resume_stream(run.id, approvals=[approval])
        # It goes on by itself: its first item says that the decision is recorded.
        next(items, None)
        items.close()
        return notify(f"{_DECIDED[approval['decision']]} the call in {run.session_id}")


def notify(text: str) -> Change:
    return lambda view: setattr(view, "notice", text)


def describe_rates(sums: deque[tuple[float, UsageRow]], taken: float, now: UsageRow) -> Sequence[str]:
    """Add the day's sums to those of the last minute; describe turns, tokens and the time of a call between them."""
    if sums and sums[-1][1].model_calls > now.model_calls:
        # A new day has begun, or sessions were deleted: the sums begin again.
        sums.clear()
    sums.append((taken, now))
    # One that is older stays, so that the whole minute lies between it and the last.
    while len(sums) > 2 and taken - sums[1][0] >= RATES_OVER_SECONDS:
        sums.popleft()
    if len(sums) < 2:
        return ()
    (began, was), turns = sums[0], now.model_calls - sums[0][1].model_calls
    minutes, tokens = max(taken - began, 0.001) / 60, max(now.total_tokens - was.total_tokens, 0)
    model = _mean_seconds(now.model_ms - was.model_ms, turns)
    tool = _mean_seconds(now.tool_ms - was.tool_ms, now.tool_calls - was.tool_calls)
    return f"{turns / minutes:.0f} turns/min, {format_count(tokens / minutes)} tokens/min", format_means(model, tool)


def _mean_seconds(milliseconds: float, calls: int) -> float | None:
    return round(milliseconds / calls / 1000, 3) if calls > 0 else None


def format_means(model: float | None, tool: float | None) -> str:
    return f"model {format_seconds(model)}, tool {format_seconds(tool)}"


def format_run(run: ActiveRun, shown: Snapshot) -> tuple[str, ...]:
    """A cell for each column."""
    left = run.lease_seconds
    status = f"{run.status} +{run.queued_runs}" if run.queued_runs else run.status
    lease = "-" if left is None else f"{left:.0f} s" if left > 0 else "expired"
    figures = str(run.model_calls), format_count(run.total_tokens), (run.server or "-")[:8], lease
    return status, format_age(shown.measure_age(run)), run.agent, *figures, run.session_id, run.title or ""


def format_counts(shown: Snapshot) -> str:
    more = " and more" if shown.is_cut else ""
    return ", ".join(f"{count} {status}" for status, count in shown.counts.items()) + more


def format_server(shown: Snapshot) -> list[str]:
    names = {"streams": "streams", "takeovers": "take-overs", "run_errors": "run errors"}
    return [f"{text} {shown.server[name]}" for name, text in names.items()] if shown.server else []


def format_age(seconds: float) -> str:
    """`9s`, `12m`, `3h`, `2d`: how many of the largest unit have passed."""
    size, unit = next(
        one for one in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")) if seconds >= one[0] or one[0] < 2
    )
    return f"{seconds // size:.0f}{unit}"


def format_count(count: float) -> str:
    size, unit = next((one for one in ((10**9, "G"), (10**6, "M")) if count >= one[0]), (1000, "k"))
    return f"{count / size:.1f}{unit}" if count >= 10_000 else f"{count:.0f}"


# What a person looks at, as keys change it. Nothing is drawn here, and nothing is asked.

_STEPS = {"up": -1, "down": 1, "k": -1, "j": 1, "pageup": -10, "pagedown": 10}
_ENTER = ("c-m", "c-j")


@dataclass
class OpenSession:
    """A session that is looked into: lines of its events up to `seq`; `scrolled` of them are below the screen."""

    run: ActiveRun
    seq: int
    lines: list[str] = field(default_factory=list)
    scrolled: int = 0

    def scroll(self, step: int) -> None:
        self.scrolled = min(max(self.scrolled - step, 0), max(len(self.lines) - 1, 0))


@dataclass
class View:
    snapshot: Snapshot
    selected: str | None = None
    filter: str = ""
    is_typing: bool = False
    asked: tuple[str, Job] | None = None
    opened: OpenSession | None = None
    notice: str = ""
    trouble: str = ""
    moved: int = 0
    """How many leases have changed hands since it is watched."""

    @property
    def mode(self) -> Literal["list", "filter", "confirm", "events"]:
        return "confirm" if self.asked else "events" if self.opened else "filter" if self.is_typing else "list"

    def list_runs(self) -> list[ActiveRun]:
        """List those that the filter leaves."""
        wanted = self.filter.casefold()
        texts = ((run, (run.session_id, run.title, run.agent, run.status, run.server)) for run in self.snapshot.runs)
        return [run for run, text in texts if wanted in " ".join(part or "" for part in text).casefold()]

    def find_chosen(self) -> ActiveRun | None:
        """The run that keys are about: the one that was selected, as long as it is there, or else the first."""
        runs = self.list_runs()
        return next((run for run in runs if run.id == self.selected), runs[0] if runs else None)

    def show(self, snapshot: Snapshot, opened: OpenSession | None = None, lines: Sequence[str] = ()) -> None:
        servers = {run.id: run.server for run in self.snapshot.runs if run.server}
        self.moved += sum(1 for run in snapshot.runs if run.server and servers.get(run.id, run.server) != run.server)
        self.snapshot, self.trouble = snapshot, ""
        if opened is not None:
            opened.lines = [*opened.lines, *lines][-MOST_LINES:]
            # What is looked at stays where it is.
            opened.scroll(-len(lines) if opened.scrolled else 0)

    def fail(self, error: Exception, *, is_reading: bool) -> None:
        """Show the error of a key once, that of the reading until it goes well again. Raise one that is our mistake."""
        if (refused := find_refusal(error)) is None:
            raise error
        text = f"{'no answer from the server: ' * isinstance(error, ConnectionFailed)}{refused.sentence}"
        self.notice, self.trouble = (self.notice, f"{text}; trying again") if is_reading else (text, self.trouble)

    def ask(self, question: str, job: Job) -> None:
        """Ask whether to do it, unless the person has gone on to something else."""
        self.asked = (question, job) if self.mode == "list" else self.asked

    def press(self, key: str) -> Job | None:
        """Return the job to be done about a key; most change what is looked at only. Raises Exit, KeyboardInterrupt."""
        if key == "c-c":
            raise KeyboardInterrupt
        if key == "c-d" or (key == "q" and self.mode == "list"):
            raise typer.Exit
        asked, self.asked, self.notice = self.asked, None, ""
        if asked is not None:
            self.notice = "" if key == "y" else "nothing was done"
            return asked[1] if key == "y" else None
        if self.opened is not None:
            self.opened.scroll(_STEPS.get(key, 0))
            self.opened = None if key in ("q", "escape") else self.opened
        elif key == "escape":
            self.is_typing, self.filter = False, ""
        elif self.is_typing:
            added = key if len(key) == 1 and key.isprintable() else ""
            self.filter = self.filter[:-1] if key == "c-h" else self.filter + added
            self.is_typing = key not in _ENTER
        elif key == "/":
            self.is_typing = True
        elif run := self.find_chosen():
            return self._press_about(run, key)
        return None

    def _press_about(self, run: ActiveRun, key: str) -> Job | None:
        if key in _STEPS:
            runs = self.list_runs()
            self.selected = runs[min(max(runs.index(run) + _STEPS[key], 0), len(runs) - 1)].id
        elif key in _ENTER:
            opened = self.opened = OpenSession(run, max(0, run.seq - EVENTS_AT_FIRST))
            return lambda work: work.read(opened)
        elif key == "c":
            self.ask(f"cancel the run in {run.session_id}?", lambda work: work.cancel(run))
        elif key in ("a", "d"):
            return lambda work: work.find_call(run, "approve" if key == "a" else "deny")
        return None


# The screen.

_TALL, _WIDE = 12, 110
COLUMNS = {"STATUS": 10, "AGE": 6, "AGENT": 14, "TURNS": 5, "TOKENS": 6, "SERVER": 8, "LEASE": 7}
_KEYS = {
    "list": "up/down choose  Enter events  c cancel  a approve  d deny  / filter  q quit",
    "filter": "type to filter   Enter keep   Esc clear",
    "confirm": "y yes   any other key no",
    "events": "up/down scroll   q or Esc back",
}
_CUT = "…and more: the session's events have all of it (n, then Enter)"


def draw(view: View, where: str, console: Console) -> SegmentLines:
    """The whole screen: what is the case, the runs or the events of one, and the keys in the last line."""
    width, height = console.size
    shown = view.snapshot
    head: list[RenderableType] = [clean(f"swarmkeep top   {where}   {shown.at[11:19]} UTC", "bold")]
    # On a low screen, what is chosen and asked counts more.
    if height >= _TALL:
        changes = (f"failed in the last hour {shown.failed_last_hour}", f"leases moved {view.moved}")
        for parts in ((format_counts(shown), *shown.rates), (*changes, *format_server(shown))):
            head.append(Columns(map(clean, parts), padding=(0, 3)))
    if view.asked:
        head.append(clean(f"{view.asked[0]} y/n", "bold yellow", wraps=True))
    elif view.trouble or view.notice:
        head.append(clean(view.trouble or view.notice, "bold red" if view.trouble else "yellow"))
    else:
        head.append(clean(f"filter: {view.filter}{'_' * view.is_typing}" if view.filter or view.is_typing else ""))
    lines = console.render_lines(Group(*head))
    if view.asked and len(lines) >= height:
        # No user should agree to an unseen text.
        lines[max(height - 2, 0) :] = console.render_lines(clean(_CUT, "bold red"))
    room = max(height - len(lines) - 2, 1)
    lines += console.render_lines(_list_events(view.opened, room) if view.opened else _list_runs(view, width, room))
    keys = console.render_lines(clean(_KEYS[view.mode], "dim"))
    lines = [*Segment.set_shape(lines[: height - 1], width, height - 1), *keys]
    return SegmentLines(lines, new_lines=True)


def clean(text: str, style: str = "", *, wraps: bool = False) -> Text:
    """Text that this terminal can show."""
    shown = escape_line(text).encode(sys.stdout.encoding, "replace").decode(sys.stdout.encoding)
    return Text(shown, style, no_wrap=not wraps, overflow="fold" if wraps else "crop")


def _list_events(opened: OpenSession, room: int) -> Group:
    end = max(len(opened.lines) - opened.scrolled, 1)
    name = clean(f"{opened.run.session_id}  {opened.run.title or ''}", "bold")
    return Group(name, *map(clean, opened.lines[max(end - room, 0) : end]))


def _list_runs(view: View, width: int, room: int) -> RenderableType:
    """The chosen run and those around it. A session's title stands before its id: it says more where one is cut."""
    table = Table("", box=None, pad_edge=False, padding=(0, 1, 0, 0), expand=True, header_style="bold")
    for name, size in COLUMNS.items():
        side: Literal["left", "right"] = "right" if name in ("AGE", "TURNS", "TOKENS") else "left"
        table.add_column(name, width=24 if name == "AGENT" and width >= _WIDE else size, justify=side)
    table.add_column("SESSION", ratio=1)
    runs, chosen = view.list_runs(), view.find_chosen()
    if chosen is None:
        why = "matches the filter" if view.filter else "is active, waiting or queued"
        return Group(table, clean(f"  no run {why}", "dim"))
    first = max(0, runs.index(chosen) - room + 1)
    for run in runs[first : first + room]:
        *cells, session_id, title = format_run(run, view.snapshot)
        style = f"{'reverse ' * (run is chosen)}{'yellow' * (run.status == 'waiting')}".strip()
        cells = [">" if run is chosen else " ", *cells, f"{title}  {session_id}".strip()]
        table.add_row(*map(clean, cells), style=style)
    return table


# The terminal: draw, wait for keys, and draw again, while a thread asks the source.

# How long what begins like the code of a key may stay unfinished before it is the Escape key.
_ESCAPE_SECONDS = 0.1
_REDRAW_SECONDS = 0.25
_END_SECONDS = 1.0


def watch(source: Source, where: str, seconds: float) -> None:
    """Show it until `q`, which raises Exit; the terminal is as it was by then."""
    work = Work(source)
    # What is the matter at once is said as by every command.
    view = View(work.take_snapshot())
    jobs, changes = SimpleQueue[Job | None](), SimpleQueue[Change]()
    # Exported once, these would be the size for ever.
    console = make_console(_environ={name: os.environ[name] for name in os.environ if name not in ("COLUMNS", "LINES")})
    live = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    worker = threading.Thread(target=_keep_asking, args=(work, view, seconds, jobs, changes), daemon=True)
    keyboard = create_input()
    with exit_on_signals(), keyboard.raw_mode(), live:
        worker.start()
        try:
            drawn: object = None
            while True:
                while not changes.empty():
                    changes.get()(view)
                    drawn = None
                # Terminals change their size, and do not say so.
                if drawn != console.size:
                    live.update(draw(view, where, console), refresh=True)
                    drawn = console.size
                for key in _read_keys(keyboard):
                    drawn = None
                    if (job := view.press(key)) is not None:
                        jobs.put(job)
        finally:
            jobs.put(None)
            worker.join(_END_SECONDS)


def _keep_asking(
    work: Work, view: View, seconds: float, jobs: SimpleQueue[Job | None], changes: SimpleQueue[Change]
) -> None:
    """Read every `seconds`, and do in between what keys ask for. A job that is None ends it."""
    read: Job = lambda work: work.read(view.opened)  # noqa: E731
    while True:
        job: Job | None = read
        with suppress(Empty):
            job = jobs.get(timeout=seconds)
        if job is None:
            return
        for one in dict.fromkeys((job, read)):
            try:
                changes.put(one(work))
            except Exception as error:
                changes.put(partial(View.fail, error=error, is_reading=one is read))


def _read_keys(keyboard: Input) -> list[str]:
    """Wait a moment for keys. Raises EOFError once the terminal is gone."""
    if not select.select((keyboard.fileno(),), (), (), _REDRAW_SECONDS)[0]:
        return []
    pressed = keyboard.read_keys()
    if keyboard.closed:
        raise EOFError
    if not select.select((keyboard.fileno(),), (), (), _ESCAPE_SECONDS)[0]:
        pressed += keyboard.flush_keys()
    return [str(getattr(one.key, "value", one.key)) for one in pressed]


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
        if not once:
            watch(source, where.server_url or "the database", seconds)
        shown = Work(source).take_snapshot()
    put_json(shown.view()) if as_json else _put(shown)


def _put(shown: Snapshot) -> None:
    put(format_counts(shown))
    turns, tokens = pluralize(int(shown.today["model_calls"] or 0), "turn"), shown.today["total_tokens"] or 0
    means = format_means(shown.today["model_seconds"], shown.today["tool_seconds"])
    failed = f"failed in the last hour {shown.failed_last_hour}"
    put(f"today {turns}, {format_count(tokens)} tokens; {means}; {failed}")
    if shown.server is not None:
        put(", ".join(format_server(shown)))
    if shown.runs:
        put_table((*COLUMNS, "SESSION", "TITLE"), [format_run(run, shown) for run in shown.runs])
