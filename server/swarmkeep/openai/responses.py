"""Routes for responses: create, get, stream, cancel, delete, input items, over requests or one WebSocket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, Response, delete, get, post, websocket
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec.structs import asdict, replace

from swarmkeep.decide.commands import add_sender, choose_agent, resume_run, start_run, update_session
from swarmkeep.decide.drafts import apply_drafts, draft_events
from swarmkeep.events.codec import Json, encode
from swarmkeep.events.errors import SessionNotFound, TooLarge
from swarmkeep.events.facts import EventDraft, MessageAdded, SessionEvent
from swarmkeep.events.state import State
from swarmkeep.http.auth import OWN_AUTH, PERMISSION, Principal, Unauthenticated
from swarmkeep.http.bodies import JsonResponse
from swarmkeep.http.parameters import read_query
from swarmkeep.http.routes.agents import AgentName, read_name
from swarmkeep.http.sse import frame
from swarmkeep.http.streams import StreamCheck, Written, make_event_stream, wait_until_refused
from swarmkeep.http.threads import run_aside
from swarmkeep.http.websocket import (
    CLIENT_GONE,
    Refusal,
    Socket,
    authorize_command,
    read_command,
    read_header,
    receive_frame,
    run_until_first,
    serve_socket,
)
from swarmkeep.models.model import TurnFailed
from swarmkeep.openai import history, submit
from swarmkeep.openai.chat_fields import split_history
from swarmkeep.openai.fields import CompactResponse, CountTokens, CreateResponse
from swarmkeep.openai.items import SUMMARY_PREFIX
from swarmkeep.openai.output_items import Include, IncludeList, PageQuery, SessionItems
from swarmkeep.openai.problems import PREFIX, Refused, make_error, make_failure_refusal, make_not_found
from swarmkeep.openai.progress import ResponseBuilder, UsageSum
from swarmkeep.request.request import ModelRequest
from swarmkeep.runs.identifiers import make_id
from swarmkeep.runs.reader import Batch
from swarmkeep.runs.unstored import UnstoredSession

StartingAfter = Annotated[
    int | None, QueryParameter(ge=0, le=2**53 - 1, description="Only events with a greater `sequence_number`.")
]
AsStream = Annotated[bool, QueryParameter(description="Stream its events, from the first on.")]
Obfuscation = Annotated[bool | None, QueryParameter(description="Has no effect: nothing is padded.")]


@post("/responses", status_code=200, summary="Create a response", opt={PERMISSION: ("run", "approve")})
async def create_response(
    request: Request[Any, Any, Any], data: JSONBody[CreateResponse], principal: NamedDependency[Principal]
) -> Response[Any]:
    """The answer comes when the response has ended or waits for its caller; with `stream` as server-sent events, with
    `background` at once.
    """
    run_request = await submit.read_run_request(principal, data)
    if data.store is False:
        if data.background:
            raise Refused("what is not stored cannot be fetched later: `background` needs `store`", "background")
        followed = await submit.begin_unstored(principal, run_request)
    else:
        idempotency = await principal.read_idempotency()
        target = await submit.find_target(principal, run_request, idempotency)
        if data.background and not data.stream:
            started = await submit.begin_response(principal, target, run_request, idempotency)
            return JsonResponse(await _show(principal, str(started.response_id)))
        followed = await submit.follow_response(principal, target, run_request, idempotency, is_quiet=not data.stream)
    if data.stream:
        return make_stream(principal, followed)
    return JsonResponse(await submit.finish_response(principal, followed, request.receive))


async def _show(principal: Principal, name: str) -> Json:
    return (await history.build_response(principal, await history.find_response(principal, name))).snapshot()


def make_stream(principal: Principal, followed: submit.FollowedResponse) -> Response[Any]:
    """The stream of a response."""
    builder = followed.builder

    def translate(batch: Batch) -> Written:
        frames: list[bytes] = []
        for item in batch:
            for event in builder.read(item):
                frames.append(frame(event["type"], encode(event)))
        return b"".join(frames), submit.DONE if builder.is_over else None

    return make_event_stream(principal, followed.write_frames(principal, translate))


@get("/responses/{response_id:str}", summary="Get a response, or its stream again")
async def get_response(
    response_id: FromPath[str],
    principal: NamedDependency[Principal],
    stream: AsStream = False,
    starting_after: StartingAfter = None,
    include: Include = None,
    include_list: IncludeList = None,
    include_obfuscation: Obfuscation = None,
) -> Response[Any]:
    """From the log, at any time, from any server; numbers are the same each time."""
    found = await history.find_response(principal, response_id)
    if not stream:
        if starting_after is not None:
            raise Refused("`starting_after` is for streams: add `stream=true`", "starting_after")
        return JsonResponse((await history.build_response(principal, found)).snapshot())
    position = await principal.reader.find_position(found.key, found.run.id)
    builder = ResponseBuilder(found.id, after=-1 if starting_after is None else starting_after)
    batches = principal.reader.follow_run_batches(found.key, position)
    return make_stream(principal, submit.FollowedResponse(found.key, builder, batches))


@post(
    "/responses/{response_id:str}/cancel",
    status_code=200,
    summary="Cancel a response; what it produced stays",
    opt={PERMISSION: ("run",)},
)
async def cancel_response(response_id: FromPath[str], principal: NamedDependency[Principal]) -> Response[Any]:
    found = await history.find_response(principal, response_id, to_change=True)
    # An earlier part of a run has ended, even if the run goes on now.
    if found.id.part == history.count_parts(found.run) - 1:
        await principal.engine.runs.cancel(found.key, found.run.id, idempotency=await principal.read_idempotency())
    return JsonResponse(await _show(principal, response_id))


@delete("/responses/{response_id:str}", status_code=200, summary="Make a response unfindable")
async def delete_response(response_id: FromPath[str], principal: NamedDependency[Principal]) -> dict[str, Any]:
    """The log keeps it, until it is redacted or its session deleted."""
    found = await history.find_response(principal, response_id, to_change=True)
    await principal.engine.runs.hide(found.key, found.run.id, found.id.part, by=principal.name)
    return {"id": response_id, "object": "response", "deleted": True}


@get("/responses/{response_id:str}/input_items", summary="List the input of a response")
async def list_response_input_items(
    response_id: FromPath[str],
    principal: NamedDependency[Principal],
    page: NamedDependency[PageQuery],
    include: Include = None,
    include_list: IncludeList = None,
) -> Response[Any]:
    found = await history.find_response(principal, response_id)
    items = await history.list_input_items(principal, found)
    selected = page.select(items)
    return await history.answer_items(principal, found.key, selected["data"], lambda shown: {**selected, "data": shown})


ROUTES = [create_response, get_response, cancel_response, delete_response, list_response_input_items]


# Responses over one WebSocket: each `response.create` frame is answered with the events of its response, or an error.
#
# One response at a time. What is not stored can be gone on with here and nowhere else, and only the last of it: a
# continuation changes what it goes on from, and one that fails leaves nothing to go on from.

CREATE = "response.create"


class CreateFrame(CreateResponse, frozen=True, kw_only=True, tag_field="type", tag=CREATE):
    """A response over a WebSocket is a stream in any case, and one that no other request waits for."""

    stream: Literal[True] | None = None
    background: Literal[False] | None = None
    generate: Literal[True] | None = None
    stream_id: None = None


def _describe_refusal(error: Exception) -> Refusal:
    status, body, headers = make_error(error)
    described = {**body, "headers": headers} if headers else body
    frame = encode({"type": "error", "status": status, "error": described})
    return Refusal(status, str(body["code"]), {"error": body}, headers, "application/json", frame)


@websocket("/responses", opt={OWN_AUTH: True})
async def responses_socket(socket: Socket) -> None:
    async def converse(principal: Principal) -> None:
        read_query(socket.scope, known={})
        await _ResponsesSocket(socket, principal).run_until_closed()

    await serve_socket(socket, converse, _describe_refusal)


class _KeptResponse(msgspec.Struct, frozen=True):
    """A response that is in no log, and what a next one goes on from. `size`: the bytes that were said so far."""

    response_id: str
    session: UnstoredSession
    size: int


class _ResponsesSocket:
    """One connection."""

    def __init__(self, socket: Socket, principal: Principal) -> None:
        self._socket = socket
        self._principal = principal
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()
        self._idle = asyncio.Event()
        self._idle.set()
        self._begin_lock = asyncio.Lock()
        self._end_lock = asyncio.Lock()
        self._kept: _KeptResponse | None = None

    async def run_until_closed(self) -> None:
        """Until the client closes, the server stops, or the key is valid no more, which raises Unauthenticated."""
        work = self._receive(), self._answer(), self._leave_when_refused(), self._leave_when_drained()
        await run_until_first(self._socket, self._begin_lock, *work)

    async def _receive(self) -> None:
        """Take one frame after the other; refuse what comes while another response is under way."""
        while True:
            try:
                text = await receive_frame(self._socket)
                if not self._idle.is_set():
                    message = "another response is under way on this connection; wait for its end"
                    raise Refused(message, code="response_in_progress", status=409)
            except (TooLarge, Refused) as error:
                await self._socket.send_text(_describe_refusal(error).frame)
            else:
                self._idle.clear()
                self._frames.put_nowait(text)

    async def _answer(self) -> None:
        while True:
            text = await self._frames.get()
            try:
                last = await self._respond(text)
            except (*CLIENT_GONE, Unauthenticated):
                raise
            except Exception as error:
                last = _describe_refusal(error).frame
            async with self._end_lock:
                # A client that has the last frame may send the next one at once.
                self._idle.set()
                await self._socket.send_text(last)

    async def _respond(self, text: bytes) -> bytes:
        """Send a response's events, but for the last, which is returned: nothing of it is left to do then."""
        kept = self._take_kept(text)
        size = len(text) + (0 if kept is None else kept.size)
        self._refuse_excess(kept, size)
        async with self._begin_lock:
            await authorize_command(self._principal, self._socket.scope)
            self._principal.require("run")
            frame = await read_command(self._socket, text, CreateFrame, (CREATE,))
            response = await self._begin(frame, None if kept is None else kept.session)
        last = await self._send_events(response)
        encoded = encode(last)
        if response.session is not None and response.builder.outcome.status != "failed":
            self._kept = _KeptResponse(last["response"]["id"], response.session, size + len(encoded))
        return encoded

    def _refuse_excess(self, kept: _KeptResponse | None, size: int) -> None:
        """All of it is in memory, for as long as the connection is. What goes on from nothing has limits already."""
        most = self._principal.service.limits.unstored_bytes
        if kept is not None and size > most:
            raise TooLarge(
                f"a response that is not stored, with those that it continues, has more than {most} bytes; begin anew, "
                "or have it stored"
            )

    def _take_kept(self, text: bytes) -> _KeptResponse | None:
        """Return the response that a frame goes on from, if that is kept here; from now on it is not, unless all goes
        well."""
        kept = self._kept
        if kept is None or read_header(text).previous_response_id != kept.response_id:
            return None
        self._kept = None
        return kept

    async def _begin(self, frame: CreateFrame, kept: UnstoredSession | None) -> submit.FollowedResponse:
        run_request = await submit.read_run_request(self._principal, replace(frame, stream=True))
        if frame.store is False:
            return await submit.begin_unstored(self._principal, run_request, kept)
        if kept is not None:
            raise Refused(
                "a response that continues one that is not stored cannot be stored either: set `store` to false",
                "store",
            )
        target = await submit.find_target(self._principal, run_request, None)
        return await submit.follow_response(self._principal, target, run_request)

    async def _send_events(self, response: submit.FollowedResponse) -> Json:
        check = StreamCheck(self._principal, response.key, stop=self._principal.service.drained)
        with suppress(SessionNotFound):
            async with aclosing(response.batches) as batches:
                async for batch in batches:
                    if not await check.passes(batch):
                        break
                    events = [event for item in batch for event in response.builder.read(item)]
                    last = events.pop() if events and response.builder.is_over else None
                    for event in events:
                        await self._socket.send_text(encode(event))
                    if last is not None:
                        return last
        if not await self._principal.is_still_allowed():
            raise Unauthenticated(key_given=True)
        if check.is_stopping:
            message = "the server is shutting down; fetch the response later"
            raise Refused(message, code="server_shutting_down", status=503)
        raise make_not_found("response", str(response.builder.snapshot()["id"]))

    async def _leave_when_refused(self) -> None:
        """End the connection of a client that waits or takes nothing, too, when it was to be let in no more."""
        await wait_until_refused(self._principal)
        raise Unauthenticated(key_given=True)

    async def _leave_when_drained(self) -> None:
        """Once this server's runs have ended, and the last of them was told."""
        await self._principal.service.drained.wait()
        await self._idle.wait()
        async with self._end_lock:
            return


