"""`swarmkeep doctor`: could a server start here, and with which settings."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import platform
import socket
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from swarmkeep import __version__
from swarmkeep.agent import MCPServer
from swarmkeep.cli.configure import NO_MODEL, OFFLINE_NOTE, has_model, load_agents, load_settings
from swarmkeep.cli.opening import run_on_store
from swarmkeep.cli.options import Agents, Commands, DatabaseUrl, JsonOutput, Model, Offline, Quiet
from swarmkeep.cli.output import WORKING_BYTES, try_writing
from swarmkeep.cli.terminal import (
    Refused,
    describe_os_error,
    find_refusal,
    put,
    put_json,
    put_table,
    say,
    show_progress,
)
from swarmkeep.events.errors import Overloaded
from swarmkeep.events.wording import pluralize
from swarmkeep.mcp.statuses import ServerStatus
from swarmkeep.runs.agents import AgentsError, Registry
from swarmkeep.runs.tool_servers import ToolServers, check_client
from swarmkeep.runs.watcher import TOLERATED_SECONDS, describe_difference, subtract_clocks
from swarmkeep.serve.listener import raise_open_files
from swarmkeep.serve.settings import Settings
from swarmkeep.store import schema
from swarmkeep.store.integrity import UNSTAMPED
from swarmkeep.store.keys import SqlApiKeys
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SchemaBehind, StoreUnavailable, utc_now
from swarmkeep.store.sqlite_files import describe_exposure, find_exposed_files, refuse_orphaned_log, refuse_read_only
from swarmkeep.store.tables import LATEST_REVISION, is_known
from swarmkeep.store.urls import BadDatabaseUrl, Location, PostgresServer, SqliteFile, locate

# Check other servers for `swarmkeep doctor`: of agents' MCP servers, and of the one that commands are about.

# Of a server that is there, the answer does not take long.
_NAMED_SERVER_SECONDS = 5.0


class CheckResult(msgspec.Struct, frozen=True):
    """The findings. Something that is wrong keeps the server from starting, or from working."""

    check: str
    status: Literal["ok", "warning", "wrong"]
    detail: str


def check_mcp_servers(registry: Registry) -> Iterator[CheckResult]:
    """One line for each. A server that cannot be reached keeps no one else from working, so it is a warning."""
    servers = {server.digest: server for agent in registry for server in agent.mcp_servers}
    if not servers:
        return
    try:
        check_client(registry)
    except AgentsError as error:
        yield CheckResult("mcp servers", "wrong", str(error))
        return
    for status in asyncio.run(_connect(list(servers.values()))):
        place = f"{status.name} ({status.address})"
        if status.tools is None:
            why = status.error or "it did not answer in time"
            words = f"; its last output: {status.last_words}" if status.last_words else ""
            yield CheckResult("mcp server", "warning", f"{place} cannot be reached: {why}{words}")
            continue
        offered = f"{place} offers {pluralize(status.tools, 'tool')}"
        if status.left:
            yield CheckResult("mcp server", "warning", f"{offered}; too large or too many are: {status.left}")
        else:
            yield CheckResult("mcp server", "ok", offered)


async def _connect(servers: list[MCPServer]) -> list[ServerStatus]:
    opened = ToolServers()
    try:
        return await opened.ask(servers)
    finally:
        await opened.close()


def check_named_server() -> Iterator[CheckResult]:
    """SWARMKEEP_URL, if it is set: a server starts without what is there, and commands do not work without it."""
    url = os.environ.get("SWARMKEEP_URL")
    if not url:
        return
    from swarmkeep.cli.server_source import explain_unreachable
    from swarmkeep_client import ApiError, Client

    try:
        with explain_unreachable(url), Client(url, max_retries=0, timeout=_NAMED_SERVER_SECONDS) as client:
            client.health()
            client.me()
    except (Refused, ApiError, ValueError) as error:
        yield CheckResult(
            "commands", "warning", f"{error}; other commands use this server, because SWARMKEEP_URL is set"
        )
    else:
        yield CheckResult("commands", "ok", f"{url} (SWARMKEEP_URL) answers")


# The checks of `swarmkeep doctor`, in the order in which a server would fail.

# Several processes that write to one file can damage it when the write-ahead log is reset, in versions before.
FIRST_SAFE_SQLITE = (3, 51, 3)
PROVIDER_TIMEOUT_SECONDS = 15.0
PROBE_TIMEOUT_SECONDS = 3.0
FEWEST_KEY_CHARACTERS = 32
# Of a quota: from here on an operator should look into it.
FULL_SHARE = 0.8


def run_checks(settings: Settings, *, online: bool) -> Iterator[CheckResult]:
    """Every check, in the order in which a server would stumble."""
    yield CheckResult("python", "ok", f"{platform.python_version()} on {platform.system()}, swarmkeep {__version__}")
    yield from _guard("database", _check_place(settings))
    registry, finding = _check_agents(settings)
    yield finding
    if registry is not None:
        yield from check_mcp_servers(registry)
    yield from _check_model(settings, registry, online=online)
    yield _check_port(settings)
    yield _check_open_files(settings)
    yield _check_access(settings)
    yield _check_integrity(settings)
    # A wrong one of those that name something to be read keeps a server from starting.
    yield from _guard("prices", _check_prices(settings))
    yield from _guard("retention", _check_retention(settings))
    yield from _guard("archive", _check_archive(settings))
    yield from _guard("people", _check_people(settings))
    yield from _guard("signing key", _check_signing_key(settings))
    yield from check_named_server()


def _guard(check: str, found: Iterator[CheckResult]) -> Iterator[CheckResult]:
    """Yield what a check finds; an error that a command would show is a finding, too."""
    try:
        yield from found
    except Exception as error:
        if (refused := find_refusal(error)) is None:
            raise
        yield CheckResult(check, "wrong", refused.sentence)


def _check_place(settings: Settings) -> Iterator[CheckResult]:
    location = locate(settings.database_url)
    yield _check_sqlite(location)
    yield from _guard("database", _check_database(settings, location))
    if settings.workers > 1 and isinstance(location, SqliteFile):
        yield CheckResult("workers", "wrong", "several workers need PostgreSQL; set SWARMKEEP_WORKERS to 1")


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
        refuse_orphaned_log(location)
        if folder.is_dir() and os.access(folder, os.W_OK):
            yield CheckResult("database", "ok", f"{place} does not exist yet; the server makes it")
            yield _check_disk(location)
        else:
            yield CheckResult(
                "database", "wrong", f"{place} cannot be made: the folder {folder} does not exist or is not writable"
            )
        return
    if isinstance(location, PostgresServer):
        for is_fatal, text in schema.find_obstacles(settings.database_url, servers=settings.workers):
            yield CheckResult("database", "wrong" if is_fatal else "warning", text)
    revision = schema.current(settings.database_url)
    if isinstance(location, SqliteFile):
        refuse_read_only(location)
    yield CheckResult("database", "ok", f"{place} can be reached")
    if isinstance(location, SqliteFile):
        yield _check_disk(location)
    if isinstance(location, SqliteFile) and (exposed := find_exposed_files(location.path)):
        yield CheckResult("files", "warning", describe_exposure(exposed))
    yield _check_schema(revision, migrates=settings.migrate or isinstance(location, SqliteFile))
    if revision == LATEST_REVISION:
        yield from _guard("quotas", _check_quotas(settings))
        yield from _guard("clock", _check_clock(settings, location))


def _check_disk(file: SqliteFile) -> CheckResult:
    folder, size = file.path.parent, f"{WORKING_BYTES // 10**6} MB"
    try:
        try_writing(folder)
    except OSError as error:
        return CheckResult("disk", "wrong", f"{size} cannot be written in {folder}: {describe_os_error(error)}")
    return CheckResult("disk", "ok", f"{size} can be written in {folder}")


def _check_schema(revision: str | None, *, migrates: bool) -> CheckResult:
    if revision == LATEST_REVISION:
        return CheckResult("schema", "ok", f"revision {LATEST_REVISION}, as in this release")
    found = "the database is empty" if revision is None else f"revision {revision}; this release has {LATEST_REVISION}"
    if revision is not None and not is_known(revision):
        return CheckResult("schema", "wrong", f"{found}: the database is from a later release; upgrade swarmkeep")
    if migrates:
        return CheckResult("schema", "ok", f"{found}; the server migrates it at its start")
    return CheckResult("schema", "wrong", f"{found}; run `swarmkeep db upgrade`")


def _check_quotas(settings: Settings) -> Iterator[CheckResult]:
    """Check how near the tenants are to their storage quotas."""
    totals = run_on_store(settings.database_url, SqlStore.list_totals, read_only=True)
    shares = {
        tenant: max(one.sessions / settings.max_sessions, one.bytes / settings.max_stored_bytes)
        for tenant, one in totals.items()
    }
    if not shares:
        yield CheckResult("quotas", "ok", "nothing is stored yet")
        return
    fullest = max(shares, key=lambda tenant: shares[tenant])
    which = "1 tenant" if len(shares) == 1 else f"{len(shares)} tenants; the fullest"
    detail = (
        f"{which}, {fullest!r}, has {totals[fullest].sessions} of {pluralize(settings.max_sessions, 'session')} "
        f"and {totals[fullest].bytes} of {pluralize(settings.max_stored_bytes, 'byte')}"
    )
    yield CheckResult("quotas", "warning" if shares[fullest] >= FULL_SHARE else "ok", detail)


def _check_clock(settings: Settings, location: Location) -> Iterator[CheckResult]:
    """Of a file there is one clock."""
    if isinstance(location, PostgresServer):
        before = utc_now()
        theirs = run_on_store(settings.database_url, SqlStore.read_clock, read_only=True)
        ahead = subtract_clocks(before, theirs, utc_now())
        if abs(ahead) > TOLERATED_SECONDS:
            yield CheckResult("clock", "warning", describe_difference(ahead))


def _check_agents(settings: Settings) -> tuple[Registry | None, CheckResult]:
    if not settings.agents:
        return None, CheckResult("agents", "wrong", "there are none; use --agents or SWARMKEEP_AGENTS")
    try:
        registry = load_agents(settings)
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
    from swarmkeep.models.clients import make_provider_client

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
    """Explain the meaning of an error of the provider's client. Only some servers list their models."""
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
    """Check for room for as many runs as a tenant may have: each has its caller's connection and its model's."""
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
    """Tell if the ends of logs are signed with a key that is not in the database."""
    parts = [part.strip() for part in (settings.integrity_keys or "").split(",")]
    first = next((part for part in parts if part not in ("", UNSTAMPED)), "")
    if not first:
        detail = (
            "whoever can write to the database can compute another history; set SWARMKEEP_INTEGRITY_KEY to a secret, "
            "such as `openssl rand -hex 32` gives, and run `swarmkeep db stamp --unstamped` once"
        )
        return CheckResult("integrity", "warning", detail)
    if len(first) < FEWEST_KEY_CHARACTERS:
        detail = f"SWARMKEEP_INTEGRITY_KEY has {len(first)} characters; one of `openssl rand -hex 32` cannot be guessed"
        return CheckResult("integrity", "warning", detail)
    if UNSTAMPED in parts:
        detail = (
            "sessions without a stamp are accepted; once all servers have the key, run `swarmkeep db stamp`, and take "
            "`unstamped` out of SWARMKEEP_INTEGRITY_KEY"
        )
        return CheckResult("integrity", "warning", detail)
    if _ask_store(settings, lambda store: store.has_unstamped()):
        detail = (
            "there are sessions without a stamp; if they are older than the key, run `swarmkeep db stamp --unstamped`"
        )
        return CheckResult("integrity", "warning", detail)
    return CheckResult("integrity", "ok", "the ends of logs are signed")


