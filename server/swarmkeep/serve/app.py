"""The composition root: settings become a store, agents, an engine, and the application over them."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, cast

from litestar import Litestar, Request, Response
from litestar.datastructures import State
from litestar.di import Provide
from litestar.events import BaseEventEmitterBackend
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.routes import HTTPRoute
from litestar.types import ASGIApp, ControllerRouterHandler, HTTPScope

import swarmkeep
from swarmkeep import mcp_server
from swarmkeep.agui import routes as agui
from swarmkeep.events.errors import Draining
from swarmkeep.events.records import PriceTable
from swarmkeep.history.archives import Archive, ArchiveError, archiving, open_archive, read_age
from swarmkeep.history.checkpoints import BadCheckpoint, Signer, load_signer
from swarmkeep.history.compare import PricesError, read_prices
from swarmkeep.history.proofs import HeadLog
from swarmkeep.history.retention import Retention, RetentionError, applying_retention, read_retention
from swarmkeep.http import access, auth, pages, websocket
from swarmkeep.http.bodies import BodyLimits, JsonRequest, JsonResponse
from swarmkeep.http.errors import list_methods, make_problem_response
from swarmkeep.http.metrics import Application, Message, Metrics, Scope, ServerLimits, WorkerMetrics
from swarmkeep.http.openapi import make_openapi_config
from swarmkeep.http.parameters import refuse_unread_parameters
from swarmkeep.http.routers import OwnRouter
from swarmkeep.http.routes import (
    agents,
    audit,
    events,
    health,
    keys,
    runs,
    sessions,
    transfer,
    usage,
    webhooks,
)
from swarmkeep.openai.document import make_router
from swarmkeep.openai.problems import PREFIX, is_openai_path, make_openai_error_response, make_stopping
from swarmkeep.runs.agents import find_model_server, load_registry
from swarmkeep.runs.engine import Engine, build_engine, list_secrets
from swarmkeep.serve.settings import Settings
from swarmkeep.serve.traces import TracesError, open_tracing
from swarmkeep.store.keys import SqlApiKeys
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.person_keys import KEYS_ELSEWHERE, PersonKeyError, open_key_source
from swarmkeep.store.schema import find_obstacles, upgrade
from swarmkeep.store.sqlite_files import describe_exposure, find_exposed_files, refuse_read_only
from swarmkeep.store.urls import PostgresServer, SqliteFile, locate

if TYPE_CHECKING:
    from swarmkeep.runs.tracing import Tracing

log = logging.getLogger(__name__)

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
LIMITS = ServerLimits()

# How long the start may wait for a look at the database that it can do without.
_OBSTACLES_SECONDS = 10.0
_UNSTAMPED = (
    "SWARMKEEP_INTEGRITY_KEY is set, and there are sessions without a stamp, which are not advanced: if they are from "
    "before the key, run `swarmkeep db stamp --unstamped` once"
)
_ACCEPTS_UNSTAMPED = (
    "SWARMKEEP_INTEGRITY_KEY has the word `unstamped`: sessions without a stamp are accepted; once all servers have "
    "the key, run `swarmkeep db stamp`, and take the word out"
)
_OPEN_TO_ALL_PAGES = (
    "without API keys and with SWARMKEEP_CORS_ORIGINS=*, every web page that is opened on this machine can read and "
    "change all sessions; name the origins, or make a key with `swarmkeep keys create`"
)


class ServeError(Exception):
    """The reason why the server does not start, in a sentence for its operator."""


def create_app(
    settings: Settings, limits: ServerLimits = LIMITS, worker_metrics: WorkerMetrics | None = None
) -> Litestar:
    """The application for any ASGI server. It opens databases and connections when it starts.

    With several workers it is the application of one of them, with its share of the limits.

    Raises as `make_lifespan` does.
    """
    settings = _share_limits(settings)
    return build_api(
        lifespan=make_lifespan(settings, limits, worker_metrics),
        max_body_bytes=settings.max_body_bytes,
        max_body_values=settings.max_body_values,
        max_import_bytes=settings.max_import_bytes,
        cors_origins=settings.cors_origins,
        session_headers=settings.openai_session_headers,
        access_log=settings.access_log,
        workers=settings.workers,
    )


def _share_limits(settings: Settings) -> Settings:
    """The settings of one of several workers: its share of the limits that hold for the server as a whole."""
    names = ("max_runs_per_tenant", "max_forks_per_minute", "rate_limit_per_minute")
    whole = {name: getattr(settings, name) for name in names}
    shares = {name: math.ceil(limit / settings.workers) for name, limit in whole.items() if limit is not None}
    return settings.model_copy(update=shares)


def make_lifespan(
    settings: Settings, limits: ServerLimits = LIMITS, worker_metrics: WorkerMetrics | None = None
) -> Callable[[Litestar], AbstractAsyncContextManager[None]]:
    """Makes the application's lifespan: what the routes need is opened when it starts, and closed when it stops.

    Raises AgentsError, BadDatabaseUrl, and ServeError if no model is configured, or the prices, the signing
    key or the retention or the archive or people's keys are not valid.
    """
    if not settings.agents:
        raise ServeError("there are no agents to serve; name a file, folder or module that defines some with --agents")
    registry = load_registry(settings.agents, model=settings.model, server=find_model_server(settings))
    location = locate(settings.database_url)
    with _naming_what_is_wrong():
        open_key_source(settings.person_keys)
        prices = read_prices(settings.prices, settings.currency)
        signer, retention = load_signer(settings.signing_key), read_retention(settings.retention)
    if not (settings.offline or settings.openai_api_key or settings.openai_base_url):
        raise ServeError(
            "no model is configured: set OPENAI_API_KEY, or OPENAI_BASE_URL for a server that speaks Chat "
            "Completions, or use the built-in offline model with --offline"
        )

    @asynccontextmanager
    async def lifespan(app: Litestar) -> AsyncGenerator[None]:
        if settings.migrate or isinstance(location, SqliteFile):
            await asyncio.to_thread(upgrade, settings.database_url)
        if isinstance(location, SqliteFile):
            # It would start, and refuse the first message.
            refuse_read_only(location)
            if exposed := find_exposed_files(location.path):
                log.warning("%s", describe_exposure(exposed))
        async with _open_tracing(app, settings) as tracing:
            metrics = _build_metrics(settings, worker_metrics)
            store = open_store(
                settings.database_url,
                cache_bytes=settings.state_cache_bytes,
                on_append=metrics.observe_append,
                on_damage=metrics.observe_damage,
                **settings.store_options,
                read_seconds=settings.read_seconds,
            )
            engine = build_engine(settings, registry, store, tracing)
            _connect_metrics(metrics, engine, store)
            try:
                await store.ping()
                if store.keyring.source is None and await store.has_keys_elsewhere():
                    raise ServeError(KEYS_ELSEWHERE)
                archive = await _open_archive(store, settings)
                await _warn_of_unstamped(store)
                if isinstance(location, PostgresServer):
                    await _warn_of_obstacles(settings, location)
                keyring = auth.Keyring(SqlApiKeys(store.database))
                # Before the engine starts, which takes runs over that others have left.
                await _refuse_to_be_open(settings, keyring)
                if "*" in settings.cors_origins and not await keyring.is_locked():
                    log.warning(_OPEN_TO_ALL_PAGES)
                await engine.start()
                app.state.service = _build_service(
                    settings, engine, keyring, metrics, limits, prices, signer, retention
                )
                engine.automations.start()
                async with (
                    metrics.answer_workers(),
                    applying_retention(store, retention),
                    archiving(archive, read_age(settings.archive_after)),
                    engine.webhooks.sending(),
                ):
                    yield
            finally:
                await engine.stop()

    return lifespan


@asynccontextmanager
async def _open_tracing(app: Litestar, settings: Settings) -> AsyncGenerator[Tracing | None]:
    """Open the maker of traces, if any are wanted. Until the block ends, each request is a span. Raises ServeError."""
    with _naming_what_is_wrong():
        opened = await asyncio.to_thread(open_tracing, settings, list_secrets(settings), swarmkeep.__version__)
    if opened is None:
        yield None
        return
    handler = app.asgi_handler
    app.asgi_handler = opened.tracing.trace_requests(handler)
    try:
        yield opened.tracing
    finally:
        app.asgi_handler = handler
        await asyncio.to_thread(opened.close)


@contextmanager
def _naming_what_is_wrong() -> Iterator[None]:
    """Raise ServeError where a setting cannot be used."""
    try:
        yield
    except (ArchiveError, BadCheckpoint, PersonKeyError, PricesError, RetentionError, TracesError) as error:
        raise ServeError(str(error)) from None


async def _open_archive(store: SqlStore, settings: Settings) -> Archive | None:
    with _naming_what_is_wrong():
        read_age(settings.archive_after)
        archive = open_archive(store, settings)
    if archive is None and await store.has_archived():
        raise ServeError("the database has archived sessions: set SWARMKEEP_ARCHIVE to where they are")
    return archive


async def _warn_of_unstamped(store: SqlStore) -> None:
    if store.integrity_keys.accepts_unstamped:
        log.warning(_ACCEPTS_UNSTAMPED)
    elif store.integrity_keys and await store.has_unstamped():
        log.warning(_UNSTAMPED)


async def _warn_of_obstacles(settings: Settings, location: PostgresServer) -> None:
    # It starts all the same: what they are in the way of may not be what this server is for.
    try:
        # The connections that a pooler has are not this server's.
        servers = settings.workers if location.prepares_statements else 0
        look = asyncio.to_thread(find_obstacles, settings.database_url, servers=servers)
        found = await asyncio.wait_for(look, _OBSTACLES_SECONDS)
    except Exception as error:
        # It takes a connection of its own, which there may be none for.
        log.warning("what else may be in the way could not be looked for: %s", str(error) or type(error).__name__)
        return
    for obstacle in found:
        log.warning("the database at %s: %s", location.display, obstacle.description)


async def _refuse_to_be_open(settings: Settings, keyring: auth.Keyring) -> None:
    if not (ip_address(resolve_address(settings)[0]).is_loopback or await keyring.is_locked()):
        raise ServeError(
            "without API keys the server is open to everybody who can reach it, so it does not listen on "
            f"{settings.host}; make a key with `swarmkeep keys create`, or listen on 127.0.0.1"
        )


def _build_service(
    settings: Settings,
    engine: Engine,
    keyring: auth.Keyring,
    metrics: Metrics,
    limits: ServerLimits,
    prices: PriceTable | None,
    signer: Signer | None,
    retention: Retention,
) -> auth.Service:
    own = {bracket_host(settings.host), *settings.allowed_hosts}
    rate = settings.rate_limit_per_minute
    return auth.Service(
        engine=engine,
        keyring=keyring,
        metrics=metrics,
        hosts=LOOPBACK_NAMES | {name.lower() for name in own},
        origins=frozenset(settings.cors_origins),
        rate_limiter=None if rate is None else auth.RateLimiter(rate),
        address_limiter=None if rate is None else auth.RateLimiter(rate),
        limits=limits,
        separate_approvers=settings.separate_approvers,
        is_offline=settings.offline,
        session_headers=tuple(settings.openai_session_headers),
        prices=prices,
        refusals=auth.RefusalLog(max(1, auth.LINES_PER_MINUTE // settings.workers)),
        head_log=HeadLog(engine.store, origin=settings.log_origin, signer=signer),
        max_package_bytes=settings.max_import_bytes,
        retention=retention,
    )


def _build_metrics(settings: Settings, worker_metrics: WorkerMetrics | None) -> Metrics:
    token = settings.metrics_token
    return Metrics(None if token is None else token.get_secret_value(), worker_metrics)


def _connect_metrics(metrics: Metrics, engine: Engine, store: SqlStore) -> None:
    engine.hub.add_observer(metrics.observe_event)
    engine.webhooks.observe = metrics.observe_webhook
    metrics.add_gauge("swarmkeep_sessions_driven", engine.active_session_count)
    metrics.add_gauge("swarmkeep_search_sessions_behind", lambda: engine.indexing.sessions_behind)
    metrics.add_gauge("swarmkeep_stream_readers", lambda: engine.hub.reader_count + engine.changes.reader_count)
    metrics.add_gauge("swarmkeep_clock_ahead_seconds", lambda: engine.clocks.ahead_seconds)
    metrics.add_gauge("swarmkeep_writes_waiting", lambda: store.database.waiting_writes)


def resolve_address(settings: Settings) -> tuple[str, int]:
    """Return the address to listen on. Raises ServeError."""
    try:
        return settings.resolve_address()
    except (OSError, UnicodeError) as error:
        raise ServeError(f"cannot listen on {settings.host!r}: {error}") from error


def bracket_host(host: str) -> str:
    """The host as URLs have it."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


