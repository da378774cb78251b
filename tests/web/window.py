"""A browser window on the page, in the words of whoever uses it."""

from __future__ import annotations

import re
import time
from typing import Any
from urllib.parse import quote

import httpx2
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, expect

from swarmkeep.events.codec import Json

PATIENCE_MS = 20_000
WIDE = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}

expect.set_options(timeout=PATIENCE_MS)


# What of tables is out of sight, or not all there, once they are laid out.
CUT = """async () => {
  for (const frame of [1, 2]) await new Promise(requestAnimationFrame);
  return [...document.querySelectorAll(".wide")].filter((place) => place.checkVisibility()).flatMap((place) => {
    const { right } = place.getBoundingClientRect();
    const isCut = (cell) => cell.getBoundingClientRect().right > right + 1 || cell.scrollWidth > cell.clientWidth + 1;
    const cells = [...place.querySelectorAll("th, td")].filter((cell) => cell.checkVisibility());
    const cut = cells.filter(isCut).map(({ textContent }) => textContent);
    return place.scrollWidth > place.clientWidth ? [place.getAttribute("aria-label"), ...cut] : cut;
  });
}"""


class Window:
    """A window with a storage of its own. What should never happen in one is noted in `wrongs`."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        self.url = url
        self._options = options
        self.context: BrowserContext = browser.new_context(viewport=WIDE, locale="en-GB", **options)  # type: ignore[arg-type]
        self.context.set_default_timeout(PATIENCE_MS)
        self.page: Page = self.context.new_page()
        self.errors: list[str] = []
        self.page.on("dialog", lambda dialog: (self.errors.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("pageerror", lambda error: self.errors.append(f"error: {error}"))
        self.page.on("console", self._heard)
        self.page.on("request", lambda request: self._note_request(request.url))

    def _heard(self, message: ConsoleMessage) -> None:
        # A server that is away, or a route that is not there, is said so by the browser; the page copes.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.errors.append(f"console: {message.text}")

    def _note_request(self, url: str) -> None:
        if not url.startswith((self.url, "data:", "blob:" + self.url)):
            self.errors.append(f"asked {url}")

    def close(self) -> None:
        self.context.close()

    def clear(self) -> None:
        """Make it as new for the next test: nothing is left of this one's but what the browser has cached."""
        for other in self.context.pages[1:]:
            other.close()
        self.page.unroute_all()
        if self.page.url.startswith("http"):
            self.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
        self.page.goto("about:blank")
        self.page.set_viewport_size(WIDE)  # type: ignore[arg-type]
        self.page.emulate_media(color_scheme=self._options.get("color_scheme", "light"), reduced_motion="no-preference")
        self.context.clear_permissions()
        self.context.grant_permissions(self._options.get("permissions", []))
        self.errors.clear()

    def open(self, route: str = "") -> Window:
        self.page.goto(f"{self.url}/{route}")
        return self

    def open_chat(self, session_id: str) -> Window:
        return self.open(f"#/chat/{quote(session_id)}")

    def open_timeline(self, session_id: str, at: int | None = None) -> Window:
        return self.open(f"#/timeline/{quote(session_id)}{'' if at is None else f'?at={at}'}")

    # The chat.

    @property
    def composer(self) -> Locator:
        return self.page.locator("#composer")

    def say(self, words: str) -> None:
        self.composer.fill(words)
        self.composer.press("Enter")

    @property
    def log(self) -> Locator:
        return self.page.get_by_role("log")

    @property
    def answers(self) -> Locator:
        return self.log.locator(".message.assistant:not(.draft) .prose")

    @property
    def questions(self) -> Locator:
        return self.log.locator(".message.user .prose")

    @property
    def draft(self) -> Locator:
        return self.log.locator(".draft")

    @property
    def calls(self) -> Locator:
        return self.log.locator(".call")

    def wait_until_idle(self) -> None:
        """Wait until no run is active, and everything was shown."""
        expect(self.page.get_by_role("button", name="Cancel run")).to_be_hidden()
        expect(self.draft).to_be_hidden()

    @property
    def session_id(self) -> str:
        expect(self.page).to_have_url(re.compile(r"#/(chat|timeline)/."))
        return self.page.url.split("/")[-1].partition("?")[0]

    # The timeline.

    @property
    def rows(self) -> Locator:
        return self.page.get_by_role("option").and_(self.page.locator(".row-line"))

    @property
    def list(self) -> Locator:
        return self.page.get_by_role("listbox", name="Events")

    @property
    def detail(self) -> Locator:
        return self.page.get_by_role("region", name="Event", exact=True)

    def wait_until_it_fits(self) -> None:
        """Wait until nothing is wider than the window. One of a new size is laid out a moment later."""
        self.page.wait_for_function("() => document.documentElement.scrollWidth <= innerWidth")

    def check_tables(self) -> None:
        """Check that all cells of tables are in sight as a whole, without a way to the side."""
        assert self.evaluate(CUT) == []

    def evaluate(self, script: str, argument: Any = None) -> Any:
        return self.page.evaluate(script, argument)

    def read_clipboard(self, start: str = "") -> str:
        """What was copied, once it begins so. A read that the browser leaves open, and nothing ends, is begun anew."""
        read = self.page.wait_for_function(
            """(start) => Promise.race([
              navigator.clipboard.readText().then((text) => text.startsWith(start) && { text }),
              new Promise((resolve) => { setTimeout(resolve, 1000); }),
            ])""",
            arg=start,
        )
        return str(read.json_value()["text"])


class Api:
    """The server beside the page: what is really there."""

    def __init__(self, url: str) -> None:
        self.client = httpx2.Client(base_url=f"{url}/v1/", timeout=60)

    def get(self, path: str, **params: Any) -> Json:
        answer = self.client.get(path, params=params)
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found

    def post(self, path: str, body: Any = None) -> Json:
        answer = self.client.post(path, json=body or {})
        assert answer.status_code in (200, 201, 202), answer.text
        found: Json = answer.json()
        return found

    def session(self, **body: Any) -> str:
        return str(self.post("sessions", body)["id"])

    def run(self, session_id: str, text: Any, **body: Any) -> Json:
        return self.post(f"sessions/{session_id}/runs", {"input": text, **body})

    def events(self, session_id: str) -> list[Json]:
        found: list[Json] = []
        while page := self.get(f"sessions/{session_id}/events", after=len(found), limit=200)["data"]:
            found += page
        return found

    def wait_until_found(self, words: str, *sessions: str) -> None:
        """Wait until a search for these words finds these sessions: the index is a little behind what is recorded.

        What else it finds is other tests'.
        """
        until = time.monotonic() + PATIENCE_MS / 1000
        while not {found["id"] for found in self.get("sessions", q=words, limit=200)["data"]}.issuperset(sessions):
            assert time.monotonic() < until, f"{words} does not find all of {sessions}"

    def __enter__(self) -> Api:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
