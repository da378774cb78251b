"""What becomes of each field of `POST chat/completions`. Nothing is ignored silently.

A field here is used; those in `SETTINGS` go to the model by their own names; those in `ECHOED` change nothing, and are
kept with the run. Those that can only be null or neutral are refused otherwise, and whatever is not named is unknown.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from swarmkeep.api.bodies import Body
from swarmkeep.api.openai.errors import Refused
from swarmkeep.api.openai.fields import (
    Metadata,
    Penalty,
    Probability,
    ShortText,
    StreamOptions,
    Temperature,
    Tokens,
    Verbosity,
    refuse_logprobs,
)
from swarmkeep.api.openai.parameters import (
    make_choice_refusal,
    name_function,
    read_allowed_tools,
    read_choice,
    refuse_unknown,
    show_text,
)
from swarmkeep.domain.checking.inputs import check_object
from swarmkeep.domain.codec import Json

StopText = Annotated[str, Meta(max_length=1024)]
Bias = Annotated[float, Meta(ge=-100, le=100)]


class ChatStreamOptions(StreamOptions, frozen=True, kw_only=True):
    """What a stream is to have besides."""

    include_usage: bool | None = None


class CreateChatCompletion(Body, frozen=True, kw_only=True):
    """`POST chat/completions`."""

    messages: Annotated[list[Json], Meta(min_length=1)]
    model: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: ChatStreamOptions | None = None
    metadata: Metadata | None = None
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | UnsetType | None = UNSET
    response_format: Json | None = None
    model_profile: Json | None = None

    temperature: Temperature | None = None
    top_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=4)] | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    logit_bias: Annotated[dict[ShortText, Bias], Meta(max_length=1024)] | None = None
    reasoning_effort: ShortText | None = None
    verbosity: Verbosity | None = None

    user: str | None = None
    safety_identifier: ShortText | None = None
    prompt_cache_key: ShortText | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None

    n: Literal[1] | None = None
    modalities: Annotated[list[Literal["text"]], Meta(max_length=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    audio: None = None
    functions: None = None
    function_call: None = None
    prediction: None = None
    web_search_options: None = None
    moderation: None = None
    prompt_cache_options: None = None

    def check_fields(self) -> None:
        """Raise Refused for values that go together with nothing here."""
        refuse_logprobs(self.logprobs, "logprobs")
        refuse_logprobs(self.top_logprobs, "top_logprobs")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise Refused("use `max_completion_tokens` or `max_tokens`, not both", "max_tokens")

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage is True


SETTINGS = (
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "max_tokens",
    "max_completion_tokens",
    "logit_bias",
    "reasoning_effort",
    "verbosity",
)
ECHOED = ("metadata", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier")
# By the names that responses have for them: as one, a run can be fetched, too.
_SHOWN = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "parallel_tool_calls")


def read_settings(body: CreateChatCompletion) -> Json:
    """The parameters of the model's requests that the body asks for."""
    return {name: value for name in SETTINGS if (value := getattr(body, name)) is not None}


def read_tool_choice(choice: str | Json | None) -> str | Json | UnsetType:
    """Which tool is to be called. Raises Refused."""
    return read_choice(choice, _read_chosen, _read_allowed)


def _read_allowed(choice: Json) -> Json:
    inner = choice.get("allowed_tools")
    if not isinstance(inner, dict):
        raise make_choice_refusal()
    refuse_unknown(choice, ("type", "allowed_tools"), "tool_choice")
    return read_allowed_tools(inner, "tool_choice.allowed_tools", _read_chosen)


def _read_chosen(tool: Any, param: str) -> Json:
    """A function that is named."""
    match tool:
        case {"type": "function", "function": {"name": str(name)} as function}:
            refuse_unknown(tool, ("type", "function"), param)
            refuse_unknown(function, ("name",), f"{param}.function")
            return name_function(name)
        case _:
            raise Refused("a function to choose needs the `type` function, and `function.name`", param)


def read_format(asked: Json | None) -> Json | UnsetType:
    """`response_format`. Raises Refused and InvalidRequest."""
    match asked:
        case None:
            return UNSET
        case {"type": "text" | "json_object" as kind}:
            refuse_unknown(asked, ("type",), "response_format")
            return UNSET if kind == "text" else {"type": kind}
        case {"type": "json_schema", "json_schema": {"name": str(), **rest} as schema}:
            refuse_unknown(asked, ("type", "json_schema"), "response_format")
            _check_schema(rest)
            kept = ("name", "schema", "description", "strict")
            found = {key: schema[key] for key in kept if schema.get(key) is not None}
            return check_object({"type": "json_schema", "json_schema": found}, "/response_format")
        case _:
            raise Refused("`response_format` must be text, json_object, or json_schema with a name", "response_format")


_SCHEMA_FIELDS: dict[str, type] = {"schema": dict, "description": str, "strict": bool}


def _check_schema(fields: dict[Any, Any]) -> None:
    for name, value in fields.items():
        param = f"response_format.json_schema.{name[:64]}"
        kind = _SCHEMA_FIELDS.get(name)
        if kind is None:
            raise Refused(f"`json_schema` has no {name[:64]!r}", param)
        if value is not None and not isinstance(value, kind):
            raise Refused(f"`{name}` has the wrong type", param)


def collect_echo(body: CreateChatCompletion, model: str) -> Json:
    """What the log keeps of the request, to be shown again."""
    echo: Json = {name: getattr(body, name) for name in (*ECHOED, *_SHOWN)}
    echo |= {
        "model": model,
        "max_output_tokens": body.max_completion_tokens or body.max_tokens,
        "tool_choice": _show_tool_choice(body.tool_choice),
        "text": _show_format(body),
        "reasoning": {"effort": body.reasoning_effort, "summary": None} if body.reasoning_effort else None,
    }
    return {name: value for name, value in echo.items() if value not in (None, UNSET)}


def _show_tool_choice(choice: str | Json | None) -> str | Json | None:
    match choice:
        case {"type": "function", "function": {"name": str(name)}}:
            return {"type": "function", "name": name}
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}:
            names = [{"type": "function", "name": tool["function"]["name"]} for tool in list(tools)]
            return {"type": "allowed_tools", "mode": mode, "tools": names}
        case _:
            return choice


def _show_format(body: CreateChatCompletion) -> Json | None:
    asked = read_format(body.response_format)
    if asked is UNSET:
        return show_text(None, body.verbosity)
    schema = {"schema": {}, **asked["json_schema"]} if asked["type"] == "json_schema" else {}
    return show_text({"type": asked["type"], **schema}, body.verbosity)
