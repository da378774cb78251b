"""Builds the application: every route, and the settings that hold for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, cast

from litestar import Litestar, Request, Response, Router
from litestar.datastructures import State
from litestar.di import Provide
from litestar.events import BaseEventEmitterBackend
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from litestar.routes import HTTPRoute
from litestar.types import ASGIApp, ControllerRouterHandler, HTTPScope

import swarmkeep
from swarmkeep.events.errors import Draining
from swarmkeep.http import pages, websocket
from swarmkeep.http.access import (
    Compression,
    Cors,
    HeadRequests,
    LongAddresses,
    RequestLog,
    Unrouted,
    find_address_caches,
)
from swarmkeep.http.auth import (
    Service,
    authenticate,
    get_client_address,
    guard_against_other_sites,
    identify_principal,
    log_refusal,
    require_key,
)
from swarmkeep.http.bodies import BodyLimits, JsonRequest, JsonResponse
from swarmkeep.http.errors import list_methods, make_problem_response
from swarmkeep.http.headers import add_security_headers
from swarmkeep.http.metrics import Application, Message, Scope
from swarmkeep.http.parameters import refuse_unread_parameters
from swarmkeep.http.routes import (
    agents,
    audit,
    compact,
    events,
    health,
    keys,
    runs,
    sessions,
    takeovers,
    transfer,
    usage,
)
from swarmkeep.http.routes import events as messages
from swarmkeep.openai.document import make_router
from swarmkeep.openai.problems import PREFIX, is_openai_path, make_openai_error_response, make_stopping

Lifespan = Callable[[Litestar], AbstractAsyncContextManager[None]]

# How many of the largest bodies may be on their way in at once.
_LARGE_BODIES_AT_ONCE = 10

_DESCRIPTION = """\
Conversations of agents, stored as events: every message, handoff and context change is an event.

Errors are `application/problem+json` with a stable `code`. A failed run is not an HTTP error: it is a run with the
status `failed`. Lists have `limit` and `cursor`, and `next_cursor` while there is more.

Streams are server-sent events. Recorded events have their `seq` as `id`, and the event as data. Frames without an `id`
are not recorded: `message.started` (`run_id`, `agent`) and `message.delta` (`run_id`, `agent`, `content` or
`tool_calls`). A run's stream ends with `done`, whose data is the run.

