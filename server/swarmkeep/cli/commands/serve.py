"""`swarmkeep serve`: the server, in the foreground."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from swarmkeep.cli.configure import EXAMPLE_AGENTS, NO_MODEL, OFFLINE_NOTE, has_model, load_settings
from swarmkeep.cli.options import Agents, Commands, DatabaseUrl, Model, Offline
from swarmkeep.cli.terminal import Refused, find_refusal, say

if TYPE_CHECKING:
    from swarmkeep.serve.settings import Settings


_EXAMPLES_NOTE = "no --agents given: serving the example agents in {}"


commands = Commands()


@commands.add("""
    swarmkeep serve --offline --agents swarmkeep_agents.acme
    OPENAI_API_KEY=… swarmkeep serve --agents my_agents.py
    OPENAI_BASE_URL=http://127.0.0.1:11434/v1 swarmkeep serve --agents my_agents.py --model llama3.2
    swarmkeep serve --agents sales --agents support --database-url postgresql://user@host/swarmkeep
    swarmkeep serve --agents my_agents.py --database-url postgresql://user@host/swarmkeep --workers 4
""")
def serve(
    agents: Agents = None,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="The address to listen on; without an API key, only a loopback address is accepted. [env: "
            "SWARMKEEP_HOST]",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, metavar="PORT", help="The port; 0 takes any free one. [env: SWARMKEEP_PORT]"),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            metavar="COUNT",
            help="How many processes serve the port; more than one on PostgreSQL only. [env: SWARMKEEP_WORKERS]",
        ),
    ] = None,
    database_url: DatabaseUrl = None,
    offline: Offline = False,
    model: Model = None,
    migrate: Annotated[
        bool, typer.Option("--migrate", help="Migrate a PostgreSQL database first. [env: SWARMKEEP_MIGRATE]")
    ] = False,
    forwarded_allow_ips: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESSES",
            help="Proxies whose X-Forwarded-For is believed, separated by commas. [env: SWARMKEEP_FORWARDED_ALLOW_IPS]",
        ),
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(metavar="LEVEL", help="debug, info, warning, error or critical. [env: SWARMKEEP_LOG_LEVEL]"),
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(metavar="FORMAT", help="text, or json: one object per line. [env: SWARMKEEP_LOG_FORMAT]"),
    ] = None,
    access_log: Annotated[
        bool | None,
        typer.Option(
            "--access-log/--no-access-log",
            help="Whether to log each request; by default yes. [env: SWARMKEEP_ACCESS_LOG]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve agents over HTTP, and store their conversations.

    Ctrl-C or SIGTERM stops it: active runs may continue for SWARMKEEP_GRACE_SECONDS; those that do not end can be
    resumed. More settings come
    from the environment or a .env file; `swarmkeep doctor` shows them.
    """
    settings = load_settings(
        agents=agents,
        host=host,
        port=port,
        workers=workers,
        database_url=database_url,
        offline=offline,
        model=model,
        migrate=migrate,
        forwarded_allow_ips=forwarded_allow_ips,
        log_level=log_level,
        log_format=log_format,
        # As text, because a flag that is False counts as not given.
        access_log=None if access_log is None else str(access_log),
    )
    if not settings.agents:
        raise typer.BadParameter(
            f"there are no agents to serve; try --agents {EXAMPLE_AGENTS}", param_hint="'--agents'"
        )
    if not has_model(settings):
        raise Refused(NO_MODEL)
    if settings.log_format == "json":
        _serve_with_json_log(settings)
        return
    for note in _list_notes(settings):
        say(note)
    from swarmkeep.serve import workers as server

    server.serve(settings)


def _list_notes(settings: Settings) -> list[str]:
    notes = [] if "agents" in settings.model_fields_set else [_EXAMPLES_NOTE.format(", ".join(settings.agents))]
    return [*notes, OFFLINE_NOTE] if settings.offline else notes


def _serve_with_json_log(settings: Settings) -> None:
    """If programs read the log, the reason why the server ends is a line of it, too."""
    from swarmkeep.serve import workers as server

    try:
        server.serve(settings, _list_notes(settings))
    except Exception as error:
        refused = find_refusal(error)
        if refused is None:
            server.log.critical("an unexpected error stopped the server", exc_info=error)
        else:
            server.log.critical("%s", refused.sentence)
        raise typer.Exit(1 if refused is None else refused.exit_code) from None
