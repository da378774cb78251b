"""`swarmkeep doctor`: could a server start here, and with which settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swarmkeep.cli.configure import load_settings
from swarmkeep.cli.options import Agents, DatabaseUrl, JsonOutput, Model, Offline, Quiet
from swarmkeep.cli.progress import show_progress
from swarmkeep.cli.terminal import put, put_json, put_table, say

if TYPE_CHECKING:
    from swarmkeep.settings import Settings

STATUS_LABELS = {"ok": "ok", "warning": "warning", "wrong": "WRONG"}


def register(app: typer.Typer) -> None:
    app.command(
        "doctor",
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
    database_url: DatabaseUrl = None,
    offline: Offline = False,
    model: Model = None,
    online: Annotated[bool, typer.Option("--online", help="Also ask the model provider whether it answers.")] = False,
    as_json: JsonOutput = False,
    quiet: Quiet = False,
) -> None:
    """Check whether `swarmkeep serve` could start here with these settings, and show them.

    Looks at the versions of Python and SQLite, the database and its schema, the space on a SQLite file's disk, the
    clocks, the agents and their functions, the model, the port, and who has access. Changes nothing. Exit code 1 if
    something is wrong.
    """
    settings = load_settings(
        agents=agents, host=host, port=port, database_url=database_url, offline=offline, model=model
    )
    from swarmkeep.cli.commands.doctor_checks import run_checks

    with show_progress("checking", "check", quiet=quiet) as progress:
        found = list(progress.track(run_checks(settings, online=online)))
    wrong = [finding for finding in found if finding.status == "wrong"]
    if as_json:
        put_json({"healthy": not wrong, "checks": found, "settings": _list_settings(settings)})
    else:
        put_table(("CHECK", "", "FOUND"), [(one.check, STATUS_LABELS[one.status], one.detail) for one in found])
        put()
        put_table(
            ("SETTING", "VALUE"), [(name, _format_value(value)) for name, value in _list_settings(settings).items()]
        )
    if wrong:
        say(f"error: {len(wrong)} of {len(found)} checks failed: {', '.join(finding.check for finding in wrong)}")
        raise typer.Exit(1)


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else "not set" if value is None else json.dumps(value)


def _list_settings(settings: Settings) -> dict[str, Any]:
    """Every setting by the name of its variable, secrets hidden."""
    from pydantic import SecretStr

    from swarmkeep.cli.commands.doctor_checks import strip_password
    from swarmkeep.store.urls import BadDatabaseUrl, locate

    values: dict[str, Any] = {}
    for field, described in type(settings).model_fields.items():
        value = getattr(settings, field)
        # Those that have a variable of another name are the provider's.
        name = f"SWARMKEEP_{field.upper()}" if described.validation_alias is None else field.upper()
        values[name] = list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
        if isinstance(value, SecretStr):
            values[name] = "set, and not shown" if value.get_secret_value() else None
    values["OPENAI_BASE_URL"] = strip_password(settings.openai_base_url or "") or None
    try:
        values["SWARMKEEP_DATABASE_URL"] = locate(settings.database_url).display
    except BadDatabaseUrl:
        values["SWARMKEEP_DATABASE_URL"] = "not usable, and not shown"
    return values
