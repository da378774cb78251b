"""Webhooks: rounds in which what is new is sent to each, with retries; and how one message is signed and delivered."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import random
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from itertools import groupby
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit
from weakref import WeakValueDictionary

import msgspec

from swarmkeep.events.codec import encode, to_timestamp
from swarmkeep.events.errors import IdempotencyMismatch, InvalidRequest, Overloaded, WebhookNotFound
from swarmkeep.events.facts import RecordedEvent, view_event
from swarmkeep.logs import outage_log
from swarmkeep.runs.feed import END, EventFeed
from swarmkeep.runs.identifiers import derive_id, make_id
from swarmkeep.runs.limits import Limits
from swarmkeep.runs.runs import IdempotentRequest
from swarmkeep.store.feed import FeedFilter, parse_feed_cursor
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import AuditAction, Clock, StoreUnavailable, utc_now
from swarmkeep.store.webhooks import BEHIND, MAX_WAITING, Delivery, DeliveryReport, Secret, State, Webhook

if TYPE_CHECKING:
    import aiohttp

MAX_URL_CHARACTERS = 2_000
SECRET_PREFIX = "whsec_"
LONGEST_PAUSE_SECONDS = 86_400.0

_REDIRECTS = (307, 308)
_MAX_REDIRECTS = 3
_GONE = 410
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NOT_PUBLIC = "the address is not public: SWARMKEEP_WEBHOOK_NETWORKS names the private networks that may be sent to"
_NOT_ENCRYPTED = "plain http is for the networks of SWARMKEEP_WEBHOOK_NETWORKS only: use https"


class Addresses:
    """The addresses that may be connected to: public ones by https, and those of `networks` in either way."""

    def __init__(self, networks: Sequence[str] = ()) -> None:
        self._networks: list[IPv4Network | IPv6Network] = [ip_network(one, strict=False) for one in networks]

    def admits(self, host: str, *, encrypted: bool) -> bool:
        """Tell if an address, written as numbers, may be connected to."""
        address = ip_address(host.partition("%")[0])
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if any(address in network for network in self._networks):
            return True
        return encrypted and _is_public(address)

    def check_url(self, url: str) -> None:
        """Raise InvalidRequest for what is no address of a webhook. A name is looked up only when it is sent to."""
        detail = self._find_fault(url)
        if detail is not None:
            raise InvalidRequest(detail, "/url")

    def _find_fault(self, url: str) -> str | None:
        if not (url.isascii() and url.isprintable() and " " not in url and len(url) <= MAX_URL_CHARACTERS):
            return f"must be an https URL of at most {MAX_URL_CHARACTERS} ASCII characters"
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            return "is not a valid URL"
        if parts.scheme not in ("https", "http") or not host or "@" in parts.netloc or parts.fragment:
            return "must be an https URL with a host, and without a user name, password or fragment"
        encrypted = parts.scheme == "https"
        try:
            is_admitted = self.admits(host, encrypted=encrypted)
        except ValueError:
            return None if encrypted or self._networks else _NOT_ENCRYPTED
        return None if is_admitted else _NOT_PUBLIC if encrypted else _NOT_ENCRYPTED


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv4Address):
        return address.is_global and not address.is_multicast
    if address.sixtofour is not None:
        return _is_public(address.sixtofour)
    return address in _GLOBAL_UNICAST and address.is_global


class Message(msgspec.Struct, frozen=True):
    """A message: its id, which is the same in each attempt, and its body."""

    id: str
    body: bytes


class Outcome(msgspec.Struct, frozen=True):
    """What became of an attempt: the answer's status, if there was one, and the error, if it failed."""

    status: int | None = None
    error: str = ""
    retry_after_seconds: float = 0.0

    @property
    def is_gone(self) -> bool:
        """Tell if the receiver says that it will never take any more."""
        return self.status == _GONE


