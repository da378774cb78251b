"""`swarmkeep serve`: the server, in the foreground."""

from __future__ import annotations

from typing import Annotated

import typer

from swarmkeep.cli.configure import EXAMPLE_AGENTS, NO_MODEL, OFFLINE_NOTE, has_model, load_settings
from swarmkeep.cli.options import Agents, Model, Offline, StoreUrl
from swarmkeep.cli.terminal import Refused, say


def register(app: typer.Typer) -> None:
    app.command(
        "serve",
        epilog="""
        \b
        Examples:
          swarmkeep serve --offline --agents swarmkeep_agents.acme
          OPENAI_API_KEY=… swarmkeep serve --agents my_agents.py
          OPENAI_BASE_URL=http://127.0.0.1:11434/v1 swarmkeep serve --agents my_agents.py --model llama3.2
          swarmkeep serve --agents sales --agents support --database-url postgresql://user@host/swarmkeep
        """,
    )(serve)


def serve(
    agents: Agents = None,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="The address to listen on; without an API key, a loopback one. [env: SWARMKEEP_HOST]",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, metavar="PORT", help="The port; 0 takes a free one. [env: SWARMKEEP_PORT]"),
    ] = None,
    database_url: StoreUrl = None,
    offline: Offline = False,
    model: Model = None,
    migrate: Annotated[
        bool, typer.Option("--migrate", help="Migrate a PostgreSQL database first. [env: SWARMKEEP_MIGRATE]")
    ] = False,
    forwarded_allow_ips: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESSES",
            help="Proxies whose X-Forwarded-For is believed, by commas. [env: SWARMKEEP_FORWARDED_ALLOW_IPS]",
        ),
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(metavar="LEVEL", help="debug, info, warning, error or critical. [env: SWARMKEEP_LOG_LEVEL]"),
    ] = None,
) -> None:
    """Serve agents over HTTP, and keep their conversations.

    Ctrl-C or SIGTERM stops it: running runs get a grace time, and what is left can be resumed. More settings come
    from the environment or a .env file; `swarmkeep doctor` shows them.
    """
    settings = load_settings(
        agents=agents,
        host=host,
        port=port,
        database_url=database_url,
        offline=offline,
        model=model,
        migrate=migrate,
        forwarded_allow_ips=forwarded_allow_ips,
        log_level=log_level,
    )
    if not settings.agents:
        raise typer.BadParameter(
            f"there are no agents to serve; try --agents {EXAMPLE_AGENTS}", param_hint="'--agents'"
        )
    if not has_model(settings):
        raise Refused(NO_MODEL)
    if "agents" not in settings.model_fields_set:
        say(f"no --agents given: serving the example agents in {', '.join(settings.agents)}")
    if settings.offline:
        say(OFFLINE_NOTE)
    from swarmkeep import server

    server.serve(settings)
