"""Routes for webhooks: who is sent events, the secrets that sign them, and what could not be delivered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from litestar import Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import UNSET, Meta, UnsetType

from swarmkeep.http.auth import PERMISSION, Principal
from swarmkeep.http.bodies import Body, JsonResponse
from swarmkeep.http.errors import problem_specs
from swarmkeep.http.parameters import Cursor, Limit
from swarmkeep.runs.feed import END
from swarmkeep.runs.webhooks import DEFAULT_KEEP_SECONDS, Tested
from swarmkeep.store.feed import FeedFilter, parse_feed_cursor
from swarmkeep.store.webhooks import Delivery, Webhook

_NEEDED = {PERMISSION: ("webhooks",)}
_Name = Annotated[str, Meta(min_length=1, max_length=1_000)]
_Names = Annotated[list[_Name], Meta(max_length=50)]
_Labels = Annotated[dict[str, _Name], Meta(max_length=20)]


class NewWebhook(Body, frozen=True, kw_only=True):
    """A webhook to make."""

    url: str
    """The address that events are sent to: `https`, and public unless `SWARMKEEP_WEBHOOK_NETWORKS` names it."""
    types: _Names = msgspec.field(default_factory=list)
    """Only events of these types; by default all."""
    agents: _Names = msgspec.field(default_factory=list)
    """Only events recorded while one of these agents was active; by default all."""
    metadata: _Labels = msgspec.field(default_factory=dict)
    """Only events of sessions that have this metadata; by default all."""
    after: str = END
    """Begin behind this `cursor` of the feed; by default with what is recorded from now on."""


class WebhookChange(Body, frozen=True, kw_only=True):
    """What to change; what is absent stays."""

    url: str | UnsetType = UNSET
    """Another address."""
    types: _Names | UnsetType = UNSET
    """Other types; an empty list for all."""
    agents: _Names | UnsetType = UNSET
    """Other agents; an empty list for all."""
    metadata: _Labels | UnsetType = UNSET
    """Other metadata; an empty object for all."""
    state: Literal["enabled", "paused"] | UnsetType = UNSET
    """`paused` sends nothing, and `enabled` goes on where it was."""


class Rotation(Body, frozen=True, kw_only=True):
    """How secrets change over."""

    may_be_absent = True

    keep_seconds: Annotated[float, Meta(ge=0, le=30 * 86_400)] = DEFAULT_KEEP_SECONDS
    """How long the old secret signs as well; a day by default, and at most 30."""


class WebhookView(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook. Its secret is shown only when it is made."""

    id: str
    """Its id."""
    url: str
    """The address that events are sent to."""
    types: list[str]
    """The types of its events; empty for all."""
    agents: list[str]
    """The agents of its events; empty for all."""
    metadata: Mapping[str, str]
    """The metadata of their sessions; empty for all."""
    state: Literal["enabled", "paused", "gone"]
    """`gone`: the receiver answered 410, and nothing is sent until it is `enabled` again."""
    cursor: str
    """How far it has come in the feed."""
    failures: int
    """How many attempts in a row have failed."""
    error: str | None
    """The reason of the last failure; null after a delivery."""
    delivered_at: str | None
    """When something was delivered last, or null."""
    created_at: str
    """When it was made."""
    updated_at: str
    """When it was changed last."""


class WebhookWithSecret(WebhookView, frozen=True, kw_only=True):
    """A webhook as in lists, and its new secret."""

    secret: str
    """The key of its signatures, `whsec_…`, only this once."""


class WebhookList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[WebhookView]
    next_cursor: str | None


class DeliveryView(msgspec.Struct, frozen=True, kw_only=True):
    """An event that a webhook has come to and not delivered."""

    cursor: str
    """The event's place in the feed, by which it is sent again."""
    session_id: str
    """Its session."""
    seq: int
    """Its number there."""
    state: Literal["waiting", "dead"]
    """`waiting` is tried again, or waits for an earlier event of its session; `dead` was given up."""
    attempts: int
    """How often it was tried."""
    next_at: str | None
    """When it is tried again; null if it waits for another one, or is dead."""
    error: str | None
    """The reason why it failed, or null."""
    updated_at: str
    """When it was tried last."""


