"""Makes AG-UI's events of a session and of the items of one of its runs.

A reply is shown as it comes; its calls are shown once they are recorded, because a client carries its own out at once.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from msgspec import UNSET

from swarmkeep.agui.given import Numbering, Sent, list_interrupts, make_entry_id, make_reply_id
from swarmkeep.events.codec import Json, encode
from swarmkeep.events.facts import ContextUpdated, MessageAdded, RecordedEvent
from swarmkeep.events.files import read_reference
from swarmkeep.events.messages import Entry
from swarmkeep.events.patch import apply, escape_pointer_part
from swarmkeep.events.records import CompletionRecord, read_count
from swarmkeep.events.state import Run, State
from swarmkeep.events.views import view_run
from swarmkeep.events.wording import join_text
from swarmkeep.http.streams import Written
from swarmkeep.runs.hub import Item, MessageDeltas, MessageStarted
from swarmkeep.runs.reader import Batch

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
