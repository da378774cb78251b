"""The checks of `swarmkeep doctor`, in the order in which a server would fail."""

from __future__ import annotations

import asyncio
import http.client
import os
import platform
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from ipaddress import ip_address

from swarmkeep import __version__
from swarmkeep.cli.commands.doctor_servers import CheckResult, check_mcp_servers, check_named_server
from swarmkeep.cli.configure import NO_MODEL, OFFLINE_NOTE, has_model
from swarmkeep.cli.output import WORKING_BYTES, try_writing
from swarmkeep.cli.sources.opening import run_on_store
from swarmkeep.cli.terminal import describe_os_error
from swarmkeep.domain.errors import Overloaded
from swarmkeep.domain.wording import pluralize
from swarmkeep.engine.agents.loading import find_model_server, load_registry
from swarmkeep.engine.agents.registry import AgentsError, Registry
from swarmkeep.engine.worker.clock_watch import TOLERATED_SECONDS, describe_difference, subtract_clocks
from swarmkeep.processes.open_files import raise_open_files
from swarmkeep.settings import Settings
from swarmkeep.store import schema
from swarmkeep.store.clock import utc_now
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.ports import SchemaBehind, StoreUnavailable
from swarmkeep.store.revision import LATEST_REVISION
from swarmkeep.store.sql.api_keys import SqlApiKeys
from swarmkeep.store.sqlite.privacy import describe_exposure, find_exposed_files
from swarmkeep.store.sqlite.writable import refuse_orphaned_log, refuse_read_only
from swarmkeep.store.urls import BadDatabaseUrl, Location, PostgresServer, SqliteFile, locate
from swarmkeep_migrations import REVISIONS

# Several processes that write to one file can damage it when the write-ahead log is reset, in versions before.
FIRST_SAFE_SQLITE = (3, 51, 3)
PROVIDER_TIMEOUT_SECONDS = 15.0
PROBE_TIMEOUT_SECONDS = 3.0
FEWEST_KEY_CHARACTERS = 32
# Of a quota: from here on somebody should look into it.
FULL_SHARE = 0.8


def run_checks(settings: Settings, *, online: bool) -> Iterator[CheckResult]:
    """Every check, in the order in which a server would stumble."""
    yield CheckResult("python", "ok", f"{platform.python_version()} on {platform.system()}, swarmkeep {__version__}")
    try:
        location = locate(settings.database_url)
    except BadDatabaseUrl as error:
        yield CheckResult("database", "wrong", str(error))
    else:
        yield _check_sqlite(location)
        yield from _check_database(settings, location)
        if settings.workers > 1 and isinstance(location, SqliteFile):
            yield CheckResult("workers", "wrong", "several workers need PostgreSQL; set SWARMKEEP_WORKERS to 1")
    registry, finding = _check_agents(settings)
    yield finding
    if registry is not None:
        yield from check_mcp_servers(registry)
    yield from _check_model(settings, registry, online=online)
    yield _check_port(settings)
    yield _check_open_files(settings)
    yield _check_access(settings)
    yield _check_integrity(settings)
    yield from check_named_server()


def _check_sqlite(location: Location) -> CheckResult:
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info >= FIRST_SAFE_SQLITE or not isinstance(location, SqliteFile):
        return CheckResult("sqlite", "ok", version)
    safe = ".".join(map(str, FIRST_SAFE_SQLITE))
    return CheckResult(
        "sqlite",
        "warning",
        f"{version}: before {safe} a bug in resetting the write-ahead log can damage a file that several processes "
        "write to; let only one server use the file, or use PostgreSQL",
    )


def _check_database(settings: Settings, location: Location) -> Iterator[CheckResult]:
    place = location.display
    if isinstance(location, SqliteFile) and not location.path.exists():
        folder = location.path.parent
        try:
            refuse_orphaned_log(location)
        except StoreUnavailable as error:
            yield CheckResult("database", "wrong", str(error))
            return
        if folder.is_dir() and os.access(folder, os.W_OK):
            yield CheckResult("database", "ok", f"{place} does not exist yet; the server makes it")
            yield _check_disk(location)
        else:
            yield CheckResult(
                "database", "wrong", f"{place} cannot be made: the folder {folder} does not exist or is not writable"
            )
        return
    try:
        yield from _find_obstacles(settings, location)
        revision = schema.current(settings.database_url)
        if isinstance(location, SqliteFile):
            refuse_read_only(location)
    except (StoreUnavailable, SchemaBehind, Overloaded) as error:
        yield CheckResult("database", "wrong", str(error))
        return
    yield CheckResult("database", "ok", f"{place} can be reached")
    if isinstance(location, SqliteFile):
        yield _check_disk(location)
    if isinstance(location, SqliteFile) and (exposed := find_exposed_files(location.path)):
        yield CheckResult("files", "warning", describe_exposure(exposed))
    yield _check_schema(revision, migrates=settings.migrate or isinstance(location, SqliteFile))
    if revision == LATEST_REVISION:
        yield _check_quotas(settings)
        yield from _check_clock(settings, location)


