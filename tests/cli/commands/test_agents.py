"""The graph of a team: the same from its file and from a server that has it, in every form."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.cli.command_line import ACME, CommandLine
from tests.support.processes import ServerProcess
from tests.support.source import ROOT

TEAM = """
from swarmkeep import Agent, tool

@tool(requires_approval=True)
def refund(order: str) -> str:
    "Refund an order."
    return order

def look_up(order: str) -> str:
    "Look an order up."
    return order

def transfer_to_refunds() -> Agent:
    "Hand over."
    return refunds

refunds = Agent(name='Refunds "R" <b> #1', functions=[refund, look_up])
triage = Agent(name="Triage", functions=[transfer_to_refunds])
lonely = Agent(name="Lonely")
"""
# The first agent of the file is the one that sessions begin with.
TEXT = """\
Refunds "R" <b> #1, the default agent
  hands over to: nobody
  functions:
    refund (needs approval)
    look_up

Triage
  hands over to: Refunds "R" <b> #1
  functions:
    transfer_to_refunds

Lonely
  hands over to: nobody
"""
MERMAID = """\
flowchart LR
  a0["<b>Refunds #quot;R#quot; #lt;b#gt; #35;1</b><br/>refund (needs approval)<br/>look_up"]
  a1["<b>Triage</b><br/>transfer_to_refunds"]
  a2["<b>Lonely</b>"]
  a1 --> a0
"""
ASKING_TEAM = """
from swarmkeep import Agent, MCPServer

clerk = Agent(name="Clerk")

def transfer_to_clerk() -> Agent:
    "Hand over."
    return clerk

boss = Agent(
    name="Boss",
    functions=[clerk.as_tool("ask_clerk", "Ask."), clerk.as_tool("urge_clerk", "Ask at once."), transfer_to_clerk],
    mcp_servers=[MCPServer(command=("files",), name="files"), MCPServer(url="http://localhost:1/", name="web")],
)
clerk.functions.append(boss.as_tool("ask_boss", "Ask back.", requires_approval=True))
"""
DESK = """
from swarmkeep import Agent

helper = Agent(name="Helper")
desk = Agent(name="Desk", functions=[helper.as_tool("ask_helper", "Ask the helper about a lamp.")])
"""
ASKING_TEXT = """\
Clerk, the default agent
  hands over to: nobody
  asks: Boss (ask_boss)
  functions:
    ask_boss (needs approval)

Boss
  hands over to: Clerk
  asks: Clerk (ask_clerk), Clerk (urge_clerk)
  functions:
    ask_clerk
    urge_clerk
    transfer_to_clerk
  MCP servers: files, web
