"""Records of model calls and options of runs; and usage, summed and priced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Literal, TypeVar, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from swarmkeep.events.codec import Json
from swarmkeep.events.errors import InvalidRequest

T = TypeVar("T", bound=msgspec.Struct)

UsageGroup = Literal["day", "agent", "model", "session", "run"]
USAGE_GROUPS: tuple[UsageGroup, ...] = get_args(UsageGroup)


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of model calls by the server's current price table: computed when it is read, and never recorded."""

    amount: float
    """The sum."""
    currency: str
    """Its currency."""
    unpriced_calls: int = 0
    """How many model calls are in no sum, because the table has no price for their model."""


class UsageRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The usage of the calls of one group. A call is counted once, where and when it was made: what a fork shares
    counts in the original only. Deleted sessions are no longer counted; redacted events are; imported sessions count on
    the days on which they were recorded."""

    day: str | msgspec.UnsetType = msgspec.UNSET
    """In UTC, if it was grouped by day."""
    agent: str | msgspec.UnsetType = msgspec.UNSET
    """If it was grouped by agent."""
    model: str | msgspec.UnsetType | None = msgspec.UNSET
    """If it was grouped by model. Tool calls belong to none (null)."""
    session_id: str | msgspec.UnsetType = msgspec.UNSET
    """If it was grouped by session."""
    run_id: str | msgspec.UnsetType | None = msgspec.UNSET
    """If it was grouped by run; null for calls outside of runs."""
    model_calls: int
    """How many were answered or cut off."""
    tool_calls: int
    """How many were answered, denied, or have no known outcome."""
    prompt_tokens: int
    """As providers counted them."""
    completion_tokens: int
    """As providers counted them."""
    total_tokens: int
    """As providers counted them."""
    cached_tokens: int
    """The part of the prompt that was read from a cache."""
    reasoning_tokens: int
    """The part of the completion that was spent on thinking."""
    model_ms: float
    """How long model calls took."""
    tool_ms: float
    """How long tool calls took."""
    cost: Cost | msgspec.UnsetType = msgspec.UNSET
    """Where a price is known."""


class ModelShare(msgspec.Struct, frozen=True, kw_only=True):
    """The share of one model's calls in a group's tokens: what a cost is made of."""

    model: str
    model_calls: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of calls, and how they are grouped; by nothing they are one sum. Days, both included, are
    `YYYY-MM-DD`.

    `with_shares` asks for the part of each model, too.
    """

    by: tuple[UsageGroup, ...] = ()
    first_day: str | None = None
    last_day: str | None = None
    only: Mapping[UsageGroup, str] = {}
    limit: int = 50
    cursor: str | None = None
    with_shares: bool = False


class UsagePage(msgspec.Struct, frozen=True):
    """`shares`: of each row the parts of its models, where they were asked for."""

    rows: list[UsageRow]
    next_cursor: str | None
    shares: list[list[ModelShare]] = []


def parse_usage_groups(names: Iterable[str], pointer: str = "/query/group_by") -> tuple[UsageGroup, ...]:
    """The groups that are named, each once. Raises InvalidRequest for another word."""
    wanted = tuple(dict.fromkeys(names))
    for name in wanted:
        if name not in USAGE_GROUPS:
            raise InvalidRequest(f"usage cannot be grouped by {name!r}; choose from {', '.join(USAGE_GROUPS)}", pointer)
    return tuple(next(group for group in USAGE_GROUPS if group == name) for name in wanted)


# Compute the costs of models: a table of prices, and what calls come to by it. It is computed on reading, and never
# a fact.