def _check_people(settings: Settings) -> Iterator[CheckResult]:
    """Check where people's keys are, if anything is encrypted by them."""
    from swarmkeep.store.person_keys import open_key_source

    open_key_source(settings.person_keys)
    if settings.person is None:
        return
    encrypted = f"sessions are encrypted by their metadata `{settings.person}`"
    if settings.person_keys in (None, "database"):
        detail = f"{encrypted}; the keys are in the database, so that erasing one leaves it in backups"
        yield CheckResult("people", "warning", f"{detail}: name another place with SWARMKEEP_PERSON_KEYS")
    else:
        yield CheckResult("people", "ok", f"{encrypted}, keys in {settings.person_keys}")


def _check_prices(settings: Settings) -> Iterator[CheckResult]:
    from swarmkeep.history.compare import read_prices

    if prices := read_prices(settings.prices, settings.currency):
        yield CheckResult("prices", "ok", f"{pluralize(len(prices.prices), 'model')}, in {settings.currency}")


def _check_retention(settings: Settings) -> Iterator[CheckResult]:
    from swarmkeep.history.retention import read_retention

    if rules := read_retention(settings.retention):
        yield CheckResult("retention", "ok", f"{pluralize(len(rules), 'rule')}; `swarmkeep retention` says what goes")