# The application: every route, and the settings that hold for all of them.


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

_PREFIXES = ("/v1/", f"{PREFIX}/", f"{agui.PREFIX}/", mcp_server.PATH)
_API_KEY = "A key from `swarmkeep keys create`. Until there is one, none is needed."


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
    imports = OwnRouter(
        "/", route_handlers=transfer.IMPORT_ROUTES, request_max_body_size=max_import_bytes or max_body_bytes
    )
    resources: dict[str, list[ControllerRouterHandler]] = {
        "sessions": [
            *sessions.ROUTES,
            *sessions.FORKS_ROUTES,
            *events.MESSAGES_ROUTES,
            *events.ROUTES,
            *sessions.BLOBS_ROUTES,
            *audit.VERIFY_ROUTES,
            *audit.REDACT_ROUTES,
            *audit.RETENTION_ROUTES,
            *sessions.COMPACTION_ROUTES,
            *sessions.TAKEOVER_ROUTES,
            *audit.ROUTES,
            *websocket.ROUTES,
        ],
        "runs": [*runs.TABLE_ROUTES, *runs.ROUTES],
        "feed": [*events.FEED_ROUTES],
        "webhooks": [*webhooks.ROUTES],
        "audit": [*audit.AUDIT_ROUTES],
        "keys": [*keys.ROUTES],
        "agents": [*agents.ROUTES],
        "usage": [*usage.ROUTES, *usage.PRICES_ROUTES],
        "exports": [*transfer.EXPORT_ROUTES, *sessions.TRANSCRIPT_ROUTES, imports],
    }
    v1 = OwnRouter(
        "/v1",
        guards=[auth.require_key],
        route_handlers=[OwnRouter("/", route_handlers=routes, tags=[tag]) for tag, routes in resources.items()],
    )
    app = Litestar(
        route_handlers=[
            v1,
            make_router(),
            OwnRouter("/", guards=[auth.require_key], route_handlers=agui.ROUTES, tags=["agui"]),
            OwnRouter("/", guards=[auth.require_key], route_handlers=mcp_server.list_routes(), tags=["mcp"]),
            OwnRouter("/", route_handlers=[*health.ROUTES, *health.METRICS_ROUTES], tags=["health"]),
            *pages.DOCS_ROUTES,
            *pages.ROUTES,
        ],
        before_request=_before_request,
        event_emitter_backend=_NoEventEmitter,
        dependencies={"principal": Provide(auth.identify_principal, sync_to_thread=False)},
        exception_handlers={Exception: _make_error_response},
        guards=[auth.guard_against_other_sites],
        lifespan=[lifespan],
        logging_config=None,
        openapi_config=make_openapi_config(
            "Swarmkeep",
            _DESCRIPTION,
            _API_KEY,
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
    framework = access.LongAddresses(cast(Application, app.asgi_handler), access.find_address_caches(app))
    routed = access.Unrouted(framework, _PREFIXES, partial(_refuse_without_key, app))
    cors = access.Cors(access.Compression(access.HeadRequests(routed)), cors_origins, session_headers)
    note_beginning = partial(_note_beginning, app, cors)
    log = access.RequestLog(cors, note_beginning, partial(_refuse_cut_off, app), writes_lines=access_log)
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
        await auth.authenticate(app.state.service, authorization, auth.get_client_address(scope))
    except Exception as error:
        return cast(Application, _make_error_response(request, error).to_asgi_response(None, request))
    return None


def _note_beginning(app: Litestar, cors: access.Cors, message: Message, scope: Scope) -> None:
    service: auth.Service = app.state.service
    service.metrics.observe_response(message, scope)
    # An answer to a request has a status, and so has one that refuses a handshake.
    auth.log_refusal(service.refusals, message.get("status"), scope)
    access.add_security_headers(message)
    cors.add_headers(message, scope)


def _refuse_cut_off(app: Litestar, scope: Scope) -> Application | None:
    """The answer to a request whose work took longer than the server's end could wait for it."""
    service: auth.Service = app.state.service
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
