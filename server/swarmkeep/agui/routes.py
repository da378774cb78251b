"""The route for AG-UI clients, and the events that it answers with."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from litestar import Request, Response, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import UNSET, UnsetType

from swarmkeep.agui.given import (
    Answers,
    Given,
    Numbering,
    RunAgentInput,
    Sent,
    find_new,
    find_state_change,
    list_interrupts,
    make_entry_id,
    make_reply_id,
    read_answers,
    read_input,
    refuse_resume,
    split_history,
)
from swarmkeep.decide.checks import check_new_id, refuse_stray_results
from swarmkeep.decide.commands import StartRun, choose_agent
from swarmkeep.events.codec import Json, encode
from swarmkeep.events.errors import SessionBusy, SessionExists, SessionNotFound
from swarmkeep.events.facts import ContextUpdated, MessageAdded, RecordedEvent
from swarmkeep.events.files import read_reference
from swarmkeep.events.messages import Entry
from swarmkeep.events.patch import apply, escape_pointer_part, merge
from swarmkeep.events.records import CompletionRecord, RunOptions, read_count
from swarmkeep.events.sizes import is_heavy
from swarmkeep.events.state import Run, State, refuse_damaged
from swarmkeep.events.views import find_run, view_run
from swarmkeep.events.wording import join_text
from swarmkeep.http.auth import PERMISSION, Principal
from swarmkeep.http.errors import CODES_OF_CHANGES, problem_specs
from swarmkeep.http.routes.agents import AgentName, read_name
from swarmkeep.http.sse import EVENT_STREAM
from swarmkeep.http.streams import StreamCheck, Written, make_event_stream, open_feed, write_parts
from swarmkeep.http.threads import run_aside
from swarmkeep.logs import bind_fields
from swarmkeep.runs.approvals import refuse_wrong_functions
from swarmkeep.runs.hub import Feed, Item, MessageDeltas, MessageStarted, is_open
from swarmkeep.runs.identifiers import make_id
from swarmkeep.runs.policy import SessionPlan
from swarmkeep.runs.reader import Batch, RunPosition
from swarmkeep.runs.runs import IdempotentRequest, find_record
from swarmkeep.store.records import SessionKey

# Makes AG-UI's events of a session and of the items of one of its runs.

PROTOCOL_VERSION = "1.0"


def write_frames(events: Sequence[Json]) -> bytes:
    """The events as frames of a stream, with the time that it is."""
    now = int(time.time() * 1000)
    return b"".join([b"data: %b\n\n" % encode({**event, "timestamp": now}) for event in events])


# The messages of a session.


def show_messages(session_id: str, state: State) -> list[Json]:
    """The messages of a session as clients hold them."""
    names = Numbering()
    found = []
    for entry in state.messages:
        name = names.name(entry)
        if not entry.removed and not (entry.is_correction and entry.role == "user"):
            shown = _show_entry(session_id, entry, name)
            if shown is not None:
                found.append(shown)
    return found


def _show_entry(session_id: str, entry: Entry, name: str) -> Json | None:
    message = entry.shown_message
    base: Json = {"id": name, "role": entry.role}
    author = message.get("name")
    match entry.role:
        case "user" | "system" | "developer":
            if isinstance(author, str):
                base["name"] = author
            content = message.get("content")
            is_text = entry.role != "user" or not isinstance(content, list)
            return {**base, "content": join_text(content) if is_text else _show_parts(session_id, content)}
        case "assistant":
            text, calls = read_reply_text(message), list_shown_calls(entry)
            if not text and not calls:
                return None
            shown = {**base, **_name_sender(message), "content": text}
            return {**shown, "toolCalls": calls} if calls else shown
        case "tool":
            return {
                **base,
                "toolCallId": str(message.get("tool_call_id")),
                "content": join_text(message.get("content")),
            }
        case _:
            return None


def _show_parts(session_id: str, content: Any) -> list[Json]:
    return [shown for part in content if (shown := _show_part(session_id, part)) is not None]


_KINDS = {"image_url": "image", "input_audio": "audio", "file": "document"}


def _show_part(session_id: str, part: Any) -> Json | None:
    reference = read_reference(part)
    if reference is not None:
        place = f"/v1/sessions/{session_id}/blobs/{reference.sha256}"
        source = {"type": "url", "value": place, "mimeType": reference.media_type}
        return {"type": _KINDS[part["type"]], "source": source}
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return {"type": "image", "source": {"type": "url", "value": url}}
        case _:
            return None


def _name_sender(message: Json) -> Json:
    sender = message.get("sender")
    return {"name": sender} if isinstance(sender, str) and sender else {}


def read_reply_text(message: Json) -> str:
    """What a reply says, or the words in which its model refused."""
    refusal = message.get("refusal")
    return join_text(message.get("content")) or (refusal if isinstance(refusal, str) else "")


def list_shown_calls(entry: Entry) -> list[Json]:
    """The calls of a reply, with arguments that are JSON: those of one that was cut are not."""
    calls: list[Json] = entry.chat_message.get("tool_calls") or []
    return calls


# JSON Patch.


def make_patch(before: Json, after: Json) -> list[Json]:
    """The operations (RFC 6902) that lead from one state to another: each applies to what stands there.

    Objects are gone into, any other value is replaced as a whole.
    """
    operations: list[Json] = []
    # Not by recursion: values may be nested as deeply as JSON may be.
    waiting = [("", before, after)]
    while waiting:
        path, old, new = waiting.pop()
        for key in old:
            if key not in new:
                operations.append({"op": "remove", "path": f"{path}/{escape_pointer_part(key)}"})
        for key, value in new.items():
            here = f"{path}/{escape_pointer_part(key)}"
            was = old.get(key)
            if key not in old:
                operations.append({"op": "add", "path": here, "value": value})
            elif was is not value and isinstance(was, dict) and isinstance(value, dict):
                waiting.append((here, was, value))
            elif was is not value and encode(was) != encode(value):
                operations.append({"op": "replace", "path": here, "value": value})
    return operations


# The tokens of a run, by model.

_TOKENS = (("inputTokens", "prompt_tokens"), ("outputTokens", "completion_tokens"), ("totalTokens", "total_tokens"))


class TokenSums:
    def __init__(self) -> None:
        self._sums: dict[str | None, dict[str, int]] = {}

    def add(self, completion: CompletionRecord) -> None:
        counts = completion.usage
        if not counts:
            return
        sums = self._sums.setdefault(completion.model, {})
        for name, key in _TOKENS:
            sums[name] = sums.get(name, 0) + read_count(counts.get(key))

    def show(self) -> Json:
        """The `usage` of a run's last event, if any is known."""
        found = [({} if model is None else {"model": model}) | sums for model, sums in self._sums.items()]
        return {"usage": found} if found else {}


