"""`swarmkeep anchor`: a checkpoint of a few lines to keep elsewhere, signed by witnesses and time-stamped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from swarmkeep.cli.opening import open_source
from swarmkeep.cli.options import ApiKey, DatabaseUrl, JsonOutput, ServerUrl, Tenant
from swarmkeep.cli.output import parse_duration, write_atomically
from swarmkeep.cli.sources import Source, SourceOptions
from swarmkeep.cli.terminal import Refused, put_bytes, put_json_line, say

if TYPE_CHECKING:
    from swarmkeep.history.anchors import VerifierKey
    from swarmkeep_client import Checkpoint


def register(app: typer.Typer) -> None:
    app.command(
        "anchor",
        epilog="""
        \b
        Examples:
          swarmkeep anchor -o checkpoint.txt
          swarmkeep anchor -o checkpoints/ --every 1h --tsa http://timestamp.example/tsr
          swarmkeep anchor -o checkpoint.txt --witness https://witness.example witness.example+1a2b3c4d+BA0…
          swarmkeep verify --checkpoint checkpoint.txt --public-key key.pub
        """,
    )(anchor)


def anchor(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the checkpoint to this file, or to a new one in this folder; by default to standard output. "
            "A time stamp goes beside it, as FILE.tsr.",
        ),
    ] = None,
    witness: Annotated[
        list[str] | None,
        typer.Option("--witness", metavar="URL", help="Have this witness (C2SP) sign it, too; once for each."),
    ] = None,
    witness_key: Annotated[
        list[str] | None,
        typer.Option("--witness-key", metavar="KEY", help="The witness's key, NAME+ID+KEY; once for each, in order."),
    ] = None,
    tsa: Annotated[
        str | None, typer.Option("--tsa", metavar="URL", help="Have this authority time-stamp it (RFC 3161).")
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(
            "--every", metavar="TIME", help="Go on, with a checkpoint whenever there is something new: 1h, 1d."
        ),
    ] = None,
    as_json: JsonOutput = False,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Make a signed checkpoint of all sessions, a few lines long. Kept elsewhere, it shows later what was changed, left
    out or rolled back. A server signs with its own key, a database with SWARMKEEP_SIGNING_KEY."""
    from swarmkeep.history.anchors import AnchorRefused, parse_verifier_key
    from swarmkeep.history.checkpoints import BadCheckpoint

    pause = None if every is None else parse_duration(every, "--every").total_seconds()
    if len(witness or []) != len(witness_key or []):
        raise typer.BadParameter("give one for each --witness", param_hint="'--witness-key'")
    if tsa is not None and output is None:
        raise typer.BadParameter(
            "it needs --output, for the time stamp goes beside the checkpoint", param_hint="'--tsa'"
        )
    try:
        witnesses = [*zip(witness or [], map(parse_verifier_key, witness_key or []), strict=True)]
        with open_source(SourceOptions(url, database_url, tenant, api_key), writes=True) as source:
            last = 0
            while True:
                made = source.checkpoint()
                try:
                    if made.number != last:
                        _keep(source, made, output, witnesses, tsa, as_json=as_json)
                        last = made.number
                except AnchorRefused as error:
                    if pause is None:
                        raise
                    # The others may sign the next time.
                    say(f"checkpoint {made.number} was not kept: {error}")
                if pause is None:
                    return
                time.sleep(pause)
    except (AnchorRefused, BadCheckpoint) as error:
        raise Refused(str(error)) from None


def _keep(
    source: Source,
    made: Checkpoint,
    output: Path | None,
    witnesses: Sequence[tuple[str, VerifierKey]],
    tsa: str | None,
    *,
    as_json: bool,
) -> None:
    """Have a checkpoint signed and stamped, then write it. Raises AnchorRefused, BadCheckpoint."""
    from swarmkeep.history.anchors import cosign, format_verifier_key, request_stamp

    note = made.note
    for url, key in witnesses:
        # A witness takes the note as the log signed it; the signatures of the others come below.
        signed = cosign(
            url, key, made.note, made.size, lambda since: source.checkpoint(made.number, since=since).consistency
        )
        note += signed.removeprefix(made.note)
    stamp = None if tsa is None else request_stamp(tsa, note.encode())
    own = None if made.public_key is None else format_verifier_key(made.origin, bytes.fromhex(made.public_key))
    place = output / f"checkpoint-{made.number}.txt" if output is not None and output.is_dir() else output
    if place is not None:
        write_atomically(place, [note.encode()])
        if stamp is not None:
            write_atomically(name_stamp(place), [stamp])
    if as_json:
        put_json_line({**msgspec.structs.asdict(made), "note": note, "verifier_key": own})
    elif place is None:
        put_bytes([note.encode()])
    signed = "not signed: the operator has set no key" if own is None else f"signed with {own}"
    where = "" if place is None else f"wrote {place}: "
    say(f"{where}checkpoint {made.number} of {made.size} leaves, {signed}")


def name_stamp(checkpoint: Path) -> Path:
    """The file of a checkpoint's time stamp."""
    return checkpoint.with_name(f"{checkpoint.name}.tsr")
