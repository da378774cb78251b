"""The facts that a guardrail's refusal leads to: of new messages, of a reply, of a call."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.domain.codec import Json, MalformedJson, decode, encode_text
from swarmkeep.domain.events import CompletionRecord, GuardrailTripped, MessageAdded, SessionEvent, ToolRecord
from swarmkeep.domain.messages import Entry, find_message, read_tool_calls
from swarmkeep.domain.request import digest
from swarmkeep.domain.run_options import RunOptions
from swarmkeep.domain.state import Run, State
from swarmkeep.domain.views import find_begun_run
from swarmkeep.domain.wording import join_content


class Trip(msgspec.Struct, frozen=True, kw_only=True):
    """A guardrail's refusal. `error`: what it failed with, if that is why."""

    name: str
    message: str
    error: str | None = None


class NewInput(msgspec.Struct, frozen=True, kw_only=True):
    """All that is new to an agent's model since its last look, and that no model of this session has said.

    `history`: what came before the last answer; a refusal takes the exchange out, and the run goes on. `entries`: what
    nobody has answered, and `request`: what the run's caller adds to each request (instructions, functions, formats,
    settings), as messages; a refusal of these ends the run.
    """

    history: tuple[Entry, ...] = ()
    entries: tuple[Entry, ...] = ()
    request: tuple[Json, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.history or self.entries or self.request)


class InputVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What guardrails say of new input: the refusal of `entries` and all that came with them, which ends the run, and
    the refused exchanges of the `past`."""

    trip: Trip | None = None
    entries: tuple[Entry, ...] = ()
    past: tuple[tuple[Trip, tuple[Entry, ...]], ...] = ()

    def list_facts(self, agent: str) -> list[SessionEvent]:
        """Return what is recorded of it."""
        facts = refuse_history(self.past)
        return facts if self.trip is None else [*facts, *refuse_input(agent, self.trip, self.entries)]


def find_new_input(state: State, run: Run | None, agent: str) -> NewInput:
    """Return what this agent's input guardrails are asked about before its model is. Every door comes through here.

    The agent has looked at what came before its last reply, or before the last answer that stood for one.
    """
    messages = state.messages
    start = len(messages) if run is None else run.first_message
    found, replies, index = [], 0, len(messages) - 1
    while index >= start:
        entry = messages[index]
        replies += entry.completion is not None
        if _is_look(state, index, agent):
            break
        if _is_brought(state, entry):
            found.append(entry)
        index -= 1
    has_looked = index >= start
    request = () if run is None or (has_looked and replies <= run.turns - run.turns_before) else _list_request(run)
    history: list[Entry] = []
    is_answered = False
    while not has_looked and index >= 0 and not _is_look(state, index, agent):
        entry = messages[index]
        is_answered = is_answered or _is_answer(entry)
        if _is_brought(state, entry):
            (history if is_answered else found).append(entry)
        index -= 1
    return NewInput(history=tuple(history[::-1]), entries=tuple(found[::-1]), request=request)


def _is_look(state: State, index: int, agent: str) -> bool:
    """Return whether the agent's guardrails were asked before this was said: it is a reply, or stands for one."""
    entry = state.messages[index]
    if entry.role != "assistant" or entry.message.get("sender") != agent:
        return False
    if entry.completion is not None or entry.guardrail is None or entry.run_id is None:
        return entry.completion is not None
    # What was refused may claim anything; what stands for an answer is the last of its run.
    run = find_begun_run(state, entry.run_id)
    return run is not None and run.tripped and run.last_message == index + 1


def _is_answer(entry: Entry) -> bool:
    return entry.completion is not None or (entry.role == "assistant" and entry.person is None)


def _is_brought(state: State, entry: Entry) -> bool:
    """Return whether a caller brought it: neither a model's, nor the server's, nor a person's of the team."""
    if entry.completion is not None or entry.is_unsent or entry.is_correction or entry.removed:
        return False
    return entry.person is None and (entry.tool is None or _is_outside_result(state, entry, entry.tool))


def _is_outside_result(state: State, entry: Entry, tool: ToolRecord) -> bool:
    """Return whether a caller delivered it. What the agent's own functions give is no input."""
    if tool.status == "external" or entry.run_id is None:
        return True
    run = find_begun_run(state, entry.run_id) if tool.status == "error" else None
    return run is not None and (not run.options.execute_tools or tool.name in run.options.caller_tool_names)


def _list_request(run: Run) -> tuple[Json, ...]:
    """Return what a run's caller adds to its requests, as messages: the texts in it, each on a line."""
    options = run.options
    added: list[object] = [options.instructions]
    added += [msgspec.to_builtins(tool) for tool in options.caller_tools]
    added += [options.response_format, options.model_settings]
    texts = ["\n".join(list_texts(value)) for value in added if value is not UNSET and value]
    return tuple({"role": "developer", "content": text} for text in texts if text)


