"""Reads what an AG-UI client sends: the body, its messages as Chat Completions has them, and its answers to a wait.

Clients send the whole conversation each time. Here the server's own history counts: of the messages only those are
input that the session does not have, which their ids tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from swarmkeep.decide.checks import check_id, check_messages, check_object, check_tools
from swarmkeep.decide.commands import Approval, ToolAnswer
from swarmkeep.events.codec import Json, encode_text
from swarmkeep.events.errors import InvalidRequest, RunNotWaiting, quote, shorten
from swarmkeep.events.facts import AwaitedApproval, PendingCall
from swarmkeep.events.messages import Entry
from swarmkeep.events.patch import apply, diff
from swarmkeep.events.records import RunOptions
from swarmkeep.events.state import Run, State, find_call_ids
from swarmkeep.events.views import find_run
from swarmkeep.events.wording import join_text
from swarmkeep.http.auth import Principal
from swarmkeep.http.bodies import Body
from swarmkeep.request.request import STANDING_ROLES, list_standing
from swarmkeep.runs.teams import ApprovalBelow

# The body of a request, as the protocol names its fields.

RunId = Annotated[str, Meta(min_length=1, max_length=200, pattern="^[!-~]+$")]


class AguiTool(Body, frozen=True, kw_only=True):
    """A function of the client's own."""

    name: str
    """Its name."""
    description: str = ""
    """What it does."""
    parameters: Json | None = None
    """A JSON schema."""
    metadata: Json | None = None
    """Not used."""


class AguiContext(Body, frozen=True, kw_only=True):
    """Something that the agent is told for this run, beside the conversation."""

    description: str
    """What it is."""
    value: str
    """Its text."""


class AguiResume(Body, frozen=True, kw_only=True, rename="camel"):
    """The answer to an interrupt."""

    interrupt_id: str
    """The interrupt."""
    status: Literal["resolved", "cancelled"]
    """`resolved` or `cancelled`."""
    payload: Any = None
    """For an approval: `{approved, reason?, editedArgs?, argumentsDigest?}`."""
    metadata: Json | None = None
    """Not used."""


class RunAgentInput(Body, frozen=True, kw_only=True, rename="camel"):
    """What an AG-UI client asks for. Without anything new in `messages`, and nothing to `resume`, no run begins: the
    answer shows the session, and the run that is active there."""

    thread_id: str
    """The session's id; one that is not there is made."""
    run_id: RunId
    """The client's id of the run: the same request again joins it."""
    messages: list[Json]
    """The conversation as the client has it; what the session lacks is the input."""
    state: Any = None
    """Context variables to set first; null removes one."""
    tools: list[AguiTool] | None = None
    """Functions of the application, as `tools` of a run."""
    context: list[AguiContext] | None = None
    """Texts that follow the agent's instructions."""
    resume: list[AguiResume] | None = None
    """Answers to interrupts."""
    forwarded_props: Any = None
    """Accepted; no agent sees it."""
    parent_run_id: str | None = None
    """Accepted; no agent sees it."""
    protocol_version: str | None = None
    """Accepted; no agent sees it."""


class Sent(msgspec.Struct, frozen=True):
    """A message of a request: its place and id there, and how it is kept. `failed`: it tells of a tool that failed."""

    place: int
    id: str
    message: Json
    failed: bool = False

    @property
    def role(self) -> str:
        role: str = self.message["role"]
        return role


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was read. `messages` has those only that models may be sent."""

    agent: str
    thread_id: str
    run_id: str
    messages: list[Sent]
    options: RunOptions
    state: Json
    resume: Sequence[AguiResume]
    body: RunAgentInput


def read_input(principal: Principal, agent: str, body: RunAgentInput) -> Given:
    """Read a request. Raises AgentNotFound, InvalidRequest and TooLarge."""
    engine = principal.engine
    name = engine.registry.get(agent).name
    check_id(body.thread_id, "/threadId")
    # The pattern lets a line end pass.
    if not body.run_id.isprintable():
        raise InvalidRequest("`runId` must be printable ASCII characters without spaces", "/runId")
    if body.state is not None and not isinstance(body.state, dict):
        raise InvalidRequest("`state` must be an object: its keys are context variables", "/state")
    tools = check_tools([_show_tool(tool) for tool in body.tools]) if body.tools else UNSET
    options = RunOptions(
        stream=True,
        tools=tools,
        instructions=_describe_context(body.context or ()) or UNSET,
        # `model` is what other requests name an agent by: see `choose_agent`.
        request={"model": name, "run_id": body.run_id},
    )
    return Given(
        agent=name,
        thread_id=body.thread_id,
        run_id=body.run_id,
        messages=_read_messages(body.messages, engine.limits.max_messages),
        options=options,
        state=check_object(body.state or {}, "/state"),
        resume=body.resume or (),
        body=body,
    )


def _show_tool(tool: AguiTool) -> Json:
    function: Json = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters:
        function["parameters"] = tool.parameters
    return {"type": "function", "function": function}


def _describe_context(context: Iterable[AguiContext]) -> str:
    """The context as instructions that follow the agent's own."""
    return "\n\n".join(f"{each.description}:\n{each.value}" for each in context)


