"""Requests that are sent again: which, under which key, after how long."""

from __future__ import annotations

import socket
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from swarmkeep_client import (
    ApiError,
    AsyncClient,
    Client,
    ConnectionFailed,
    Draining,
    IdempotencyMismatch,
    RateLimited,
    SessionNotFound,
)
from swarmkeep_client._retries import LONGEST_PAUSE_SECONDS, Retries
from swarmkeep_client._wire import Answer, LostAnswer, Request
from tests.client import samples
from tests.client.conftest import RecordedSleeps
from tests.client.stub_server import (
    DROPPED,
    ReceivedRequest,
    Reply,
    StubServer,
    make_json_reply,
    make_problem_reply,
    make_reply,
)

BROKEN = Reply((b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n{",))
HTML_502 = make_reply(502, b"<html><h1>Bad gateway</h1>\n</html>", "text/html")


def test_write_retried_with_same_key(server: StubServer, client: Client, sleeps: RecordedSleeps) -> None:
    server.script(DROPPED, BROKEN, HTML_502, make_json_reply(samples.make_session(), 201))
    assert client.sessions.create(agent="A").id == "s1"
    assert len({request.key for request in server.received}) == 1
    assert {request.body for request in server.received} == {b'{"agent":"A"}'}
    assert len(sleeps.seconds) == 3


async def test_async_write_retried_with_same_key(
    server: StubServer, async_client: AsyncClient, sleeps: RecordedSleeps
) -> None:
    server.script(DROPPED, BROKEN, HTML_502, make_json_reply(samples.make_session(), 201))
    assert (await async_client.sessions.create(agent="A")).id == "s1"
    assert len({request.key for request in server.received}) == 1
    assert len(sleeps.seconds) == 3


def test_each_write_gets_its_own_key(server: StubServer, client: Client) -> None:
    server.script(*[make_json_reply(samples.make_session())] * 4)
    client.sessions.create()
    session = client.sessions.create()
    session.update(metadata={"a": 1})
    session.update(metadata={"a": 1}, idempotency_key="mine")
    keys = [request.key for request in server.received]
    assert len(set(keys)) == 4
    assert keys[3] == "mine"


def test_reads_retried_without_key(server: StubServer, client: Client) -> None:
    server.script(DROPPED, make_json_reply(samples.make_session()))
    client.sessions.get("s1")
    assert [request.key for request in server.received] == [None, None]


@pytest.mark.parametrize("key", ["", "a\nb", "schlüssel"])
def test_unsendable_header_key_refused(client: Client, key: str) -> None:
    with pytest.raises(ValueError, match="idempotency key"):
        client.sessions.create(idempotency_key=key)


@pytest.mark.parametrize("status", [400, 401, 404, 409, 412, 413, 422, 500, 501])
def test_final_answer_is_not_retried(server: StubServer, client: Client, sleeps: RecordedSleeps, status: int) -> None:
    server.script(make_problem_reply(status, "whatever"))
    with pytest.raises(ApiError):
        client.sessions.create()
    assert sleeps.seconds == []


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_temporary_refusal_raised_after_three_retries(
    server: StubServer, client: Client, sleeps: RecordedSleeps, status: int
) -> None:
    server.script(*[make_problem_reply(status, "overloaded")] * 4)
    with pytest.raises(ApiError) as failed:
        client.sessions.get("s1")
    assert (failed.value.status, failed.value.code) == (status, "overloaded")
    assert len(sleeps.seconds) == 3


def test_retry_after_is_honoured(server: StubServer, client: Client, sleeps: RecordedSleeps) -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    server.script(
        make_problem_reply(429, "rate_limited", {"retry-after": "7"}),
        make_problem_reply(503, "draining", {"retry-after": later}),
        make_problem_reply(429, "rate_limited", {"retry-after": "soon"}),
        make_json_reply(samples.make_session()),
    )
    client.sessions.get("s1")
    seconds, date, nonsense = sleeps.seconds
    assert seconds == 7
    assert 20 < date <= 30
    assert nonsense <= 2


def test_long_retry_after_left_to_caller(server: StubServer, client: Client, sleeps: RecordedSleeps) -> None:
    server.script(make_problem_reply(429, "rate_limited", {"retry-after": "3600"}))
    with pytest.raises(RateLimited) as refused:
        client.sessions.get("s1")
    assert refused.value.retry_after == 3600
    assert sleeps.seconds == []


def test_last_retry_after_is_told(server: StubServer) -> None:
    server.script(make_problem_reply(503, "draining", {"retry-after": "1"}))
    with Client(server.url, max_retries=0) as client, pytest.raises(Draining) as refused:
        client.sessions.get("s1")
    assert refused.value.retry_after == 1


def test_pauses_double_with_jitter_to_limit() -> None:
    request = Request(method="GET", path="/")
    short, long = Retries(6, chance=lambda: 0.0), Retries(6, chance=lambda: 1.0)
    assert [short.pause_after(request, LostAnswer("")) for _ in range(7)] == [0.25, 0.5, 1.0, 2.0, 4.0, 4.0, None]
    assert [long.pause_after(request, LostAnswer("")) for _ in range(6)] == [
        0.5,
        1.0,
        2.0,
        4.0,
        8.0,
        LONGEST_PAUSE_SECONDS,
    ]


def test_unsafe_requests_are_not_repeated() -> None:
    request = Request(method="POST", path="/")
    assert Retries(3).pause_after(request, LostAnswer("")) is None
    assert Retries(3).pause_after(request, Answer(503, {}, b"")) is None


def test_unreachable_server_is_a_clear_error(sleeps: RecordedSleeps) -> None:
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody_listens.getsockname()[1]}"
        with Client(url, sleep=sleeps.sleep) as client, pytest.raises(ConnectionFailed) as failed:
            client.sessions.get("s1")
    assert "GET /v1/sessions/s1" in str(failed.value)
    assert url in str(failed.value)
    assert failed.value.__cause__ is not None
    assert failed.value.status is None
    assert len(sleeps.seconds) == 3


def test_slow_answer_is_requested_again(server: StubServer, sleeps: RecordedSleeps) -> None:
    slow = [Reply((b"HTTP/1.1 200 OK\r\n",), "silence")]

    def answer(request: ReceivedRequest) -> Reply:
        if request.method == "GET":
            return make_json_reply(samples.make_session())
        return slow.pop() if slow else make_json_reply(samples.make_run())

    server.answer = answer
    with Client(server.url, timeout=0.2, sleep=sleeps.sleep) as client:
        assert client.sessions.get("s1").run("Hi").id == "r1"
    first, second, *_ = (request for request in server.received if request.method == "POST")
    assert (first.key, first.body) == (second.key, second.body)


def test_deletion_with_lost_answer_succeeds(server: StubServer, client: Client) -> None:
    server.script(make_json_reply(samples.make_session()), DROPPED, make_problem_reply(404, "session_not_found"))
    client.sessions.get("s1").delete()


def test_deletion_of_missing_refused(server: StubServer, client: Client) -> None:
    server.script(make_json_reply(samples.make_session()), make_problem_reply(404, "session_not_found"))
    with pytest.raises(SessionNotFound):
        client.sessions.get("s1").delete()


def test_mismatched_key_is_refused(server: StubServer, client: Client) -> None:
    server.script(make_problem_reply(422, "idempotency_mismatch"))
    with pytest.raises(IdempotencyMismatch):
        client.sessions.create(idempotency_key="used")
