"""What the page asks for: little at a first visit, nothing again and again; and a server that dies meanwhile."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path

import pytest
from playwright.sync_api import Request, Route, expect

from tests.support.processes import ServerProcess
from tests.support.scripted import ScriptedModel
from tests.web.conftest import TEAM, serve
from tests.web.window import Api, Window

pytestmark = pytest.mark.long

MOST_REQUESTS = 10
MOST_BYTES = 72_000


@pytest.fixture
def quiet_server(model: ScriptedModel, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of its own: the list of one with other tests' sessions takes kilobytes, and changes meanwhile."""
    with serve(tmp_path, model) as running:
        yield running


@pytest.fixture
def quiet_api(quiet_server: ServerProcess) -> Iterator[Api]:
    with Api(quiet_server.url) as api:
        yield api


def test_first_visit_is_small_with_list_updates(
    windows: Callable[..., Window], quiet_server: ServerProcess, model: ScriptedModel, quiet_api: Api
) -> None:
    server, api = quiet_server, quiet_api
    old = api.session(id="load-old")
    window = windows(server.url)
    asked: list[Request] = []
    window.page.on("request", lambda request: asked.append(request))

    def entry(name: str) -> re.Pattern[str]:
        return re.compile(f"^{name}")

    links = window.page.get_by_role("navigation", name="Sessions").get_by_role("link")
    window.open()
    expect(window.page.get_by_role("radio").first).to_be_attached()
    expect(links.filter(has_text=entry(old))).to_be_visible()
    window.page.wait_for_load_state("load")
    # The inbox is loaded a while after the page is there.
    first = list(takewhile(lambda request: not request.url.endswith("/inbox.js"), asked))
    first = [request for request in first if not request.url.startswith("data:")]
    paths = [request.url.removeprefix(server.url) for request in first]
    assert len(paths) <= MOST_REQUESTS, paths
    assert len([path for path in paths if path.startswith("/v1/sessions?")]) == 1
    # One of them is the stream, which goes on.
    whole = [request for request in first if not request.url.endswith("/v1/sessions")]
    assert len(whole) == len(first) - 1
    sizes = [request.sizes() for request in whole]
    assert sum(size["responseBodySize"] + size["responseHeadersSize"] for size in sizes) <= MOST_BYTES
    # What only a conversation needs comes with the first one.
    assert not any(path.endswith(("/markdown.js", "/highlighter.js")) for path in paths), paths
    assert len([path for path in paths if path.startswith(("/v1/me", "/v1/agents"))]) == 2
    # A run elsewhere, a failure, and an end: without a request in between, however long that is.
    model.fail(401)
    failing = api.session(id="load-new")
    expect(links.filter(has_text=entry(failing))).to_be_visible()
    api.run(failing, "hi")
    expect(links.filter(has_text=entry(failing))).to_contain_text("failed")
    api.client.delete(f"sessions/{failing}").raise_for_status()
    expect(links.filter(has_text=entry(failing))).to_have_count(0)
    # The timeline is loaded when it is first looked at, and once.
    assert not any("timeline.js" in request.url for request in asked)
    window.open_timeline(old)
    expect(window.list).to_be_visible()
    window.open_chat(old)
    expect(window.composer).to_be_visible()
    window.open_timeline(old)
    expect(window.list).to_be_visible()
    assert len([request for request in asked if "timeline.js" in request.url]) == 1
    # Prices come with what shows a cost.
    assert not any(request.url.endswith("/v1/prices") for request in asked)
    with window.page.expect_request("**/v1/prices"):
        window.page.get_by_role("button", name="Waterfall").click()


def test_initial_data_is_requested_before_script(window: Window) -> None:
    held: list[Route] = []
    window.page.route("**/main.js", lambda route: held.append(route))
    with window.page.expect_response("**/v1/me"), window.page.expect_response("**/v1/agents?*"):
        window.page.goto(window.url, wait_until="commit")
    again: list[Request] = []
    window.page.on("request", lambda request: again.append(request))
    held[0].continue_()
    expect(window.composer).to_be_focused()
    assert [request.url for request in again if request.url.endswith(("/v1/me", "/v1/agents?limit=200"))] == []