class DeliveryList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[DeliveryView]
    next_cursor: str | None


WebhookId = Annotated[str, PathParameter(description="The webhook's id.")]
Place = Annotated[str, PathParameter(description="The event's place in the feed, its `cursor`.")]


def view_webhook(hook: Webhook) -> WebhookView:
    return WebhookView(
        id=hook.id,
        url=hook.url,
        types=list(hook.wanted.types),
        agents=list(hook.wanted.agents),
        metadata=hook.wanted.metadata,
        state=hook.state,
        cursor=str(hook.cursor),
        failures=hook.failures,
        error=hook.error or None,
        delivered_at=hook.delivered_at,
        created_at=hook.created_at,
        updated_at=hook.updated_at,
    )


def view_delivery(one: Delivery) -> DeliveryView:
    return DeliveryView(
        cursor=str(one.cursor),
        session_id=one.session_id,
        seq=one.cursor.seq,
        state="dead" if one.next_at is None else "waiting",
        attempts=one.attempts,
        next_at=one.due_at,
        error=one.error or None,
        updated_at=one.updated_at,
    )


def view_with_secret(hook: Webhook, digest: str = "") -> WebhookWithSecret:
    """A webhook, with the secret that this request has made."""
    secret = next((one.text for one in hook.secrets if digest and one.request == digest), hook.secrets[0].text)
    return WebhookWithSecret(**msgspec.structs.asdict(view_webhook(hook)), secret=secret)


@get("/webhooks", summary="List the tenant's webhooks, oldest first", opt=_NEEDED, responses=problem_specs())
async def list_webhooks(principal: NamedDependency[Principal]) -> WebhookList:
    """All of them: `SWARMKEEP_MAX_WEBHOOKS` says how many there may be."""
    found = await principal.store.list_webhooks(principal.tenant)
    return WebhookList(data=[view_webhook(one) for one in found], next_cursor=None)


@post(
    "/webhooks",
    status_code=201,
    summary="Make a webhook",
    opt=_NEEDED,
    responses=problem_specs(
        "idempotency_mismatch", "too_large", "unsupported_media_type", "quota_exceeded", "overloaded"
    ),
)
async def create_webhook(
    data: JSONBody[NewWebhook], principal: NamedDependency[Principal]
) -> Response[WebhookWithSecret]:
    """Events of the feed that fit are sent there from now on. Keep the `secret`, which verifies their signatures."""
    request = await principal.read_idempotency()
    wanted = FeedFilter(types=data.types, agents=data.agents, metadata=data.metadata)
    made = await principal.engine.webhooks.create(
        principal.tenant, data.url, wanted, after=data.after, request=request, by=principal.name
    )
    return JsonResponse(view_with_secret(made, "" if request is None else request.digest), status_code=201)


@get("/webhooks/{webhook_id:str}", summary="Get a webhook", opt=_NEEDED, responses=problem_specs("webhook_not_found"))
async def get_webhook(webhook_id: WebhookId, principal: NamedDependency[Principal]) -> WebhookView:
    return view_webhook(await principal.store.read_webhook(principal.tenant, webhook_id))


@patch(
    "/webhooks/{webhook_id:str}",
    summary="Change, pause or enable a webhook",
    opt=_NEEDED,
    responses=problem_specs("webhook_not_found", "too_large", "unsupported_media_type", "overloaded"),
)
async def update_webhook(
    webhook_id: WebhookId, data: JSONBody[WebhookChange], principal: NamedDependency[Principal]
) -> WebhookView:
    """It counts for what is sent from now on, of what was recorded before, too. Once enabled again, what waits is tried
    at once."""
    given = {name: value for name in ("types", "agents", "metadata") if (value := getattr(data, name)) is not UNSET}
    changed = await principal.engine.webhooks.change(
        principal.tenant,
        webhook_id,
        url=None if data.url is UNSET else data.url,
        wanted=lambda before: msgspec.structs.replace(before, **given),
        state=None if data.state is UNSET else data.state,
        by=principal.name,
    )
    return view_webhook(changed)


