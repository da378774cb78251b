"""The facts that a turn leaves behind: a reply, a result, an end."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.decide.drafts import await_session
from swarmkeep.events.codec import Json, MalformedJson, decode, digest, encode_text
from swarmkeep.events.facts import (
    ApprovalRequested,
    AwaitedApproval,
    ContextUpdated,
    GuardrailTripped,
    HandoffIgnored,
    HandoffMade,
    MessageAdded,
    PendingCall,
    RunCancelled,
    RunCompleted,
    RunError,
    RunFailed,
    RunInterrupted,
    RunWaiting,
    SessionAssigned,
    SessionEvent,
    StopReason,
    ToolStarted,
    ToolStatus,
)
from swarmkeep.events.messages import Entry, find_cut_calls, find_message, read_tool_calls
from swarmkeep.events.model_profiles import hide_attached
from swarmkeep.events.patch import apply, apply_change, diff, has_effect
from swarmkeep.events.records import (
    CompletionRecord,
    ContextChange,
    RunOptions,
    ToolRecord,
    Usage,
    read_usage,
    sum_usage,
)
from swarmkeep.events.state import NOTHING_SAID, PartialReply, Run, State, ToolCall, make_calls
from swarmkeep.events.views import find_begun_run
from swarmkeep.events.wording import CORRECTOR, join_content

# Calls of one reply that run at once: which of them start together, and how what they change comes into their
# order.

MAX_AT_ONCE = 16


def find_batch(
    run: Run, concurrent: Collection[str], guarded: Collection[str], *, max_calls: int = MAX_AT_ONCE
) -> tuple[ToolCall, ...]:
    """The calls that start together now: those to functions named in `concurrent` that come next, side by side.

    One that waits for an approval, or has yet to be approved because it is to a function named in `guarded`, is left
    out, and does not keep the others back. Any other function does: what comes after it starts once it is done.
    """
    batch: list[ToolCall] = []
    for call in run.own_open_calls:
        if call.name not in concurrent or len(batch) == max_calls:
            break
        needs_approval = call.imported or call.name in guarded
        if not call.attempts and (call.approval == "approve" or (call.approval is None and not needs_approval)):
            batch.append(call)
    return tuple(batch)


def hold_change(run: Run, call: ToolCall, change: ContextChange | None) -> ContextChange | UnsetType:
    """The change, if it has to wait for a call before this one."""
    return UNSET if change is None or call.id in _find_next_in_order(run) else change


def make_changes(
    state: State, run: Run, ended: ToolCall | None = None, change: ContextChange | None = None
) -> list[ContextUpdated]:
    """The changes of the context that wait for nothing any more now that this call has ended, its own among them; or,
    without one, all that wait."""
    pending = _list_changes(run, ended, change)
    if not pending:
        return []
    facts: list[ContextUpdated] = []
    context = state.context_variables
    free = None if ended is None else _find_next_in_order(run, ended.id)
    for call, made in pending:
        if free is not None and call.id not in free:
            break
        fact = _describe_change(context, call, made)
        nulls = () if fact.nulls is UNSET else fact.nulls
        # One that was held says that it is made, whether or not anything is different for it.
        if call.held is not None or has_effect(context, fact.patch, nulls):
            facts.append(fact)
        context = apply(context, fact.patch, nulls)
    return facts


def preview_contexts(state: State, run: Run, ended: ToolCall, change: ContextChange) -> Iterator[Json]:
    """The context after each of the changes that are known by now, with that of a call that has just ended."""
    context = state.context_variables
    for _, made in _list_changes(run, ended, change):
        context = apply_change(context, made)
        yield context


def _list_changes(
    run: Run, ended: ToolCall | None, change: ContextChange | None
) -> list[tuple[ToolCall, ContextChange]]:
    """The changes that have yet to be made, in the order of the calls."""
    found = ((call, change if ended is not None and call.id == ended.id else call.held) for call in run.calls)
    return [(call, made) for call, made in found if made is not None]


def _find_next_in_order(run: Run, ended: str = "") -> set[str]:
    """The calls with no other before them that is still to be carried out here; `ended` is not, any more."""
    still_open = {call.id for call in run.own_open_calls if call.id != ended}
    found: set[str] = set()
    for call in run.calls:
        found.add(call.id)
        if call.id in still_open:
            break
    return found


def _describe_change(context: Json, call: ToolCall, change: ContextChange) -> ContextUpdated:
    if change.values is UNSET:
        return ContextUpdated(patch=change.patch, tool_call_id=call.id, nulls=change.nulls)
    patch, nulls = diff(context, apply_change(context, change))
    return ContextUpdated(patch=patch, tool_call_id=call.id, nulls=nulls or UNSET)


# The facts that a guardrail's refusal leads to: of new messages, of a reply, of a call.


class Trip(msgspec.Struct, frozen=True, kw_only=True):
    """A guardrail's refusal. `error`: what it failed with, if that is why."""

    name: str
    message: str
    error: str | None = None