def _check_archive(settings: Settings) -> Iterator[CheckResult]:
    from swarmkeep.history.archives import ObjectStore, read_age

    age = read_age(settings.archive_after)
    if settings.archive is not None:
        try:
            is_marked = asyncio.run(ObjectStore(settings.archive).is_marked())
        except StoreUnavailable as error:
            yield CheckResult("archive", "wrong", f"{error}; archived sessions cannot be read")
            return
        if not is_marked and _ask_store(settings, lambda store: store.has_archived()):
            detail = f"there is nothing of Swarmkeep's in {settings.archive}, and sessions are archived"
            yield CheckResult("archive", "wrong", detail)
            return
        when = "by `swarmkeep archive` only" if age is None else f"after {settings.archive_after}"
        yield CheckResult("archive", "ok", f"{settings.archive}, {when}")
    elif age is not None:
        yield CheckResult("archive", "wrong", "SWARMKEEP_ARCHIVE_AFTER is set, but not SWARMKEEP_ARCHIVE")


def _check_signing_key(settings: Settings) -> Iterator[CheckResult]:
    from swarmkeep.history.checkpoints import load_signer

    if load_signer(settings.signing_key) is not None:
        yield CheckResult("signing key", "ok", f"{settings.signing_key} signs checkpoints of {settings.log_origin}")


