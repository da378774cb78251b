"""Each code of the API is a class of its own, and every other mishap a clear one."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

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
    FieldError,
    InvalidRequest,
    RateLimited,
    Run,
    RunCancelled,
    RunFailed,
    SeqMismatch,
    SessionBusy,
    SwarmkeepError,
)
from swarmkeep_client.errors import ERROR_BY_CODE
from tests.client import samples
from tests.client.conftest import RecordedSleeps
from tests.client.stub_server import StubServer, make_json_reply, make_problem_reply, make_reply

CODES = {
    "invalid_request": (400, "InvalidRequest"),
    "invalid_import": (400, "InvalidImport"),
    "unauthenticated": (401, "Unauthenticated"),
    "forbidden": (403, "Forbidden"),
    "session_not_found": (404, "SessionNotFound"),
    "key_not_found": (404, "ApiKeyNotFound"),
    "run_not_found": (404, "RunNotFound"),
    "blob_not_found": (404, "BlobNotFound"),
    "agent_not_found": (404, "AgentNotFound"),
    "checkpoint_not_found": (404, "CheckpointNotFound"),
    "person_not_found": (404, "PersonNotFound"),
    "person_erased": (409, "PersonErased"),
    "consumer_not_found": (404, "ConsumerNotFound"),
    "webhook_not_found": (404, "WebhookNotFound"),
    "delivery_not_found": (404, "DeliveryNotFound"),
    "not_in_checkpoint": (404, "NotInCheckpoint"),
    "log_damaged": (409, "LogDamaged"),
    "search_off": (501, "SearchOff"),
    "session_busy": (409, "SessionBusy"),
    "session_exists": (409, "SessionExists"),
    "already_decided": (409, "AlreadyDecided"),
    "run_not_waiting": (409, "RunNotWaiting"),
    "on_hold": (409, "OnHold"),
    "not_taken_over": (409, "NotTakenOver"),
    "taken_over": (409, "TakenOverByOther"),
    "agent_unavailable": (409, "AgentUnavailable"),
    "seq_mismatch": (412, "SeqMismatch"),
    "too_large": (413, "TooLarge"),
    "idempotency_mismatch": (422, "IdempotencyMismatch"),
    "rate_limited": (429, "RateLimited"),
    "quota_exceeded": (429, "QuotaExceeded"),
    "draining": (503, "Draining"),
    "not_found": (404, "RouteNotFound"),
    "event_not_found": (404, "EventNotFound"),
    "method_not_allowed": (405, "MethodNotAllowed"),
    "request_timeout": (408, "RequestTimeout"),
    "request_not_kept": (409, "RequestNotKept"),
    "session_damaged": (409, "SessionDamaged"),
    "history_damaged": (409, "HistoryDamaged"),
    "arguments_changed": (409, "ArgumentsChanged"),
    "unsupported_media_type": (415, "UnsupportedMediaType"),
    "internal_error": (500, "InternalError"),
    "overloaded": (503, "Overloaded"),
    "store_unavailable": (503, "StoreUnavailable"),
    "schema_behind": (503, "SchemaBehind"),
}


@pytest.fixture
def client(server: StubServer) -> Client:
    return Client(server.url, max_retries=0)


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_its_own_class(server: StubServer, client: Client, code: str) -> None:
    status, name = CODES[code]
    server.script(make_problem_reply(status, code, detail="that is why"))
    with client, pytest.raises(getattr(swarmkeep_client, name)) as refused:
        client.sessions.get("s1")
    error = refused.value
    assert isinstance(error, ApiError)
    assert isinstance(error, SwarmkeepError)
    assert (error.status, error.code, error.detail) == (status, code, "that is why")
    assert error.title == code.replace("_", " ")
    assert error.problem["type"] == f"/problems/{code}"
    assert str(error) == f"{status} {code}: that is why"


def test_error_classes_match_server_codes() -> None:
    assert ERROR_BY_CODE.keys() == CODES.keys() == TITLES.keys()


def test_unknown_code_is_an_api_error(server: StubServer, client: Client) -> None:
    server.script(make_problem_reply(418, "teapot", detail="short and stout"))
    with client, pytest.raises(ApiError) as refused:
        client.sessions.get("s1")
    assert type(refused.value) is ApiError
    assert (refused.value.status, refused.value.code) == (418, "teapot")


def test_errors_carry_what_the_server_adds(server: StubServer, client: Client) -> None:
    server.script(
        make_problem_reply(400, "invalid_request", errors=[{"pointer": "/agent", "detail": "not text"}]),
        make_problem_reply(400, "invalid_request"),
        make_problem_reply(409, "session_busy", active_run_id="r7"),
        make_problem_reply(409, "agent_unavailable", known_agents=["A", "B"]),
        make_problem_reply(404, "agent_not_found", known_agents=["A", "B"]),
        make_problem_reply(412, "seq_mismatch", seq=9),
        make_problem_reply(429, "rate_limited", {"retry-after": "3", "x-request-id": "req_7"}),
    )
    with client:
        with pytest.raises(InvalidRequest) as invalid:
            client.sessions.get("s1")
        assert invalid.value.errors == [FieldError("/agent", "not text")]
        with pytest.raises(InvalidRequest) as bare:
            client.sessions.get("s1")
        assert bare.value.errors == []
        with pytest.raises(SessionBusy) as busy:
            client.sessions.get("s1")
        assert busy.value.active_run_id == "r7"
        with pytest.raises(AgentUnavailable) as unavailable:
            client.sessions.get("s1")
        assert unavailable.value.known_agents == ["A", "B"]
        with pytest.raises(AgentNotFound) as unknown:
            client.sessions.get("s1")
        assert unknown.value.known_agents == ["A", "B"]
        with pytest.raises(SeqMismatch) as stale:
            client.sessions.get("s1")
        assert stale.value.seq == 9
        with pytest.raises(RateLimited) as limited:
            client.sessions.get("s1")
        assert limited.value.retry_after == 3
        assert (limited.value.request_id, stale.value.request_id) == ("req_7", None)


def test_proxy_page_is_clear_error(server: StubServer, client: Client) -> None:
    body = b"<html>\n<h1>Bad   gateway</h1></html>" + b"x" * 5_000
    server.script(make_reply(502, body, "text/html; charset=utf-8", {"x-request-id": "req_8"}))
    with client, pytest.raises(ApiError) as failed:
        client.sessions.get("s1")
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
def test_contract_breaking_answer_is_clear_error(server: StubServer, client: Client, answer: object) -> None:
    server.script(answer)  # type: ignore[arg-type]
    with client, pytest.raises(ApiError) as failed:
        client.sessions.get("s1")
    assert failed.value.code == "unexpected_answer"


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_failed_run_raised_with_its_output(server: StubServer, client: Client, status: str) -> None:
    server.script(
        make_json_reply(samples.make_session()), make_json_reply(samples.make_failed_run() | {"status": status})
    )
    with client, pytest.raises(RunFailed, match="provider_error: no luck") as failed:
        client.sessions.get("s1").run("Hi")
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


def test_waiting_run_is_an_answer(server: StubServer, client: Client) -> None:
    pending = [{"tool_call_id": "c1", "name": "pay", "arguments": "{}", "reason": "approval", "expires_at": None}]
    waiting = samples.make_run(status="waiting", stop_reason="approval", pending=pending, finished_at=None)
    server.script(make_json_reply(samples.make_session()), make_json_reply(waiting))
    with client:
        run = client.sessions.get("s1").run("Hi")
    assert (run.status, run.pending[0].name) == ("waiting", "pay")
