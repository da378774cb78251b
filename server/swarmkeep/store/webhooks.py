"""Webhooks: their addresses and secrets, how far each has come in the feed, and the events that it has passed and not
delivered. Of an event only its place is kept: it is read when it is sent.

One server has the lease of a webhook, by the database's clock. What it did is recorded only while it still has it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, RowMapping, delete, func, literal_column, or_, select, tuple_, update

from swarmkeep.events.codec import decode, encode_text, to_timestamp
from swarmkeep.events.errors import DeliveryNotFound, IdempotencyMismatch, QuotaExceeded, WebhookNotFound
from swarmkeep.store.audit import record_action
from swarmkeep.store.feed import FeedCursor, FeedFilter
from swarmkeep.store.records import AuditAction
from swarmkeep.store.statements import (
    OnDatabase,
    PreparedStatement,
    build_insert,
    build_insert_if_absent,
    split_parameters,
)
from swarmkeep.store.tables import database_now, feed_positions, webhook_deliveries, webhooks

State = Literal["enabled", "paused", "gone"]

BEHIND = "9"
"""When a delivery is due that waits for an earlier one of its session: later than any time."""
MAX_WAITING = 1_000
"""Deliveries of one webhook that wait to be tried again. Where there are so many, the rest stays in the feed."""
KEPT_DAYS = 30
"""For how long a delivery that was given up can be sent again."""

_MAX_SECRETS = 3
# So many attempts in a row that failed are a receiver that was away: what waits is due once it is there again.
_AWAY_FAILURES = 3
_MAX_SHOWN = 1_000
_FIND_ENABLED = PreparedStatement(
    select(literal_column("1")).select_from(webhooks).where(webhooks.c.state == literal_column("'enabled'")).limit(1)
)


class Secret(msgspec.Struct, frozen=True, array_like=True):
    """A key that messages are signed with, up to a time; `request` is the digest of the one that made it."""

    text: str
    until: str | None = None
    request: str = ""


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook as it is stored. `cursor`: its place in the feed."""

    tenant: str
    id: str
    url: str
    wanted: FeedFilter
    secrets: tuple[Secret, ...]
    state: State
    created_at: str
    updated_at: str
    cursor: FeedCursor
    failures: int = 0
    error: str = ""
    delivered_at: str | None = None

    def list_secrets(self, at: datetime) -> list[str]:
        """The secrets that sign at this time, the newest first."""
        now = to_timestamp(at)
        return [one.text for one in self.secrets if one.until is None or one.until > now]

    def rotate(self, new: Secret, at: datetime, keep_seconds: float) -> Webhook:
        """With a new secret; the one before signs for a while beside it."""
        until = to_timestamp(at + timedelta(seconds=keep_seconds))
        old = [msgspec.structs.replace(one, until=min(one.until or until, until)) for one in self.secrets]
        return msgspec.structs.replace(self, secrets=(new, *old)[:_MAX_SECRETS])


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """An event that was not delivered. `next_at`: when it is tried again; None: it was given up."""

    cursor: FeedCursor
    session_id: str
    attempts: int = 0
    next_at: str | None = BEHIND
    error: str = ""
    updated_at: str = ""

    @property
    def due_at(self) -> str | None:
        """When it is tried again, if that is known."""
        return None if self.next_at == BEHIND else self.next_at


class DeliveryReport(msgspec.Struct):
    """What became of the deliveries of one round."""

    failures: int
    """How many attempts in a row have failed."""
    sent: list[Delivery] = []
    """Forgotten: they were sent, or are of nothing any more."""
    kept: list[Delivery] = []
    """Tried later, or given up."""
    is_delivered: bool = False
    is_gone: bool = False
    """Whether the receiver wants nothing any more."""


class WebhookLag(msgspec.Struct, frozen=True):
    """How far a webhook is behind: rows of the feed that it has not come to, deliveries that wait, and given up."""

    tenant: str
    id: str
    lag: int
    waiting: int
    dead: int


