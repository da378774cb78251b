"""Reads and describes recorded facts for a replay."""

from __future__ import annotations

from msgspec import UNSET

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import ContextUpdated, GuardrailTripped, MessageAdded, RequestRecord


def is_reply(event: RecordedEvent) -> bool:
    return isinstance(event.fact, MessageAdded) and event.fact.completion is not None


def describe_refusal(fact: GuardrailTripped) -> dict[str, object]:
    return {"stage": fact.stage, "refused": True, "name": fact.name, "message": fact.message}


def get_request_record(event: RecordedEvent) -> RequestRecord | None:
    """The request that a model was sent, of an event that is its reply."""
    fact = event.fact
    return fact.completion.request if isinstance(fact, MessageAdded) and fact.completion is not None else None


def describe_change(fact: ContextUpdated) -> dict[str, object]:
    return {"patch": fact.patch, "nulls": [] if fact.nulls is UNSET else list(fact.nulls)}