def _check_disk(file: SqliteFile) -> CheckResult:
    folder, size = file.path.parent, f"{WORKING_BYTES // 10**6} MB"
    try:
        try_writing(folder)
    except OSError as error:
        return CheckResult("disk", "wrong", f"{size} cannot be written in {folder}: {describe_os_error(error)}")
    return CheckResult("disk", "ok", f"{size} can be written in {folder}")


def _find_obstacles(settings: Settings, location: Location) -> list[CheckResult]:
    if not isinstance(location, PostgresServer):
        return []
    found = schema.find_obstacles(settings.database_url, servers=settings.workers)
    return [CheckResult("database", "wrong" if is_fatal else "warning", text) for is_fatal, text in found]


def _check_schema(revision: str | None, *, migrates: bool) -> CheckResult:
    if revision == LATEST_REVISION:
        return CheckResult("schema", "ok", f"revision {LATEST_REVISION}, as in this release")
    found = "the database is empty" if revision is None else f"revision {revision}; this release has {LATEST_REVISION}"
    if revision is not None and revision not in REVISIONS:
        return CheckResult("schema", "wrong", f"{found}: the database is from a later release; upgrade swarmkeep")
    if migrates:
        return CheckResult("schema", "ok", f"{found}; the server migrates it at its start")
    return CheckResult("schema", "wrong", f"{found}; run `swarmkeep db upgrade`")


def _check_quotas(settings: Settings) -> CheckResult:
    """How near the tenants are to what they may store."""
    try:
        totals = run_on_store(settings.database_url, SqlStore.list_totals, read_only=True)
    except (StoreUnavailable, Overloaded) as error:
        return CheckResult("quotas", "wrong", str(error))
    shares = {
        tenant: max(one.sessions / settings.max_sessions, one.bytes / settings.max_stored_bytes)
        for tenant, one in totals.items()
    }
    if not shares:
        return CheckResult("quotas", "ok", "nothing is stored yet")
    fullest = max(shares, key=lambda tenant: shares[tenant])
    which = "1 tenant" if len(shares) == 1 else f"{len(shares)} tenants; the fullest"
    detail = (
        f"{which}, {fullest!r}, has {totals[fullest].sessions} of {pluralize(settings.max_sessions, 'session')} "
        f"and {totals[fullest].bytes} of {pluralize(settings.max_stored_bytes, 'byte')}"
    )
    return CheckResult("quotas", "warning" if shares[fullest] >= FULL_SHARE else "ok", detail)


def _check_clock(settings: Settings, location: Location) -> Iterator[CheckResult]:
    """Of a file there is one clock."""
    if isinstance(location, PostgresServer):
        before = utc_now()
        try:
            theirs = run_on_store(settings.database_url, SqlStore.read_clock, read_only=True)
        except (StoreUnavailable, Overloaded) as error:
            yield CheckResult("clock", "wrong", str(error))
            return
        ahead = subtract_clocks(before, theirs, utc_now())
        if abs(ahead) > TOLERATED_SECONDS:
            yield CheckResult("clock", "warning", describe_difference(ahead))


def _check_agents(settings: Settings) -> tuple[Registry | None, CheckResult]:
    if not settings.agents:
        return None, CheckResult("agents", "wrong", "there are none; use --agents or SWARMKEEP_AGENTS")
    try:
        registry = load_registry(settings.agents, model=settings.model, server=find_model_server(settings))
    except AgentsError as error:
        return None, CheckResult("agents", "wrong", str(error))
    functions = sum(len(agent.functions) for agent in registry)
    detail = (
        f"{', '.join(registry.names)} from {', '.join(settings.agents)}, with {pluralize(functions, 'function')}; "
        f"a session begins with {registry.default}"
    )
    return registry, CheckResult("agents", "ok", detail)


def _check_model(settings: Settings, registry: Registry | None, *, online: bool) -> Iterator[CheckResult]:
    if not has_model(settings):
        yield CheckResult("model", "wrong", NO_MODEL)
        return
    if settings.offline:
        yield CheckResult("model", "ok", OFFLINE_NOTE)
        return
    names = sorted({registry.choose_model(agent) for agent in registry}) if registry is not None else []
    place = settings.openai_base_url or "OpenAI"
    key = "with a key" if settings.openai_api_key else "without a key"
    asked = "" if online else "; --online tests it"
    yield CheckResult("model", "ok", f"{', '.join(names) or 'models'} at {strip_password(place)}, {key}{asked}")
    if online:
        yield asyncio.run(_ask_provider(settings, names))


