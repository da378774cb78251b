"""A response as a chat completion: whole, or as chunks.

It is made of the response's own output and stream, so that both APIs say the same. Calls of the agents' own functions
are left out. Texts of several replies are joined with an empty line between them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from litestar import Request, Response, post
from litestar.datastructures import Headers
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import UNSET

from swarmkeep.decide.checks import (
    check_format,
    check_id,
    check_messages,
    check_new_id,
    check_profile,
    check_settings,
    check_tools,
    refuse_stray_results,
)
from swarmkeep.events.codec import Json, encode
from swarmkeep.events.errors import DomainError, Draining, SessionExists, SessionNotFound
from swarmkeep.events.facts import AwaitedApproval, MessageAdded, PendingCall, RecordedEvent, RunError
from swarmkeep.events.records import RunOptions
from swarmkeep.events.sizes import is_heavy
from swarmkeep.events.state import Run, State, refuse_damaged
from swarmkeep.events.wording import join_text
from swarmkeep.http.auth import PERMISSION, Principal
from swarmkeep.http.bodies import JsonResponse
from swarmkeep.http.sse import JsonAnswer
from swarmkeep.http.streams import PING, Written, make_event_stream
from swarmkeep.http.threads import run_aside
from swarmkeep.openai import chat_fields, submit
from swarmkeep.openai.fields import read_tools
from swarmkeep.openai.history import FEW_MESSAGES
from swarmkeep.openai.items import Input
from swarmkeep.openai.output_items import is_cut_item
from swarmkeep.openai.problems import NO_RETRY, Refused, describe_failure, make_error, make_failure_refusal, to_param
from swarmkeep.openai.progress import Outcome, ResponseBuilder
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.approvals import refuse_wrong_functions
from swarmkeep.runs.hub import Item, MessageStarted
from swarmkeep.runs.reader import Batch
from swarmkeep.runs.runs import IdempotentRequest, find_record
from swarmkeep.store.records import SessionKey, StoreUnavailable

# From a request for a chat completion to what is asked for: options, messages, and the session that it names.

SESSION_HEADER = "X-Session-Id"
# Those of programs that name their chats. A setting adds others.
_SESSION_HEADERS = (SESSION_HEADER, "X-OpenWebUI-Chat-Id")


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`model` is the agent that begins, `messages` all that were sent; `session_id` is None where none is named."""

    model: str
    messages: list[Json]
    options: RunOptions
    session_id: str | None
    include_usage: bool


async def read_chat_request(
    principal: Principal, body: chat_fields.CreateChatCompletion, headers: Headers
) -> ChatRequest:
    """Read the meaning of a request; a long one is read in a thread. Raises Refused, InvalidRequest, TooLarge."""
    session_id = read_session_id(headers, principal.service.session_headers, body.metadata or {})
    is_long = is_heavy(body.messages, body.tools, body.response_format)
    return await run_aside(is_long, _read_request, principal, body, session_id)


def _read_request(principal: Principal, body: chat_fields.CreateChatCompletion, session_id: str | None) -> ChatRequest:
    body.check_fields()
    model = submit.find_agent(principal, body.model)
    tools, answer_format = read_tools(body.tools), chat_fields.read_format(body.response_format)
    options = RunOptions(
        stream=bool(body.stream),
        tools=check_tools(tools) if tools else UNSET,
        tool_choice=chat_fields.read_tool_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        model_settings=check_settings(chat_fields.read_settings(body), "") or UNSET,
        model_profile=check_profile(body.model_profile) if body.model_profile else UNSET,
        response_format=UNSET if answer_format is UNSET else check_format(answer_format),
        request=chat_fields.collect_echo(body, model),
    )
    # Before a session is made for it.
    refuse_wrong_functions(options, principal.engine.registry)
    messages = check_messages(
        chat_fields.read_messages(body.messages), "/messages", principal.engine.limits.max_messages
    )
    return ChatRequest(
        model=model,
        messages=list(messages),
        options=options,
        session_id=session_id,
        include_usage=body.include_usage,
    )


