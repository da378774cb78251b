"""A session's events as OpenAI's Agents API streams them: turns are runs, and every event has an id to go on behind.

The events of a turn are those of its responses (see `progress`), in other words. An id says where in the log its event
stands, so that any server finds the place again.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from swarmkeep.events import facts
from swarmkeep.events.active_run import make_queued_run
from swarmkeep.events.codec import Json, MalformedJson, decode
from swarmkeep.events.errors import quote
from swarmkeep.events.fold import evolve
from swarmkeep.events.messages import Entry, read_tool_calls
from swarmkeep.events.records import RunOptions, Usage
from swarmkeep.events.state import Run, State, ToolCall, find_results
from swarmkeep.events.views import ListedSession, find_run
from swarmkeep.events.wording import join_text
from swarmkeep.http.auth import Principal
from swarmkeep.http.threads import run_aside
from swarmkeep.openai.agent_input import MADE_LABEL
from swarmkeep.openai.event_writer import NO_EVENTS
from swarmkeep.openai.history import FEW_MESSAGES
from swarmkeep.openai.items import ItemPlace, ResponseId, list_requests_below
from swarmkeep.openai.output_items import is_callers, show_assistant, show_message
from swarmkeep.openai.problems import Refused, is_of_input, is_too_many
from swarmkeep.openai.progress import ResponseBuilder, to_seconds
from swarmkeep.runs.automations import CONFIG, find_config
from swarmkeep.runs.hub import Item
from swarmkeep.runs.identifiers import find_replaced_run, list_children
from swarmkeep.runs.reader import Batch
from swarmkeep.store.records import SessionKey

# Sessions, turns and items in the Agents API's shapes.

Phase = Literal["commentary", "final_answer"]
_STATUS = {"idle": "idle", "running": "in_progress", "waiting": "requires_action"}
_TURN_STATUS = {"running": "in_progress", "interrupted": "failed"}


def show_agent(name: str, *, asks: bool = False, options: RunOptions | None = None) -> Json:
    """What agents and sessions say alike of an agent. Its own functions are carried out here, and not shown."""
    asked: Json = {} if options is None or options.request is UNSET else options.request.get(CONFIG) or {}
    tools = () if options is None else options.caller_tools
    text = asked.get("text") or {}
    return {
        "id": asked.get("id") or name,
        "name": asked.get("name") if "id" in asked else name,
        "model": name,
        "instructions": None if options is None or options.instructions is UNSET else options.instructions,
        "multi_agent": {"enabled": asks, "max_concurrent_subagents": None},
        "reasoning": {"effort": (asked.get("reasoning") or {}).get("effort"), "summary": None},
        "service_tier": "auto",
        "text": {"format": text.get("format") or {"type": "text"}, "verbosity": text.get("verbosity") or "medium"},
        "tools": [show_function(tool["function"]) for tool in msgspec.to_builtins(tools)],
    }


def show_function(function: Json) -> Json:
    return {
        "type": "function",
        "name": function["name"],
        "description": function.get("description") or "",
        "parameters": function.get("parameters") or {},
        "defer_loading": False,
    }


def show_labels(metadata: Json) -> Json:
    """Metadata as texts: other doors take any JSON."""
    return {
        key: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for key, value in metadata.items()
        if key != MADE_LABEL
    }


def _name_made(options: RunOptions) -> str | None:
    """The id of the agent of a client that a run is of, if it is."""
    asked = {} if options.request is UNSET else options.request.get(CONFIG)
    found = asked.get("id") if isinstance(asked, dict) else None
    return found if isinstance(found, str) else None


def show_session(session_id: str, state: State) -> Json:
    status = "in_progress" if state.queue and state.run is None else _STATUS[state.status]
    agent = show_agent(state.agent, options=find_config(state))
    return _show(session_id, state, agent, status, list_actions(session_id, state.run))


def show_listed(listed: ListedSession) -> Json:
    """A session in a list, as far as that knows it: not what its agent was asked to be like."""
    agent = {**show_agent(listed.agent), "id": listed.metadata.get(MADE_LABEL) or listed.agent}
    return _show(listed.id, listed, agent, _STATUS[listed.status], [])


def _show(session_id: str, session: State | ListedSession, agent: Json, status: str, actions: list[Json]) -> Json:
    return {
        "id": session_id,
        "object": "agent.session",
        "agent": agent,
        "created_at": to_seconds(session.created_at),
        "last_active_at": to_seconds(session.updated_at),
        "environment": {"type": "none"},
        "error": None,
        "metadata": show_labels(session.metadata),
        "required_actions": actions,
        "status": status,
        "usage": _show_usage(session.usage),
        "vault_ids": [],
    }


def list_actions(session_id: str, run: Run | None) -> list[Json]:
    """What a session waits for: results of the caller's functions, and decisions, here or where agents are asked."""
    if run is None or run.status != "waiting":
        return []
    actions = [_show_call_action(run, call) for call in run.pending if call.reason == "tool_results"]
    places = _list_places(session_id, run)
    for call in run.pending:
        if call.reason == "approval" and call.tool_call_id in places:
            place, asked = places[call.tool_call_id]
            agent = asked.agent or run.agent
            actions.append(_show_request(run, place.make_id("mcpr"), call.name, call.arguments, agent))
    for item_id, below in list_requests_below(session_id, run.last_wait, run.pending):
        actions.append(_show_request(run, item_id, below.name, below.arguments, below.agent))
    return actions


