"""Handle each field of `POST chat/completions`. Nothing is ignored silently.

A field here is used; those in `SETTINGS` go to the model by their own names; those in `ECHOED` change nothing, and are
kept with the run. Those that can only be null or neutral are refused otherwise, and any other name is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from swarmkeep.decide.checks import check_object
from swarmkeep.events.codec import Json
from swarmkeep.events.state import State
from swarmkeep.events.wording import join_text
from swarmkeep.http.bodies import Body
from swarmkeep.openai import fields
from swarmkeep.openai.items import read_assistant_content, read_text, read_text_output
from swarmkeep.openai.problems import Refused
from swarmkeep.request.request import STANDING_ROLES, list_standing

StopText = Annotated[str, Meta(max_length=1024)]
Bias = Annotated[float, Meta(ge=-100, le=100)]


class ChatStreamOptions(fields.StreamOptions, frozen=True, kw_only=True):
    """Options for the additional content of a stream."""

    include_usage: bool | None = None


class CreateChatCompletion(Body, frozen=True, kw_only=True):
    """`POST chat/completions`."""

    messages: Annotated[list[Json], Meta(min_length=1)]
    model: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: ChatStreamOptions | None = None
    metadata: fields.Metadata | None = None
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | UnsetType | None = UNSET
    response_format: Json | None = None
    model_profile: Json | None = None

    temperature: fields.Temperature | None = None
    top_p: fields.Probability | None = None
    presence_penalty: fields.Penalty | None = None
    frequency_penalty: fields.Penalty | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=4)] | None = None
    max_tokens: fields.Tokens | None = None
    max_completion_tokens: fields.Tokens | None = None
    logit_bias: Annotated[dict[fields.ShortText, Bias], Meta(max_length=1024)] | None = None
    reasoning_effort: fields.ShortText | None = None
    verbosity: fields.Verbosity | None = None

    user: str | None = None
    safety_identifier: fields.ShortText | None = None
    prompt_cache_key: fields.ShortText | None = None
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
        fields.refuse_logprobs(self.logprobs, "logprobs")
        fields.refuse_logprobs(self.top_logprobs, "top_logprobs")
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
    """Read the choice of the tool to be called. Raises Refused."""
    return fields.read_choice(choice, _read_chosen, _read_allowed)


def _read_allowed(choice: Json) -> Json:
    inner = choice.get("allowed_tools")
    if not isinstance(inner, dict):
        raise fields.make_choice_refusal()
    fields.refuse_unknown(choice, ("type", "allowed_tools"), "tool_choice")
    return fields.read_allowed_tools(inner, "tool_choice.allowed_tools", _read_chosen)


def _read_chosen(tool: Any, param: str) -> Json:
    """A function that is named."""
    match tool:
        case {"type": "function", "function": {"name": str(name)} as function}:
            fields.refuse_unknown(tool, ("type", "function"), param)
            fields.refuse_unknown(function, ("name",), f"{param}.function")
            return fields.name_function(name)
        case _:
            raise Refused("a function to choose needs the `type` function, and `function.name`", param)


def read_format(asked: Json | None) -> Json | UnsetType:
    """`response_format`. Raises Refused and InvalidRequest."""
    match asked:
        case None:
            return UNSET
        case {"type": "text" | "json_object" as kind}:
            fields.refuse_unknown(asked, ("type",), "response_format")
            return UNSET if kind == "text" else {"type": kind}
        case {"type": "json_schema", "json_schema": {"name": str(), **rest} as schema}:
            fields.refuse_unknown(asked, ("type", "json_schema"), "response_format")
            _check_schema(rest)
            kept = ("name", "schema", "description", "strict")
            found = {key: schema[key] for key in kept if schema.get(key) is not None}
            return check_object({"type": "json_schema", "json_schema": found}, "/response_format")
        case _:
            raise Refused("`response_format` must be text, json_object, or json_schema with a name", "response_format")


_SCHEMA_FIELDS: dict[str, type] = {"schema": dict, "description": str, "strict": bool}


def _check_schema(given: dict[Any, Any]) -> None:
    for name, value in given.items():
        param = f"response_format.json_schema.{name[:64]}"
        kind = _SCHEMA_FIELDS.get(name)
        if kind is None:
            raise Refused(f"`json_schema` has no {name[:64]!r}", param)
        if value is not None and not isinstance(value, kind):
            raise Refused(f"`{name}` has the wrong type", param)


def collect_echo(body: CreateChatCompletion, model: str) -> Json:
    """Collect the part of the request that the log keeps, to be shown again."""
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
        return fields.show_text(None, body.verbosity)
    schema = {"schema": {}, **asked["json_schema"]} if asked["type"] == "json_schema" else {}
    return fields.show_text({"type": asked["type"], **schema}, body.verbosity)


# Messages of a request: what may be in each, and which of them are new to a session.

# Of an answer that is sent back, what no model is sent again.
_LEFT_OUT = (
    "annotations",
    "parsed",
    "provider_specific_fields",
    "reasoning",
    "reasoning_content",
    "reasoning_details",
    "thinking_blocks",
)


class NewMessages(msgspec.Struct, frozen=True):
    """The messages that are input, and the place that each has in the request."""

    messages: list[Json]
    places: list[int]


def read_messages(messages: Sequence[Json]) -> list[Json]:
    """Each message with what is used of it. Raises Refused."""
    return [_read_message(message, f"messages[{place}]") for place, message in enumerate(messages)]


def _read_message(message: Json, param: str) -> Json:
    role = message.get("role")
    reader = _READERS.get(role) if isinstance(role, str) else None
    if reader is None:
        raise Refused(f"a message's role must be one of {', '.join(_READERS)}", f"{param}.role")
    read, known = reader
    for name, value in message.items():
        if name not in known and value is not None:
            raise Refused(f"a message with the role {role} cannot have {name[:64]!r}", f"{param}.{name[:64]}")
    found = {"role": role, **read(message, param)}
    if message.get("name") is not None:
        found["name"] = read_text(message, "name", param)
    return found


def _read_said(message: Json, param: str) -> Json:
    found = {"content": _read_content(message.get("content"), f"{param}.content")}
    return {**found, "images": message["images"]} if message.get("images") is not None else found


def _read_assistant(message: Json, param: str) -> Json:
    found = read_assistant_content(message.get("content"), f"{param}.content")
    if message.get("refusal") is not None:
        found["refusal"] = read_text(message, "refusal", param)
    calls = message.get("tool_calls")
    if calls:
        if not isinstance(calls, list):
            raise Refused("`tool_calls` must be a list", f"{param}.tool_calls")
        found["tool_calls"] = [_read_call(call, f"{param}.tool_calls[{place}]") for place, call in enumerate(calls)]
        # Null, as models say it: an empty text beside calls would be another message.
        found["content"] = found["content"] or None
    return found


def _read_call(call: Any, param: str) -> Json:
    match call:
        case {"id": str(call_id), "function": {"name": str(name), "arguments": str(arguments)}} if (
            call_id and call.get("type", "function") == "function"
        ):
            return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        case _:
            raise Refused(
                "a call must have an `id`, the type `function`, and a `function` with name and arguments", param
            )


def _read_result(message: Json, param: str) -> Json:
    content = read_text_output(message.get("content"), f"{param}.content")
    return {"tool_call_id": read_text(message, "tool_call_id", param), "content": content}


_READERS: dict[str, tuple[Callable[[Json, str], Json], tuple[str, ...]]] = {
    "system": (_read_said, ("role", "content", "name")),
    "developer": (_read_said, ("role", "content", "name")),
    "user": (_read_said, ("role", "content", "name", "images")),
    "assistant": (_read_assistant, ("role", "content", "name", "refusal", "tool_calls", *_LEFT_OUT)),
    "tool": (_read_result, ("role", "content", "name", "tool_call_id")),
}


def _read_content(content: object, param: str) -> object:
    """Content as it is: a text, or parts, which are checked where messages of any door are."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise Refused("content must be a text, or a list of parts", param)
    for place, part in enumerate(content):
        if not isinstance(part, dict):
            raise Refused("a part must be an object with a `type`", f"{param}[{place}].type")
        if isinstance(part.get("file"), dict) and part["file"].get("file_id") is not None:
            raise Refused("send files as data, not by the id of an upload", f"{param}[{place}].file.file_id")
    return content


