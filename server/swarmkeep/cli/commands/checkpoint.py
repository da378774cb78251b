"""`swarmkeep checkpoint`: write down where all logs end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from swarmkeep.cli.options import ApiKey, DatabaseUrl, Quiet, ServerUrl, Tenant
from swarmkeep.cli.output import write_atomically
from swarmkeep.cli.progress import show_progress
from swarmkeep.cli.sources.opening import open_source
from swarmkeep.cli.sources.options import SourceOptions
from swarmkeep.cli.terminal import Refused, put_bytes, say
from swarmkeep.domain.wording import pluralize


def register(app: typer.Typer) -> None:
    app.command(
        "checkpoint",
        epilog="""
        \b
        Examples:
          swarmkeep checkpoint --output heads.jsonl
          swarmkeep checkpoint --signing-key key.pem --output heads.jsonl
          swarmkeep verify --checkpoint heads.jsonl --public-key key.pub
        """,
    )(checkpoint)


def checkpoint(
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to this file; by default to standard output."),
    ] = None,
    signing_key: Annotated[
        Path | None,
        typer.Option(
            "--signing-key", metavar="FILE", help="Sign with this Ed25519 key (PEM). [env: SWARMKEEP_SIGNING_KEY]"
        ),
    ] = None,
    quiet: Quiet = False,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Record the last seq and hash of every session and of the audit log, signed if there is a key. Keep the file
    elsewhere."""
    from swarmkeep.audit.verify.checkpoints import BadCheckpoint, write_checkpoint
    from swarmkeep.cli.configure import load_settings
    from swarmkeep.domain.timestamps import to_timestamp

    key = load_settings(signing_key=signing_key).signing_key
    at = to_timestamp(datetime.now(UTC))
    try:
        with open_source(SourceOptions(url, database_url, tenant, api_key)) as source:
            if output is None:
                put_bytes(write_checkpoint(source.heads(), at, key))
                return
            count = 0

            def count_lines() -> Iterator[bytes]:
                nonlocal count
                for line in write_checkpoint(source.heads(), at, key):
                    count += 1
                    yield line

            unwritten = f"nothing was written to {output}"
            with show_progress("recording", "head", quiet=quiet, on_interrupt=lambda _: unwritten) as progress:
                write_atomically(output, progress.track(count_lines()))
    except BadCheckpoint as error:
        raise Refused(str(error)) from None
    say(f"wrote {pluralize(count - 2, 'head')} to {output}, {'not ' if key is None else ''}signed")