def read_session_id(headers: Headers, more_headers: tuple[str, ...], metadata: Mapping[str, str]) -> str | None:
    """The session that a request names, by a header or in its metadata.

    Raises InvalidRequest for an id that no session may have, and Refused for two of them.
    """
    named = [(name, f"/header/{name}") for name in dict.fromkeys((*_SESSION_HEADERS, *more_headers))]
    # Some programs send an empty one for a chat that has no id yet.
    found = [(value, pointer) for name, pointer in named for value in headers.getall(name, []) if value]
    if "session_id" in metadata:
        found.append((metadata["session_id"], "/metadata/session_id"))
    for value, pointer in found:
        check_id(value, pointer)
        if value != found[0][0]:
            raise Refused("the request names two sessions", to_param(pointer))
    return found[0][0] if found else None


# Find the session of a chat completion, and those of its messages that are new there.


class ChatTarget(msgspec.Struct, frozen=True):
    """A session, and the run that is to begin or go on there."""

    target: submit.Target
    request: submit.RunRequest


async def find_chat_target(
    principal: Principal, chat: ChatRequest, idempotency: IdempotentRequest | None
) -> ChatTarget:
    """The session that a request names, or one of its own; planned where it is not there yet. Raises Refused, TooLarge
    and what planning one raises.
    """
    key = SessionKey(principal.tenant, chat.session_id or submit.make_session_id(principal.tenant, idempotency))
    record = await find_record(principal.store, key, idempotency)
    state = await submit.find_state(principal, key)
    target = await _plan_target(principal, chat, key) if state is None else submit.make_target(key, state, record)
    if target.waiting is not None and record is None:
        _refuse_open_approval(key, target.waiting)
    return ChatTarget(target, make_run_request(chat, await _find_new(chat, target.state)))


async def _plan_target(principal: Principal, chat: ChatRequest, key: SessionKey) -> submit.Target:
    check_new_id(key.id)
    # Before a session is planned for what was sent.
    await run_aside(len(chat.messages) > FEW_MESSAGES, refuse_stray_results, chat.messages, "/messages")
    history = chat.messages[: chat_fields.split_history(chat.messages)]
    history = [history[place] for place in await _find_passing(principal, chat, history)]
    labels = submit.name_person(principal, chat.options)
    plan = await principal.engine.sessions.plan(agent=chat.model, messages=history, metadata=labels)
    return submit.Target(key=key, state=plan.state, plan=plan)


async def make_unstored_request(principal: Principal, chat: ChatRequest) -> submit.RunRequest:
    """The run of a chat completion that is not stored: a session that it names is only read."""
    state = None
    if chat.session_id is not None:
        state = await submit.find_state(principal, SessionKey(principal.tenant, chat.session_id))
    if state is None:
        end = chat_fields.split_history(chat.messages)
        places = await _find_passing(principal, chat, chat.messages[:end])
        places += range(end, len(chat.messages))
        return make_run_request(chat, chat_fields.NewMessages([chat.messages[place] for place in places], places))
    refuse_damaged(chat.session_id or "", state)
    return make_run_request(chat, await _find_new(chat, state), conversation=chat.session_id)


async def _find_passing(principal: Principal, chat: ChatRequest, history: list[Json]) -> list[int]:
    """Return those messages up to the last answer that the agent's guardrails let through: a client that sends all of
    them each time sends what was refused, too."""
    return await principal.engine.unstored.find_passing(principal.tenant, chat.model, history) if history else []


async def _find_new(chat: ChatRequest, state: State) -> chat_fields.NewMessages:
    is_long = len(chat.messages) + len(state.messages) > FEW_MESSAGES
    return await run_aside(is_long, chat_fields.find_new, chat.messages, state)


def make_run_request(
    chat: ChatRequest, new: chat_fields.NewMessages, conversation: str | None = None
) -> submit.RunRequest:
    given = Input(new.messages, places=new.places, param="messages")
    return submit.RunRequest(model=chat.model, input=given, options=chat.options, conversation=conversation)


def _refuse_open_approval(key: SessionKey, run: Run) -> None:
    """Chat completions have no word for a decision: it is made elsewhere, and then the run goes on."""
    below = [_describe_wait_below(call) for call in run.pending if call.reason == "session"]
    if below:
        own = [_describe_own_wait(key, run, call) for call in run.pending if call.reason == "approval"]
        raise Refused("; ".join([*below, *own]), "messages", code="approval_pending")
    for call in run.pending:
        if call.reason == "person":
            raise Refused(f"{submit.TAKEN_OVER}, and no answer is there yet", "messages", code="approval_pending")
        if call.reason == "approval":
            raise Refused(_describe_own_wait(key, run, call), "messages", code="approval_pending")