def make_message(webhook_id: str, event: RecordedEvent, max_bytes: int) -> Message:
    """The message about an event. One that is larger than `max_bytes` names the place of its data instead."""
    path = f"/v1/sessions/{event.session_id}"
    envelope = {
        "specversion": "1.0",
        "id": event.hash,
        "source": path,
        "type": event.type,
        "subject": event.run_id or event.session_id,
        "time": event.at,
        "sequence": str(event.seq),
    }
    # By the hash, which no other event has, so that each attempt and each server gives it the same one.
    message_id = f"{webhook_id}_{event.hash[:32]}"
    body = encode({**envelope, "datacontenttype": "application/json", "data": view_event(event)})
    if len(body) > max_bytes:
        body = encode({**envelope, "dataref": f"{path}/events?after={event.seq - 1}&limit=1"})
    return Message(message_id, body)


def make_test_message(webhook_id: str, message_id: str, at: str) -> Message:
    envelope = {"specversion": "1.0", "id": message_id, "source": f"/v1/webhooks/{webhook_id}", "type": "webhook.test"}
    data = {"webhook_id": webhook_id}
    return Message(message_id, encode({**envelope, "time": at, "datacontenttype": "application/json", "data": data}))


def sign(message: Message, secrets: Sequence[str], at: datetime) -> dict[str, str]:
    """The headers of Standard Webhooks, with a signature by each secret."""
    seconds = str(int(at.timestamp()))
    content = f"{message.id}.{seconds}.".encode() + message.body
    keys = [base64.b64decode(secret.removeprefix(SECRET_PREFIX)) for secret in secrets]
    signatures = [base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode() for key in keys]
    return {
        "webhook-id": message.id,
        "webhook-timestamp": seconds,
        "webhook-signature": " ".join(f"v1,{one}" for one in signatures),
    }


class Sender:
    """Connections to the receivers of webhooks. An attempt takes `seconds` at most, redirects included."""

    def __init__(self, addresses: Addresses, *, seconds: float) -> None:
        self._addresses = addresses
        self._seconds = seconds
        self._opening = asyncio.Lock()
        self._sessions: Mapping[str, aiohttp.ClientSession] | None = None

    async def send(self, url: str, message: Message, secrets: Sequence[str], at: datetime) -> Outcome:
        """Make an attempt. Its failure is an outcome; of the answer's body nothing is read."""
        import aiohttp

        headers = {
            **sign(message, secrets, at),
            "content-type": "application/cloudevents+json; charset=utf-8",
            "user-agent": "Swarmkeep",
        }
        try:
            async with asyncio.timeout(self._seconds):
                return await self._post(url, message.body, headers)
        except TimeoutError:
            return Outcome(error=f"no answer within {self._seconds:g} s")
        except InvalidRequest as error:
            return Outcome(error=str(error))
        except aiohttp.ClientConnectorCertificateError as error:
            reason = getattr(error.certificate_error, "verify_message", "") or "it cannot be verified"
            return Outcome(error=f"the certificate is refused: {reason.rstrip('.')}")
        except aiohttp.ClientConnectorError as error:
            known = isinstance(error.os_error, _NotPublic)
            return Outcome(error=str(error.os_error) if known else "the connection cannot be made")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Outcome(error=f"the connection broke: {type(error).__name__}")

    async def _post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Outcome:
        sessions = await self._open()
        for _ in range(1 + _MAX_REDIRECTS):
            self._addresses.check_url(url)
            session = sessions[urlsplit(url).scheme]
            async with session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
                if answer.status not in _REDIRECTS or "location" not in answer.headers:
                    return _read_outcome(answer.status, answer.headers.get("retry-after", ""))
                url = urljoin(url, answer.headers["location"])
        return Outcome(error=f"more than {_MAX_REDIRECTS} redirects")

    async def _open(self) -> Mapping[str, aiohttp.ClientSession]:
        async with self._opening:
            if self._sessions is None:
                context = await asyncio.to_thread(_make_ssl_context)
                self._sessions = {
                    "https": _make_session(self._addresses, encrypted=True, ssl=context),
                    "http": _make_session(self._addresses, encrypted=False, ssl=context),
                }
        return self._sessions

    async def close(self) -> None:
        for session in (self._sessions or {}).values():
            await session.close()
        self._sessions = None


