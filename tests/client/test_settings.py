"""Settings of the client, and values and traces that it sends."""

from __future__ import annotations

import json
import math
import runpy
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

import swarmkeep_client
from swarmkeep_client import AsyncClient, Client, Unauthenticated
from swarmkeep_client._json import decode, encode
from tests.client import samples
from tests.client.stub_server import DROPPED, StubServer, make_json_reply, make_problem_reply, make_reply


def test_settings_come_from_the_environment(server: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWARMKEEP_URL", server.url + "/")
    monkeypatch.setenv("SWARMKEEP_API_KEY", "sk_environment")
    server.script(make_json_reply(samples.make_session()), make_json_reply(samples.make_session()))
    with Client() as client:
        assert client.base_url == server.url
        client.sessions.get("s1")
    assert server.last.headers["authorization"] == "Bearer sk_environment"
    with Client(server.url, api_key="sk_argument") as client:
        client.sessions.get("s1")
    assert server.last.headers["authorization"] == "Bearer sk_argument"


def test_keyless_client_sends_no_key(server: StubServer, client: Client) -> None:
    server.script(make_json_reply(samples.make_session()))
    client.sessions.get("s1")
    assert "authorization" not in server.last.headers
    assert server.last.headers["user-agent"].startswith("swarmkeep-client/")


def test_default_server_is_the_local_one() -> None:
    with Client() as client:
        assert client.base_url == "http://127.0.0.1:8000"


def test_server_may_live_below_a_path(server: StubServer) -> None:
    server.script(make_json_reply(samples.make_session()))
    with Client(server.url + "/team/swarm/") as client:
        client.sessions.get("s1")
    assert server.lines == ["GET /team/swarm/v1/sessions/s1"]


async def test_key_is_never_shown(server: StubServer) -> None:
    server.script(
        make_problem_reply(401, "unauthenticated", detail="no such key"), make_json_reply(samples.make_session())
    )
    async with AsyncClient(server.url, api_key="sk_secret") as other:
        with Client(server.url, api_key="sk_secret") as client:
            with pytest.raises(Unauthenticated) as refused:
                client.sessions.get("s1")
            session = client.sessions.get("s1")
        shown = [client, other, session, client.sessions, refused.value, refused.value.problem, client._sender.settings]
    assert "sk_secret" not in repr(shown) + str(refused.value) + "".join(server.lines)


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://host", "http://", "http://h?key=1", "http://h#x", "http://h:x"]
)
def test_impossible_base_url_refused(url: str) -> None:
    with pytest.raises(ValueError, match="base URL"):
        Client(url)


def test_key_in_url_refused_unquoted() -> None:
    with pytest.raises(ValueError, match="pass it as api_key") as refused:
        Client("http://sk_secret@host")
    assert "sk_secret" not in str(refused.value)


@pytest.mark.parametrize("key", ["sk secret", "sk_sécret", "sk\nsecret"])
def test_unsendable_key_refused_unquoted(key: str) -> None:
    with pytest.raises(ValueError, match="API key") as refused:
        Client(api_key=key)
    assert key not in str(refused.value)


def test_timeouts_suit_long_runs() -> None:
    with Client() as client, Client(timeout=2) as hasty, Client(timeout=None) as patient:
        assert (client._sender.settings.timeout.connect, client._sender.settings.timeout.read) == (5, 600)
        assert (client._sender.settings.stream_timeout.connect, client._sender.settings.stream_timeout.read) == (5, 45)
        assert (hasty._sender.settings.timeout.connect, hasty._sender.settings.timeout.read) == (2, 2)
        assert (patient._sender.settings.timeout.connect, patient._sender.settings.timeout.read) == (5, None)
    with Client(timeout=httpx2.Timeout(7)) as exact:
        assert exact._sender.settings.timeout.connect == 7


FORKING = """
import os, sys
from swarmkeep_client import Client
client = Client(sys.argv[1], timeout=10, max_retries=0)
print(client.health().ready)
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
    print(client.health().ready)
else:
    os._exit(0 if client.health().ready else 1)
"""
ALIVE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