SOCKET_ROUTES = [responses_socket]


# A conversation made shorter: what users said, and one item that stands for the rest.


@post(
    "/responses/compact",
    status_code=200,
    summary="Compact a conversation, to continue with the result",
    opt={PERMISSION: ("run",)},
)
async def compact_response(data: JSONBody[CompactResponse], principal: NamedDependency[Principal]) -> Response[Any]:
    """The result has the messages of users, and a compaction item in place of everything else: the input for a new
    response. The agent's model makes the summary; nothing is recorded, and the conversation stays as it is.
    """
    request = await submit.read_run_request(
        principal, CreateResponse(model=data.model, input=data.input, previous_response_id=data.previous_response_id)
    )
    if request.input.approvals:
        raise Refused("an approval is given with a response", request.input.approvals[0].param)
    session = await submit.load_unstored_session(principal, request)
    chosen = None if data.model is None else choose_agent(session.state, request.model)
    state = _add(session.state, update_session(session.state, agent=chosen))
    end, unstored = split_history(request.input.messages), principal.engine.unstored
    past = request.input.messages[:end]
    passing = [past[place] for place in await unstored.find_passing(principal.tenant, state.agent, past)]
    given = [] if data.instructions is None else [{"role": "developer", "content": data.instructions}]
    trip = await unstored.check_state(principal.tenant, state, *request.input.messages[end:], *given)
    if trip is not None:
        raise Refused(trip.message, "input", code="guardrail")
    added = [*passing, *request.input.messages[end:]]
    facts = [MessageAdded(message=add_sender(message)) for message in added]
    state = await run_aside(len(facts) > history.FEW_MESSAGES, _add, state, facts)
    if not state.messages:
        raise Refused("there is nothing to make shorter", "input")
    try:
        summary = await principal.engine.compactions.sum_up(state, instructions=data.instructions)
    except TurnFailed as failure:
        raise make_failure_refusal(failure.error) from failure
    except TimeoutError:
        raise Refused("the summary took too long", code="run_timeout", status=500) from None
    usage = UsageSum()
    for completion in summary.completions:
        usage.add(completion.usage)
    questions = await history.read_items(session.id, state, _list_questions)
    answer = {
        "id": make_id("resp"),
        "object": "response.compaction",
        "created_at": int(time.time()),
        "usage": usage.to_response(),
    }
    shortened = _show_summary(summary.text)
    key = principal.session_key(session.id)
    return await history.answer_items(
        principal, key, questions, lambda shown: {**answer, "output": [*shown, shortened]}
    )


