"""Usage of model and tool calls, summed up in groups: query and answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from swarmkeep.events.errors import InvalidRequest

UsageGroup = Literal["day", "agent", "model", "session", "run"]
USAGE_GROUPS: tuple[UsageGroup, ...] = get_args(UsageGroup)


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of model calls by the server's current price table: computed when it is read, and never recorded.

    `unpriced_calls`: how many model calls are not included, because the table has no price for their model.
    """

    amount: float
    currency: str
    unpriced_calls: int = 0


class UsageRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The usage of the calls of one group. Tokens are as providers counted them; times are in milliseconds.

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
    """The share of one model's calls in a group's tokens: what a cost is made of."""

    model: str
    model_calls: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of calls, and how they are grouped; by nothing they are one sum. Days, both included, are
    `YYYY-MM-DD`.

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


# Compute the costs of models: a table of prices, and what calls come to by it. It is computed on reading, and never
# a fact.

# Below the smallest part that a single token comes to.
_DECIMALS = 9
_Amount = Annotated[float, Meta(ge=0, le=1e9)]


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a million tokens. What was read from a cache costs as much as other input if `cached_input` is not named."""

    input: _Amount
    output: _Amount
    cached_input: _Amount | None = None


_LONGEST_KEPT_NAME = 200


class PriceTable:
    """Prices by model: a model's own name comes before patterns (`gpt-4o*`), and of these the longest that fits."""

    def __init__(self, prices: dict[str, Price], currency: str) -> None:
        self.prices = prices
        self.currency = currency
        self._patterns = [name for name in prices if "*" in name or "?" in name]
        self._find = lru_cache(maxsize=1000)(self._look_up)

    def find(self, model: str) -> Price | None:
        # Callers may name any model, in as many letters as a request has: what is kept of them is short.
        return self._find(model) if len(model) <= _LONGEST_KEPT_NAME else self._look_up(model)

    def add_up(self, shares: Iterable[ModelShare]) -> Cost | None:
        """Return the cost of these calls; None where not one of them has a price."""
        amount, priced, unpriced = 0.0, 0, 0
        for share in shares:
            price = self.find(share.model)
            if price is None:
                unpriced += share.model_calls
            else:
                priced += share.model_calls
                amount += _compute_cost(share, price)
        if not priced:
            return None
        return Cost(amount=round(amount, _DECIMALS), currency=self.currency, unpriced_calls=unpriced)

    def price_rows(self, page: UsagePage) -> list[UsageRow]:
        """The rows of a page that has shares, each with what its calls cost where that is known."""
        pairs = zip(page.rows, map(self.add_up, page.shares), strict=True)
        return [row if cost is None else msgspec.structs.replace(row, cost=cost) for row, cost in pairs]

    def _look_up(self, model: str) -> Price | None:
        if model in self.prices:
            return self.prices[model]
        fitting = [pattern for pattern in self._patterns if _fits(pattern, model)]
        return self.prices[max(fitting, key=len)] if fitting else None


def _fits(pattern: str, model: str) -> bool:
    """Tell if it is `model`, with `*` for any text and `?` for any character, as the page has it.

    What is between two stars is put as early as it can be, and never moved: however many stars there are, it takes no
    longer than the one text times the other.
    """
    first, *others = pattern.split("*")
    if not others:
        return len(first) == len(model) and _stands_at(first, model, 0)
    *middle, last = others
    at, end = len(first), len(model) - len(last)
    if at > end or not (_stands_at(first, model, 0) and _stands_at(last, model, end)):
        return False
    for piece in middle:
        while not _stands_at(piece, model, at):
            at += 1
            if at + len(piece) > end:
                return False
        at += len(piece)
    return at <= end


def _stands_at(piece: str, model: str, at: int) -> bool:
    """`piece` has no stars."""
    place = model[at : at + len(piece)]
    return len(place) == len(piece) and all(one in ("?", other) for one, other in zip(piece, place, strict=True))


def _compute_cost(share: ModelShare, price: Price) -> float:
    cached = min(share.cached_tokens, share.prompt_tokens)
    for_cached = price.input if price.cached_input is None else price.cached_input
    fresh = share.prompt_tokens - cached
    return (fresh * price.input + cached * for_cached + share.completion_tokens * price.output) / 1_000_000
