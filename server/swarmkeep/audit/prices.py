"""A price table as somebody wrote it: JSON in a setting, or a file."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from swarmkeep.domain.costs.prices import Price, PriceTable


class PricesError(ValueError):
    """The price table cannot be used as it is; the sentence says why."""


_FORM = "each model has `input` and `output`, and may have `cached_input`, per million tokens"


def read_prices(source: str | None, currency: str) -> PriceTable | None:
    """The table that a setting names, as JSON or as a file (`.json`, `.toml`). Raises PricesError."""
    if source is None or not source.strip():
        return None
    text = source.strip()
    is_text = text.startswith("{")
    try:
        raw = text.encode() if is_text else Path(text).read_bytes()
        document = tomllib.loads(raw.decode()) if not is_text and text.endswith(".toml") else msgspec.json.decode(raw)
        prices = msgspec.convert(document, dict[str, Price])
    except OSError as error:
        raise PricesError(f"SWARMKEEP_PRICES: {text} cannot be read: {error.strerror}") from None
    except (ValueError, msgspec.MsgspecError) as error:
        place = "it" if is_text else text
        raise PricesError(f"SWARMKEEP_PRICES: {place} is not a table of prices: {error}; {_FORM}") from None
    return PriceTable(prices, currency)