class SqlWebhooks(OnDatabase):
    """The webhooks of each tenant."""

    async def create_webhook(self, made: Webhook, *, most: int, by: str | None) -> Webhook:
        """Add a webhook. Asked again by the request that made it, gives it as it is now.

        Raises QuotaExceeded where there are so many, and IdempotencyMismatch where another request made it.
        """
        return await self.database.write(lambda connection: _create(connection, made, most, by))

    async def list_webhooks(self, tenant: str | None = None) -> list[Webhook]:
        """A tenant's webhooks, oldest first; without one, those of all."""
        query = select(webhooks).order_by(webhooks.c.created_at, webhooks.c.id)
        if tenant is not None:
            query = query.where(webhooks.c.tenant == tenant)
        rows = await self.database.read(lambda connection: connection.execute(query).mappings().all())
        return [_make_webhook(row) for row in rows]

    async def read_webhook(self, tenant: str, webhook_id: str) -> Webhook:
        """Raises WebhookNotFound."""
        return await self.database.read(lambda connection: _read(connection, tenant, webhook_id))

    async def change_webhook(
        self, tenant: str, webhook_id: str, change: Callable[[Webhook], Webhook], action: AuditAction, at: str
    ) -> Webhook:
        """Change what its owner may: address, events, secrets, state. One that is enabled again tries at once what
        waits. Where nothing differs nothing is recorded.

        Raises WebhookNotFound.
        """

        def job(connection: Connection) -> Webhook:
            lock = _of(select(webhooks), webhooks, tenant, webhook_id).with_for_update()
            before = _make_webhook(_found(connection.execute(lock).mappings().one_or_none(), webhook_id))
            after = change(before)
            if after == before:
                return before
            after = msgspec.structs.replace(after, updated_at=at)
            changed = _make_row(after, ("url", "wanted", "secrets", "state", "updated_at"))
            connection.execute(_of(update(webhooks), webhooks, tenant, webhook_id).values(changed))
            if after.state == "enabled" != before.state:
                _hasten(connection, after, at)
            record_action(connection, tenant, action, describe_webhook(after), at)
            return after

        return await self.database.write(job)

    async def delete_webhook(self, tenant: str, webhook_id: str, *, by: str | None, at: str) -> None:
        """Delete it with all that it has not delivered. Raises WebhookNotFound."""

        def job(connection: Connection) -> None:
            found = _read(connection, tenant, webhook_id)
            connection.execute(_of(delete(webhook_deliveries), webhook_deliveries, tenant, webhook_id))
            connection.execute(_of(delete(webhooks), webhooks, tenant, webhook_id))
            record_action(connection, tenant, AuditAction(type="webhook.deleted", by=by), describe_webhook(found), at)

        await self.database.write(job)

    # What a server that sends does.

    async def claim_webhooks(self, owner: str, *, lease_seconds: float) -> list[Webhook]:
        """Take the lease of enabled webhooks that no server has, renew those that `owner` has, and give all of these.

        Writes only where there is something to take, or a third of the time has passed.
        """
        if not await self.database.read(lambda connection: _FIND_ENABLED.fetch_all(connection, {})):
            # Nearly always: a server asks twice a second.
            return []
        kept = (webhooks.c.lease_owner == owner) & (webhooks.c.lease_until > database_now())
        is_old = webhooks.c.lease_until < database_now() + lease_seconds * 2 / 3
        is_free = or_(webhooks.c.lease_owner.is_(None), webhooks.c.lease_until <= database_now())
        takes = (webhooks.c.state == "enabled") & (is_free | ((webhooks.c.lease_owner == owner) & is_old))
        some = select(webhooks.c.id).where(takes).limit(1)
        if await self.database.read(lambda connection: connection.scalar(some)) is not None:
            claim = update(webhooks).where(takes)
            claim = claim.values(lease_owner=owner, lease_until=database_now() + lease_seconds)
            await self.database.write(lambda connection: connection.execute(claim))
        query = select(webhooks).where(kept, webhooks.c.state == "enabled")
        rows = await self.database.read(lambda connection: connection.execute(query).mappings().all())
        return [_make_webhook(row) for row in rows]

    async def release_webhooks(self, owner: str) -> None:
        """Give up all leases of a server that stops."""
        change = update(webhooks).where(webhooks.c.lease_owner == owner).values(lease_owner=None, lease_until=None)
        await self.database.write(lambda connection: connection.execute(change))

    async def list_due_deliveries(self, hook: Webhook, at: str, *, limit: int) -> list[Delivery]:
        """The sessions of deliveries that are due, each with its first ones in their order, as long as these are due
        or behind one that is."""
        return await self.database.read(lambda connection: _list_due(connection, hook, at, limit))

    async def count_waiting(self, hook: Webhook, sessions: Collection[str]) -> tuple[int, set[str]]:
        """The number of deliveries that wait, and which of these sessions have some."""

        def find(connection: Connection) -> tuple[int, set[str]]:
            # As a range, which one index has, and not as `IS NOT NULL`.
            mine = (*_keys(webhook_deliveries, hook.tenant, hook.id), webhook_deliveries.c.next_at >= "")
            count = connection.scalar(select(func.count()).select_from(webhook_deliveries).where(*mine)) or 0
            query = select(webhook_deliveries.c.session_id).where(*mine).distinct()
            blocked: set[str] = set()
            for some in split_parameters(sessions) if count else ():
                blocked.update(connection.scalars(query.where(webhook_deliveries.c.session_id.in_(some))))
            return count, blocked

        return await self.database.read(find)

    async def settle_webhook(
        self, hook: Webhook, owner: str, report: DeliveryReport, *, cursor: FeedCursor, at: str
    ) -> bool:
        """Record what became of deliveries, and that those up to `cursor` were read. False, and nothing is, if `owner`
        does not have the lease any more."""
        return await self.database.write(lambda connection: _settle(connection, hook, owner, report, cursor, at))

    # What was not delivered.

    async def list_deliveries(
        self, tenant: str, webhook_id: str, *, dead: bool | None, after: FeedCursor | None, limit: int
    ) -> list[Delivery]:
        """What a webhook has not delivered, in the feed's order: `dead`, waiting, or both. Raises WebhookNotFound."""
        query = _of(select(webhook_deliveries), webhook_deliveries, tenant, webhook_id).limit(limit)
        query = query.order_by(webhook_deliveries.c.position, webhook_deliveries.c.seq)
        if dead is not None:
            is_dead = webhook_deliveries.c.next_at.is_(None)
            query = query.where(is_dead if dead else ~is_dead)
        if after is not None:
            query = query.where(tuple_(after.position, after.seq) < _PLACE)

        def find(connection: Connection) -> list[Delivery]:
            _read(connection, tenant, webhook_id)
            return [_make_delivery(row) for row in connection.execute(query).mappings()]

        return await self.database.read(find)

    async def resend_delivery(
        self, tenant: str, webhook_id: str, cursor: FeedCursor, *, by: str | None, at: str
    ) -> Delivery:
        """Have a delivery tried at once, from its first attempt on; those of its session wait for it again.

        Raises WebhookNotFound, DeliveryNotFound.
        """

        def job(connection: Connection) -> Delivery:
            hook = _read(connection, tenant, webhook_id)
            found = connection.execute(_at(select(webhook_deliveries), hook, cursor)).mappings().one_or_none()
            if found is None:
                raise DeliveryNotFound(str(cursor))
            change = _at(update(webhook_deliveries), hook, cursor)
            connection.execute(change.values(attempts=0, next_at=at, updated_at=at))
            data = {**describe_webhook(hook), "cursor": str(cursor)}
            record_action(connection, tenant, AuditAction(type="webhook.resent", by=by), data, at)
            return msgspec.structs.replace(_make_delivery(found), attempts=0, next_at=at, updated_at=at)

        return await self.database.write(job)

    async def list_webhook_lags(self) -> list[WebhookLag]:
        """How far the webhooks of all tenants are behind, up to a thousand of them."""
        end = feed_positions.alias("end_of_feed")
        rows = webhook_deliveries.c
        mine = (rows.tenant == webhooks.c.tenant, rows.webhook_id == webhooks.c.id)
        count = select(func.count()).select_from(webhook_deliveries).where(*mine)
        query = (
            select(
                webhooks.c.tenant,
                webhooks.c.id,
                webhooks.c.position,
                end.c.position.label("last"),
                count.where(rows.next_at.is_not(None)).scalar_subquery().label("waiting"),
                count.where(rows.next_at.is_(None)).scalar_subquery().label("dead"),
            )
            .select_from(webhooks.outerjoin(end, (end.c.tenant == webhooks.c.tenant) & (end.c.name == "")))
            .order_by(webhooks.c.tenant, webhooks.c.id)
            .limit(_MAX_SHOWN)
        )
        found = await self.database.read(lambda connection: connection.execute(query).all(), seconds=self.read_seconds)
        return [
            WebhookLag(row.tenant, row.id, max(0, (row.last or 0) + 1 - row.position), row.waiting, row.dead)
            for row in found
        ]