"""
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def team(cli: CommandLine) -> list[str]:
    (cli.folder / "team.py").write_text(TEAM)
    return ["agents", "graph", "--agents", "team.py"]


def test_a_team_is_shown_as_text(cli: CommandLine, team: list[str]) -> None:
    assert cli(*team).out == TEXT


def test_team_flow_chart_accepts_any_names(cli: CommandLine, team: list[str]) -> None:
    assert cli(*team, "--format", "mermaid").out == MERMAID


@pytest.fixture
def asking_team(cli: CommandLine) -> list[str]:
    (cli.folder / "asking.py").write_text(ASKING_TEAM)
    return ["agents", "graph", "--agents", "asking.py"]


def test_asked_agents_told_with_their_functions(cli: CommandLine, asking_team: list[str]) -> None:
    assert cli(*asking_team).out == ASKING_TEXT
    clerk, boss = cli(*asking_team, "--json").json
    assert (clerk["asks"], clerk["mcp_servers"]) == ({"ask_boss": "Boss"}, [])
    assert boss["asks"] == {"ask_clerk": "Clerk", "urge_clerk": "Clerk"}
    assert boss["mcp_servers"] == ["files", "web"]


def test_asking_edges_dotted_in_flow_chart(cli: CommandLine, asking_team: list[str]) -> None:
    edges = [line for line in cli(*asking_team, "--format", "mermaid").lines if ">" in line and "[" not in line]
    assert edges == ["  a1 --> a0", "  a0 -.-> a1", "  a1 -.-> a0"]


def test_asking_edges_dashed_without_hiding_handoffs(cli: CommandLine, asking_team: list[str]) -> None:
    picture = ET.fromstring(cli(*asking_team, "--format", "svg").out)
    handoff, asking = [path for path in picture.iter(f"{SVG}path") if path.get("class") == "edge"]
    assert handoff.get("stroke-dasharray") is None
    assert asking.get("stroke-dasharray") is not None
    # They ask each other: one line with two heads.
    assert asking.get("marker-start") == asking.get("marker-end") == "url(#head)"
    ends, asking_ends = (re.findall(r"[\d.]+", str(edge.get("d")))[1::6] for edge in (handoff, asking))
    assert set(ends).isdisjoint(asking_ends)
    clerk, boss = (float(str(box.get("x"))) for box in picture.iter(f"{SVG}rect"))
    assert clerk < boss
    assert "ask whom" in str(picture.findtext(f"{SVG}title"))


def test_a_team_is_a_picture(cli: CommandLine, team: list[str]) -> None:
    assert cli(*team, "--format", "svg", "--output", "team.svg").out == ""
    picture = ET.parse(cli.folder / "team.svg").getroot()
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert texts == [
        'Refunds "R" <b> #1', "refund (needs approval)", "look_up", "Triage", "transfer_to_refunds", "Lonely",
    ]  # fmt: skip
    assert len([path for path in picture.iter(f"{SVG}path") if path.get("class") == "edge"]) == 1
    width, height = map(float, str(picture.get("viewBox")).split()[2:])
    for box in picture.iter(f"{SVG}rect"):
        x, y, wide, high = (float(str(box.get(name))) for name in ("x", "y", "width", "height"))
        assert 0 <= x < x + wide <= width
        assert 0 <= y < y + high <= height
    # Nothing is fetched from anywhere.
    assert "http" not in (cli.folder / "team.svg").read_text().replace("http://www.w3.org/2000/svg", "")


def test_boxes_do_not_cover_each_other(cli: CommandLine) -> None:
    picture = ET.fromstring(cli("agents", "graph", "--agents", ACME, "--format", "svg").out)
    boxes = [
        tuple(float(str(box.get(name))) for name in ("x", "y", "width", "height")) for box in picture.iter(f"{SVG}rect")
    ]
    assert len(boxes) == 4
    for place, (x, y, wide, high) in enumerate(boxes):
        for other_x, other_y, other_wide, other_high in boxes[:place]:
            assert x >= other_x + other_wide or other_x >= x + wide or y >= other_y + other_high or other_y >= y + high


def test_wrong_use(cli: CommandLine, team: list[str]) -> None:
    assert "'--json'" in cli.expect_usage_error(*team, "--json", "--format", "svg")
    assert "nothing.py" in cli.expect_refusal("agents", "graph", "--agents", "nothing.py")


@pytest.mark.long
def test_a_servers_team_is_the_same(cli: CommandLine, asking_team: list[str], tmp_path: Path) -> None:
    (cli.folder / "desk.py").write_text(DESK)
    agents = [ACME, str(cli.folder / "desk.py"), str(cli.folder / "asking.py")]
    with ServerProcess(tmp_path, database_url=f"sqlite:///{tmp_path / 'x.db'}", agents=agents) as server:
        asked = cli("agents", "graph", "--json", "--url", server.url).json
        shown = cli("agents", "show", "Boss", "--json", "--url", server.url).json
        assert "nobody" in cli.expect_refusal("agents", "show", "nobody", "--url", server.url)
        # All sessions are also those in which agents were asked.
        assert cli("chat", "--url", server.url, "--agent", "Desk", text="Ask the helper about a lamp.\n").code == 0
        compared = cli("check", "--all", "--json", "--url", server.url).json
        assert sorted(found["turns"] for found in compared if found["matches"]) == [1, 2]
    assert shown == cli("agents", "show", "Boss", "--json", "--agents", agents[2]).json | {"offline": shown["offline"]}
    assert [found["name"] for found in shown["mcp_servers"]] == ["files", "web"]
    assert asked == cli("agents", "graph", "--json", *(word for name in agents for word in ("--agents", name))).json
    assert {"name": "place_order", "needs_approval": True} in asked[1]["functions"]
    assert asked[-1]["mcp_servers"] == ["files", "web"]


def test_documented_picture_is_current(cli: CommandLine) -> None:
    """Made by: swarmkeep agents graph --agents swarmkeep_agents.acme --format svg --output docs/images/team-acme.svg"""
    drawn = cli("agents", "graph", "--agents", ACME, "--format", "svg").out
    assert (ROOT / "docs/images/team-acme.svg").read_text(encoding="utf-8") == drawn


SHOWN_TEAM = """
from dataclasses import dataclass

from swarmkeep import Agent, MCPServer, Refusal, tool

@dataclass
class Bill:
    total: int

def polite(messages: list, context_variables: dict) -> Refusal | None:
    return None

def small(call: dict, context_variables: dict) -> Refusal | None:
    return None

@tool(requires_approval=True, guardrails=[small])
def pay(amount: int) -> str:
    "Pay an amount."
    return "paid"

files = MCPServer(command=("files",), name="files", tools=("read",), prefix="f_", requires_approval=True)
clerk = Agent(
    name="Clerk", model="small", instructions="Be brief.\\nBe kind.", functions=[pay], output_type=Bill,
    model_settings={"temperature": 0}, tool_choice="required", input_guardrails=[polite], mcp_servers=[files],
)
"""
SHOWN = """\
Clerk
  model: small
  instructions:
    Be brief.
    Be kind.
  model settings: {"temperature":0}
  tool choice: required
"""


def test_agent_shown_with_all_abilities(cli: CommandLine) -> None:
    (cli.folder / "team.py").write_text(SHOWN_TEAM)
    show = ["agents", "show", "Clerk", "--agents", "team.py"]
    text = cli(*show).out
    assert text.startswith(SHOWN)
    for line in (
        "    pay (needs approval; guardrails: small)",
        "      Pay an amount.",
        "  hands over to: nobody",
        "  MCP server files: files",
        "    tools: read",
        "    their names begin with f_",
        "    needs approval: all",
        "  input guardrails: polite",
    ):
        assert f"{line}\n" in text, line
    found = cli(*show, "--json").json
    assert (found["tool_guardrails"], found["output_schema"]["required"]) == ({"pay": ["small"]}, ["total"])
    assert "no agent is called 'Chef'; known agents: Clerk" in cli.expect_refusal(
        "agents", "show", "Chef", "--agents", "team.py"
    )
