"""`swarmkeep top`: the runs that are active, wait or are queued, as they go on; keys look into them and decide."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from prompt_toolkit.input import Input
from prompt_toolkit.input.defaults import create_input
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.segment import Segment, SegmentLines
from rich.table import Table
from rich.text import Text

from swarmkeep.cli import terminal
from swarmkeep.cli.activity import COLUMNS, Figures, Snapshot, put_snapshot
from swarmkeep.cli.opening import open_source
from swarmkeep.cli.options import Commands
from swarmkeep.cli.render import format_event_line
from swarmkeep.cli.sources import SourceOptions, make_approval
from swarmkeep.events.wording import escape_line, format_call
from swarmkeep_client import ActiveRun, ConnectionFailed

if TYPE_CHECKING:
    from swarmkeep.cli.opening import Source

EVENTS_AT_FIRST, MOST_LINES = 200, 2000

# What a person looks at. Keys change it, and so does the thread that asks the source; nothing is drawn here.

Job = Callable[["Source"], None]
_STEPS = {"up": -1, "down": 1, "k": -1, "j": 1, "pageup": -10, "pagedown": 10}
_ENTER = ("c-m", "c-j")


@dataclass
class OpenSession:
    """A session that is looked into: lines of its events up to `seq`; `scrolled` of them are below the screen."""

    run: ActiveRun
    seq: int
    lines: list[str] = field(default_factory=list)
    scrolled: int = 0

    def read(self, source: Source) -> None:
        events = [*source.events(self.run.session_id, after=self.seq)]
        self.seq = events[-1].seq if events else self.seq
        self.lines = [*self.lines, *(format_event_line(event, clock_only=True) for event in events)][-MOST_LINES:]
        # What is looked at stays where it is.
        self.scroll(-len(events) if self.scrolled else 0)

    def scroll(self, step: int) -> None:
        self.scrolled = min(max(self.scrolled - step, 0), max(len(self.lines) - 1, 0))


@dataclass
class View:
    """Each thread assigns whole values and reads them once, so that they need no lock."""

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
    bug: Exception | None = None
    """An error of the thread that is our mistake."""

    def list_runs(self) -> list[ActiveRun]:
        """List those that the filter leaves."""
        texts = ((run, (run.session_id, run.title, run.agent, run.status, run.server)) for run in self.snapshot.runs)
        return [run for run, text in texts if self.filter.casefold() in " ".join(map(str, text)).casefold()]

    def find_chosen(self) -> ActiveRun | None:
        """The run that keys are about: the one that was selected, as long as it is there, or else the first."""
        runs = self.list_runs()
        return next((run for run in runs if run.id == self.selected), runs[0] if runs else None)

    def show(self, snapshot: Snapshot) -> None:
        servers = {run.id: run.server for run in self.snapshot.runs if run.server}
        self.moved += sum(1 for run in snapshot.runs if run.server and servers.get(run.id, run.server) != run.server)
        self.snapshot = snapshot

    def fail(self, error: Exception, *, is_reading: bool) -> None:
        """Show the error of a key once, that of the reading until it goes well again. Keep one that is our mistake."""
        if (refused := terminal.find_refusal(error)) is None:
            self.bug = error
            return
        text = f"{'no answer from the server: ' * isinstance(error, ConnectionFailed)}{refused.sentence}"
        if is_reading:
            self.trouble = f"{text}; trying again"
        else:
            self.notice = text

    def name_keys(self) -> str:
        """What the keys do now."""
        if self.asked:
            return "y yes   any other key no"
        if self.opened:
            return "up/down scroll   q or Esc back"
        if self.is_typing:
            return "type to filter   Enter keep   Esc clear"
        return "up/down choose  Enter events  c cancel  a approve  d deny  / filter  q quit"

    def press(self, key: str) -> Job | None:
        """Return the job to be done about a key; most change what is looked at only. Raises Exit, KeyboardInterrupt."""
        if key == "c-c":
            raise KeyboardInterrupt
        asked, self.asked, self.notice = self.asked, None, ""
        if key == "c-d" or (key == "q" and not (asked or self.opened or self.is_typing)):
            raise typer.Exit
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
            self.opened = OpenSession(run, max(0, run.seq - EVENTS_AT_FIRST))
            return self.opened.read
        elif key == "c":
            self.asked = f"cancel the run in {run.session_id}?", lambda source: self._cancel(source, run)
        elif key in ("a", "d"):
            return lambda source: self._ask_about_call(source, run, "approve" if key == "a" else "deny")
        return None

    def _cancel(self, source: Source, run: ActiveRun) -> None:
        source.open_on_server(run.session_id).cancel(run.id)
        self.notice = f"cancelled the run in {run.session_id}"

    def _ask_about_call(self, source: Source, run: ActiveRun, decision: Literal["approve", "deny"]) -> None:
        """Ask about the first call that waits for a decision here, unless the person has gone on to something else."""
        pending = source.open_on_server(run.session_id).get_run(run.id).pending
        call = next((one for one in pending if one.reason == "approval"), None)
        elsewhere = ", and in session ".join(str(one.session_id) for one in pending if one.reason == "session")
        if call is None:
            here = "this run does not wait for a decision"
            self.notice = f"the decision has to be made in session {elsewhere}" if elsewhere else here
            return
        approval = make_approval(call, decision)

        def decide(source: Source) -> None:
            items = source.open_on_server(run.session_id).resume_stream(run.id, approvals=[approval])
            # It goes on by itself: its first item says that the decision is recorded.
            next(items, None)
            items.close()
            self.notice = f"{'approved' if decision == 'approve' else 'denied'} the call in {run.session_id}"

        if not (self.opened or self.is_typing):
            self.asked = f"{decision} {format_call(call.name, call.arguments)}?", decide


# The screen.

_TALL, _WIDE = 12, 110
_CUT = "…and more: the session's events have all of it (n, then Enter)"


def draw(view: View, where: str, console: Console) -> SegmentLines:
    """The whole screen: what is the case, the runs or the events of one, and the keys in the last line."""
    width, height = console.size
    opened = view.opened
    lines = console.render_lines(Group(*_list_head(view, where, is_tall=height >= _TALL)))
    if view.asked and len(lines) >= height:
        # No user should agree to an unseen text.
        lines[max(height - 2, 0) :] = console.render_lines(clean(_CUT, "bold red"))
    room = max(height - len(lines) - 2, 1)
    lines += console.render_lines(_list_events(opened, room) if opened else _list_runs(view, width, room))
    lines = Segment.set_shape(lines[: height - 1], width, height - 1)
    keys = console.render_lines(clean(view.name_keys(), "dim"))
    return SegmentLines([*lines, *keys], new_lines=True)


def _list_head(view: View, where: str, *, is_tall: bool) -> Iterator[RenderableType]:
    shown = view.snapshot
    yield clean(f"swarmkeep top   {where}   {shown.at[11:19]} UTC", "bold")
    # On a low screen, what is chosen and asked counts more.
    if is_tall:
        changes = (f"failed in the last hour {shown.failed_last_hour}", f"leases moved {view.moved}")
        for parts in ((shown.list_counts(), *shown.rates), (*changes, *shown.list_server())):
            yield Columns(map(clean, parts), padding=(0, 3))
    if view.asked:
        yield clean(f"{view.asked[0]} y/n", "bold yellow", wraps=True)
    elif view.trouble or view.notice:
        yield clean(view.trouble or view.notice, "bold red" if view.trouble else "yellow")
    else:
        yield clean(f"filter: {view.filter}{'_' * view.is_typing}" if view.filter or view.is_typing else "")


def clean(text: str, style: str = "", *, wraps: bool = False) -> Text:
    """Text that this terminal can show."""
    shown = escape_line(text).encode(sys.stdout.encoding, "replace").decode(sys.stdout.encoding)
    return Text(shown, style, no_wrap=not wraps, overflow="fold" if wraps else "crop")


def _list_events(opened: OpenSession, room: int) -> Group:
    lines, name = opened.lines, f"{opened.run.session_id}  {opened.run.title or ''}"
    end = max(len(lines) - opened.scrolled, 1)
    return Group(clean(name, "bold"), *map(clean, lines[max(end - room, 0) : end]))


def _list_runs(view: View, width: int, room: int) -> RenderableType:
    """The chosen run and those around it. A session's title stands before its id: it says more where one is cut."""
    table = Table("", box=None, pad_edge=False, padding=(0, 1, 0, 0), expand=True, header_style="bold")
    for name, column in COLUMNS.items():
        size = 24 if name == "AGENT" and width >= _WIDE else column.width
        table.add_column(name, width=size, justify=column.side)
    table.add_column("SESSION", ratio=1)
    shown, runs, chosen = view.snapshot, view.list_runs(), view.find_chosen()
    if chosen is None:
        why = "matches the filter" if view.filter else "is active, waiting or queued"
        return Group(table, clean(f"  no run {why}", "dim"))
    first = max(0, runs.index(chosen) - room + 1)
    for run in runs[first : first + room]:
        style = f"{'reverse ' * (run is chosen)}{'yellow' * (run.status == 'waiting')}".strip()
        cells = [column.cell(run, shown) for column in COLUMNS.values()]
        cells = [">" if run is chosen else " ", *cells, f"{run.title or ''}  {run.session_id}".strip()]
        table.add_row(*map(clean, cells), style=style)
    return table


