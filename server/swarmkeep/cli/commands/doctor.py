"""`swarmkeep doctor`: could a server start here, and with which settings."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from swarmkeep.cli.configure import Agents, Model, Offline, load_settings
from swarmkeep.cli.sources.source import JsonOutput, StoreUrl
from swarmkeep.cli.terminal import put, put_json, put_table, say

STATUS_LABELS = {"ok": "ok", "warning": "warning", "wrong": "WRONG"}


def register(app: typer.Typer) -> None:
    app.command(
        "doctor",
        short_help="Say whether a server could start here.",
        epilog="""
        \b
        Examples:
          swarmkeep doctor --offline --agents swarmkeep_agents.acme
          swarmkeep doctor --online
          swarmkeep doctor --json
        """,
    )(doctor)


def doctor(
    agents: Agents = None,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="The address to listen on. [env: SWARMKEEP_HOST]")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, metavar="PORT", help="The port. [env: SWARMKEEP_PORT]")
    ] = None,
    database_url: StoreUrl = None,
    offline: Offline = False,
    model: Model = None,
    online: Annotated[bool, typer.Option("--online", help="Also ask the model provider whether it answers.")] = False,
    as_json: JsonOutput = False,
) -> None:
    """Check whether `swarmkeep serve` could start here with these settings, and show them.

    Looks at the versions of Python and SQLite, the database and its schema, the agents and their functions, the model,
    the port, and who may come in. Changes nothing. Exit code 1 if something is wrong.
    """
    settings = load_settings(
        agents=agents, host=host, port=port, database_url=database_url, offline=offline, model=model
    )
    from swarmkeep.cli.commands.doctor_checks import list_settings, run_checks

    found = list(run_checks(settings, online=online))
    wrong = [finding for finding in found if finding.status == "wrong"]
    if as_json:
        put_json({"healthy": not wrong, "checks": found, "settings": list_settings(settings)})
    else:
        put_table(("CHECK", "", "FOUND"), [(one.check, STATUS_LABELS[one.status], one.detail) for one in found])
        put()
        put_table(
            ("SETTING", "VALUE"), [(name, _format_value(value)) for name, value in list_settings(settings).items()]
        )
    if wrong:
        say(f"error: {len(wrong)} of {len(found)} checks failed: {', '.join(finding.check for finding in wrong)}")
        raise typer.Exit(1)


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else "not set" if value is None else json.dumps(value)
