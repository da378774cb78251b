"""Each code of the API is a class of its own, every other mishap a clear one; what is sent again, and when."""

from __future__ import annotations

import copy
import pickle
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import msgspec
import pytest

import swarmkeep_client
from swarmkeep.http.errors import TITLES
from swarmkeep_client import (
    AgentNotFound,
    AgentUnavailable,
    ApiError,
    AsyncClient,
    Client,
    ConnectionFailed,
    Draining,
    FieldError,
    IdempotencyMismatch,
    InvalidRequest,
    RateLimited,
    Run,
    RunCancelled,
    RunFailed,
    SeqMismatch,
    SessionBusy,
    SessionNotFound,
    SwarmkeepError,
)
from swarmkeep_client._retries import LONGEST_PAUSE_SECONDS, Retries
from swarmkeep_client._wire import Answer, LostAnswer, Request
from swarmkeep_client.errors import ERROR_BY_CODE
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
from tests.http.test_errors import CODES

# Of the public contract, by the code: each has the name of its code, but for these.
NAMES = {"key_not_found": "ApiKeyNotFound", "not_found": "RouteNotFound", "taken_over": "TakenOverByOther"}
STATUSES = {code: status for status, codes in CODES.items() for code in codes}


@pytest.fixture
def hasty(server: StubServer) -> Client:
    return Client(server.url, max_retries=0)


@pytest.mark.parametrize("code", sorted(STATUSES))
def test_every_code_is_its_own_class(server: StubServer, hasty: Client, code: str) -> None:
    status, name = STATUSES[code], NAMES.get(code, code.title().replace("_", ""))
    server.script(make_problem_reply(status, code, detail="that is why"))
    with hasty, pytest.raises(getattr(swarmkeep_client, name)) as refused:
        hasty.sessions.get("s1")
    error = refused.value
    assert isinstance(error, ApiError)
    assert isinstance(error, SwarmkeepError)
    assert (error.status, error.code, error.detail) == (status, code, "that is why")
    assert error.title == code.replace("_", " ")
    assert error.problem["type"] == f"/problems/{code}"
    assert str(error) == f"{status} {code}: that is why"


def test_error_classes_match_server_codes() -> None:
    assert ERROR_BY_CODE.keys() == STATUSES.keys() == TITLES.keys()


def test_unknown_code_is_an_api_error(server: StubServer, hasty: Client) -> None:
    server.script(make_problem_reply(418, "teapot", detail="short and stout"))
    with hasty, pytest.raises(ApiError) as refused:
        hasty.sessions.get("s1")
    assert type(refused.value) is ApiError
    assert (refused.value.status, refused.value.code) == (418, "teapot")


def test_errors_carry_what_the_server_adds(server: StubServer, hasty: Client) -> None:
    server.script(
        make_problem_reply(400, "invalid_request", errors=[{"pointer": "/agent", "detail": "not text"}]),
        make_problem_reply(400, "invalid_request"),
        make_problem_reply(409, "session_busy", active_run_id="r7"),
        make_problem_reply(409, "agent_unavailable", known_agents=["A", "B"]),
        make_problem_reply(404, "agent_not_found", known_agents=["A", "B"]),
        make_problem_reply(412, "seq_mismatch", seq=9),
        make_problem_reply(429, "rate_limited", {"retry-after": "3", "x-request-id": "req_7"}),
    )
    with hasty:
        with pytest.raises(InvalidRequest) as invalid:
            hasty.sessions.get("s1")
        assert invalid.value.errors == [FieldError("/agent", "not text")]
        with pytest.raises(InvalidRequest) as bare:
            hasty.sessions.get("s1")
        assert bare.value.errors == []
        with pytest.raises(SessionBusy) as busy:
            hasty.sessions.get("s1")
        assert busy.value.active_run_id == "r7"
        with pytest.raises(AgentUnavailable) as unavailable:
            hasty.sessions.get("s1")
        assert unavailable.value.known_agents == ["A", "B"]
        with pytest.raises(AgentNotFound) as unknown:
            hasty.sessions.get("s1")
        assert unknown.value.known_agents == ["A", "B"]
        with pytest.raises(SeqMismatch) as stale:
            hasty.sessions.get("s1")
        assert stale.value.seq == 9
        with pytest.raises(RateLimited) as limited:
            hasty.sessions.get("s1")
        assert limited.value.retry_after == 3
        assert (limited.value.request_id, stale.value.request_id) == ("req_7", None)