class NewInput(msgspec.Struct, frozen=True, kw_only=True):
    """All that is new to an agent's model since its last look, and that no model of this session has said.

    `history`: what came before the last answer; a refusal takes the exchange out, and the run goes on. `entries`: what
    no message answers, and `request`: what the run's caller adds to each request (instructions, functions, formats,
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
    """Return a message as input guardrails get it: all that its model reads of it is in its content, too, but for what
    a model attached: that is opaque, and only ever a model's own."""
    message = hide_attached(message)
    calls = message.get("tool_calls") or () if message.get("role") == "assistant" else ()
    refusal = message.get("refusal")
    texts = [refusal] if isinstance(refusal, str) and refusal else []
    # It goes to the model with the message.
    texts += list_texts(message.get("name"))
    for _, name, arguments in read_tool_calls(message) if calls else ():
        texts += [name, arguments, *chain(*_list_layers([arguments]))]
    content = message.get("content")
    texts += chain(*_list_layers([join_content(content)]))
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


# JSON in a text of JSON is decoded again, but no one does so without end.
_MOST_LAYERS = 3


def _list_layers(texts: list[str]) -> list[list[str]]:
    """Return what texts say to those who decode JSON, if that is not what stands there: `"\\u0041"` says A.

    First as they are with their escapes replaced, since members may be there twice, and some of it may be no JSON; then
    decoded, once and again.
    """
    layers: list[list[str]] = []
    replaced = [_replace_escapes(text) for text in texts]
    if replaced != texts:
        layers.append(replaced)
    for _ in range(_MOST_LAYERS):
        texts = [each for text in texts for each in _decode_texts(text)]
        if texts and texts not in layers:
            layers.append(texts)
    return layers


def _decode_texts(text: str) -> list[str]:
    if "\\" not in text:
        return []
    try:
        return list_texts(decode(text))
    except MalformedJson:
        replaced = _replace_escapes(text)
        return [] if replaced == text else [replaced]


def _replace_escapes(text: str) -> str:
    replaced = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
    if replaced == text:
        return text
    # Two of them may be one character.
    return replaced.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


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
    return ["\n".join(text for text in part if text) for part in (texts, *_list_layers(texts)) if any(part)]


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


EDITED = (
    "[A person changed the arguments of this call before approving it. It was made with: {arguments} What follows "
    "is what came of that.]\n\n"
)


class ToolOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a tool call. `patch` and `nulls` are its change of the context that it was given, as `diff` says
    it.

    Others may have changed the context meanwhile, so the whole of it would take their changes back. `values` are new
    values of whole keys: so a call that runs beside others says what takes the place of theirs. `trip`: the guardrail
    that refused it, so that it did not run. `session_id` and `usage`: see ToolRecord; if the session `waits` for an
    answer, the call has not ended, and `approvals` are to be decided there. `files`: content parts that refer to what
    it gave beside its text, and `file_content` what they refer to, by hash. `assign`: who looks after the session from
    here on.
    """

    status: ToolStatus | str
    content: str
    duration_ms: float = 0.0
    handoff: str | None = None
    patch: Json = {}
    nulls: tuple[str, ...] = ()
    values: Json = {}
    trip: Trip | None = None
    session_id: str | None = None
    usage: Usage | None = None
    waits: bool = False
    approvals: tuple[AwaitedApproval, ...] = ()
    files: tuple[Json, ...] = ()
    file_content: Mapping[str, bytes] = {}
    assign: str | None = None

    @property
    def change(self) -> ContextChange | None:
        if not (self.patch or self.nulls or self.values):
            return None
        return ContextChange(patch=self.patch, nulls=self.nulls or UNSET, values=self.values or UNSET)

    def fail(self, content: str) -> ToolOutcome:
        """The call as one that says this and nothing else: of what it gave and changed nothing is kept."""
        return msgspec.structs.replace(
            self,
            status="error",
            content=content,
            handoff=None,
            patch={},
            nulls=(),
            values={},
            trip=None,
            files=(),
            file_content={},
            assign=None,
        )

    def leave_out_files(self, reason: str) -> ToolOutcome:
        """The same without its files, and with the reason for that."""
        content = f"{self.content}\nNone of these files was kept: {reason}"
        return msgspec.structs.replace(self, content=content, files=(), file_content={})


def record_reply(
    run: Run,
    message: Json,
    completion: CompletionRecord,
    *,
    needs_approval: Collection[str],
    expires_at: str | None,
    bare: Collection[str] = (),
) -> list[SessionEvent]:
    """A model's reply, and a request for each of its whole calls to a tool named in `needs_approval`. Those to `bare`
    functions, which have no parameters, need no arguments to be whole."""
    facts: list[SessionEvent] = [MessageAdded(message=message, completion=completion)]
    if run.options.execute_tools:
        guarded = set(needs_approval) - run.options.caller_tool_names
        cut = find_cut_calls(message, completion) if guarded else {}
        facts += [
            request_approval(call, expires_at)
            for call in make_calls(message)
            if call.name in guarded and (call.id not in cut or (cut[call.id] and call.name in bare))
        ]
    return facts


def request_approval(call: ToolCall, expires_at: str | None) -> ApprovalRequested:
    return ApprovalRequested(tool_call_id=call.id, name=call.name, arguments=call.arguments, expires_at=expires_at)


def request_approvals(run: Run, guarded: Collection[str], expires_at: str | None) -> list[SessionEvent]:
    """Request an approval for each call that has not been started and needs one, if none was requested before.

    One that came by an import needs one in any case: no model has asked for it here.
    """
    return [
        request_approval(call, expires_at)
        for call in run.own_open_calls
        if call.attempts == 0 and call.approval is None and (call.imported or call.name in guarded)
    ]


def record_result(state: State, run: Run, call: ToolCall, outcome: ToolOutcome) -> list[SessionEvent]:
    """A call's result, its change of the context and those that waited for it; with the last open call, the handoff
    that wins.

    Nothing for a call that is not open any more: an attempt to record it that failed may have been made after all.
    """
    if not any(open_call.id == call.id for open_call in run.open_calls):
        return []
    if outcome.waits:
        return record_waits(run, [(call, outcome)])
    message = make_result_message(call, _add_edit_note(call, outcome), state.agent)
    tool = ToolRecord(
        name=call.name,
        status=outcome.status,
        duration_ms=outcome.duration_ms,
        handoff=UNSET if outcome.handoff is None else outcome.handoff,
        context=hold_change(run, call, outcome.change),
        session_id=outcome.session_id or UNSET,
        usage=UNSET if outcome.usage is None else outcome.usage,
        files=outcome.files or UNSET,
    )
    facts: list[SessionEvent] = [] if outcome.trip is None else refuse_call(outcome.trip, call.id)
    facts.append(MessageAdded(message=message, tool=tool))
    facts += make_changes(state, run, call, outcome.change)
    if outcome.assign is not None and outcome.assign != state.assignee:
        facts.append(SessionAssigned(to=outcome.assign, tool_call_id=call.id))
    return facts + finish_calls(state, run, call, outcome.handoff)


def make_result_message(call: ToolCall, content: str, agent: str) -> Json:
    """A call's result as the model of the agent that asked for it reads it; `agent` is the active one."""
    return {
        "role": "tool",
        "tool_call_id": call.id,
        "tool_name": call.name,
        "content": content,
        "sender": call.agent or agent,
    }


