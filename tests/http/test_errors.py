"""Errors over HTTP: every one a problem document with a stable code, and none that tells what is inside."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest

from swarmkeep.events.errors import DomainError, Overloaded
from swarmkeep.http import errors
from swarmkeep.logs import OutageLog
from swarmkeep.store.records import SchemaBehind, StoreUnavailable
from tests.http.server import RunningServer, check_problem

# Of the public contract. A code may be added, never renamed.
CODES = {
    400: {"invalid_request", "invalid_import"},
    401: {"unauthenticated"},
    403: {"forbidden"},
    404: {
        "not_found", "session_not_found", "run_not_found", "agent_not_found", "event_not_found", "key_not_found",
        "blob_not_found", "checkpoint_not_found", "not_in_checkpoint", "consumer_not_found",
        "person_not_found",
        "webhook_not_found", "delivery_not_found",
    },
    405: {"method_not_allowed"},
    408: {"request_timeout"},
    409: {
        "session_busy", "session_exists", "already_decided", "run_not_waiting", "agent_unavailable",
        "request_not_kept", "session_damaged", "history_damaged", "arguments_changed", "not_taken_over", "taken_over",
        "on_hold", "log_damaged", "person_erased",
    },
    412: {"seq_mismatch"},
    413: {"too_large"},
    415: {"unsupported_media_type"},
    422: {"idempotency_mismatch"},
    429: {"rate_limited", "quota_exceeded"},
    500: {"internal_error"},
    501: {"search_off"},
    503: {"draining", "overloaded", "store_unavailable", "schema_behind"},
}  # fmt: skip


def subclasses_of(base: type[DomainError]) -> Iterator[type[DomainError]]:
    for error in base.__subclasses__():
        yield error
        yield from subclasses_of(error)


def test_every_domain_error_has_its_status() -> None:
    ours = {error for error in subclasses_of(DomainError) if error.__module__.startswith("swarmkeep.")}
    assert {error.code for error in ours} <= set(errors.STATUS)


def test_error_codes_documented_with_titles() -> None:
    assert set().union(*CODES.values()) == set(errors.TITLES)
    assert all(code in CODES[status] for code, status in errors.STATUS.items())


async def test_unknown_paths_and_methods(plain: RunningServer) -> None:
    for path in ("/v1", "/v1/nothing", "/v1/sessions/a/b/c", "/v1/sessions/s/events/x/request"):
        refused = check_problem(await plain.get(path), 404, "not_found")
        assert f"GET {path}" in refused["detail"]
    long = check_problem(await plain.get("/v1/" + "x" * 5000), 404, "not_found")
    assert len(long["detail"]) < 300
    for method, path in (("PUT", "/v1/sessions"), ("DELETE", "/v1/agents"), ("POST", "/health/live")):
        answer = await plain.client.request(method, path)
        check_problem(answer, 405, "method_not_allowed")
        assert answer.headers["allow"]


async def test_options_name_every_path_method(plain: RunningServer) -> None:
    """Resources of several handlers, of one, and of the OpenAI face."""
    for path, methods in {
        "/v1/sessions": "GET, HEAD, OPTIONS, POST",
        "/v1/sessions/s": "DELETE, GET, HEAD, OPTIONS, PATCH",
        "/v1/agents": "GET, HEAD, OPTIONS",
        "/openai/v1/conversations/c": "DELETE, GET, HEAD, OPTIONS, POST",
    }.items():
        for method, status in (("OPTIONS", 204), ("PUT", 405)):
            # A query is what another method of the path may read.
            answer = await plain.client.request(method, path, params={"limit": 1})
            assert (answer.status_code, answer.headers["allow"]) == (status, methods)


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("limit=0", "limit"), ("limit=201", "limit"), ("limit=x", "limit"), ("limit=", "limit"), ("limit=1.5", "limit"),
        ("limit=99999999999999999999999999", "limit"), ("status=dead", "status"), ("cursor=%00", "cursor"),
        ("cursor=x", "cursor"), ("limt=5", "limt"), ("metadata=5", "metadata"), ("metadata%00=5", "metadata\x00"),
        ("limit=1&limit=2", "limit"), ("status=idle&status=idle", "status"),
        ("metadata.team=a&metadata.team=b", "metadata.team"),
    ],
)  # fmt: skip
async def test_wrong_query_parameters_are_named(plain: RunningServer, query: str, name: str) -> None:
    found = check_problem(await plain.get(f"/v1/sessions?{query}"), 400, "invalid_request")
    assert [error["pointer"] for error in found["errors"]] == [f"/query/{name}"]
    assert found["errors"][0]["detail"]


async def test_refusals_name_parameters_and_known_values(plain: RunningServer) -> None:
    session = await plain.session()
    for path, name, choices in (
        (f"{session}/transcript?format=pdf", "format", "markdown, html"),
        ("/v1/sessions?status=dead", "status", "idle, running, waiting"),
    ):
        found = check_problem(await plain.get(path), 400, "invalid_request")
        assert found["errors"][0]["pointer"] == f"/query/{name}"
        assert found["detail"].startswith(f"{name}: Invalid enum value")
        assert sorted(found["detail"].partition("known: ")[2].split(", ")) == sorted(choices.split(", "))


async def test_refusals_repeat_little_of_what_came(plain: RunningServer) -> None:
    """An answer is not as long as a body may be, and not made of all that came."""
    runs, long = f"{await plain.session()}/runs", "1. \n" * 500_000
    asked = {"model": "Front", "input": "x"}
    for path, body in (
        ("/v1/sessions", {"agent": long}),
        (runs, {"input": "x", "on_busy": long}),
        (runs, {"input": "x", long: 1}),
        ("/openai/v1/responses", asked | {"model": long}),
        ("/openai/v1/responses", asked | {"conversation": long}),
        ("/openai/v1/responses", asked | {"input": [{"type": long}]}),
        ("/openai/v1/responses", asked | {long: 1}),
    ):
        answer = await plain.post(path, body)
        assert answer.status_code in (400, 404), answer.text[:300]
        assert len(answer.content) < 50_000


async def test_openai_clients_told_their_base_url(plain: RunningServer) -> None:
    """They show nothing but the message of an `error`."""
    for path in ("/v1/responses", "/v1/chat/completions", "/responses", "/v1/conversations/c/items"):
        refused = check_problem(await plain.post(path, {"model": "m"}), 404, "not_found")
        assert "/openai/v1" in refused["detail"]
        assert refused["error"]["message"] == refused["detail"]
    assert "error" not in check_problem(await plain.get("/v1/responsesx"), 404, "not_found")


async def test_wrong_places_named_on_every_list(plain: RunningServer) -> None:
    session = await plain.session()
    big = 2**63
    for path, pointer in {
        f"{session}?at=0": "/query/at",
        f"{session}?at={big}": "/query/at",
        f"{session}/messages?at=-1": "/query/at",
        f"{session}/messages?cursor=-1": "/query/cursor",
        f"{session}/runs?cursor=1e3": "/query/cursor",
        f"{session}/events?after=-1": "/query/after",
        f"{session}/events?after={big}": "/query/after",
        f"{session}/events?cursor={'9' * 5000}": "/query/cursor",
        f"{session}/events/0/request": "/path/seq",
        f"{session}/events/{big}/request": "/path/seq",
        "/v1/agents?cursor=Nobody": "/query/cursor",
        "/health/ready?x=1": "/query/x",
    }.items():
        found = check_problem(await plain.get(path), 400, "invalid_request")
        assert [error["pointer"] for error in found["errors"]] == [pointer]
    found = check_problem(await plain.delete(f"{session}?force=maybe"), 400, "invalid_request")
    assert found["errors"][0]["pointer"] == "/query/force"


async def test_unexpected_error_logged_not_shown(
    plain: RunningServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*args: Any, **options: Any) -> None:
        raise RuntimeError("the password is 12345")

    monkeypatch.setattr(plain.engine.reader, "list_page", broken)
    with caplog.at_level(logging.ERROR):
        answer = await plain.get("/v1/sessions")
    check_problem(answer, 500, "internal_error")
    assert "12345" not in answer.text
    assert "RuntimeError: the password is 12345" in caplog.text


async def test_database_trouble_is_not_callers_fault(
    plain: RunningServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(errors, "outage_log", OutageLog())
    error: Exception = StoreUnavailable("cannot use the database at postgresql://somebody@somewhere")

    async def broken(*args: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(plain.engine.reader, "list_page", broken)
    monkeypatch.setattr(plain.engine.store, "ping", broken)
    answer = await plain.get("/v1/sessions")
    check_problem(answer, 503, "store_unavailable")
    assert answer.headers["retry-after"] == "1"
    assert "somewhere" not in answer.text
    assert "somewhere" in caplog.text
    check_problem(await plain.get("/health/ready"), 503, "store_unavailable")
    assert (await plain.get("/health/live")).status_code == 200
    error = SchemaBehind("the database at postgresql://somewhere has not the schema")
    check_problem(await plain.get("/health/ready"), 503, "schema_behind")
    error = Overloaded(retry_after_seconds=7)
    answer = await plain.get("/v1/sessions")
    check_problem(answer, 503, "overloaded")
    assert answer.headers["retry-after"] == "7"


async def test_broken_export_says_so_in_log(
    plain: RunningServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session = await plain.session()

    async def broken(*args: Any, **options: Any) -> Any:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(plain.engine.store, "read_sealed", broken)
    with pytest.raises(httpx2.RemoteProtocolError, match="peer closed connection"):
        await plain.get(f"{session}/events", headers={"Accept": "application/x-ndjson"})
    assert "a download was broken off: gone" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), Overloaded()])
async def test_outage_broken_streams_log_one_line(
    plain: RunningServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    outage_log = OutageLog(settled_seconds=0)
    monkeypatch.setattr("swarmkeep.http.sse.outage_log", outage_log)
    session = await plain.session()

    async def broken(*args: Any, **options: Any) -> AsyncIterator[Any]:
        yield []
        raise error

    monkeypatch.setattr(plain.engine.reader, "follow_batches", broken)
    for _ in range(3):
        with pytest.raises(httpx2.RemoteProtocolError, match="peer closed connection"):
            await plain.get(f"{session}/events", headers={"Accept": "text/event-stream"})
    assert caplog.text.count(str(error)) == 1
    assert "Traceback" not in caplog.text
    outage_log.note_answer()
    assert "the database answers again, after 0 s; streams broken off: 3" in caplog.text