# Below the smallest part that a single token comes to.
_DECIMALS = 9
_Amount = Annotated[float, Meta(ge=0, le=1e9)]


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a million tokens. What was read from a cache costs as much as other input if `cached_input` is not named."""

    input: _Amount
    output: _Amount
    cached_input: _Amount | None = None


_LONGEST_KEPT_NAME = 200


class PriceTable:
    """Prices by model: a model's own name comes before patterns (`gpt-4o*`), and of these the longest that fits."""

    def __init__(self, prices: dict[str, Price], currency: str) -> None:
        self.prices = prices
        self.currency = currency
        self._patterns = [name for name in prices if "*" in name or "?" in name]
        self._find = lru_cache(maxsize=1000)(self._look_up)

    def find(self, model: str) -> Price | None:
        # Callers may name any model, in as many letters as a request has: what is kept of them is short.
        return self._find(model) if len(model) <= _LONGEST_KEPT_NAME else self._look_up(model)

    def add_up(self, shares: Iterable[ModelShare]) -> Cost | None:
        """Return the cost of these calls; None where not one of them has a price."""
        amount, priced, unpriced = 0.0, 0, 0
        for share in shares:
            price = self.find(share.model)
            if price is None:
                unpriced += share.model_calls
            else:
                priced += share.model_calls
                amount += _compute_cost(share, price)
        if not priced:
            return None
        return Cost(amount=round(amount, _DECIMALS), currency=self.currency, unpriced_calls=unpriced)

    def price_each(self, runs: Iterable[T], shares: Iterable[Iterable[ModelShare]]) -> list[T]:
        """Runs, or other rows that have a `cost`, each with what its shares cost where that is known."""
        pairs = zip(runs, map(self.add_up, shares), strict=True)
        return [row if cost is None else msgspec.structs.replace(row, cost=cost) for row, cost in pairs]

    def price_rows(self, page: UsagePage) -> list[UsageRow]:
        """The rows of a page that has shares, each with what its calls cost where that is known."""
        return self.price_each(page.rows, page.shares)

    def _look_up(self, model: str) -> Price | None:
        if model in self.prices:
            return self.prices[model]
        fitting = [pattern for pattern in self._patterns if _fits(pattern, model)]
        return self.prices[max(fitting, key=len)] if fitting else None


def _fits(pattern: str, model: str) -> bool:
    """Tell if it is `model`, with `*` for any text and `?` for any character, as the page has it.

    What is between two stars is put as early as it can be, and never moved: however many stars there are, it takes no
    longer than the one text times the other.
    """
    first, *others = pattern.split("*")
    if not others:
        return len(first) == len(model) and _stands_at(first, model, 0)
    *middle, last = others
    at, end = len(first), len(model) - len(last)
    if at > end or not (_stands_at(first, model, 0) and _stands_at(last, model, end)):
        return False
    for piece in middle:
        while not _stands_at(piece, model, at):
            at += 1
            if at + len(piece) > end:
                return False
        at += len(piece)
    return at <= end


def _stands_at(piece: str, model: str, at: int) -> bool:
    """`piece` has no stars."""
    place = model[at : at + len(piece)]
    return len(place) == len(piece) and all(one in ("?", other) for one, other in zip(piece, place, strict=True))


def _compute_cost(share: ModelShare, price: Price) -> float:
    cached = min(share.cached_tokens, share.prompt_tokens)
    for_cached = price.input if price.cached_input is None else price.cached_input
    fresh = share.prompt_tokens - cached
    return (fresh * price.input + cached * for_cached + share.completion_tokens * price.output) / 1_000_000


# Record the data that comes with a message: of a model's, the request and what the provider said; of a tool's, how the
# call ended.

Ending = Literal["stop", "length", "tool_calls", "content_filter", "failed"]
"""How a model's reply ended, in OpenAI's words. `failed`: generation broke off, also after some text."""

# What servers call it, in lower case. Any other word is `failed`: to ask once more is better than to take a reply that
# broke off for a whole one.
_ENDINGS: dict[Ending, tuple[str, ...]] = {
    "stop": (
        "stop",
        *("end_turn", "stop_sequence"),  # Anthropic and Bedrock behind gateways
        *("eos", "eos_token"),  # Together, TGI, watsonx
        *("complete", "completed"),  # Cohere; gateways in front of the Responses API
        *("finish_reason_stop", "end", "done", "finished"),  # Vertex by its enumeration; small servers
        *("eosfound", "stopstringfound"),  # LM Studio's own words
    ),
    "length": (
        "length",
        *("max_tokens", "model_context_window_exceeded"),  # Anthropic, Bedrock, Gemini, Cohere; Zhipu
        *("finish_reason_max_tokens", "max_output_tokens"),  # Vertex; the Responses API
        *("model_length", "max_length", "max_new_tokens", "limit"),  # Mistral; gateways; TGI; llama.cpp
        *("maxpredictedtokensreached", "contextlengthreached"),  # LM Studio
    ),
    "tool_calls": (
        "tool_calls",
        "function_call",  # OpenAI before tools
        *("tool_use", "tool_call", "toolcalls"),  # Anthropic and Bedrock; Cohere; LM Studio
    ),
    "content_filter": (
        "content_filter",
        *("safety", "recitation", "blocklist", "prohibited_content", "spii", "image_safety"),  # Gemini
        *("content_filtered", "guardrail_intervened", "refusal"),  # Bedrock; Anthropic
        *("sensitive", "error_toxic"),  # Zhipu; Cohere
    ),
}
_BY_WORD = {word: ending for ending, words in _ENDINGS.items() for word in words}
# Some servers write these where they have no reason yet.
_NO_REASON = ("", "null", "none")