def record_waits(run: Run, waiting: Sequence[tuple[ToolCall, ToolOutcome]]) -> list[SessionEvent]:
    """Record that the run waits for the sessions of these calls, as far as they are open still, and for the
    approvals that are requested for others: all that can be decided is pending, in any order of requests."""
    open_ids = {call.id for call in run.open_calls}
    sessions = [
        await_session(call, outcome.session_id, outcome.approvals) for call, outcome in waiting if call.id in open_ids
    ]
    return [RunWaiting(pending=(*sessions, *list_undecided(run)))] if sessions else []


def list_undecided(run: Run) -> tuple[PendingCall, ...]:
    """The calls of a run that wait for an approval of their own."""
    return tuple(make_pending_call(call, "approval") for call in run.own_open_calls if call.approval == "requested")


def make_pending_call(call: ToolCall, stop_reason: StopReason) -> PendingCall:
    return PendingCall(
        tool_call_id=call.id,
        name=call.name,
        arguments=call.arguments,
        reason="approval" if stop_reason == "approval" else "tool_results",
        expires_at=call.expires_at,
    )


def _add_edit_note(call: ToolCall, outcome: ToolOutcome) -> str:
    """Tell the model of a call that was carried out with other arguments than its own, which it sees."""
    if call.original_arguments is None or outcome.status in ("denied", "refused"):
        return outcome.content
    return EDITED.format(arguments=call.arguments) + outcome.content


def finish_calls(state: State, run: Run, call: ToolCall, handoff: str | None = None) -> list[SessionEvent]:
    """With the result of the last open call, the handoff that wins of all that the turn's calls returned."""
    if not all(other.done or other.id == call.id for other in run.calls):
        return []
    return _choose_handoff(state.agent, _list_proposed_handoffs(run, call.id, handoff))


def _list_proposed_handoffs(run: Run, call_id: str = "", handoff: str | None = None) -> list[tuple[str, str]]:
    """The handoffs that the answered calls of the current turn returned, in the order of the calls, with the one that
    is being answered."""
    found = ((call.id, handoff if call.id == call_id else call.handoff) for call in run.calls)
    return [(proposing, to) for proposing, to in found if to is not None]


def _choose_handoff(agent: str, proposed: Sequence[tuple[str, str]]) -> list[SessionEvent]:
    facts: list[SessionEvent] = [
        HandoffIgnored(from_agent=agent, to_agent=to, tool_call_id=call_id) for call_id, to in proposed[:-1]
    ]
    facts += [HandoffMade(from_agent=agent, to_agent=to, tool_call_id=call_id) for call_id, to in proposed[-1:]]
    return facts


Ending = type[RunCompleted] | type[RunFailed] | type[RunCancelled] | type[RunInterrupted]


def end_run(
    state: State,
    run: Run,
    ending: Ending,
    stop_reason: StopReason,
    error: RunError | None = None,
    *,
    partial: PartialReply = NOTHING_SAID,
    reported: Json | None = None,
) -> list[SessionEvent]:
    """The end of an active run. What it produced stays, and so does what its model was saying (`partial`), marked,
    unless that is recorded by now, with the tokens that were `reported` for it.

    A handoff that was to be made with the last of its calls is made now; of one that was interrupted, and may go on, it
    is not. What answered calls change of the context is changed, whether those before them have ended or not.
    """
    if run.open_calls:
        changes = make_changes(state, run)
        proposed = [] if ending is RunInterrupted else _list_proposed_handoffs(run)
        handoffs = _choose_handoff(state.agent, proposed)
        return [*changes, *handoffs, ending(stop_reason=stop_reason, usage=run.usage, error=error)]
    if not partial.is_current(state, run):
        return [ending(stop_reason=stop_reason, usage=run.usage, error=error)]
    message = {"role": "assistant", "content": partial.text, "sender": partial.agent or state.agent}
    completion = CompletionRecord(partial=True, usage=reported, finish_reason=partial.finish_reason)
    said = MessageAdded(message=message, completion=completion)
    return [said, ending(stop_reason=stop_reason, usage=sum_usage(run.usage, read_usage(reported)), error=error)]


