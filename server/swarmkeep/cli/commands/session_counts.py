"""`swarmkeep sessions counts`: counts of sessions that may need attention."""

from __future__ import annotations

from typing import Annotated

import typer

from swarmkeep.cli.options import ApiKey, DatabaseUrl, JsonOutput, ServerUrl, Tenant
from swarmkeep.cli.sources.opening import open_source
from swarmkeep.cli.sources.options import SourceOptions
from swarmkeep.cli.terminal import put_json, put_table

group = typer.Typer()


@group.command(
    "counts",
    epilog="""
    \b
    Examples:
      swarmkeep sessions counts
      swarmkeep sessions counts --json
    """,
)
def counts(
    children: Annotated[bool, typer.Option("--children", help="Also the sessions in which agents ask others.")] = False,
    as_json: JsonOutput = False,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Count the sessions that run or wait, those whose last run failed or was interrupted, and the damaged ones."""
    with open_source(SourceOptions(url, database_url, tenant, api_key)) as source:
        counted = source.counts(children=children)
    if as_json:
        put_json(counted)
        return
    kinds = {**counted.status, **counted.last_run, "damaged": counted.damaged}
    put_table(("SESSIONS", "COUNT"), [(name, f"{one.count:,}{'+' if one.more else ''}") for name, one in kinds.items()])