def _add(state: State, facts: Sequence[SessionEvent]) -> State:
    return apply_drafts(state, draft_events(state.agent, facts, None))


def _list_questions(items: SessionItems) -> list[Json]:
    found = (listed.item for listed in items.walk())
    return [item for item in found if (item["type"], item.get("role")) == ("message", "user")]


def _show_summary(text: str) -> Json:
    return {"id": make_id("cmp"), "type": "compaction", "encrypted_content": SUMMARY_PREFIX + text}


COMPACTION_ROUTES = [compact_response]


# Estimate the size of a response's first request to its model. An estimate: only a model's provider counts exactly.

# Of text in any language: few tokens are shorter, most of them in English are about as long.
_BYTES_PER_TOKEN = 4
# A picture of 1024 × 1024 in detail. The size of a picture or file is not looked up for an estimate.
_TOKENS_PER_MEDIUM = 765


@post(
    "/responses/input_tokens",
    status_code=200,
    summary="Estimate the tokens of a response's input",
    opt={PERMISSION: ("run",)},
)
async def count_input_tokens(data: JSONBody[CountTokens], principal: NamedDependency[Principal]) -> dict[str, Any]:
    """Of everything that would be sent to the model first: instructions, functions, the history, and the input.
    Estimated from the bytes of its text, with a fixed number for each picture or file. Nothing is recorded.
    """
    run_request = await submit.read_run_request(principal, CreateResponse(**asdict(data)))
    session = await submit.load_unstored_session(principal, run_request)
    with submit.map_error_params(run_request.input):
        request = await _preview(principal, run_request, session)
    return {"object": "response.input_tokens", "input_tokens": estimate_tokens(request), "estimated": True}


