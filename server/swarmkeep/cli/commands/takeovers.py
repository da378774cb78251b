"""`swarmkeep sessions takeover`, `answer` and `handback`: speak in the agent's place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from swarmkeep.cli.options import ApiKey, JsonOutput, ServerUrl, SessionId
from swarmkeep.cli.render import format_message
from swarmkeep.cli.sources import SourceOptions
from swarmkeep.cli.terminal import put, put_json

if TYPE_CHECKING:
    from swarmkeep_client import Message, SessionState


Force = Annotated[bool, typer.Option("--force", help="Do it even if another person has taken the session over.")]

group = typer.Typer()


@group.command(
    "takeover",
    epilog="""
    \b
    Examples:
      swarmkeep sessions takeover order-4711 --url http://127.0.0.1:8000
      swarmkeep sessions takeover order-4711 --note "asks for a person" --url http://127.0.0.1:8000
    """,
)
def takeover(
    session_id: SessionId,
    note: Annotated[
        str | None, typer.Option("--note", metavar="TEXT", help="Why, for other people who look at the session.")
    ] = None,
    force: Force = False,
    as_json: JsonOutput = False,
    url: ServerUrl = None,
    api_key: ApiKey = None,
) -> None:
    """Take a session over from its agent: until it is handed back, no model is asked and no call begins.

    This needs a server.
    """
    from swarmkeep.cli.server_source import open_server

    with open_server(SourceOptions(url, api_key=api_key).server_url, api_key) as source:
        source.open_on_server(session_id).take_over(note=note, force=force)
        state = source.session(session_id)
    waits = f"; run {state.active_run_id} waits for an answer" if state.status == "waiting" else ""
    _tell(state, f"took session {session_id} over from {state.agent}{waits}", as_json)


@group.command(
    "answer",
    epilog="""
    \b
    Examples:
      swarmkeep sessions answer order-4711 "Your parcel leaves today." --url http://127.0.0.1:8000
    """,
)
def answer(
    session_id: SessionId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The answer.")],
    as_json: JsonOutput = False,
    url: ServerUrl = None,
    api_key: ApiKey = None,
) -> None:
    """Answer in the agent's place, in a session that was taken over. This completes the waiting run, if there is
    one.

    This needs a server.
    """
    from swarmkeep.cli.server_source import open_server

    with open_server(SourceOptions(url, api_key=api_key).server_url, api_key) as source:
        message = source.open_on_server(session_id).answer(text)
    _tell(message, format_message(message), as_json)


def _tell(found: SessionState | Message, text: str, as_json: bool) -> None:
    if as_json:
        put_json(found)
    else:
        put(text)


@group.command(
    "handback",
    epilog="""
    \b
    Examples:
      swarmkeep sessions handback order-4711 --note "the parcel is on its way" --url http://127.0.0.1:8000
    """,
)
def handback(
    session_id: SessionId,
    note: Annotated[
        str | None, typer.Option("--note", metavar="TEXT", help="A note that the agent's model reads.")
    ] = None,
    force: Force = False,
    as_json: JsonOutput = False,
    url: ServerUrl = None,
    api_key: ApiKey = None,
) -> None:
    """Hand a session back to its agent, which continues with what waits.

    This needs a server.
    """
    from swarmkeep.cli.server_source import open_server

    with open_server(SourceOptions(url, api_key=api_key).server_url, api_key) as source:
        source.open_on_server(session_id).hand_back(note=note, force=force)
        state = source.session(session_id)
    _tell(state, f"handed session {session_id} back to {state.agent}", as_json)
