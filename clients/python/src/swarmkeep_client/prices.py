"""The cost of model calls, and the prices that it is computed by."""

from __future__ import annotations

import msgspec


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of model calls by the server's current prices. `unpriced_calls` are left out."""

    amount: float
    currency: str
    unpriced_calls: int = 0


class ModelPrice(msgspec.Struct, frozen=True, kw_only=True):
    """The price of a million tokens. `model` is a name, or a pattern (`gpt-4o*`)."""

    model: str
    input: float
    cached_input: float
    output: float


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """A model's own name comes before patterns, of these the longest that fits. Without a table, `data` is empty."""

    currency: str | None = None
    data: list[ModelPrice] = []