def _read_outcome(status: int, retry_after: str) -> Outcome:
    if 200 <= status < 300:
        return Outcome(status)
    seconds = float(retry_after) if retry_after.isdecimal() and len(retry_after) < 9 else 0.0
    return Outcome(status, f"the answer was {status}", min(seconds, LONGEST_PAUSE_SECONDS))


class _NotPublic(OSError):
    """A name that leads to no address which may be connected to."""


def _make_ssl_context() -> Any:
    # Needed next, and slow to load; so is every authority's certificate.
    import ssl

    import aiohttp  # noqa: F401

    return ssl.create_default_context()


def _make_session(addresses: Addresses, *, encrypted: bool, ssl: Any) -> aiohttp.ClientSession:
    import aiohttp
    from aiohttp.abc import AbstractResolver, ResolveResult

    class CheckedResolver(AbstractResolver):
        """Gives of a name's addresses those that may be connected to, and the connection is made to one of these."""

        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
        ) -> list[ResolveResult]:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
            admitted = [one for one in found if addresses.admits(str(one[4][0]), encrypted=encrypted)]
            if not admitted:
                raise _NotPublic(_NOT_PUBLIC if encrypted else _NOT_ENCRYPTED)
            return [
                ResolveResult(hostname=host, host=str(address[0]), port=port, family=kind, proto=proto, flags=0)
                for kind, _, proto, _, address in admitted
            ]

        async def close(self) -> None:
            """Nothing was opened."""

    return aiohttp.ClientSession(
        # Without a limit of its own, at which all tenants would wait: there are as many as there are attempts at once.
        connector=aiohttp.TCPConnector(limit=0, resolver=CheckedResolver(), use_dns_cache=False, ssl=ssl),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("Accept", "Accept-Encoding"),
        # `send` has one for all of it.
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
    )


# Webhooks: events of the feed are sent to addresses, each at least once, and those of a session in their order.

log = logging.getLogger(__name__)

