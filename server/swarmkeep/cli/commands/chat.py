"""`swarmkeep chat`: a conversation at the terminal, on a server or in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from swarmkeep.cli.completing import complete_agent, complete_session
from swarmkeep.cli.configure import load_model_settings
from swarmkeep.cli.opening import open_source
from swarmkeep.cli.options import Agents, ApiKey, Commands, DatabaseUrl, Model, Offline, ServerUrl, Tenant
from swarmkeep.cli.sources import SourceOptions, describe_options
from swarmkeep.cli.terminal import say

if TYPE_CHECKING:
    from swarmkeep.cli.chat import SessionOpener


commands = Commands()


@commands.add("""
    swarmkeep chat --url http://127.0.0.1:8000
    swarmkeep chat --url http://127.0.0.1:8000 --session order-4711
    swarmkeep chat --offline --agents swarmkeep_agents.acme
    echo "I want a refund." | swarmkeep chat --offline --agents swarmkeep_agents.acme
""")
def chat(
    url: ServerUrl = None,
    session: Annotated[
        str | None,
        typer.Option(
            "--session",
            metavar="ID",
            help="Continue this session instead of a new one.",
            autocompletion=complete_session,
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent",
            metavar="NAME",
            help="The agent to speak with; by default the first one.",
            autocompletion=complete_agent,
        ),
    ] = None,
    agents: Agents = None,
    database_url: DatabaseUrl = None,
    offline: Offline = False,
    model: Model = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Chat with agents: on a server with --url, otherwise in this process, on a database.

    Each line of input is a message. Answers are shown as they arrive, with tool calls, handoffs and context changes. If
    a call needs an approval, you are asked. Ctrl-C cancels an answer and keeps the session;
    Ctrl-D at the prompt ends the chat. A line that begins with / is a command: /help lists them.
    """
    where = SourceOptions(url, database_url, tenant, api_key)
    server_url = where.server_url
    if server_url is not None and (agents or offline or model):
        raise typer.BadParameter(
            "a server has its own agents and model; leave out --agents, --model and --offline", param_hint="'--url'"
        )
    if server_url is None:
        opened = _open_in_process(agents, database_url, offline, model, tenant)
    else:
        opened = _open_on_server(server_url, api_key)
    with opened as session_opener:
        from swarmkeep.cli.chat import Chat

        with closing(
            Chat(session_opener, lambda writes: open_source(where, writes=writes), session, agent)
        ) as conversation:
            conversation.run()
            if conversation.is_at_terminal and conversation.session.session_id is not None:
                options = describe_options(where, agents, offline=offline, model=model)
                say(f"to continue: swarmkeep chat --session {conversation.session.session_id}{options}")


@contextmanager
def _open_on_server(url: str, api_key: str | None) -> Iterator[SessionOpener]:
    from swarmkeep.cli.chat import ServerChatSession
    from swarmkeep.cli.server_source import explain_unreachable, open_patient_client

    with explain_unreachable(url), open_patient_client(url, api_key) as client:
        yield partial(ServerChatSession, client)


@contextmanager
def _open_in_process(
    agents: list[str] | None, database_url: str | None, offline: bool, model: str | None, tenant: str | None
) -> Iterator[SessionOpener]:
    settings = load_model_settings(
        "; or chat on a server with --url", agents=agents, database_url=database_url, offline=offline, model=model
    )
    from swarmkeep.cli.chat import LocalChatSession

    yield partial(LocalChatSession, settings, tenant)
