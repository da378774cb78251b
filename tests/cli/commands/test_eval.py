"""Cases tried from the command line: offline, on a model, and on recorded sessions; told in a table and as JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmkeep_agents import TEAMS
from tests.cli.command_line import ACME, CommandLine, InProcessCommandLine
from tests.cli.conftest import RecordedSession
from tests.support.cases import first
from tests.support.scripted import ScriptedModel

AGENTS = Path(__file__).resolve().parents[3] / "agents" / "swarmkeep_agents"

ROUTING = """
agents: swarmkeep_agents.triage
cases:
  - name: a buyer speaks with sales
    conversation: ["I want to buy a book."]
    expect: {agent: Sales Agent}
  - name: a buyer speaks with refunds
    conversation: ["I want to buy a book."]
    expect: {agent: Refunds Agent}
  - name: a polite answer
    conversation: ["Hello!"]
    expect: {judge: The assistant is polite.}
"""
ANN = '''
from swarmkeep import Agent, tool

@tool(requires_approval=True)
def lock(door: str) -> str:
    """Lock a door."""
    return f"locked {door}"

ann = Agent(name="Ann", functions=[lock])
'''


@pytest.fixture
def cases(cli: CommandLine) -> Path:
    file = cli.folder / "cases.yaml"
    file.write_text(ROUTING)
    return file


@pytest.mark.long
@pytest.mark.parametrize("team", first(2, TEAMS))
def test_teams_meet_their_expectations(cli: CommandLine, team: str) -> None:
    tried = cli("eval", str(AGENTS / team / "evals"), "--offline", "--repeat", "2", "--concurrency", "3", "--json")
    assert tried.code == 0, tried
    for case in tried.json["cases"]:
        if case["status"] == "skipped":
            assert "needs a model" in case["reason"]
        else:
            assert (case["status"], case["passed"], case["tried"], case["problems"]) == ("passed", 2, 2, [])
    assert tried.json["passed"] >= 4
    assert tried.json["failed"] == 0
    # Nothing of it is left behind: each round has rows of its own.
    assert list(cli.folder.iterdir()) == []


def test_table_tells_each_cases_outcome(cli: CommandLine, cases: Path) -> None:
    tried = cli("eval", str(cases), "--offline")
    assert tried.code == 1
    headings, passed, failed, skipped, summary = tried.lines
    assert headings.split() == ["CASE", "RESULT", "PASSED", "SECONDS", "WHY"]
    assert passed.startswith("a buyer speaks with sales")
    assert passed.split()[-3:-1] == ["passed", "1/1"]
    assert "failed   0/1" in failed
    assert failed.rstrip().endswith("the active agent is 'Sales Agent', not 'Refunds Agent'")
    assert "skipped  -       -        it is judged by a model" in skipped
    assert summary == "1 passed, 1 failed, 1 skipped"
    assert "\x1b" not in tried.out


@pytest.mark.long
def test_required_pass_share_may_be_lower(cli: CommandLine, cases: Path) -> None:
    assert cli("eval", str(cases), "--offline", "--pass-rate", "0").code == 0
    assert cli("eval", str(cases), "--offline", "--case", "SALES").lines[-1] == "1 passed, 0 failed, 0 skipped"
    assert "no case has 'nothing'" in cli.expect_refusal("eval", str(cases), "--case", "nothing")


def test_faulty_file_is_wrong_use(cli: CommandLine, cases: Path) -> None:
    cases.write_text("cases:\n  - name: one\n    says: hello\n")
    error = cli.expect_refusal("eval", str(cases), "--offline", code=2)
    assert error.startswith(f"error: {cases}, line 2, /cases/0: ")


def test_without_a_model_it_says_so(cli: CommandLine, cases: Path) -> None:
    assert "no model is configured" in cli.expect_refusal("eval", str(cases))


@pytest.mark.long
def test_model_is_asked_and_may_judge(cli: CommandLine, model: ScriptedModel) -> None:
    (cli.folder / "ann.py").write_text(ANN)
    text = (
        "cases:\n  - name: polite\n    conversation: [Hello]\n    expect: {judge: Ann is polite.}\n    needs: model\n"
        "    model_settings: {temperature: 0}\n"
    )
    (cli.folder / "cases.yaml").write_text(text)
    for holds in (True, False):
        model.say("Good morning.")
        model.call("give_verdict", {"holds": holds, "reason": "So it seems."})
    model.say("Good morning.")
    model.say("I had rather not judge.")
    env = {"OPENAI_BASE_URL": model.url}
    tried = cli("eval", "cases.yaml", "--agents", "ann.py", "--repeat", "3", "--json", "--judge-model", "wise", env=env)
    assert tried.code == 1
    (case,) = tried.json["cases"]
    assert (case["passed"], case["tried"]) == (1, 3)
    assert case["problems"] == [
        "the judge says this is not true: 'Ann is polite.': So it seems.",
        "the judge says this is not true: 'Ann is polite.': the judge gave no verdict",
    ]
    assert [request["model"] for request in model.requests[:2]] == ["gpt-4o", "wise"]
    assert [request.get("temperature") for request in model.requests[:2]] == [0, None]
    assert "Ann (assistant): Good morning." in model.requests[1]["messages"][-1]["content"]


@pytest.mark.long
def test_failing_provider_fails_its_case(cli: CommandLine, model: ScriptedModel) -> None:
    (cli.folder / "ann.py").write_text(ANN)
    (cli.folder / "cases.yaml").write_text("cases: [{name: one, conversation: [Hello], expect: {agent: Ann}}]")
    model.fail(401, message="no such key", headers={"x-should-retry": "false"})
    tried = cli("eval", "cases.yaml", "--agents", "ann.py", "--json", env={"OPENAI_BASE_URL": model.url})
    assert tried.code == 1
    assert "the run ended as failed (error): provider_auth" in tried.json["cases"][0]["problems"][0]


def test_recorded_sessions_need_no_model(cli: CommandLine, recorded: RecordedSession) -> None:
    (cli.folder / "cases.yaml").write_text(
        f"cases:\n  - name: as it was\n    recorded: {recorded.session_id}\n"
        f"  - name: and rightly so\n    recorded: {recorded.session_id}\n"
        "    expect: {function: [transfer_to_sales, place_order], agent: Sales Agent, text: ORD-}\n"
    )
    # In a process of its own there is neither key nor model to be asked.
    tried = cli("eval", "cases.yaml", "--agents", ACME, *recorded.options, "--json")
    assert tried.code == 0, tried
    assert tried.json["passed"] == 2


def test_recorded_sessions_reveal_agent_changes(cli: CommandLine, recorded: RecordedSession) -> None:
    (cli.folder / "other.py").write_text(
        "from swarmkeep_agents.acme import *\n"
        "from swarmkeep_agents.acme import triage, sales, issues_and_repairs, escalation\n"
        "sales = sales.model_copy(update={'functions': sales.functions[:1]})\n"
        "triage = triage.model_copy(update={'instructions': 'Be rude.', 'functions': []})\n"
    )
    case = f"cases: [{{name: as it was, recorded: {recorded.session_id}"
    (cli.folder / "cases.yaml").write_text(case + "}]")
    (cli.folder / "team.py").write_text(
        "from swarmkeep import Agent\n"
        "triage = Agent(name='Triage Agent', instructions='Be rude.')\n"
        "sales = Agent(name='Sales Agent')\n"
    )
    tried = cli("eval", "cases.yaml", "--agents", "team.py", *recorded.options, "--json")
    assert tried.code == 1
    kinds = {problem.split(": ")[1] for problem in tried.json["cases"][0]["problems"]}
    assert {"instructions", "missing_tool"} <= kinds
    (cli.folder / "cases.yaml").write_text(case + ", ignore: [instructions, tool_schemas]}]")
    fewer = cli("eval", "cases.yaml", "--agents", "team.py", *recorded.options, "--json").json["cases"][0]["problems"]
    assert "instructions" not in {problem.split(": ")[1] for problem in fewer}
    (cli.folder / "cases.yaml").write_text("cases: [{name: gone, recorded: nowhere}]")
    gone = cli("eval", "cases.yaml", "--agents", ACME, *recorded.options, "--json")
    assert "nowhere" in gone.json["cases"][0]["problems"][0]


GUARDED = """
import json
from swarmkeep import Agent, Refusal

