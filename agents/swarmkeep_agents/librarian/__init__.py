"""One agent whose tools are all a server's: it keeps notes, in a program of their own."""

import sys

from swarmkeep import Agent, MCPServer

notes = MCPServer(
    name="notes",
    command=(sys.executable, "-m", "swarmkeep_agents.librarian.notes"),
    # It is this project's own, so what it says of its tools is true.
    trust_hints=True,
    # A program takes a while to start on a machine that has other things to do.
    connect_timeout=60,
)

librarian = Agent(
    name="Librarian",
    instructions=(
        "You keep notes for people. Look into the notes before you answer, and say what you have written down. "
        "Before you throw a note away, make sure that you know which one is meant."
    ),
    mcp_servers=[notes],
)
