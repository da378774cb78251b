"""The OpenAPI document with what the framework leaves out, and the stable codes of refusals and failed runs."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from inspect import cleandoc, getsource
from itertools import pairwise
from typing import Any, ClassVar, get_args

import msgspec
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import (
    Components,
    OpenAPIMediaType,
    OpenAPIResponse,
    Operation,
    RequestBody,
    Schema,
    SecurityScheme,
)
from litestar.openapi.spec.enums import OpenAPIType
from litestar.routes import HTTPRoute

import swarmkeep
from swarmkeep.events.codec import Json, encode
from swarmkeep.events.views import SessionSummary, SessionView
from swarmkeep.history.export import JSON_LINES
from swarmkeep.history.transcript import MEDIA_TYPES
from swarmkeep.http.bodies import Body
from swarmkeep.http.sse import EVENT_STREAM, ZIP

PROBLEMS = {
    "invalid_request": (
        "`errors` has a `pointer` and a `detail` for each problem. A pointer leads into the body; "
        "`/query/NAME` and `/header/NAME` mean a parameter and a header."
    ),
    "invalid_import": "The file is cut, edited, or not an export; `line` says where.",
    "unauthenticated": "The API key is missing or invalid. With `WWW-Authenticate: Bearer`.",
    "forbidden": (
        "The key's role does not allow it; or, without keys, the request came under a foreign host name or "
        "from another site's page."
    ),
    "not_found": "There is no such path.",
    "session_not_found": "There is no such session, or it is another tenant's.",
    "key_not_found": "There is no such API key.",
    "run_not_found": "There is no such run in the session.",
    "event_not_found": "There is no such event, or it does not have what was asked for.",
    "blob_not_found": "The session has no such file, or no event refers to it any more.",
    "consumer_not_found": "No place in the feed is kept by this name.",
    "webhook_not_found": "The tenant has no webhook with this id.",
    "delivery_not_found": "The webhook has delivered this event, or it is gone.",
    "checkpoint_not_found": "There is no such checkpoint, or none yet.",
    "not_in_checkpoint": "The session is newer than the checkpoint.",
    "agent_not_found": "`known_agents` lists the existing ones.",
    "method_not_allowed": "`Allow` names the path's methods.",
    "request_timeout": "The body did not arrive within a minute; the connection is closed.",
    "session_busy": "`active_run_id` is active: wait for it, cancel it or, if it is waiting itself, resume it.",
    "session_exists": "The id belongs to a session that was created by a different request.",
    "request_not_kept": "Something that was sent was redacted, or is lost.",
    "session_damaged": (
        "The log has lost its end, or was changed there, so nothing can be added. `verify` says more; the "
        "session can still be read, and deleted with `force`."
    ),
    "history_damaged": (
        "What is stored of the session is not what was recorded, from event `seq` on: the session is set "
        "aside. It can be read, and deleted (with `force`, if the log has lost its end); nothing is added to "
        "it."
    ),
    "run_not_waiting": "There is nothing to resume.",
    "log_damaged": "Rows of the log of heads are missing, or not as they were written.",
    "on_hold": "A hold keeps the session from being redacted or deleted.",
    "person_not_found": "No key of this person was ever made, so that nothing is encrypted by one.",
    "person_erased": "What was recorded of the session's person was erased; nothing is added to it.",
    "not_taken_over": "No person has taken the session over.",
    "taken_over": "Another person has; with `force` it becomes yours.",
    "already_decided": "The call was decided on before, its time has passed, or its result is recorded.",
    "arguments_changed": "The call that was decided on has other arguments than those whose digest was given.",
    "agent_unavailable": "The session's active agent is not served here; name one of `known_agents` with `agent`.",
    "seq_mismatch": "The session has moved on; after an `If-Match`, `seq` is its last event.",
    "too_large": "The body, or what `detail` names, exceeds its limit.",
    "unsupported_media_type": "The body is not JSON.",
    "idempotency_mismatch": "An idempotency key was used with another request.",
    "rate_limited": "The key has made too many requests. With `Retry-After`.",
    "quota_exceeded": "`detail` names the limit. With `Retry-After` where waiting helps.",
    "search_off": "This server has `SWARMKEEP_SEARCH=off`.",
    "internal_error": "Unexpected; see the server's log.",
    "draining": "The server is shutting down; another one may take the request. With `Retry-After`.",
    "overloaded": "Too many writes are waiting, or a read took too long. With `Retry-After`.",
    "store_unavailable": "The database cannot be reached. With `Retry-After`.",
    "schema_behind": "Run `swarmkeep db upgrade`.",
}
"""What each code of a refusal means, and what comes with it."""

FAILURES = {
    "provider_authentication": "The provider refuses the key (401).",
    "provider_permission": "The key may not do this (403).",
    "provider_not_found": "There is no such model, or the base URL is wrong (404).",
    "provider_bad_request": "The provider refuses the request (400, 422).",
    "context_length_exceeded": "The last turn alone is too long for the model (413, or the provider says so).",
    "content_filter": "The provider's filter refused the request, or stopped the answer.",
    "provider_rate_limited": (
        "Too many requests (429); the message says how long to wait, if the provider does. Retryable."
    ),
    "provider_quota_exceeded": "The account has no credit left (429).",
    "provider_conflict": "A conflict at the provider (409). Retryable.",
    "provider_timeout": "The model did not answer in time, or fell silent (408 too). Retryable.",
    "provider_unreachable": "No connection to the provider. Retryable.",
    "provider_stream_cut": "The stream ended before the answer did. Retryable.",
    "provider_failed": (
        "The provider says that generation failed; or the answer announces calls and has none. Retryable."
    ),
    "provider_not_json": "The answer is not JSON. Retryable.",
    "provider_web_page": "A web page came instead, from a proxy or because the base URL is wrong.",
    "provider_empty_answer": "The answer is a completion that holds no message. Retryable.",
    "provider_malformed": (
        "The answer is not a Chat Completion in another way. Retryable, unless its compression cannot be read."
    ),
    "provider_answer_too_large": "The answer is longer, or has more tool calls or values, than allowed.",
    "provider_redirected": "The base URL redirects to another address, which is not sent the conversation.",
    "provider_error": "Any other status, or an error in the answer. Retryable, unless the status is below 500.",
    "model_client_error": "The client raised something unexpected.",
    "quota_exceeded": "The tenant has used up `SWARMKEEP_MAX_TOKENS_PER_DAY`. Retryable.",
    "run_timeout": "The run took longer than `SWARMKEEP_RUN_SECONDS`. Retryable.",
    "agent_unavailable": "The active agent is not served.",
    "agent_invalid": "One of the agent's functions cannot be a tool, or its `output_type` cannot be checked.",
    "output_invalid": "The model's answers did not have the form of the agent's `output_type`. Retryable.",
    "reply_cut": (
        "The model's reply was cut off in a call, which was not run: a call for the caller, three replies in "
        "a row, or the last one that `max_turns` or the loop detection allowed (then that is the "
        "`stop_reason`). Retryable."
    ),
    "instructions_failed": "The function that makes the instructions raised.",
    "internal_error": "Unexpected; the server's log says more.",
    "draining": "`interrupted`: the server was stopped; resume the run. Retryable.",
    "imported": "`interrupted`: the session was exported in the middle of the run; resume it. Retryable.",
    "too_many_recoveries": "`interrupted`: the run was taken over repeatedly without success.",
    "summary_empty": "Of a compaction only: the model's summary has no text.",
}
"""Why a run failed, by the code in its `error`. Where a text does not say that it is retryable, it is not."""


def list_codes(texts: dict[str, str]) -> str:
    """Return the codes with their texts, as a list in Markdown."""
    return "\n".join(f"- `{code}`: {text}" for code, text in texts.items())


# The OpenAPI document: the framework's, completed by what it leaves out.

CSV = "text/csv"

Structs = Mapping[str, type[msgspec.Struct]]


def get_operation_id(handler: HTTPRouteHandler, *_: object) -> str:
    """Return a route's operation id: the name of its function, unless it gives another."""
    return str(handler.operation_id or handler.handler_name)


