"""Webhooks, and what they could not deliver."""

from __future__ import annotations

import msgspec

from swarmkeep_client.models import Json


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """An address that events are sent to. `types`, `agents` and `metadata` choose some; all, where they are empty.

    `state` is `enabled`, `paused`, or `gone` after an answer 410. `cursor` is how far it has come in the feed.
    `failures` is the number of attempts in a row that failed, `error` the reason of the last.
    """

    id: str
    url: str
    types: list[str]
    agents: list[str]
    metadata: Json
    state: str
    cursor: str
    failures: int
    created_at: str
    updated_at: str
    error: str | None = None
    delivered_at: str | None = None


class WebhookWithSecret(Webhook, frozen=True, kw_only=True):
    """A webhook with a new `secret`, the key of its signatures, which is shown only once."""

    secret: str


class WebhookDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """An event that a webhook has not delivered: `waiting` to be tried again, at `next_at`, or `dead`: given up."""

    cursor: str
    session_id: str
    seq: int
    state: str
    attempts: int
    updated_at: str
    next_at: str | None = None
    error: str | None = None


class WebhookTest(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a test message."""

    delivered: bool
    duration_ms: float
    status: int | None = None
    error: str | None = None
