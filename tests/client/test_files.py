"""Exports and imports with the client: files of any length, there and back."""

from __future__ import annotations

import io
import json

import pytest

from swarmkeep_client import AsyncClient, Client, ConnectionFailed, InvalidImport, SessionNotFound
from tests.client import samples
from tests.client.stub_server import DROPPED, Reply, StubServer, make_json_reply, make_problem_reply, make_reply

REPORT = {
    "dry_run": False,
    "imported": 1,
    "present": 0,
    "events": 3,
    "sessions": [{"id": "s1", "seq": 3, "hash": "h3", "outcome": "imported"}],
}


def make_lines(*pieces: bytes, complete: bool = True) -> Reply:
    head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/x-ndjson\r\n"
    chunks = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
    return Reply((head + b"transfer-encoding: chunked\r\n\r\n", *chunks, b"0\r\n\r\n" if complete else b""))


def test_an_export_comes_piece_by_piece(server: StubServer, client: Client) -> None:
    server.script(
        make_lines(b"one\n", b"two\n"),
        make_lines(b"one\n"),
        make_json_reply(samples.make_session()),
        make_lines(b"own\n"),
    )
    assert b"".join(client.export()) == b"one\ntwo\n"
    assert b"".join(client.export(["a", "b"])) == b"one\n"
    assert b"".join(client.sessions.get("s1").export()) == b"own\n"
    targets = [received.target for received in server.received]
    assert targets == ["/v1/export", "/v1/export?id=a&id=b", "/v1/sessions/s1", "/v1/export?id=s1"]


def test_export_filtered_like_a_list(server: StubServer, client: Client) -> None:
    server.script(make_lines())
    assert list(client.export(agent="Ann", status="idle", metadata={"vip": True})) == []
    assert server.received[0].query == {"agent": "Ann", "status": "idle", "metadata.vip": "true"}


def test_broken_export_is_an_error(server: StubServer, client: Client) -> None:
    server.script(make_lines(b"one\n", complete=False))
    pieces = client.export()
    assert next(pieces) == b"one\n"
    with pytest.raises(ConnectionFailed):
        list(pieces)


def test_export_retried_if_nothing_came(server: StubServer, client: Client) -> None:
    server.script(DROPPED, make_reply(503, b"busy", "text/plain"), make_lines(b"one\n"))
    assert list(client.export()) == [b"one\n"]
    server.script(make_problem_reply(404, "session_not_found"))
    with pytest.raises(SessionNotFound):
        list(client.export(["no"]))


def test_import_resends_the_whole_file(server: StubServer, client: Client) -> None:
    file = io.BytesIO(b"x" * 1_000_000)
    server.script(make_reply(503, b"", "text/plain"), make_json_reply(REPORT))
    report = client.import_sessions(file, as_id="s1", dry_run=True)
    assert (report.imported, report.sessions[0].outcome) == (1, "imported")
    assert [len(received.body) for received in server.received] == [1_000_000, 1_000_000]
    assert server.received[0].query == {"as": "s1", "dry_run": "true"}
    server.script(make_json_reply(REPORT), make_json_reply(REPORT))
    client.import_sessions(b"text", source="chat", agent="Ann")
    assert server.received[-1].query == {"from": "chat", "agent": "Ann"}
    client.import_sessions(b"text")
    assert (server.received[-1].body, server.received[-1].target) == (b"text", "/v1/import")


def test_a_refused_import_names_the_line(server: StubServer, client: Client) -> None:
    server.script(make_problem_reply(400, "invalid_import", detail="line 3: no", line=3))
    with pytest.raises(InvalidImport) as refused:
        client.import_sessions(b"text")
    assert refused.value.line == 3


async def test_the_asynchronous_client_does_the_same(server: StubServer, async_client: AsyncClient) -> None:
    server.script(
        DROPPED,
        make_lines(b"one\n"),
        make_json_reply(samples.make_session()),
        make_lines(b"own\n"),
        make_json_reply(REPORT),
    )
    assert [piece async for piece in async_client.export(["s1"])] == [b"one\n"]
    session = await async_client.sessions.get("s1")
    assert [piece async for piece in session.export()] == [b"own\n"]
    assert (await async_client.import_sessions(io.BytesIO(b"x" * 600_000))).events == 3
    assert len(server.received[-1].body) == 600_000
    server.script(make_lines(b"one\n", complete=False))
    with pytest.raises(ConnectionFailed):
        [piece async for piece in async_client.export()]
    server.script(make_reply(200, json.dumps(REPORT).encode(), "application/json"))
    assert (await async_client.import_sessions(b"text")).imported == 1


async def test_a_document_is_fetched_as_text(server: StubServer, client: Client, async_client: AsyncClient) -> None:
    page = make_reply(200, "<p>héllo".encode(), "text/html; charset=utf-8")
    server.script(make_json_reply(samples.make_session()), page, make_json_reply(samples.make_session()), page)
    assert client.sessions.get("s1").transcript("html", at=3) == "<p>héllo"
    session = await async_client.sessions.get("s1")
    assert await session.transcript() == "<p>héllo"
    targets = [received.target for received in server.received[1::2]]
    server.script(page)
    assert await session.eval_case("r1", name="days") == "<p>héllo"
    assert server.received[-1].target == "/v1/sessions/s1/case?run_id=r1&name=days"
    assert targets == ["/v1/sessions/s1/transcript?format=html&at=3", "/v1/sessions/s1/transcript?format=markdown"]


async def test_usage_comes_row_by_row(server: StubServer, client: Client, async_client: AsyncClient) -> None:
    row = {"day": "2026-01-02", "model": None, "model_calls": 2, "tool_ms": 1.5}
    pages = [
        make_json_reply({"data": [row], "next_cursor": "c"}),
        make_json_reply({"data": [row], "next_cursor": None}),
    ]
    server.script(*pages, make_json_reply({"data": [row], "next_cursor": None}))
    found = list(client.usage(["day", "model"], first_day="2026-01-01", agent="Ann", page_size=1))
    assert [(row.day, row.model, row.model_calls, row.tool_ms) for row in found] == [("2026-01-02", None, 2, 1.5)] * 2
    query = "group_by=day&group_by=model&from=2026-01-01&agent=Ann&limit=1"
    assert [received.target for received in server.received] == [f"/v1/usage?{query}", f"/v1/usage?{query}&cursor=c"]
    assert [row.model_calls async for row in async_client.usage()] == [2]


def test_single_name_stands_for_list(server: StubServer, client: Client) -> None:
    replay = {"matches": True, "turns": 1, "last_seq": 3, "divergences": [], "redacted": []}
    server.script(
        make_json_reply({"data": [], "next_cursor": None}),
        make_lines(b"one\n"),
        make_json_reply(samples.make_session()),
        make_json_reply(replay),
    )
    assert list(client.usage("agent")) == []
    assert b"".join(client.export("s1")) == b"one\n"
    assert client.sessions.get("s1").replay(ignore="model").matches
    targets = [received.target for received in server.received]
    assert targets == ["/v1/usage?group_by=agent", "/v1/export?id=s1", "/v1/sessions/s1", "/v1/sessions/s1/replay"]
    assert json.loads(server.received[-1].body) == {"ignore": ["model"]}