# Messages, from the protocol's form to that of Chat Completions. Each keeps its id, by which it is known again.

_MAX_ID_CHARACTERS = 256
# What frontends keep for themselves: no model is sent it.
_OF_CLIENTS = ("activity", "reasoning")


def _read_messages(messages: Sequence[Json], max_messages: int) -> list[Sent]:
    # Those that are left out keep their place until all are checked: refusals name it.
    read = [_read_message(message, f"/messages/{place}") for place, message in enumerate(messages)]
    checked = check_messages(read, "/messages", max_messages)
    found: dict[str, Sent] = {}
    for place, (given, message) in enumerate(zip(messages, checked, strict=True)):
        if given.get("role") not in _OF_CLIENTS:
            found.setdefault(given["id"], Sent(place, given["id"], message, bool(given.get("error"))))
    return list(found.values())


def _read_message(message: Json, pointer: str) -> Json:
    name, role = message.get("id"), message.get("role")
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_ID_CHARACTERS:
        raise InvalidRequest(f"a message needs an `id` of 1 to {_MAX_ID_CHARACTERS} characters", f"{pointer}/id")
    content = message.get("content")
    match role:
        case "user":
            read: Json = {"role": role, "content": _read_content(content, f"{pointer}/content")}
        case "system" | "developer":
            read = {"role": role, "content": content}
        case "assistant":
            read = {"role": role, "content": content, **_read_calls(message.get("toolCalls"), pointer)}
        case "tool":
            said = _read_result(content, message.get("error"), f"{pointer}/content")
            read = {"role": role, "content": said, "tool_call_id": message.get("toolCallId")}
        case "activity" | "reasoning":
            return {"role": "user", "content": ""}
        case _:
            known = "user, assistant, tool, system, developer, activity, reasoning"
            raise InvalidRequest(f"a message's role must be one of {known}", f"{pointer}/role")
    if role != "tool" and isinstance(message.get("name"), str):
        read["name"] = message["name"]
    return {**read, "id": name}


def _read_calls(calls: object, pointer: str) -> Json:
    if not calls:
        return {}
    if not isinstance(calls, list):
        raise InvalidRequest("`toolCalls` must be a list", f"{pointer}/toolCalls")
    found = []
    for place, call in enumerate(calls):
        match call:
            case {"id": str(call_id), "function": {"name": str(name), "arguments": str(arguments)}}:
                function = {"name": name, "arguments": arguments}
                found.append({"id": call_id, "type": "function", "function": function})
            case _:
                detail = "a call needs an `id`, and a `function` with name and arguments"
                raise InvalidRequest(detail, f"{pointer}/toolCalls/{place}")
    return {"tool_calls": found}


def _read_result(content: object, error: object, pointer: str) -> object:
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict) and part.get("type") == "text"]
        if len(parts) < len(content):
            raise InvalidRequest("a tool message may have text only", pointer)
        content = join_text(parts)
    return error if isinstance(error, str) and not content else content


def _read_content(content: object, pointer: str) -> object:
    if not isinstance(content, list):
        return content
    return [_read_part(part, f"{pointer}/{place}") for place, part in enumerate(content)]


# Names of sound formats where they are not the media type's own.
_FORMATS = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav", "vnd.wave": "wav"}