async def _preview(principal: Principal, run_request: submit.RunRequest, session: UnstoredSession) -> ModelRequest:
    run = session.state.run
    if run is not None and run.status == "waiting":
        answers = submit.read_answers(principal, session.id, run, run_request)
        now = await principal.store.read_clock() if answers.approvals else None

        def decide(state: State) -> list[EventDraft]:
            given = answers.results, answers.approvals
            return resume_run(state, run.id, *given, messages=answers.messages, options=run_request.options, now=now)
    else:
        # The future answer of another run is unknown: as if it were cut off now.
        command = replace(submit.make_command(principal, session.state, run_request), on_busy="interrupt")

        def decide(state: State) -> list[EventDraft]:
            return start_run(state, command)

    try:
        return await principal.engine.unstored.preview(session, decide, run_request.options)
    except TurnFailed as failure:
        raise Refused(failure.error.message, "model", code=failure.error.code, status=409) from failure


def estimate_tokens(request: ModelRequest) -> int:
    """About how many tokens a request has. What its history comes to is known, however long that is."""
    media = request.history.media
    texts = len(encode(request.instructions)) + len((request.tools or "").encode())
    size = texts + request.history.size - media.size
    return size // _BYTES_PER_TOKEN + media.count * _TOKENS_PER_MEDIUM


INPUT_TOKENS_ROUTES = [count_input_tokens]


# Routes for models, which are the agents.

ForUser = Annotated[str | None, QueryParameter(description="Has no effect: the API key counts.")]


def show_model(name: str) -> Json:
    # Agents are not dated.
    return {"id": name, "object": "model", "created": 0, "owned_by": "swarmkeep"}


@get("/models", summary="List the agents")
async def list_models(principal: NamedDependency[Principal], user: ForUser = None) -> dict[str, Any]:
    return {"object": "list", "data": [show_model(name) for name in principal.engine.registry.names]}


@get("/models/{name:path}", summary="Get an agent")
async def get_model(
    request: Request[Any, Any, Any], principal: NamedDependency[Principal], name: AgentName
) -> dict[str, Any]:
    return show_model(submit.find_agent(principal, read_name(request, f"{PREFIX}/models/")))


MODELS_ROUTES = [list_models, get_model]