def make_openapi_config(title: str, description: str, api_key: str | None = None, **more: Any) -> OpenAPIConfig:
    scheme = SecurityScheme(type="http", scheme="bearer", description=api_key)
    return OpenAPIConfig(
        title=title,
        version=swarmkeep.__version__,
        description=description,
        use_handler_docstrings=True,
        operation_id_creator=get_operation_id,
        components=Components(security_schemes={"api_key": scheme}),
        # Either a key, or, as long as the server has none, nothing.
        security=[{"api_key": []}, {}],
        **more,
    )


def build_openapi(app: Litestar) -> bytes:
    made: Json = app.openapi_schema.to_schema()
    structs = _find_structs(app)
    for name, schema in made["components"]["schemas"].items():
        _complete_schema(schema, structs[name])
    for name, codes in (("Problem", PROBLEMS), ("RunError", FAILURES)):
        made["components"]["schemas"][name]["properties"]["code"]["description"] += f"\n\n{list_codes(codes)}"
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
    texts = read_field_texts(struct)
    for name, field in schema.get("properties", {}).items():
        if name in texts:
            field["description"] = texts[name]


def read_field_texts(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return what each field means, by its name in JSON: the text that follows it in its class.

    What lists show of a session has the texts of the session. Without sources, as in a frozen program, there are none.
    """
    found: dict[str, str] = {}
    for base in (*struct.__mro__, SessionView) if issubclass(struct, SessionSummary) else struct.__mro__:
        found = {**_read_classes(base.__module__).get(base.__name__, {}), **found}
    return {field.encode_name: found[field.name] for field in msgspec.structs.fields(struct) if field.name in found}


@cache
def _read_classes(module: str) -> dict[str, dict[str, str]]:
    """Read the texts of fields in a module's source, by class and name."""
    try:
        source = getsource(sys.modules[module])
    except (OSError, TypeError):
        return {}
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    return {node.name: dict(_find_texts(node)) for node in classes}


def _find_texts(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(node.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(value))):
                yield name, " ".join(value.split())


def _mark_optional_body(operation: Json, structs: Structs) -> None:
    body = operation.get("requestBody")
    if body is not None and "$ref" in (schema := body["content"].get("application/json", {}).get("schema", {})):
        struct = structs[schema["$ref"].rpartition("/")[2]]
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
class RunTableOperation(StreamableOperation):
    """Its two kinds of lists look alike as long as they are empty."""

    media_types = (CSV, JSON_LINES)

    def __post_init__(self) -> None:
        answer = (self.responses or {}).get("200")
        if isinstance(answer, OpenAPIResponse) and answer.content is not None:
            for media in answer.content.values():
                if isinstance(media.schema, Schema):
                    media.schema.any_of, media.schema.one_of = media.schema.one_of, None
        super().__post_init__()


@dataclass
class ExportOperation(_Operation):
    media_types = (JSON_LINES,)


@dataclass
class EvidenceOperation(_Operation):
    media_types = (ZIP,)


@dataclass
class TranscriptOperation(_Operation):
    media_types = tuple(MEDIA_TYPES.values())


YAML = "application/yaml"


@dataclass
class CaseOperation(_Operation):
    media_types = (YAML,)


@dataclass
class ImportOperation(Operation):
    """Its body is a file."""

    def __post_init__(self) -> None:
        content = {JSON_LINES: OpenAPIMediaType(schema=Schema())}
        self.request_body = RequestBody(content=content, required=True, description="The file.")


@dataclass
class McpOperation(Operation):
    """A message of JSON-RPC in and out, also where it is refused: by the protocol's rules, in the protocol's form."""

    def __post_init__(self) -> None:
        message = Schema(type=OpenAPIType.OBJECT, required=["jsonrpc"])
        self.request_body = RequestBody(content={"application/json": OpenAPIMediaType(schema=message)}, required=True)
        responses = self.responses = self.responses or {}
        for status in ("202", "400", "406", "415"):
            answer = responses.setdefault(status, OpenAPIResponse(description="An answer of the protocol"))
            if isinstance(answer, OpenAPIResponse):
                answer.content = {**(answer.content or {}), "application/json": OpenAPIMediaType(schema=Schema())}
