"""Record the data that comes with a message: of a model's, the request and what the provider said; of a tool's, how the
call ended."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.events.codec import Json

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
    """The request to a model, beside the messages: two content hashes (SHA-256, hex) and the other parameters.

    `history_from`: the seq that the messages begin with, when earlier ones were left out. `history_upto`: the seq up to
    which the log made up the messages, when some of them were taken out while the model spoke. `rules`: by which rules
    the messages were rendered, where that made a difference; by the first ones, if absent.
    """

    instructions: str
    tools: str | None = None
    params: Json = {}
    history_from: int | UnsetType = UNSET
    history_upto: int | UnsetType = UNSET
    rules: MessageRules | UnsetType = UNSET


class CompletionRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The origin of an assistant message, as the provider reported it. `partial`: cut off before its end.

    `time_to_first_token_ms`: of one that came as a stream, how long it was until its first text or call.
    """

    id: str | None = None
    model: str | None = None
    finish_reason: str | None = None
    usage: Json | None = None
    duration_ms: float = 0.0
    request: RequestRecord | None = None
    partial: bool | UnsetType = UNSET
    time_to_first_token_ms: float | UnsetType = UNSET

    @property
    def ending(self) -> Ending | None:
        """The ending of the reply, by any name its provider has for that."""
        return classify_finish(self.finish_reason)


class ContextChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The change of the context by a call: a merge patch and pointers to nulls, as in `context.updated`, and then
    `values`, which take the place of what those keys hold by then."""

    patch: Json = {}
    nulls: tuple[str, ...] | UnsetType = UNSET
    values: Json | UnsetType = UNSET


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens as the provider counted them, and how many model calls they are the sum of."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    model_calls: int = 0


class ToolRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The outcome of a tool call. `handoff` names the agent it returned, whether or not that handoff was made.

    `output`: the call's arguments are the run's output, and it ends with them. `context`: its change of the context,
    where a call before it was still open; a `context.updated` follows once none is. `session_id`: the session in which
    another agent was asked, and `usage` what that took, with all that was asked from there; it is counted there.
    `files`: what the call gave beside its text, as content parts that refer to it.
    """

    name: str
    status: str
    duration_ms: float = 0.0
    handoff: str | UnsetType = UNSET
    output: bool | UnsetType = UNSET
    context: ContextChange | UnsetType = UNSET
    session_id: str | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    files: tuple[Json, ...] | UnsetType = UNSET


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
    """The options that a run was asked for with, and the limits that hold for it; None is without limit.

    `max_turns` counts model calls. After `loop_turns` turns in a circle the run ends. A model is sent the last
    `history_turns` turns. `tools` are functions of the caller; `tool_choice` and `parallel_tool_calls` go before the
    agent's, and null sends none of the latter. `model_settings` and `model_profile` go over the agent's, name by name,
    and null takes a setting out; `instructions` follow the agent's own; `response_format` stands in for what agents say
    of their output. `request` is what else was asked for, kept to be shown again.
    """

    max_turns: int | None = None
    model: str | None = None
    execute_tools: bool = True
    stream: bool = False
    loop_turns: int | None = None
    history_turns: int | None = None
    tools: tuple[CallerTool, ...] | UnsetType = UNSET
    tool_choice: str | Json | UnsetType = UNSET
    parallel_tool_calls: bool | UnsetType | None = UNSET
    model_settings: Json | UnsetType = UNSET
    model_profile: Json | UnsetType = UNSET
    instructions: str | UnsetType = UNSET
    response_format: Json | UnsetType = UNSET
    request: Json | UnsetType = UNSET

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
