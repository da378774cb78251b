"""The door for assistants of auditors and developers: reads of `/v1` as tools and resources of an MCP server.

Each tool is an operation of the OpenAPI document, and each call one request to `/v1`, in this process, with the
caller's own key: what it may see, how much, and what is said of it in logs is decided there. The protocol is spoken by
the official SDK. No call depends on an earlier one, so any server answers any of them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlencode

import msgspec
from litestar import Litestar, Request, Response, post
from litestar.di import NamedDependency
from litestar.routes import HTTPRoute

import swarmkeep
from swarmkeep.events.codec import Json, MalformedJson, decode, encode, encode_text
from swarmkeep.http.access import HEADER
from swarmkeep.http.auth import PERMISSION, Permission, Principal
from swarmkeep.http.errors import problem_specs
from swarmkeep.http.metrics import Application, Message
from swarmkeep.http.openapi import McpOperation, build_openapi, get_operation_id
from swarmkeep.logs import current_fields

if TYPE_CHECKING:
    from mcp import types
    from mcp.server.lowlevel import Server

PATH = "/mcp"

_OPERATIONS = (
    "list_sessions",
    "get_session",
    "list_messages",
    "list_events",
    "get_event_request",
    "list_runs",
    "verify_session",
    "prove_session",
    "replay_session",
    "diff_session",
    "compare_sessions",
    "list_forks",
    "get_run_figures",
    "get_usage",
    "list_agents",
    "list_audit",
    "verify_audit",
)
_INSTRUCTIONS = (
    "Conversations of agents, recorded as events in a chain of hashes. list_sessions finds them, by words with `q`; "
    "list_events is everything that happened, get_event_request what a model was sent, verify_session the proof that "
    "nothing was changed, replay_session what today's agents would do otherwise. Nothing here changes anything."
)
_SCHEME = "swarmkeep"
_MAX_MESSAGE_BYTES = 256 * 1024
_MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""The SDK writes an answer as a whole, and a transcript may have any length."""
_TOO_LARGE = encode(
    {
        "code": "too_large",
        "detail": f"the answer has more than {_MAX_ANSWER_BYTES} bytes: ask for less, such as a page of list_messages "
        "with a smaller `limit`, or read it below `/v1`",
    }
)
_ITEMS = 20
"""How many items a tool returns, unless it is asked for more: they are read by a model."""
_METADATA = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number", "boolean"]},
    "description": "Only sessions whose metadata have these values.",
}


_PLACES = re.compile(r"\{(\w+)\}")
_PATH_VALUE = re.compile(r"(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._:-]{1,128}", re.ASCII)


class Tool(msgspec.Struct, frozen=True):
    """An operation as a tool: its schema for models, and where each of its arguments goes."""

    name: str
    description: str
    schema: Json
    method: str
    path: str
    query: frozenset[str]
    permissions: tuple[Permission, ...]

    def check(self, arguments: Json) -> str | None:
        """Say what is wrong with arguments that no request can be made of; the rest is for the operation to say."""
        known: Json = self.schema["properties"]
        unknown = [name for name in arguments if name not in known]
        missing = [name for name in self.schema["required"] if arguments.get(name) is None]
        if unknown:
            return f"there is no argument {unknown[0][:100]!r}; there are: {', '.join(known) or 'none'}"
        if missing:
            return f"the argument {missing[0]!r} is missing"
        for name in _PLACES.findall(self.path):
            # What else stood in a path could be another path.
            if not _PATH_VALUE.fullmatch(str(arguments[name])):
                return f"{name} is not valid: it has 1 to 128 of the characters A-Z a-z 0-9 . _ : -"
        if not isinstance(arguments.get("metadata"), dict | None):
            return "metadata must be an object"
        return None


class _Answer(msgspec.Struct, frozen=True):
    status: int
    media_type: str
    body: bytes

    @property
    def text(self) -> str:
        """The body; of a refusal its code and its words."""
        said = self.body.decode("utf-8", "replace")
        if self.status < 400:
            return said
        try:
            problem = decode(self.body)
            return f"{problem['code']}: {problem['detail']}"
        except (MalformedJson, KeyError, TypeError):
            return f"{self.status}: {said}"


# The tools: once for each application.


async def _list_tools(app: Litestar) -> Mapping[str, Tool]:
    """All tools by name. They are made in a thread, for the document takes a while."""
    state = app.state
    if "mcp_tools" not in state:
        state.mcp_tools = await asyncio.to_thread(_make_tools, app)
    return cast("Mapping[str, Tool]", state.mcp_tools)


def _make_tools(app: Litestar) -> dict[str, Tool]:
    document: Json = decode(build_openapi(app))
    needed = {
        get_operation_id(handler): handler.opt.get(PERMISSION, ("read",))
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
    }
    found = {
        operation["operationId"]: _make_tool(document, method, path, operation, needed[operation["operationId"]])
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if operation.get("operationId") in _OPERATIONS
    }
    return {name: found[name] for name in _OPERATIONS}


