"""Understanding a run: what took time in it, as bars and as a table; played, followed; the request of an answer."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from swarmkeep.events.codec import Json
from tests.support.processes import ServerProcess
from tests.support.scripted import ScriptedModel
from tests.web.test_accessibility import check_accessibility
from tests.web.window import PHONE, Api, Window

pytestmark = pytest.mark.long

USAGE = {
    "prompt_tokens": 1_000_000,
    "completion_tokens": 100_000,
    "total_tokens": 1_100_000,
    "prompt_tokens_details": {"cached_tokens": 500_000},
}
ODD = "it's $HOME `x` \u009b201~ \u2028 END_OF_REQUEST\nEND_OF_REQUEST"

# Folds made-up events with the page's own modules, and says what each span is and where its bar would be.
SPANS = """async (events) => {
  const { Runs, sortedSpans } = await import("/page/spans.js");
  const { scaleFor } = await import("/page/spans.js");
  const runs = new Runs();
  for (const event of events) runs.take(event);
  return runs.list.map((run) => [run.status, sortedSpans(run).map(({ kind, name, status, from, to }) => {
    const place = scaleFor(run);
    return [kind, name, status, Math.round(place(from) * 100), to === null ? null : Math.round(place(to) * 100)];
  })]);
}"""


def at(seconds: float, seq: int, type_: str, data: Any, run: str | None = "r") -> Json:
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    time = f"2026-01-01T{hours:02}:{minutes:02}:{rest:06.3f}Z"
    return {"seq": seq, "type": type_, "at": time, "run_id": run, "agent": "Ann", "data": data}


def answer(seconds: float, seq: int, took: float, **more: Any) -> Json:
    data = {"message": {"role": "assistant"}, "completion": {"model": "m", "duration_ms": took * 1000, **more}}
    return at(seconds, seq, "message.added", data)


def result(seconds: float, seq: int, id_: str, status: str = "ok", **more: Any) -> Json:
    message = {"role": "tool", "tool_call_id": id_, "content": ""}
    return at(
        seconds, seq, "message.added", {"message": message, "tool": {"name": f"f-{id_}", "status": status, **more}}
    )


def begun(seconds: float, seq: int, id_: str, **more: Any) -> Json:
    return at(seconds, seq, "tool.started", {"tool_call_id": id_, "name": f"f-{id_}", "arguments": "{}", **more})


TICKS = """(counts) => {
  const ticks = [...document.querySelectorAll(".ticks path")].map((path) => path.getAttribute("d").match(/M/g).length);
  return ticks.join() === counts.join();
}"""


@pytest.fixture(scope="module")
def talk(_scripted: ScriptedModel, server: ServerProcess) -> Iterator[tuple[str, Api]]:
    """A session of three runs: one with calls and a wait, one that hands over, and one that fails."""
    with Api(server.url) as api:
        session = api.session(metadata={"title": "A long day"})
        _scripted.calls([("get_weather", {"city": ODD}, "c1"), ("refund", {"order": "1"}, "c2")], usage=USAGE)
        waits = api.run(session, "Weather, and my money")
        _scripted.say(["Sunny", ", and done."], usage=USAGE)
        decision = {"tool_call_id": "c2", "decision": "approve"}
        api.post(f"sessions/{session}/runs/{waits['id']}/resume", {"approvals": [decision]})
        _scripted.call("transfer_to_sales", {}, id="c3")
        _scripted.say("What may I sell you?")
        api.run(session, "Sales")
        _scripted.fail(401)
        api.run(session, "More")
        yield session, api
    _scripted.assert_done()


@pytest.fixture
def window(cleared_windows: Callable[..., Window], server: ServerProcess) -> Window:
    """One that lets the checker of accessibility have styles of its own."""
    return cleared_windows(server.url, bypass_csp=True)


def test_lengths_are_rounded_as_a_whole(window: Window) -> None:
    window.open()
    say = "async (lengths) => lengths.map((await import('/page/descriptions.js')).formatLength)"
    lengths = [999, 999.7, 1000, 59_900, 59_960, 60_000, 119_700, 3_599_000, 3_599_600, 172_800_000]
    said = ["999 ms", "1.0 s", "1.0 s", "59.9 s", "1 m 0 s", "1 m 0 s", "2 m 0 s", "59 m 59 s", "1.0 h", "2.0 d"]
    assert window.evaluate(say, lengths) == said


def test_time_taking_steps_are_spans(window: Window) -> None:
    window.open()
    day = 80_000.0
    events = [
        at(0, 1, "session.created", {"agent": "Ann"}, run=None),
        at(0, 2, "run.queued", {"messages": []}),
        at(2, 3, "run.started", {}),
        answer(4, 4, 2, time_to_first_token_ms=500),
        begun(4, 5, "a"),
        begun(4, 6, "b", session_id="s2"),
        result(8, 7, "b", "error"),
        result(10, 8, "a"),
        at(10, 9, "approval.requested", {"tool_call_id": "c", "name": "f-c"}),
        at(10, 10, "run.waiting", {"pending": [{"tool_call_id": "c", "name": "f-c", "reason": "approval"}]}),
        at(day, 11, "approval.decided", {"tool_call_id": "c", "decision": "deny"}),
        at(day, 12, "run.resumed", {"reason": "approval"}),
        result(day, 13, "c", "denied"),
        begun(day, 14, "d"),
        at(day + 1, 15, "run.interrupted", {"error": None}),
        at(day + 1, 16, "run.resumed", {}),
        # What was redacted or is no such event takes no time, and harms nothing.
        at(day + 1, 17, "tool.started", None),
        at(day + 1, 18, "run.waiting", {}),
        at(day + 1, 19, "message.added", {"message": 3}),
        at(day + 2, 20, "run.failed", {"error": {"code": "provider_timeout", "message": "!"}}),
    ]
    ((status, spans),) = window.evaluate(SPANS, events)
    assert status == "failed"
    # The work is ten seconds; of the day that somebody slept on it, and of the queue, as much as 15 % of that is drawn.
    assert [span[:3] for span in spans] == [
        ["queue", "", "ok"],
        ["model", "m", "ok"],
        ["tool", "f-a", "ok"],
        ["asked", "f-b", "error"],
        ["approval", "f-c", "denied"],
        ["tool", "f-c", "denied"],
        ["tool", "f-d", "unknown_outcome"],
        ["interrupted", "", "ok"],
        ["model", "provider_timeout", "error"],
    ]
    places = {(kind, name): (left, right) for kind, name, _, left, right in spans}
    assert places["queue", ""] == (0, 12)
    assert places["model", "m"] == (12, 27)
    assert places["tool", "f-a"] == (27, 73)
    assert places["asked", "f-b"] == (27, 58)
    assert places["approval", "f-c"][1] - places["approval", "f-c"][0] <= 13
    assert places["model", "provider_timeout"][1] == 100


def test_run_is_waterfall_with_table(window: Window, talk: tuple[str, Api]) -> None:
    session, _ = talk
    window.open(f"#/timeline/{session}?as=waterfall")
    tree = window.page.get_by_role("tree", name="Events")
    items = tree.get_by_role("treeitem")
    heads = items.filter(has=window.page.locator(".run-name"))
    expect(heads.locator(".run-name")).to_have_text(["Run 1", "Run 2", "Run 3"])
    expect(heads.locator(".state")).to_have_text(["completed", "completed", "failed"])
    expect(heads.first).to_contain_text(
        "2 model calls · 2 tool calls · 2,000,000 tokens in, 200,000 out · 1,000,000 cached"
    )
    expect(heads.first).to_contain_text("$5.00")
    kinds = ["Model", "Approval", "Tool", "Tool", "Model", "Model", "Tool", "Handoff", "Model", "Model"]
    expect(tree.locator(".span-kind")).to_have_text(kinds)
    said = tree.locator(".unseen").first
    expect(said).to_have_text(
        re.compile(
            r"^Model scripted-model, by Front Desk, began after .*, took .*, 1,000,000 tokens in, 100,000 out, "
            r"500,000 cached, \$2\.50$"
        )
    )
    expect(tree.locator(".bar.bad")).to_have_count(1)
    # The keyboard goes through heads and spans; a head is folded and unfolded.
    tree.press("Home")
    expect(heads.first).to_have_attribute("aria-selected", "true")
    expect(window.page).to_have_url(re.compile(r"at=2&as=waterfall$"))
    tree.press("Enter")
    expect(heads.first).to_have_attribute("aria-expanded", "false")
    expect(items).to_have_count(8)
    tree.press("ArrowRight")
    expect(items).to_have_count(13)
    tree.press("ArrowDown")
    expect(window.detail.get_by_role("heading", level=2)).to_have_text("Tool call")
    check_accessibility(window)
    # The same in figures, and each line leads to its event.
    window.detail.get_by_text("All that took time in run 1").click()
    rows = window.detail.locator(".run-table tbody tr")
    expect(rows).to_have_count(5)
    expect(rows.first.locator("td").nth(5)).to_have_text("1,000,000")
    expect(rows.first.locator("td").last).to_have_text("$2.50")
    expect(window.detail.locator(".run-table tfoot td").last).to_have_text("$5.00")
    rows.nth(1).get_by_role("link").click()
    expect(window.detail.get_by_role("heading", level=2)).to_have_text("Approval decided")
    expect(window.detail.locator(".run-table")).to_be_visible()
    expect(window.page).to_have_url(re.compile(r"as=waterfall$"))
    # An address with another event and another shape stays what it is.
    window.open(f"#/timeline/{session}?at=3")
    expect(window.page.get_by_role("button", name="Events", exact=True)).to_have_attribute("aria-pressed", "true")
    expect(window.detail.locator(".detail-head")).to_contain_text("#3")
    expect(window.page).to_have_url(re.compile(r"\?at=3$"))
    # In a list nothing has asked for prices before the table does.
    window.page.reload()
    window.detail.get_by_text("All that took time in run 1").click()
    expect(window.detail.locator(".run-table tfoot td").last).to_have_text("$5.00")
    window.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    window.page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    window.wait_until_it_fits()
    check_accessibility(window)


def test_spans_closed_together_are_selectable(window: Window, model: ScriptedModel, api: Api) -> None:
    session = api.session()
    model.calls([("refund", {"order": str(number)}, f"w{number}") for number in range(3)])
    run = api.run(session, "Pay it all back")
    api.post(f"sessions/{session}/runs/{run['id']}/cancel")
    window.open(f"#/timeline/{session}?as=waterfall")
    tree = window.page.get_by_role("tree", name="Events")
    chosen = tree.locator("[aria-selected=true]")
    items = tree.get_by_role("treeitem")
    waits = items.filter(has_text="Approval")
    expect(waits).to_have_count(3)
    tree.press("Home")
    for row in range(1, items.count()):
        tree.press("ArrowDown")
        expect(chosen).to_have_attribute("id", f"row-{row}")
    for wait in waits.all():
        wait.click()
        expect(wait).to_have_attribute("aria-selected", "true")


def test_events_are_grouped_filtered_played_followed(
    window: Window, talk: tuple[str, Api], model: ScriptedModel
) -> None:
    session, api = talk
    last = len(api.events(session))
    differences: list[str] = []
    window.page.on("request", lambda request: differences.append(request.url) if "/diff?" in request.url else None)
    window.open(f"#/timeline/{session}?at=1&from=0")
    window.page.get_by_role("button", name="By run").click()
    tree = window.page.get_by_role("tree", name="Events")
    expect(tree.get_by_role("treeitem").first).to_contain_text("Session created")
    expect(tree.locator("[aria-level='1'][aria-expanded=true]").first).to_contain_text("Run 1")
    window.page.wait_for_function(TICKS, arg=[3, 1, 1])
    errors = window.page.get_by_role("button", name="Errors only (1)")
    errors.click()
    expect(errors).to_have_attribute("aria-pressed", "true")
    expect(tree.get_by_role("treeitem")).to_have_count(2)
    expect(tree.get_by_role("treeitem").last).to_contain_text("Run failed")
    errors.click()
    window.page.get_by_role("button", name="Events", exact=True).click()
    expect(window.list.locator("[aria-selected=true]")).to_contain_text("Session created")
    window.page.get_by_label("Events per second").select_option("20/s")
    play = window.page.get_by_role("button", name="Play")
    play.click()
    expect(window.page.get_by_role("button", name="Pause")).to_be_visible()
    expect(window.page.locator(".position")).to_have_text(f"{last} of {last}")
    expect(play).to_be_visible()
    expect(window.page).to_have_url(re.compile(rf"at={last}$"))
    assert len(differences) == 1, "what was compared at first is not compared at every step"
    window.page.get_by_role("button", name="Follow live").click()
    model.say("Still here.")
    api.run(session, "And now?", agent="Front Desk")
    now = len(api.events(session))
    expect(window.page.locator(".position")).to_have_text(f"{now} of {now}")
    expect(window.detail.get_by_role("heading", level=2)).to_have_text("Run completed")
    # To look at an event by oneself is to stop following.
    window.list.press("Home")
    expect(window.page.get_by_role("button", name="Follow live")).to_have_attribute("aria-pressed", "false")


def test_message_links_to_event_and_back(window: Window, talk: tuple[str, Api]) -> None:
    session, api = talk
    seq = next(
        event["seq"]
        for event in api.events(session)
        if event["data"].get("message", {}).get("content") == "Sunny, and done."
    )
    window.open_chat(session)
    message = window.log.locator(".message.assistant", has_text="Sunny, and done.")
    message.get_by_role("link", name=f"Event {seq} in the timeline").click()
    expect(window.page).to_have_url(re.compile(rf"#/timeline/.*at={seq}$"))
    expect(window.detail).to_contain_text("Sunny, and done.")
    window.detail.get_by_role("link", name="Open in chat").click()
    expect(window.page).to_have_url(re.compile(rf"#/chat/.*at={seq}$"))
    expect(window.log.locator(".pointed")).to_contain_text("Sunny, and done.")
    expect(window.log.locator(".pointed")).to_be_in_viewport()
    expect(message.get_by_role("link")).to_be_focused()
    check_accessibility(window)


def test_the_exact_request_as_a_command(window: Window, talk: tuple[str, Api]) -> None:
    session, api = talk
    second = [event["seq"] for event in api.events(session) if event["data"].get("completion")][1]
    window.context.grant_permissions(["clipboard-read", "clipboard-write"])
    window.open_timeline(session, at=second)
    window.detail.get_by_text("Exact request to the model").click()
    window.detail.get_by_text("As a curl command").click()
    window.detail.locator(".request > .row").get_by_role("button", name="Copy").click()
    body = window.read_clipboard("{")
    answered = api.client.get(f"sessions/{session}/events/{second}/request")
    assert body == answered.text
    command = window.detail.locator(".request details pre").inner_text()
    assert "\u009b" not in command
    # A shell that only says what curl would be given.
    shown = subprocess.run(
        ["bash", "-c", f"curl() {{ printf '%s\\n' \"$@\"; cat; }}\n{command}"],
        capture_output=True,
        check=True,
        env={"OPENAI_BASE_URL": "http://localhost/v1", "OPENAI_API_KEY": "k", "PATH": "/usr/bin:/bin"},
    ).stdout.decode()
    *options, sent = shown.splitlines()
    assert options[0] == "http://localhost/v1/chat/completions"
    assert "Authorization: Bearer k" in options
    assert json.loads(sent) == answered.json()
    assert ODD in sent or json.dumps(ODD)[1:-1] in json.dumps(json.loads(sent))