def no_secrets(passing, context_variables):
    return Refusal("Not here.") if "swordfish" in json.dumps(passing) else None

ann = Agent(name="Ann", input_guardrails=[no_secrets])
"""


def test_a_case_may_expect_a_guardrail(cli: CommandLine) -> None:
    (cli.folder / "guarded.py").write_text(GUARDED)
    (cli.folder / "cases.yaml").write_text(
        "cases:\n"
        "  - name: it is refused\n"
        "    conversation: [{say: It is swordfish., expect: {guardrail: no_secrets, text: Not here}}, Hello!]\n"
        "    expect: {guardrail: no_secrets}\n"
        "  - name: nobody expects it\n"
        "    conversation: [It is swordfish.]\n"
        "    expect: {agent: Ann}\n"
        "  - name: it is expected in vain\n"
        "    conversation: [Hello!]\n"
        "    expect: {guardrail: no_secrets}\n"
    )
    tried = cli("eval", "cases.yaml", "--agents", "guarded.py", "--offline", "--json")
    assert [(case["status"], case["problems"]) for case in tried.json["cases"]] == [
        ("passed", []),
        ("failed", ["message 1: the run ended as completed (guardrail)"]),
        ("failed", ["the guardrail no_secrets refused nothing; guardrails that did: none"]),
    ]


IMPATIENT = """
import asyncio, signal, threading
from swarmkeep import Agent

