"""What callers send is refused where it is wrong, and by name."""

from __future__ import annotations

from typing import Any

import pytest

from swarmkeep.agent.values import MAX_DEPTH
from swarmkeep.decide.checks import check_id, check_messages, check_new_id
from swarmkeep.events.errors import InvalidRequest, TooLarge


def make_deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ({"role": "user"}, "/content"),
        ({"role": "system", "content": None}, "/content"),
        ({"role": "developer"}, "/content"),
        ({"role": "tool", "tool_call_id": "c1"}, "/content"),
        ({"role": "tool", "content": "42"}, "/tool_call_id"),
        ({"role": "tool", "content": "42", "tool_call_id": ""}, "/tool_call_id"),
        ({"role": "narrator", "content": "x"}, "/role"),
        ({"role": "user", "content": "x", "extra": make_deep(MAX_DEPTH)}, ""),
        ({"role": "user", "content": "x", "extra": float("nan")}, ""),
        ({"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "f"}}]},
         "/tool_calls/0/function/arguments"),
    ],
)  # fmt: skip
def test_invalid_message_refused_by_place(message: Any, place: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_messages([{"role": "user", "content": "hello"}, message], "/input")
    (error,) = refused.value.errors
    assert error["pointer"] == f"/input/1{place}"


def test_messages_are_kept_as_they_came() -> None:
    sent: list[Any] = [
        {"role": "assistant", "content": None},
        {"role": "tool", "tool_call_id": "c1", "content": "42", "seq": 7},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    ]
    assert check_messages(sent, "/input", 3) == tuple(sent)
    assert check_messages("hello", "/input", 1) == ({"role": "user", "content": "hello"},)
    with pytest.raises(TooLarge, match="/input has more than 2 messages"):
        check_messages(sent, "/input", 2)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "é", "x" * 129, "a\n"])
def test_what_is_no_id_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="an id must have 1 to 128"):
        check_id(name)


def test_asked_session_ids_are_reserved() -> None:
    assert [check_new_id(name) for name in ("...", "x" * 128, "subsess")] == ["...", "x" * 128, "subsess"]
    with pytest.raises(InvalidRequest, match="reserved"):
        check_new_id("subsess_1")
    assert check_id("subsess_1") == "subsess_1"
