"""A page of another origin, in a real browser, calls as OpenAI's JavaScript client does."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import Browser

from tests.support.processes import ServerProcess
from tests.web.conftest import TEAM

CALL = """async ([url, more]) => {
  const headers = {
    'Authorization': 'Bearer none', 'Content-Type': 'application/json', 'Idempotency-Key': 'k-1',
    'OpenAI-Organization': 'o', 'OpenAI-Project': 'p', 'OpenAI-Beta': 'b', 'X-Session-Id': 's-1',
    'X-Stainless-Lang': 'js', 'X-Stainless-Retry-Count': '0', 'X-Stainless-Of-Tomorrow': '1', ...more,
  };
  try {
    const answer = await fetch(url, {method: 'POST', headers, body: '{"model": "nobody", "input": "hi"}'});
    return [answer.status, answer.headers.has('x-request-id'), (await answer.json()).error.code];
  } catch (error) { return error.name; }
}"""


class _EmptyPage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Write no line."""


@pytest.fixture
def origin() -> Iterator[str]:
    """The origin of a page with nothing in it; from a server, since Chromium asks which network a page is from."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _EmptyPage) as pages:
        thread = Thread(target=pages.serve_forever)
        thread.start()
        yield f"http://localhost:{pages.server_port}"
        pages.shutdown()
        thread.join()


def test_allowed_origin_sends_stainless_headers(browser: Browser, origin: str, tmp_path: Path) -> None:
    with ServerProcess(tmp_path, agents=[str(TEAM)], env={"SWARMKEEP_CORS_ORIGINS": origin}) as server:
        page = browser.new_page()
        page.goto(f"{origin}/")
        url = f"{server.url}/openai/v1/responses"
        assert page.evaluate(CALL, [url, {}]) == [404, True, "model_not_found"]
        assert page.evaluate(CALL, [url, {"X-Not-Ours": "1"}]) == "TypeError"
        page.close()