def restart_tool(run: Run, call: ToolCall) -> list[SessionEvent]:
    """The start of a call that was started before, if that is still all that has become of it."""
    return [start_tool(call)] if call in run.open_calls else []


def start_tool(call: ToolCall, session_id: str | None = None) -> ToolStarted:
    """The start that must be recorded before a tool runs, whether for the first time or again."""
    return ToolStarted(
        tool_call_id=call.id,
        name=call.name,
        arguments=call.arguments,
        attempt=call.attempts + 1,
        session_id=session_id or UNSET,
    )


def deny_call(call: ToolCall) -> ToolOutcome:
    reason = f" Reason: {call.approval_reason}" if call.approval_reason else ""
    return ToolOutcome(status="denied", content=f"Denied: {call.name} was not approved and did not run.{reason}")


# The facts that a final answer leads to, where it has to be of a certain form: it is taken, sent back, or given up.

OUTPUT_INVALID = "output_invalid"
_TAKEN = "The answer is taken."
_SUPERFLUOUS = "Error: only the first call of this function in a reply counts."


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Of a final answer. `problems` say what is wrong with it; `calls` are those that give it, if calls do: the first
    one counts. `retries`: how many wrong answers of a run are sent back.
    """

    problems: tuple[str, ...]
    retries: int
    calls: tuple[ToolCall, ...] = ()


def record_verdict(run: Run, verdict: Verdict, agent: str, usage: Usage) -> list[SessionEvent]:
    """Record the consequences of a verdict. `run` is as it was before the answer, `usage` includes it."""
    number = run.corrections + 1
    is_last = bool(verdict.problems) and number > verdict.retries
    said = _describe_problems(verdict)
    facts: list[SessionEvent] = []
    for place, call in enumerate(verdict.calls):
        if place:
            facts.append(_answer_call(call, agent, _SUPERFLUOUS, taken=False))
        elif verdict.problems:
            facts.append(_answer_call(call, agent, f"Error: {said}", taken=False, correction=number))
        else:
            facts.append(_answer_call(call, agent, _TAKEN, taken=True))
    if is_last:
        error = RunError(code=OUTPUT_INVALID, message=_describe_failure(number, verdict.problems), retryable=True)
        facts.append(RunFailed(stop_reason="error", usage=usage, error=error))
    elif verdict.problems and not verdict.calls:
        message = {"role": "user", "content": said, "sender": CORRECTOR}
        facts.append(MessageAdded(message=message, correction=number))
    return facts


def _describe_problems(verdict: Verdict) -> str:
    listed = "\n".join(f"- {problem}" for problem in verdict.problems)
    return f"Your answer does not have the form that is needed:\n{listed}\nGive the whole answer again, in that form."


def _describe_failure(count: int, problems: Sequence[str]) -> str:
    answers = "the answer is" if count == 1 else f"{count} answers in this run were"
    return f"{answers} not of the form that the agent's output_type needs; last: {'; '.join(problems)}"


def _answer_call(
    call: ToolCall, agent: str, content: str, *, taken: bool, correction: int | UnsetType = UNSET
) -> MessageAdded:
    tool = ToolRecord(name=call.name, status="ok" if taken else "error", output=True if taken else UNSET)
    return MessageAdded(message=make_result_message(call, content, agent), tool=tool, correction=correction)
