"""What the Open Responses specification (2026-04-24) requires of responses and of their events, field by field.

A field without a default has to be there, be it null. More than the specification names may be there.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

Json = dict[str, Any]
Status = Literal["in_progress", "completed", "incomplete"]


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class Citation(Strict):
    type: Literal["url_citation"]
    url: str
    start_index: int
    end_index: int
    title: str


class LogProb(Strict):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[Json]


class OutputText(Strict):
    type: Literal["output_text"]
    text: str
    annotations: list[Citation]
    logprobs: list[LogProb] = []


class Refusal(Strict):
    type: Literal["refusal"]
    refusal: str


class InputText(Strict):
    type: Literal["input_text"]
    text: str


class InputImage(Strict):
    type: Literal["input_image"]
    image_url: str | None
    detail: Literal["low", "high", "auto"]


class InputFile(Strict):
    type: Literal["input_file"]
    filename: str = ""
    file_url: str = ""


Part = Annotated[OutputText | Refusal | InputText | InputImage | InputFile, Field(discriminator="type")]


class Message(Strict):
    type: Literal["message"]
    id: str
    status: Status
    role: Literal["user", "assistant", "system", "developer"]
    content: list[Part]


class FunctionCall(Strict):
    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str
    status: Status


class FunctionCallOutput(Strict):
    type: Literal["function_call_output"]
    id: str
    call_id: str
    output: str | list[Part]
    status: Status


ItemField = Annotated[Message | FunctionCall | FunctionCallOutput, Field(discriminator="type")]


class FunctionTool(Strict):
    type: Literal["function"]
    name: str
    description: str | None
    parameters: Json | None
    strict: bool | None


class FunctionChoice(Strict):
    type: Literal["function"]
    name: str


class AllowedTools(Strict):
    type: Literal["allowed_tools"]
    tools: list[FunctionChoice]
    mode: Literal["none", "auto", "required"]


class PlainFormat(Strict):
    type: Literal["text", "json_object"]


class SchemaFormat(Strict):
    type: Literal["json_schema"]
    name: str
    description: str | None
    strict: bool


class Text(Strict):
    format: PlainFormat | SchemaFormat
    verbosity: Literal["low", "medium", "high"] = "medium"


class Reasoning(Strict):
    effort: str | None
    summary: str | None


class InputDetails(Strict):
    cached_tokens: int


class OutputDetails(Strict):
    reasoning_tokens: int


class Usage(Strict):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputDetails
    output_tokens_details: OutputDetails


class Reason(Strict):
    reason: str


class Failure(Strict):
    code: str
    message: str


class ResponseResource(Strict):
    id: str = Field(min_length=1)
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "failed", "incomplete", "cancelled"]
    incomplete_details: Reason | None
    model: str
    previous_response_id: str | None
    instructions: str | None
    output: list[ItemField]
    error: Failure | None
    tools: list[FunctionTool]
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | AllowedTools
    truncation: Literal["auto", "disabled"]
    parallel_tool_calls: bool
    text: Text
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    temperature: float
    reasoning: Reasoning | None
    usage: Usage | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    store: bool
    background: bool
    service_tier: str
    metadata: dict[str, str]
    safety_identifier: str | None
    prompt_cache_key: str | None


class Event(Strict):
    sequence_number: int = Field(ge=0)


class ResponseEvent(Event):
    type: Literal[
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.completed",
        "response.failed",
        "response.incomplete",
    ]
    response: ResponseResource


class ItemEvent(Event):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: ItemField


class _OfItem(Event):
    item_id: str
    output_index: int


class PartEvent(_OfItem):
    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: int
    part: Part


class TextDelta(_OfItem):
    type: Literal["response.output_text.delta"]
    content_index: int
    delta: str
    logprobs: list[LogProb] = []


class TextDone(_OfItem):
    type: Literal["response.output_text.done"]
    content_index: int
    text: str
    logprobs: list[LogProb] = []


class RefusalDelta(_OfItem):
    type: Literal["response.refusal.delta"]
    content_index: int
    delta: str


class RefusalDone(_OfItem):
    type: Literal["response.refusal.done"]
    content_index: int
    refusal: str


class ArgumentsDelta(_OfItem):
    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDone(_OfItem):
    type: Literal["response.function_call_arguments.done"]
    arguments: str


StreamEvent = Annotated[
    ResponseEvent
    | ItemEvent
    | PartEvent
    | TextDelta
    | TextDone
    | RefusalDelta
    | RefusalDone
    | ArgumentsDelta
    | ArgumentsDone,
    Field(discriminator="type"),
]


class SocketErrorDetails(Strict):
    code: str
    message: str
    param: str | None
    type: str


class SocketError(Strict):
    type: Literal["error"]
    status: int
    error: SocketErrorDetails


_EVENT: TypeAdapter[StreamEvent] = TypeAdapter(StreamEvent)
_OPENAI_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TERMINAL = ("response.completed", "response.failed", "response.incomplete")


def check_response(found: Json) -> Json:
    """A response, valid by the specification and by OpenAI's own types."""
    ResponseResource.model_validate(found)
    Response.model_validate(found, strict=True)
    return found


def check_events(events: list[Json]) -> Json:
    """The response that a stream ends with, whose events are valid and in their order."""
    for event in events:
        _EVENT.validate_python(event)
        _OPENAI_EVENT.validate_python(event, strict=True)
        assert "obfuscation" not in event
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 0
    types = [event["type"] for event in events]
    assert types[0] == "response.created"
    assert types[1] in ("response.in_progress", "response.queued")
    assert [kind for kind in types if kind in TERMINAL] == [types[-1]]
    last = events[-1]["response"]
    _check_items(events, last["output"])
    check_response(last)
    found: Json = last
    return found


def _check_items(events: list[Json], output: list[Json]) -> None:
    """Each item is added, and its parts are, before anything is said of them; and each is done, one after the other."""
    open_item: Json | None = None
    open_parts: dict[int, str] = {}
    done = []
    for event in events:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert open_item is None
            assert event["output_index"] == len(done)
            assert event["item"].get("status", "in_progress") == "in_progress"
            open_item, open_parts = event["item"], {}
        elif kind == "response.output_item.done":
            assert open_item is not None
            assert not open_parts
            assert event["item"]["id"] == open_item["id"]
            done.append(event["item"])
            open_item = None
        elif "item_id" in event:
            assert open_item is not None
            assert (event["item_id"], event["output_index"]) == (open_item["id"], len(done))
            _check_part(event, open_parts)
    assert open_item is None
    assert done == output


def _check_part(event: Json, parts: dict[int, str]) -> None:
    kind, place = event["type"], event.get("content_index", 0)
    if kind == "response.content_part.added":
        assert place not in parts
        parts[place] = ""
    elif kind.endswith(".delta"):
        parts[place] = parts.get(place, "") + event["delta"]
    elif kind == "response.content_part.done":
        del parts[place]
    elif kind == "response.function_call_arguments.done":
        assert parts.pop(place, "") == event["arguments"]
    else:
        assert parts[place] == event.get("text", event.get("refusal"))