def _describe_own_wait(key: SessionKey, run: Run, call: PendingCall) -> str:
    return f"the call {call.tool_call_id} ({call.name}) waits for an approval: {describe_decision(key.id, run.id)}"


def _describe_wait_below(call: PendingCall) -> str:
    where = f"session {call.session_id or ''}, in which another agent is asked"
    what = f"the call {call.tool_call_id} ({call.name}) waits for an approval in {where}"
    approvals = () if call.approvals is UNSET else call.approvals
    how = [f"{each.name} in {each.session_id}: {describe_decision(each.session_id, each.run_id)}" for each in approvals]
    return "; ".join([what, *how])


def describe_below(approval: AwaitedApproval) -> str:
    """Say where another agent's call waits."""
    return f"it is {approval.agent}'s, who is asked in session {approval.session_id}"


def describe_decision(session_id: str, run_id: str) -> str:
    """Say where an approval is given."""
    return f"decide on the server's page, or by POST /v1/sessions/{session_id}/runs/{run_id}/resume"


_BETWEEN = "\n\n"
_MAX_SHOWN_ARGUMENTS = 500


class ChatAnswer:
    """A response as a chat completion."""

    def __init__(self, builder: ResponseBuilder, *, include_usage: bool = False) -> None:
        self._builder = builder
        self._include_usage = include_usage
        self._shared: Json | None = None
        self._spoke = False
        self._item_id: str | None = None
        self._calls = 0
        self._chunk_count = 0
        self._held: list[Json] | None = None

    @property
    def error(self) -> RunError | None:
        """The error of a failed run, or None."""
        return self._builder.outcome.error

    @property
    def session_id(self) -> str:
        return self._builder.id.session_id

    @property
    def has_spoken(self) -> bool:
        """Tell if there were more chunks than the one that begins it."""
        return self._chunk_count > 1

    def make_completion(self) -> Json:
        """The whole completion, once the response has ended or waits."""
        output = self._builder.output
        choice = {
            "index": 0,
            "message": self._make_message(output),
            "logprobs": None,
            "finish_reason": find_finish_reason(self._builder.outcome, output),
        }
        return {
            **self._frame("chat.completion"),
            "choices": [choice],
            "usage": self._builder.usage.to_chat(),
        }

    def _make_message(self, output: Sequence[Json]) -> Json:
        texts = [text for item in output if (text := self._read_text(item))]
        refusals = [
            part["refusal"]
            for item in output
            if item["type"] == "message"
            for part in item["content"]
            if part["type"] == "refusal"
        ]
        calls = [_show_call(item) for item in output if item["type"] == "function_call" and not is_cut_item(item)]
        silent = None if calls or refusals else ""
        message = {
            "role": "assistant",
            "content": _BETWEEN.join(texts) or silent,
            "refusal": _BETWEEN.join(refusals) or None,
        }
        return {**message, "tool_calls": calls} if calls else message

    def _read_text(self, item: Json) -> str:
        if item["type"] == "message":
            return join_text(item["content"])
        return self._describe_approval(item) if item["type"] == "mcp_approval_request" else ""

    def _describe_approval(self, item: Json) -> str:
        arguments: str = item["arguments"]
        shown = arguments if len(arguments) <= _MAX_SHOWN_ARGUMENTS else f"{arguments[:_MAX_SHOWN_ARGUMENTS]}…"
        where = "it cannot be given, because nothing of this is kept (store: false)"
        below = self._builder.below.get(item["id"])
        if below is not None:
            where = f"{describe_below(below)}; {describe_decision(below.session_id, below.run_id)}"
        elif self._builder.stored:
            where = describe_decision(self._builder.id.session_id, self._builder.id.run_id)
        return f"The call {item['name']}({shown}) waits for an approval: {where}."

    # Chunks

    def make_chunks(self, event: Json) -> list[Json]:
        """The chunks that an event of the response's stream makes."""
        kind = event["type"]
        if self._held is not None and kind in _TEXTS:
            self._held.append(event)
            return []
        make = _CHUNK_MAKERS.get(kind)
        return [] if make is None else make(self, event)

    def hold(self) -> None:
        """Hold back the text of a reply, which may be wrong and be given again."""
        self._held = self._held or []

    def drop_held(self) -> None:
        self._held = None

    def release_held(self) -> list[Json]:
        """The chunks of the text that was held back."""
        held, self._held = self._held or [], None
        return [chunk for event in held for chunk in self.make_chunks(event)]

    def _begin(self, event: Json) -> list[Json]:
        return [self._make_chunk({"role": "assistant", "content": "", "refusal": None})]

    def _add_text(self, event: Json) -> list[Json]:
        return [self._say(event["item_id"], event["delta"])]

    def _say(self, item_id: str, text: str) -> Json:
        between = _BETWEEN if self._spoke and item_id != self._item_id else ""
        self._spoke, self._item_id = True, item_id
        return self._make_chunk({"content": between + text})

    def _add_refusal(self, event: Json) -> list[Json]:
        return [self._make_chunk({"refusal": event["delta"]})]

    def _add_item(self, event: Json) -> list[Json]:
        item = event["item"]
        if item["type"] == "function_call":
            if self._builder.is_cut(item["id"]):
                return []
            begun = {"index": self._calls, **_show_call(item)}
            self._calls += 1
            return [self._make_chunk({"tool_calls": [begun]})]
        if item["type"] == "mcp_approval_request":
            return [self._say(item["id"], self._describe_approval(item))]
        return []

    def _add_arguments(self, event: Json) -> list[Json]:
        if self._builder.is_cut(event["item_id"]):
            return []
        piece = {"index": self._calls - 1, "function": {"arguments": event["delta"]}}
        return [self._make_chunk({"tool_calls": [piece]})]

    def _end(self, event: Json) -> list[Json]:
        last = self._make_chunk({}, find_finish_reason(self._builder.outcome, self._builder.output))
        if not self._include_usage:
            return [last]
        return [last, {**self._frame("chat.completion.chunk"), "choices": [], "usage": self._builder.usage.to_chat()}]

    def _make_chunk(self, delta: Json, finish_reason: str | None = None) -> Json:
        self._chunk_count += 1
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        usage: Json = {"usage": None} if self._include_usage else {}
        return {**self._frame("chat.completion.chunk"), "choices": [choice], **usage}

    def _frame(self, kind: str) -> Json:
        if self._shared is None:
            response = self._builder.snapshot()
            self._shared = {
                "id": f"chatcmpl-{str(self._builder.id).removeprefix('resp_')}",
                "created": response["created_at"],
                "model": response["model"],
                "service_tier": None,
                "system_fingerprint": None,
            }
        return {"object": kind, **self._shared}