def describe_message(message: Json) -> Json:
    """Return a message as input guardrails get it: all that its model reads of it is in its content, too."""
    calls = message.get("tool_calls") or () if message.get("role") == "assistant" else ()
    refusal = message.get("refusal")
    texts = [refusal] if isinstance(refusal, str) and refusal else []
    # Both go to the model with the message.
    texts += list_texts([message.get("name"), message.get("provider")])
    for _, name, arguments in read_tool_calls(message) if calls else ():
        texts += [name, arguments, *read_decoded_texts(arguments)]
    content = message.get("content")
    if isinstance(content, str) and (decoded := read_decoded_texts(content)):
        texts += decoded
    if not texts:
        return {**message, "content": ""} if content is None else dict(message)
    if isinstance(content, list):
        return {**message, "content": [*content, {"type": "text", "text": "\n".join(texts)}]}
    return {**message, "content": "\n".join([*([content] if isinstance(content, str) and content else []), *texts])}


def list_texts(value: object) -> list[str]:
    """Return all texts of a JSON value in order, keys and numbers among them."""
    found: list[str] = []
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            for key, each in reversed(item.items()):
                left += (each, key)
        elif isinstance(item, list | tuple):
            left += reversed(item)
        elif item is not None:
            found.append(item if isinstance(item, str) else encode_text(item))
    return found


_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")


def read_decoded_texts(text: str) -> list[str]:
    """Return what a JSON text says to those who decode it, if that is not what stands there: `"\\u0041"` says A.

    A text that is not whole JSON, or is JSON in part, is given with its escapes replaced.
    """
    if "\\" not in text:
        return []
    try:
        return list_texts(decode(text))
    except MalformedJson:
        replaced = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
        return [] if replaced == text else [replaced]


def refuse_input(agent: str, trip: Trip, entries: Sequence[Entry]) -> list[SessionEvent]:
    """The refusal of new messages, and the answer that stands for it."""
    refused = tuple(entry.seq for entry in entries)
    return [
        _make_tripped("input", trip, messages=refused),
        MessageAdded(message=_answer(agent, trip), guardrail=trip.name),
    ]


def refuse_history(refused: Sequence[tuple[Trip, Sequence[Entry]]]) -> list[SessionEvent]:
    """The refusals of exchanges that were brought along. No model is sent them; the run goes on without."""
    return [_make_tripped("history", trip, messages=tuple(entry.seq for entry in entries)) for trip, entries in refused]


def leave_out_recorded(state: State, run: Run, facts: list[SessionEvent]) -> list[SessionEvent]:
    """Return the facts, unless an attempt to record them that failed was made after all."""
    if run.tripped:
        return []
    known = (find_message(state.messages, seq) for fact in facts[:1] for seq in _list_refused(fact))
    return [] if any(at is not None and state.messages[at].is_unsent for at in known) else facts


def _list_refused(fact: SessionEvent) -> tuple[int, ...]:
    return () if not isinstance(fact, GuardrailTripped) or fact.messages is UNSET else fact.messages


def refuse_reply(agent: str, trip: Trip, text: str, completion: CompletionRecord) -> list[SessionEvent]:
    """The answer that stands in the place of a reply, and the refusal. Of the reply itself only the digest stays."""
    said = MessageAdded(message=_answer(agent, trip), completion=completion, guardrail=trip.name)
    return [said, _make_tripped("output", trip, digest=digest(text))]


def refuse_call(trip: Trip, call_id: str) -> list[SessionEvent]:
    return [_make_tripped("tool", trip, tool_call_id=call_id)]


def read_passing_texts(message: Json, output_tool: str | None, options: RunOptions) -> list[str]:
    """What a reply says to people, whether it asks for functions besides or not: as it stands there, and, if that is
    something else, as those read it who decode it. `output_tool` takes the output; what is asked of functions that are
    not called here leaves the server, too."""
    texts = [join_content(message.get("content")), join_content(message.get("refusal"))]
    for call in message.get("tool_calls") or ():
        name = call["function"]["name"]
        if name == output_tool or name in options.caller_tool_names or not options.execute_tools:
            texts.append(call["function"]["arguments"])
    decoded = [each for text in texts for each in read_decoded_texts(text)]
    return ["\n".join(text for text in part if text) for part in (texts, decoded) if any(part)]


def _answer(agent: str, trip: Trip) -> Json:
    return {"role": "assistant", "content": trip.message, "sender": agent}


def _make_tripped(
    stage: str,
    trip: Trip,
    *,
    messages: tuple[int, ...] | UnsetType = UNSET,
    tool_call_id: str | UnsetType = UNSET,
    digest: str | UnsetType = UNSET,
) -> GuardrailTripped:
    return GuardrailTripped(
        stage=stage,
        name=trip.name,
        message=trip.message,
        error=UNSET if trip.error is None else trip.error,
        messages=messages,
        tool_call_id=tool_call_id,
        digest=digest,
    )
