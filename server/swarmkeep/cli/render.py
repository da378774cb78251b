"""An event in a line: what a person wants to know of it at a glance."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from itertools import pairwise
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from swarmkeep.cli.agent_graph import APPROVAL
from swarmkeep.cli.sources import read_event
from swarmkeep.cli.terminal import is_terminal, make_console, put, shorten
from swarmkeep.describe import summarize
from swarmkeep.events.codec import Json, encode_text
from swarmkeep.events.wording import escape_controls, format_calls, format_json, join_content, put_name_first
from swarmkeep_client import AgentInfo, MCPServerInfo

if TYPE_CHECKING:
    from swarmkeep_client import Change, Event, Message, SessionState


MAX_LENGTH = 160
TONE_STYLES = {"plain": "", "good": "green", "notice": "cyan", "bad": "red"}


def format_event_line(event: Event, *, clock_only: bool = False) -> str:
    """An event as a line of the timeline; `clock_only` leaves the date out. Times are UTC."""
    time = event.at[11:23] if clock_only else f"{event.at[:23]}Z"
    start = f"{event.seq:>4}  {time}  {shorten(event.agent or '', 80):<24}  {shorten(event.type, 80):<18}  "
    width = shutil.get_terminal_size((len(start) + MAX_LENGTH, 24)).columns if is_terminal(sys.stdout) else 0
    length = max(width - len(start), 40) if width else MAX_LENGTH
    return (start + shorten(summarize(read_event(event)), length)).rstrip()


def format_seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"


def format_milliseconds(milliseconds: float | None) -> str:
    return format_seconds(None if milliseconds is None else milliseconds / 1000)


# A session and its messages, as text.

MAX_TEXT = 400
# Before each further line of a text, so that no text can look like another message.
_FURTHER_LINE = "\n     │ "


def describe_status(state: SessionState) -> str:
    """The status; that it is damaged, or of an idle session how its last run ended, where a reader should know."""
    if state.damaged_seq is not None:
        return "damaged"
    ended_badly = state.status == "idle" and state.last_run_status in ("failed", "interrupted")
    return state.last_run_status or "" if ended_badly else state.status


def list_found(state: SessionState) -> Iterator[tuple[str, ...]]:
    """A row for each place where a search found something."""
    for match in state.matches:
        seq = "" if match.seq is None else str(match.seq)
        yield state.id, f"{state.updated_at[:19]}Z", (state.title or "")[:40], seq, match.snippet[:80].strip()


def put_state(state: SessionState) -> None:
    """Show a session's fields, those that are empty left out."""
    origin = state.forked_from
    usage = state.usage
    fields = {
        "id": state.id,
        "status": f"{state.status}, run {state.active_run_id}" if state.active_run_id else state.status,
        "damaged": ""
        if state.damaged_seq is None
        else f"from event {state.damaged_seq} on; `swarmkeep verify` says more",
        "agent": state.agent,
        "context": format_json(state.context_variables),
        "metadata": format_json(state.metadata),
        "events": f"{state.seq}, the last with hash {state.hash}",
        "usage": f"model calls {usage.model_calls}, tokens {usage.total_tokens}",
        "assigned": state.assignee or "",
        "feedback": "" if state.feedback is None else f"{state.feedback.up} up, {state.feedback.down} down",
        "taken over": _describe_takeover(state),
        "on hold": _describe_hold(state),
        "asked by": f"{state.parent.session_id}, by its call {state.parent.tool_call_id}" if state.parent else "",
        "forked from": f"{origin.session_id} at {origin.seq}" if origin else "",
        "created": state.created_at,
        "updated": state.updated_at,
    }
    for name, value in fields.items():
        if value:
            put(f"{name + ':':<13}{value}")
    put()


def _describe_takeover(state: SessionState) -> str:
    taken = state.taken_over
    if taken is None:
        return ""
    note = f": {taken.note}" if taken.note else ""
    return f"by {put_name_first(taken.by or 'a person')} at {taken.at}{note}"