def _read_part(part: object, pointer: str) -> Json:
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "image", "source": {"type": "url", "value": str(url)}}:
            return {"type": "image_url", "image_url": {"url": url}}
        case {"type": "image", "source": {"type": "data", "value": str(data), "mimeType": str(kind)}}:
            return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}
        case {"type": "audio", "source": {"type": "data", "value": str(data), "mimeType": str(kind)}}:
            form = kind.partition(";")[0].rpartition("/")[2].lower()
            return {"type": "input_audio", "input_audio": {"data": data, "format": _FORMATS.get(form, form)}}
        case {"type": "document", "source": {"type": "data", "value": str(data), "mimeType": str(kind)}, **rest}:
            more = rest.get("metadata")
            name = more.get("filename") if isinstance(more, dict) else None
            file = {"file_data": f"data:{kind};base64,{data}", "filename": name if isinstance(name, str) else "file"}
            return {"type": "file", "file": file}
        case _:
            known = "text, image (data or url), audio (data) and document (data)"
            raise InvalidRequest(f"a part of this kind cannot be sent to a model here; known: {known}", pointer)


# Find what is new of the messages that were sent.


def read_own_id(message: Json) -> str | None:
    """The id that a message's sender gave it."""
    name = message.get("id")
    return name if isinstance(name, str) and name else None


def make_reply_id(run_id: str, turn: int) -> str:
    """The id of a run's n-th reply, which is known before the reply is recorded."""
    return f"{run_id}.{turn}"


def make_entry_id(seq: int, message: Json) -> str:
    """The id of any other message."""
    return read_own_id(message) or f"msg-{seq}"


class Numbering:
    """Gives each message of a session its id; they must come in order, from the first of their run on."""

    def __init__(self) -> None:
        self.turns: dict[str, int] = {}

    def name(self, entry: Entry) -> str:
        if entry.role != "assistant" or entry.completion is None or entry.run_id is None:
            return make_entry_id(entry.seq, entry.message)
        turn = self.turns.get(entry.run_id, 0)
        self.turns[entry.run_id] = turn + 1
        return make_reply_id(entry.run_id, turn)


def split_history(messages: Sequence[Sent]) -> int:
    """The number of messages up to and with the last of an assistant: a new session begins with these."""
    places = (place for place in range(len(messages), 0, -1) if messages[place - 1].role == "assistant")
    return next(places, 0)


def find_new(messages: Sequence[Sent], state: State) -> list[Sent]:
    """The messages that are new to a session: behind the last that it has, and leading instructions that it lacks.

    Results of calls are none of them; they are looked for where a run waits. Raises InvalidRequest for the result of a
    call that the session does not have.
    """
    names = Numbering()
    known = {names.name(entry) for entry in state.messages}
    queued = [message for queued in state.queue for message in queued.fact.messages]
    known |= {name for message in queued if (name := read_own_id(message))}
    begin = next((place for place in range(len(messages), 0, -1) if messages[place - 1].id in known), 0)
    leading = next((place for place, sent in enumerate(messages) if sent.role not in STANDING_ROLES), len(messages))
    standing = (*(entry.message for entry in list_standing(state.messages)), *queued)
    texts = {join_text(message.get("content")) for message in standing if message.get("role") in STANDING_ROLES}
    new = [sent for sent in messages[: min(begin, leading)] if sent.id not in known and _read_text(sent) not in texts]
    calls = find_call_ids(state.messages)
    for sent in messages[begin:]:
        if sent.role == "tool":
            call_id = sent.message["tool_call_id"]
            if not calls.find(call_id):
                said = f"there is no call {quote(call_id)} that this tool message could answer"
                raise InvalidRequest(said, f"/messages/{sent.place}")
        # What others said in the agent's place is not taken into a history that the server has.
        elif sent.role != "assistant" and sent.id not in known:
            new.append(sent)
    return new


def _read_text(sent: Sent) -> str:
    return join_text(sent.message.get("content"))


def find_state_change(context: Json, state: Json) -> Json:
    """The merge patch that sets the keys of a client's state. Null removes one; keys that are not there stay."""
    patch, nulls = diff({key: context[key] for key in state if key in context}, state)
    return apply(patch, {}, nulls)


# Interrupts: what a run waits for that is not a result of the client's own functions, and how it is answered.