def _show_call_action(run: Run, call: facts.PendingCall) -> Json:
    return {
        "type": "function_call",
        "turn_id": run.id,
        "call_id": call.tool_call_id,
        "name": call.name,
        "arguments": call.arguments,
    }


def _show_request(run: Run, request_id: str, name: str, arguments: str, agent: str) -> Json:
    request = {
        "type": "mcp_tool_call",
        "server_label": agent,
        "name": name,
        "arguments": arguments,
        "message": f"{name} needs an approval",
    }
    return {"type": "mcp_approval_request", "request_id": request_id, "turn_id": run.id, "request": request}


def _list_places(session_id: str, run: Run) -> dict[str, tuple[ItemPlace, ToolCall]]:
    """The calls of a run's last reply, and their places."""
    place = ItemPlace(session_id, run_id=run.id, turn=run.turns - 1)
    return {call.id: (place.at_call(index), call) for index, call in enumerate(run.calls)}


def _show_usage(usage: Usage) -> Json | None:
    """None before the first call of a model. The parts are not summed up for turns."""
    if not usage.model_calls:
        return None
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total_tokens,
    }


def show_turn(session_id: str, run: Run, subagent_id: str | None = None) -> Json:
    status = _TURN_STATUS.get(run.status, run.status)
    error = run.error or facts.RunError(code=run.stop_reason or "interrupted", message="the run was cut off")
    return {
        "id": run.id,
        "object": "agent.session.turn",
        "session_id": session_id,
        "agent_id": _name_made(run.options) or run.agent,
        "subagent_id": subagent_id,
        "status": status,
        "created_at": to_seconds(run.created_at),
        "started_at": None if status == "queued" else to_seconds(run.created_at),
        "completed_at": None if run.finished_at is None else to_seconds(run.finished_at),
        "error": {"code": _name_error(error), "message": error.message} if status == "failed" else None,
        "usage": _show_usage(run.usage),
    }


def _name_error(error: facts.RunError) -> str:
    """The code of an error in the Agents API's words."""
    if is_too_many(error):
        return "rate_limit_exceeded"
    if is_of_input(error):
        return "context_length_exceeded" if error.code == "context_length_exceeded" else "invalid_request"
    if error.code == "run_timeout":
        return "request_timeout"
    return "server_error" if error.code.startswith("provider_") else "internal_error"