def test_unloadable_part_is_reported(window: Window, api: Api) -> None:
    session = api.session()
    window.open_chat(session)
    expect(window.composer).to_be_visible()
    window.page.route("**/timeline.js", lambda route: route.abort())
    window.page.get_by_role("link", name="Timeline", exact=True).click()
    expect(window.page.get_by_role("alert").filter(has_text="could not be loaded")).to_be_visible()
    expect(window.page.get_by_role("button", name="Load the page again")).to_be_visible()
    # Once the server answers again, it comes by itself.
    window.page.unroute("**/timeline.js")
    expect(window.list).to_be_visible()


def test_answer_renderer_is_requested_again(window: Window, api: Api) -> None:
    session = api.session(
        messages=[{"role": "user", "content": "Go on."}, {"role": "assistant", "content": "**Done.**"}]
    )
    refused: list[Route] = []

    def refuse_first(route: Route) -> None:
        if refused:
            return route.continue_()
        refused.append(route)
        return route.abort()

    window.page.route("**/markdown.js", refuse_first)
    window.open_chat(session)
    expect(window.answers.locator("strong")).to_have_text("Done.")
    assert len(refused) == 1


# A server that dies in the middle of an answer: the page goes on where it was.


def server_of(model: ScriptedModel, folder: Path) -> ServerProcess:
    env = {"OPENAI_API_KEY": "test", "OPENAI_BASE_URL": model.url, "SWARMKEEP_LEASE_SECONDS": "2"}
    return ServerProcess(folder, agents=[str(TEAM)], offline=False, env=env)


def test_server_restart_loses_and_doubles_nothing(windows: Callable[..., Window], tmp_path: Path) -> None:
    with ScriptedModel() as model, server_of(model, tmp_path) as server:
        model.call("get_weather", {"city": "Paris"})
        model.hang("Paris is sunny", then=", as ever.")
        window, other = windows(server.url).open(), windows(server.url)
        window.say("What is the weather in Paris?")
        other.open_chat(window.session_id)
        for each in (window, other):
            expect(each.draft.locator(".prose")).to_have_text(re.compile(r"\w+ \w+ \w+"))
        server.kill()
        expect(window.page.get_by_text("Connection lost. Trying again…")).to_be_visible()
        model.release()
        model.say("Paris is sunny, they say.")
        server.start()
        for each in (window, other):
            each.wait_until_idle()
            expect(each.answers).to_have_count(1)
            expect(each.questions).to_have_text(["What is the weather in Paris?"])
        with Api(server.url) as api:
            messages = api.get(f"sessions/{window.session_id}/messages")["data"]
            assert "recovery" in [event["data"].get("reason") for event in api.events(window.session_id)]
        said = [message["content"] for message in messages if message["role"] == "assistant" and message["content"]]
        for each in (window, other):
            expect(each.answers).to_have_text(said)
            expect(each.calls).to_have_count(sum(len(message.get("tool_calls") or ()) for message in messages))
        # What is said now arrives once, too.
        model.say("Rome is, too.")
        window.say("And in Rome?")
        for each in (window, other):
            expect(each.questions).to_have_text(["What is the weather in Paris?", "And in Rome?"])
            each.wait_until_idle()
            expect(each.answers).to_have_count(2)


def test_unsendable_message_is_not_lost(windows: Callable[..., Window], tmp_path: Path) -> None:
    with ServerProcess(tmp_path, agents=["swarmkeep_agents.weather"]) as server:
        window = windows(server.url).open()
        expect(window.page.get_by_role("radio").first).to_be_visible()
        server.kill()
        window.say("Are you there?")
        expect(window.page.get_by_text("The server does not answer.").first).to_be_visible()
        expect(window.composer).to_have_value("Are you there?")
        # What is written while the page still tries stays as well.
        window.page.route("**/v1/sessions", lambda route: None)
        window.composer.press("Enter")
        expect(window.composer).to_have_value("")
        window.composer.fill("Please")
        # Now it goes on, to a server that is not there.
        window.page.unroute("**/v1/sessions")
        expect(window.composer).to_have_value("Are you there?\nPlease")
        window.composer.fill("Are you there?")
        server.start()
        window.composer.press("Enter")
        expect(window.questions).to_have_text(["Are you there?"])
        window.wait_until_idle()
        expect(window.answers).to_have_count(1)
