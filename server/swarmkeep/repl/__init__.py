"""Talking with agents at the terminal: the demo loop of OpenAI's Swarm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swarmkeep.agent import Agent


def run_demo_loop(
    starting_agent: Agent,
    context_variables: Mapping[str, Any] | None = None,
    stream: bool = False,
    debug: bool = False,
    client: Any = None,
) -> None:
    """Ask for a message, let the agents answer, and again, until the input ends.

    It is `swarmkeep chat` on a session that is nowhere kept: approvals are asked about on the spot, Ctrl-C cancels an
    answer, Ctrl-D at the prompt ends the loop, and a line that begins with / is a command: /help lists them. Plain
    functions run in the calling thread.

    `client` is what `Swarm` takes, by default `openai.OpenAI()`. What it raises is shown, and a person may go on; where
    the input or the output is not a terminal, it is raised.
    """
    # Modules that define agents may import this one, and are loaded by servers, which need none of these.
    from contextlib import closing

    from swarmkeep.cli.chat.loop import Chat
    from swarmkeep.cli.terminal import escape_unencodable, is_interactive, put
    from swarmkeep.engine.models.model import ChatModel
    from swarmkeep.engine.swarm.swarm import Swarm
    from swarmkeep.repl.memory import MemorySessions

    sessions = MemorySessions(
        ChatModel(Swarm(client).client),
        starting_agent,
        context_variables or {},
        stream=stream,
        debug=debug,
        raises=not is_interactive(),
    )
    escape_unencodable()
    put("Starting Swarm CLI 🐝")
    with closing(Chat(sessions.open, sessions.open_source)) as chat:
        chat.run()
