"""The OpenAPI document: the framework's, completed by what it leaves out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from inspect import cleandoc
from typing import Any, get_args

import msgspec
from litestar import Litestar
from litestar.routes import HTTPRoute

from swarmkeep.api.bodies import Body
from swarmkeep.domain.codec import Json, encode

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