async def lock(door: str) -> str:
    "Lock a door."
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    await asyncio.sleep(600)

ann = Agent(name="Ann", functions=[lock])
"""
TWICE = """
cases:
  - name: she greets
    conversation: ["Hello!"]
    expect: {agent: Ann}
  - name: she locks
    conversation: ["Please lock the door."]
    expect: {agent: Ann}
"""


def test_ctrl_c_reports_tries_made(tmp_path: Path) -> None:
    (tmp_path / "team.py").write_text(IMPATIENT)
    (tmp_path / "cases.yaml").write_text(TWICE)
    ended = InProcessCommandLine(tmp_path)("eval", "cases.yaml", "--agents", "team.py", "--offline", "--repeat", "3")
    assert (ended.code, ended.out) == (130, "")
    assert ended.err.splitlines()[-1] == "interrupted: 1 of 6 tries made; their results are not kept"


def test_recorded_runs_become_cases(cli: CommandLine, recorded: RecordedSession, place: list[str]) -> None:
    runs = cli("runs", "--session", recorded.session_id, "--json", *place).json
    for run in runs:
        file = cli.folder / f"{run['id']}.yaml"
        made = cli("case", recorded.session_id, "--run", run["id"], "--output", str(file), *place)
        assert (made.code, made.out) == (0, ""), made
        assert "swarmkeep eval" in made.err
    tried = cli("eval", str(cli.folder), "--agents", ACME, "--offline", "--json")
    # The second one expects the number of an order that each try makes anew.
    problems = {case["case"]: " ".join(case["problems"]) for case in tried.json["cases"]}
    assert len(runs) == len(problems) == 2
    assert problems["Hello, I'd like to buy a lantern for a hut trip."] == ""
    assert "order_id" in problems["Yes, please place the order."]
    again = cli("case", recorded.session_id, "--output", str(file), *place)
    assert (again.code, "already" in again.err) == (1, True)
    printed = cli("case", recorded.session_id, "--run", runs[0]["id"], "--name", "mine", *place)
    assert printed.out.startswith("cases:\n- name: mine\n")
    for name, *wrong in (("absent",), (recorded.session_id, "--run", "none")):
        assert cli("case", name, *wrong, *place).code == 1