APPROVAL_SCHEMA: Json = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "reason": {"type": "string", "description": "Told to the model when the call is denied."},
        "editedArgs": {"type": "object", "description": "Arguments in the place of the proposed ones. Not merged."},
        "argumentsDigest": {"type": "string", "description": "SHA-256 (hex) of the arguments that were shown."},
    },
    "required": ["approved"],
}
_SHOWN_CHARACTERS = 500
_CANCELLED = "cancelled: nobody answered"
_NOT_ANSWERED = "The application gave no result for this call, and went on."


def list_interrupts(run_id: str, pending: Sequence[PendingCall]) -> list[Json]:
    """The interrupts of a run; none where no answer to one would help: where it waits for results of the client's own
    functions only, or for a person who has taken over."""
    if not any(call.reason == "approval" or _list_below(call) for call in pending):
        return []
    return [interrupt for call in pending for interrupt in _show_wait(run_id, call)]


def _list_below(call: PendingCall) -> Sequence[AwaitedApproval]:
    """The calls of asked agents that wait for an approval."""
    return () if call.approvals is UNSET else call.approvals


def _show_wait(run_id: str, call: PendingCall) -> Iterator[Json]:
    base = {"id": f"{run_id}:{call.tool_call_id}", "reason": "tool_call", "toolCallId": call.tool_call_id}
    if call.reason == "approval":
        expires = {} if call.expires_at is None else {"expiresAt": call.expires_at}
        yield {**base, **_show_approval(call.name, call.arguments, call.arguments_digest), **expires}
    elif call.reason == "tool_results":
        message = f"The application has to answer the call {call.name}."
        yield {**base, "message": message, "responseSchema": {}}
    for each in _list_below(call):
        asked = _show_approval(each.name, each.arguments, each.arguments_digest, each.agent)
        yield {"id": f"{each.run_id}:{each.tool_call_id}", "reason": "confirmation", **asked}


def _show_approval(function: str, arguments: str, digest: str | UnsetType, agent: str = "") -> Json:
    who = f"{agent} asks to call" if agent else "Approve the call"
    shown = {"name": function, "arguments": arguments, **({} if digest is UNSET else {"argumentsDigest": digest})}
    said = f"{who} {function}({shorten(arguments, _SHOWN_CHARACTERS)})"
    return {"message": said, "responseSchema": APPROVAL_SCHEMA, "metadata": {"swarmkeep": shown}}


class Answers(msgspec.Struct):
    """The answers to a run that waits, which are all that it waits for, and the ids of calls that messages answer."""

    results: list[ToolAnswer] = []
    approvals: list[Approval] = []
    below: list[ApprovalBelow] = []
    answered: set[str] = set()


def read_answers(principal: Principal, state: State, run: Run, given: Given, new: Sequence[Sent]) -> Answers | None:
    """Read the answers that a request gives a waiting run; None if it gives none, and nothing new.

    Raises InvalidRequest where anything that the run waits for is left without an answer, and RunNotWaiting.
    """
    outside = {call.tool_call_id: call for call in run.pending if call.reason == "tool_results"}
    found = Answers()
    for sent in given.messages:
        call_id = sent.message.get("tool_call_id")
        if sent.role == "tool" and call_id in outside and call_id not in found.answered:
            found.answered.add(call_id)
            # Guardrails know a failed result as a caller's by the functions that the run has from here on.
            failed = sent.failed and outside[call_id].name in given.options.caller_tool_names
            found.results.append(ToolAnswer(tool_call_id=call_id, content=_read_text(sent), is_error=failed))
    resumed = {entry.interrupt_id: (place, entry) for place, entry in enumerate(given.resume)}
    if len(resumed) < len(given.resume):
        raise InvalidRequest("an interrupt is answered twice", "/resume")
    open_ids = {interrupt["id"] for interrupt in list_interrupts(run.id, run.pending)}
    if not (found.results or new or open_ids & resumed.keys()):
        _refuse_past(state, resumed.values())
        return None
    given_results = set(found.answered)
    for call in run.pending:
        _answer_call(principal, run, call, resumed, found, given_results, is_passed_over=bool(new))
    _refuse_past(state, resumed.values())
    if found.below and (new or found.results):
        raise InvalidRequest("answer the calls of an asked agent alone: that agent continues first", "/messages")
    return found


_Resumed = dict[str, tuple[int, AguiResume]]


