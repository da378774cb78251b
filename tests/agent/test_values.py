from __future__ import annotations

import copy
import json
import math
import sys
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmkeep.agent import NotJsonError, to_plain_json
from swarmkeep.agent.values import MAX_DEPTH

TEXT = st.text(st.characters(exclude_categories=()))  # every code point: NUL and lone surrogates too
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=20)


class Colour(str, Enum):  # noqa: UP042 - str() of it is "Colour.RED"
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Loud(str):
    def __str__(self) -> str:
        return self.upper()


Point = namedtuple("Point", "x y")


def make_containers(value: Any) -> list[int]:
    if isinstance(value, dict):
        return [id(value), *(i for item in value.values() for i in make_containers(item))]
    if isinstance(value, list):
        return [id(value), *(i for item in value for i in make_containers(item))]
    return []


def read_refusal(value: object, label: str = "context_variables") -> NotJsonError:
    with pytest.raises(NotJsonError) as refused:
        to_plain_json(value, label)
    return refused.value


@given(JSON)
def test_json_values_copied_equal(value: Any) -> None:
    copied = to_plain_json(value)
    assert copied == value
    assert json.dumps(copied) == json.dumps(value)  # also tells 1 from True, and -0.0 from 0.0
    assert not set(make_containers(copied)) & set(make_containers(value))


@given(JSON, st.lists(st.integers(0, 3) | st.sampled_from(["key", "a key", "ключ", "\ud800", ""]), max_size=8))
def test_refusal_names_path_to_value(beside: Any, path: list[int | str]) -> None:
    value: Any = {1, 2}
    for key in reversed(path):
        value = [beside] * key + [value] if isinstance(key, int) else {"first": beside, key: value}
    expected = "value" + "".join(
        f"[{key}]" if isinstance(key, int) else f".{key}" if key.isidentifier() else f"[{json.dumps(key)}]"
        for key in path
    )
    refused = read_refusal(value, "value")
    assert (refused.path, refused.type_name) == (expected, "set")
    assert str(refused) == f"{expected} is of type set, which JSON cannot hold"


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ((1, (2, "x")), [1, [2, "x"]]),
        (Point(1, 2), [1, 2]),
        (OrderedDict(a=1), {"a": 1}),
        (defaultdict(str, {"a": "b"}), {"a": "b"}),
        (Colour.RED, "red"),
        ({Colour.RED: Level.HIGH}, {"red": 3}),
        (Loud("quiet"), "quiet"),
        (10**4000, 10**4000),
        (-(2**63) - 1, -(2**63) - 1),
        ("\x00\ud800", "\x00\ud800"),
    ],
)
def test_subclasses_and_tuples_become_plain(value: object, plain: object) -> None:
    copied = to_plain_json(value)
    assert copied == plain
    assert type(copied) is type(plain)
    if isinstance(copied, dict):
        assert {type(key) for key in copied} == {str}


def test_the_sign_of_zero_is_kept() -> None:
    zero = to_plain_json({"zero": -0.0})
    assert isinstance(zero, dict)
    assert math.copysign(1, zero["zero"]) == -1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "path", "type_name"),
    [
        ({"cart": [1, 2, {"when": datetime(2024, 1, 1)}]}, "context_variables.cart[2].when", "datetime"),
        ({"price": Decimal("1.5")}, "context_variables.price", "Decimal"),
        ({"blob": b"x"}, "context_variables.blob", "bytes"),
        ({"f": len}, "context_variables.f", "builtin_function_or_method"),
        (object(), "context_variables", "object"),
        (int, "context_variables", "type"),
    ],
)
def test_other_types_are_refused_by_name(value: object, path: str, type_name: str) -> None:
    refused = read_refusal(value)
    assert (refused.path, refused.type_name) == (path, type_name)
    assert path in str(refused)
    assert type_name in str(refused)


@pytest.mark.parametrize(("number", "word"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_nan_and_infinite_floats_refused(number: float, word: str) -> None:
    refused = read_refusal({"rates": [0.5, number]})
    assert str(refused) == f"context_variables.rates[1] is the float {word}, which JSON cannot hold"
    assert refused.type_name == "float"


@pytest.mark.parametrize("key", [1, None, True, (1, 2), 1.5])
def test_non_string_key_refused(key: object) -> None:
    refused = read_refusal({"by_id": {key: "x"}})
    assert refused.path == "context_variables.by_id"
    assert f"has a key of type {type(key).__name__}" in str(refused)


def test_overlong_integer_refused() -> None:
    refused = read_refusal({"n": 10 ** (sys.get_int_max_str_digits() + 1)})
    assert str(refused) == "context_variables.n is an integer with too many digits to be written"


def make_nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_nesting_accepted_up_to_limit() -> None:
    deepest = make_nested(MAX_DEPTH)
    assert to_plain_json(deepest) == deepest
    assert "nested more than 200 levels deep" in str(read_refusal(make_nested(MAX_DEPTH + 1)))
    assert "nested more than 200 levels deep" in str(read_refusal(make_nested(100_000)))


def test_self_containing_container_refused() -> None:
    inner: dict[str, Any] = {"name": "x"}
    inner["me"] = [inner]
    refused = read_refusal({"user": inner})
    assert refused.path == "context_variables.user.me[0]"
    assert str(refused) == "context_variables.user.me[0] contains itself, which JSON cannot hold"


def test_shared_container_is_no_cycle() -> None:
    shared = ["x"]
    copied = to_plain_json({"a": shared, "b": shared})
    assert copied == {"a": ["x"], "b": ["x"]}
    assert isinstance(copied, dict)
    assert copied["a"] is not copied["b"]


def test_refused_value_is_unchanged() -> None:
    value: dict[str, Any] = {"a": [1, {"b": object}]}
    before = copy.deepcopy(value)
    read_refusal(value)
    assert value == before


def test_models_and_dataclasses_are_no_json() -> None:
    @dataclass
    class Order:
        id: int

    assert read_refusal({"order": Order(1)}).type_name == "Order"
