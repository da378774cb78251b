"""Programs and files of a release go on working: its client and its exports, as they were."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import swarmkeep
from tests.cli.command_line import CommandLine
from tests.support.processes import Process, ServerProcess

CLIENTS = sorted(Path(__file__).parent.glob("*/swarmkeep_client-*.whl"))
# Those before this one: what is released has its files beside it.
RELEASES = sorted(folder for folder in Path(__file__).parent.glob("[0-9]*") if folder.name != swarmkeep.__version__)
EXPORTS = sorted(Path(__file__).parent.glob("*/export*.jsonl"))

TEAM = '''
from swarmkeep import Agent, tool


@tool(requires_approval=True)
def refund_order(order_id: str, context_variables: dict) -> str:
    """Refund an order and give the customer the money back."""
    context_variables["refunded"] = order_id
    return f"Order {order_id} is refunded."


def transfer_to_refunds() -> Agent:
    """Hand over when the customer wants a refund."""
    return refunds


triage = Agent(name="Triage", instructions="Find out what the customer needs.", functions=[transfer_to_refunds])
refunds = Agent(name="Refunds", instructions="You refund orders.", functions=[refund_order])
'''


def test_releases_left_client_page_and_exports() -> None:
    assert RELEASES
    for release in RELEASES:
        left = {f"swarmkeep_client-{release.name}-py3-none-any.whl", "page.zip", "export.jsonl", "swarmkeep.db"}
        assert left <= {file.name for file in release.iterdir()}


@pytest.mark.long
@pytest.mark.parametrize("package", CLIENTS, ids=lambda package: package.parent.name)
def test_release_client_does_all_it_offers(package: Path, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(TEAM)
    program = [sys.executable, str(Path(__file__).with_name("old_client.py"))]
    with ServerProcess(tmp_path, agents=["shop.py"]) as server:
        old = Process([*program, server.url], folder=tmp_path, env={"PYTHONPATH": str(package)}, cold=True)
        with old:
            if old.wait(120):
                raise old.failure("this server is not what it was for the release's client")
        assert f"from {package}" in old.output()


@pytest.mark.parametrize("export", EXPORTS, ids=lambda export: f"{export.parent.name}-{export.stem}")
def test_release_export_verifies_and_imports(export: Path, tmp_path: Path) -> None:
    command = CommandLine(tmp_path)
    command("db", "upgrade", "--database-url", "sqlite:///swarmkeep.db")
    exported = {row["session_id"] for row in map(json.loads, export.read_text().splitlines()) if "session_id" in row}
    assert exported
    for outcome in ("imported", "present"):
        sessions = command("import", str(export), "--json").json["sessions"]
        assert {(row["id"], row["outcome"]) for row in sessions} == {(name, outcome) for name in exported}
    assert command("verify", "--all").code == 0
