"""Usage of model and tool calls, summed up in groups: query and answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

import msgspec

from swarmkeep.domain.errors import InvalidRequest

UsageGroup = Literal["day", "agent", "model", "session", "run"]
USAGE_GROUPS: tuple[UsageGroup, ...] = get_args(UsageGroup)


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What model calls cost by the server's current price table: computed when it is read, and never recorded.

    `unpriced_calls`: how many model calls are not included, because the table has no price for their model.
    """

    amount: float
    currency: str
    unpriced_calls: int = 0


class UsageRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the calls of one group took. Tokens are as providers counted them; times are in milliseconds.

    `day` (UTC), `agent`, `model`, `session_id` and `run_id` name the group, as far as it was asked for. Tool calls
    belong to no `model` (null), and calls outside a run to no `run_id`. `cost` is present if a price is known.
    """

    day: str | msgspec.UnsetType = msgspec.UNSET
    agent: str | msgspec.UnsetType = msgspec.UNSET
    model: str | msgspec.UnsetType | None = msgspec.UNSET
    session_id: str | msgspec.UnsetType = msgspec.UNSET
    run_id: str | msgspec.UnsetType | None = msgspec.UNSET
    model_calls: int
    tool_calls: int
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    model_ms: float
    tool_ms: float
    cost: Cost | msgspec.UnsetType = msgspec.UNSET


class ModelShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one model's calls took of a group's tokens: what a cost is made of."""

    model: str
    model_calls: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which calls, and by what they are grouped; by nothing they are one sum. Days, both included, are `YYYY-MM-DD`.

    `with_shares` asks for the part of each model, too.
    """

    by: tuple[UsageGroup, ...] = ()
    first_day: str | None = None
    last_day: str | None = None
    only: Mapping[UsageGroup, str] = {}
    limit: int = 50
    cursor: str | None = None
    with_shares: bool = False


class UsagePage(msgspec.Struct, frozen=True):
    """`shares`: of each row the parts of its models, where they were asked for."""

    rows: list[UsageRow]
    next_cursor: str | None
    shares: list[list[ModelShare]] = []


def parse_usage_groups(names: Iterable[str], pointer: str = "/query/group_by") -> tuple[UsageGroup, ...]:
    """The groups that are named, each once. Raises InvalidRequest for another word."""
    wanted = tuple(dict.fromkeys(names))
    for name in wanted:
        if name not in USAGE_GROUPS:
            raise InvalidRequest(f"usage cannot be grouped by {name!r}; choose from {', '.join(USAGE_GROUPS)}", pointer)
    return tuple(next(group for group in USAGE_GROUPS if group == name) for name in wanted)
