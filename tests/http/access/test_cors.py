"""Pages of other origins: what their requests may carry, and that they can read every answer."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.http.auth.keys import create_key
from tests.http.server import RunningServer, server_settings, start_server

PAGE = "https://page.example"
# What Chromium asks of `openai.chat.completions.create` of the npm package openai 6.49.
OPENAI_JS = (
    "authorization,content-type,idempotency-key,openai-beta,openai-organization,openai-project,user-agent,"
    "x-session-id,x-stainless-arch,x-stainless-helper-method,x-stainless-lang,x-stainless-os,"
    "x-stainless-package-version,x-stainless-retry-count,x-stainless-runtime,x-stainless-runtime-version,"
    "x-stainless-timeout"
)


@pytest.fixture
async def named(sqlite_ready: str) -> AsyncIterator[RunningServer]:
    given = server_settings(database_url=sqlite_ready, cors_origins=PAGE, openai_session_headers="X-Chat")
    async with start_server(given) as service:
        yield service


async def preflight(
    service: RunningServer, wish: str, *, path: str = "/openai/v1/responses", origin: str = PAGE, method: str = "POST"
) -> httpx2.Response:
    asked = {"Origin": origin, "Access-Control-Request-Method": method, "Access-Control-Request-Headers": wish}
    return await service.client.options(path, headers=asked)


def list_allowed(answer: httpx2.Response) -> set[str]:
    return set(answer.headers.get("access-control-allow-headers", "").split(", "))


@pytest.mark.parametrize("path", ["/openai/v1/chat/completions", "/openai/v1/responses", "/v1/sessions", "/nowhere"])
async def test_preflight_allows_what_openai_js_sends(named: RunningServer, path: str) -> None:
    await create_key(named, "acme")
    answer = await preflight(named, f"{OPENAI_JS},x-stainless-of-tomorrow,x-chat", path=path)
    assert (answer.status_code, answer.content) == (204, b"")
    assert list_allowed(answer) >= {*OPENAI_JS.split(","), "x-stainless-of-tomorrow", "x-chat"}
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["vary"] == "Origin"
    assert {"POST", "DELETE"} <= set(answer.headers["access-control-allow-methods"].split(", "))


async def test_preflight_names_no_other_headers(named: RunningServer) -> None:
    hostile = ["x-forwarded-for", "x-stainless-", "x-stainless-a b", "x-stainless-" + "a" * 65, "*"]
    answer = await preflight(named, ", ".join([*hostile, *(f"X-Stainless-{number}" for number in range(500))]))
    allowed = list_allowed(answer)
    assert not allowed & set(hostile)
    assert sum(name.startswith("x-stainless-") for name in allowed) == 100


@pytest.mark.parametrize("origin", ["https://evil.example", f"{PAGE}.evil.example", "null"])
async def test_preflight_of_other_origins_allows_nothing(named: RunningServer, origin: str) -> None:
    answer = await preflight(named, OPENAI_JS, origin=origin)
    assert not [name for name in answer.headers if name.startswith("access-control-")]


async def test_pages_read_answers_and_every_refusal(named: RunningServer) -> None:
    await create_key(named, "acme")
    for method, path in (("GET", "/health/live"), ("POST", "/openai/v1/responses"), ("GET", "/v1/none"), ("PUT", "/")):
        answer = await named.client.request(method, path, headers={"Origin": PAGE})
        assert answer.headers.get_list("access-control-allow-origin") == [PAGE], path
        exposed = answer.headers["access-control-expose-headers"].split(", ")
        assert {"X-Request-Id", "Retry-After", "X-Should-Retry"} <= set(exposed)
        assert "Origin" in answer.headers["vary"]


async def test_sockets_accept_the_named_origin_only(named: RunningServer) -> None:
    for path in ((await named.session()) + "/live", "/openai/v1/responses"):
        url = f"{named.url.replace('http', 'ws', 1)}{path}"
        async with connect(url, origin=PAGE) as socket:  # type: ignore[arg-type]
            assert socket.response is not None
            assert "access-control-allow-origin" not in socket.response.headers
        with pytest.raises(InvalidStatus):
            await connect(url, origin="https://evil.example").__aenter__()  # type: ignore[arg-type]
