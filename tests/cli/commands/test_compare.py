"""diff, compare, request and whatif at the command line."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import cast

import msgspec
import pytest

import swarmkeep
import swarmkeep_client as client
from swarmkeep.cli.chat import to_start_run
from swarmkeep.cli.commands.compare import put_comparison
from swarmkeep.events.records import NOT_ASKED, CallerTool, RunOptions
from swarmkeep.http.bodies import NewRun
from swarmkeep_client import Comparison
from tests.cli.command_line import ACME, CommandLine
from tests.cli.conftest import RecordedSession
from tests.cli.pseudo_terminal import TtyText
from tests.support.processes import ServerProcess

PAGE = Path(swarmkeep.__file__).with_name("web") / "page"


@pytest.fixture
def agents(place: list[str]) -> list[str]:
    """What a command that runs agents needs besides: a server has them."""
    return [] if "--url" in place else ["--offline", "--agents", ACME]


@pytest.mark.long
def test_diff_shows_changes_between_events(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    shown = cli("diff", recorded.session_id, "1", "9", *place)
    assert shown.code == 0
    assert '~ agent: "Triage Agent" → "Sales Agent"' in shown.lines
    assert any(line.startswith("3 user: Hello, I'd like to buy") for line in shown.lines)
    found = cli("diff", recorded.session_id, "0", "1", "--json", *place).json
    assert {"path": "/agent", "after": "Triage Agent"} in found["changes"]


def test_reversed_or_empty_diff_refused(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    cli.expect_usage_error("diff", recorded.session_id, "3", "1", *place)
    assert "999" in cli.expect_refusal("diff", recorded.session_id, "1", "999", *place)
    assert "nobody" in cli.expect_refusal("diff", "nobody", "1", "2", *place)
    same = cli("diff", recorded.session_id, "3", "3", *place)
    assert (same.code, same.out, same.err) == (0, "", "nothing changed\n")


def test_request_shown_and_given_exactly(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    shown = cli("request", recorded.session_id, "4", *place).json
    assert [message["role"] for message in shown["messages"]] == ["system", "user"]
    raw = cli("request", recorded.session_id, "4", "--raw", *place).out
    assert "\n" not in raw
    assert json.loads(raw) == shown
    assert raw == cli("request", recorded.session_id, "4", "--raw", *recorded.options).out
    assert "not a model's answer" in cli.expect_refusal("request", recorded.session_id, "3", *place)
    cli.expect_usage_error("request", recorded.session_id, "4", "--raw", "--redacted", *place)


def test_redacted_request_is_marked(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    cli("sessions", "fork", recorded.session_id, "--at", "4", "--id", "hidden", *place)
    cli("sessions", "redact", "hidden", "--seq", "3", "--reason", "a name", *place)
    assert "redacted" in cli.expect_refusal("request", "hidden", "4", *place)
    left = cli("request", "hidden", "4", "--redacted", *place)
    assert (left.code, left.json["exact"], left.json["request"]["messages"][1]["content"]) == (0, False, "[redacted]")
    assert left.err == "inexact: not what was sent, but what is left of it: event 3 was redacted, or cannot be read\n"
    cli("sessions", "delete", "hidden", *place)


@pytest.mark.long
def test_run_retried_with_other_words(
    cli: CommandLine, recorded: RecordedSession, place: list[str], agents: list[str]
) -> None:
    before = cli("events", recorded.session_id, "--json", *place).json
    tried = cli(
        "whatif", recorded.session_id, "--at", "3", "--input", "Hello?", "--id", "other-words", "--model", "m",
        *agents, *place,
    )  # fmt: skip
    assert tried.code == 0, tried
    assert f"swarmkeep compare {recorded.session_id} other-words {' '.join(place)}\n" in tried.err
    events = cli("events", "other-words", "--json", *place).json
    started = next(event for event in events if event["type"] == "run.started")
    assert started["data"]["options"]["model"] == "m"
    assert started["seq"] == 3
    assert [event["hash"] for event in events][:1] == [event["hash"] for event in before][:1]
    said = [event["data"]["message"]["content"] for event in events if event["type"] == "message.added"]
    assert said[:1] == ["Hello?"]
    assert cli("events", recorded.session_id, "--json", *place).json == before
    compared = cli("compare", recorded.session_id, "other-words", *place)
    assert compared.lines[0].startswith(f"{recorded.session_id} and other-words share events 1 to 1; ")
    assert any(line.endswith("user: Hello?") for line in compared.lines)
    found = cli("compare", recorded.session_id, "other-words", "--json", *place).json
    assert (found["shared_seq"], found["identical"]) == (1, False)


@pytest.mark.long
def test_same_words_retried_with_another_agent(
    cli: CommandLine, recorded: RecordedSession, place: list[str], agents: list[str]
) -> None:
    tried = cli("whatif", recorded.session_id, "--at", "3", "--agent", "Sales Agent", "--json", *agents, *place)
    assert tried.code == 0, tried
    found = tried.json
    assert (found["from_session_id"], found["from_seq"]) == (recorded.session_id, 1)
    messages = cli("sessions", "show", found["session_id"], "--json", *place).json["messages"]
    assert messages[0]["content"].startswith("Hello, I'd like to buy")
    assert messages[1]["sender"] == "Sales Agent"


@pytest.mark.long
def test_run_retried_with_other_settings(
    cli: CommandLine, recorded: RecordedSession, place: list[str], agents: list[str]
) -> None:
    first = ["--id", "once", "--model-settings", '{"seed": 1, "stop": "."}', "--instructions", "Be brief."]
    assert cli("whatif", recorded.session_id, "--at", "3", *first, *agents, *place).code == 0
    # What is not changed is as it was in that run.
    again = ["--id", "twice", "--model-settings", '{"stop": null, "top_p": 0.5}']
    assert cli("whatif", "once", "--at", "3", *again, *agents, *place).code == 0
    events = cli("events", "twice", "--json", *place).json
    options = next(event for event in events if event["type"] == "run.started")["data"]["options"]
    assert options["model_settings"] == {"seed": 1, "stop": None, "top_p": 0.5}
    assert options["instructions"] == "Be brief."
    answered = next(event["seq"] for event in events if event["data"].get("completion"))
    request = cli("request", "twice", str(answered), *place).json
    assert (request["seed"], request["top_p"], "stop" in request) == (1, 0.5, False)
    assert request["messages"][0]["content"].endswith("\n\nBe brief.")
    assert '"top_p":0.5' in cli("replay", "twice", *place).out


LAMP = {"type": "function", "function": {"name": "light", "parameters": {"type": "object", "properties": {}}}}
# Every option of a run; a new one has to be added here, and is taken over by itself.
EVERY_OPTION = RunOptions(
    max_turns=7, model="m", execute_tools=False, stream=True, loop_turns=3, history_turns=4,
    tools=msgspec.convert([LAMP], tuple[CallerTool, ...]), tool_choice="none", parallel_tool_calls=False,
    model_settings={"seed": 1, "stop": None}, instructions="Be brief.", response_format={"type": "json_object"},
    model_profile={"developer_role": "system"}, request={"model": "m"},
)  # fmt: skip


def test_retried_run_has_every_option() -> None:
    every = set(RunOptions.__struct_fields__)
    assert {name for name in every if getattr(EVERY_OPTION, name) != getattr(RunOptions(), name)} == every
    asked = EVERY_OPTION.list_asked()
    assert asked.keys() == every - NOT_ASKED
    # Over HTTP, through the client, in this process, and on the page.
    assert asked.keys() <= set(NewRun.__struct_fields__)
    assert asked.keys() <= client.RunOptions.__annotations__.keys()
    again = to_start_run("hi", cast("client.RunOptions", asked), stream=True).options
    assert again == msgspec.structs.replace(EVERY_OPTION, loop_turns=None, history_turns=None, request=msgspec.UNSET)
    (listed,) = re.findall(r"const NOT_ASKED = (\[.*\]);", (PAGE / "edit.js").read_text())
    assert set(json.loads(listed)) == NOT_ASKED


@pytest.mark.long
def test_run_retried_with_its_tools(cli: CommandLine) -> None:
    place = ["--database-url", f"sqlite:///{cli.folder / 'swarmkeep.db'}"]
    with ServerProcess(cli.folder, database_url=place[1], agents=[ACME]) as server:
        with client.Client(server.url) as sessions:
            session = sessions.sessions.create(id="first")
            session.run("Hello", tools=[LAMP], tool_choice="none", parallel_tool_calls=False)
            at = str(session.refresh().seq)
        assert cli("whatif", "first", "--at", at, "--id", "there", "--url", server.url).code == 0
    assert cli("whatif", "first", "--at", at, "--id", "here", "--offline", "--agents", ACME, *place).code == 0
    for session_id in ("first", "there", "here"):
        events = cli("events", session_id, "--json", *place).json
        (options,) = [event["data"]["options"] for event in events if event["type"] == "run.started"]
        assert (options["tools"], options["tool_choice"], options["parallel_tool_calls"]) == ([LAMP], "none", False)


@pytest.mark.long
def test_unretriable_run_refused(
    cli: CommandLine, recorded: RecordedSession, place: list[str], agents: list[str]
) -> None:
    assert "belongs to no run" in cli.expect_refusal("whatif", recorded.session_id, "--at", "1", *agents, *place)
    assert "no event 999" in cli.expect_refusal("whatif", recorded.session_id, "--at", "999", *agents, *place)
    assert "nobody" in cli.expect_refusal("whatif", "nobody", "--at", "3", *agents, *place)
    assert "no model" in cli.expect_refusal("whatif", recorded.session_id, "--at", "3", *recorded.options)
    cli.expect_usage_error("whatif", recorded.session_id, "--at", "3", "--url", "http://127.0.0.1:9", "--offline")
    for wrong in ("{", "[]", '{"messages": []}'):
        cli.expect_usage_error("whatif", recorded.session_id, "--at", "3", "--model-settings", wrong, *agents, *place)


@pytest.mark.parametrize(("columns", "places"), [("120", [0, 60]), ("80", [0, 0])], ids=["wide", "narrow"])
def test_sides_adjacent_if_room(
    db: CommandLine, recorded: RecordedSession, monkeypatch: pytest.MonkeyPatch, columns: str, places: list[int]
) -> None:
    assert db("sessions", "fork", recorded.session_id, "--at", "3", "--id", "part").code == 0
    found = msgspec.convert(db("compare", recorded.session_id, "part", "--json").json, Comparison)
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "stdout", screen := TtyText())
    put_comparison(found)
    lines = screen.getvalue().splitlines()
    heads = (f"{recorded.session_id}, now at", "part, now at")
    assert lines[1] == ""
    assert tuple(next(line.index(head) for line in lines if head in line) for head in heads) == pytest.approx(
        places, abs=2
    )


def test_session_equals_itself(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    shown = cli("compare", recorded.session_id, recorded.session_id, *place)
    assert "are the same, up to event" in shown.out
    assert "nobody" in cli.expect_refusal("compare", recorded.session_id, "nobody", *place)
