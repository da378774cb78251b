"""Merge patches, and the nulls they cannot say."""

from __future__ import annotations

import copy
import string
import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swarmkeep.events.codec import Json
from swarmkeep.events.patch import MAX_POINTER_PARTS, apply, diff, merge
from tests.support.hypothesis_profiles import examples
from tests.support.logs import json_objects, json_values
from tests.support.rules import is_same


# The table of RFC 7396's appendix.
@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_is_the_rfc_s(target: Any, patch: Any, expected: Any) -> None:
    assert merge(target, patch) == expected


@given(target=json_values(), patch=json_values())
def test_merge_is_pure_and_idempotent(target: Any, patch: Any) -> None:
    before = copy.deepcopy((target, patch))
    merged = merge(target, patch)
    assert is_same([target, patch], list(before))
    assert is_same(merge(merged, patch), merged)


@pytest.mark.parametrize(
    ("before", "after", "patch", "nulls"),
    [
        ({}, {}, {}, ()),
        ({"a": 1}, {"a": 1}, {}, ()),
        ({}, {"a": 1}, {"a": 1}, ()),
        ({"a": 1}, {}, {"a": None}, ()),
        ({"a": None}, {}, {"a": None}, ()),
        ({}, {"a": None}, {}, ("/a",)),
        ({"a": 1}, {"a": None}, {}, ("/a",)),
        ({"a": None}, {"a": None}, {}, ()),
        ({"a": None}, {"a": 1}, {"a": 1}, ()),
        ({"a": {"b": 1, "c": 1}}, {"a": {"b": 2, "c": 1}}, {"a": {"b": 2}}, ()),
        ({"a": {"b": 1}}, {"a": {}}, {"a": {"b": None}}, ()),
        ({"a": {"b": 1}}, {"a": {"b": None}}, {"a": {}}, ("/a/b",)),
        ({"a": 1}, {"a": {"b": None}}, {"a": {}}, ("/a/b",)),
        ({"a": 1}, {"a": {}}, {"a": {}}, ()),
        ({}, {"a": {}}, {"a": {}}, ()),
        ({"a": {}}, {"a": {}}, {}, ()),
        ({"a": [1]}, {"a": [1, None, {"b": None}]}, {"a": [1, None, {"b": None}]}, ()),
        ({}, {"": {"~": {"/": None}}}, {"": {"~": {}}}, ("//~0/~1",)),
    ],
)  # fmt: skip
def test_patch_is_minimal(before: Json, after: Json, patch: Json, nulls: tuple[str, ...]) -> None:
    assert diff(before, after) == (patch, nulls)
    assert is_same(apply(before, patch, nulls), after)


@pytest.mark.parametrize(
    ("old", "new"),
    [(1, 1.0), (1, True), (0, False), (0.0, -0.0), ("1", 1), ([], {}), ({}, []), (None, 0), ([1], [1.0]), ([{}], [[]])],
)
def test_types_count(old: Any, new: Any) -> None:
    for before, after in (({"a": old}, {"a": new}), ({"a": new}, {"a": old})):
        assert diff(before, after) != ({}, ())
        assert is_same(apply(before, *diff(before, after)), after)


@given(before=json_objects(), after=json_objects())
@example({"a": {"b": {"c": 1}}}, {"a": {"b": {"c": None}}})
@example({"a~1": {"/": 1}}, {"a/": {"~1": None}})
@example({"\ud800": 1}, {"\ud800": 1.0})
@settings(max_examples=examples(200))
def test_applied_patch_gives_the_target(before: Json, after: Json) -> None:
    copies = copy.deepcopy((before, after))
    patch, nulls = diff(before, after)
    assert is_same(apply(before, patch, nulls), after)
    assert is_same([before, after], list(copies))


@given(before=json_objects(20), data=st.data())
@settings(max_examples=examples(80))
def test_patch_size_follows_the_change(before: Json, data: st.DataObject) -> None:
    assert diff(before, copy.deepcopy(before)) == ({}, ())
    key = data.draw(st.sampled_from([*before, "new"]))
    after = {**before, key: data.draw(json_values(3))}
    patch, nulls = diff(before, after)
    assert patch.keys() <= {key}
    assert all(pointer.split("/")[1] == key.replace("~", "~0").replace("/", "~1") for pointer in nulls)


@given(
    before=json_objects(),
    nulls=st.lists(st.text(st.sampled_from("/~01a"), max_size=6) | st.text(string.printable, max_size=4), max_size=4),
)
@settings(max_examples=examples(80))
def test_any_pointer_list_applies(before: Json, nulls: list[str]) -> None:
    copied = copy.deepcopy(before)
    apply(before, {}, tuple(nulls))
    assert is_same(before, copied)


def test_root_or_empty_pointer_changes_nothing() -> None:
    assert apply({"a": 1}, {}, ("", "a")) == {"a": 1}
    assert apply({"a": 1}, {}, ("/",)) == {"a": 1, "": None}
    assert apply({"a": 1}, {}, ("/a/b",)) == {"a": {"b": None}}


def test_deepest_allowed_patch_works() -> None:
    deep: Any = None
    for _ in range(500):
        deep = {"a": deep}
    assert apply({}, *diff({}, deep)) == deep
    assert diff(deep, deep) == ({}, ())


def set_nulls_one_by_one(target: Json, pointers: list[str]) -> Json:
    """What a list of nulls means: each makes a new value, which the next one is put into."""

    def put(value: Any, way: list[str]) -> Json:
        inner = value if isinstance(value, dict) else {}
        return {**inner, way[0]: put(inner.get(way[0]), way[1:]) if way[1:] else None}

    for pointer in pointers:
        if pointer.startswith("/"):
            target = put(target, [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]])
    return target


_keys = st.sampled_from(["", "a", "b", "~0", "~1", "c/d"])
_nested = st.recursive(
    st.none() | st.integers(), lambda inner: st.dictionaries(_keys, inner, max_size=3), max_leaves=12
)
_pointers = st.lists(st.text(st.sampled_from("/ab~01"), max_size=8).map("/".__add__), max_size=12)


@given(target=st.dictionaries(_keys, _nested, max_size=3), pointers=_pointers)
@example({"a": {"b": 1}}, ["/a", "/a/b", "/a/a", "/a", "/a/b"])
@settings(max_examples=examples(300))
def test_joint_nulls_equal_single_nulls(target: Json, pointers: list[str]) -> None:
    copied = copy.deepcopy(target)
    assert is_same(apply(target, {}, tuple(pointers)), set_nulls_one_by_one(target, pointers))
    assert is_same(target, copied)


def test_null_cost_is_linear() -> None:
    pointers = tuple(f"/a/{number}" for number in range(40_000))
    began = time.thread_time()
    changed = apply({"a": {}}, {}, pointers)
    assert len(changed["a"]) == len(pointers)
    assert time.thread_time() - began < 2


def test_long_key_patch_costs_its_key() -> None:
    key, many = "k" * 1_000_000, {str(number): number for number in range(150_000)}
    began = time.thread_time()
    assert diff({key: many}, {key: {**many, "0": 1}}) == ({key: {"0": 1}}, ())
    assert time.thread_time() - began < 2


def test_overlong_pointer_changes_nothing() -> None:
    assert apply({"a": 1}, {}, ("/" * (MAX_POINTER_PARTS + 1), "/" * 1_000_000, "/b")) == {"a": 1, "b": None}