def _make_tool(document: Json, method: str, path: str, operation: Json, permissions: tuple[Permission, ...]) -> Tool:
    properties: Json = {}
    required, query = [], set()
    for parameter in operation.get("parameters", ()):
        name = parameter["name"]
        if parameter["in"] not in ("path", "query"):
            continue
        schema = _resolve(document, parameter["schema"])
        properties[name] = {**schema, "description": parameter["description"]} if "description" in parameter else schema
        if parameter.get("required"):
            required.append(name)
        if parameter["in"] == "query":
            query.add(name)
    if "requestBody" in operation:
        body = _resolve(document, operation["requestBody"]["content"]["application/json"]["schema"])
        properties |= body.get("properties", {})
    if operation["operationId"] == "list_sessions":
        properties["metadata"] = _METADATA
    description = f"{operation['summary']}. {operation.get('description', '')}".strip()
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return Tool(
        operation["operationId"], description, schema, method.upper(), path, frozenset(query), tuple(permissions)
    )


def _resolve(document: Json, schema: Any) -> Any:
    """The schema without references: models are given each tool by itself. None that is used here contains itself."""
    if isinstance(schema, list):
        return [_resolve(document, item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        found = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return {**_resolve(document, found), **{name: value for name, value in schema.items() if name != "$ref"}}
    return {name: _resolve(document, value) for name, value in schema.items()}


# A call: one request to `/v1`.


class _Requests:
    """Requests to this application in the name of one that has come: with its key, as long as its caller waits."""

    _PASSED_ON = (b"authorization", b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode")

    def __init__(self, request: Request[Any, Any, Any]) -> None:
        self._request = request

    async def call(self, tool: Tool, arguments: Json) -> _Answer:
        path = _PLACES.sub(lambda found: str(arguments[found[1]]), tool.path)
        given = {name: value for name, value in arguments.items() if name in tool.query and value is not None}
        if "limit" in tool.query:
            given.setdefault("limit", _ITEMS)
        for name, value in (arguments.get("metadata") or {}).items():
            given[f"metadata.{name}"] = value
        pairs = [
            (name, each if isinstance(each, str) else encode_text(each))
            for name, value in given.items()
            for each in (value if isinstance(value, list) else [value])
        ]
        placed = {*tool.query, "metadata", *_PLACES.findall(tool.path)}
        body = {name: value for name, value in arguments.items() if name not in placed}
        return await self.send(tool.method, path, urlencode(pairs), encode(body) if tool.method == "POST" else b"")

    async def send(self, method: str, path: str, query: str = "", body: bytes = b"") -> _Answer:
        """Raises what ends the work, such as CancelledError, and nothing else."""
        outer = self._request.scope
        headers = [(name, value) for name, value in outer["headers"] if name in self._PASSED_ON]
        headers += [
            (HEADER, str(current_fields()["request_id"]).encode("ascii")),
            (b"accept", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        if body:
            headers.append((b"content-type", b"application/json"))
        scope: dict[str, Any] = {
            "type": "http", "asgi": outer["asgi"], "http_version": outer["http_version"], "method": method,
            "scheme": outer["scheme"], "path": path, "raw_path": path.encode(), "root_path": "",
            "query_string": query.encode(), "headers": headers, "client": outer["client"], "server": outer["server"],
            "state": {}, "extensions": {},
        }  # fmt: skip
        status, media_type, parts = 500, "", list[bytes]()
        is_sent, size, is_full = False, 0, asyncio.Event()

        async def receive() -> Message:
            nonlocal is_sent
            if is_sent:
                # What comes behind the body is that its caller has left, or takes no more.
                return await self._receive_end(is_full)
            is_sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status, media_type, size
            if message["type"] == "http.response.start":
                status = message["status"]
                media_type = dict(message["headers"]).get(b"content-type", b"").decode("latin-1")
                return
            size += len(message.get("body", b""))
            if size > _MAX_ANSWER_BYTES:
                is_full.set()
                parts.clear()
            else:
                parts.append(message.get("body", b""))

        await cast(Application, self._request.app)(scope, receive, send)
        if is_full.is_set():
            return _Answer(413, "application/problem+json", _TOO_LARGE)
        return _Answer(status, media_type.partition(";")[0], b"".join(parts))

    async def _receive_end(self, is_full: asyncio.Event) -> Message:
        """That the caller has left; as soon as the answer is full, it is as if it had."""
        full, left = asyncio.ensure_future(is_full.wait()), asyncio.ensure_future(self._request.receive())
        try:
            await asyncio.wait((full, left), return_when=asyncio.FIRST_COMPLETED)
            return cast(Message, {"type": "http.disconnect"} if full.done() else left.result())
        finally:
            full.cancel()
            left.cancel()


# The server of one request, by the SDK.


def _make_server(principal: Principal, tools: Mapping[str, Tool], requests: _Requests) -> Server[Any]:
    from mcp import types
    from mcp.server.lowlevel import Server
    from mcp.shared.exceptions import MCPError

    allowed = {name: tool for name, tool in tools.items() if any(map(principal.may, tool.permissions))}

    async def list_tools(context: Any, given: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        hints = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
        return types.ListToolsResult(
            tools=[
                types.Tool(name=tool.name, description=tool.description, input_schema=tool.schema, annotations=hints)
                for tool in allowed.values()
            ]
        )

    async def call_tool(context: Any, given: types.CallToolRequestParams) -> types.CallToolResult:
        tool, arguments = allowed.get(given.name), given.arguments or {}
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {given.name[:100]!r}")
        fault = tool.check(arguments)
        answer = None if fault is not None else await requests.call(tool, arguments)
        text = fault if answer is None else answer.text
        is_error = answer is None or answer.status >= 400
        return types.CallToolResult(content=[types.TextContent(type="text", text=text or "")], is_error=is_error)

    async def list_resources(context: Any, given: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        cursor = None if given is None else given.cursor
        arguments: Json = {"limit": 50, **({} if cursor is None else {"cursor": cursor})}
        answer = await requests.call(tools["list_sessions"], arguments)
        if answer.status >= 400:
            raise MCPError(types.INVALID_PARAMS, answer.text)
        page = decode(answer.body)
        return types.ListResourcesResult(
            resources=[
                types.Resource(
                    uri=f"{_SCHEME}://sessions/{session['id']}/transcript",
                    name=session.get("title") or session["id"],
                    mime_type="text/markdown",
                )
                for session in page["data"]
            ],
            next_cursor=page["next_cursor"],
        )

    async def list_templates(
        context: Any, given: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(
            resource_templates=[
                types.ResourceTemplate(uri_template=template, name=name, description=description, mime_type=media_type)
                for template, name, description, media_type in _TEMPLATES
            ]
        )

    async def read_resource(context: Any, given: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        path = _find_path(str(given.uri))
        answer = None if path is None else await requests.send("GET", *path)
        if answer is None or answer.status >= 400:
            why = f"there is no resource {str(given.uri)[:200]!r}" if answer is None else answer.text
            raise MCPError(types.INVALID_PARAMS, why)
        contents = types.TextResourceContents(uri=given.uri, mime_type=answer.media_type, text=answer.text)
        return types.ReadResourceResult(contents=[contents])

    return Server(
        "swarmkeep",
        version=swarmkeep.__version__,
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
    )


_TEMPLATES: Sequence[tuple[str, str, str, str]] = (
    (f"{_SCHEME}://sessions/{{id}}", "session", "A session: status, agent, context variables", "application/json"),
    (f"{_SCHEME}://sessions/{{id}}/transcript", "transcript", "Who said and did what, and when", "text/markdown"),
    (f"{_SCHEME}://sessions/{{id}}/events", "events", "The first events of a session, in full", "application/json"),
)
_RESOURCE = re.compile(rf"{_SCHEME}://sessions/({_PATH_VALUE.pattern})(/transcript|/events)?", re.ASCII)


def _find_path(uri: str) -> tuple[str, str] | None:
    """The path and the query below `/v1` that give a resource."""
    found = _RESOURCE.fullmatch(uri)
    if found is None:
        return None
    path = f"/v1/sessions/{found[1]}{found[2] or ''}"
    return path, "format=markdown" if found[2] == "/transcript" else ""


# The route.


async def _speak(request: Request[Any, Any, Any], server: Server[Any], body: bytes) -> Response[Any]:
    """Have the SDK answer one message. Nothing is kept from one to the next."""
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    status, headers, parts = 500, dict[str, str](), list[bytes]()
    is_sent = False

    async def receive() -> Message:
        nonlocal is_sent
        if is_sent:
            return cast(Message, await request.receive())
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            headers.update(
                {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]}
            )
        else:
            parts.append(message.get("body", b""))

    manager = StreamableHTTPSessionManager(
        server, json_response=True, stateless=True, max_request_body_size=len(body) + 1
    )
    async with manager.run():
        await manager.handle_request(cast(Any, request.scope), cast(Any, receive), cast(Any, send))
    headers.pop("content-length", None)
    return Response(b"".join(parts), status_code=status, headers=headers, media_type=headers.get("content-type"))


@post(
    PATH,
    status_code=200,
    operation_class=McpOperation,
    summary="Read sessions as tools and resources of an MCP server",
    opt={PERMISSION: ("read", "audit")},
    request_max_body_size=_MAX_MESSAGE_BYTES,
    responses=problem_specs("too_large"),
)
async def speak_mcp(request: Request[Any, Any, Any], principal: NamedDependency[Principal]) -> Response[Any]:
    """A message of MCP's streamable HTTP, and its answer. Nothing is kept from one message to the next."""
    body = await request.body()
    server = _make_server(principal, await _list_tools(request.app), _Requests(request))
    return await _speak(request, server, body)


def list_routes() -> list[Any]:
    """The route, if the SDK is installed (the extra `mcp`)."""
    return [speak_mcp] if find_spec("mcp") else []
