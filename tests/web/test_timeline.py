"""The timeline: every event, what it was like after each, and what can be done from there, as redaction."""

from __future__ import annotations

import json
import re
import sqlite3
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from tests.support.processes import ServerProcess
from tests.support.scripted import ScriptedModel
from tests.web.conftest import TEAM
from tests.web.window import PHONE, Api, Window

pytestmark = pytest.mark.long


# Imports the page's own fold, and folds all prefixes of the events.
FOLDED = """async (events) => {
  const { fold } = await import("/page/fold.js");
  return events.map((_, index) => {
    const { agent, context, metadata, messages, status, usage } = fold(events, index + 1);
    return { agent, context, metadata, messages, status, total: usage.total, calls: usage.calls };
  });
}"""


@pytest.fixture
def talk(model: ScriptedModel, api: Api) -> str:
    """A session in which something of each kind has happened."""
    session = api.session(context_variables={"name": "Robin", "old": 1}, metadata={"team": "blue"})
    model.calls([("get_weather", {"city": "Rome"}, "c1"), ("remember", {"key": "city", "value": "Rome"}, "c2")])
    model.say("It is **sunny** in Rome.")
    api.run(session, "How is the weather in Rome?")
    model.call("transfer_to_sales", {}, id="c3")
    model.say("What may I sell you?")
    api.run(session, "Sales, please", context_variables={"old": None})
    return session


def test_every_event_is_there_in_order(window: Window, talk: str, api: Api) -> None:
    events = api.events(talk)
    window.open_timeline(talk)
    expect(window.rows.first).to_have_attribute("aria-setsize", str(len(events)))
    shown = []
    window.list.press("Home")
    for event in events:
        row = window.list.locator("[aria-selected=true]")
        expect(row).to_have_attribute("aria-posinset", str(event["seq"]))
        shown.append(row.locator(".row-title").inner_text())
        expect(window.detail.get_by_role("heading", level=2)).to_have_text(shown[-1])
        window.list.press("ArrowDown")
    assert shown[:2] == ["Session created", "Run started"]
    assert {"User", "Tool call", "Tool started", "Tool result", "Context changed", "Answer", "Handoff"} <= set(shown)
    expect(window.page.get_by_role("list", name="Agents").get_by_role("listitem")).to_have_text(["Front Desk", "Sales"])


def test_address_change_during_loading_is_followed(window: Window, talk: str) -> None:
    held: list[Route] = []
    window.page.route(re.compile(f"/{talk}/events"), lambda route: held.append(route))
    with window.page.expect_request(re.compile(f"/{talk}/events")):
        window.open_timeline(talk, at=2)
    window.open_timeline(talk, at=3)
    expect(window.page).to_have_url(re.compile("at=3$"))
    held[0].continue_()
    expect(window.detail.locator("header")).to_have_text("User#3")


def test_timeline_without_session_keeps_address(window: Window) -> None:
    window.open("#/timeline").open("#/timeline?at=3&as=runs")
    expect(window.page.get_by_text("Choose a session")).to_be_visible()


def test_page_fold_matches_the_server(window: Window, talk: str, api: Api) -> None:
    events = api.events(talk)
    window.open_timeline(talk)
    for event, state in zip(events, window.evaluate(FOLDED, events), strict=True):
        session = api.get(f"sessions/{talk}", at=event["seq"])
        assert state == {
            "agent": session["agent"],
            "context": session["context_variables"],
            "metadata": session["metadata"],
            "messages": session["message_count"],
            "status": session["status"],
            "total": session["usage"]["total_tokens"],
            "calls": session["usage"]["model_calls"],
        }, event