Every answer has an `X-Request-Id`: the request's own, or a new one. The server's log names the request by it.
"""

_PREFIXES = ("/v1/", f"{PREFIX}/")
_BEARER_SCHEME = SecurityScheme(
    type="http", scheme="bearer", description="A key from `swarmkeep keys create`. Until there is one, none is needed."
)


def build_api(
    *,
    lifespan: Lifespan,
    max_body_bytes: int,
    max_body_values: int = 200_000,
    max_import_bytes: int = 0,
    cors_origins: Sequence[str] = (),
    session_headers: Sequence[str] = (),
    access_log: bool = True,
    workers: int = 1,
) -> Litestar:
    """The application. `lifespan` sets `app.state.service` before the first request.

    `session_headers` name a session beside the usual ones, so pages of other origins may send them.
    `workers` is how many processes of this application share the machine's memory.
    """
    large_bodies = max(1, _LARGE_BODIES_AT_ONCE // workers)
    imports = Router(
        "/", route_handlers=transfer.IMPORT_ROUTES, request_max_body_size=max_import_bytes or max_body_bytes
    )
    resources: dict[str, list[ControllerRouterHandler]] = {
        "sessions": [
            *sessions.ROUTES,
            *sessions.FORKS_ROUTES,
            *messages.MESSAGES_ROUTES,
            *events.ROUTES,
            *sessions.BLOBS_ROUTES,
            *audit.VERIFY_ROUTES,
            *audit.REDACT_ROUTES,
            *compact.ROUTES,
            *takeovers.ROUTES,
            *audit.ROUTES,
            *websocket.ROUTES,
        ],
        "runs": [*runs.ACTIVE_RUNS_ROUTES, *runs.ROUTES],
        "audit": [*audit.AUDIT_ROUTES],
        "keys": [*keys.ROUTES],
        "agents": [*agents.ROUTES],
        "usage": [*usage.ROUTES, *usage.PRICES_ROUTES],
        "exports": [*transfer.EXPORT_ROUTES, *sessions.TRANSCRIPT_ROUTES, imports],
    }
    v1 = Router(
        "/v1",
        guards=[require_key],
        route_handlers=[Router("/", route_handlers=routes, tags=[tag]) for tag, routes in resources.items()],
    )
    app = Litestar(
        route_handlers=[
            v1,
            make_router(),
            Router("/", route_handlers=[*health.ROUTES, *health.METRICS_ROUTES], tags=["health"]),
            *pages.DOCS_ROUTES,
            *pages.ROUTES,
        ],
        before_request=_before_request,
        event_emitter_backend=_NoEventEmitter,
        dependencies={"principal": Provide(identify_principal, sync_to_thread=False)},
        exception_handlers={Exception: _make_error_response},
        guards=[guard_against_other_sites],
        lifespan=[lifespan],
        logging_config=None,
        openapi_config=OpenAPIConfig(
            title="Swarmkeep",
            version=swarmkeep.__version__,
            description=_DESCRIPTION,
            use_handler_docstrings=True,
            components=Components(security_schemes={"api_key": _BEARER_SCHEME}),
            # Either a key, or, as long as the server has none, nothing.
            security=[{"api_key": []}, {}],
            # Its own pages load their scripts from elsewhere; see `docs`.
            path="/openapi",
            render_plugins=[JsonRenderPlugin(path="/openapi.json")],
        ),
        request_class=JsonRequest,
        state=State({"body_limits": BodyLimits(large_bodies * max_body_bytes, max_body_values)}),
        request_max_body_size=max_body_bytes,
        response_class=JsonResponse,
    )
    # Around all of it: middleware of the framework's own does not see what no route answers.
    framework = LongAddresses(cast(Application, app.asgi_handler), find_address_caches(app))
    routed = Unrouted(framework, _PREFIXES, partial(_refuse_without_key, app))
    cors = Cors(Compression(HeadRequests(routed)), cors_origins, session_headers)
    note_beginning = partial(_note_beginning, app, cors)
    log = RequestLog(cors, note_beginning, partial(_refuse_cut_off, app), writes_lines=access_log)
    app.asgi_handler = cast(ASGIApp, log)
    return app


async def _before_request(request: Request[Any, Any, Any]) -> Response[None] | None:
    if request.method == "OPTIONS":
        return _answer_options(request)
    await refuse_unread_parameters(request)
    return None


def _answer_options(request: Request[Any, Any, Any]) -> Response[None]:
    """The answer to OPTIONS. The framework's own names the methods of the first route of a path alone."""
    path = request.scope["path_template"]
    routes = (route for route in request.app.routes if isinstance(route, HTTPRoute) and route.path_format == path)
    methods = list_methods(method for route in routes for method in route.methods)
    return Response(None, status_code=204, headers={"Allow": methods})


def _make_error_response(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """The answer to a request that ended in an error, in the shape of the door that it came in by."""
    answer = make_openai_error_response if is_openai_path(request.scope["path"]) else make_problem_response
    return answer(request, error)


async def _refuse_without_key(app: Litestar, scope: Scope) -> Application | None:
    """Return the answer to a caller without a valid key, once one is needed."""
    request: Request[Any, Any, Any] = Request(cast(HTTPScope, scope))
    try:
        authorization = request.headers.getall("authorization", [])
        await authenticate(app.state.service, authorization, get_client_address(scope))
    except Exception as error:
        return cast(Application, _make_error_response(request, error).to_asgi_response(None, request))
    return None


def _note_beginning(app: Litestar, cors: Cors, message: Message, scope: Scope) -> None:
    service: Service = app.state.service
    service.metrics.observe_response(message, scope)
    # An answer to a request has a status, and so has one that refuses a handshake.
    log_refusal(service.refusals, message.get("status"), scope)
    add_security_headers(message)
    cors.add_headers(message, scope)


def _refuse_cut_off(app: Litestar, scope: Scope) -> Application | None:
    """The answer to a request whose work took longer than the server's end could wait for it."""
    service: Service = app.state.service
    if scope["type"] != "http" or not service.drained.is_set():
        return None
    request: Request[Any, Any, Any] = Request(cast(HTTPScope, scope))
    # It is unknown whether a request of OpenAI's clients has begun.
    error = make_stopping() if is_openai_path(scope["path"]) else Draining()
    return cast(Application, _make_error_response(request, error).to_asgi_response(None, request))


class _NoEventEmitter(BaseEventEmitterBackend):
    """In the place of the framework's emitter, which runs in a task group: that would wrap every error of the start,
    such as a database that cannot be reached, in a group, and keep a task for events that are never sent."""

    async def __aenter__(self) -> _NoEventEmitter:
        return self

    async def __aexit__(self, *error: object) -> None:
        """Nothing was begun."""

    def emit(self, event_id: str, *args: object, **kwargs: object) -> None:
        raise NotImplementedError
