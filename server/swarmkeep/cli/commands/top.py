"""`swarmkeep top`: the runs that go on, wait or are queued, as they do."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from swarmkeep.cli.opening import open_source
from swarmkeep.cli.options import ApiKey, DatabaseUrl, ServerUrl, Tenant
from swarmkeep.cli.sources import SourceOptions
from swarmkeep.cli.terminal import INTERRUPTED, Refused, has_cursor, is_interactive, put, put_json, put_table
from swarmkeep.events.wording import pluralize

if TYPE_CHECKING:
    from swarmkeep.cli.top_snapshot import Snapshot


def register(app: typer.Typer) -> None:
    app.command(
        "top",
        epilog="""
        \b
        Examples:
          swarmkeep top --url http://127.0.0.1:8000
          swarmkeep top --database-url postgresql://db/swarmkeep --tenant acme
          swarmkeep top --once
          swarmkeep top --once --json
        """,
    )(top)


def top(
    once: Annotated[bool, typer.Option("--once", help="Print the current state, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: print JSON.")] = False,
    seconds: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.2, max=3600, help="How often it is updated.")
    ] = 2.0,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Watch the runs that are active, waiting or queued, on a server or on all servers of a database.

    With keys you look into a session, cancel a run, and approve or deny a call.
    """
    where = SourceOptions(url, database_url, tenant, api_key)
    if as_json and not once:
        raise typer.BadParameter("--json needs --once", param_hint="'--json'")
    if not once and not (is_interactive() and has_cursor(sys.stdout)):
        raise Refused("top needs a terminal; --once prints the current state")
    with open_source(where) as source:
        if once:
            from swarmkeep.cli.top_snapshot import Reader

            shown = Reader(source, where.server_url).read().snapshot
            put_json(shown) if as_json else _put(shown)
            return
        from swarmkeep.cli.top import watch

        try:
            watch(source, where.server_url or "the database", where.server_url, seconds=seconds)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def _put(shown: Snapshot) -> None:
    from swarmkeep.cli.top import (
        describe_counts,
        describe_status,
        format_age,
        format_count,
        format_lease,
        format_seconds,
    )

    today = shown.today
    put(describe_counts(shown))
    put(
        f"today {pluralize(today.model_calls, 'turn')}, {format_count(today.total_tokens)} tokens; "
        f"model {format_seconds(today.model_seconds)}, tool {format_seconds(today.tool_seconds)}; "
        f"failed in the last hour {shown.failed_last_hour}"
    )
    if shown.server is not None:
        counts = shown.server
        put(f"streams {counts.streams}, take-overs {counts.takeovers}, run errors {counts.run_errors}")
    if not shown.runs:
        return
    rows = [
        (
            describe_status(row),
            format_age(row.age_seconds),
            row.agent,
            str(row.model_calls),
            format_count(row.total_tokens),
            (row.server or "-")[:8],
            format_lease(row),
            row.session_id,
            row.title or "",
        )
        for row in shown.runs
    ]
    put_table(("STATUS", "AGE", "AGENT", "TURNS", "TOKENS", "SERVER", "LEASE", "SESSION", "TITLE"), rows)
