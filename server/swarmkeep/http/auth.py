"""Guards that run before a request's body is read: API key, host and origin."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar
from weakref import WeakValueDictionary

import msgspec
from cachetools import LRUCache, TLRUCache, TTLCache
from litestar import Request
from litestar.connection import ASGIConnection
from litestar.datastructures import Headers
from litestar.handlers import BaseRouteHandler

from swarmkeep.agent.values import check_assignee
from swarmkeep.decide.checks import check_id
from swarmkeep.events.errors import DomainError, InvalidRequest, Overloaded, SessionNotFound
from swarmkeep.events.records import PriceTable
from swarmkeep.history.proofs import HeadLog
from swarmkeep.history.replay import TurnQueue
from swarmkeep.history.retention import Retention
from swarmkeep.http.metrics import Metrics, ServerLimits
from swarmkeep.http.sse import FrameWriter
from swarmkeep.http.threads import ByteBudget
from swarmkeep.logs import bind_fields
from swarmkeep.runs.engine import Engine
from swarmkeep.runs.runs import IdempotentRequest
from swarmkeep.store.keys import LAST_USED_PRECISION_SECONDS, ApiKey, Role, SqlApiKeys, StoredApiKey, parse_key_id
from swarmkeep.store.records import DEFAULT_TENANT, Clock, SessionKey, StoreUnavailable, utc_now

# Define the permissions of each role.

# `read`: look at sessions. `run`: make and change sessions, start and cancel runs, give results of tools. `approve`:
# decide on approvals. `audit`: read the audit log. `write`: delete, redact and import. `keys`: make and revoke keys.
Permission = Literal["read", "run", "approve", "audit", "write", "keys", "webhooks"]

_OF_SESSIONS: frozenset[Permission] = frozenset({"read", "run", "approve", "audit", "write"})

PERMISSIONS: dict[Role, frozenset[Permission]] = {
    "read": frozenset({"read"}),
    "run": frozenset({"read", "run"}),
    "approve": frozenset({"read", "approve"}),
    "support": frozenset({"read", "run", "approve"}),
    "audit": frozenset({"read", "audit"}),
    "write": _OF_SESSIONS,
    "admin": _OF_SESSIONS | {"keys", "webhooks"},
}


# Errors that only HTTP can raise.


class Unauthenticated(DomainError):
    """A caller that the server does not know. `challenge` is what `WWW-Authenticate` says (RFC 6750)."""

    code = "unauthenticated"

    def __init__(self, *, key_given: bool = False, credential: str = "API key") -> None:
        detail = (
            f"the {credential} is not valid" if key_given else f"send your {credential}: `Authorization: Bearer KEY`"
        )
        super().__init__(detail)
        self.challenge = 'Bearer realm="swarmkeep"' + (', error="invalid_token"' if key_given else "")


class Forbidden(DomainError):
    """A request that a read-only key may not make, or another site's web page with an open server."""

    code = "forbidden"


class RateLimited(DomainError):
    code = "rate_limited"

    def __init__(self, retry_after_seconds: int) -> None:
        super().__init__(f"too many requests; try again in {retry_after_seconds} s")
        self.retry_after_seconds = retry_after_seconds


class RequestTimeout(DomainError):
    """A body that does not arrive. What did arrive is not kept waiting in memory for the rest."""

    code = "request_timeout"


class UnsupportedMediaType(DomainError):
    code = "unsupported_media_type"


# API keys as the database has them, cached for two seconds.

log = logging.getLogger(__name__)

T = TypeVar("T")

# For how long an answer of the database counts: a key that is revoked, or the first that is made, holds on every
# server after so long.
CACHE_SECONDS = 2.0
_MAX_KEYS = 10_000


class _CachedKey(msgspec.Struct, frozen=True):
    """The database's record of a key, as of when it was asked."""

    asked_at: float
    found: StoredApiKey | None


class _Lookup(msgspec.Struct, frozen=True):
    asked_at: float
    task: asyncio.Task[Any]