# The terminal: draw, wait for keys, and draw again, while a thread asks the source.

# How long what begins like the code of a key may stay unfinished before it is the Escape key.
_ESCAPE_SECONDS = 0.1
_REDRAW_SECONDS = 0.25
_END_SECONDS = 1.0


def watch(source: Source, where: str, seconds: float) -> None:
    """Show it until `q`, which raises Exit; the terminal is as it was by then."""
    figures = Figures(source)
    # What is the matter at once is said as by every command.
    view, jobs = View(figures.take_snapshot()), SimpleQueue[Job | None]()
    # Exported once, these would be the size for ever.
    environment = {name: os.environ[name] for name in os.environ if name not in ("COLUMNS", "LINES")}
    console = terminal.make_console(_environ=environment)
    live = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    worker = threading.Thread(target=_keep_asking, args=(source, figures, view, seconds, jobs), daemon=True)
    keyboard = create_input()
    with terminal.exit_on_signals(), keyboard.raw_mode(), live:
        worker.start()
        try:
            while view.bug is None:
                live.update(draw(view, where, console), refresh=True)
                for key in _read_keys(keyboard):
                    if (job := view.press(key)) is not None:
                        jobs.put(job)
            raise view.bug
        finally:
            jobs.put(None)
            worker.join(_END_SECONDS)


def _keep_asking(source: Source, figures: Figures, view: View, seconds: float, jobs: SimpleQueue[Job | None]) -> None:
    """Read every `seconds`, and do in between what keys ask for. A job that is None ends it."""

    def read(source: Source) -> None:
        view.show(figures.take_snapshot())
        if (opened := view.opened) is not None:
            opened.read(source)
        view.trouble = ""

    while True:
        job: Job | None = read
        with suppress(Empty):
            job = jobs.get(timeout=seconds)
        if job is None:
            return
        for one in dict.fromkeys((job, read)):
            try:
                one(source)
            except Exception as error:
                view.fail(error, is_reading=one is read)


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
    if not once and not (terminal.is_interactive() and terminal.has_cursor(sys.stdout)):
        raise terminal.Refused("top needs a terminal; --once prints the current state")
    with open_source(where) as source:
        if not once:
            watch(source, where.server_url or "the database", seconds)
        shown = Figures(source).take_snapshot()
    terminal.put_json(shown.view()) if as_json else put_snapshot(shown)