# The events of a run.


class OpenText:
    """A message whose text is being shown."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pieces: list[str] = []


class RunEvents:
    """Makes the events of a run from its items, which come in order.

    `context` is what the client holds as its state, `shown` the ids of the messages that it has, and `answered` the
    calls that it has answered. `run_id` is the client's own id of the run. `turns`: the number of replies before.
    """

    def __init__(
        self,
        thread_id: str,
        run_id: str,
        context: Json,
        *,
        parent_run_id: str | None = None,
        shown: Collection[str] = (),
        answered: Collection[str] = (),
        turns: int = 0,
    ) -> None:
        self._thread = {"threadId": thread_id, "runId": run_id}
        self._parent = {} if parent_run_id is None else {"parentRunId": parent_run_id}
        self._session_id = thread_id
        self._context = context
        self._shown = shown
        self._answered = answered
        self._turns = turns
        self._attempts = 0
        self._open: OpenText | None = None
        self._tokens = TokenSums()
        self.is_behind = False
        """Whether the client lacks messages, or was shown some that are not recorded so: it gets all at the end."""

    def begin(self, messages: Sequence[Json] | None, run_id: str | None = None) -> bytes:
        """The first frames: the state, and all messages where the client lacks some. `run_id`: the run's id here."""
        more: Json = {} if run_id is None else {"metadata": {"swarmkeep": {"runId": run_id}}}
        events: list[Json] = [
            {"type": "RUN_STARTED", **self._thread, **self._parent, "protocolVersion": PROTOCOL_VERSION, **more}
        ]
        if messages is not None:
            events.append({"type": "MESSAGES_SNAPSHOT", "messages": messages})
        events.append({"type": "STATE_SNAPSHOT", "snapshot": self._context})
        return write_frames(events)

    def write(self, batch: Batch) -> Written:
        """The frames of a batch of items."""
        events = [event for item in batch for event in self.read(item)]
        return write_frames(events) if events else b"", None

    def read(self, item: Item) -> Iterator[Json]:
        """Take an item in. Gives the events that it makes."""
        match item:
            case MessageStarted():
                yield from self._abandon()
            case MessageDeltas():
                for delta in item.deltas:
                    if piece := delta.get("content"):
                        yield from self._say(piece, item.run_id, item.agent)
            case RecordedEvent():
                fact = item.fact
                if isinstance(fact, MessageAdded):
                    yield from self._read_message(item, fact)
                elif isinstance(fact, ContextUpdated):
                    yield from self.move_state(apply(self._context, fact.patch, fact.nulls or ()))

    def move_state(self, context: Json) -> Iterator[Json]:
        """The change of the client's state to this one, if it is another."""
        patch = make_patch(self._context, context)
        self._context = context
        if patch:
            yield {"type": "STATE_DELTA", "delta": patch}

    # Text, as it comes.

    def _say(self, piece: str, run_id: str, agent: str) -> Iterator[Json]:
        if self._open is None:
            yield from self._begin_text(run_id, {"name": agent} if agent else {})
        assert self._open is not None
        self._open.pieces.append(piece)
        yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": self._open.name, "delta": piece}

    def _begin_text(self, run_id: str, author: Json) -> Iterator[Json]:
        name = make_reply_id(run_id, self._turns)
        self._open = OpenText(f"{name}.{self._attempts}" if self._attempts else name)
        yield {"type": "TEXT_MESSAGE_START", "messageId": self._open.name, "role": "assistant", **author}

    def _end_text(self) -> Iterator[Json]:
        if self._open is not None:
            yield {"type": "TEXT_MESSAGE_END", "messageId": self._open.name}
            self._open = None

    def _abandon(self) -> Iterator[Json]:
        """End what was shown of a reply that will not be recorded so: its server has died, and the model is asked
        again."""
        if self._open is not None:
            yield from self._end_text()
            self._attempts += 1
            self.is_behind = True

    # What is recorded.

    def _read_message(self, event: RecordedEvent, fact: MessageAdded) -> Iterator[Json]:
        entry = Entry(seq=event.seq, at=event.at, run_id=event.run_id, message=fact.message, completion=fact.completion)
        match entry.role:
            case "assistant":
                yield from self._read_reply(entry)
            case "tool":
                yield from self._read_result(entry, fact)
            case "user" | "system" | "developer" if fact.correction is UNSET:
                name = make_entry_id(entry.seq, entry.message)
                if name not in self._shown:
                    yield from self._write_text(name, entry.role, {}, join_text(entry.message.get("content")))

    def _read_reply(self, entry: Entry) -> Iterator[Json]:
        text, calls = read_reply_text(entry.message), list_shown_calls(entry)
        if entry.completion is None or entry.run_id is None:
            yield from self._end_text()
            name = make_entry_id(entry.seq, entry.message)
            if name not in self._shown and (text or calls):
                yield from self._write_text(name, "assistant", _name_sender(entry.message), text)
        else:
            self._tokens.add(entry.completion)
            said = "" if self._open is None else "".join(self._open.pieces)
            if not text.startswith(said):
                yield from self._abandon()
                said = ""
            if self._open is None and (text or calls):
                # Calls have a message that they belong to, if an empty one.
                yield from self._begin_text(entry.run_id, _name_sender(entry.message))
            name = "" if self._open is None else self._open.name
            if len(text) > len(said):
                yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": name, "delta": text[len(said) :]}
            yield from self._end_text()
            self._turns += 1
            self._attempts = 0
        for call in calls:
            yield from _write_call(call, name)

    def _write_text(self, name: str, role: str, author: Json, text: str) -> Iterator[Json]:
        yield {"type": "TEXT_MESSAGE_START", "messageId": name, "role": role, **author}
        if text:
            yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": name, "delta": text}
        yield {"type": "TEXT_MESSAGE_END", "messageId": name}

    def _read_result(self, entry: Entry, fact: MessageAdded) -> Iterator[Json]:
        call_id = str(entry.message.get("tool_call_id"))
        if call_id in self._answered:
            return
        result = {
            "type": "TOOL_CALL_RESULT",
            "messageId": make_entry_id(entry.seq, entry.message),
            "toolCallId": call_id,
            "role": "tool",
            "content": join_text(entry.message.get("content")),
        }
        status = None if fact.tool is None else fact.tool.status
        yield result if status in (None, "ok") else {**result, "metadata": {"swarmkeep": {"status": status}}}

    # The end.

    def finish(self, state: State, run: Run | None) -> bytes:
        """The last frames, once the run has ended or waits. Without a run there was nothing to do."""
        events = [*self._end_text(), *self.move_state(state.context_variables)]
        ending = self._make_ending(state, run)
        outcome = ending.get("outcome") or {}
        if self.is_behind or outcome.get("type") == "interrupt":
            events.append({"type": "MESSAGES_SNAPSHOT", "messages": show_messages(self._session_id, state)})
        return write_frames([*events, ending])

    def _make_ending(self, state: State, run: Run | None) -> Json:
        finished: Json = {"type": "RUN_FINISHED", **self._thread, **self._tokens.show()}
        if run is None:
            return {**finished, "outcome": {"type": "success"}}
        view = view_run(self._session_id, state, run)
        stopped = {"metadata": {"swarmkeep": {"stopReason": view.stop_reason}}}
        if view.status == "waiting":
            interrupts = list_interrupts(run.id, view.pending)
            if interrupts:
                return {**finished, "outcome": {"type": "interrupt", "interrupts": interrupts}}
            waits = [call.tool_call_id for call in view.pending if call.reason == "tool_results"]
            return {**finished, **stopped, "outcome": {"type": "success", "pendingToolCallIds": waits}}
        if view.status == "cancelled":
            return {**finished, "outcome": {"type": "cancelled"}}
        if view.status == "completed":
            result = {} if view.output is None else {"result": view.output}
            return {**finished, **result, **stopped, "outcome": {"type": "success"}}
        error = view.error
        said = f"the run was {view.status}" if error is None else error.message
        code = (view.stop_reason or view.status) if error is None else error.code
        return {"type": "RUN_ERROR", "message": said, "code": code, **self._tokens.show()}


