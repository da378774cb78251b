"""A server without keys is this machine's own: no web page may use it, by whatever name it is called."""

from __future__ import annotations

import pytest

from tests.http.server import RunningServer, check_problem, server_settings, start_server


@pytest.mark.parametrize(
    ("host", "welcome"),
    [
        ("127.0.0.1:8000", True), ("localhost", True), ("LOCALHOST:1", True), ("[::1]:8000", True), ("[::1]", True),
        ("evil.example", False), ("evil.example:8000", False), ("localhost.evil.example", False),
        ("127.0.0.1.x", False),
        ("localhost:80:80", False), ("evil@localhost", False), ("::1", False),
    ],
)  # fmt: skip
async def test_server_answers_only_its_own_names(plain: RunningServer, host: str, welcome: bool) -> None:
    answer = await plain.get("/v1/agents", headers={"Host": host})
    if welcome:
        assert answer.status_code == 200
    else:
        check_problem(answer, 403, "forbidden")


async def test_other_sites_cannot_use_server(plain: RunningServer) -> None:
    host = plain.url.removeprefix("http://")
    for origin in ("https://evil.example", "null", "http://localhost:1", f"http://{host}.evil.example", ""):
        for path in ("/v1/sessions", "/v1/sessions/s/runs"):
            check_problem(await plain.post(path, {}, headers={"Origin": origin}), 403, "forbidden")
    assert (await plain.get("/v1/sessions")).json()["data"] == []
    assert (await plain.post("/v1/sessions", {}, headers={"Origin": plain.url})).status_code == 201


async def test_answers_not_shared_without_permission(plain: RunningServer) -> None:
    preflight = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    answer = await plain.client.options("/v1/sessions", headers=preflight)
    assert "access-control-allow-origin" not in answer.headers


async def test_named_sites_may_use_server(sqlite_ready: str) -> None:
    given = server_settings(database_url=sqlite_ready, cors_origins="https://app.example, https://two.example")
    async with start_server(given) as service:
        origin = {"Origin": "https://app.example"}
        for method in ("POST", "HEAD"):
            wish = {"Access-Control-Request-Method": method, "Access-Control-Request-Headers": "content-type"}
            answer = await service.client.options("/v1/sessions", headers=origin | wish)
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (204, "https://app.example")
        answer = await service.post("/v1/sessions", {}, headers=origin)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (201, "https://app.example")
        check_problem(
            await service.post("/v1/sessions", {}, headers={"Origin": "https://evil.example"}), 403, "forbidden"
        )
        async with service.stream(
            "/v1/sessions/" + answer.json()["id"] + "/events", origin="https://two.example"
        ) as stream:
            assert stream.answer.headers["access-control-allow-origin"] == "https://two.example"


async def test_wildcard_site_admits_any_site(sqlite_ready: str) -> None:
    async with start_server(server_settings(database_url=sqlite_ready, cors_origins="*")) as service:
        answer = await service.post("/v1/sessions", {}, headers={"Origin": "https://evil.example"})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (201, "*")


async def test_it_may_be_given_more_names(sqlite_ready: str) -> None:
    given = server_settings(database_url=sqlite_ready, allowed_hosts="Agents.example, other.example")
    async with start_server(given) as service:
        for host, status in (
            ("agents.example", 200),
            ("agents.EXAMPLE:443", 200),
            ("localhost", 200),
            ("x.example", 403),
        ):
            assert (await service.get("/v1/agents", headers={"Host": host})).status_code == status
        page = {"Host": "agents.example", "Origin": "https://agents.example"}
        assert (await service.post("/v1/sessions", {}, headers=page)).status_code == 201


async def test_foreign_site_form_is_ignored(plain: RunningServer) -> None:
    """What a page may send without asking first: no JSON, and with its origin."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = await plain.client.post("/v1/sessions", content=b"{}", headers={"Content-Type": kind})
        check_problem(answer, 415, "unsupported_media_type")
    assert (await plain.get("/v1/sessions")).json()["data"] == []


@pytest.mark.parametrize(
    ("site", "mode", "destination", "welcome"),
    [
        ("cross-site", "no-cors", "image", False),
        ("same-site", "no-cors", "script", False),
        ("cross-site", "navigate", "iframe", False),
        ("cross-site", "navigate", "document", True),
        ("same-origin", "cors", "empty", True),
        ("none", "navigate", "document", True),
    ],
)
async def test_other_sites_cannot_load_unasked(
    plain: RunningServer, site: str, mode: str, destination: str, welcome: bool
) -> None:
    told = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": destination}
    for path in ("/", "/v1/sessions", "/health/live", "/openapi.json"):
        answer = await plain.get(path, headers=told)
        assert answer.status_code == (200 if welcome else 403)


async def test_every_answer_has_browser_restrictions(plain: RunningServer) -> None:
    for path in ("/v1/sessions", "/v1/sessions/none", "/none", "/health/live", "/openapi.json"):
        headers = (await plain.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
    page = (await plain.get("/")).headers
    assert page.get_list("cache-control") == ["no-cache"]
    assert len(page.get_list("content-security-policy")) == 1


async def test_forwarded_address_needs_named_proxy(sqlite_ready: str) -> None:
    for proxies, status in (("", 429), ("10.0.0.0/8", 429), ("127.0.0.0/8", 200)):
        given = server_settings(database_url=sqlite_ready, rate_limit_per_minute=2, forwarded_allow_ips=proxies)
        async with start_server(given) as service:
            answers = [
                await service.get("/v1/agents", headers={"X-Forwarded-For": f"192.0.2.{number}"}) for number in range(4)
            ]
            assert [answer.status_code for answer in answers] == [200, 200, status, status]