def classify_finish(reported: object) -> Ending | None:
    """The meaning of a `finish_reason`; None where none was given."""
    if not isinstance(reported, str):
        return None
    # Gemini adds its own reason behind a colon ("content_filter: RECITATION").
    word = reported.partition(":")[0].strip().lower()
    return None if word in _NO_REASON else _BY_WORD.get(word, "failed")


class MessageRules(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """By which rules the messages of a log become those of a request: `version` counts the rules themselves, and the
    fields are those of a model's profile.

    `model` and `server` are whom the request is for: what these attached to their messages goes back to them. Recorded,
    `model` is left out, as it is one of the request's parameters.
    """

    version: int
    model: str = ""
    server: str = ""
    system_messages: str = "anywhere"
    developer_role: str = "developer"
    content_parts: str = "parts"
    attachments: str = "send_back"
    missing_attachments: str = "omit"


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The request to a model, beside the messages."""

    instructions: str
    """The SHA-256 (hex) of the instructions, which are kept once per session."""
    tools: str | None = None
    """The SHA-256 of the tool schemas, or null."""
    params: Json = {}
    """All other parameters."""
    history_from: int | UnsetType = UNSET
    """Only if not all messages were sent: the `seq` of the first one."""
    history_upto: int | UnsetType = UNSET
    """Only if messages were taken out while the model spoke: the `seq` up to which the log made up the request."""
    rules: MessageRules | UnsetType = UNSET
    """Only if it made a difference: by which rules the messages were rendered, as the model's profile has them, and the
    host that was asked."""


class CompletionRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The origin of a model's answer. `id`, `model`, `finish_reason` and `usage` are as the provider reported them;
    counts are whole numbers, and a total that is missing is the sum."""

    id: str | None = None
    """The provider's id of the answer."""
    model: str | None = None
    """The model that answered."""
    finish_reason: str | None = None
    """How the reply ended."""
    usage: Json | None = None
    """Tokens."""
    duration_ms: float = 0.0
    """How long the call took."""
    request: RequestRecord | None = None
    """What the model was sent beside the messages; null for a partial answer."""
    partial: bool | UnsetType = UNSET
    """True if the model was cut off before the end of its message, else absent. `request` is null then; `usage` and
    `finish_reason` are there only if the provider itself ended the message and reported them."""
    time_to_first_token_ms: float | UnsetType = UNSET
    """The time to the first text or call; only if the model was asked for a stream."""

    @property
    def named_model(self) -> str:
        """The model by the provider's name for it, or by that of the request; empty if neither says one."""
        requested = self.request.params.get("model") if self.request is not None else None
        return self.model or (requested if isinstance(requested, str) else "")

    @property
    def ending(self) -> Ending | None:
        """The ending of the reply, by any name its provider has for that."""
        return classify_finish(self.finish_reason)


class ContextChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The change of the context by a call."""

    patch: Json = {}
    """As in `context.updated`."""
    nulls: tuple[str, ...] | UnsetType = UNSET
    """As in `context.updated`."""
    values: Json | UnsetType = UNSET
    """Keys whose value replaces what they hold by then."""


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens as the provider counted them."""

    prompt_tokens: int = 0
    """Of what models were sent."""
    completion_tokens: int = 0
    """Of what they said."""
    total_tokens: int = 0
    """Of both."""
    model_calls: int = 0
    """Of how many model calls this is the sum."""


class ToolRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a tool call ended."""

    name: str
    """The function."""
    status: str
    """`ok`: the function returned. `error`: it failed, or was not called, and the content says why; or a caller
    delivered the result with `is_error`. `timeout`: it did not return in time. `unknown_outcome`: it had been started
    when the server died, and was not run again. `denied`: a person denied it. `refused`: a guardrail refused it.
    `external`: a caller delivered the result. `superseded`: never in the log; the fold gives it to the result of a
    handoff that was ignored."""
    duration_ms: float = 0.0
    """How long it took."""
    handoff: str | UnsetType = UNSET
    """The agent's name, if the function returned an agent, whether or not the handoff was then made."""
    output: bool | UnsetType = UNSET
    """True if the call's arguments were taken as the output of the run."""
    context: ContextChange | UnsetType = UNSET
    """The call changed the context variables while an earlier call of the same reply was still open. This changes
    nothing by itself: the change is made, and recorded as a `context.updated`, when the earlier calls have ended. A
    redaction of one of the two covers both."""
    session_id: str | UnsetType = UNSET
    """The session in which another agent was asked."""
    usage: Usage | UnsetType = UNSET
    """What asking it took, with all that was asked from there; it is counted there."""
    files: tuple[Json, ...] | UnsetType = UNSET
    """Content parts that refer to the files that the function returned. The message's text names each."""


# More than any call can take.
_MAX_COUNT = 2**40
_MAX_SUM = 2**63 - 1


def read_count(reported: object) -> int:
    """A count as a provider reported it, at most 2**40; a negative or odd one is 0."""
    return max(0, min(reported, _MAX_COUNT)) if isinstance(reported, int) and not isinstance(reported, bool) else 0


def read_usage(reported: Json | None) -> Usage:
    """A model call as the provider counted it."""
    counts = reported or {}
    prompt, completion, total = counts.get("prompt_tokens"), counts.get("completion_tokens"), counts.get("total_tokens")
    # Nearly all are in order, and long logs have many: one look at all three.
    if type(prompt) is type(completion) is type(total) is int and 0 <= prompt | completion | total <= _MAX_COUNT:
        return Usage(prompt, completion, total, 1)
    return Usage(read_count(prompt), read_count(completion), read_count(total), 1)


def sum_usage(one: Usage, other: Usage) -> Usage:
    prompt = one.prompt_tokens + other.prompt_tokens
    completion = one.completion_tokens + other.completion_tokens
    total = one.total_tokens + other.total_tokens
    # One look at all three: together they have no bit that is too high unless one of them has.
    if not 0 <= prompt | completion | total <= _MAX_SUM:
        # Of asked agents an imported record may say anything. A sum that JSON cannot hold could not be recorded.
        prompt, completion, total = (max(0, min(count, _MAX_SUM)) for count in (prompt, completion, total))
    return Usage(prompt, completion, total, one.model_calls + other.model_calls)


# Of a JSON schema, what may say that an object has keys.
_KEYS = ("properties", "required", "additionalProperties", "patternProperties", "$ref", "anyOf", "oneOf", "allOf")


def has_parameters(schema: Json) -> bool:
    """Return whether a function whose parameters have this JSON schema can be given any."""
    return any(schema.get(key) for key in _KEYS)


class CallerFunction(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str | UnsetType = UNSET
    parameters: Json | UnsetType = UNSET
    strict: bool | UnsetType | None = UNSET


class CallerTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function of the caller of a run, as Chat Completions describes it: offered to the model, never run here."""

    type: Literal["function"] = "function"
    function: CallerFunction


NOT_ASKED = frozenset({"stream", "loop_turns", "history_turns", "request"})
"""Options that another run like one does not take over: how its caller followed it, the limits of its server, and what
OpenAI's API shows again, which names the session. The page has the same list in `edit.js`."""


class RunOptions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The options of a run. `max_turns`, `model`, `execute_tools` and `stream` are as asked for, with defaults filled
    in; the last eight are there only if the request had them."""

    max_turns: int | None = None
    """How many model calls at most; null: no limit."""
    model: str | None = None
    """A model instead of the agents' own, or null."""
    execute_tools: bool = True
    """False if the caller carries the calls out."""
    stream: bool = False
    """True if models are asked for streams."""
    loop_turns: int | None = None
    """The server's limit of turns in a circle, or null."""
    history_turns: int | None = None
    """How many of the last turns a model is sent, or null for all."""
    tools: tuple[CallerTool, ...] | UnsetType = UNSET
    """Functions of the caller."""
    tool_choice: str | Json | UnsetType = UNSET
    """Overrides the agent's."""
    parallel_tool_calls: bool | UnsetType | None = UNSET
    """Overrides the agents'; with null, models are sent no such parameter."""
    model_settings: Json | UnsetType = UNSET
    """Override the agents', name by name; null removes one."""
    model_profile: Json | UnsetType = UNSET
    """As `model_settings`, over what is known of the models."""
    instructions: str | UnsetType = UNSET
    """Follow the agents' own."""
    response_format: Json | UnsetType = UNSET
    """Instead of what agents say of their output."""
    request: Json | UnsetType = UNSET
    """Other fields of the request, kept to be shown again."""

    def list_asked(self) -> Json:
        """List the options that a caller asked for, as the body of another run has them: every option but those in
        `NOT_ASKED`."""
        options: Json = msgspec.to_builtins(self)
        return {name: value for name, value in options.items() if name not in NOT_ASKED and value is not None}

    @property
    def caller_tools(self) -> tuple[CallerTool, ...]:
        return () if self.tools is UNSET else self.tools

    @property
    def bare_tool_names(self) -> frozenset[str]:
        """The caller's functions without parameters."""
        return frozenset(
            tool.function.name for tool in self.caller_tools if not has_parameters(tool.function.parameters or {})
        )

    @property
    def caller_tool_names(self) -> frozenset[str]:
        """The functions whose calls are not carried out here."""
        return frozenset(tool.function.name for tool in self.caller_tools)
