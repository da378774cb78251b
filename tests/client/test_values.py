"""Values go to the server and come back unchanged."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmkeep_client import Client
from swarmkeep_client._json import decode, encode
from tests.client import samples
from tests.client.stub_server import StubServer, make_reply

TEXT = st.text(st.characters(codec=None) | st.sampled_from("\0\ud800\udfff\u2028é👋"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(TEXT, children, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(VALUES)
def test_json_returned_as_given(value: object) -> None:
    again = decode(encode({"value": value}), dict[str, Any])["value"]
    assert json.dumps(again) == json.dumps(value)


def test_text_sent_unchanged_unless_not_utf_8() -> None:
    assert encode({"a": "é\0"}) == '{"a":"é\\u0000"}'.encode()
    assert encode({"a": "é\ud800"}) == b'{"a":"\\u00e9\\ud800"}'


@pytest.mark.parametrize("value", [math.nan, math.inf, b"bytes", {1, 2}, object()])
def test_unrepresentable_json_refused_before_sending(client: Client, value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        client.sessions.create(context_variables={"a": value})


def test_session_round_trip(server: StubServer, client: Client) -> None:
    context = {"text": "a\0b\ud800", "number": 2**80, "pair": "👋", "zero": -0.0}
    server.script(
        make_reply(201, json.dumps(samples.make_session(context_variables=context)).encode(), "application/json")
    )
    session = client.sessions.create(context_variables=context)
    assert server.last.json["context_variables"] == context
    assert json.dumps(session.context_variables) == json.dumps(context)