def answer_request(connection: socket.socket) -> None:
    received = b""
    while not received.endswith(b"\r\n\r\n"):
        piece = connection.recv(65536)
        assert piece, "the program has ended"
        received += piece
    connection.sendall(ALIVE)


def test_forked_process_has_own_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        # A read that times out ends the program, should it ask where nobody answers.
        program = subprocess.Popen([sys.executable, "-c", FORKING, url], stdout=subprocess.PIPE, text=True)
        with program, listener.accept()[0] as parents:
            answer_request(parents)
            with listener.accept()[0] as childs:
                answer_request(childs)
            answer_request(parents)
            assert program.communicate()[0].split() == ["True", "True"]
    assert program.returncode == 0


def test_threads_share_a_client(server: StubServer, client: Client) -> None:
    server.answer = lambda request: make_json_reply(samples.make_session(id=request.path.rpartition("/")[2]))
    found: list[bool] = []

    def look_up(number: int) -> None:
        found.extend(client.sessions.get(f"t{number}-{i}").id == f"t{number}-{i}" for i in range(10))

    threads = [threading.Thread(target=look_up, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 80


# What a program with traces tells the server of them.

TRACE, SPAN = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7


def test_request_names_current_span_on_each_send(server: StubServer, client: Client) -> None:
    tracer = TracerProvider().get_tracer("tests")
    server.script(DROPPED, make_json_reply(samples.make_session(), 201))
    with tracer.start_as_current_span("a caller") as span:
        client.sessions.create(agent="A")
    context = span.get_span_context()
    named = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    assert [request.headers["traceparent"] for request in server.received] == [named, named]
    assert "tracestate" not in server.last.headers


async def test_current_trace_and_state_passed_on(server: StubServer, async_client: AsyncClient) -> None:
    server.script(make_json_reply(samples.make_session(), 201))
    context = SpanContext(TRACE, SPAN, True, TraceFlags(0), TraceState([("vendor", "1")]))
    with trace.use_span(NonRecordingSpan(context)):
        await async_client.sessions.create(agent="A")
    assert server.last.headers["traceparent"] == f"00-{TRACE:032x}-{SPAN:016x}-00"
    assert server.last.headers["tracestate"] == "vendor=1"


def test_no_span_sends_no_trace(server: StubServer, client: Client) -> None:
    server.script(make_json_reply(samples.make_session(), 201))
    client.sessions.create(agent="A")
    assert not [name for name in server.last.headers if name.lower().startswith("trace")]


# Values go to the server and come back unchanged.

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


# Active runs in both clients.


async def test_active_runs_come_page_by_page(server: StubServer, client: Client, async_client: AsyncClient) -> None:
    def script() -> None:
        for name, cursor in (("r1", "c"), ("r2", None)):
            run = {"id": name, "session_id": "s", "status": "waiting", "agent": "A", "since": "then", "later": 1}
            server.script(make_json_reply({"data": [run], "next_cursor": cursor}))

    script()
    assert [run.id for run in client.active_runs("waiting", page_size=1)] == ["r1", "r2"]
    script()
    assert [(run.id, run.server) async for run in async_client.active_runs("waiting", page_size=1)] == [
        ("r1", None), ("r2", None),
    ]  # fmt: skip
    lines = ["GET /v1/runs?status=waiting&limit=1", "GET /v1/runs?status=waiting&limit=1&cursor=c"]
    assert server.lines == lines * 2


# The blocking client is made from the asyncio one.

MAKER = Path(__file__).parents[2] / "clients" / "make_sync.py"


def test_blocking_client_equals_made_one(tmp_path: Path) -> None:
    made = runpy.run_path(str(MAKER))["make_sync"](tmp_path)
    home = Path(swarmkeep_client.__file__).parent
    assert len(made) == 3
    assert [file.name for file in made if file.read_bytes() != (home / file.name).read_bytes()] == [], (
        "run `make client`"
    )
