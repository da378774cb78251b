"""`swarmkeep webhooks`: who is sent events, in the database itself: a user who can write to it needs no key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
import typer

from swarmkeep.cli.configure import load_settings
from swarmkeep.cli.opening import run_on_store
from swarmkeep.cli.options import (
    Commands,
    DatabaseUrl,
    EventAgents,
    EventTypes,
    JsonOutput,
    LabelFilter,
    parse_labels,
    refuse_empty,
)
from swarmkeep.cli.terminal import put, put_json, put_rows, say

if TYPE_CHECKING:
    from swarmkeep.runs.webhooks import Webhooks
    from swarmkeep.store.opening import SqlStore
    from swarmkeep.store.webhooks import Delivery, Webhook

T = TypeVar("T")

commands = Commands()
group = commands.add_group(
    "webhooks",
    "Send events to addresses, signed, at least once and in their order. Running servers deliver; these commands "
    "change the database that they share.",
)

Tenant = Annotated[
    str,
    typer.Option("--tenant", metavar="NAME", callback=refuse_empty, help="The tenant whose webhooks are meant."),
]
Id = Annotated[str, typer.Argument(metavar="ID", help="The webhook's id, as in `webhooks list`.")]
Url = Annotated[str, typer.Argument(metavar="URL", help="The address that events are sent to.")]


@group.add("""
    swarmkeep webhooks create https://example.com/hook --type run.completed --type run.failed
    swarmkeep webhooks create https://example.com/hook --metadata customer=c1 --json
""")
def create(
    url: Url,
    types: EventTypes = None,
    agents: EventAgents = None,
    metadata: LabelFilter = None,
    after: Annotated[
        str, typer.Option("--after", metavar="CURSOR", help="Begin behind this place in the feed; `1-0`: with all.")
    ] = "end",
    tenant: Tenant = "default",
    as_json: JsonOutput = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Make a webhook and print the secret of its signatures, once."""
    from swarmkeep.store.feed import FeedFilter

    wanted = FeedFilter(types=tuple(types or ()), agents=tuple(agents or ()), metadata=parse_labels(metadata))
    made = _use(database_url, lambda hooks, _: hooks.create(tenant, url, wanted, after=after))
    _put_secret(made, as_json)


@group.add(
    """
    swarmkeep webhooks list
    swarmkeep webhooks list --tenant acme --json
    """,
    name="list",
)
def list_webhooks(tenant: Tenant = "default", as_json: JsonOutput = False, database_url: DatabaseUrl = None) -> None:
    """List a tenant's webhooks, and how they do. Secrets are not shown."""
    found = _use(database_url, lambda _, store: store.list_webhooks(tenant), read_only=True)
    if as_json:
        put_json([_to_dict(one) for one in found])
        return
    rows = [(one.id, one.state, one.url, one.delivered_at or "never", one.error or "none") for one in found]
    put_rows(("ID", "STATE", "URL", "DELIVERED", "ERROR"), rows, none="there are no webhooks")


@group.add("""
    swarmkeep webhooks update wh_0123456789abcdef --url https://example.com/new
    swarmkeep webhooks update wh_0123456789abcdef --state paused
""")
def update(
    webhook_id: Id,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="Another address.")] = None,
    state: Annotated[
        Literal["enabled", "paused"] | None,
        typer.Option("--state", help="`paused` sends nothing; `enabled` goes on where it was."),
    ] = None,
    tenant: Tenant = "default",
    as_json: JsonOutput = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Change a webhook's address, pause it, or let it go on."""
    changed = _use(database_url, lambda hooks, _: hooks.change(tenant, webhook_id, url=url, state=state, by=None))
    if as_json:
        put_json(_to_dict(changed))
    say(f"webhook {changed.id} is {changed.state}")


@group.add("""
    swarmkeep webhooks delete wh_0123456789abcdef
""")
def delete(webhook_id: Id, tenant: Tenant = "default", database_url: DatabaseUrl = None) -> None:
    """Delete a webhook, with what it has not delivered."""
    _use(database_url, lambda hooks, _: hooks.delete(tenant, webhook_id, by=None))
    say(f"webhook {webhook_id} is deleted")


