"""`swarmkeep request`: what a model was sent."""

from __future__ import annotations

from typing import Annotated

import typer

from swarmkeep.cli.options import ApiKey, DatabaseUrl, ServerUrl, SessionId, Tenant
from swarmkeep.cli.sources.opening import open_source
from swarmkeep.cli.sources.options import SourceOptions
from swarmkeep.cli.terminal import put_bytes, put_json


def register(app: typer.Typer) -> None:
    app.command(
        "request",
        epilog="""
        \b
        Examples:
          swarmkeep request order-4711 4
          swarmkeep request order-4711 4 --raw | sha256sum
        """,
    )(request)


def request(
    session_id: SessionId,
    seq: Annotated[int, typer.Argument(metavar="SEQ", min=1, help="The event that is the model's answer.")],
    raw: Annotated[
        bool, typer.Option("--raw", help="The exact bytes that were sent, instead of indented JSON.")
    ] = False,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Show the exact Chat Completions request behind a model's answer, rebuilt from the log."""
    from swarmkeep.domain.codec import decode

    with open_source(SourceOptions(url, database_url, tenant, api_key)) as source:
        body = source.request(session_id, seq)
    if raw:
        put_bytes([body])
    else:
        put_json(decode(body))
