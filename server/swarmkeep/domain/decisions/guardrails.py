"""The facts that a guardrail's refusal leads to: of new messages, of a reply, of a call."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.domain.chain import Chain, work_out
from swarmkeep.domain.codec import Json
from swarmkeep.domain.events import CompletionRecord, GuardrailTripped, MessageAdded, SessionEvent
from swarmkeep.domain.messages import Entry
from swarmkeep.domain.request import digest
from swarmkeep.domain.run_options import RunOptions
from swarmkeep.domain.state import Run, State
from swarmkeep.domain.wording import join_content

# Results of calls are answers to a model; whoever delivers them is no part of the conversation.
_INPUT_ROLES = ("user", "system", "developer", "assistant")


class Trip(msgspec.Struct, frozen=True, kw_only=True):
    """A guardrail's refusal. `error`: what it failed with, if that is why."""

    name: str
    message: str
    error: str | None = None


def find_new_input(state: State, run: Run, agent: str) -> list[Entry]:
    """The messages that this agent's model would see for the first time, and that no model has said.

    They are those of the run since the agent's last reply in it; and before the run, those since the last answer.
    """
    found: list[Entry] = []
    for index in range(len(state.messages) - 1, run.first_message - 1, -1):
        entry = state.messages[index]
        if _is_beside(entry):
            continue
        if entry.completion is not None:
            if entry.message.get("sender") == agent:
                return found[::-1]
        elif entry.role in _INPUT_ROLES and not entry.removed:
            found.append(entry)
    return [*_find_unanswered(state.messages, run.first_message).entries, *reversed(found)]


class _Unanswered(msgspec.Struct, frozen=True):
    """What of the first `upto` messages nobody has answered."""

    upto: int = 0
    entries: tuple[Entry, ...] = ()


def _find_unanswered(messages: Chain[Entry], upto: int) -> _Unanswered:
    """Kept with a session's messages: however many were refused in a row, only the new ones are looked at."""
    return work_out(messages, _Unanswered, _add_input, upto)


def _add_input(known: _Unanswered, later: Sequence[Entry]) -> _Unanswered:
    entries = list(known.entries)
    for entry in later:
        if _is_beside(entry):
            continue
        if entry.completion is not None or entry.role == "assistant":
            entries.clear()
        elif entry.role in _INPUT_ROLES and not entry.removed:
            entries.append(entry)
    return _Unanswered(known.upto + len(later), tuple(entries))


def _is_beside(entry: Entry) -> bool:
    """Whether it is neither new input nor an answer that a model gave to some, as what a person wrote in the agent's
    place."""
    return entry.is_unsent or entry.is_correction or entry.tool is not None or entry.person is not None


def refuse_input(agent: str, trip: Trip, entries: Sequence[Entry]) -> list[SessionEvent]:
    """The refusal of new messages, and the answer that stands for it."""
    refused = tuple(entry.seq for entry in entries)
    return [
        _make_tripped("input", trip, messages=refused),
        MessageAdded(message=_answer(agent, trip), guardrail=trip.name),
    ]


def refuse_reply(agent: str, trip: Trip, text: str, completion: CompletionRecord) -> list[SessionEvent]:
    """The answer that stands in the place of a reply, and the refusal. Of the reply itself only the digest stays."""
    said = MessageAdded(message=_answer(agent, trip), completion=completion, guardrail=trip.name)
    return [said, _make_tripped("output", trip, digest=digest(text))]


def refuse_call(trip: Trip, call_id: str) -> list[SessionEvent]:
    return [_make_tripped("tool", trip, tool_call_id=call_id)]


def read_passing_text(message: Json, output_tool: str | None, options: RunOptions) -> str:
    """What a reply says to people, whether it asks for functions besides or not. `output_tool` takes the output; what
    is asked of functions that are not called here leaves the server, too."""
    texts = [join_content(message.get("content")), join_content(message.get("refusal"))]
    for call in message.get("tool_calls") or ():
        name = call["function"]["name"]
        if name == output_tool or name in options.caller_tool_names or not options.execute_tools:
            texts.append(call["function"]["arguments"])
    return "\n".join(text for text in texts if text)


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