def _write_call(call: Json, parent: str) -> Iterator[Json]:
    function, base = call["function"], {"toolCallId": call["id"]}
    yield {"type": "TOOL_CALL_START", **base, "toolCallName": function["name"], "parentMessageId": parent}
    yield {"type": "TOOL_CALL_ARGS", **base, "delta": function["arguments"]}
    yield {"type": "TOOL_CALL_END", **base}


def show_sent(sent: Sent, given: Sequence[Json]) -> Json:
    """A message of a request as its client has it."""
    found = given[sent.place]
    kept = ("id", "role", "content", "name", "toolCallId", "error", "toolCalls")
    return {key: found[key] for key in kept if found.get(key) is not None}


# What a request asks for: to start a run, to have one go on that waits, or to be shown what there is.

PREFIX = "/agui"

# Histories of so many messages are gone through on the event loop.
_FEW_MESSAGES = 200
# So often a request is decided on again where another one was faster.
_ATTEMPTS = 3

Frames = AsyncGenerator[bytes]


class _Exchange:
    """A request, and the frames of its answer."""

    def __init__(self, principal: Principal, given: Given, idempotency: IdempotentRequest) -> None:
        self._principal = principal
        self._key = SessionKey(principal.tenant, given.thread_id)
        self._given = given
        self._idempotency = idempotency

    async def decide(self) -> Frames:
        """Do what the request asks for. Returns the frames of its answer once that is durable."""
        for left in reversed(range(_ATTEMPTS)):
            try:
                return await self._decide_once()
            except (SessionExists, SessionBusy):
                if not left:
                    raise
        raise AssertionError

    async def _decide_once(self) -> Frames:
        principal, key, given = self._principal, self._key, self._given
        try:
            state = await principal.reader.state(key)
        except SessionNotFound:
            return await self._make_session()
        record = await find_record(principal.store, key, self._idempotency)
        if record is not None:
            return await self._join(state, record.run_id)
        new = await run_aside(self._is_long(state), find_new, given.messages, state)
        if state.run is not None and state.run.status == "waiting":
            answers = read_answers(principal, state, state.run, given, new)
            if answers is None:
                return await self._join(state)
            refuse_damaged(key.id, state)
            return await self._resume(state, state.run, answers, new)
        refuse_resume(state, given.resume)
        if not new:
            return await self._join(state)
        refuse_damaged(key.id, state)
        return await self._start(state, new)

    def _is_long(self, state: State) -> bool:
        return len(self._given.messages) + len(state.messages) > _FEW_MESSAGES

    async def _make_session(self) -> Frames:
        """Start the first run of a session, which begins with what was said before."""
        principal, given = self._principal, self._given
        refuse_resume(None, given.resume)
        check_new_id(self._key.id, "/threadId")
        messages = [sent.message for sent in given.messages]
        end = split_history(given.messages)
        if end == len(messages):
            return self._write_nothing()
        principal.require("run")
        await run_aside(len(messages) > _FEW_MESSAGES, refuse_stray_results, messages, "/messages")
        engine = principal.engine
        passing = await engine.unstored.find_passing(principal.tenant, given.agent, messages[:end]) if end else []
        history = [messages[place] for place in passing]
        plan = await engine.sessions.plan(agent=given.agent, messages=history, context_variables=given.state)
        return await self._start(plan.state, given.messages[end:], plan)

    async def _write_nothing(self) -> Frames:
        events = self._make_events(self._given.state)
        yield events.begin(None)
        yield events.finish(State(context_variables=self._given.state), None)

    async def _start(self, state: State, new: Sequence[Sent], plan: SessionPlan | None = None) -> Frames:
        principal, key, given = self._principal, self._key, self._given
        principal.require("run")
        principal.refuse_as_user()
        change = find_state_change(state.context_variables, given.state)
        command = StartRun(
            run_id=make_id("run"),
            messages=tuple(sent.message for sent in new),
            options=given.options,
            agent=choose_agent(state, given.agent),
            context_variables=change,
            idempotency_key=self._idempotency.key,
            on_busy="queue",
            behind_waiting=False,
            by=UNSET if principal.name is None else principal.name,
        )
        with open_feed(principal, key) as feed:
            position = await principal.engine.runs.start(key, command, idempotency=self._idempotency, plan=plan)
        if position.repeated:
            return await self._join_repeated(position, feed)
        known = await run_aside(self._is_long(state), show_messages, key.id, state)
        ids = {sent.id for sent in given.messages}
        # Results have another id here than a client gives them.
        is_behind = plan is None and any(message["id"] not in ids for message in known if message["role"] != "tool")
        events = self._make_events(merge(state.context_variables, change), shown=_list_ids(known) | ids)
        events.is_behind = state.run is not None or bool(state.queue)
        shown = [*known, *self._show_given(new)] if is_behind else None
        return self._follow(events, events.begin(shown, position.run_id), position, feed)

    async def _resume(self, state: State, run: Run, answers: Answers, new: Sequence[Sent]) -> Frames:
        """Have a run go on that waits."""
        principal, key, given = self._principal, self._key, self._given
        if answers.approvals or answers.below:
            principal.require("approve")
        if answers.results or new:
            principal.require("run")
        if new:
            principal.refuse_as_user()
        may_run = principal.may("run")
        change = find_state_change(state.context_variables, given.state) if may_run else {}
        if change:
            await principal.engine.sessions.update(key, context_variables=change)
        with open_feed(principal, key) as feed:
            # A caller who may only decide does not say how the run goes on.
            position = await self._give(run, answers, new, given.options if may_run else UNSET)
        if position.repeated:
            return await self._join_repeated(position, feed)
        known = await run_aside(self._is_long(state), show_messages, key.id, state)
        results = [sent for sent in given.messages if sent.message.get("tool_call_id") in answers.answered]
        events = self._make_events(
            merge(state.context_variables, change),
            shown=_list_ids(known) | {sent.id for sent in given.messages},
            answered=answers.answered,
            turns=_count_turns(state, run),
        )
        # With it, results that follow are those of calls that the client has.
        first = events.begin([*known, *self._show_given([*results, *new])], run.id)
        return self._follow(events, first, position, feed)

    async def _give(
        self, run: Run, answers: Answers, new: Sequence[Sent], options: RunOptions | UnsetType
    ) -> RunPosition:
        engine, key = self._principal.engine, self._key
        if answers.below:
            decide = engine.approvals_below.decide
            own, request = answers.approvals, self._idempotency
            return await decide(key, run.id, answers.below, own=own, options=options, idempotency=request)
        return await engine.runs.resume(
            key,
            run.id,
            tool_results=answers.results,
            approvals=answers.approvals,
            messages=[sent.message for sent in new],
            options=options,
            idempotency=self._idempotency,
        )

    async def _join_repeated(self, position: RunPosition, feed: Feed | None) -> Frames:
        if feed is not None:
            feed.close()
        return await self._join(await self._principal.reader.state(self._key), position.run_id)

    async def _join(self, state: State, run_id: str | None = None) -> Frames:
        """Show the session as it is, and follow a run: that one, or else the one that is active, waits, or failed
        last."""
        run = _find_shown(state) if run_id is None else find_run(state, run_id)
        known = await run_aside(self._is_long(state), show_messages, self._key.id, state)
        is_begun = run is not None and run.status != "queued"
        turns = _count_turns(state, run) if run is not None and is_begun else 0
        events = self._make_events(state.context_variables, shown=_list_ids(known), turns=turns)
        events.is_behind = run is not None and not is_begun
        name = None if run is None else run.id
        first = events.begin(known, name)
        if run is None or not is_open(run):
            return self._write(events, name, first)
        return self._follow(events, first, RunPosition(run.id, run.first_seq - 1), after=state.seq)

    def _make_events(self, context: Json, **more: Any) -> RunEvents:
        given = self._given
        return RunEvents(self._key.id, given.run_id, context, parent_run_id=given.body.parent_run_id, **more)

    def _show_given(self, sent: Sequence[Sent]) -> list[Json]:
        return [show_sent(each, self._given.body.messages) for each in sent]

    def _follow(
        self,
        events: RunEvents,
        first: bytes,
        position: RunPosition,
        feed: Feed | None = None,
        *,
        after: int | None = None,
    ) -> Frames:
        """The first frames, those of the run's items, and last those of its end.

        While the server stops, its own runs are seen to their end; another server's run is left without one.
        """
        bind_fields(session_id=self._key.id, run_id=position.run_id)
        batches = self._principal.reader.follow_run_batches(self._key, position, after=after, feed=feed)
        return self._write(events, position.run_id, first, batches)

    async def _write(
        self, events: RunEvents, run_id: str | None, first: bytes, batches: AsyncGenerator[Batch] | None = None
    ) -> Frames:
        write_end = partial(self._write_end, events, run_id)
        yield first
        if batches is None:
            yield await write_end()
            return
        check = StreamCheck(self._principal, self._key, stop=self._principal.service.drained)
        async with aclosing(write_parts(check, batches, events.write, write_end)) as parts:
            async for part in parts:
                yield part

    async def _write_end(self, events: RunEvents, run_id: str | None) -> bytes:
        if not await self._principal.is_still_allowed():
            return b""
        try:
            state = await self._principal.reader.state(self._key)
        except SessionNotFound:
            return b""
        run = None if run_id is None else find_run(state, run_id)
        if is_open(run):
            return b""
        return await run_aside(len(state.messages) > _FEW_MESSAGES, events.finish, state, run)