def test_proxy_page_is_clear_error(server: StubServer, hasty: Client) -> None:
    body = b"<html>\n<h1>Bad   gateway</h1></html>" + b"x" * 5_000
    server.script(make_reply(502, body, "text/html; charset=utf-8", {"x-request-id": "req_8"}))
    with hasty, pytest.raises(ApiError) as failed:
        hasty.sessions.get("s1")
    error = failed.value
    assert (error.status, error.code, error.title) == (502, "unexpected_answer", "Bad Gateway")
    assert error.request_id == "req_8"
    assert "GET /v1/sessions/s1 was answered with 502 text/html" in error.detail
    assert "<html> <h1>Bad gateway</h1></html>" in error.detail
    assert len(error.detail) < 400


@pytest.mark.parametrize(
    "answer",
    [
        make_reply(200, b"<html>Welcome to the hotel's network", "text/html"),
        make_reply(200, b"", "application/json"),
        make_json_reply([]),
        make_json_reply({"id": 7}),
        make_reply(302, b"", "text/plain", {"location": "https://elsewhere.example/"}),
        make_json_reply({"error": "old style"}, 400),
        make_reply(200, b"[" * 100_000, "application/json"),
    ],
)
def test_contract_breaking_answer_is_clear_error(server: StubServer, hasty: Client, answer: object) -> None:
    server.script(answer)  # type: ignore[arg-type]
    with hasty, pytest.raises(ApiError) as failed:
        hasty.sessions.get("s1")
    assert failed.value.code == "unexpected_answer"


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_failed_run_raised_with_its_output(server: StubServer, hasty: Client, status: str) -> None:
    server.script(
        make_json_reply(samples.make_session()), make_json_reply(samples.make_failed_run() | {"status": status})
    )
    with hasty, pytest.raises(RunFailed, match="provider_error: no luck") as failed:
        hasty.sessions.get("s1").run("Hi")
    error = failed.value
    assert (error.run.id, error.run.status, error.run.output_text) == ("r1", status, "Hello, John.")
    assert (error.error.code, error.error.retryable, error.error.provider_status) == ("provider_error", True, 500)


async def test_async_cancelled_run_is_raised(
    server: StubServer, async_client: AsyncClient, sleeps: RecordedSleeps
) -> None:
    server.script(
        make_json_reply(samples.make_session()),
        make_json_reply(samples.make_run(status="cancelled", stop_reason="cancelled")),
    )
    session = await async_client.sessions.get("s1")
    with pytest.raises(RunCancelled) as cancelled:
        await session.run("Hi")
    assert cancelled.value.error.code == "cancelled"
    assert not isinstance(cancelled.value, RunFailed)
    assert sleeps.seconds == []


@pytest.mark.parametrize("make_copy", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_errors_copy_and_pickle(make_copy: Callable[[SwarmkeepError], SwarmkeepError]) -> None:
    run = msgspec.convert(samples.make_failed_run(), Run)
    busy = SessionBusy("busy", status=409, code="session_busy", problem={"active_run_id": "r7"}, request_id="q")
    for error in (RunFailed(run), RunCancelled(run), busy, ConnectionFailed("gone")):
        copied = make_copy(error)
        assert (type(copied), str(copied), vars(copied)) == (type(error), str(error), vars(error))


def test_waiting_run_is_an_answer(server: StubServer, hasty: Client) -> None:
    pending = [{"tool_call_id": "c1", "name": "pay", "arguments": "{}", "reason": "approval", "expires_at": None}]
    waiting = samples.make_run(status="waiting", stop_reason="approval", pending=pending, finished_at=None)
    server.script(make_json_reply(samples.make_session()), make_json_reply(waiting))
    with hasty:
        run = hasty.sessions.get("s1").run("Hi")
    assert (run.status, run.pending[0].name) == ("waiting", "pay")


# Requests that are sent again: which, under which key, after how long.


BROKEN = Reply((b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n{",))
HTML_502 = make_reply(502, b"<html><h1>Bad gateway</h1>\n</html>", "text/html")


def test_write_retried_with_same_key(server: StubServer, client: Client, sleeps: RecordedSleeps) -> None:
    server.script(DROPPED, BROKEN, HTML_502, make_json_reply(samples.make_session(), 201))
    assert client.sessions.create(agent="A").id == "s1"
    assert len({request.key for request in server.received}) == 1
    assert {request.body for request in server.received} == {b'{"agent":"A"}'}
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
