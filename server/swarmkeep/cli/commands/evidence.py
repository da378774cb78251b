"""`swarmkeep evidence`: sessions in a package that a stranger can check."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from swarmkeep.cli.opening import open_source
from swarmkeep.cli.options import Commands
from swarmkeep.cli.output import STANDARD, open_atomically, open_input
from swarmkeep.cli.sources import SourceOptions
from swarmkeep.cli.terminal import say
from swarmkeep.events.wording import pluralize

commands = Commands()


@commands.add("""
    swarmkeep evidence order-4711 -o case.zip
    swarmkeep evidence order-4711 order-4712 -o case.zip --signing-key key.pem
    swarmkeep evidence order-4711 -o case.zip --checkpoint checkpoint.txt
""")
def evidence(
    where: SourceOptions,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The sessions.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Write the ZIP file here.")],
    signing_key: Annotated[
        Path | None,
        typer.Option(
            "--signing-key",
            metavar="FILE",
            help="Sign the sessions' ends with this Ed25519 key (PEM). A server has its own. "
            "[env: SWARMKEEP_SIGNING_KEY]",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            metavar="FILE",
            help="Prove the sessions from this checkpoint of `anchor`, which others have, signed or stamped; "
            "by default from the log's newest.",
        ),
    ] = None,
) -> None:
    """Pack sessions so that a stranger can check them with nothing but Python: events, files, transcripts, what the
    audit log says of them, signed heads, and the checking program. Sessions that do not verify are refused."""
    from swarmkeep.history.proofs import MAX_NOTE_BYTES, parse_note

    size = None
    if signing_key is not None and where.server_url is not None:
        raise typer.BadParameter("a server signs with its own key; leave it out", param_hint="'--signing-key'")
    digest = hashlib.sha256()
    wanted = list(dict.fromkeys(ids))
    name = "standard output" if str(output) == STANDARD else output
    if checkpoint is not None:
        with open_input(str(checkpoint)) as file:
            note = parse_note(file.read(MAX_NOTE_BYTES + 1))
        size = note.size
        if where.url is None:
            where = replace(where, tenant=where.tenant or note.tenant)
    with open_source(where) as source, open_atomically(output) as file:
        for piece in source.evidence(wanted, signing_key, size):
            digest.update(piece)
            file.write(piece)
    say(f"wrote {pluralize(len(wanted), 'session')} to {name}; SHA-256 {digest.hexdigest()}")
