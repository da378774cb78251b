"""Handle each field of a request. Nothing is ignored silently.

A field of a struct here is used, or shown again, as the module `parameters` says. Those of the type None are refused
unless they are null, and a field not named here is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from swarmkeep.decide.checks import MAX_CHOSEN
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import quote
from swarmkeep.http.bodies import Body
from swarmkeep.openai.problems import Refused

Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
Temperature = Annotated[float, Meta(ge=0, le=2)]
Probability = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Tokens = Annotated[int, Meta(ge=1, le=2**53 - 1)]
ShortText = Annotated[str, Meta(max_length=64)]
Verbosity = Literal["low", "medium", "high"]

# Names that `include` takes without effect here: models' reasoning is not kept, and usage is always given.
_INCLUDABLE = ("reasoning.encrypted_content", "usage")


def refuse_logprobs(asked: int | None, param: str) -> None:
    """Raise Refused if log probabilities are asked for: they are not kept of what a model answers."""
    if asked:
        raise Refused("log probabilities of tokens are not available; leave this out", param)


class Conversation(Body, frozen=True, kw_only=True):
    """A conversation, by its id."""

    id: str


class TextOptions(Body, frozen=True, kw_only=True):
    """Of what form the answer is to be."""

    format: Json | None = None
    verbosity: Verbosity | None = None


class ReasoningOptions(Body, frozen=True, kw_only=True):
    """Options for how much a model is to think."""

    effort: ShortText | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None

    generate_summary: None = None
    context: None = None
    mode: None = None


class StreamOptions(Body, frozen=True, kw_only=True):
    """Nothing is padded in any case."""

    include_obfuscation: bool | None = None


class _ResponseInput(Body, frozen=True, kw_only=True):
    """The fields that the requests about responses share."""

    model: str | None = None
    input: str | list[Any] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | Conversation | None = None
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | UnsetType | None = UNSET
    text: TextOptions | None = None
    model_profile: Json | None = None
    reasoning: ReasoningOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None

    prompt: None = None
    prompt_cache_options: None = None
    personality: None = None


class CreateResponse(_ResponseInput, frozen=True, kw_only=True):
    """`POST responses`, and a frame of its WebSocket."""

    store: bool | None = None
    stream: bool | None = None
    background: bool | None = None
    metadata: Metadata | None = None
    include: list[str] | None = None
    stream_options: StreamOptions | None = None

    temperature: Temperature | None = None
    top_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    top_logprobs: int | None = None
    max_output_tokens: Tokens | None = None

    user: str | None = None
    safety_identifier: ShortText | None = None
    prompt_cache_key: ShortText | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None

    max_tool_calls: None = None
    moderation: None = None
    image: None = None
    access_programs: None = None
    context_management: None = None

    def check_fields(self) -> None:
        """Raise Refused for what an answer cannot have."""
        refuse_logprobs(self.top_logprobs, "top_logprobs")
        for place, name in enumerate(self.include or ()):
            refuse_logprobs(name == "message.output_text.logprobs", f"include[{place}]")
            if name not in _INCLUDABLE:
                raise Refused(f"{quote(name)} cannot be included here", f"include[{place}]")


class CountTokens(_ResponseInput, frozen=True, kw_only=True):
    """`POST responses/input_tokens`."""


class CompactResponse(Body, frozen=True, kw_only=True):
    """`POST responses/compact`. The specification requires that a model is named; OpenAI's types let it be null."""

    model: str | None
    input: str | list[Any] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    # Where a provider may look for what it has cached: its own affair, and nothing of a compaction is shown again.
    prompt_cache_key: ShortText | None = None
    prompt_cache_retention: str | None = None
    # Nothing is shown again or kept of a compaction, so that no other tier can be asked for.
    service_tier: Literal["auto", "default"] | None = None

    prompt_cache_options: None = None
    image: None = None


# Fields of a response's request as Chat Completions has them, and as they are shown again.

# Sent to the model, by the name that Chat Completions has for them.
SETTINGS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "max_output_tokens": "max_completion_tokens",
}
# Change nothing here, and are shown again with the response.
ECHOED = (
    "background",
    "metadata",
    "previous_response_id",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "truncation",
    "user",
)


def read_settings(body: CreateResponse) -> Json:
    """The parameters of the model's requests that the body asks for."""
    settings = {there: value for here, there in SETTINGS.items() if (value := getattr(body, here)) is not None}
    return settings | read_effort(body.reasoning, body.text)


def read_effort(reasoning: ReasoningOptions | None, text: TextOptions | None) -> Json:
    """The parameters that say how much a model is to think, and to say."""
    asked = {
        "reasoning_effort": None if reasoning is None else reasoning.effort,
        "verbosity": None if text is None else text.verbosity,
    }
    return {name: value for name, value in asked.items() if value is not None}


def refuse_unknown(value: Json, known: Iterable[str], param: str) -> None:
    """Raise Refused for a field of an object of many forms that would be ignored, unless it asks for nothing."""
    names = sorted(known)
    for name in value.keys() - set(names):
        if value[name] is not None and value[name] is not False:
            raise Refused(f"{name[:64]!r} is not supported; known: {', '.join(names)}", f"{param}.{name[:64]}")


_OF_FUNCTION = ("name", "description", "parameters", "strict")
_OF_SCHEMA = ("name", "schema", "description", "strict")


