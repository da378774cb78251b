"""A conversation on the screen, as it happens."""

from __future__ import annotations

import sys

from rich.text import Text

from swarmkeep.cli.outcomes import make_console
from swarmkeep.cli.terminal import shorten
from swarmkeep.events.codec import Json
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
        shown = getattr(self, f"_show_{event.type.replace('.', '_')}", None)
        if shown is not None and isinstance(event.data, dict):
            shown(event, event.data)

    def _show_message_added(self, event: Event, data: Json) -> None:
        message = data.get("message") or {}
        if "person" in data:
            name, text = put_name_first(str(data["person"])), join_content(message.get("content"))
            self.line(f"{name}: {text}" if message.get("role") == "assistant" else f"  {name} to the agent: {text}")
        elif message.get("role") == "assistant":
            text = join_content(message.get("content"))
            if not self._streamed:
                self._say(event.agent or "", text)
            self.end_line()
            self._started, self._at_once = {}, False
            for call in format_calls(message):
                self.write(event.agent or "", "bold blue", end=": ")
                self.write(call, "magenta")
        elif message.get("role") == "tool":
            call = self._end_call(str(message.get("tool_call_id")))
            self._put_tool_result(data.get("tool") or {}, join_content(message.get("content")), call)
        elif "correction" in data:
            self.line("  the answer is sent back: it does not have the required form", "yellow")
        self._streamed = False

    def _put_tool_result(self, tool: Json, text: str, call: str) -> None:
        if tool.get("handoff") and text.startswith('{"assistant"'):
            # What the model is told of a handoff; the event that follows says it to people.
            return
        status = tool.get("status", "ok")
        prefix = "" if status == "ok" else f"{status}: "
        self.line(f"  → {call}{prefix}{shorten(text, MAX_TEXT)}", "dim" if status == "ok" else "red")

    def _end_call(self, call_id: str) -> str:
        """Return the text that says which call has ended, if others ran beside it."""
        call = self._started.pop(call_id, "")
        named = f"{call}: " if call and self._at_once else ""
        self._at_once = self._at_once and bool(self._started)
        return named

    def _show_tool_started(self, event: Event, data: Json) -> None:
        self._at_once = self._at_once or bool(self._started)
        self._started[str(data.get("tool_call_id"))] = shorten(
            format_call(str(data.get("name")), str(data.get("arguments"))), MAX_TEXT
        )
        if data.get("attempt", 1) > 1:
            call = format_call(str(data.get("name")), str(data.get("arguments")))
            self.line(f"  {call} is started again, with the same id: attempt {data['attempt']}", "yellow")

    def _show_guardrail_tripped(self, event: Event, data: Json) -> None:
        stages = {"input": "what was said", "history": "what was brought along", "output": "the answer"}
        what = stages.get(str(data.get("stage")), "the call")
        error = f": {data['error']}" if data.get("error") else ""
        self.line(f"  the guardrail {data.get('name')} refuses {what}{error}", "yellow")

    def _show_handoff_made(self, event: Event, data: Json) -> None:
        self.line(f"  {data.get('from')} hands over to {data.get('to')}", "cyan")

    def _show_context_updated(self, event: Event, data: Json) -> None:
        self.line(f"  context: {shorten(format_json(data.get('patch')), MAX_TEXT)}", "green")

    def _show_run_resumed(self, event: Event, data: Json) -> None:
        if data.get("reason") == "recovery":
            self.line("  the run continues where it was cut off", "yellow")

    def _show_run_waiting(self, event: Event, data: Json) -> None:
        for call in data.get("pending") or ():
            if call.get("reason") == "person":
                self.line("  waits for the person who has taken over", "yellow")
                continue
            text = format_call(str(call.get("name")), str(call.get("arguments")))
            what = {"approval": "an approval", "session": f"an approval in session {call.get('session_id')}"}.get(
                str(call.get("reason")), "a result from outside"
            )
            self.line(f"  {text} waits for {what}", "yellow")

    def _show_session_taken_over(self, event: Event, data: Json) -> None:
        self.line(f"  {put_name_first(data.get('by') or 'a person')} takes over from the agent", "yellow")

    def _show_session_handed_back(self, event: Event, data: Json) -> None:
        self.line(f"  {put_name_first(data.get('by') or 'a person')} hands back to the agent", "yellow")

    def _show_run_failed(self, event: Event, data: Json) -> None:
        error = data.get("error") or {}
        self.line(f"  the run failed: {error.get('code')}: {error.get('message')}", "red")

    def _show_run_interrupted(self, event: Event, data: Json) -> None:
        error = data.get("error") or {}
        self.line(f"  the run was interrupted: {error.get('code')}: {error.get('message')}", "red")

    def _show_run_cancelled(self, event: Event, data: Json) -> None:
        self.line("  the run was cancelled; what it produced stays", "yellow")