def _describe_hold(state: SessionState) -> str:
    held = state.hold
    return "" if held is None else f"by {put_name_first(held.by or 'a person')} at {held.at}: {held.reason}"


def format_message(message: Message) -> str:
    """A message with its seq, a line for its text and one for each call."""
    place = f"{message.get('seq', ''):>5}  "
    text = join_content(message.get("content"))
    match message.get("role"):
        case "assistant":
            sender = message.get("sender") or "assistant"
            lines = [f"{sender}: {part}" for part in (text, *format_calls(message)) if part]
        case "tool":
            lines = [f"  → {shorten(text, MAX_TEXT)}{_describe_asking(message)}"]
        case role:
            lines = [f"{role}: {text}"]
    return "\n".join(place + part.replace("\n", _FURTHER_LINE) for part in lines)


def _describe_asking(message: Message) -> str:
    """Name the session in which another agent was asked for this result."""
    asked = message.get("session_id")
    return f" (asked in session {asked})" if asked else ""


def format_messages(messages: Sequence[Message]) -> Iterator[str]:
    """Each message on a line of its own, with its seq and who speaks."""
    for message in messages:
        text = shorten(join_content(message.get("content")), MAX_TEXT)
        speaker = message.get("tool_name") if message.get("role") == "tool" else message.get("sender")
        calls = ", ".join(format_calls(message)) if message.get("role") == "assistant" else ""
        yield f"{message.get('seq')} {speaker}: {' '.join(part for part in (text, calls) if part)}"


# Changes of JSON values, a line for each.

# From this width on there is room for what was beside what is.
SIDE_BY_SIDE_COLUMNS = 100


def has_room_beside() -> bool:
    """Tell if the output is a terminal that is wide enough for two sides."""
    return is_terminal(sys.stdout) and get_terminal_size().columns >= SIDE_BY_SIDE_COLUMNS


def put_changes(changes: Sequence[Change]) -> None:
    """A line for each; at a terminal that is wide enough, what was and what is side by side, in colour."""
    if changes and has_room_beside():
        _put_side_by_side(changes)
        return
    for change in changes:
        put(format_change(change.path, change.before, change.after))


