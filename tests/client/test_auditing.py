"""The client's calls about audits, keys, quotas, exports and imports, and how their answers are read."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta

import pytest

from swarmkeep_client import (
    ApiKeyNotFound,
    AsyncClient,
    Checkpoint,
    Client,
    ConnectionFailed,
    Consumer,
    Forbidden,
    Head,
    InvalidImport,
    RedactedCopy,
    SessionNotFound,
)
from tests.client import samples
from tests.client.stub_server import DROPPED, Reply, StubServer, make_json_reply, make_problem_reply, make_reply
from tests.http.auth.keys import create_key
from tests.http.server import server_settings, start_server

DONE = {
    "session": samples.make_session(seq=5),
    "seqs": [3, 4],
    "seq": 5,
    "forks": [{"session_id": "s2", "seqs": [3], "redacted": False}],
}
ENTRY = {"seq": 1, "type": "session.deleted", "by": "Lee", "at": "", "data": {"session_id": "s1"}, "hash": "h"}
CHECKPOINT = {"number": 2, "origin": "o", "size": 6, "root": "r", "at": "", "note": "n", "public_key": None}
LEAF = {"index": 5, "session_id": None, "seq": 1, "hash": "h", "leaf": "{}"}
DUE = {"session_id": "s1", "seq": 1, "updated_at": "", "goes_at": "", "keep": "30d", "held": False}
PROOF = {
    **LEAF, "session_id": "s1", "checkpoint": CHECKPOINT, "newest": CHECKPOINT, "inclusion": ["11"], "consistency": [],
}  # fmt: skip
PLACED = {"session_id": "s1", "seq": 2, "type": "a", "data": {}, "cursor": "1-2"}
CONSUMER = {"name": "crm", "cursor": "1-2", "lag": 4, "updated_at": ""}
VALID = {"valid": True, "events": 1, "head": {"seq": 1, "hash": "h"}, "problems": [], "problem_count": 0}


def test_the_answers_are_values(server: StubServer) -> None:
    server.script(
        make_json_reply(samples.make_session()),
        make_json_reply(DONE),
        make_json_reply({**DONE, "seq": None}),
        make_json_reply(samples.make_page([samples.make_session(id="s2")], "c")),
        make_json_reply(samples.make_page([samples.make_session(id="s3")])),
        make_json_reply(VALID),
        make_json_reply(samples.make_page([ENTRY])),
        make_json_reply(VALID),
        make_json_reply({**CHECKPOINT, "consistency": ["00"]}),
        make_json_reply(samples.make_page([LEAF])),
        make_json_reply(PROOF),
        make_json_reply(samples.make_page([DUE])),
        make_json_reply({"data": [PLACED], "next_cursor": "1-2"}),
        make_json_reply({"data": [], "next_cursor": "1-2"}),
        *[make_json_reply({"data": [], "next_cursor": "9-0"})] * 2,
        make_json_reply(CONSUMER),
        make_json_reply(samples.make_page([CONSUMER])),
        make_json_reply(CONSUMER),
        make_json_reply(None, status=204),
    )
    with Client(server.url, api_key=None) as client:
        session = client.sessions.get("s1")
        done = session.redact([3, 4], "asked for", include_forks=True)
        assert (done.session.seq, done.seqs, done.seq) == (5, [3, 4], 5)
        assert done.forks == [RedactedCopy(session_id="s2", seqs=[3])]
        assert session.redact([3], "asked for", dry_run=True).seq is None
        assert [fork.id for fork in session.forks(page_size=1)] == ["s2", "s3"]
        assert session.verify(head=Head(seq=1, hash="h")).head == Head(seq=1, hash="h")
        (entry,) = client.audit.list(after=0)
        assert (entry.by, entry.data) == ("Lee", {"session_id": "s1"})
        assert client.audit.verify(head=Head(seq=1, hash="h")).valid
        assert client.audit.checkpoint(2, since=3).consistency == ["00"]
        assert [leaf.session_id for leaf in client.audit.leaves(after=4)] == [None]
        assert session.proof(checkpoint=2).newest == Checkpoint(**CHECKPOINT)
        events = client.feed.events(consumer="crm", type=["a", "b"], agent="Ann", metadata={"k": 1}, page_size=9)
        assert [due.keep for due in client.sessions.due(before="2100-01-01T00:00:00Z")] == ["30d"]
        assert [(event.cursor, event.seq) for event in events] == [("1-2", 2)]
        assert [(page.data, page.next_cursor) for page in client.feed.pages(after="1-2")] == [([], "9-0")]
        assert client.feed.confirm("crm", "1-2").lag == 4
        assert [one.name for one in client.feed.consumers()] == ["crm"]
        assert client.feed.consumer("crm") == Consumer(**CONSUMER)
        client.feed.forget("crm")
    assert server.lines == [
        "GET /v1/sessions/s1",
        "POST /v1/sessions/s1/redact",
        "POST /v1/sessions/s1/redact",
        "GET /v1/sessions/s1/forks?limit=1",
        "GET /v1/sessions/s1/forks?limit=1&cursor=c",
        "GET /v1/sessions/s1/verify?head=1%3Ah",
        "GET /v1/audit?after=0",
        "GET /v1/audit/verify?head=1%3Ah",
        "GET /v1/checkpoint?number=2&since=3",
        "GET /v1/checkpoint/leaves?after=4",
        "GET /v1/sessions/s1/proof?checkpoint=2",
        "GET /v1/retention?before=2100-01-01T00%3A00%3A00Z",
        "GET /v1/events?consumer=crm&metadata.k=1&limit=9&type=a&type=b&agent=Ann",
        "GET /v1/events?after=1-2&metadata.k=1&limit=9&type=a&type=b&agent=Ann",
        "GET /v1/events?after=1-2",
        "GET /v1/events?after=9-0",
        "PUT /v1/consumers/crm",
        "GET /v1/consumers",
        "GET /v1/consumers/crm",
        "DELETE /v1/consumers/crm",
    ]


# The client's calls about API keys and quotas, and how their answers are read; the real server answers them alike.

KEY = {"id": "key_1", "tenant": "t", "name": "n", "role": "read", "created_at": "now", "expires_at": "then"}
QUOTAS = {
    "sessions": {"used": 3, "limit": 10},
    "stored_bytes": {"used": 5, "limit": 100},
    "tokens_today": {"used": 7, "limit": None},
    "day_ends_in_seconds": 60,
}
COUNTS = {"status": {"waiting": {"count": 2, "more": False}}, "last_run": {"failed": {"count": 1000, "more": True}}}
ME = {
    "tenant": "acme",
    "key": {"id": "key_1", "name": "n", "expires_at": None},
    "role": "read",
    "permissions": ["read"],
}


def script_answers(server: StubServer) -> None:
    server.script(
        make_json_reply({**KEY, "key": "swk_secret"}),
        make_json_reply(samples.make_page([KEY])),
        make_json_reply({**KEY, "revoked_at": "later"}),
        make_json_reply(QUOTAS),
        make_json_reply(COUNTS),
        make_json_reply({"currency": "EUR", "data": [{"model": "m*", "input": 2, "cached_input": 1, "output": 3}]}),
        make_json_reply(ME),
    )


def test_key_answers_are_values(server: StubServer, client: Client) -> None:
    script_answers(server)
    ends = datetime(2026, 12, 31, tzinfo=UTC)
    made = client.keys.create(name="n", role="read", expires_at=ends)
    assert (made.id, made.key, made.expires_at) == ("key_1", "swk_secret", "then")
    assert "swk_secret" not in f"{made} {made!r}"
    assert [key.name for key in client.keys.list(page_size=5)] == ["n"]
    assert client.keys.revoke("key_1").revoked_at == "later"
    assert client.quotas().tokens_today.limit is None
    counts = client.sessions.counts(children=True)
    assert (counts.status["waiting"].count, counts.last_run["failed"].more) == (2, True)
    prices = client.prices()
    assert (prices.currency, prices.data[0].model, prices.data[0].cached_input) == ("EUR", "m*", 1.0)
    me = client.me()
    assert me.key is not None
    assert (me.tenant, me.key.name, me.role, me.permissions) == ("acme", "n", "read", ["read"])
    assert server.lines == [
        "POST /v1/keys",
        "GET /v1/keys?limit=5",
        "POST /v1/keys/key_1/revoke",
        "GET /v1/quotas",
        "GET /v1/counts?children=true",
        "GET /v1/prices",
        "GET /v1/me",
    ]
    assert server.received[0].json == {"name": "n", "role": "read", "expires_at": "2026-12-31T00:00:00+00:00"}
    assert server.received[0].headers["idempotency-key"]


def test_time_without_zone_refused_before_sending(server: StubServer, client: Client) -> None:
    with pytest.raises(ValueError, match="time zone"):
        client.keys.create(expires_at=datetime(2026, 12, 31))
    assert server.lines == []


async def test_a_server_makes_and_ends_keys(sqlite_ready: str) -> None:
    async with start_server(server_settings(database_url=sqlite_ready)) as service:
        headers = await create_key(service, "acme", role="admin")
        admin = AsyncClient(service.url, api_key=headers["Authorization"].removeprefix("Bearer "))
        async with admin:
            tomorrow = datetime.now(UTC) + timedelta(days=1)
            made = await admin.keys.create(name="reader", role="read", expires_at=tomorrow, idempotency_key="once")
            again = await admin.keys.create(name="reader", role="read", expires_at=tomorrow, idempotency_key="once")
            assert (again.id, again.key) == (made.id, None)
            assert [key.name async for key in admin.keys.list(page_size=1)][1:] == ["reader"]
            assert (await admin.quotas()).sessions.used == 0
            async with AsyncClient(service.url, api_key=made.key) as reader:
                assert [session.id async for session in reader.sessions.list()] == []
                with pytest.raises(Forbidden):
                    await reader.keys.create()
            assert (await admin.keys.revoke(made.id)).revoked_at is not None
            with pytest.raises(ApiKeyNotFound):
                await admin.keys.revoke("key_none")


HOOK = {
    "id": "wh_1", "url": "https://a.example/", "types": [], "agents": [], "metadata": {}, "state": "enabled",
    "cursor": "1-0", "failures": 0, "created_at": "", "updated_at": "",
}  # fmt: skip
SECRET = {**HOOK, "secret": "whsec_x"}
DELIVERY = {"cursor": "1-2", "session_id": "s1", "seq": 2, "state": "dead", "attempts": 11, "updated_at": ""}


def test_webhooks_are_managed(server: StubServer) -> None:
    server.script(
        make_json_reply(SECRET, status=201),
        make_json_reply(samples.make_page([HOOK])),
        make_json_reply(HOOK),
        make_json_reply({**HOOK, "state": "paused"}),
        make_json_reply({**SECRET, "secret": "whsec_y"}),
        make_json_reply({"delivered": False, "duration_ms": 1.5, "status": 500, "error": "the answer was 500"}),
        make_json_reply(samples.make_page([DELIVERY])),
        make_json_reply({**DELIVERY, "state": "waiting"}),
        make_json_reply(None, status=204),
    )
    with Client(server.url, api_key=None) as client:
        hooks = client.webhooks
        assert hooks.create("https://a.example/", types=["run.failed"], metadata={"k": "v"}).secret == "whsec_x"
        assert [one.id for one in hooks.list()] == ["wh_1"]
        assert hooks.get("wh_1").state == "enabled"
        assert hooks.update("wh_1", state="paused").state == "paused"
        assert hooks.rotate("wh_1", keep_seconds=60).secret == "whsec_y"
        tested = hooks.test("wh_1")
        assert (tested.delivered, tested.status) == (False, 500)
        assert [one.seq for one in hooks.deliveries("wh_1", state="dead")] == [2]
        assert hooks.resend("wh_1", "1-2").state == "waiting"
        hooks.delete("wh_1")
    assert server.lines == [
        "POST /v1/webhooks",
        "GET /v1/webhooks",
        "GET /v1/webhooks/wh_1",
        "PATCH /v1/webhooks/wh_1",
        "POST /v1/webhooks/wh_1/rotate",
        "POST /v1/webhooks/wh_1/test",
        "GET /v1/webhooks/wh_1/deliveries?state=dead",
        "POST /v1/webhooks/wh_1/deliveries/1-2/resend",
        "DELETE /v1/webhooks/wh_1",
    ]


# Exports and imports: files of any length, there and back.


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