def _answer_call(
    principal: Principal,
    run: Run,
    call: PendingCall,
    resumed: _Resumed,
    found: Answers,
    given_results: set[str],
    *,
    is_passed_over: bool,
) -> None:
    if call.reason == "approval":
        approval = _take_approval(principal, f"{run.id}:{call.tool_call_id}", call.tool_call_id, resumed)
        found.approvals.append(approval)
    elif _list_below(call):
        for each in _list_below(call):
            approval = _take_approval(principal, f"{each.run_id}:{each.tool_call_id}", each.tool_call_id, resumed)
            found.below.append(ApprovalBelow(each.session_id, each.run_id, approval))
    elif call.reason == "tool_results":
        if call.tool_call_id not in given_results:
            found.results.append(_take_result(run, call, resumed, is_passed_over=is_passed_over))
    else:
        who = "a person, who has taken over from the agent" if call.reason == "person" else "another session"
        raise InvalidRequest(f"the run waits for {who}; no answer of this request is for that", "/messages")


def _take_approval(principal: Principal, name: str, call_id: str, resumed: _Resumed) -> Approval:
    place, entry = resumed.pop(name, (0, None))
    if entry is None:
        raise InvalidRequest(f"the interrupt {quote(name)} is open, and `resume` has to answer it", "/resume")
    if entry.status == "cancelled":
        payload: Json = {"approved": False, "reason": _CANCELLED}
    else:
        payload = _check_payload(entry.payload, f"/resume/{place}/payload")
    return Approval(
        tool_call_id=call_id,
        decision="approve" if payload["approved"] else "deny",
        reason=payload.get("reason"),
        by=principal.name,
        may_be_own=not principal.service.separate_approvers,
        arguments=payload.get("editedArgs"),
        arguments_digest=(payload.get("argumentsDigest") or "").lower() or None,
    )


_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_PAYLOAD: dict[str, type] = {"approved": bool, "reason": str, "editedArgs": dict, "argumentsDigest": str}


def _check_payload(payload: object, pointer: str) -> Json:
    if not isinstance(payload, dict) or "approved" not in payload:
        raise InvalidRequest("the answer to an approval must be an object with `approved`", pointer)
    for name, value in payload.items():
        kind = _PAYLOAD.get(name)
        # A decision is nothing to guess at.
        if kind is None or not isinstance(value, kind):
            detail = "is not known" if kind is None else f"must be of the type {kind.__name__}"
            raise InvalidRequest(f"in the answer to an approval, {quote(name)} {detail}", pointer)
    digest = payload.get("argumentsDigest")
    if digest is not None and not _SHA256.fullmatch(digest):
        raise InvalidRequest("`argumentsDigest` must be a SHA-256, as hex", pointer)
    return check_object(payload, pointer)


def _take_result(run: Run, call: PendingCall, resumed: _Resumed, *, is_passed_over: bool) -> ToolAnswer:
    _, entry = resumed.pop(f"{run.id}:{call.tool_call_id}", (0, None))
    if entry is not None:
        cancelled = entry.status == "cancelled"
        said = entry.payload if isinstance(entry.payload, str) else encode_text(entry.payload)
        content = _CANCELLED if cancelled else said
        return ToolAnswer(tool_call_id=call.tool_call_id, content=content, is_error=cancelled)
    if not is_passed_over:
        raise InvalidRequest(f"no tool message answers the call {call.tool_call_id} ({call.name})", "/messages")
    # The protocol leaves it to the application to go on with the thread without one.
    return ToolAnswer(tool_call_id=call.tool_call_id, content=_NOT_ANSWERED, is_error=True)


def refuse_resume(state: State | None, resume: Sequence[AguiResume]) -> None:
    """Refuse answers where no run waits. Raises RunNotWaiting for one to a run that went on, and InvalidRequest."""
    _refuse_past(state, enumerate(resume))


def _refuse_past(state: State | None, resumed: Iterable[tuple[int, AguiResume]]) -> None:
    """Refuse answers to interrupts that are not open. One that is cancelled may be: it decides nothing, and clients
    have to send it to go on after one that has expired, or was answered elsewhere."""
    for place, entry in resumed:
        if entry.status == "cancelled":
            continue
        run = None if state is None else find_run(state, entry.interrupt_id.partition(":")[0])
        if run is not None:
            raise RunNotWaiting(run.id, "past this interrupt")
        raise InvalidRequest(f"there is no open interrupt {quote(entry.interrupt_id)}", f"/resume/{place}/interruptId")