_CHUNK_MAKERS: dict[str, Callable[[ChatAnswer, Json], list[Json]]] = {
    "response.created": ChatAnswer._begin,
    "response.output_text.delta": ChatAnswer._add_text,
    "response.refusal.delta": ChatAnswer._add_refusal,
    "response.output_item.added": ChatAnswer._add_item,
    "response.function_call_arguments.delta": ChatAnswer._add_arguments,
    "response.completed": ChatAnswer._end,
    "response.incomplete": ChatAnswer._end,
}


_TEXTS = ("response.output_text.delta", "response.refusal.delta")


def _show_call(item: Json) -> Json:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}


def find_finish_reason(outcome: Outcome, output: Sequence[Json]) -> str:
    """Return the reason why it ended: `length`, too, where something else cut it short, as a limit of turns or a
    cancel."""
    if outcome.status == "completed":
        return "tool_calls" if any(item["type"] == "function_call" for item in output) else "stop"
    return "content_filter" if outcome.reason == "content_filter" else "length"


# Holds back the text of answers whose form is checked: chat completions stream those that passed, and no others.


def release_or_hold(registry: Registry, answer: ChatAnswer, item: Item) -> Iterator[Json]:
    """Before an item is read: the chunks that it releases. It also decides whether its own text is held back."""
    if isinstance(item, MessageStarted):
        yield from answer.release_held()
        if _is_checked(registry, item.agent):
            answer.hold()
    elif isinstance(item, RecordedEvent):
        fact = item.fact
        if isinstance(fact, MessageAdded) and fact.message.get("role") == "assistant":
            if _is_checked(registry, item.agent):
                answer.hold()
        elif isinstance(fact, MessageAdded) and fact.correction is not UNSET:
            answer.drop_held()
        else:
            yield from answer.release_held()