def describe_webhook(hook: Webhook) -> dict[str, Any]:
    """What the audit log says of a webhook: of its address no path, which may be a secret."""
    scheme, _, rest = hook.url.partition("://")
    return {"webhook_id": hook.id, "url": f"{scheme}://{rest.partition('/')[0].partition('?')[0]}", "state": hook.state}


_PLACE = tuple_(webhook_deliveries.c.position, webhook_deliveries.c.seq)


def _keys(table: Any, tenant: str, webhook_id: str) -> tuple[Any, Any]:
    return table.c.tenant == tenant, (table.c.id if table is webhooks else table.c.webhook_id) == webhook_id


def _of(statement: Any, table: Any, tenant: str, webhook_id: str) -> Any:
    return statement.where(*_keys(table, tenant, webhook_id))


def _at(statement: Any, hook: Webhook, cursor: FeedCursor) -> Any:
    here = (webhook_deliveries.c.position == cursor.position, webhook_deliveries.c.seq == cursor.seq)
    return _of(statement, webhook_deliveries, hook.tenant, hook.id).where(*here)


def _found(row: RowMapping | None, webhook_id: str) -> RowMapping:
    if row is None:
        raise WebhookNotFound(webhook_id)
    return row


def _read(connection: Connection, tenant: str, webhook_id: str) -> Webhook:
    query = _of(select(webhooks), webhooks, tenant, webhook_id)
    return _make_webhook(_found(connection.execute(query).mappings().one_or_none(), webhook_id))