def _put_side_by_side(changes: Sequence[Change]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2), expand=True)
    # As wide as the names, as long as they leave most of the room to what changed.
    table.add_column(max_width=get_terminal_size().columns // 3, overflow="fold")
    for _ in ("before", "after"):
        table.add_column(ratio=1, overflow="fold")
    for change in changes:
        before = Text(
            "" if change.before is UNSET else escape_controls(f"- {_format_json(change.before)}"), style="red"
        )
        after = Text("" if change.after is UNSET else escape_controls(f"+ {_format_json(change.after)}"), style="green")
        table.add_row(Text(escape_controls(_name_place(change.path)), style="bold"), before, after)
    make_console().print(table)


def format_change(path: str, before: Any, after: Any) -> str:
    """A change of a place: what stood there, and what stands there; UNSET is nothing."""
    place = _name_place(path)
    if before is UNSET:
        return f"+ {place}: {_format_json(after)}"
    if after is UNSET:
        return f"- {place}: {_format_json(before)}"
    return f"~ {place}: {_format_json(before)} → {_format_json(after)}"


def _name_place(path: str) -> str:
    return path.removeprefix("/context_variables/").lstrip("/") or "all of it"


def _format_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# One agent as text: all that its model is told, and may do.


def format_agent(agent: AgentInfo) -> Iterator[str]:
    yield agent.name
    yield f"  model: {agent.model}{', answered by the offline model' if agent.offline else ''}"
    if agent.instructions is None:
        yield "  instructions: from a function, for each turn"
    else:
        yield "  instructions:"
        yield from (f"    {line}".rstrip() for line in agent.instructions.splitlines())
    yield from _format_settings(agent)
    yield "  functions:" if agent.tools else "  functions: none"
    for tool in agent.tools:
        yield from _format_function(agent, tool["function"])
    yield f"  hands over to: {', '.join(map(str, agent.handoffs)) or 'nobody'}"
    yield from (f"  asks: {name}, by {function}" for function, name in agent.asks.items())
    for server in agent.mcp_servers:
        yield from _format_server(server)
    for what, names in (("input", agent.input_guardrails), ("output", agent.output_guardrails)):
        if names:
            yield f"  {what} guardrails: {', '.join(names)}"


def _format_settings(agent: AgentInfo) -> Iterator[str]:
    if agent.model_settings:
        yield f"  model settings: {encode_text(agent.model_settings)}"
    if agent.tool_choice is not None:
        yield f"  tool choice: {_show(agent.tool_choice)}"
    if not agent.parallel_tool_calls:
        yield "  one call per reply"
    if agent.output_schema is not None:
        how = "by calling final_output" if agent.output_mode == "tool" else "as its answer"
        yield f"  output, {how}: {encode_text(agent.output_schema)}"


def _format_function(agent: AgentInfo, function: Json) -> Iterator[str]:
    name = str(function.get("name"))
    notes = [APPROVAL] if name in agent.approvals else []
    notes += ["runs at the same time as others"] if name in agent.concurrent_tools else []
    notes += [f"guardrails: {', '.join(found)}"] if (found := agent.tool_guardrails.get(name)) else []
    yield f"    {name} ({'; '.join(notes)})" if notes else f"    {name}"
    yield from (f"      {line}".rstrip() for line in str(function.get("description") or "").splitlines())
    yield f"      {encode_text(function.get('parameters') or {})}"


def _format_server(server: MCPServerInfo) -> Iterator[str]:
    yield f"  MCP server {server.name}: {server.address}"
    yield f"    tools: {'all' if server.tools is None else ', '.join(server.tools)}"
    if server.prefix:
        yield f"    their names begin with {server.prefix}"
    approval = server.requires_approval
    if approval:
        yield f"    {APPROVAL}: {'all' if approval is True else ', '.join(approval)}"
    if server.trust_hints:
        yield "    its hints about its tools are trusted"
    if server.scope != "server":
        yield f"    one connection per {server.scope}"


def _show(value: Any) -> str:
    return value if isinstance(value, str) else encode_text(value)


# Bars for a terminal: a line for each value, as long as the value is large.

# A cell is filled by eighths, so that small differences show.
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_MIN_BAR = 10
_MAX_GAP_DAYS = 31


def format_bars(rows: Sequence[tuple[str, int]], width: int, *, fine: bool) -> Iterator[str]:
    """A line for each label and its value, none longer than `width` as long as there is room for short bars.

    `fine` draws eighths of a character, for terminals that have them; without it bars are of `#`.
    """
    values = [f"{value:,}" for _, value in rows]
    label_width = max((len(label) for label, _ in rows), default=0)
    value_width = max(map(len, values), default=0)
    room = max(_MIN_BAR, width - label_width - value_width - 4)
    largest = max((value for _, value in rows), default=0)
    for (label, value), text in zip(rows, values, strict=True):
        bar = _draw_bar(value, largest, room, fine=fine)
        yield f"{label.ljust(label_width)}  {text.rjust(value_width)}  {bar}".rstrip()


def fill_days(rows: Sequence[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """Days without a call between those with one, so that the bars are a calendar; a long time is one line.

    `rows` are by day, oldest first.
    """
    for (day, value), (following, _) in pairwise([*rows, ("", 0)]):
        yield day, value
        if following:
            start = date.fromisoformat(day)
            missing = (date.fromisoformat(following) - start).days
            if missing > _MAX_GAP_DAYS:
                yield "…", 0
                continue
            yield from (((start + timedelta(days=number)).isoformat(), 0) for number in range(1, missing))


def _draw_bar(value: int, largest: int, room: int, *, fine: bool) -> str:
    if not largest:
        return ""
    if not fine:
        return "#" * max(round(room * value / largest), value > 0)
    eighths = max(round(8 * room * value / largest), value > 0)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
