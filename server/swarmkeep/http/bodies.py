"""JSON bodies in and out. Lone surrogates pass, as everywhere else; repeated keys do not."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Annotated, Any, ClassVar, NoReturn, TypeVar

import msgspec
from litestar import Request, Response
from litestar.datastructures import State
from litestar.exceptions import InternalServerException
from litestar.serialization import default_serializer
from litestar.types import Serializer
from msgspec import Meta

from swarmkeep.decide.checks import (
    check_format,
    check_messages,
    check_object,
    check_profile,
    check_settings,
    check_tool_choice,
    check_tools,
    make_invalid_request,
)
from swarmkeep.decide.commands import Approval, OnBusy, StartRun, ToolAnswer
from swarmkeep.events.codec import Json, MalformedJson, decode, encode, has_more_values
from swarmkeep.events.errors import InvalidRequest, Overloaded, TooLarge, quote
from swarmkeep.events.facts import Decision
from swarmkeep.events.records import RunOptions
from swarmkeep.events.sizes import is_heavy
from swarmkeep.http.auth import Principal, RequestTimeout, UnsupportedMediaType
from swarmkeep.http.metrics import ServerLimits
from swarmkeep.http.threads import run_aside
from swarmkeep.runs.identifiers import make_id
from swarmkeep.runs.reader import RunPosition
from swarmkeep.runs.runs import IdempotentRequest
from swarmkeep.store.records import SessionKey

# Limits on request bodies that are not complete yet.

# So much of each body is not counted: only larger bodies are refused; everyday requests get through even if anyone
# else sends slowly.
UNCOUNTED_BYTES = 65_536
MAX_FILES = 8


class BodyLimits:
    """The bodies that are still arriving in this process: bodies in memory, bounded in their sum, and files, bounded in
    number.

    A client that sends slowly holds what it has sent, and many could fill the memory or the disk with it. `max_values`
    is how many JSON values a body may hold once it is complete.
    """

    def __init__(self, max_bytes: int, max_values: int = 200_000) -> None:
        self._max_bytes = max_bytes
        self.max_values = max_values
        self.held_bytes = 0
        self.file_count = 0

    @contextmanager
    def track_body(self) -> Iterator[Callable[[int], None]]:
        """While a body arrives. Gives a function to call with the size of each piece, which raises Overloaded."""
        size = counted = 0

        def count_bytes(count: int) -> None:
            nonlocal size, counted
            size += count
            more = max(0, size - UNCOUNTED_BYTES) - counted
            if self.held_bytes + more > self._max_bytes:
                raise Overloaded(detail="too many large requests are arriving; try again")
            counted += more
            self.held_bytes += more

        try:
            yield count_bytes
        finally:
            self.held_bytes -= counted

    @contextmanager
    def track_file(self) -> Iterator[None]:
        """While a file arrives. Raises Overloaded."""
        if self.file_count >= MAX_FILES:
            raise Overloaded(detail="too many files are arriving; try again")
        self.file_count += 1
        try:
            yield
        finally:
            self.file_count -= 1


T = TypeVar("T")

# A file may take longer than a body: a second more for each of so many bytes.
SLOWEST_BYTES_PER_SECOND = 100_000


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request's body. One that may be absent counts as `{}` then."""

    may_be_absent: ClassVar[bool] = False


class JsonRequest(Request[Any, Any, State]):
    """Decodes a body straight into the type that the handler asks for."""

    async def body(self) -> bytes:
        if isinstance(self._body, bytes):
            return self._body or b"{}"
        seconds, parts = self._body_seconds, []
        with self.app.state.body_limits.track_body() as count_bytes, _limit_time(seconds):
            async with asyncio.timeout(seconds), aclosing(self.stream()) as pieces:
                async for piece in pieces:
                    count_bytes(len(piece))
                    parts.append(piece)
        self._body = self._connection_state.body = b"".join(parts)
        # The framework asks no further where there is nothing; here an empty body has a meaning.
        return self._body or b"{}"

    async def stream_file(self) -> AsyncGenerator[bytes]:
        """The body piece by piece, for files that are too large for memory. The more has come, the longer it may take.

        Raises RequestTimeout, InvalidRequest, Overloaded.
        """
        seconds = self._body_seconds
        with self.app.state.body_limits.track_file(), _limit_time(seconds):
            now = asyncio.get_running_loop().time
            began, size = now(), 0
            async with aclosing(self.stream()) as pieces:
                while True:
                    async with asyncio.timeout_at(began + seconds + size / SLOWEST_BYTES_PER_SECOND):
                        piece = await anext(pieces, None)
                    if piece is None:
                        return
                    size += len(piece)
                    yield piece

    async def json(self) -> Any:
        self._refuse_other_types()
        body = await self.body()
        wanted = self._body_type
        if self._body == b"" and not wanted.may_be_absent:
            raise InvalidRequest("the body must be a JSON object")
        max_values = self.app.state.body_limits.max_values
        return await run_aside(len(body) > UNCOUNTED_BYTES, parse_json, body, wanted, "the body", max_values)

    @property
    def _body_seconds(self) -> float:
        limits: ServerLimits = self.app.state.service.limits
        return limits.body_seconds

    @property
    def _body_type(self) -> type[Body]:
        field = self.route_handler.parsed_data_field
        assert field is not None
        wanted: type[Body] = field.annotation
        return wanted

    def _refuse_other_types(self) -> None:
        for name, value in self.scope["headers"]:
            if name == b"content-type" and not _is_json(value.decode("latin-1")):
                raise UnsupportedMediaType("the body must be JSON: send the header `Content-Type: application/json`")