def _create(connection: Connection, made: Webhook, most: int, by: str | None) -> Webhook:
    add = build_insert_if_absent(webhooks, connection.dialect.name).values(_make_row(made))
    if not connection.execute(add).rowcount:
        found = _read(connection, made.tenant, made.id)
        if found.secrets[-1].request != made.secrets[0].request:
            raise IdempotencyMismatch(made.id)
        return found
    count = connection.scalar(select(func.count()).where(webhooks.c.tenant == made.tenant)) or 0
    if count > most:
        raise QuotaExceeded(f"the tenant has {most} webhooks, which is the most (SWARMKEEP_MAX_WEBHOOKS)")
    action = AuditAction(type="webhook.created", by=by)
    record_action(connection, made.tenant, action, describe_webhook(made), made.created_at)
    return made


def _list_due(connection: Connection, hook: Webhook, at: str, limit: int) -> list[Delivery]:
    rows = webhook_deliveries.c
    mine = _keys(webhook_deliveries, hook.tenant, hook.id)
    due = select(rows.session_id).where(*mine, rows.next_at <= at).order_by(rows.next_at).limit(limit)
    found: list[Delivery] = []
    for session in dict.fromkeys(connection.scalars(due)):
        chain = select(webhook_deliveries).where(*mine, rows.session_id == session, rows.next_at.is_not(None))
        for row in connection.execute(chain.order_by(rows.position, rows.seq).limit(limit)).mappings():
            one = _make_delivery(row)
            if one.next_at is not None and at < one.next_at < BEHIND:
                break
            found.append(one)
    return found