async def _ask_provider(settings: Settings, names: list[str]) -> CheckResult:
    from swarmkeep.engine.models.provider import make_provider_client

    client = make_provider_client(settings, timeout_seconds=PROVIDER_TIMEOUT_SECONDS)
    async with client:
        try:
            known = [model.id async for model in client.models.list()]
        except Exception as error:
            return _explain_provider_error(error)
    missing = [name for name in names if name not in known]
    if missing:
        return CheckResult("provider", "warning", f"it answers, but does not list {', '.join(missing)}")
    return CheckResult("provider", "ok", f"it answers, and has {', '.join(names) or 'models'}")


def _explain_provider_error(error: Exception) -> CheckResult:
    """What an error of the provider's client means. Only some servers list their models."""
    status = getattr(error, "status_code", None)
    if status in (401, 403):
        return CheckResult("provider", "wrong", f"it refuses the key (status {status})")
    if status is None:
        return CheckResult("provider", "wrong", f"it cannot be reached: {error}")
    return CheckResult("provider", "warning", f"it answers, but does not list its models (status {status})")


def _check_port(settings: Settings) -> CheckResult:
    place = f"{settings.host}:{settings.port}"
    try:
        address = settings.resolve_address()
    except (OSError, UnicodeError) as error:
        return CheckResult("port", "wrong", f"there is no address called {settings.host!r}: {error}")
    with socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if _swarmkeep_answers(settings.host, settings.port):
                return CheckResult("port", "ok", f"a Swarmkeep server is already listening on {place}")
            return CheckResult("port", "wrong", f"cannot listen on {place}: {error.strerror or error}")
    return CheckResult("port", "ok", f"{place} is free")


def _swarmkeep_answers(host: str, port: int) -> bool:
    with closing(http.client.HTTPConnection(host, port, timeout=PROBE_TIMEOUT_SECONDS)) as connection:
        try:
            connection.request("GET", "/health/live")
            return connection.getresponse().read() == b'{"status":"ok"}'
        except (OSError, http.client.HTTPException):
            return False


def _check_open_files(settings: Settings) -> CheckResult:
    """Whether there is room for as many runs as a tenant may have: each has its caller's connection and its model's."""
    most = raise_open_files()
    detail = f"{most} files and connections at once"
    if most < 2 * settings.max_runs_per_tenant:
        hint = "raise the limit (`ulimit -Hn`, `LimitNOFILE=`), or lower SWARMKEEP_MAX_RUNS_PER_TENANT"
        return CheckResult("open files", "warning", f"{detail}, enough for about {pluralize(most // 2, 'run')}; {hint}")
    return CheckResult("open files", "ok", detail)


def _check_access(settings: Settings) -> CheckResult:
    if _has_keys(settings):
        return CheckResult("access", "ok", "requires an API key")
    try:
        loopback = ip_address(settings.resolve_address()[0]).is_loopback
    except (OSError, UnicodeError):
        loopback = False
    if loopback:
        return CheckResult("access", "ok", "open to everybody on this machine, until there is an API key")
    detail = f"without API keys the server does not listen on {settings.host}; run `swarmkeep keys create`"
    return CheckResult("access", "wrong", detail)


def _check_integrity(settings: Settings) -> CheckResult:
    """Whether the ends of logs are signed by somebody who is not in the database."""
    first = (settings.integrity_keys or "").partition(",")[0].strip()
    if not first:
        detail = (
            "whoever can write to the database can compute another history; set SWARMKEEP_INTEGRITY_KEY to a secret, "
            "such as `openssl rand -hex 32` gives, and run `swarmkeep db stamp --unstamped` once"
        )
        return CheckResult("integrity", "warning", detail)
    if len(first) < FEWEST_KEY_CHARACTERS:
        detail = f"SWARMKEEP_INTEGRITY_KEY has {len(first)} characters; one of `openssl rand -hex 32` cannot be guessed"
        return CheckResult("integrity", "warning", detail)
    try:
        missing = run_on_store(settings.database_url, lambda store: store.has_unstamped(), read_only=True)
    except (BadDatabaseUrl, StoreUnavailable, SchemaBehind, Overloaded):
        missing = False
    if missing:
        detail = (
            "there are sessions without a stamp; if they are older than the key, run `swarmkeep db stamp --unstamped`"
        )
        return CheckResult("integrity", "warning", detail)
    return CheckResult("integrity", "ok", "the ends of logs are signed")


def _has_keys(settings: Settings) -> bool:
    try:
        return run_on_store(settings.database_url, lambda store: SqlApiKeys(store.database).has_keys(), read_only=True)
    except (BadDatabaseUrl, StoreUnavailable, SchemaBehind):
        return False


def strip_password(url: str) -> str:
    """A URL as it may be shown: without what stands before an @, and without a query."""
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        return url
    authority, slash, path = rest.partition("/")
    return f"{scheme}://{authority.rpartition('@')[2]}{slash}{path.partition('?')[0]}"
