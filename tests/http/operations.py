"""A request for every operation of the OpenAPI document, made from the document: new routes come by themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from swarmkeep.events.codec import Json
from tests.http.server import RunningServer

STREAM_MEDIA_TYPES = ("text/event-stream", "application/x-ndjson")


@dataclass(frozen=True)
class Operation:
    """One operation, the query parameters that it cannot do without, and a body that it takes."""

    method: str
    path: str
    parameters: tuple[str, ...]
    query: tuple[str, ...]
    needed: dict[str, Any]
    fields: tuple[str, ...]
    body: Any
    forms: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"

    def url(self, values: Mapping[str, str]) -> str:
        path = self.path
        for name in self.parameters:
            path = path.replace("{" + name + "}", quote(values[name], safe=""))
        return path


async def read_operations(service: RunningServer) -> list[Operation]:
    """Every operation under `/v1`."""
    document: Json = (await service.get("/openapi.json")).json()
    return list(_iterate_operations(document))


def _iterate_operations(document: Json) -> Iterator[Operation]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if not path.startswith("/v1/"):
                continue
            given = operation.get("parameters", ())
            answers = operation["responses"].get("200", {}).get("content", {})
            content = operation.get("requestBody", {}).get("content", {})
            yield Operation(
                method=method.upper(),
                path=path,
                parameters=tuple(one["name"] for one in given if one["in"] == "path"),
                query=tuple(one["name"] for one in given if one["in"] == "query"),
                needed={
                    one["name"]: _example(one["schema"], document)
                    for one in given
                    if one["in"] == "query" and one.get("required")
                },
                fields=tuple(name for media in content.values() for name in _fields(media["schema"], document)),
                body=next((_example(media["schema"], document) for media in content.values()), None),
                forms=(*(form for form in STREAM_MEDIA_TYPES if form in answers), "application/json"),
            )


def _fields(schema: Json, document: Json) -> list[str]:
    named = document["components"]["schemas"].get(schema.get("$ref", "").rpartition("/")[2], schema)
    return list(named.get("properties", ()))


def _example(schema: Json, document: Json) -> Any:
    """The smallest value of a schema that is not empty."""
    if "$ref" in schema:
        return _example(document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], document)
    for choice in ("oneOf", "anyOf", "allOf"):
        if choice in schema:
            return _example(schema[choice][0], document)
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            return {name: _example(schema["properties"][name], document) for name in schema.get("required", ())}
        case "array":
            return [_example(schema["items"], document)] if schema.get("items") else []
        case "string":
            return "x"
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return False
        case _:
            return {}