@contextmanager
def _limit_time(seconds: float) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise RequestTimeout(f"the body did not arrive within {seconds:g} seconds") from None
    except InternalServerException:
        # The client left in the middle of its request and will not read the answer.
        raise InvalidRequest("the body ended early") from None


def parse_json(text: bytes, type_: Any, name: str, max_values: int) -> Any:
    """Decode a JSON text and check it against `type_`; `name` is what a refusal calls it.

    Raises InvalidRequest and TooLarge.
    """
    refuse_too_many_values(text, max_values)
    try:
        _refuse_repeated_keys(text)
        return decode(text, type_)
    except msgspec.ValidationError as error:
        raise make_invalid_request(error, type_) from error
    except MalformedJson as error:
        raise InvalidRequest(f"{name} is not valid JSON: {error}") from error


def refuse_too_many_values(body: bytes, max_values: int) -> None:
    """Refuse a JSON text with more values than that, before it is read: many tiny ones cost far more than their bytes.
    Raises TooLarge.
    """
    if has_more_values(body, max_values):
        raise TooLarge(f"the body holds more than {max_values} JSON values (SWARMKEEP_MAX_BODY_VALUES)")


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _refuse_repeated_keys(body: bytes) -> None:
    # Parsers differ on which of two equal keys counts, so what one has checked another may read as something else.
    try:
        _REPEATED_KEY_DECODER.decode(body.decode())
    except RecursionError:
        raise MalformedJson("nested too deeply") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise MalformedJson(str(error)) from None


def _refuse_repeated_names(pairs: list[tuple[str, Any]]) -> None:
    if len(pairs) > 1 and len({key for key, _ in pairs}) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        repeated = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"the key {quote(repeated)} is given twice")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_REPEATED_KEY_DECODER = json.JSONDecoder(object_pairs_hook=_refuse_repeated_names, parse_constant=_refuse_constant)


class JsonResponse(Response[T]):
    """An answer in JSON, encoded once."""

    def render(self, content: Any, media_type: str, enc_hook: Serializer = default_serializer) -> bytes:
        return content if isinstance(content, bytes) else encode(content)


# The bodies that start and resume a run: the same over HTTP and over a WebSocket.


def has_user_message(messages: Sequence[Json]) -> bool:
    return any(message.get("role") == "user" for message in messages)


