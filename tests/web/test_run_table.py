"""The table of runs, what people think of answers, and what is made of both."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.processes import ServerProcess
from tests.support.scripted import ScriptedModel
from tests.web.conftest import serve
from tests.web.test_accessibility import check_accessibility
from tests.web.test_operating import USAGE
from tests.web.window import Api, Window

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def office(_scripted: ScriptedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with answers of two agents, one of them with much in it, and a run that failed."""
    with serve(tmp_path_factory.mktemp("office"), _scripted) as running, Api(running.url) as api:
        for agent in ("Front Desk", "Sales"):
            _scripted.say("Well.", usage=USAGE)
            api.run(api.session(agent=agent), "hello")
        _scripted.fail(401)
        api.run(api.session(agent="Front Desk"), "hello")
        _scripted.say(
            "Well.", usage={"prompt_tokens": 123_456_789, "completion_tokens": 9, "total_tokens": 123_456_798}
        )
        api.run(api.session(id="long-" * 25), "hello")
        yield running


@pytest.fixture
def window(cleared_windows: Callable[..., Window], office: ServerProcess) -> Window:
    """One that lets the checker have styles of its own."""
    return cleared_windows(office.url, bypass_csp=True)


@pytest.fixture
def history(office: ServerProcess) -> Iterator[Api]:
    with Api(office.url) as api:
        yield api


def test_runs_are_filtered_sorted_and_downloaded(window: Window, history: Api) -> None:
    page = window.page
    everything, sales = (len(history.get("runs", status="ended", **only)["data"]) for only in ({}, {"agent": "Sales"}))
    window.open("#/runs")
    main = page.get_by_role("region", name="Runs")
    rows = main.locator("tbody tr")
    expect(rows).to_have_count(everything)
    main.get_by_role("combobox", name="Status").select_option("failed")
    expect(page).to_have_url(re.compile(r"#/runs\?state=failed$"))
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("provider_authentication")
    main.get_by_role("combobox", name="Status").select_option("")
    main.get_by_role("combobox", name="Agent").fill("Sales")
    page.keyboard.press("Enter")
    expect(rows).to_have_count(sales)
    expect(rows.first).to_contain_text("$0.0028")
    main.get_by_role("button", name="Tokens").press("Enter")
    expect(main.get_by_role("columnheader", name="Tokens")).to_have_attribute("aria-sort", "descending")
    expect(page).to_have_url(re.compile("sort=total_tokens"))
    main.get_by_role("button", name="Columns").press("Enter")
    main.get_by_role("checkbox", name="Model", exact=True).uncheck()
    expect(main.get_by_role("columnheader", name="Model", exact=True)).to_have_count(0)
    page.keyboard.press("Escape")
    # The address is the view, and a name for it is kept.
    main.get_by_role("button", name="Views").press("Enter")
    main.get_by_role("textbox", name="Name of this view").fill("Sales, dear")
    page.keyboard.press("Enter")
    page.reload()
    expect(rows).to_have_count(sales)
    expect(main.get_by_role("columnheader", name="Model", exact=True)).to_have_count(0)
    main.get_by_role("button", name="Views").press("Enter")
    main.get_by_role("link", name="All runs").last.press("Enter")
    expect(rows).to_have_count(everything)
    main.get_by_role("button", name="Views").press("Enter")
    main.get_by_role("link", name="Sales, dear").press("Enter")
    expect(rows).to_have_count(sales)
    for form, lines in (("CSV", sales + 1), ("JSON lines", sales)):
        main.get_by_role("button", name="Download").press("Enter")
        with page.expect_download() as saved:
            main.get_by_role("button", name=form).press("Enter")
        content = Path(saved.value.path()).read_text(encoding="utf-8").splitlines()
        assert len(content) == lines
        assert "Sales" in content[-1]
    assert json.loads(content[0])["total_tokens"] == 1000


COLUMNS = "session agent model status stop latency first tokens cost errors waited calls tools prompt completion"


@pytest.mark.parametrize("columns", ["", f"?cols={COLUMNS.replace(' ', '.')}"], ids=("usual", "all"))
@pytest.mark.parametrize("width", [320, 390, 768, 1000, 1280, 1440])
def test_columns_fit(window: Window, width: int, columns: str) -> None:
    """No number is cut, and nothing is beside the window, however much is chosen and however long a name is."""
    page = window.page
    page.set_viewport_size({"width": width, "height": 900})
    window.open(f"#/runs{columns}")
    row = page.get_by_role("region", name="Runs").get_by_role("row").filter(has_text="long-long")
    expect(row).to_contain_text("123,456,798")
    window.check_tables()
    is_table = width >= 1280 and not columns
    expect(page.get_by_role("columnheader", name="Tokens", exact=True)).to_be_visible(visible=is_table)
    # A card says what its figures are.
    if not is_table:
        expect(row.locator("[data-name='Tokens']")).to_have_text("123,456,798")
    # What was a card is a table again where there is room.
    page.set_viewport_size({"width": 2600, "height": 900})
    expect(page.get_by_role("columnheader", name="Tokens", exact=True)).to_be_visible()
    window.check_tables()


