"""Prices: which one holds for a model, and what calls come to by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmkeep.events.records import Cost, ModelShare, Price, PriceTable
from swarmkeep.history.compare import PricesError, read_prices
from tests.support.growth import find_texts

TABLE = """{
  "gpt-4o*": {"input": 2.5, "cached_input": 1.25, "output": 10},
  "gpt-4o-mini*": {"input": 0.15, "output": 0.6},
  "gpt-4o-mini-free": {"input": 0, "output": 0}
}"""


def read_table() -> PriceTable:
    table = read_prices(TABLE, "EUR")
    assert table is not None
    return table


def make_share(model: str, *, calls: int = 1, prompt: int = 0, cached: int = 0, completion: int = 0) -> ModelShare:
    return ModelShare(
        model=model, model_calls=calls, prompt_tokens=prompt, cached_tokens=cached, completion_tokens=completion
    )


def test_exact_name_precedes_longest_pattern() -> None:
    table = read_table()
    found = {
        model: None if (price := table.find(model)) is None else price.output
        for model in ("gpt-4o", "gpt-4o-2024-08-06", "gpt-4o-mini-2024", "gpt-4o-mini-free", "GPT-4o", "")
    }
    assert found == {
        "gpt-4o": 10,
        "gpt-4o-2024-08-06": 10,
        "gpt-4o-mini-2024": 0.6,
        "gpt-4o-mini-free": 0,
        "GPT-4o": None,
        "": None,
    }


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("a*a?b", ["aaxb", "axxaxb"], ["aab", "axb", "aaxbb"]),
        ("*mini*2024*", ["mini2024", "a-mini-b-2024-x"], ["2024mini", "mini-202"]),
        ("?*.v1", ["a.v1", "ab.v1"], [".v1", "axv1", "a.v1\n"]),
        # No number of stars makes it try over and over.
        ("a*" * 30 + "b", ["a" * 30 + "b"], ["a" * 1000, "a" * 29 + "b"]),
    ],
)
def test_patterns_match_any_characters(pattern: str, fitting: list[str], others: list[str]) -> None:
    table = PriceTable({pattern: Price(input=1, output=1)}, "EUR")
    assert [model for model in (*fitting, *others) if table.find(model) is not None] == fitting


def test_of_long_names_nothing_is_kept() -> None:
    table = PriceTable({"m*": Price(input=1, output=1)}, "EUR")
    names = [f"m-{number}{'x' * 1000}" for number in range(5)]
    assert [table.find(name) for name in names] == [table.prices["m*"]] * 5
    assert find_texts(table, "m-") == set()


def test_priced_calls_are_added_up() -> None:
    table = read_table()
    shares = [
        make_share("gpt-4o", prompt=1_000_000, cached=400_000, completion=100_000),
        make_share("gpt-4o-mini", prompt=1_000_000, cached=1_000_000),
        make_share("another", calls=3, prompt=5),
    ]
    assert table.add_up(shares) == Cost(amount=1.5 + 0.5 + 1.0 + 0.15, currency="EUR", unpriced_calls=3)
    assert table.add_up(shares[2:]) is None
    assert table.add_up([make_share("gpt-4o-mini", prompt=1)]) == Cost(amount=0.00000015, currency="EUR")
    # More from the cache than there was: a provider that counts oddly makes nothing negative.
    assert table.add_up([make_share("gpt-4o", prompt=1_000_000, cached=2_000_000)]) == Cost(amount=1.25, currency="EUR")


def test_a_table_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "prices.json").write_text(TABLE)
    (tmp_path / "prices.toml").write_text('["gpt-4o*"]\ninput = 2.5\ncached_input = 1.25\noutput = 10\n')
    for name in ("prices.json", "prices.toml"):
        table = read_prices(str(tmp_path / name), "USD")
        assert table is not None
        assert table.find("gpt-4o") == read_table().find("gpt-4o")
    assert read_prices(None, "USD") is None


@pytest.mark.parametrize(
    "source",
    [
        "no-such-file.json",
        "{",
        '{"m": 3}',
        '{"m": {"input": 1}}',
        '{"m": {"input": -1, "output": 1}}',
        '{"m": {"input": 1, "output": "2"}}',
        '{"m": {"input": 1, "output": 2, "cached": 1}}',
    ],
)
def test_what_is_no_table_is_refused(source: str) -> None:
    with pytest.raises(PricesError, match=r"SWARMKEEP_PRICES.*(`input` and `output`|cannot be read)"):
        read_prices(source, "USD")