def _settle(
    connection: Connection, hook: Webhook, owner: str, report: DeliveryReport, cursor: FeedCursor, at: str
) -> bool:
    sent, kept = report.sent, report.kept
    change: dict[str, Any] = {"position": cursor.position, "seq": cursor.seq, "failures": report.failures}
    if kept:
        change["error"] = next((one.error for one in reversed(kept) if one.error), hook.error)
    if report.is_delivered and not report.failures:
        change |= {"error": "", "delivered_at": at}
    if report.is_gone:
        change |= {"state": "gone", "updated_at": at}
    still = _of(update(webhooks), webhooks, hook.tenant, hook.id).where(webhooks.c.lease_owner == owner)
    if not connection.execute(still.values(change)).rowcount:
        return False
    for one in sent:
        connection.execute(_at(delete(webhook_deliveries), hook, one.cursor))
    for one in kept:
        _keep(connection, hook, one, at)
    for session in dict.fromkeys(one.session_id for one in (*sent, *kept)):
        _promote(connection, hook, session, at)
    if report.is_delivered and hook.failures >= _AWAY_FAILURES:
        _hasten(connection, hook, at)
    old = to_timestamp(datetime.fromisoformat(at) - timedelta(days=KEPT_DAYS))
    dead = (webhook_deliveries.c.next_at.is_(None), webhook_deliveries.c.updated_at < old)
    connection.execute(_of(delete(webhook_deliveries), webhook_deliveries, hook.tenant, hook.id).where(*dead))
    if report.is_gone:
        gone = msgspec.structs.replace(hook, state="gone")
        record_action(connection, hook.tenant, AuditAction(type="webhook.disabled"), describe_webhook(gone), at)
    return True


def _keep(connection: Connection, hook: Webhook, one: Delivery, at: str) -> None:
    state = {"attempts": one.attempts, "next_at": one.next_at, "error": one.error, "updated_at": at}
    row = {"tenant": hook.tenant, "webhook_id": hook.id, "session_id": one.session_id, **state}
    row |= {"position": one.cursor.position, "seq": one.cursor.seq}
    add = build_insert(webhook_deliveries, connection.dialect.name).values(row)
    keys = [column.name for column in webhook_deliveries.primary_key]
    connection.execute(add.on_conflict_do_update(index_elements=keys, set_=state))


def _promote(connection: Connection, hook: Webhook, session: str, at: str) -> None:
    """Make a session's first delivery due that waited for one which is done."""
    rows = webhook_deliveries.c
    waiting = (*_keys(webhook_deliveries, hook.tenant, hook.id), rows.session_id == session, rows.next_at.is_not(None))
    first = select(rows.position, rows.seq, rows.next_at).where(*waiting).order_by(rows.position, rows.seq).limit(1)
    row = connection.execute(first).one_or_none()
    if row is not None and row.next_at == BEHIND:
        change = _at(update(webhook_deliveries), hook, FeedCursor(row.position, row.seq))
        connection.execute(change.values(next_at=at))


def _hasten(connection: Connection, hook: Webhook, at: str) -> None:
    """Try at once what waits for its time."""
    rows = webhook_deliveries.c
    waits = (rows.next_at > at, rows.next_at < BEHIND)
    connection.execute(
        _of(update(webhook_deliveries), webhook_deliveries, hook.tenant, hook.id).where(*waits).values(next_at=at)
    )


def _make_row(hook: Webhook, names: Collection[str] = ()) -> dict[str, Any]:
    row = {
        "tenant": hook.tenant,
        "id": hook.id,
        "url": hook.url,
        "wanted": encode_text(msgspec.to_builtins(hook.wanted)),
        "secrets": encode_text(msgspec.to_builtins(hook.secrets)),
        "state": hook.state,
        "created_at": hook.created_at,
        "updated_at": hook.updated_at,
        "position": hook.cursor.position,
        "seq": hook.cursor.seq,
        "failures": hook.failures,
        "error": hook.error,
        "delivered_at": hook.delivered_at,
    }
    return {name: value for name, value in row.items() if not names or name in names}


def _make_webhook(row: RowMapping) -> Webhook:
    return Webhook(
        tenant=row["tenant"],
        id=row["id"],
        url=row["url"],
        wanted=decode(row["wanted"], FeedFilter),
        secrets=decode(row["secrets"], tuple[Secret, ...]),
        state=row["state"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        cursor=FeedCursor(row["position"], row["seq"]),
        failures=row["failures"],
        error=row["error"],
        delivered_at=row["delivered_at"],
    )


def _make_delivery(row: RowMapping) -> Delivery:
    return Delivery(
        cursor=FeedCursor(row["position"], row["seq"]),
        session_id=row["session_id"],
        attempts=row["attempts"],
        next_at=row["next_at"],
        error=row["error"],
        updated_at=row["updated_at"],
    )
