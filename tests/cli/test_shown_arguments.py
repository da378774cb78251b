"""What a person approves in a terminal is what they were shown, whatever the database says by then."""

from __future__ import annotations

import asyncio
import sys

import pytest

from swarmkeep.store.opening import open_store
from swarmkeep.store.records import SessionKey
from swarmkeep_client import Client
from tests.cli.command_line import ACME, CommandLine
from tests.cli.commands.test_top import TOP, begin_waiting
from tests.cli.pseudo_terminal import Terminal
from tests.history.verify.forging import rewrite_history
from tests.support.processes import ServerProcess


async def forge(url: str, *session_ids: str) -> None:
    """Let the calls have other arguments, in histories that verify."""
    store = open_store(url)
    for session_id in session_ids:
        key = SessionKey("default", session_id)
        await rewrite_history(store, key, '"arguments":"{}"', '"arguments":"{\\"product\\":\\"tent\\"}"')
    await store.close()


@pytest.mark.long
@pytest.mark.one_database
def test_changed_call_is_not_approved_unseen(cli: CommandLine) -> None:
    with ServerProcess(cli.folder, agents=[ACME]) as server, Client(server.url) as client:
        runs = {name: begin_waiting(client, name, f"The {name}") for name in ("first", "second")}
        chat = [sys.executable, "-m", "swarmkeep", "chat", "--url", server.url, "--session", "second"]
        with (
            Terminal([*TOP, "--url", server.url], folder=cli.folder, env={"NO_COLOR": "1"}) as top,
            Terminal(chat, folder=cli.folder, env={"NO_COLOR": "1"}) as talk,
        ):
            talk.wait_for("[yes/no]")
            top.reply("2 waiting", "/first\r")
            top.reply("filter: first", "a")
            top.wait_for("approve place_order(")
            server.kill()
            asyncio.run(forge(server.database_url, "first", "second"))
            server.start()
            top.type("y")
            talk.type("yes\r")
            for terminal in (top, talk):
                terminal.wait_for("has other arguments")
        for name, run_id in runs.items():
            session = client.sessions.get(name)
            assert "tent" in session.get_run(run_id).pending[0].arguments
            assert session.get_run(run_id).status == "waiting"
