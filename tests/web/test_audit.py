"""What an auditor does on the page: heads and checkpoints, today's agents, differences, redaction, the audit log."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from playwright.sync_api import Locator, Route, expect

from tests.support import warm
from tests.support.processes import ServerProcess, clean_environment
from tests.support.scripted import ScriptedModel
from tests.web.test_accessibility import check_accessibility
from tests.web.window import PHONE, Api, Window

pytestmark = pytest.mark.long

# Its instructions are others each time, so that an agent of today is never that of the record.
TEAM = """
from itertools import count
from swarmkeep import Agent

moods = count()
moody = Agent(name="Moody", instructions=lambda: f"Your mood is {next(moods)}.")
"""

# Copies of the first entry, behind the last: more than the page shows at once.
MORE_ENTRIES = """
INSERT INTO trail
WITH RECURSIVE more(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM more WHERE number < 150)
SELECT tenant, (SELECT max(seq) FROM trail) + number, type, version, actor, recorded_at, payload, salt, commitment, hash
FROM trail, more WHERE seq = 1
"""


@pytest.fixture(scope="module")
def server(_scripted: ScriptedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("audited")
    team = folder / "team.py"
    team.write_text(TEAM, encoding="utf-8")
    env = {"OPENAI_API_KEY": "test", "OPENAI_BASE_URL": _scripted.url, "SWARMKEEP_MODEL_RETRIES": "0"}
    with ServerProcess(folder, agents=[str(team)], offline=False, env=env) as running:
        yield running


@pytest.fixture
def window(cleared_windows: Callable[..., Window], server: ServerProcess) -> Window:
    return cleared_windows(server.url, bypass_csp=True, permissions=["clipboard-read", "clipboard-write"])


@pytest.fixture
def talk(model: ScriptedModel, api: Api) -> str:
    session = api.session(context_variables={"place": "Rome"})
    for answer in ("Fine, Robin.", "Still fine."):
        model.say(answer)
        api.run(session, "How are you? I am Robin.")
    return session


def choose(window: Window, entry: str) -> None:
    window.page.get_by_role("button", name="Check", exact=True).click()
    window.page.get_by_role("button", name=entry).click()


def find_chosen(window: Window) -> Locator:
    return window.rows.and_(window.page.locator("[aria-selected=true]"))


def test_log_is_checked_against_noted_hash(
    window: Window, talk: str, api: Api, server: ServerProcess, tmp_path: Path
) -> None:
    last = api.events(talk)[-1]
    window.open_timeline(talk, at=2)
    expect(window.page.locator(".badge")).to_have_text(f"Verified: {last['seq']} events")
    choose(window, "Copy SEQ:HASH of the end")
    expect(window.page.locator("[aria-live=polite]")).to_contain_text("SEQ:HASH is copied")
    noted = window.read_clipboard()
    assert noted == f"{last['seq']}:{last['hash']}"
    choose(window, "Check against an earlier head")
    panel = window.page.get_by_role("region", name="Check against earlier heads")
    head = panel.get_by_label("Earlier head")
    expect(head).to_be_focused()

    def check_head(text: str, expected: str) -> None:
        head.fill(text)
        head.press("Enter")
        expect(panel.locator(".check-result")).to_contain_text(expected)

    check_head("nonsense", "Write SEQ:HASH")
    check_head(noted, f"The log still has event {last['seq']} with the same hash, and it verifies.")
    check_head(f"4:{'0' * 64}", "This is not the log of the earlier head: 1 problem.")
    problems = window.page.get_by_role("alert").filter(has_text="This log does not verify: 1 problem")
    expect(window.rows.filter(has_text="does not verify")).to_have_attribute("aria-posinset", "4")
    problems.get_by_role("link", name="Show event 4").click()
    expect(find_chosen(window)).to_have_attribute("aria-posinset", "4")
    check_accessibility(window)
    panel.get_by_role("button", name="Close").click()
    expect(problems).to_be_hidden()
    choose(window, "Check against an earlier head")
    check_head(noted, "and it verifies")

    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    signing_key, file = tmp_path / "key.pem", tmp_path / "heads.jsonl"
    signing_key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    command = [sys.executable, "-m", "swarmkeep", "checkpoint", "--url", server.url, "--signing-key", str(signing_key)]
    made = warm.run([*command, "--output", str(file)], folder=tmp_path, env=clean_environment())
    made.check_returncode()

    def check_file(content: str, trusted: str, *expected: str) -> None:
        given = {"name": "heads.jsonl", "mimeType": "application/jsonl", "buffer": content.encode()}
        panel.get_by_label("Checkpoint file").set_input_files(given)  # type: ignore[arg-type]
        panel.get_by_label("Public key that it must be signed with").fill(trusted)
        panel.get_by_role("button", name="Check the file").click()
        for sentence in expected:
            expect(panel.locator(".check-result")).to_contain_text(sentence)

    checkpoint = file.read_text(encoding="utf-8")
    check_file(checkpoint, "", "it is intact", f"signed with the key {public}", "and it verifies")
    check_file(checkpoint, pem.replace("\n", " "), "and it verifies")
    check_file(checkpoint, "0" * 64, "signed with another key")
    check_file(checkpoint.replace(last["hash"], "0" * 64), "", "The file was changed")
    check_file(checkpoint[:-20], "", "it is not a checkpoint, or was cut off".replace("it", "the file", 1))
    seal = json.loads(checkpoint.splitlines()[-1])
    forged = checkpoint.replace(seal["signature"], seal["signature"][::-1])
    check_file(forged, "", "signature is not valid")
    later = api.session()
    window.open_timeline(later)
    choose(window, "Check against an earlier head")
    check_file(checkpoint, "", "The checkpoint does not contain this log")


def test_todays_agents_and_events_are_compared(window: Window, talk: str, api: Api) -> None:
    window.open_timeline(talk)
    choose(window, "Would today's agents do the same?")
    panel = window.page.get_by_role("region", name="Today's agents")
    expect(panel).to_contain_text("No: 2 differences in 2 turns.")
    answers = [event["seq"] for event in api.events(talk) if event["data"].get("completion")]
    marked = window.rows.filter(has_text="different today")
    expect(marked).to_have_count(2)
    expect(marked.first).to_have_attribute("aria-posinset", str(answers[0]))
    panel.locator("summary").first.click()
    expect(panel).to_contain_text(re.compile(r"Your mood is \d+\..*Your mood is \d+\."))
    check_accessibility(window)
    panel.get_by_role("link", name=f"Show event {answers[1]}").click()
    expect(find_chosen(window)).to_have_attribute("aria-posinset", str(answers[1]))
    panel.get_by_role("button", name="Close").click()
    expect(marked).to_have_count(0)

    window.detail.get_by_role("button", name="Compare with another event").click()
    other = window.detail.get_by_label("Compare with event")
    other.fill("1")
    other.press("Enter")
    diff = window.detail.locator(".diff")
    expect(diff).to_contain_text(f"From event 1 to event {answers[1]}")
    expect(diff).to_contain_text("4 messages are new or different")
    expect(diff.get_by_role("row").filter(has_text="/usage/model_calls")).to_contain_text("02")
    expect(window.page).to_have_url(re.compile(rf"\?at={answers[1]}&from=1$"))
    window.page.reload()
    expect(diff).to_contain_text("4 messages are new or different")
    window.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    check_accessibility(window)


def test_redaction_is_previewed_and_audited(window: Window, talk: str, api: Api, server: ServerProcess) -> None:
    fork = api.post(f"sessions/{talk}/fork", {})["id"]
    said = next(event["seq"] for event in api.events(talk) if "Robin" in str(event["data"]))
    window.open_chat(talk)
    window.open_timeline(talk, at=said)
    window.detail.get_by_role("button", name="Redact").click()
    dialog = window.page.get_by_role("dialog", name="Redact events")
    expect(dialog).to_contain_text(f"How are you? I am Robin. ({talk})")
    # It goes with its view.
    window.page.go_back()
    expect(window.log).to_contain_text("Still fine.")
    expect(dialog).to_be_hidden()
    window.page.go_forward()
    window.detail.get_by_role("button", name="Redact").click()
    removes = dialog.get_by_label("What it removes")
    expect(removes).to_contain_text("1 event will be emptied:")
    expect(removes).to_contain_text("How are you? I am Robin.")
    expect(removes).to_contain_text(fork)
    check_accessibility(window)
    for written, part in ((f"{said}, x6", "x6"), (f"{said}, 9-7", "9-7"), ("0", "0")):
        dialog.get_by_label("Events, such as").fill(written)
        dialog.get_by_label("Reason").fill("a name")
        expect(dialog.get_by_role("alert")).to_contain_text(f"“{part}” is not an event")
        expect(dialog.get_by_role("button", name="Remove for good")).to_be_disabled()
    dialog.get_by_label("Events, such as").fill(f"{said}-{said + 1}")
    dialog.get_by_label("Reason").fill("a name")
    expect(removes).to_contain_text("2 events will be emptied:")
    assert "Robin" in str(api.events(talk)[said - 1]["data"]), "so far it was only looked at"
    dialog.get_by_label("Redact them there as well").check()
    dialog.get_by_role("button", name="Remove for good").click()
    expect(dialog).to_be_hidden()
    expect(window.detail).not_to_contain_text("Robin")
    for session in (talk, fork):
        events = api.events(session)
        assert all(event["data"]["redacted"] is True for event in events[said - 1 : said + 1])
        assert events[-1]["data"]["reason"] == "a name"

    window.page.get_by_role("link", name="Audit log").click()
    # The way back leads to the session that was open.
    expect(window.page.get_by_role("link", name="Timeline", exact=True)).to_have_attribute("href", f"#/timeline/{talk}")
    log = window.page.get_by_role("region", name="Audit log").locator("tbody tr")
    expect(log.first).to_contain_text("Session redacted")
    expect(log.nth(0).or_(log.nth(1)).filter(has_text=talk)).to_have_count(1)
    expect(log.last).to_contain_text("Server started")
    badge = window.page.locator(".badge")
    expect(badge).to_contain_text(re.compile(r"^Verified: \d+ entries$"))
    check_accessibility(window)
    for width in (768, 390, 320):
        window.page.set_viewport_size({"width": width, "height": 844})
        window.check_tables()
    check_accessibility(window)
    with closing(sqlite3.connect(server.database_url.removeprefix("sqlite:///"))) as database, database:
        assert database.execute("UPDATE trail SET actor = 'somebody else' WHERE seq = 1").rowcount == 1
        assert database.execute(MORE_ENTRIES).rowcount == 150
    window.page.reload()
    expect(badge).to_contain_text("Does not verify")
    expect(log).to_have_count(100)
    # What the server does not give is asked for once, until somebody asks again.
    refused: list[str] = []

    def refuse(route: Route) -> None:
        refused.append(route.request.url)
        route.fulfill(status=429, json={"code": "rate_limited", "detail": "too much at once"})

    earlier = re.compile(r"/v1/audit\?after=0&")
    window.page.route(earlier, refuse)
    window.page.get_by_role("link", name="Show entry 1", exact=True).click()
    expect(window.page.locator(".toasts")).to_contain_text("too much at once")
    assert len(refused) == 1
    window.page.unroute(earlier)
    window.page.get_by_role("link", name="Show entry 1", exact=True).click()
    expect(log.last).to_have_attribute("data-seq", "1")
    expect(log.last.get_by_role("rowheader")).to_be_focused()
    expect(log.last.and_(window.page.locator(".damaged-row"))).to_contain_text("Server started")
