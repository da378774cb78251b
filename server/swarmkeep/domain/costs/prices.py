"""What models cost: a table of prices, and what calls come to by it. It is computed on reading, and never a fact."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec import Meta

from swarmkeep.domain.usage import Cost, ModelShare, UsagePage, UsageRow

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
        """What these calls cost; None where not one of them has a price."""
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
    """Whether it is `model` where `*` is any text and `?` any character, as the page has it.

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
