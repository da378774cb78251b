"""Bodies: read strictly, bounded and counted, refused by name, kept exactly, and never the cause of a 5xx."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given as for_any
from hypothesis import strategies as st

from swarmkeep.events.codec import count_values
from swarmkeep.events.errors import TooLarge
from swarmkeep.http.bodies import refuse_too_many_values
from tests.http.server import RunningServer, check_problem, server_settings, start_server
from tests.http.websocket.client import connect_session
from tests.support.logs import json_values

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/input"),
        ({"input": None}, "/input"),
        ({"input": 5}, "/input"),
        ({"input": "x", "inputs": 1}, "/inputs"),
        ({"input": "x", "max_turns": 0}, "/max_turns"),
        ({"input": "x", "max_turns": 1.5}, "/max_turns"),
        ({"input": "x", "stream": "yes"}, "/stream"),
        ({"input": "x", "stream": True, "background": True}, "/background"),
        ({"input": "x", "on_busy": "wait"}, "/on_busy"),
        ({"input": "x", "on_busy": "\ud800"}, "/on_busy"),
        ({"input": "x", "max_turns": "\ud800"}, "/max_turns"),
        ({"input": [{"role": "\ud800", "content": "x"}]}, "/input/0/role"),
        ({"input": "x", "context_variables": []}, "/context_variables"),
        ({"input": ["x"]}, "/input/0"),
        ({"input": [{"role": "user", "content": "x"}, {"role": "nobody", "content": "x"}]}, "/input/1/role"),
        ({"input": [{"content": "x"}]}, "/input/0/role"),
        ({"input": [{"role": "user"}]}, "/input/0/content"),
        ({"input": [{"role": "tool", "content": "x"}]}, "/input/0/tool_call_id"),
        ({"input": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]}, "/input/0/tool_calls/0/function"),
    ],
)
async def test_wrong_run_fields_named(plain: RunningServer, body: Any, pointer: str) -> None:
    session = await plain.session()
    answer = await plain.client.post(f"{session}/runs", content=json.dumps(body), headers=JSON)
    found = check_problem(answer, 400, "invalid_request")
    assert [error["pointer"] for error in found["errors"]] == [pointer]
    assert len(await plain.events(session)) == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/agui/Front", {"threadId": "t", "runId": "r", "messages": "\ud800"}),
        ("/openai/v1/responses", {"model": "Front", "input": [{"type": "\ud800"}]}),
        ("/openai/v1/chat/completions", {"model": "Front", "messages": "\ud800"}),
        ("/openai/v1/agents", {"model": "Front", "tools": ["\ud800"]}),
        ("/openai/v1/agents/sessions", {"environment": {"type": "\ud800"}}),
        ("/openai/v1/agents/automations", {"type": "once", "target": {"type": "\ud800"}}),
        ("/v1/webhooks", {"url": "https://example.com", "types": "\ud800"}),
        ("/v1/keys", {"role": "\ud800"}),
    ],
)
async def test_half_of_a_character_is_refused_at_every_door(plain: RunningServer, path: str, body: Any) -> None:
    answer = await plain.client.post(path, content=json.dumps(body), headers=JSON)
    assert 400 <= answer.status_code < 500, answer.text


@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        ("", {"agent": 5}, "/agent"),
        ("", {"agents": "x"}, "/agents"),
        ("", {"metadata": [1]}, "/metadata"),
        ("", {"messages": [{"role": "user", "content": 5}]}, "/messages/0/content"),
        ("/s/fork", {"at": 0}, "/at"),
        ("/s/fork", {"id": "a/b"}, "/id"),
        ("/s/runs/r/resume", {"approvals": [{"tool_call_id": "c", "decision": "maybe"}]}, "/approvals/0/decision"),
        ("/s/runs/r/resume", {"approvals": [{"decision": "deny"}]}, "/approvals/0/tool_call_id"),
        ("/s/runs/r/resume", {"tool_results": [{"tool_call_id": "c", "content": 1}]}, "/tool_results/0/content"),
        ("/s/runs/r/resume", {"tool_results": [{"tool_call_id": "c", "content": "", "x": 1}]}, "/tool_results/0/x"),
        ("/s/runs/r/resume", {"approvals": None}, "/approvals"),
    ],
)
async def test_wrong_fields_of_other_bodies_named(plain: RunningServer, path: str, body: Any, pointer: str) -> None:
    await plain.session(id="s")
    found = check_problem(await plain.post(f"/v1/sessions{path}", body), 400, "invalid_request")
    assert [error["pointer"] for error in found["errors"]] == [pointer]


async def test_validation_message_names_place_and_options(plain: RunningServer) -> None:
    session = await plain.session()
    for body, sentence in (
        ({"on_busy": "wait"}, "on_busy: Invalid enum value 'wait'; known: interrupt, queue, reject"),
        ({"tools": [{"type": "search"}]}, "tools[0].type: Invalid enum value 'search'; known: function"),
        ({"max_turns": 0}, "max_turns: Expected 'int' >= 1"),
        ({"inputs": "x"}, "Object contains unknown field 'inputs'"),
        ({"input": [{"content": "x"}]}, "input[0]: Object missing required field 'role'"),
    ):
        found = check_problem(await plain.post(f"{session}/runs", {"input": "x", **body}), 400, "invalid_request")
        assert found["detail"] == sentence
    wrong = {"approvals": [{"tool_call_id": "c1", "decision": "yes"}]}
    found = check_problem(await plain.post(f"{session}/runs/r1/resume", wrong), 400, "invalid_request")
    assert found["detail"] == "approvals[0].decision: Invalid enum value 'yes'; known: approve, deny"


@pytest.mark.parametrize("body", [{"agent": None}, {"metadata": None}, {"context_variables": None}, {"id": "x"}, [], 5])
async def test_a_patch_names_what_it_changes(plain: RunningServer, body: Any) -> None:
    session = await plain.session()
    check_problem(await plain.patch(session, body), 400, "invalid_request")
    assert (await plain.patch(session, {})).json()["seq"] == 1


DEEP = 20_000
HOSTILE = [
    b"{", b"nul", b"[]", b"null", b"5", b'"x"', b"{} {}", b"\xff", b'{"id": "\xff"}', b"\xef\xbb\xbf{}",
    '{"id": "x"}'.encode("utf-16"), b'{"id": "x", "id": "y"}', b'{"metadata": {"b": 0, "a": 1, "a": 2}}',
    b'{"metadata": {"a": NaN}}', b'{"metadata": {"a": Infinity}}', b'{"metadata": {"a": -Infinity}}',
    b'{"metadata": {"a": 1e400}}', b'{"metadata": {"a": ' + b"9" * 5000 + b"}}", b'{"metadata": {"a": 01}}',
    b'{"metadata": {"a": ' + b"[" * DEEP + b"]" * DEEP + b"}}",
    b'{"metadata": ' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
    b"[" * DEEP, b'{"metadata": {"a": "\\ud8"}}', b"{'id': 'x'}", b'{"id": "x",}', b'{"__proto__": 1}', b"\x00", b" ",
]  # fmt: skip


async def test_non_object_body_refused(plain: RunningServer) -> None:
    for body in HOSTILE:
        answer = await plain.client.post("/v1/sessions", content=body, headers=JSON)
        assert answer.status_code == 400, (body[:100], answer.text)
        assert len(check_problem(answer, 400, "invalid_request")["detail"]) < 500
    assert (await plain.get("/v1/sessions")).json()["data"] == []


async def test_depth_limit_same_everywhere(plain: RunningServer) -> None:
    session = await plain.session()
    nested: Any = "x"
    for _ in range(3000):
        nested = [nested]
    text = json.dumps({"input": "x", "context_variables": {"a": 0}}).replace("0", "[" * 3000 + "]" * 3000)
    for path, body in (
        ("/runs", text),
        ("/runs", '{"input": [{"role": "user", "content": ' + "[" * 3000 + "]" * 3000 + "}]}"),
    ):
        answer = await plain.client.post(f"{session}{path}", content=body.encode(), headers=JSON)
        check_problem(answer, 400, "invalid_request")
    assert len(await plain.events(session)) == 1


STRANGE = [
    "NUL \x00 stays", "a lone \ud800 surrogate", "e\u0301 \u00e9", "\u2028 \u2029", "\U0001f600", "\u202e",
    "a\r\nb\tc\x7f",
]  # fmt: skip
NUMBERS = [0, -0.0, 2**53, 2**63, -(2**63), 2**64 - 1, 1e-320, 1.7976931348623157e308, 0.1]


async def test_text_and_numbers_round_trip(service: RunningServer) -> None:
    given = {"texts": STRANGE, "numbers": NUMBERS, **{text: number for number, text in enumerate(STRANGE)}}
    body = {
        "id": "s",
        "context_variables": given,
        "metadata": given,
        "messages": [{"role": "user", "content": STRANGE[1]}],
    }
    answer = await service.client.post("/v1/sessions", content=json.dumps(body).encode(), headers=JSON)
    assert answer.status_code == 201, answer.text
    for path in ("", "?at=2", "/events", "/messages"):
        text = (await service.get(f"/v1/sessions/s{path}")).text
        assert "\\ud800" in text
        found = json.loads(text)
        if "data" not in found:
            assert json.dumps(found["context_variables"]) == json.dumps(found["metadata"]) == json.dumps(given)
    lines = (await service.get("/v1/sessions/s/events", headers={"Accept": "application/x-ndjson"})).text.split("\n")
    assert json.loads(lines[0])["data"]["metadata"] == given
    async with service.stream("/v1/sessions/s/events") as stream:
        assert (await stream.next()).data["data"]["metadata"] == given
    assert (await service.get("/v1/sessions")).json()["data"][0]["metadata"] == given


async def test_run_with_strange_text_answered(plain: RunningServer) -> None:
    session = await plain.session()
    for text in STRANGE:
        content = json.dumps({"input": text}).encode()
        answer = await plain.client.post(f"{session}/runs", content=content, headers=JSON)
        assert answer.status_code == 200, answer.text
        run = json.loads(answer.text)
        assert (run["status"], run["messages"][0]["content"]) == ("completed", text)
        content = json.dumps({"input": text, "stream": True}).encode()
        answer = await plain.client.post(f"{session}/runs", content=content, headers=JSON)
        assert "event: done\n" in answer.text


@pytest.mark.parametrize(
    ("kind", "taken"),
    [
        (None, True), ("application/json", True), ("APPLICATION/JSON; charset=utf-8", True),
        ("application/merge-patch+json", True), ("text/plain", False), ("application/x-www-form-urlencoded", False),
        ("multipart/form-data; boundary=x", False), ("application/msgpack", False), ("", False), (";", False),
        ("text/plain; +json", False), ("x/y+json", False),
    ],
)  # fmt: skip
async def test_bodies_are_json_or_untyped(plain: RunningServer, kind: str | None, taken: bool) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    answer = await plain.client.post("/v1/sessions", content=b"{}", headers=headers)
    if taken:
        assert answer.status_code == 201
    else:
        check_problem(answer, 415, "unsupported_media_type")


async def test_required_body_cannot_be_omitted(plain: RunningServer) -> None:
    session = await plain.session()
    check_problem(await plain.client.post(f"{session}/runs"), 400, "invalid_request")
    check_problem(await plain.client.patch(session), 400, "invalid_request")


async def test_large_body_refused_however_sent(sqlite_ready: str) -> None:
    async def pieces() -> Any:
        for _ in range(40):
            yield b" " * 1000

    async with start_server(server_settings(database_url=sqlite_ready, max_body_bytes=10_000)) as service:
        fits = json.dumps({"metadata": {"a": "x" * 9_000}}).encode()
        assert (await service.client.post("/v1/sessions", content=fits, headers=JSON)).status_code == 201
        large = await service.client.post("/v1/sessions", content=b" " * 10_001, headers=JSON)
        assert "10000 bytes (SWARMKEEP_MAX_BODY_BYTES)" in check_problem(large, 413, "too_large")["detail"]
        check_problem(await service.client.post("/v1/sessions", content=pieces(), headers=JSON), 413, "too_large")
        announced = b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n"
        assert b" 413 " in (await service.raw(announced)).splitlines()[0]
        assert (await service.get("/v1/sessions")).status_code == 200


async def test_truncated_body_disturbs_no_others(plain: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    host, _, port = plain.url.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await plain.get("/v1/sessions")).json()["data"] == []
    assert caplog.text == ""


# How many values and messages a body may hold: bounded, counted exactly, and refused before they cost anything.

LARGE_HOSTILE: dict[str, tuple[str, str, bytes]] = {
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


@pytest.mark.parametrize("name", LARGE_HOSTILE)
async def test_too_many_parts_refused_by_limit(plain: RunningServer, name: str) -> None:
    path, limit, body = LARGE_HOSTILE[name]
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