@group.add("""
    swarmkeep webhooks rotate wh_0123456789abcdef --keep 3600
""")
def rotate(
    webhook_id: Id,
    keep: Annotated[
        float, typer.Option("--keep", min=0, max=30 * 86_400, metavar="SECONDS", help="How long the old one signs too.")
    ] = 86_400,
    tenant: Tenant = "default",
    as_json: JsonOutput = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Make a new secret and print it, once. For a while messages are signed with both."""
    hook = _use(
        database_url, lambda hooks, _: hooks.rotate(tenant, webhook_id, keep_seconds=keep, request=None, by=None)
    )
    _put_secret(hook, as_json)


@group.add(
    """
    swarmkeep webhooks test wh_0123456789abcdef
    """,
    name="test",
)
def send_test(
    webhook_id: Id, tenant: Tenant = "default", as_json: JsonOutput = False, database_url: DatabaseUrl = None
) -> None:
    """Send a signed test message from here; exit code 1 if it is not taken."""
    done = _use(database_url, lambda hooks, _: hooks.test(tenant, webhook_id), read_only=True)
    if as_json:
        put_json(done)
    say(f"delivered in {done.duration_ms:.0f} ms" if done.delivered else f"not delivered: {done.error}")
    if not done.delivered:
        raise typer.Exit(1)


@group.add("""
    swarmkeep webhooks deliveries wh_0123456789abcdef --dead
""")
def deliveries(
    webhook_id: Id,
    dead: Annotated[bool, typer.Option("--dead", help="Only those that were given up.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="How many to list at most.")] = 200,
    tenant: Tenant = "default",
    as_json: JsonOutput = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List the events that a webhook has not delivered: those that are tried again, and those that were given up."""
    found = _use(
        database_url,
        lambda _, store: store.list_deliveries(tenant, webhook_id, dead=dead or None, after=None, limit=limit),
        read_only=True,
    )
    shown = [_describe(one) for one in found]
    if as_json:
        put_json(shown)
        return
    rows = [tuple(map(str, one.values())) for one in shown]
    put_rows(("CURSOR", "SESSION", "STATE", "ATTEMPTS", "NEXT", "ERROR"), rows, none="everything was delivered")


@group.add("""
    swarmkeep webhooks resend wh_0123456789abcdef 12-3
    swarmkeep webhooks resend wh_0123456789abcdef --all
""")
def resend(
    webhook_id: Id,
    cursor: Annotated[str | None, typer.Argument(metavar="CURSOR", help="The event's place in the feed.")] = None,
    all_dead: Annotated[bool, typer.Option("--all", help="All that were given up.")] = False,
    tenant: Tenant = "default",
    database_url: DatabaseUrl = None,
) -> None:
    """Have events tried again at once, with as many attempts as new ones."""
    if (cursor is None) is not all_dead:
        raise typer.BadParameter("name one CURSOR, or use --all", param_hint="CURSOR")

    async def work(hooks: Webhooks, store: SqlStore) -> int:
        places = [cursor] if cursor is not None else []
        if all_dead:
            dead = await store.list_deliveries(tenant, webhook_id, dead=True, after=None, limit=10_000)
            places = [str(one.cursor) for one in dead]
        for place in places:
            await hooks.resend(tenant, webhook_id, place, by=None)
        return len(places)

    say(f"events to be sent again: {_use(database_url, work)}")


def _put_secret(hook: Webhook, as_json: bool) -> None:
    secret = hook.secrets[0].text
    if as_json:
        put_json({"secret": secret, **_to_dict(hook)})
    else:
        put(secret)
    say(f"webhook {hook.id} of tenant {hook.tenant}; the secret is not shown again")


def _to_dict(hook: Webhook) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(hook)
    del found["secrets"]
    return {**found, **found.pop("wanted"), "cursor": str(hook.cursor)}


def _describe(one: Delivery) -> dict[str, Any]:
    return {
        "cursor": str(one.cursor),
        "session_id": one.session_id,
        "state": "dead" if one.next_at is None else "waiting",
        "attempts": one.attempts,
        "next_at": one.due_at,
        "error": one.error,
    }


def _use(database_url: str | None, work: Callable[[Webhooks, SqlStore], Awaitable[T]], *, read_only: bool = False) -> T:
    """Do something with the webhooks in the database that is meant, within the limits of the settings."""
    from swarmkeep.runs.feed import EventFeed
    from swarmkeep.runs.limits import Limits
    from swarmkeep.runs.webhooks import Webhooks

    settings = load_settings(database_url=database_url)
    limits = msgspec.convert(settings, Limits, from_attributes=True)

    async def use(store: SqlStore) -> T:
        feed = EventFeed(store, poll_seconds=limits.poll_seconds, page_bytes=limits.page_bytes)
        hooks = Webhooks(store, feed, limits)
        try:
            return await work(hooks, store)
        finally:
            await hooks.close()

    return run_on_store(settings.database_url, use, read_only=read_only)
