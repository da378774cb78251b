"""How many values and messages a body may hold: bounded, counted exactly, and refused before they cost anything."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given as for_any
from hypothesis import strategies as st

from swarmkeep.events.codec import count_values
from swarmkeep.events.errors import TooLarge
from swarmkeep.http.bodies import refuse_too_many_values
from tests.http.server import RunningServer, check_problem
from tests.http.websocket.client import connect_session
from tests.support.logs import json_values

HOSTILE: dict[str, tuple[str, str, bytes]] = {
    "300,000 messages without a text": (
        "/v1/sessions",
        "SWARMKEEP_MAX_BODY_VALUES",
        b'{"messages":[' + b",".join([b'{"role":"user","content":""}'] * 300_000) + b"]}",
    ),
    "3 million lists": (
        "/v1/sessions",
        "SWARMKEEP_MAX_BODY_VALUES",
        b'{"context_variables":{"a":[' + b",".join([b"[]"] * 3_000_000) + b"]}}",
    ),
    "20,000 messages": (
        "/v1/sessions",
        "SWARMKEEP_MAX_MESSAGES",
        b'{"messages":[' + b",".join([b'{"role":"user","content":""}'] * 20_000) + b"]}",
    ),
}


def list_values(value: Any) -> list[Any]:
    """A value and all in it, but for the empty containers' nothing."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value, *(found for item in inner for found in list_values(item))]


def count_largest(value: Any) -> int:
    """Each container is one, each value in one is one; an empty one counts as if it held something."""
    return sum(1 + max(0, len(item) - 1) if isinstance(item, dict | list) else 0 for item in list_values(value))


@for_any(json_values(), st.integers(1, 9))
def test_values_counted_despite_chunk_boundaries(value: Any, slice_bytes: int) -> None:
    body = json.dumps(value).encode()
    assert count_values(body, slice_bytes=slice_bytes) == count_largest(value)


def test_line_break_in_text_hides_nothing() -> None:
    assert count_values(b'id: "\ndata: {"a":[1,2]}', slice_bytes=5) == 3


def test_text_resembling_values_is_not_counted() -> None:
    text = json.dumps({"a": '[{,"\\' * 50_000}).encode()
    refuse_too_many_values(text, 1)
    with pytest.raises(TooLarge, match="SWARMKEEP_MAX_BODY_VALUES"):
        refuse_too_many_values(text, 0)


@pytest.mark.parametrize("name", HOSTILE)
async def test_too_many_parts_refused_by_limit(plain: RunningServer, name: str) -> None:
    path, limit, body = HOSTILE[name]
    answer = await plain.client.post(path, content=body, headers={"content-type": "application/json"})
    assert limit in check_problem(answer, 413, "too_large")["detail"]
    assert (await plain.get("/v1/sessions")).json()["data"] == []


@pytest.mark.long
async def test_maximum_messages_work_as_history_and_input(plain: RunningServer) -> None:
    messages = [{"role": "user", "content": ""}] * 10_000
    session = await plain.session(messages=messages)
    assert (await plain.get(session)).json()["message_count"] == 10_000
    refused = await plain.post(f"{session}/runs", {"input": [*messages, messages[0]]})
    assert "SWARMKEEP_MAX_MESSAGES" in check_problem(refused, 413, "too_large")["detail"]
    async with connect_session(plain, session, "?after=10001") as viewer:
        answer = await viewer.answer("run.create", input=[*messages, messages[0]])
    assert (answer.event, answer.data["code"]) == ("error", "too_large")
