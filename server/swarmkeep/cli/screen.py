"""A conversation on the screen, as it happens."""

from __future__ import annotations

import sys

from msgspec import UNSET
from rich.text import Text

from swarmkeep.cli.render import TONE_STYLES
from swarmkeep.cli.sources import read_event
from swarmkeep.cli.terminal import make_console, shorten
from swarmkeep.describe import describe_alone, join_entry
from swarmkeep.events.facts import (
    ContextUpdated,
    GuardrailTripped,
    HandoffMade,
    MessageAdded,
    PendingCall,
    RecordedEvent,
    RunCancelled,
    RunFailed,
    RunInterrupted,
    RunResumed,
    RunWaiting,
    SessionHandedBack,
    SessionTakenOver,
    ToolStarted,
)
from swarmkeep.events.records import ToolRecord
from swarmkeep.events.wording import (
    escape_controls,
    format_call,
    format_calls,
    format_json,
    join_content,
    put_name_first,
)
from swarmkeep_client import Done, Event, MessageDelta, MessageStarted, StreamItem

MAX_TEXT = 200


class Screen:
    """Shows what a run does: who speaks, what they say as they say it, tool calls, handoffs, changes of the context.

    Colours are for terminals only; elsewhere it is the same, as plain text.
    """

    def __init__(self) -> None:
        self._console = make_console()
        self._open = False
        self._streamed = False
        # The calls that have started, as text; and whether they run at once.
        self._started: dict[str, str] = {}
        self._at_once = False

    def write(self, text: str, style: str = "", *, end: str = "\n") -> None:
        self._console.print(Text(escape_controls(text), style=style), end=end, soft_wrap=True)
        sys.stdout.flush()

    def line(self, text: str, style: str = "") -> None:
        """Print a line of its own, even in the middle of a message."""
        self.end_line()
        self.write(text, style)

    def end_line(self) -> None:
        """End the line of a message that is being written, if there is one."""
        if self._open:
            self.write("")
        self._open = False

    def show(self, item: StreamItem) -> None:
        match item:
            case MessageStarted():
                self._begin()
            case MessageDelta(content=str(text), agent=agent):
                self._say(agent, text)
            case Event():
                self._event(item)
            case Done():
                self.end_line()

    def _begin(self) -> None:
        if self._open:
            # Joined again in the middle of a message: it comes again from its start.
            self.write(" …", "dim")
        self._open = self._streamed = False

    def _say(self, agent: str, text: str) -> None:
        if not text:
            return
        if not self._open:
            self.write(agent, "bold blue", end=": ")
        self.write(text, end="")
        self._open = self._streamed = True

    def _event(self, event: Event) -> None:
        recorded = read_event(event)
        match recorded.fact:
            case MessageAdded() as fact:
                self._show_message(recorded.agent, fact)
                self._streamed = False
            case ToolStarted() as fact:
                self._at_once = self._at_once or bool(self._started)
                self._started[fact.tool_call_id] = shorten(format_call(fact.name, fact.arguments), MAX_TEXT)
                if fact.attempt > 1:
                    self._describe(recorded)
            case ContextUpdated(patch=patch):
                self.line(f"  context: {shorten(format_json(patch), MAX_TEXT)}", "green")
            case RunWaiting(pending=pending):
                for call in pending:
                    self._show_wait(call)
            case (
                HandoffMade() | GuardrailTripped() | SessionTakenOver() | SessionHandedBack()
                | RunFailed() | RunInterrupted() | RunCancelled() | RunResumed(reason="recovery")
            ):  # fmt: skip
                self._describe(recorded)

    def _describe(self, event: RecordedEvent) -> None:
        entry = describe_alone(event)
        self.line(f"  {join_entry(entry)}", TONE_STYLES[entry.tone])

    def _show_message(self, agent: str, fact: MessageAdded) -> None:
        role, text = fact.message.get("role"), join_content(fact.message.get("content"))
        if fact.person is not UNSET:
            name = put_name_first(fact.person)
            self.line(f"{name}: {text}" if role == "assistant" else f"  {name} to the agent: {text}")
        elif role == "assistant":
            if not self._streamed:
                self._say(agent, text)
            self.end_line()
            self._started, self._at_once = {}, False
            for call in format_calls(fact.message):
                self.write(agent, "bold blue", end=": ")
                self.write(call, "magenta")
        elif role == "tool":
            self._show_result(fact.tool, text, self._end_call(str(fact.message.get("tool_call_id"))))
        elif fact.correction is not UNSET:
            self.line("  the answer is sent back: it does not have the required form", "yellow")

    def _show_result(self, tool: ToolRecord | None, text: str, call: str) -> None:
        if tool is not None and tool.handoff is not UNSET and text.startswith('{"assistant"'):
            # What the model is told of a handoff; the event that follows says it to people.
            return
        status = "ok" if tool is None else tool.status
        prefix = "" if status == "ok" else f"{status}: "
        self.line(f"  → {call}{prefix}{shorten(text, MAX_TEXT)}", "dim" if status == "ok" else "red")

    def _end_call(self, call_id: str) -> str:
        """Return the text that says which call has ended, if others ran beside it."""
        call = self._started.pop(call_id, "")
        named = f"{call}: " if call and self._at_once else ""
        self._at_once = self._at_once and bool(self._started)
        return named

    def _show_wait(self, call: PendingCall) -> None:
        if call.reason == "person":
            self.line("  waits for the person who has taken over", "yellow")
            return
        what = {"approval": "an approval", "session": f"an approval in session {call.session_id}"}
        waits = what.get(call.reason, "a result from outside")
        self.line(f"  {format_call(call.name, call.arguments)} waits for {waits}", "yellow")
