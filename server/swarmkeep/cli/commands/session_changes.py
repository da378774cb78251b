"""`swarmkeep sessions rename` and `compact`: another title, and a shorter history for the model."""

from __future__ import annotations

from typing import Annotated

import typer

from swarmkeep.cli.options import ApiKey, DatabaseUrl, JsonOutput, ServerUrl, SessionId, Tenant
from swarmkeep.cli.sources.opening import open_source
from swarmkeep.cli.sources.options import SourceOptions
from swarmkeep.cli.terminal import put, put_json, say

group = typer.Typer()


@group.command(
    "rename",
    epilog="""
    \b
    Examples:
      swarmkeep sessions rename order-4711 "Refund of Ann"
      swarmkeep sessions rename order-4711
    """,
)
def rename(
    session_id: SessionId,
    title: Annotated[
        str | None,
        typer.Argument(metavar="TITLE", help="The title; without one, the session is named by its first words."),
    ] = None,
    as_json: JsonOutput = False,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Set a session's title (its metadata `title`), and print its name."""
    with open_source(SourceOptions(url, database_url, tenant, api_key), writes=True) as source:
        state = source.label(session_id, {"title": title or None})
    if as_json:
        put_json(state)
    else:
        put(state.title or state.id)


@group.command(
    "compact",
    epilog="""
    \b
    Examples:
      swarmkeep sessions compact order-4711 --url http://127.0.0.1:8000
      swarmkeep sessions compact order-4711 --keep-turns 2 --url http://127.0.0.1:8000
    """,
)
def compact(
    session_id: SessionId,
    keep_turns: Annotated[
        int | None, typer.Option("--keep-turns", metavar="N", min=1, help="Leave the last N turns unchanged.")
    ] = None,
    instructions: Annotated[
        str | None,
        typer.Option("--instructions", metavar="TEXT", help="Additional instructions to the model for the summary."),
    ] = None,
    as_json: JsonOutput = False,
    url: ServerUrl = None,
    api_key: ApiKey = None,
) -> None:
    """Shorten a session's history for the model: long results are cut, and all but the last turns are summed up. The
    log keeps everything. Exit code 1 if no summary was made.

    This needs a server, which has the session's agent.
    """
    from swarmkeep.cli.sources.server import open_server

    with open_server(SourceOptions(url, api_key=api_key).server_url, api_key) as source:
        done = source.compact(session_id, keep_turns=keep_turns, instructions=instructions)
    if as_json:
        put_json(done)
    elif done.summary is not None:
        put(f"messages {done.first_seq} to {done.last_seq} of {session_id}, for the model:")
        put(done.summary)
    elif done.error is None:
        put("there was nothing to sum up")
    if done.error is not None:
        say(f"no summary was made: {done.error.code}: {done.error.message}")
        raise typer.Exit(1)