class NewRun(Body, frozen=True, kw_only=True):
    """A run of the session's agent on an input."""

    input: str | list[Json]
    """What the user says: a string, or a list of Chat Completions messages. With an empty list the agent continues with
    the existing history."""
    stream: bool = False
    """`true`: the answer is a stream."""
    background: bool = False
    """`true`: answers at once with 202, the run as it is then, and its path in `Location`; its stream can be joined.
    Not together with `stream`."""
    agent: str | None = None
    """Becomes the active agent first."""
    context_variables: Json | None = None
    """A merge patch that is applied first."""
    model: str | None = None
    """A model instead of the agents' own."""
    max_turns: Annotated[int, Meta(ge=1)] | None = None
    """How many model calls at most."""
    execute_tools: bool = True
    """`false`: the run waits for the results of its tool calls."""
    tools: list[Json] | None = None
    """At most 128 functions of the caller, as in Chat Completions, which the server never runs: the run waits for the
    results of their calls."""
    tool_choice: str | Json | None = None
    """`auto`, `none`, `required`, or an object that names a function; overrides the agent's. An unknown name is
    refused, unless an agent has MCP servers. A value that forces a call applies to the first reply, and to the first
    after a resume that brings options of its own."""
    parallel_tool_calls: bool | msgspec.UnsetType | None = msgspec.UNSET
    """Allow several calls in a reply; overrides the agents'. With null, models are sent no such parameter."""
    model_settings: Json | None = None
    """Parameters of its model requests, such as `temperature`; each overrides the agents' own, and null removes it."""
    model_profile: Json | None = None
    """How its models want to be asked, over what is known of them and what agents say."""
    instructions: str | None = None
    """Follow the agents' own, after a blank line."""
    response_format: Json | None = None
    """As in Chat Completions (`text`, `json_object`, `json_schema`), instead of the agents' output types."""
    on_busy: OnBusy = "reject"
    """What to do while another run is active: `reject`; `queue`, to wait for its turn; or `interrupt`, to have the
    other one cancelled."""
    relayed: bool = False
    """`true`: a person passes on what the user said, as a key with the role `support` has to say."""

    @property
    def speaks_as_user(self) -> bool:
        return isinstance(self.input, str) or has_user_message(self.input)

    async def to_command(
        self, idempotency: IdempotentRequest | None, max_messages: int, *, by: str | None = None
    ) -> StartRun:
        """Make the command; a long input is checked in a thread, and no other request waits for that.

        Raises InvalidRequest and TooLarge.
        """
        is_long = is_heavy(self.input, self.context_variables, self.tools, self.model_settings, self.response_format)
        return await run_aside(is_long, self._check, idempotency, max_messages, by)

    def _check(self, idempotency: IdempotentRequest | None, max_messages: int, by: str | None) -> StartRun:
        if self.stream and self.background:
            raise InvalidRequest(
                "use `stream` or `background`, not both; a background run has its own stream", "/background"
            )
        options = RunOptions(
            max_turns=self.max_turns,
            model=self.model,
            execute_tools=self.execute_tools,
            # A client that joins a background run, at any time, sees it speak.
            stream=self.stream or self.background,
            tools=check_tools(self.tools) if self.tools else msgspec.UNSET,
            tool_choice=msgspec.UNSET if self.tool_choice is None else check_tool_choice(self.tool_choice),
            parallel_tool_calls=self.parallel_tool_calls,
            model_settings=msgspec.UNSET if not self.model_settings else check_settings(self.model_settings),
            model_profile=msgspec.UNSET if not self.model_profile else check_profile(self.model_profile),
            instructions=self.instructions or msgspec.UNSET,
            response_format=check_format(self.response_format) if self.response_format else msgspec.UNSET,
        )
        return StartRun(
            run_id=make_id("run"),
            messages=check_messages(self.input, "/input", max_messages),
            options=options,
            agent=self.agent,
            context_variables=check_object(self.context_variables or {}, "/context_variables"),
            idempotency_key=None if idempotency is None else idempotency.key,
            on_busy=self.on_busy,
            by=msgspec.UNSET if by is None else by,
        )


class ToolResult(Body, frozen=True, kw_only=True):
    """The outcome of a call that was carried out elsewhere."""

    tool_call_id: str
    """The call."""
    content: str
    """The result, in words for the model."""
    is_error: bool = False
    """`true`: it failed."""


class ApprovalDecision(Body, frozen=True, kw_only=True):
    """A decision on a call."""

    tool_call_id: str
    """The call."""
    decision: Decision
    """`approve` or `deny`."""
    reason: str | None = None
    """Why; the result of a denied call quotes it."""
    arguments: Json | None = None
    """Other arguments, with which an approved call is carried out."""
    arguments_digest: Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{64}$")] | None = None
    """The SHA-256 (hex) of the arguments' text that the approver was shown, as pending calls have it: the decision
    counts for these arguments only."""

    def to_approval(self, principal: Principal) -> Approval:
        return Approval(
            tool_call_id=self.tool_call_id,
            decision=self.decision,
            reason=self.reason,
            by=principal.name,
            may_be_own=not principal.service.separate_approvers,
            arguments=self.arguments,
            arguments_digest=self.arguments_digest and self.arguments_digest.lower(),
        )


class Resume(Body, frozen=True, kw_only=True):
    """The answers that the run waits for. An interrupted run is tried again by a resume with neither."""

    may_be_absent: ClassVar[bool] = True
    tool_results: tuple[ToolResult, ...] = ()
    """Results of calls that were carried out elsewhere."""
    approvals: tuple[ApprovalDecision, ...] = ()
    """Decisions."""
    stream: bool = False
    """`true`: the answer is a stream."""

    async def submit(
        self, principal: Principal, key: SessionKey, run_id: str, idempotency: IdempotentRequest | None
    ) -> RunPosition:
        """Give the run what it waits for; returns once that is durable. Raises Forbidden."""
        if self.approvals:
            principal.require("approve")
        if self.tool_results or not self.approvals:
            principal.require("run")
        return await principal.engine.runs.resume(
            key,
            run_id,
            tool_results=[msgspec.convert(result, ToolAnswer, from_attributes=True) for result in self.tool_results],
            approvals=[approval.to_approval(principal) for approval in self.approvals],
            idempotency=idempotency,
        )