def test_slider_shows_state_at_any_event(window: Window, talk: str, api: Api) -> None:
    handoff = next(event["seq"] for event in api.events(talk) if event["type"] == "handoff.made")
    window.open_timeline(talk, at=handoff - 1)
    state = window.detail.locator(".state-after")
    expect(state).to_contain_text("Front Desk")
    slider = window.page.get_by_role("slider", name="State after event")
    slider.press("ArrowRight")
    expect(state).to_contain_text("Sales")
    expect(window.page).to_have_url(re.compile(rf"at={handoff}$"))
    expect(slider).to_have_attribute("aria-valuetext", re.compile(rf"^{handoff} of .*: Handoff$"))
    window.page.get_by_role("button", name="Previous event").click()
    expect(state).to_contain_text("Front Desk")
    slider.press("Home")
    expect(window.detail).to_contain_text("Session created")


def test_context_change_shows_before_and_after(window: Window, talk: str, api: Api) -> None:
    changes = [event["seq"] for event in api.events(talk) if event["type"] == "context.updated"]
    window.open_timeline(talk, at=changes[0])
    cells = window.detail.locator(".changes tbody tr")
    expect(cells).to_have_count(1)
    expect(cells.locator("th,td")).to_have_text(["city", "none", '"Rome"'])
    window.open_timeline(talk, at=changes[1])
    expect(cells.locator("th,td")).to_have_text(["old", "1", "none"])


def test_events_are_filtered_and_searched(window: Window, talk: str) -> None:
    window.open_timeline(talk)
    expect(window.rows.first).to_be_visible()
    window.page.get_by_label("Kind of event").select_option("Handoffs")
    expect(window.rows).to_have_count(1)
    expect(window.rows.first).to_contain_text("Front Desk → Sales")
    window.page.get_by_label("Kind of event").select_option("All events")
    window.page.get_by_role("searchbox", name="Search events").fill("sunny")
    expect(window.rows).to_have_count(2)
    window.page.get_by_role("searchbox", name="Search events").fill("nothing like it")
    expect(window.rows).to_have_count(0)
    expect(window.page.get_by_text("No event matches the filter.")).to_be_visible()


def test_fork_starts_from_an_event(window: Window, talk: str, api: Api, model: ScriptedModel) -> None:
    end = next(event["seq"] for event in api.events(talk) if event["type"] == "run.completed")
    window.open_timeline(talk, at=end)
    window.detail.get_by_role("button", name="Fork from here").click()
    expect(window.log).to_contain_text(f"Forked from {talk} after event {end}")
    expect(window.answers).to_have_text(["It is sunny in Rome."])
    model.say("And here it is another way.")
    window.say("What if?")
    expect(window.answers).to_have_text(["It is sunny in Rome.", "And here it is another way."])
    origin = api.get(f"sessions/{window.session_id}")["forked_from"]
    assert (origin["session_id"], origin["seq"]) == (talk, end)


def test_an_import_is_told_of(window: Window, talk: str, api: Api) -> None:
    sent = api.client.get(f"sessions/{talk}/events", headers={"accept": "application/x-ndjson"}).content
    assert api.client.post(f"import?as={talk}-copy", content=sent).status_code == 200
    last = len(api.events(talk))
    window.open_chat(f"{talk}-copy")
    expect(window.log).to_contain_text(f"Events 1 to {last} were imported: none of it was decided here")
    window.open_timeline(f"{talk}-copy", at=last + 1)
    expect(window.rows.last).to_contain_text("Imported")


def test_export_is_log_byte_exact(window: Window, talk: str, api: Api, tmp_path: Path) -> None:
    window.open_timeline(talk)
    with window.page.expect_download() as waited:
        window.page.get_by_role("button", name="Export").click()
        window.page.get_by_role("button", name="Events (JSON lines)").click()
    file = tmp_path / "export.jsonl"
    waited.value.save_as(file)
    sent = api.client.get(f"sessions/{talk}/events", headers={"accept": "application/x-ndjson"}).content
    assert file.read_bytes() == sent


