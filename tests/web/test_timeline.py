"""The timeline: every event, what it was like after each, and what can be done from there."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from tests.support.scripted import ScriptedModel
from tests.web.window import Api, Window

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


def test_the_exact_request_behind_an_answer(window: Window, talk: str, api: Api) -> None:
    answer = next(event["seq"] for event in api.events(talk) if "completion" in event["data"])
    window.open_timeline(talk, at=answer)
    window.detail.get_by_text("Exact request to the model").click()
    shown = window.detail.locator("details", has_text="Exact request to the model").locator("pre")
    expect(shown).to_contain_text('"messages"')
    assert json.loads(shown.inner_text()) == api.get(f"sessions/{talk}/events/{answer}/request")


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


def test_what_happens_meanwhile_comes_in(window: Window, talk: str, api: Api, model: ScriptedModel) -> None:
    window.open_timeline(talk)
    count = len(api.events(talk))
    expect(window.rows.first).to_have_attribute("aria-setsize", str(count))
    model.say("More.")
    api.run(talk, "And then?")
    expect(window.rows.first).to_have_attribute("aria-setsize", str(len(api.events(talk))))


def test_badge_confirms_the_chain(window: Window, talk: str, api: Api) -> None:
    window.open_timeline(talk)
    expect(window.page.get_by_text(f"Verified: {len(api.events(talk))} events")).to_be_visible()


def test_a_session_has_to_be_chosen(window: Window, talk: str) -> None:
    window.open("#/timeline")
    expect(window.page.get_by_text("Choose a session")).to_be_visible()
    window.page.locator(f".session[data-id='{talk}']").click()
    expect(window.rows.first).to_be_visible()


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
    assert shown == [
        ["User", "Answer sent back"],
        ["Order two.00:00", "Answer sent backIt is not JSON.00:00"],
    ]


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