def _list_ids(messages: Sequence[Json]) -> set[str]:
    return {message["id"] for message in messages}


def _count_turns(state: State, run: Run) -> int:
    entries = state.messages[run.first_message : run.last_message]
    return sum(
        entry.role == "assistant" and entry.completion is not None and entry.run_id == run.id for entry in entries
    )


def _find_shown(state: State) -> Run | None:
    if state.run is not None:
        return state.run
    if state.queue:
        return find_run(state, state.queue[0].run_id)
    # A caller who sends the same messages again is told that there is no answer to them.
    last = state.finished[-1] if len(state.finished) else None
    return last if last is not None and last.status in ("failed", "interrupted") else None


# The route.


@post(
    f"{PREFIX}/{{name:path}}",
    status_code=200,
    summary="Run an agent for an AG-UI client",
    opt={PERMISSION: ("run", "approve")},
    media_type=EVENT_STREAM,
    response_description="Server-sent events of AG-UI, from `RUN_STARTED` to `RUN_FINISHED` or `RUN_ERROR`",
    responses=problem_specs(
        "agent_not_found",
        "session_exists",
        "session_busy",
        "run_not_waiting",
        "already_decided",
        "arguments_changed",
        "agent_unavailable",
        "draining",
        *CODES_OF_CHANGES,
    ),
)
async def run_agui(
    request: Request[Any, Any, Any],
    name: AgentName,
    data: JSONBody[RunAgentInput],
    principal: NamedDependency[Principal],
) -> Response[Any]:
    """The thread is a session. A request that is sent again, with the same `runId`, has its effect once: it joins the
    run. Approvals need the permission `approve`, everything else `run`.
    """
    agent = read_name(request, f"{PREFIX}/")
    given = await run_aside(is_heavy(data.messages, data.tools, data.state), read_input, principal, agent, data)
    refuse_wrong_functions(given.options, principal.engine.registry)
    idempotency = await principal.read_idempotency() or await _identify(request, data.run_id)
    return make_event_stream(principal, await _Exchange(principal, given, idempotency).decide())


async def _identify(request: Request[Any, Any, Any], run_id: str) -> IdempotentRequest:
    """What a request is known by when it is sent again: a client chooses another `runId` for another run."""
    said = request.scope["raw_path"] + b"\n" + await request.body()
    return IdempotentRequest(f"agui:{run_id}", hashlib.sha256(said).hexdigest())


ROUTES = [run_agui]