def _has_keys(settings: Settings) -> bool:
    return _ask_store(settings, lambda store: SqlApiKeys(store.database).has_keys())


def _ask_store(settings: Settings, question: Callable[[SqlStore], Awaitable[bool]]) -> bool:
    """The answer of the database, or no where it cannot be asked: that is told of elsewhere."""
    try:
        return run_on_store(settings.database_url, question, read_only=True)
    except (BadDatabaseUrl, StoreUnavailable, SchemaBehind, Overloaded):
        return False


def strip_password(url: str) -> str:
    """A URL as it may be shown: without what stands before an @, and without a query."""
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        return url
    authority, slash, path = rest.partition("/")
    return f"{scheme}://{authority.rpartition('@')[2]}{slash}{path.partition('?')[0]}"


STATUS_LABELS = {"ok": "ok", "warning": "warning", "wrong": "WRONG"}


commands = Commands()


@commands.add("""
    swarmkeep doctor --offline --agents swarmkeep_agents.acme
    swarmkeep doctor --online
    swarmkeep doctor --json
""")
def doctor(
    agents: Agents = None,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="The address to listen on. [env: SWARMKEEP_HOST]")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, metavar="PORT", help="The port. [env: SWARMKEEP_PORT]")
    ] = None,
    database_url: DatabaseUrl = None,
    offline: Offline = False,
    model: Model = None,
    online: Annotated[bool, typer.Option("--online", help="Also ask the model provider whether it answers.")] = False,
    as_json: JsonOutput = False,
    quiet: Quiet = False,
) -> None:
    """Check whether `swarmkeep serve` could start here with these settings, and show them.

    Looks at the versions of Python and SQLite, the database and its schema, the space on a SQLite file's disk, the
    clocks, the agents and their functions, the model, the port, and who has access. Changes nothing. Exit code 1 if
    something is wrong.
    """
    settings = load_settings(
        agents=agents, host=host, port=port, database_url=database_url, offline=offline, model=model
    )

    with show_progress("checking", "check", quiet=quiet) as progress:
        found = list(progress.track(run_checks(settings, online=online)))
    wrong = [finding for finding in found if finding.status == "wrong"]
    if as_json:
        put_json({"healthy": not wrong, "checks": found, "settings": _list_settings(settings)})
    else:
        put_table(("CHECK", "", "FOUND"), [(one.check, STATUS_LABELS[one.status], one.detail) for one in found])
        put()
        put_table(
            ("SETTING", "VALUE"), [(name, _format_value(value)) for name, value in _list_settings(settings).items()]
        )
    if wrong:
        say(f"error: {len(wrong)} of {len(found)} checks failed: {', '.join(finding.check for finding in wrong)}")
        raise typer.Exit(1)


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else "not set" if value is None else json.dumps(value)


def _list_settings(settings: Settings) -> dict[str, Any]:
    """Every setting by the name of its variable, secrets hidden."""
    from pydantic import SecretStr

    values: dict[str, Any] = {}
    for field, described in type(settings).model_fields.items():
        value = getattr(settings, field)
        # Those that have a variable of another name are the provider's.
        name = f"SWARMKEEP_{field.upper()}" if described.validation_alias is None else field.upper()
        values[name] = list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
        if isinstance(value, SecretStr):
            values[name] = "set, and not shown" if value.get_secret_value() else None
    values["OPENAI_BASE_URL"] = strip_password(settings.openai_base_url or "") or None
    try:
        values["SWARMKEEP_DATABASE_URL"] = locate(settings.database_url).display
    except BadDatabaseUrl:
        values["SWARMKEEP_DATABASE_URL"] = "not usable, and not shown"
    return values
