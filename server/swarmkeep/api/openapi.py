"""The OpenAPI document: the framework's, completed by what it leaves out."""

from __future__ import annotations

from inspect import cleandoc

import msgspec
from litestar import Litestar

from swarmkeep.api import errors, run_bodies
from swarmkeep.api.bodies import Body
from swarmkeep.api.routes import (
    active_runs,
    agents,
    audit,
    compact,
    events,
    forks,
    health,
    keys,
    messages,
    prices,
    redact,
    replays,
    runs,
    sessions,
    takeovers,
    usage,
)
from swarmkeep.audit import changes, compare
from swarmkeep.audit import redact as redaction
from swarmkeep.audit.replay import divergences
from swarmkeep.audit.transfer import import_export
from swarmkeep.audit.verify import audit_log, problems
from swarmkeep.domain import events as facts
from swarmkeep.domain import usage as usages
from swarmkeep.domain import views
from swarmkeep.domain.codec import Json, encode
from swarmkeep.engine.compaction import compactions
from swarmkeep.store.ports import active_runs as stored_runs
from swarmkeep.store.ports import api_keys, index

_STRUCT_MODULES = (
    active_runs, agents, api_keys, audit, audit_log, changes, compact, compactions, compare, divergences, errors,
    events, facts, forks, health, import_export, index, keys, messages, prices, problems, redact, redaction, replays,
    run_bodies, runs, sessions, stored_runs, takeovers, usage, usages, views,
)  # fmt: skip


def build_openapi(app: Litestar) -> bytes:
    made: Json = app.openapi_schema.to_schema()
    for name, schema in made["components"]["schemas"].items():
        _complete_schema(schema, _find_struct(name))
    for item in made["paths"].values():
        for operation in item.values():
            _mark_optional_body(operation)
    return encode(made)


def _find_struct(name: str) -> type[msgspec.Struct]:
    struct: type[msgspec.Struct] = next(vars(home)[name] for home in _STRUCT_MODULES if name in vars(home))
    return struct


def _complete_schema(schema: Json, struct: type[msgspec.Struct]) -> None:
    if struct.__doc__:
        schema["description"] = cleandoc(struct.__doc__)
    if issubclass(struct, Body):
        schema["additionalProperties"] = False


def _mark_optional_body(operation: Json) -> None:
    body = operation.get("requestBody")
    if body is not None and "application/json" in body["content"]:
        name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        struct = _find_struct(name)
        body["required"] = not (issubclass(struct, Body) and struct.may_be_absent)