def test_evidence_package_is_saved(window: Window, talk: str, tmp_path: Path) -> None:
    window.open_timeline(talk)
    with window.page.expect_download() as waited:
        window.page.get_by_role("button", name="Export").click()
        window.page.get_by_role("button", name="Evidence package (ZIP)").click()
    assert waited.value.suggested_filename == f"{talk}.zip"
    file = tmp_path / "case.zip"
    waited.value.save_as(file)
    with zipfile.ZipFile(file) as package:
        assert json.loads(package.read("manifest.json"))["sessions"][0]["id"] == talk
        assert b"the sessions as they were recorded" in package.read("README.txt")


ODD = [
    {"type": "later.invented", "data": {"x": 1}},
    {"type": "message.added", "data": None},
    {"type": "message.added", "data": {"redacted": True}},
    {"type": "message.added", "data": {"message": {"role": "assistant", "tool_calls": 7}}},
    {"type": "run.waiting", "data": {}},
    {"type": "run.queued", "data": {"messages": None}},
    {"type": "session.redacted", "data": {}},
    {"type": "session.imported", "data": {}},
    {"type": "message.removed", "data": {}},
    {"type": "run.hidden", "data": {}},
    {"type": "compaction.started", "data": {}},
    {"type": "compaction.summarised", "data": {}},
    {"type": "compaction.failed", "data": {}},
    {"type": "tools.listed", "data": {}},
    {"type": "context.updated", "data": "text"},
    {"type": "tool.started", "data": {"tool_call_id": "never asked for"}},
]


def test_events_of_unknown_shapes_stop_nothing(window: Window) -> None:
    window.open()
    events: list[dict[str, Any]] = [
        {"seq": seq, "agent": "A", "run_id": None, "at": "2026-01-01T00:00:00Z", "hash": "", **odd}
        for seq, odd in enumerate(ODD, start=1)
    ]
    told = window.evaluate(
        """async (events) => {
          const { fold } = await import("/page/fold.js");
          const { titleOf, summaryOf } = await import("/page/descriptions.js");
          const { Detail } = await import("/page/detail.js");
          const detail = new Detail({}, "x");
          for (const { seq } of events) detail.show(events, seq);
          return [fold(events).seq, events.map((event) => typeof titleOf(event) + typeof summaryOf(event))];
        }""",
        events,
    )
    assert told == [len(ODD), ["stringstring"] * len(ODD)]


def test_returned_answer_is_not_user_text(window: Window) -> None:
    window.open()
    said = {"role": "user", "content": "Order two.", "sender": "user"}
    told = {"role": "user", "content": "It is not JSON.", "sender": "swarmkeep"}
    events = [
        {
            "seq": seq,
            "agent": "A",
            "run_id": "r",
            "at": "2026-01-01T00:00:00",
            "hash": "",
            "type": "message.added",
            **event,
        }
        for seq, event in enumerate(
            [{"data": {"message": said}}, {"data": {"message": told, "correction": 1}}], start=1
        )
    ]
    shown = window.evaluate(
        """async (events) => {
          const { fold } = await import("/page/fold.js");
          const { itemNode } = await import("/page/log.js");
          const { titleOf } = await import("/page/descriptions.js");
          const state = fold(events);
          return [events.map(titleOf), state.items.map((item) => itemNode(item, {}).textContent)];
        }""",
        events,
    )
    assert shown == [["User", "Answer sent back"], ["Order two.00:00", "Answer sent backIt is not JSON.00:00"]]