def test_percentiles_and_usage_lead_to_rows(window: Window) -> None:
    page = window.page
    window.open("#/runs?by=agent")
    figures = page.get_by_role("region", name="Percentiles")
    expect(figures.get_by_role("row").filter(has_text="Sales")).to_contain_text(",000")
    figures.get_by_role("link", name="Sales").press("Enter")
    expect(page).to_have_url(re.compile("of=Sales"))
    window.open("#/usage?measure=calls")
    lines = page.get_by_role("figure").nth(1).get_by_role("listitem").filter(has_text="Sales")
    lines.get_by_role("link").last.press("Enter")
    expect(page).to_have_url(re.compile(r"#/runs\?since=.*&until=.*&of=Sales$"))
    cells = page.get_by_role("region", name="Runs").locator("tbody tr").filter(has_text="Sales")
    expect(cells.first).to_be_visible()
    window.open("#/usage")
    page.get_by_role("figure").first.locator("rect").last.click()
    expect(page).to_have_url(re.compile("#/runs[?]since="))


def test_answer_is_rated_reviewed_and_made_a_case(window: Window, history: Api, model: ScriptedModel) -> None:
    page = window.page
    session = history.session(id="rated", metadata={"title": f"Rated {'wordy ' * 12}"})
    model.say("It is Tuesday.", usage=USAGE)
    history.run(session, "Which day is it?")
    window.open_chat(session)
    window.log.get_by_role("button", name="Not a good answer").press("Enter")
    page.get_by_role("textbox", name="Comment").fill("It is Friday.")
    page.get_by_role("button", name="Record").press("Enter")
    expect(window.log).to_contain_text("Not a good answer: It is Friday.")
    bad = window.log.get_by_role("button", name="Not a good answer")
    expect(bad).to_have_attribute("aria-pressed", "true")
    expect(bad.locator("..").get_by_role("button").first).to_be_focused()
    check_accessibility(window)
    (said,) = [event["data"] for event in history.events(session) if event["type"] == "feedback.added"]
    assert (said["value"], said["comment"]) == ("down", "It is Friday.")
    window.log.get_by_role("button", name="Make an eval case").press("Enter")
    dialog = page.get_by_role("dialog", name="Eval case")
    expect(dialog).to_contain_text("- Which day is it?")
    check_accessibility(window)
    with page.expect_download() as saved:
        dialog.get_by_role("button", name="Save as YAML").press("Enter")
    assert saved.value.suggested_filename == "rated.yaml"
    page.keyboard.press("Escape")
    # It waits for a review, with the run that failed, until a person has marked it.
    window.open("#/runs?show=review")
    entry = page.get_by_role("main").get_by_role("listitem").filter(has=page.get_by_role("link", name="Rated"))
    expect(entry).to_contain_text("1 answer not found good")
    expect(page.get_by_role("region", name="Runs")).to_contain_text("Last run failed")
    check_accessibility(window)
    for width in (320, 390, 820):
        page.set_viewport_size({"width": width, "height": 844})
        expect(entry.get_by_role("button", name="Mark as reviewed")).to_be_in_viewport(ratio=1)
    entry.get_by_role("button", name="Mark as reviewed").press("Enter")
    expect(entry).to_have_count(0)
    page.reload()
    expect(page.get_by_role("region", name="Runs")).to_contain_text("Last run failed")
    expect(entry).to_have_count(0)
    history.post(f"sessions/{session}/feedback", {"seq": said["seq"], "value": "up"})
    history.post(f"sessions/{session}/feedback", {"seq": said["seq"], "value": "down"})
    page.reload()
    expect(page.get_by_role("region", name="Runs")).to_contain_text("Last run failed")
    expect(entry).to_have_count(0)


def test_run_is_checked_and_tried_with_a_change(window: Window, history: Api, model: ScriptedModel) -> None:
    page = window.page
    window.open("#/runs?of=Sales")
    rows = page.get_by_role("region", name="Runs").locator("tbody tr")
    rows.first.get_by_role("checkbox").check()
    page.get_by_role("button", name="Check 1 session").press("Enter")
    checked = page.get_by_role("region", name="Would today's agents do the same?")
    expect(checked).to_contain_text("1 of 1 session: today's agents would do the same.")
    check_accessibility(window)
    model.say("Another answer.", usage=USAGE)
    rows.first.get_by_role("button", name="What if").press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("textbox").first).to_have_value("hello")
    dialog.get_by_role("textbox").first.fill("goodbye")
    dialog.get_by_role("button").first.press("Enter")
    expect(page).to_have_url(re.compile("#/compare/"))
    expect(page.get_by_role("main")).to_contain_text("Another answer.")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 820, 1440])
def test_checker_finds_nothing_in_run_table(window: Window, theme: str, width: int) -> None:
    window.page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
    window.page.set_viewport_size({"width": width, "height": 900})
    window.open("#/runs?by=agent")
    expect(window.page.get_by_role("region", name="Percentiles").get_by_role("table")).to_be_visible()
    expect(window.page.get_by_role("region", name="Runs").locator("tbody tr").first).to_be_visible()
    window.wait_until_it_fits()
    window.check_tables()
    check_accessibility(window)