@delete(
    "/webhooks/{webhook_id:str}",
    summary="Delete a webhook",
    opt=_NEEDED,
    responses=problem_specs("webhook_not_found", "overloaded"),
)
async def delete_webhook(webhook_id: WebhookId, principal: NamedDependency[Principal]) -> None:
    """Also what it has not delivered is forgotten; the events stay in their sessions."""
    await principal.engine.webhooks.delete(principal.tenant, webhook_id, by=principal.name)


@post(
    "/webhooks/{webhook_id:str}/rotate",
    status_code=200,
    summary="Make a new secret for a webhook",
    opt=_NEEDED,
    responses=problem_specs(
        "webhook_not_found", "idempotency_mismatch", "too_large", "unsupported_media_type", "overloaded"
    ),
)
async def rotate_webhook_secret(
    webhook_id: WebhookId, data: JSONBody[Rotation], principal: NamedDependency[Principal]
) -> WebhookWithSecret:
    """For `keep_seconds` messages have a signature by each of both, so that the receiver can change over."""
    request = await principal.read_idempotency()
    hook = await principal.engine.webhooks.rotate(
        principal.tenant, webhook_id, keep_seconds=data.keep_seconds, request=request, by=principal.name
    )
    return view_with_secret(hook, "" if request is None else request.digest)


@post(
    "/webhooks/{webhook_id:str}/test",
    status_code=200,
    summary="Send a test message to a webhook",
    opt=_NEEDED,
    responses=problem_specs("webhook_not_found"),
)
async def test_webhook(webhook_id: WebhookId, principal: NamedDependency[Principal]) -> Tested:
    """A signed message of the type `webhook.test`, at once and once; the answer says what became of it."""
    return await principal.engine.webhooks.test(principal.tenant, webhook_id)


@get(
    "/webhooks/{webhook_id:str}/deliveries",
    summary="List what a webhook has not delivered",
    opt=_NEEDED,
    responses=problem_specs("webhook_not_found"),
)
async def list_webhook_deliveries(
    webhook_id: WebhookId,
    principal: NamedDependency[Principal],
    state_: Annotated[
        Literal["waiting", "dead"] | None,
        QueryParameter(
            name="state", description="Only what is tried again (`waiting`), or what was given up (`dead`)."
        ),
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> DeliveryList:
    """In the order of the feed. What was delivered leaves no row. What was given up stays for 30 days."""
    found = await principal.store.list_deliveries(
        principal.tenant,
        webhook_id,
        dead=None if state_ is None else state_ == "dead",
        after=None if cursor is None else parse_feed_cursor(cursor, "/query/cursor"),
        limit=limit + 1,
    )
    following = str(found[limit - 1].cursor) if len(found) > limit else None
    return DeliveryList(data=[view_delivery(one) for one in found[:limit]], next_cursor=following)


@post(
    "/webhooks/{webhook_id:str}/deliveries/{place:str}/resend",
    status_code=200,
    summary="Try a delivery again at once",
    opt=_NEEDED,
    responses=problem_specs("webhook_not_found", "delivery_not_found", "overloaded"),
)
async def resend_webhook_delivery(
    webhook_id: WebhookId, place: Place, principal: NamedDependency[Principal]
) -> DeliveryView:
    """Also what was given up, with as many attempts as a new one. What its session has left waits for it; what came
    later in the session may be there already."""
    return view_delivery(await principal.engine.webhooks.resend(principal.tenant, webhook_id, place, by=principal.name))


ROUTES = [
    list_webhooks,
    create_webhook,
    get_webhook,
    update_webhook,
    delete_webhook,
    rotate_webhook_secret,
    test_webhook,
    list_webhook_deliveries,
    resend_webhook_delivery,
]
