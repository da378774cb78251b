"""JSON text: what comes back as it was, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swarmkeep.events.codec import MalformedJson, decode, encode, encode_text, replace_surrogates
from tests.support.hypothesis_profiles import examples
from tests.support.logs import json_values, texts
from tests.support.rules import is_same, parse_strict_json


class Point(msgspec.Struct):
    x: int
    label: str = ""


@given(value=json_values(20))
@example("\ud800")
@example({"\udfff": [-0.0, 2**64, 5e-324, 1.7976931348623157e308, "\0"]})
@settings(max_examples=examples(150))
def test_values_round_trip(value: Any) -> None:
    encoded = encode(value)
    assert is_same(decode(encoded), value)
    assert is_same(decode(encoded.decode()), value)
    assert encode_text(value) == encoded.decode()
    assert is_same(parse_strict_json(encoded.decode()), value)
    assert b"\0" not in encoded


@given(value=json_values(20))
@settings(max_examples=examples(100))
def test_what_python_writes_is_read_alike(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, indent=1)):
        assert is_same(decode(text), value)
        assert is_same(decode(text.encode()), value)


@given(text=texts(30))
@settings(max_examples=examples(150))
def test_any_text_becomes_utf_8(text: str) -> None:
    mended = replace_surrogates({"a": [text, {text: None}]})
    plain = mended["a"][0]
    plain.encode()
    assert mended == {"a": [plain, {plain: None}]}
    assert len(plain) == len(text)
    if "\ufffd" not in plain:
        assert plain == text


def test_surrogate_pairs_are_joined() -> None:
    assert replace_surrogates("\ud83d\ude00") == "😀"
    assert replace_surrogates(["\ud83d", 1, None, True]) == ["\ufffd", 1, None, True]


def test_json_is_compact_and_ordered() -> None:
    assert encode({"b": [1, 1.0, None, True], "a": "é"}) == '{"b":[1,1.0,null,true],"a":"é"}'.encode()
    assert encode({"b": "\ud800", "a": "é"}) == rb'{"b":"\ud800","a":"\u00e9"}'


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "nul", "NaN", "Infinity", "-Infinity", "[NaN]", "{", "[1,]", "{'a':1}", '{"a":1}x', "01", "1e400",
        "-1e400", "[1e400]", '{"a":1e999999999}', "9" * 5000, "[%s]" % ("9" * 5000),
        '"\0"', '"\n"', '"\\x"', "\ufeff{}",
        "[" * 100_000, '{"a":' * 100_000, "[" * 100_000 + "]" * 100_000,
    ],
    ids=range(25),
)  # fmt: skip
@pytest.mark.parametrize("beside", ["{}", '["\\ud800",{}]', '["\ud800",{}]'], ids=["plain", "escaped", "raw"])
def test_what_is_no_json_is_refused(text: str, beside: str) -> None:
    with pytest.raises(MalformedJson):
        decode(beside.replace("{}", text))
    if "\ud800" not in beside:
        with pytest.raises(MalformedJson):
            decode(beside.replace("{}", text).encode())


@pytest.mark.parametrize(
    "data",
    [
        b'"\xff"', b'["\\ud800","\xff"]', b'["\\ud800","\xed\xa0\x80"]', b'"\xed\xa0\x80"', b"\xef\xbb\xbf{}",
        b'\xef\xbb\xbf["\\ud800"]', '["\\ud800"]'.encode("utf-16"), '["\\ud800"]'.encode("utf-32"),
    ],
    ids=range(8),
)  # fmt: skip
def test_non_utf_8_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedJson):
        decode(data)


@given(data=st.binary(max_size=30) | st.text(st.sampled_from('[]{}":,\\ud80 1e+-.nultrefas\0'), max_size=20))
@settings(max_examples=examples(150))
def test_anything_is_either_json_or_malformed(data: bytes | str) -> None:
    try:
        value = decode(data)
    except MalformedJson:
        return
    assert is_same(decode(encode(value)), value)


def test_unescaped_surrogates_are_read() -> None:
    assert decode('{"a": "\ud800"}') == {"a": "\ud800"}


@pytest.mark.parametrize(
    "value", [[float("nan"), "\ud800"], {"\ud800": float("inf")}, {1, 2, object()}, object(), {("a",): 1}], ids=range(5)
)
def test_unencodable_json_is_not_written(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        encode(value)


def test_text_decodes_to_expected_shape() -> None:
    assert decode('{"x": 1, "label": "a", "more": null}', Point) == Point(1, "a")
    assert decode(b'{"x": 1, "label": "\\ud800", "more": null}', Point) == Point(1, "\ud800")


@pytest.mark.parametrize("label", ['"a"', '"\\ud800"'])
def test_wrong_shape_is_refused_with_path(label: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\.x"):
        decode(f'{{"x": "1", "label": {label}}}', Point)


@pytest.mark.parametrize("x", ["1e400", "9" * 5000])
def test_out_of_range_numbers_are_refused(x: str) -> None:
    with pytest.raises(MalformedJson):
        decode(f'{{"x": {x}}}', dict[str, float])
    with pytest.raises(MalformedJson):
        decode(f'{{"x": {x}, "y": "\\ud800"}}', dict[str, float])


def test_range_errors_are_not_malformed_json() -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        decode('{"Number out of range": "Integer value out of range"}', dict[str, int])
    assert not isinstance(refused.value, MalformedJson)


def test_encoded_parts_survive_beside_invalid_utf_8() -> None:
    value = {"name": "\ud800", "data": msgspec.Raw(b'{"n":1e16,"m":1.50}')}
    assert encode(value) == b'{"name":"\\ud800","data":{"n":1e16,"m":1.50}}'
