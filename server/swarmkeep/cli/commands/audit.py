"""`swarmkeep audit`: what was done to whole sessions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from swarmkeep.cli.options import ApiKey, DatabaseUrl, JsonOutput, ServerUrl, Tenant
from swarmkeep.cli.sources.opening import open_source
from swarmkeep.cli.sources.options import SourceOptions
from swarmkeep.cli.terminal import put_json, put_table, say


def register(app: typer.Typer) -> None:
    app.command(
        "audit",
        epilog="""
        \b
        Examples:
          swarmkeep audit
          swarmkeep audit --json
        """,
    )(audit)


def audit(
    as_json: JsonOutput = False,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Show the audit log: what was done to whole sessions and to keys, when, by whom and why, and when servers
    started."""
    with open_source(SourceOptions(url, database_url, tenant, api_key)) as source:
        entries = list(source.audit())
    if as_json:
        put_json(entries)
        return
    if not entries:
        say("the audit log is empty")
        return
    put_table(
        ("SEQ", "AT", "TYPE", "ABOUT", "BY", "REASON"),
        [
            (
                str(entry.seq),
                f"{entry.at[:19]}Z",
                entry.type,
                _name_subject(entry.data),
                entry.by or "",
                str(entry.data.get("reason") or ""),
            )
            for entry in entries
        ],
    )


def _name_subject(data: Mapping[str, Any]) -> str:
    """What an entry is about: a session, a key, or a server."""
    return str(next((data[name] for name in ("session_id", "key_id", "address", "server") if name in data), ""))