def test_removed_message_is_noted_on_page(window: Window) -> None:
    window.open()
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    other = {**call, "id": "c2"}
    data: list[tuple[str, dict[str, Any]]] = [
        ("message.added", {"message": {"role": "user", "content": "secret"}}),
        ("message.added", {"message": {"role": "assistant", "content": None, "tool_calls": [call, other]}}),
        ("message.added", {"message": {"role": "tool", "tool_call_id": "c1", "content": "one"}}),
        ("message.added", {"message": {"role": "tool", "tool_call_id": "c2", "content": "two"}}),
        ("message.removed", {"message_seq": 1, "tool_call_id": None, "seqs": [1], "by": "key_0123456789abcdef (Eve)"}),
        ("message.removed", {"message_seq": 2, "tool_call_id": "c1", "seqs": [3], "by": None}),
    ]
    shown = window.evaluate(
        """async (events) => {
          const { fold } = await import("/page/fold.js");
          const { titleOf, summaryOf } = await import("/page/descriptions.js");
          const state = fold(events);
          const last = events[events.length - 2];
          return [state.messages, state.items.map((item) => item.id ?? item.kind), titleOf(last), summaryOf(last)];
        }""",
        [
            {
                "seq": seq,
                "agent": "A",
                "run_id": None,
                "at": "2026-01-01T00:00:00Z",
                "hash": "",
                "type": type_,
                "data": one,
            }
            for seq, (type_, one) in enumerate(data, start=1)
        ],
    )
    assert shown == [2, ["c2", "takenOut", "takenOut"], "Message taken out", "1 · Eve"]


# Redaction: other events with the same words, also while a run waits; and comparing two events.


CARD = "4111 1111 1111 1111"


@pytest.fixture
def waiting(api: Api, model: ScriptedModel) -> str:
    """A session whose first run has the number of a card in four events, and whose second one waits."""
    session = api.session(agent="Front Desk")
    model.call("remember", {"key": "card", "value": CARD.replace(" ", "-")}, id="c1")
    model.say(f"I noted {CARD}.")
    api.run(session, f"My card is {CARD}.")
    model.call("refund", {"order": "A-17"}, id="c2")
    api.run(session, "Refund A-17.")
    return session


def find(api: Api, session: str, *words: str) -> list[int]:
    return [event["seq"] for event in api.events(session) if any(word in json.dumps(event["data"]) for word in words)]


def test_same_words_are_offered_while_a_run_waits(window: Window, waiting: str, api: Api, model: ScriptedModel) -> None:
    said = find(api, waiting, CARD, CARD.replace(" ", "-"))
    assert len(said) >= 4
    window.open_timeline(waiting, at=said[0])
    expect(window.detail).to_contain_text(CARD)
    # What is marked is what is looked for.
    window.detail.get_by_text(CARD).first.evaluate(
        """(node, words) => {
          const start = node.firstChild.data.indexOf(words);
          getSelection().setBaseAndExtent(node.firstChild, start, node.firstChild, start + words.length);
        }""",
        CARD,
    )
    window.detail.get_by_role("button", name="Redact").press("Enter")
    dialog = window.page.get_by_role("dialog", name="Redact events")
    expect(dialog.get_by_label("Words that must go")).to_have_value(CARD)
    expect(dialog).to_contain_text("A run waits.")
    expect(dialog.get_by_text(f"{len(said) - 1} other events say the same:")).to_be_visible()
    listed = dialog.get_by_role("group", name="Events that say the same").get_by_role("listitem")
    expect(listed).to_have_count(len(said) - 1)
    dialog.get_by_role("button", name=f"Add event {said[1]}", exact=True).press("Enter")
    expect(listed).to_have_count(len(said) - 2)
    # The keyboard goes on with the next one.
    assert listed.first.get_by_role("button").evaluate("(node) => node === document.activeElement")
    window.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    window.wait_until_it_fits()
    dialog.get_by_role("button", name=f"Add all {len(said) - 2}").press("Enter")
    expect(dialog).to_contain_text("No other event of this session says the same.")
    expect(dialog.get_by_label("Events, such as")).to_have_value(", ".join(map(str, said)))
    # What the run waits for stays until then.
    awaited = find(api, waiting, "A-17")[-1]
    events = dialog.get_by_label("Events, such as")
    events.fill(f"{', '.join(map(str, said))}, {awaited}")
    dialog.get_by_label("Reason").fill("a card number")
    expect(dialog.get_by_role("alert")).to_contain_text("The run that waits goes on from one of these events.")
    expect(dialog.get_by_role("button", name="Remove for good")).to_be_disabled()
    events.fill(", ".join(map(str, said)))
    dialog.get_by_label("Reason").focus()
    expect(dialog.get_by_role("button", name="Remove for good")).to_be_enabled()
    dialog.get_by_role("button", name="Remove for good").press("Enter")
    expect(dialog).to_be_hidden()
    assert "1111" not in json.dumps(api.events(waiting))
    model.say("It is paid back.")
    window.open_chat(waiting)
    window.page.get_by_role("region", name="Approval").get_by_role("button", name="Approve").click()
    expect(window.answers.last).to_have_text("It is paid back.")
    assert "1111" not in json.dumps(model.requests[-1])