async def find_subagents(
    principal: Principal, key: SessionKey, state: State, run: Run | None = None
) -> dict[str, Json]:
    """The agents that were asked in a session, in order, by the ids of their sessions; with `run` only those of it."""
    # The log knows them all; a state forgets calls that were given up.
    after = 0 if run is None else run.first_seq - 1
    starts = await principal.store.read(key, after=after, upto=state.seq, types=[facts.ToolStarted.type])

    def show() -> dict[str, Json]:
        children = list_children(key, state, starts)
        return {child.id: _show_subagent(key.id, state, child.id, start) for child, start in children.items()}

    return await run_aside(len(state.messages) + len(starts) > FEW_MESSAGES, show)


def _show_subagent(session_id: str, state: State, subagent_id: str, start: facts.RecordedEvent) -> Json:
    """An agent that was asked, as the session says that asked it: its name is that of the call."""
    assert isinstance(start.fact, facts.ToolStarted)
    asked = _read_question(start.fact.arguments)
    closed_at = _find_end_of_call(state, start, start.fact.tool_call_id)
    return {
        "id": subagent_id,
        "object": "agent.session.subagent",
        "session_id": session_id,
        "parent_agent_id": start.agent,
        "name": start.fact.name,
        "instructions": [{"type": "output_text", "text": asked}] if asked else None,
        "status": "active" if closed_at is None else "closed",
        "opened_at": to_seconds(start.at),
        "closed_at": None if closed_at is None else to_seconds(closed_at),
    }


def _read_question(arguments: str) -> str | None:
    with suppress(MalformedJson):
        match decode(arguments):
            case {"input": str(text)}:
                return text
    return None


def _find_end_of_call(state: State, start: facts.RecordedEvent, call_id: str) -> str | None:
    """When a call got its result, or its run ended without; None while it may get one."""
    results = (state.messages[at] for at in find_results(state.messages).find(call_id))
    result = next((entry for entry in results if entry.run_id == start.run_id and entry.seq > start.seq), None)
    if result is not None:
        return result.at
    run = find_run(state, start.run_id or "")
    return None if run is None or _may_go_on(state, run) else run.finished_at


def _may_go_on(state: State, run: Run) -> bool:
    """Tell if a run is under way, or may be resumed: after an interruption, until another one follows."""
    if run.status != "interrupted":
        return run.finished_at is None
    return state.run is None and state.finished[-1].id == run.id


def show_item(item: Json, turn_id: str | None, phase: Phase | None = None) -> Json | None:
    """An item of a response as one of a turn; None for what has no item there: approvals, and what systems say."""
    shown = {"id": item["id"], "type": item["type"], "turn_id": turn_id or ""}
    match item["type"]:
        case "message" if item["role"] == "assistant":
            return {**shown, **_take(item, "role", "status"), "content": _show_texts(item["content"]), "phase": phase}
        case "message" if item["role"] == "user":
            return {**shown, **_take(item, "role", "status"), "content": list(map(show_input_part, item["content"]))}
        case "function_call":
            return {**shown, **_take(item, "status", "call_id", "name", "arguments")}
        case "function_call_output":
            return {**shown, **_take(item, "status", "call_id", "output"), "error": item.get("error")}
        case "mcp_call":
            return {**shown, **_take(item, "status", "name", "arguments", "server_label", "output", "error")}
        case _:
            return None


def _take(item: Json, *names: str) -> Json:
    return {name: item[name] for name in names}


def _show_texts(parts: Sequence[Json]) -> list[Json]:
    return [_show_text(part) for part in parts]


def _show_text(part: Json) -> Json:
    return {"type": "output_text", "text": part.get("text", part.get("refusal", ""))}