PAUSES_SECONDS = (5, 60, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""Between the attempts for one event, before it is given up: three days and some hours."""

DEFAULT_KEEP_SECONDS = 86_400
_PAGE_EVENTS = 50
_SESSIONS_AT_ONCE = 8
_WEBHOOKS_AT_ONCE = 32
# A tenant's receivers may all be silent for as long as an attempt may take.
_OF_A_TENANT_AT_ONCE = 8
_MAX_NAMES = 50
# Others wait a little, so that what failed together does not come back together.
_SPREAD = 0.1
_TROUBLE_SECONDS = 5.0

Observe = Callable[[str], None]
"""Is told of each attempt: `delivered`, `failed`, or `dead`, which is a failure after which no other comes."""


class Tested(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a test message."""

    delivered: bool
    """True if the receiver took it."""
    status: int | None
    """The status of its answer, or null."""
    error: str | None
    """The reason why it was not taken, or null."""
    duration_ms: float
    """How long it took."""


class _Stopped(Exception):
    """The lease is lost: another server has it, and nothing of this round is recorded."""


class Webhooks:
    """The webhooks of all tenants: what their owners change, and, while `sending` is open, the deliveries."""

    def __init__(
        self,
        store: SqlStore,
        feed: EventFeed,
        limits: Limits,
        *,
        clock: Clock = utc_now,
    ) -> None:
        self._store = store
        self._feed = feed
        self._limits = limits
        self._clock = clock
        self._addresses = Addresses(limits.webhook_networks)
        self._sender = Sender(self._addresses, seconds=limits.webhook_seconds)
        self._owner = make_id("owner")
        self._lease_seconds = limits.lease_seconds
        # Until when the lease is surely held, on the monotonic clock.
        self._held_until: dict[tuple[str, str], float] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._gate = asyncio.Semaphore(_WEBHOOKS_AT_ONCE)
        self._tenant_gates: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._is_stopping = False
        self.observe: Observe = lambda _: None

    # What their owners change.

    async def create(
        self,
        tenant: str,
        url: str,
        wanted: FeedFilter,
        *,
        after: str = END,
        request: IdempotentRequest | None = None,
        by: str | None = None,
    ) -> Webhook:
        """Make a webhook, which gets what comes behind a place in the feed; its first secret is in it.

        Raises InvalidRequest, QuotaExceeded, IdempotencyMismatch.
        """
        self._check(url, wanted)
        cursor = await self._feed.find_start(tenant, END, None)
        if after != END:
            end, cursor = cursor, parse_feed_cursor(after, "/after")
            if cursor > end:
                raise InvalidRequest("is behind the end of the feed", "/after")
        now = to_timestamp(self._clock())
        made = Webhook(
            tenant=tenant,
            id=make_id("wh") if request is None else derive_id("wh", f"{tenant}/{request.key}"),
            url=url,
            wanted=wanted,
            secrets=(_make_secret(request),),
            state="enabled",
            created_at=now,
            updated_at=now,
            cursor=cursor,
        )
        try:
            return await self._store.create_webhook(made, most=self._limits.max_webhooks, by=by)
        except IdempotencyMismatch:
            raise IdempotencyMismatch("" if request is None else request.key) from None

    async def change(
        self,
        tenant: str,
        webhook_id: str,
        *,
        url: str | None = None,
        wanted: Callable[[FeedFilter], FeedFilter] = lambda before: before,
        state: State | None = None,
        by: str | None,
    ) -> Webhook:
        """Change the address, the events, or the state. Raises InvalidRequest, WebhookNotFound."""

        def change(hook: Webhook) -> Webhook:
            after = msgspec.structs.replace(
                hook, url=url or hook.url, wanted=wanted(hook.wanted), state=state or hook.state
            )
            self._check(after.url, after.wanted)
            return after

        return await self._change(tenant, webhook_id, change, "webhook.updated", by)

    async def rotate(
        self, tenant: str, webhook_id: str, *, keep_seconds: float, request: IdempotentRequest | None, by: str | None
    ) -> Webhook:
        """Make a new secret, the first of the webhook's; the one before signs as well for `keep_seconds`.

        The same request gives the same secret again. Raises WebhookNotFound.
        """
        new = _make_secret(request)

        def change(hook: Webhook) -> Webhook:
            if new.request and any(one.request == new.request for one in hook.secrets):
                return hook
            return hook.rotate(new, self._clock(), keep_seconds)

        return await self._change(tenant, webhook_id, change, "webhook.rotated", by)

    async def _change(
        self, tenant: str, webhook_id: str, change: Callable[[Webhook], Webhook], type: str, by: str | None
    ) -> Webhook:
        action, at = AuditAction(type=type, by=by), to_timestamp(self._clock())
        return await self._store.change_webhook(tenant, webhook_id, change, action, at)

    async def delete(self, tenant: str, webhook_id: str, *, by: str | None) -> None:
        """Delete a webhook with what it has not delivered. Raises WebhookNotFound."""
        await self._store.delete_webhook(tenant, webhook_id, by=by, at=to_timestamp(self._clock()))

    async def test(self, tenant: str, webhook_id: str) -> Tested:
        """Send a message of the type `webhook.test` at once, in any state of the webhook. Raises WebhookNotFound."""
        hook = await self._store.read_webhook(tenant, webhook_id)
        now, began = self._clock(), time.monotonic()
        message = make_test_message(hook.id, make_id("test"), to_timestamp(now))
        outcome = await self._sender.send(hook.url, message, hook.list_secrets(now), now)
        took = round((time.monotonic() - began) * 1000, 3)
        return Tested(delivered=not outcome.error, status=outcome.status, error=outcome.error or None, duration_ms=took)

    async def resend(self, tenant: str, webhook_id: str, cursor: str, *, by: str | None) -> Delivery:
        """Try a delivery again at once. Raises WebhookNotFound, DeliveryNotFound, InvalidRequest."""
        place = parse_feed_cursor(cursor, "/path/cursor")
        return await self._store.resend_delivery(tenant, webhook_id, place, by=by, at=to_timestamp(self._clock()))

    def _check(self, url: str, wanted: FeedFilter) -> None:
        self._addresses.check_url(url)
        for name, given in (("types", wanted.types), ("agents", wanted.agents), ("metadata", wanted.metadata)):
            if len(given) > _MAX_NAMES:
                raise InvalidRequest(f"at most {_MAX_NAMES} at once", f"/{name}")

    # Deliveries.

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """While this is open, deliver. At its end attempts that have begun may end, and no others begin."""
        keeping = asyncio.create_task(self._keep_sending())
        try:
            yield
        finally:
            self._is_stopping = True
            if tasks := list(self._tasks.values()):
                await asyncio.wait(tasks, timeout=self._limits.grace_seconds)
            for task in (keeping, *self._tasks.values()):
                task.cancel()
            await asyncio.gather(keeping, *self._tasks.values(), return_exceptions=True)
            await self.close()
            with suppress(StoreUnavailable, Overloaded):
                await self._store.release_webhooks(self._owner)

    async def close(self) -> None:
        """Close the connections to receivers."""
        await self._sender.close()

    async def _keep_sending(self) -> None:
        while not self._is_stopping:
            began = time.monotonic()
            try:
                held = await self._store.claim_webhooks(self._owner, lease_seconds=self._lease_seconds)
            except (StoreUnavailable, Overloaded) as error:
                outage_log.note(error)
            except Exception:
                log.exception("webhooks could not be looked for")
            else:
                # More than that is left of each: what has less was renewed.
                until = began + self._lease_seconds * 0.6
                self._held_until = {(hook.tenant, hook.id): until for hook in held}
                for hook in held:
                    self._start(hook)
            await asyncio.sleep(self._limits.poll_seconds)

    def _start(self, hook: Webhook) -> None:
        key = hook.tenant, hook.id
        if key not in self._tasks:
            task = self._tasks[key] = asyncio.create_task(self._serve(hook))
            task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def _serve(self, hook: Webhook) -> None:
        """Deliver what there is for one webhook."""
        try:
            while await self._take_turn(hook) and not self._is_stopping:
                hook = await self._store.read_webhook(hook.tenant, hook.id)
        except _Stopped:
            log.info("webhook %s: another server goes on with it", hook.id)
        except WebhookNotFound:
            log.info("webhook %s was deleted", hook.id)
        except (StoreUnavailable, Overloaded) as error:
            outage_log.note(error)
        except Exception:
            log.exception("webhook %s: a round of deliveries failed", hook.id)
            await asyncio.sleep(_TROUBLE_SECONDS)

    async def _take_turn(self, hook: Webhook) -> bool:
        """A round as soon as it is this webhook's turn: those that always have more go on behind the others."""
        mine = self._tenant_gates.setdefault(hook.tenant, asyncio.Semaphore(_OF_A_TENANT_AT_ONCE))
        has_to_wait = mine.locked() or self._gate.locked()
        async with mine, self._gate:
            # Its owner may have given it another address meanwhile.
            now = await self._store.read_webhook(hook.tenant, hook.id) if has_to_wait else hook
            return await self._run_round(now)

    async def _run_round(self, hook: Webhook) -> bool:
        """Try what is due and what comes next in the feed; False if there was nothing."""
        due = await self._store.list_due_deliveries(hook, to_timestamp(self._clock()), limit=_PAGE_EVENTS)
        cursor, fresh = hook.cursor, list[Delivery]()
        waiting, _ = await self._store.count_waiting(hook, ())
        if waiting < MAX_WAITING:
            page = await self._feed.wait(hook.tenant, cursor, hook.wanted, limit=_PAGE_EVENTS, seconds=0)
            cursor = page.cursor
            fresh = [Delivery(cursor=place, session_id=event.session_id) for place, event in page.events]
        if not due and cursor == hook.cursor:
            return False
        _, blocked = await self._store.count_waiting(hook, {one.session_id for one in fresh})
        report = DeliveryReport(hook.failures)
        report.kept += [one for one in fresh if one.session_id in blocked]
        gate = asyncio.Semaphore(_SESSIONS_AT_ONCE)
        chains = _split(due) + _split([one for one in fresh if one.session_id not in blocked])
        sends = [asyncio.create_task(self._send_chain(hook, chain, report, gate)) for chain in chains]
        try:
            await asyncio.gather(*sends)
        except BaseException:
            # None goes on beside the next round, which sends the same events.
            for send in sends:
                send.cancel()
            await asyncio.gather(*sends, return_exceptions=True)
            raise
        now = to_timestamp(self._clock())
        if not await self._store.settle_webhook(hook, self._owner, report, cursor=cursor, at=now):
            raise _Stopped
        return not report.is_gone

    async def _send_chain(
        self, hook: Webhook, chain: Sequence[Delivery], report: DeliveryReport, gate: asyncio.Semaphore
    ) -> None:
        """Send a session's events one after the other, up to the first that fails and is to be tried again."""
        async with gate:
            for number, one in enumerate(chain):
                if self._is_stopping or report.is_gone:
                    now = to_timestamp(self._clock())
                    report.kept.append(msgspec.structs.replace(one, next_at=now))
                elif await self._attempt(hook, one, report):
                    continue
                report.kept += [msgspec.structs.replace(rest, next_at=BEHIND) for rest in chain[number + 1 :]]
                return

    async def _attempt(self, hook: Webhook, one: Delivery, report: DeliveryReport) -> bool:
        """Send an event as it is at this moment. False if it is to be tried again."""
        if time.monotonic() >= self._held_until.get((hook.tenant, hook.id), 0.0):
            raise _Stopped
        event = await self._feed.read_one(hook.tenant, one.cursor)
        if event is None:
            # Its session was deleted.
            report.sent.append(one)
            return True
        now = self._clock()
        message = make_message(hook.id, event, self._limits.max_webhook_bytes)
        outcome = await self._sender.send(hook.url, message, hook.list_secrets(now), now)
        if not outcome.error:
            report.sent.append(one)
            report.failures, report.is_delivered = 0, True
            self.observe("delivered")
            return True
        return self._note_failure(hook, one, report, outcome)

    def _note_failure(self, hook: Webhook, one: Delivery, report: DeliveryReport, outcome: Outcome) -> bool:
        if not report.failures:
            log.warning("webhook %s: %s; it is tried again", hook.id, outcome.error)
        report.failures += 1
        report.is_gone = report.is_gone or outcome.is_gone
        failed = msgspec.structs.replace(one, attempts=one.attempts + 1, next_at=None, error=outcome.error)
        is_dead = one.attempts >= len(PAUSES_SECONDS) and not outcome.is_gone
        self.observe("dead" if is_dead else "failed")
        if is_dead:
            log.error("webhook %s: event %s is given up: %s", hook.id, one.cursor, outcome.error)
        else:
            pause = PAUSES_SECONDS[min(one.attempts, len(PAUSES_SECONDS) - 1)] * random.uniform(1, 1 + _SPREAD)
            next_at = self._clock() + timedelta(seconds=max(pause, outcome.retry_after_seconds))
            failed = msgspec.structs.replace(failed, next_at=to_timestamp(next_at))
        report.kept.append(failed)
        return is_dead


def _split(found: Sequence[Delivery]) -> list[list[Delivery]]:
    """Deliveries by session, in their order."""
    ordered = sorted(found, key=lambda one: (one.session_id, one.cursor))
    return [list(some) for _, some in groupby(ordered, key=lambda one: one.session_id)]


def _make_secret(request: IdempotentRequest | None) -> Secret:
    text = base64.b64encode(secrets.token_bytes(32)).decode()
    return Secret(f"{SECRET_PREFIX}{text}", request="" if request is None else request.digest)