def split_history(messages: Sequence[Json]) -> int:
    """The number of messages up to and with the last of an assistant: a new session begins with these."""
    places = (place for place in range(len(messages), 0, -1) if messages[place - 1]["role"] == "assistant")
    return next(places, 0)


def find_new(messages: Sequence[Json], state: State) -> NewMessages:
    """The messages that are new to a session: all after the last answer, and leading instructions that it lacks."""
    begin = split_history(messages)
    leading = _count_leading(messages)
    known, given = _list_instructions(state), _list_given_results(state)
    places = [place for place in range(leading) if join_text(messages[place].get("content")) not in known]
    places += [
        place for place in range(max(begin, leading), len(messages)) if _identify_result(messages[place]) not in given
    ]
    return NewMessages([messages[place] for place in places], places)


def _count_leading(messages: Sequence[Json]) -> int:
    places = (place for place, message in enumerate(messages) if message["role"] not in STANDING_ROLES)
    return next(places, len(messages))


def _list_instructions(state: State) -> set[str]:
    """The texts that a session's system and developer messages have, those of queued runs included."""
    queued = (message for queued in state.queue for message in queued.fact.messages)
    messages = (*(entry.message for entry in list_standing(state.messages)), *queued)
    return {join_text(message.get("content")) for message in messages if message.get("role") in STANDING_ROLES}


def _list_given_results(state: State) -> set[tuple[Any, str]]:
    """The results of calls that runs have been given since the last completed run. A client that tries again after a
    failure has to send them again.
    """
    failed = takewhile(lambda run: run.status != "completed", reversed(state.finished))
    entries = ((run.id, entry) for run in failed for entry in state.messages[run.first_message : run.last_message])
    return {
        _identify_result(entry.message) for run_id, entry in entries if (entry.role, entry.run_id) == ("tool", run_id)
    }


def _identify_result(message: Json) -> tuple[Any, str]:
    """Identifies a result. Other messages have no `tool_call_id`, so they equal none."""
    return message.get("tool_call_id"), join_text(message.get("content"))