def show_input_part(part: Json) -> Json:
    """Texts and pictures; of anything else, and of a picture that is not put back here, the words say that it is."""
    match part:
        case {"type": "input_text", "text": str(text)}:
            return {"type": "input_text", "text": text}
        case {"type": "input_image", "image_url": str(url)}:
            return {"type": "input_image", "image_url": url}
        case {"type": "input_audio"}:
            return {"type": "input_text", "text": "[audio]"}
        case _:
            return {"type": "input_text", "text": "[file]"}


def mark_failed(item: Json, entry: Entry) -> Json:
    """A result's item that says if its caller gave an error."""
    if item["type"] != "function_call_output" or entry.tool is None or entry.tool.status == "external":
        return item
    return {**item, "status": "failed", "output": None, "error": item["output"]}


def _show_call(place: ItemPlace, run_id: str, call: ToolCall, status: str) -> Json:
    return {
        "id": place.make_id("fc"),
        "type": "function_call",
        "status": status,
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "turn_id": run_id,
    }


# Ids of events: the place in the log, what of it, and the number of the event of a response that it stands for.

_OPENING, _OUTPUT, _CLOSING, _PASSING = 0, 1, 2, 3
_EVENT_ID = re.compile(r"evt_([1-9][0-9]{0,15})-([0-3])-([0-9]{1,16})", re.ASCII)


class EventId(msgspec.Struct, frozen=True, order=True):
    """`seq`: the event of the log that it comes from, or comes after where it passes; `kind`: before, among or after
    what the turn puts out with it."""

    seq: int
    kind: int
    number: int

    def __str__(self) -> str:
        return f"evt_{self.seq}-{self.kind}-{self.number}"


def parse_event_id(text: str, param: str) -> EventId:
    """Raises Refused for what no event here is called."""
    found = _EVENT_ID.fullmatch(text)
    if found is None or int(found[3]) >= NO_EVENTS:
        raise Refused(f"there is no event {quote(text)}", param, code="not_found", status=404)
    return EventId(int(found[1]), int(found[2]), int(found[3]))


async def open_stream(
    principal: Principal, key: SessionKey, state: State, behind: EventId | None = None
) -> AsyncGenerator[list[Json]]:
    """The events from now on, or those behind one of them. `state` is the session's, as it is now.

    Raises Refused for an event that the session does not have.
    """
    if behind is None:
        return EventTranslator(principal, key, state).follow(principal.reader.follow_batches(key, after=state.seq))
    if behind.seq > state.seq:
        raise Refused(f"there is no event {quote(str(behind))} in this session", "after", code="not_found", status=404)
    # What came with that event is read once more, for what of it the reader lacks.
    before = await principal.reader.state(key, at=behind.seq - 1) if behind.seq > 1 else State()
    batches = principal.reader.follow_batches(key, after=behind.seq - 1)
    return EventTranslator(principal, key, before, behind).follow(batches)


