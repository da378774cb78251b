"""JSON text and times: what comes back as it was, in several threads too, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swarmkeep.events.codec import (
    MalformedJson,
    decode,
    encode,
    encode_text,
    make_timestamp,
    parse_timestamp,
    replace_surrogates,
    to_timestamp,
)
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


class _Shape(msgspec.Struct):
    kind: Literal["a", "b"] = "a"
    text: str = ""
    items: list[int] = []


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (r'{"kind": "\ud800"}', "$.kind"), (r'{"items": "\ud800"}', "$.items"),
        (r'{"items": ["\ud800"]}', "$.items[0]"),
        (r'"\ud800"', ""), (r'{"text": "\ud800", "items": 1}', "$.items"),
    ],
)  # fmt: skip
def test_surrogates_in_other_places_are_of_the_wrong_type(text: str, place: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        decode(text, _Shape)
    assert str(refused.value).endswith(f" - at `{place}`" if place else "got `str`")
    assert decode(r'{"text": "\ud800"}', _Shape).text == "\ud800"


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


# Decoding in several threads, as reading does.

PROGRAM = """
import sys, threading
from typing import Literal
import msgspec
from swarmkeep.events.codec import decode

sys.setswitchinterval(1e-7)
for number in range(60):
    fields = [(f"f{n}", Literal["a", "b"] | None | msgspec.UnsetType, msgspec.UNSET) for n in range(40)]
    kind = msgspec.defstruct(f"S{number}", fields)
    together = threading.Barrier(6)

    def work(kind=kind, together=together):
        together.wait()
        for _ in range(20):
            decode('{"f39": "b"}', kind)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_share_first_use_of_a_type() -> None:
    # In a process of its own: without care, this ends in a segmentation fault.
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


# Times as text, read in one form only.


@given(st.datetimes(timezones=st.just(UTC)))
def test_what_is_written_is_read(at: datetime) -> None:
    assert parse_timestamp(to_timestamp(at)) == at


def test_times_are_written_in_utc() -> None:
    at = datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    assert to_timestamp(at) == "2025-12-31T23:00:00.000000Z"
    assert parse_timestamp(make_timestamp()) is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-01-01",
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00.000000",
        "2026-01-01T00:00:00.000000+02:00",
        "2026-01-01T00:00:00.0000000Z",
        "2026-01-01T00:00:00.000000Z\n",
        "2026-02-30T00:00:00.000000Z",
        "2026-01-01T24:30:00.000000Z",
        "0000-01-01T00:00:00.000000Z",
        "٢٠٢٦-01-01T00:00:00.000000Z",
    ],
)
def test_any_other_text_is_no_time(text: str) -> None:
    assert parse_timestamp(text) is None
