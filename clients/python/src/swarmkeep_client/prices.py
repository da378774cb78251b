"""What model calls cost, and the prices that it is computed by."""

from __future__ import annotations

import msgspec


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What model calls cost by the server's prices of now. `unpriced_calls` are not in it: their model has no price."""

    amount: float
    currency: str
    unpriced_calls: int = 0


class ModelPrice(msgspec.Struct, frozen=True, kw_only=True):
    """What a million tokens cost. `model` is a name, or a pattern (`gpt-4o*`)."""

    model: str
    input: float
    cached_input: float
    output: float


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """A model's own name comes before patterns, of these the longest that fits. Without a table, `data` is empty."""

    currency: str | None = None
    data: list[ModelPrice] = []