class EventTranslator:
    """Makes events of what a session's readers are given, from the event behind `state` on; of those that come with it
    only the ones `behind` a given one."""

    def __init__(self, principal: Principal, key: SessionKey, state: State, behind: EventId | None = None) -> None:
        self._principal = principal
        self._reader = principal.reader
        self._key = key
        self._state = state
        self._behind = behind
        self._resumed: tuple[str, int] | None = None
        """The run, and which part of it, that the event to go on behind is of."""
        self._builders: dict[str, ResponseBuilder] = {}
        self._commentary: set[str] = set()

    async def follow(self, batches: AsyncGenerator[Batch]) -> AsyncGenerator[list[Json]]:
        """The events, as they come; an empty list is a sign of life."""
        async with aclosing(batches):
            async for batch in batches:
                events: list[Json] = []
                while batch:
                    events += await self._read(batch.pop(0))
                yield events

    async def _read(self, item: Item) -> list[Json]:
        if isinstance(item, facts.RecordedEvent):
            return await self._read_event(item)
        builder = await self._find_builder(item.run_id)
        return self._translate(builder, builder.read(item), self._state.seq, _PASSING)

    async def _read_event(self, event: facts.RecordedEvent) -> list[Json]:
        if event.seq <= self._state.seq:
            # Another session has got the id.
            self._state, self._behind, self._resumed = State(), None, None
            self._builders.clear()
        before = self._state
        after = evolve(before, event)
        run = after.run or before.run
        if self._behind is not None and event.seq == self._behind.seq and run is not None:
            self._resumed = run.id, before.run.waits if before.run is not None and before.run.id == run.id else 0
        output: list[Json] = []
        is_of_turn = event.run_id is not None and not isinstance(event.fact, facts.RunQueued)
        builder = await self._find_builder(event.run_id) if is_of_turn and event.run_id is not None else None
        if builder is not None:
            output = self._translate(builder, self._feed(builder, event), event.seq, _OUTPUT)
        self._state = after
        subagents = await self._list_subagents(before, after, event)
        opening = _number([*self._list_opening(before, after, event), *subagents], event.seq, _OPENING)
        closing = _number(self._list_closing(after, event, builder), event.seq, _CLOSING)
        if isinstance(event.fact, facts.RunEnded):
            self._builders.pop(event.run_id or "", None)
            self._commentary.clear()
        return self._leave_out(event.seq, [*opening, *output, *closing])

    def _leave_out(self, seq: int, events: list[Json]) -> list[Json]:
        """Leave out what the reader has of the event that it goes on behind."""
        behind = self._behind
        if behind is None or seq > behind.seq:
            return events
        return [event for event in events if parse_event_id(event["event_id"], "after") > behind]

    async def _find_builder(self, run_id: str) -> ResponseBuilder:
        """The builder of a run's part, shown what the run did before."""
        if run_id not in self._builders:
            self._builders[run_id] = ResponseBuilder(
                ResponseId(self._key.id, run_id), after=self._find_last_number(run_id, 0)
            )
            run = find_run(self._state, run_id)
            if run is not None:
                pages = self._reader.read_pages(self._key, after=run.first_seq - 1, upto=self._state.seq)
                async with aclosing(pages) as events:
                    async for event in events:
                        if event.run_id == run_id:
                            self._feed(self._builders[run_id], event)
        return self._builders[run_id]

    def _find_last_number(self, run_id: str, part: int) -> int:
        behind = self._behind
        is_resumed = behind is not None and behind.kind in (_OUTPUT, _PASSING) and self._resumed == (run_id, part)
        return behind.number if behind is not None and is_resumed else -1

    def _feed(self, builder: ResponseBuilder, event: facts.RecordedEvent) -> list[Json]:
        fact = event.fact
        if isinstance(fact, facts.MessageAdded) and fact.completion is not None and read_tool_calls(fact.message):
            self._commentary.add(builder.next_message_id)
        made = builder.read(event)
        if isinstance(fact, facts.RunWaiting):
            run_id = builder.id.run_id
            after = self._find_last_number(run_id, builder.id.part + 1)
            self._builders[run_id] = builder.make_next(after=after)
        return made

    # What a response's events are called here.

    def _translate(self, builder: ResponseBuilder, made: list[Json], seq: int, kind: int) -> list[Json]:
        whole = {event["item"]["id"]: event["item"] for event in made if event["type"] == "response.output_item.done"}
        shown = [self._rename(builder, event, whole, seq, kind) for event in made]
        return [event for event in shown if event is not None]

    def _rename(
        self, builder: ResponseBuilder, event: Json, whole: dict[str, Json], seq: int, kind: int
    ) -> Json | None:
        fields = self._describe(event, builder.id.run_id, whole)
        if fields is None:
            return None
        at = {"output_index": builder.first_index + event["output_index"]}
        if "content_index" in event:
            at |= {"item_id": event["item_id"], "content_index": event["content_index"]}
        event_id = str(EventId(seq, kind, event["sequence_number"]))
        return {"event_id": event_id, **self._of_turn(builder.id.run_id), **at, **fields}

    def _of_turn(self, run_id: str) -> Json:
        return {"session_id": self._key.id, "turn_id": run_id}

    def _describe(self, event: Json, run_id: str, whole: dict[str, Json]) -> Json | None:
        """Type and content of an event; None for one that has none here."""
        turn = "agent.session.turn"
        match event["type"]:
            case "response.output_item.added" | "response.output_item.done" as name:
                item = event["item"]
                if item["type"] not in ("message", "mcp_call"):
                    # The caller's calls are shown once they may be answered.
                    return None
                what = name.rpartition(".")[2]
                if what == "added":
                    # Of a call all but its result is known when it is shown.
                    if item["type"] == "mcp_call":
                        item = whole.get(item["id"], item)
                    item = {**item, "status": "in_progress", "output": None, "error": None}
                phase: Phase | None = None
                if what == "done":
                    phase = "commentary" if item["id"] in self._commentary else "final_answer"
                return {"type": f"{turn}.item.{what}", "item": show_item(item, run_id, phase)}
            case "response.content_part.added" | "response.content_part.done" as name:
                return {"type": f"{turn}.{name.removeprefix('response.')}", "part": _show_text(event["part"])}
            case "response.output_text.delta" | "response.refusal.delta":
                return {"type": f"{turn}.output_text.delta", "delta": event["delta"]}
            case "response.output_text.done":
                return {"type": f"{turn}.output_text.done", "text": event["text"]}
            case "response.refusal.done":
                return {"type": f"{turn}.output_text.done", "text": event["refusal"]}
            case _:
                return None

    # What begins and ends with an event of the log.

    def _list_opening(self, before: State, after: State, event: facts.RecordedEvent) -> list[Json]:
        fact, run_id = event.fact, event.run_id or ""
        match fact:
            case facts.RunQueued():
                return [self._show_turn("created", after, run_id)]
            case facts.RunStarted():
                queued = next((make_queued_run(before, each) for each in before.queue if each.run_id == run_id), None)
                created = [] if queued is not None else [self._show_turn("created", after, run_id)]
                return [
                    *created,
                    self._show_session("in_progress", after),
                    self._show_turn("in_progress", after, run_id),
                ]
            case facts.RunResumed() if before.run is None or before.run.status == "waiting":
                return [self._show_session("in_progress", after)]
            case facts.MessageAdded() if event.run_id is not None:
                return self._list_input(before, after, event, fact)
            case _:
                return [self._show_session("created", after)] if event.seq == 1 else []

    async def _list_subagents(self, before: State, after: State, event: facts.RecordedEvent) -> list[Json]:
        """The agents that an event begins to ask, or that are asked no more."""
        run, what = find_run(after, event.run_id or ""), "closed"
        asking = () if before.run is None else before.run.open_calls
        names: list[str | None] = []
        match event.fact:
            case facts.ToolStarted(session_id=str(name)) if name not in [call.session_id for call in asking]:
                what, names = "created", [name]
            case facts.MessageAdded() if asking and after.messages[-1].role == "tool":
                answered = after.messages[-1].message.get("tool_call_id")
                names = [call.session_id for call in asking if call.id == answered]
            case facts.RunStarted():
                # One that was interrupted before is not resumed any more.
                run = find_replaced_run(after, event.run_id or "")
                names = [] if run is None else [call.session_id for call in run.open_calls]
            case facts.RunEnded() if run is not None and not _may_go_on(after, run):
                names = [call.session_id for call in asking]
        if run is None or not any(names):
            return []
        known = await find_subagents(self._principal, self._key, after, run)
        event_type = f"agent.session.subagent.{what}"
        return [{"type": event_type, "subagent": known[name]} for name in names if name in known]

    def _list_input(
        self, before: State, after: State, event: facts.RecordedEvent, fact: facts.MessageAdded
    ) -> list[Json]:
        """What the caller, or a person in the agent's place, adds to a turn."""
        entry, run_id = after.messages[-1], event.run_id or ""
        if entry.role == "tool":
            return self._list_result(before, entry, run_id)
        if fact.correction is not UNSET or fact.completion is not None or fact.guardrail is not UNSET:
            return []
        if entry.role != "assistant":
            item = show_item(show_message(self._key.id, entry), run_id)
            return [] if item is None else [self._show_added(item)]
        place = ItemPlace(self._key.id, seq=entry.seq)
        item = show_item(show_assistant(entry, place, [])[0], run_id, "final_answer")
        return [] if item is None else [self._show_added(item), self._show_done(item, 0)]

    def _list_result(self, before: State, entry: Entry, run_id: str) -> list[Json]:
        run, call_id = before.run, entry.message.get("tool_call_id")
        if run is None or not isinstance(call_id, str):
            return []
        place, call = _list_places(self._key.id, run).get(call_id, (None, None))
        if call is None or place is None or not is_callers(call.name, run.options):
            return []
        output = {
            "id": place.make_id("fco"),
            "type": "function_call_output",
            "status": "completed",
            "call_id": call.id,
            "output": join_text(entry.message.get("content")),
        }
        shown = show_item(mark_failed(output, entry), run_id)
        done = self._show_done(_show_call(place, run_id, call, shown["status"] if shown else "completed"), 0)
        return [done, *([] if shown is None else [self._show_added(shown)])]

    def _list_closing(self, after: State, event: facts.RecordedEvent, builder: ResponseBuilder | None) -> list[Json]:
        run_id = event.run_id or ""
        match event.fact:
            case facts.RunWaiting() if after.run is not None:
                calls = self._list_calls(after.run, builder)
                return [*calls, self._show_session("requires_action", after)]
            case facts.RunEnded():
                ended = find_run(after, run_id)
                # One that is tried again later has failed for now.
                status = "failed" if ended is None else show_turn(self._key.id, ended)["status"]
                turn = [] if ended is None else [self._show_turn(status, after, run_id)]
                is_idle = after.run is None and not after.queue
                return [*turn, *([self._show_session("idle", after)] if is_idle else [])]
            case _:
                return []

    def _list_calls(self, run: Run, builder: ResponseBuilder | None) -> list[Json]:
        """The calls that wait for the caller: shown now, because their results are taken from now on."""
        known = {} if builder is None else {item["id"]: at for at, item in enumerate(builder.output)}
        first = 0 if builder is None else builder.first_index
        pending = {call.tool_call_id for call in run.pending if call.reason == "tool_results"}
        found: list[Json] = []
        for call_id, (place, call) in _list_places(self._key.id, run).items():
            if call_id in pending:
                item = _show_call(place, run.id, call, "in_progress")
                found.append({**self._show_added(item), "output_index": first + known.get(item["id"], 0)})
        return found

    def _show_added(self, item: Json) -> Json:
        of_turn = self._of_turn(item["turn_id"])
        return {"type": "agent.session.turn.item.added", **of_turn, "item": item, "output_index": None}

    def _show_done(self, item: Json, index: int) -> Json:
        of_turn = self._of_turn(item["turn_id"])
        return {"type": "agent.session.turn.item.done", **of_turn, "item": item, "output_index": index}

    def _show_session(self, what: str, state: State) -> Json:
        return {"type": f"agent.session.{what}", "session": show_session(self._key.id, state)}

    def _show_turn(self, what: str, state: State, run_id: str) -> Json:
        run = find_run(state, run_id)
        turn: Any = None if run is None else show_turn(self._key.id, run)
        return {"type": f"agent.session.turn.{what}", **self._of_turn(run_id), "turn": turn}


def _number(events: list[Json], seq: int, kind: int) -> list[Json]:
    return [{"event_id": str(EventId(seq, kind, number)), **event} for number, event in enumerate(events)]
