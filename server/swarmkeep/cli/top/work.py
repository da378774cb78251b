"""What is asked of the source: in a thread of its own, so that the screen never waits for a server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from swarmkeep.cli.refusals import find_refusal
from swarmkeep.cli.render.event_summary import format_event_line
from swarmkeep.cli.top.rates import RecentReadings
from swarmkeep.cli.top.snapshot import Reader, Reading
from swarmkeep.cli.top.view import Job, View
from swarmkeep.domain.wording import format_call
from swarmkeep_client import ConnectionFailed

if TYPE_CHECKING:
    from swarmkeep.cli.sources.source import Source
    from swarmkeep_client import Approval, PendingCall

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
    """What went wrong: of a key once, of the reading until it goes well again."""
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
