"""The OpenAPI document: the framework's, completed by what it leaves out."""

from __future__ import annotations

from inspect import cleandoc
from typing import Any

import msgspec
from litestar import Litestar

from swarmkeep.api import agents, audit, errors, health, history, replays, runs, sessions, usage
from swarmkeep.api.bodies import Body
from swarmkeep.audit import changes, compare, divergences, findings, import_, redact, trail
from swarmkeep.domain import usage as usages
from swarmkeep.domain import views
from swarmkeep.domain.codec import encode

Json = dict[str, Any]
_HOMES = (
    agents, audit, changes, compare, divergences, errors, findings, health, history, import_, redact, replays, runs,
    sessions, trail, usage, usages, views,
)  # fmt: skip


def document(app: Litestar) -> bytes:
    made: Json = app.openapi_schema.to_schema()
    for name, schema in made["components"]["schemas"].items():
        _complete(schema, _struct(name))
    for item in made["paths"].values():
        for operation in item.values():
            _mark_absent(operation)
    return encode(made)


def _struct(name: str) -> type[msgspec.Struct]:
    struct: type[msgspec.Struct] = next(vars(home)[name] for home in _HOMES if name in vars(home))
    return struct


def _complete(schema: Json, struct: type[msgspec.Struct]) -> None:
    if struct.__doc__:
        schema["description"] = cleandoc(struct.__doc__)
    if issubclass(struct, Body):
        schema["additionalProperties"] = False


def _mark_absent(operation: Json) -> None:
    body = operation.get("requestBody")
    if body is not None and "application/json" in body["content"]:
        name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        struct = _struct(name)
        body["required"] = not (issubclass(struct, Body) and struct.may_be_absent)