def test_two_events_are_compared_above_the_fold(window: Window, waiting: str, api: Api) -> None:
    change = next(event["seq"] for event in api.events(waiting) if event["type"] == "context.updated")
    window.page.set_viewport_size({"width": 1280, "height": 720})
    window.open_timeline(waiting, at=change)
    compare = window.detail.get_by_role("button", name="Compare with another event")
    expect(compare).to_be_in_viewport()
    compare.press("Enter")
    expect(compare).to_have_attribute("aria-expanded", "true")
    diff = window.detail.get_by_role("region", name="Compare with another event")
    # With the event before it, until another one is named; all that without scrolling.
    expect(diff.get_by_role("rowheader", name="/context_variables/card")).to_be_in_viewport()
    expect(diff.get_by_label("Compare with event")).to_be_focused()
    expect(window.page).to_have_url(re.compile(rf"\?at={change}&from={change - 1}$"))
    diff.get_by_label("Compare with event").fill("0")
    diff.get_by_label("Compare with event").press("Enter")
    expect(diff).to_contain_text(f"From nothing to event {change}")
    compare.press("Enter")
    expect(diff).to_be_hidden()
    expect(window.page).to_have_url(re.compile(rf"\?at={change}$"))


def test_forged_answer_is_marked_in_both_views(
    cleared_windows: Callable[..., Window], model: ScriptedModel, tmp_path: Path
) -> None:
    env = {"OPENAI_API_KEY": "test", "OPENAI_BASE_URL": model.url, "SWARMKEEP_MODEL_RETRIES": "0"}
    model.say("You owe us nothing.")
    server = ServerProcess(tmp_path, agents=[str(TEAM)], offline=False, env=env)
    with server, Api(server.url) as api:
        session = api.session(id="forged")
        api.run(session, "What do I owe?")
        (seq,) = [event["seq"] for event in api.events(session) if "You owe us nothing" in str(event["data"])]
    with closing(sqlite3.connect(tmp_path / "swarmkeep.db")) as database, database:
        changed = database.execute(
            "UPDATE events SET payload = replace(payload, 'nothing', 'a million') WHERE session_id = ? AND seq = ?",
            (session, seq),
        )
        assert changed.rowcount == 1
    with server:
        window = cleared_windows(server.url)
        window.open_chat(session)
        expect(window.answers).to_have_text(["You owe us a million."])
        warning = window.page.get_by_role("alert").filter(has_text="This log does not verify: 1 problem")
        expect(warning).to_be_visible()
        marked = window.log.locator(".damaged")
        expect(marked).to_have_count(1)
        expect(marked).to_contain_text("You owe us a million.")
        expect(marked).to_contain_text("it may have been changed since it was recorded")
        warning.get_by_role("link", name=f"Show event {seq}").click()
        expect(window.page.locator(".badge")).to_have_text("Does not verify: 1 problem")
        expect(window.rows.and_(window.page.locator("[aria-selected=true]"))).to_have_attribute(
            "aria-posinset", str(seq)
        )
        rows = window.rows.filter(has_text="does not verify")
        expect(rows).to_have_count(1)
        expect(rows).to_have_attribute("aria-posinset", str(seq))
        expect(warning).to_contain_text("payload_differs")
