"""`swarmkeep blob`: a file or picture out of a session."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from swarmkeep.cli.options import ApiKey, DatabaseUrl, ServerUrl, SessionId, Tenant
from swarmkeep.cli.output import write_atomically
from swarmkeep.cli.sources.opening import open_source
from swarmkeep.cli.sources.options import SourceOptions
from swarmkeep.cli.terminal import is_terminal, put_bytes


def register(app: typer.Typer) -> None:
    app.command(
        "blob",
        epilog="""
        \b
        Examples:
          swarmkeep blob order-4711 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 -o cat.png
        """,
    )(blob)


def blob(
    session_id: SessionId,
    sha256: Annotated[str, typer.Argument(metavar="HASH", help="The `sha256` that the message names: 64 hex digits.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here instead of standard output.")
    ] = None,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Get the content of a file or picture in a session's message.

    `swarmkeep events ID --json` shows the hashes. The output file appears once it is complete.
    """
    if not re.fullmatch(r"[0-9a-f]{64}", sha256, re.ASCII):
        raise typer.BadParameter("it must be 64 hex digits, in lower case", param_hint="'HASH'")
    if output is None and is_terminal(sys.stdout):
        raise typer.BadParameter(
            "the content is not printed to a terminal: give -o FILE, or pipe it to another program", param_hint="'-o'"
        )
    with open_source(SourceOptions(url, database_url, tenant, api_key)) as source:
        content = source.blob(session_id, sha256)
    if output is not None:
        write_atomically(output, [content])
    else:
        put_bytes([content])