def _is_checked(registry: Registry, agent: str) -> bool:
    return agent in registry and registry.get_active(agent).output_type is not None


# The route for chat completions.


@post("/chat/completions", status_code=200, summary="Create a chat completion", opt={PERMISSION: ("run",)})
async def create_chat_completion(
    request: Request[Any, Any, Any],
    data: JSONBody[chat_fields.CreateChatCompletion],
    principal: NamedDependency[Principal],
) -> Response[Any]:
    """The answer comes when the run has ended or waits for its caller; with `stream` as server-sent events. The header
    `X-Session-Id` names the session.
    """
    principal.refuse_as_user()
    chat = await read_chat_request(principal, data, request.headers)
    if data.store is False:
        followed = await submit.begin_unstored(principal, await make_unstored_request(principal, chat))
    else:
        followed = await _begin(principal, chat, await principal.read_idempotency())
    answer = ChatAnswer(followed.builder, include_usage=chat.include_usage)
    if data.stream:
        return _make_stream(principal, followed, answer)
    await submit.finish_response(principal, followed, request.receive)
    return _answer(answer, _name_session(followed.key))


async def _begin(
    principal: Principal, chat: ChatRequest, idempotency: IdempotentRequest | None
) -> submit.FollowedResponse:
    is_quiet = not chat.options.stream
    while True:
        found = await find_chat_target(principal, chat, idempotency)
        # Another request may make it at the same time, with another history: then that one counts.
        with suppress(SessionExists):
            return await submit.follow_response(principal, found.target, found.request, idempotency, is_quiet=is_quiet)


def _name_session(key: SessionKey | None) -> dict[str, str]:
    return {} if key is None else {SESSION_HEADER: key.id}


def _answer(answer: ChatAnswer, headers: dict[str, str]) -> Response[Any]:
    if answer.error is None:
        return JsonResponse(answer.make_completion(), headers=headers)
    status, error = describe_failure(answer.error)
    return JsonResponse({"error": error}, status_code=status, headers={**headers, **NO_RETRY})


def _make_stream(principal: Principal, followed: submit.FollowedResponse, answer: ChatAnswer) -> Response[Any]:
    builder, key = followed.builder, followed.key

    def translate(batch: Batch) -> Written:
        chunks: list[Json] = []
        for item in batch:
            chunks += release_or_hold(principal.engine.registry, answer, item)
            chunks += [chunk for event in builder.read(item) for chunk in answer.make_chunks(event)]
        end = submit.DONE if builder.is_over else None
        if answer.error is not None:
            # The stream ends with this, without `[DONE]`.
            chunks.append({"error": describe_failure(answer.error)[1]})
            end = b""
        return b"".join(map(_frame_chunk, chunks)), end

    frames = followed.write_frames(principal, translate)
    headers = _name_session(key)

    async def begin(parts: AsyncGenerator[bytes]) -> bytes | JsonAnswer:
        try:
            return await _read_beginning(answer, parts)
        except (Refused, DomainError, StoreUnavailable) as error:
            is_stopping = isinstance(error, SessionNotFound) and principal.service.drained.is_set()
            status, body, more = make_error(Draining() if is_stopping else error)
            # What is kept nowhere, and was cut off, may be asked for again.
            once = {} if key is None and answer.error is None else NO_RETRY
            return JsonAnswer(status, encode({"error": body}), {**headers, **more, **once})

    return make_event_stream(principal, frames, headers, begin=begin)


async def _read_beginning(answer: ChatAnswer, parts: AsyncGenerator[bytes]) -> bytes:
    """The frames up to the first that says something, or to the first ping. Raises Refused if it has failed by then,
    and SessionNotFound if it was cut off."""
    first = b""
    async for part in parts:
        if answer.error is not None and not answer.has_spoken:
            raise make_failure_refusal(answer.error)
        first += part
        if answer.has_spoken or part == PING:
            return first
    raise SessionNotFound(answer.session_id)


def _frame_chunk(chunk: Json) -> bytes:
    return b"data: %b\n\n" % encode(chunk)


ROUTES = [create_chat_completion]