def _find_expiry(key_id: str, known: _CachedKey, now: float) -> float:
    return known.asked_at + CACHE_SECONDS


class Keyring:
    """A server's view of the API keys: digests here, too, and never a key. `now` says whether one has ended."""

    def __init__(self, keys: SqlApiKeys, *, clock: Callable[[], float] = time.monotonic, now: Clock = utc_now) -> None:
        self.keys = keys
        self._clock = clock
        self._now = now
        self._cached_keys: TLRUCache[str, _CachedKey] = TLRUCache(_MAX_KEYS, _find_expiry, timer=clock)
        self._recently_used: TTLCache[str, bool] = TTLCache(_MAX_KEYS, LAST_USED_PRECISION_SECONDS, timer=clock)
        self._asking: dict[str | None, _Lookup] = {}
        """The questions under way: for a key by its id, and for None whether there are keys."""
        self._unlocked_until = float("-inf")
        self._has_keys = False

    @property
    def has_keys(self) -> bool:
        """Tell if a key was seen to exist. From then on, for good: no server opens because its keys went away."""
        return self._has_keys

    async def is_locked(self) -> bool:
        """Tell if callers have to show a key, as of the last two seconds. Raises StoreUnavailable."""
        if not self._has_keys and self._clock() >= self._unlocked_until:
            await self._ask_once(None, self._look_for_keys)
        return self._has_keys

    async def _look_for_keys(self) -> None:
        asked_at = self._clock()
        if await self.keys.has_keys():
            self._has_keys = True
        self._unlocked_until = asked_at + CACHE_SECONDS

    async def find_key(self, secret: str) -> ApiKey | None:
        """The key that this is, if it is a valid one as of the last two seconds. Raises StoreUnavailable."""
        key_id = parse_key_id(secret)
        found = None if key_id is None else await self._look_up(key_id)
        if found is None or not found.accepts(secret, at=self._now()):
            return None
        await self._note_use(found.key.id)
        return found.key

    def was_used(self, secret: str) -> bool:
        """Tell if a key with this one's id was let in here in the last minute. The key itself is not compared."""
        return parse_key_id(secret) in self._recently_used

    async def is_valid(self, key: ApiKey) -> bool:
        """Tell if a key that was shown before still counts. Raises StoreUnavailable."""
        found = await self._look_up(key.id)
        return found is not None and found.key.is_valid(self._now())

    async def _look_up(self, key_id: str) -> StoredApiKey | None:
        # One access, because between two of them the entry may expire.
        with suppress(KeyError):
            return self._cached_keys[key_id].found
        return await self._ask_once(key_id, partial(self._read_key, key_id))

    async def _read_key(self, key_id: str) -> StoredApiKey | None:
        asked_at = self._clock()
        found = await self.keys.find(key_id)
        self._cached_keys[key_id] = _CachedKey(asked_at, found)
        return found

    async def _ask_once(self, key_id: str | None, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Ask the database once for all who want to know the same: streams that began together ask at the same time.

        No caller waits for a question whose answer would be too old: it may hang on a dead connection.
        """
        asking, now = self._asking.get(key_id), self._clock()
        if asking is None or now - asking.asked_at >= CACHE_SECONDS:
            asking = self._asking[key_id] = _Lookup(now, asyncio.create_task(ask()))
            asking.task.add_done_callback(partial(self._end_lookup, key_id))
        answer: T = await asyncio.shield(asking.task)
        return answer

    def _end_lookup(self, key_id: str | None, task: asyncio.Task[Any]) -> None:
        asking = self._asking.get(key_id)
        if asking is not None and asking.task is task:
            del self._asking[key_id]
        if not task.cancelled():
            # All callers may have gone; then no other code would read the error.
            task.exception()

    async def _note_use(self, key_id: str) -> None:
        if key_id in self._recently_used:
            return
        self._recently_used[key_id] = True
        try:
            await self.keys.note_use(key_id)
        except (StoreUnavailable, Overloaded) as error:
            # The time of the last use is for people who clear up keys: no request fails for it.
            log.warning("the last use of key %s was not recorded: %s", key_id, error)


# Rate limits: a token bucket for each key or address.

# One that is forgotten because so many others came since would be full by then, or is one of a crowd.
MAX_BUCKETS = 10_000


class RateLimiter:
    """Up to `per_minute` requests at once and as many in each minute, for each caller, on this server."""

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = float(per_minute)
        self._per_second = per_minute / 60
        self._clock = clock
        # Tokens, and when it was that there were so many.
        self._buckets: LRUCache[str, tuple[float, float]] = LRUCache(MAX_BUCKETS)

    def count(self, who: str) -> None:
        """Count a request. One that is refused costs nothing. Raises RateLimited."""
        tokens, now = self.refuse_exhausted(who)
        self._buckets[who] = (tokens - 1, now)

    def refuse_exhausted(self, who: str) -> tuple[float, float]:
        """Refuse what would be one too many, without counting it; gives the tokens there are, and the time.

        Raises RateLimited.
        """
        now = self._clock()
        tokens, at = self._buckets.get(who, (self._size, now))
        tokens = min(self._size, tokens + (now - at) * self._per_second)
        if tokens < 1:
            raise RateLimited(max(1, math.ceil((1 - tokens) / self._per_second)))
        return tokens, now


# Refused requests as log lines: failed sign-ins, what a key may not do, and floods.

REFUSALS = {401: "unauthenticated", 403: "forbidden", 429: "too many requests"}
LINES_PER_MINUTE = 10
_PERIOD_SECONDS = 60.0
_MAX_ADDRESSES = 10_000


class RefusalLog:
    """Up to `lines` a minute for each address; what comes beyond is counted, and told with its next line."""

    def __init__(self, lines: int = LINES_PER_MINUTE, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lines = lines
        self._clock = clock
        # When the minute began, and how many there were in it.
        self._counts: LRUCache[str, tuple[float, int]] = LRUCache(_MAX_ADDRESSES)

    def note(self, status: int, address: str, text: str) -> None:
        now = self._clock()
        began, count = self._counts.get(address, (now, 0))
        untold = max(0, count - self._lines)
        if now - began >= _PERIOD_SECONDS:
            began, count = now, 0
        else:
            untold = 0
        self._counts[address] = began, count + 1
        if count < self._lines:
            more = f"; {untold} more since the last such line" if untold else ""
            log.warning("refused %s as %s: %s%s", text, REFUSALS[status], address or "unknown address", more)


# The one object that requests share: a server process's engine, keys, metrics and limits.


@dataclass(kw_only=True, eq=False)
class Service:
    """One process's engine, who may use it, and whether it is being stopped."""

    engine: Engine
    keyring: Keyring
    metrics: Metrics
    limits: ServerLimits
    hosts: frozenset[str]
    """The names by which a server without keys may be addressed."""
    origins: frozenset[str]
    """The other sites whose pages may call it then."""
    rate_limiter: RateLimiter | None
    """Without one, keys may ask as often as they like."""
    address_limiter: RateLimiter | None
    """The same of others. There are two, so that made-up addresses displace no key."""
    separate_approvers: bool
    """If true, no caller decides on approvals of a run of their own."""
    is_offline: bool
    """If true, the built-in offline model answers, whatever model agents name."""
    session_headers: tuple[str, ...]
    """Those that name the session of a chat completion, beside the usual ones."""
    prices: PriceTable | None
    """With these usage has a cost."""
    refusals: RefusalLog
    head_log: HeadLog
    """It makes checkpoints."""
    max_package_bytes: int
    """The size of evidence packages."""
    retention: Retention

    def __post_init__(self) -> None:
        self.stopping = asyncio.Event()
        """Set when the server is told to stop."""
        self.drained = asyncio.Event()
        """Set when the last of its runs has ended."""
        self.replays = TurnQueue("replays", self.limits.waiting_replays)
        self.packages = TurnQueue("evidence packages", self.limits.waiting_replays)
        self.rebuilds = ByteBudget(self.limits.rebuilt_bytes)
        self._frames: WeakValueDictionary[SessionKey, FrameWriter] = WeakValueDictionary()

    def share_frames(self, key: SessionKey) -> FrameWriter:
        """The writer of a session's frames, for all who read them now."""
        frames = self._frames.get(key)
        if frames is None:
            frames = self._frames[key] = FrameWriter()
        return frames

    def count_request(self, key: ApiKey | None, address: str) -> None:
        """Count a request by its sender: a key, or else an address. Raises RateLimited."""
        limiter = self.address_limiter if key is None else self.rate_limiter
        if limiter is not None:
            limiter.count(address if key is None else key.id)

    def refuse_exhausted(self, address: str) -> None:
        """Refuse an address that has made as many requests as it may; counts nothing. Raises RateLimited."""
        if self.address_limiter is not None:
            self.address_limiter.refuse_exhausted(address)

    async def drain(self) -> None:
        """Take no more runs, let streams end, and return once the running runs have ended or were interrupted."""
        self.stopping.set()
        self.engine.hub.wake_readers()
        try:
            await self.engine.drain()
        finally:
            self.drained.set()
            self.engine.hub.wake_readers()


# The auth context of a request: who calls, and what they may use. The one dependency of every handler.

_MAX_KEY_CHARACTERS = 255


class Principal:
    """The sender of a request. Without a key the sender is unknown.

    `engine` carries out commands, `reader` reads sessions and runs; `store` is for what audits, sums up or transfers.
    """

    def __init__(
        self, service: Service, key_used: ApiKey | None, request: Request[Any, Any, Any] | None = None
    ) -> None:
        self.service = service
        self.engine = service.engine
        self.reader = service.engine.reader
        self.store = service.engine.store
        self.api_key = key_used
        self._request = request

    @property
    def tenant(self) -> str:
        """Whose sessions they are.

        Raises Unauthenticated where a key is needed and none was asked for: by a route outside `/v1`.
        """
        if self.api_key is not None:
            return self.api_key.tenant
        if self.service.keyring.has_keys:
            raise Unauthenticated
        return DEFAULT_TENANT

    @property
    def name(self) -> str | None:
        """The caller's name, for events that say who did something; None while the server is open."""
        return None if self.api_key is None else self.api_key.label

    @property
    def person(self) -> str | None:
        """The name by which sessions are assigned to the caller; two keys of one name are one person's."""
        if self.api_key is None:
            return None
        try:
            return check_assignee(self.api_key.name)
        except ValueError:
            return self.api_key.id

    async def is_still_allowed(self) -> bool:
        """Tell if the caller would still be let in: asked again and again by what goes on for long, as streams do."""
        keyring = self.service.keyring
        if self.api_key is None:
            return not await keyring.is_locked()
        return await keyring.is_valid(self.api_key)

    def require(self, *permissions: Permission) -> None:
        """Require one of these permissions; while the server is open, anybody may but make keys.

        Raises Forbidden.
        """
        if self.api_key is None and permissions == ("keys",):
            # The first caller would lock out all others.
            raise Forbidden(
                "the server has no API keys yet; make the first one with `swarmkeep keys create`, on its database"
            )
        if self.api_key is not None and PERMISSIONS[self.api_key.role].isdisjoint(permissions):
            needed = " or ".join(f"`{permission}`" for permission in permissions)
            raise Forbidden(f"this needs the permission {needed}, which the API key's role `{self.api_key.role}` lacks")

    def refuse_as_user(self, *, relayed: bool = False) -> None:
        """Refuse a caller who answers for the agent, and says nothing as its user unless that is `relayed`.

        Raises Forbidden.
        """
        if self.api_key is not None and self.api_key.role == "support" and not relayed:
            raise Forbidden(
                "a key with the role `support` does not speak as the user: take the session over and answer (POST "
                "/v1/sessions/{id}/takeover and …/answer), or leave colleagues a note (POST …/notes); if you pass on "
                "what the customer said, do it under /v1 with `relayed`: true"
            )

    def may(self, permission: Permission) -> bool:
        """Tell if the caller has this permission."""
        return self.api_key is None or permission in PERMISSIONS[self.api_key.role]

    async def read_idempotency(self) -> IdempotentRequest | None:
        """The request's `Idempotency-Key`, if it has one, with a digest of all that the request says.

        Raises InvalidRequest.
        """
        if self._request is None or (key := self._request.headers.get("idempotency-key")) is None:
            return None
        if not (0 < len(key) <= _MAX_KEY_CHARACTERS and key.isascii() and key.isprintable()):
            detail = f"an idempotency key must be 1 to {_MAX_KEY_CHARACTERS} printable ASCII characters"
            raise InvalidRequest(detail, "/header/Idempotency-Key")
        said = "\n".join((self._request.method, self._request.url.path, self._request.headers.get("if-match", "")))
        body = await self._request.body()
        return IdempotentRequest(key, hashlib.sha256(said.encode() + b"\n" + body).hexdigest())

    def session_key(self, session_id: str) -> SessionKey:
        """The caller's session of that id; one that no session can have is not worth a look.

        Raises SessionNotFound.
        """
        try:
            return SessionKey(self.tenant, check_id(session_id))
        except InvalidRequest:
            raise SessionNotFound(session_id) from None


def identify_principal(request: Request[Any, Any, Any]) -> Principal:
    """The caller of a request. All access to sessions goes through here; `require_key` has set the key."""
    return Principal(request.app.state.service, request.scope.get("auth"), request)


AnyConnection = ASGIConnection[Any, Any, Any, Any]

_LOGGED_PARAMETERS = {"session_id", "run_id"}
_MAX_ID_CHARACTERS = 128

# A handler's `opt` that names the permissions of which its caller needs one. What says nothing needs `read` if it is a
# GET, and else `write`, so that a new route is not open to more than it should be.
PERMISSION = "permission"
# Where handlers look themselves at who speaks, or nothing is said. What is sent to any other protocol is the user's.
_TELL_WHO_SPEAKS = ("/v1/", "/openai/v1/", "/agui/", "/mcp")
# A handler's `opt` that says that it calls `authenticate` and `refuse_other_sites` itself: a WebSocket is
# refused in the handshake, and may show its key in another place.
OWN_AUTH = "own_auth"


async def require_key(connection: AnyConnection, handler: BaseRouteHandler) -> None:
    """Let in a caller with a key, once there is one, and note whose it is.

    Raises Unauthenticated, RateLimited, Forbidden, StoreUnavailable.
    """
    if handler.opt.get(OWN_AUTH):
        return
    service: Service = connection.app.state.service
    headers = connection.headers.getall("authorization", [])
    key = await authenticate(service, headers, get_client_address(connection.scope))
    connection.scope["auth"] = key
    principal = Principal(service, key)
    note_caller(principal, connection.path_params)
    principal.require(*_get_needed_permissions(connection, handler))
    if connection.scope.get("method") == "POST" and not connection.scope["path"].startswith(_TELL_WHO_SPEAKS):
        principal.refuse_as_user()


def note_caller(principal: Principal, path_parameters: Mapping[str, Any]) -> None:
    """From here on, log lines of the request say whose it is and what it is about."""
    about = {
        name: str(path_parameters[name])[:_MAX_ID_CHARACTERS] for name in _LOGGED_PARAMETERS & path_parameters.keys()
    }
    bind_fields(tenant=principal.tenant, key=principal.name, **about)


async def authenticate(service: Service, authorization: list[str], address: str) -> ApiKey | None:
    """The key in a request's `Authorization` headers; None as long as the server asks for none. Counts the request.

    Raises Unauthenticated, RateLimited, StoreUnavailable.
    """
    secret = _read_bearer_secret(authorization)
    locked = await service.keyring.is_locked()
    if locked and secret and not service.keyring.was_used(secret):
        # Keys that are only tried out cost a look into the database each; those in use are not held up by them.
        service.refuse_exhausted(address)
    key = await service.keyring.find_key(secret) if locked and secret else None
    service.count_request(key, address)
    if locked and key is None:
        raise Unauthenticated(key_given=bool(secret))
    return key


def get_client_address(scope: Mapping[str, Any]) -> str:
    """Return the address that a request comes from: who connected, or what a proxy says that was named to the
    server."""
    client = scope.get("client")
    return "" if client is None else client[0]


def _read_bearer_secret(authorization: list[str]) -> str:
    """Return the text after `Bearer`; empty without one, and for several headers, as it is unclear which counts."""
    scheme, _, secret = authorization[0].strip().partition(" ") if len(authorization) == 1 else ("", "", "")
    return secret.strip() if scheme.lower() == "bearer" else ""


def _get_needed_permissions(connection: AnyConnection, handler: BaseRouteHandler) -> tuple[Permission, ...]:
    reads = connection.scope.get("method") in ("GET", "HEAD")
    needed: tuple[Permission, ...] = handler.opt.get(PERMISSION, ("read",) if reads else ("write",))
    return needed


async def guard_against_other_sites(connection: AnyConnection, handler: BaseRouteHandler) -> None:
    """The guard of all routes. Raises Forbidden."""
    if not handler.opt.get(OWN_AUTH):
        await refuse_other_sites(connection.app.state.service, connection.headers)


async def refuse_other_sites(service: Service, headers: Headers) -> None:
    """Keep web pages out of an open server: any page can send requests to localhost, or have its name point there.

    Where a key is needed no page has one by itself, so that any name and any origin will do. Raises Forbidden.
    """
    foreign = _describe_foreign_request(service, headers)
    if foreign and not await service.keyring.is_locked():
        raise Forbidden(foreign)


def _describe_foreign_request(service: Service, headers: Headers) -> str:
    """Explain why a request is not from this machine, or not from a page of ours; empty if it may well be."""
    if any(_strip_port(host) not in service.hosts for host in headers.getall("host", [])):
        return (
            "without API keys the server answers only to its own name; use 127.0.0.1 or localhost, or name this host "
            "in SWARMKEEP_ALLOWED_HOSTS"
        )
    if not is_allowed_origin(service, headers) or _is_embedded_elsewhere(headers):
        return "without API keys the server does not accept requests from other sites' pages"
    return ""


def is_allowed_origin(service: Service, headers: Headers) -> bool:
    """Tell if a request is from no web page, from the server's own, or from one that may call it."""
    origin = headers.get("origin")
    own = origin is None or headers.getall("host", []) == [origin.partition("://")[2]]
    return own or bool(service.origins & {origin, "*"})


def _is_embedded_elsewhere(headers: Headers) -> bool:
    """Tell if another site's page loads this without an `Origin`: as a picture or a script, to learn whether it exists.

    Browsers say so (https://www.w3.org/TR/fetch-metadata/). Following a link from another site is allowed.
    """
    return (
        headers.get("origin") is None
        and headers.get("sec-fetch-site") in ("cross-site", "same-site")
        and (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) != ("navigate", "document")
    )


def _strip_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    return (name if name and port.isdecimal() else host).lower()


def log_refusal(refusals: RefusalLog, status: int | None, scope: Mapping[str, Any]) -> None:
    """Note an answer that refuses a caller."""
    if status in REFUSALS:
        refusals.note(status, get_client_address(scope), _describe_request(scope))


def _describe_request(scope: Mapping[str, Any]) -> str:
    """The method and the path, with the key's id if one was shown: never the key."""
    shown = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1").rpartition(" ")[2]
    key_id = parse_key_id(shown)
    return f"{scope.get('method', 'WebSocket')} {scope['path'][:200]}" + (f" by {key_id}" if key_id else "")