def read_tools(tools: list[Json] | None) -> list[Json]:
    """The caller's functions as Chat Completions has them. Raises Refused for tools of any other kind."""
    found = []
    for place, tool in enumerate(tools or ()):
        if tool.get("type") != "function":
            detail = f"tools of type {quote(tool.get('type'))} are not supported; an agent has its own functions"
            raise Refused(detail, f"tools[{place}].type")
        function, param = tool, f"tools[{place}]"
        if isinstance(tool.get("function"), dict):
            refuse_unknown(tool, ("type", "function"), param)
            function, param = tool["function"], f"{param}.function"
        refuse_unknown(function, ("type", *_OF_FUNCTION), param)
        described = {key: function[key] for key in _OF_FUNCTION if function.get(key) is not None}
        found.append({"type": "function", "function": described})
    return found


ReadChosen = Callable[[Any, str], Json]


def read_tool_choice(choice: str | Json | None) -> str | Json | UnsetType:
    """Read the choice of the tool to be called, in the form of Chat Completions. Raises Refused."""
    return read_choice(
        choice, _read_chosen, lambda some: read_allowed_tools(some, "tool_choice", _read_chosen, ("type",))
    )


def read_choice(
    choice: str | Json | None, read_chosen: ReadChosen, read_allowed: Callable[[Any], Json]
) -> str | Json | UnsetType:
    """The same where a function, and a choice between some, are named in another way. Raises Refused."""
    match choice:
        case None:
            return UNSET
        case "auto" | "none" | "required":
            return str(choice)
        case {"type": "function"}:
            return read_chosen(choice, "tool_choice")
        case {"type": "allowed_tools"}:
            return read_allowed(choice)
        case _:
            raise make_choice_refusal()


def _read_chosen(tool: Any, param: str) -> Json:
    """A function that is named."""
    match tool:
        case {"type": "function", "name": str(name)}:
            refuse_unknown(tool, ("type", "name"), param)
            return name_function(name)
        case dict():
            raise Refused("a function to choose needs the `type` function, and a `name`", param)
        case _:
            raise Refused("a function to choose must be an object", param)


def name_function(name: str) -> Json:
    return {"type": "function", "function": {"name": name}}


def read_allowed_tools(choice: Json, param: str, read_chosen: ReadChosen, more: Sequence[str] = ()) -> Json:
    """A choice between some. Raises Refused."""
    match choice:
        case {"mode": "auto" | "required" as mode, "tools": list(tools)}:
            refuse_unknown(choice, ("mode", "tools", *more), param)
            if len(tools) > MAX_CHOSEN:
                raise Refused(f"a choice may name at most {MAX_CHOSEN} tools", f"{param}.tools")
            allowed = [read_chosen(tool, f"{param}.tools[{place}]") for place, tool in enumerate(tools)]
            return {"type": "allowed_tools", "allowed_tools": {"mode": str(mode), "tools": allowed}}
        case _:
            raise Refused("allowed tools must have a `mode`, auto or required, and a list of `tools`", param)


def make_choice_refusal() -> Refused:
    """For a choice of no known kind."""
    return Refused(
        "`tool_choice` must be auto, none, required, or an object: a function, or allowed_tools", "tool_choice"
    )


def read_format(text: TextOptions | None) -> Json | UnsetType:
    """`text.format` as `response_format`. Raises Refused."""
    asked = None if text is None else text.format
    match asked:
        case None:
            return UNSET
        case {"type": "text" | "json_object" as kind}:
            refuse_unknown(asked, ("type",), "text.format")
            return UNSET if kind == "text" else {"type": kind}
        case {"type": "json_schema", "name": str(), "schema": dict()}:
            refuse_unknown(asked, ("type", *_OF_SCHEMA), "text.format")
            found = {key: asked[key] for key in _OF_SCHEMA if asked.get(key) is not None}
            return {"type": "json_schema", "json_schema": found}
        case _:
            raise Refused(
                "`text.format` must be text, json_object, or json_schema with a name and a schema", "text.format"
            )


def show_text(asked: Json | None, verbosity: str | None) -> Json | None:
    """`text` as a response shows it again; None if nothing was asked for."""
    if asked is None and verbosity is None:
        return None
    shown = asked or {"type": "text"}
    if shown["type"] == "json_schema":
        known = {"description": None, "strict": False} | {key: shown[key] for key in shown if shown[key] is not None}
        shown = {key: known[key] for key in ("type", "name", "description", "schema", "strict")}
    return {"format": shown} | ({} if verbosity is None else {"verbosity": verbosity})


def show_reasoning(asked: ReasoningOptions | None) -> Json | None:
    if asked is None or (asked.effort is None and asked.summary is None):
        return None
    return {"effort": asked.effort, "summary": asked.summary}


def collect_echo(body: CreateResponse, **more: Any) -> Json:
    """Collect the part of a request that its response shows again, and the log keeps for that."""
    echo = {name: value for name in ECHOED if (value := getattr(body, name)) not in (None, False)}
    shown: Json = {
        "instructions": body.instructions,
        "tool_choice": body.tool_choice,
        "parallel_tool_calls": None if body.parallel_tool_calls is UNSET else body.parallel_tool_calls,
        "text": None if body.text is None else show_text(body.text.format, body.text.verbosity),
        "reasoning": show_reasoning(body.reasoning),
        **{name: getattr(body, name) for name in SETTINGS},
        **more,
    }
    return {**echo, **{name: value for name, value in msgspec.to_builtins(shown).items() if value is not None}}
