"""`swarmkeep diff`: what changed between two events of a session."""

from __future__ import annotations

from typing import Annotated

import typer

from swarmkeep.cli.options import ApiKey, DatabaseUrl, JsonOutput, ServerUrl, SessionId, Tenant
from swarmkeep.cli.render.changes import put_changes
from swarmkeep.cli.render.messages import format_messages
from swarmkeep.cli.sources.opening import open_source
from swarmkeep.cli.sources.options import SourceOptions
from swarmkeep.cli.terminal import put, put_json, say


def register(app: typer.Typer) -> None:
    app.command(
        "diff",
        epilog="""
        \b
        Examples:
          swarmkeep diff order-4711 3 12
          swarmkeep diff order-4711 0 12 --json
        """,
    )(diff)


def diff(
    session_id: SessionId,
    before: Annotated[
        int, typer.Argument(metavar="BEFORE", min=0, help="The earlier event; 0 is before the first one.")
    ],
    after: Annotated[int, typer.Argument(metavar="AFTER", min=1, help="The later event.")],
    as_json: JsonOutput = False,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Show what changed in a session from one event to another: agent, context variables, metadata, usage, runs,
    messages."""
    if before > after:
        raise typer.BadParameter("the earlier event comes first", param_hint="'BEFORE'")
    with open_source(SourceOptions(url, database_url, tenant, api_key)) as source:
        state_diff = source.diff(session_id, before, after)
    if as_json:
        put_json(state_diff)
        return
    if not (state_diff.changes or state_diff.runs or state_diff.removed or state_diff.messages):
        say("nothing changed")
    put_changes(state_diff.changes)
    for run in state_diff.runs:
        put(f"run {run.id}: {f'{run.before} → ' if run.before else ''}{run.after}")
    for seq in state_diff.removed:
        put(f"message {seq}: taken out")
    for line in format_messages(state_diff.messages):
        put(line)
