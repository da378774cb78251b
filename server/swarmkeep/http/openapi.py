"""The OpenAPI document: the framework's, completed by what it leaves out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import cleandoc
from typing import Any, ClassVar, get_args

import msgspec
from litestar import Litestar
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, Operation, RequestBody, Schema
from litestar.routes import HTTPRoute

from swarmkeep.events.codec import Json, encode
from swarmkeep.history.export import JSON_LINES
from swarmkeep.history.transcript import MEDIA_TYPES
from swarmkeep.http.bodies import Body
from swarmkeep.http.sse import EVENT_STREAM, ZIP

Structs = Mapping[str, type[msgspec.Struct]]


def build_openapi(app: Litestar) -> bytes:
    made: Json = app.openapi_schema.to_schema()
    structs = _find_structs(app)
    for name, schema in made["components"]["schemas"].items():
        _complete_schema(schema, structs[name])
    for item in made["paths"].values():
        for operation in item.values():
            _mark_optional_body(operation, structs)
    return encode(made)


def _find_structs(app: Litestar) -> Structs:
    """By name, the structs that the document's requests and answers are made of."""
    found: dict[str, type[msgspec.Struct]] = {}
    waiting = list(_list_types(app))
    while waiting:
        kind = waiting.pop()
        waiting += get_args(kind)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__name__ not in found:
            found[kind.__name__] = kind
            waiting += [field.type for field in msgspec.structs.fields(kind)]
    return found


def _list_types(app: Litestar) -> Iterator[Any]:
    for handler in (
        handler for route in app.routes if isinstance(route, HTTPRoute) for handler in route.route_handlers
    ):
        if handler.resolve_include_in_schema():
            yield handler.parsed_return_field.annotation
            if handler.parsed_data_field is not None:
                yield handler.parsed_data_field.annotation
            yield from (response.data_container for response in (handler.responses or {}).values())


def _complete_schema(schema: Json, struct: type[msgspec.Struct]) -> None:
    if struct.__doc__:
        schema["description"] = cleandoc(struct.__doc__)
    if issubclass(struct, Body):
        schema["additionalProperties"] = False


def _mark_optional_body(operation: Json, structs: Structs) -> None:
    body = operation.get("requestBody")
    if body is not None and "application/json" in body["content"]:
        name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        struct = structs[name]
        body["required"] = not (issubclass(struct, Body) and struct.may_be_absent)


# Operations of the OpenAPI document whose answers, or whose body, are not JSON alone.


class _Operation(Operation):
    """An operation that answers in these media types: instead of JSON, or beside it."""

    media_types: ClassVar[tuple[str, ...]]
    replaces_json: ClassVar[bool] = True

    def __post_init__(self) -> None:
        answer = (self.responses or {}).get("200")
        if isinstance(answer, OpenAPIResponse) and answer.content is not None:
            json = {} if self.replaces_json else answer.content
            # Of one event or of all of them: readers of the document disagree on what a stream's schema describes.
            answer.content = {**json, **dict.fromkeys(self.media_types, OpenAPIMediaType(schema=Schema()))}


@dataclass
class StreamableOperation(_Operation):
    """Answers as a stream, too, if asked to."""

    media_types: ClassVar[tuple[str, ...]] = (EVENT_STREAM,)
    replaces_json = False


@dataclass
class EventsOperation(StreamableOperation):
    """It has a third form."""

    media_types = (EVENT_STREAM, JSON_LINES)


@dataclass
class ExportOperation(_Operation):
    media_types = (JSON_LINES,)


@dataclass
class EvidenceOperation(_Operation):
    media_types = (ZIP,)


@dataclass
class TranscriptOperation(_Operation):
    media_types = tuple(MEDIA_TYPES.values())


@dataclass
class ImportOperation(Operation):
    """Its body is a file."""

    def __post_init__(self) -> None:
        content = {JSON_LINES: OpenAPIMediaType(schema=Schema())}
        self.request_body = RequestBody(content=content, required=True, description="The file.")
