"""`swarmkeep anchor`, `evidence`: what others are given, and can check: checkpoints, and packages of sessions."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, NoReturn

import msgspec
import typer

from swarmkeep.cli.opening import open_source
from swarmkeep.cli.options import Commands, JsonOutput
from swarmkeep.cli.output import STANDARD, open_atomically, open_input, parse_duration, write_atomically
from swarmkeep.cli.sources import SourceOptions
from swarmkeep.cli.terminal import find_refusal, put_bytes, put_json_line, say
from swarmkeep.events.wording import pluralize

if TYPE_CHECKING:
    from swarmkeep.cli.opening import Source
    from swarmkeep.history.anchors import VerifierKey
    from swarmkeep_client import Checkpoint


commands = Commands()


@commands.add("""
    swarmkeep anchor -o checkpoint.txt
    swarmkeep anchor -o checkpoints/ --every 1h --tsa http://timestamp.example/tsr
    swarmkeep anchor -o checkpoint.txt --witness https://witness.example witness.example+1a2b3c4d+BA0…
    swarmkeep verify --checkpoint checkpoint.txt --public-key key.pub
""")
def anchor(
    where: SourceOptions,
    output: Annotated[
        str | None,
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
) -> None:
    """Make a signed checkpoint of all sessions, a few lines long. Kept elsewhere, it shows later what was changed, left
    out or rolled back. A server signs with its own key, a database with SWARMKEEP_SIGNING_KEY."""
    from swarmkeep.history.anchors import parse_verifier_key

    pause = None if every is None else parse_duration(every, "--every").total_seconds()
    if len(witness or []) != len(witness_key or []):
        raise typer.BadParameter("give one for each --witness", param_hint="'--witness-key'")
    place = None if output is None else Path(output)
    if output is not None and output.endswith("/") and not Path(output).is_dir():
        raise typer.BadParameter("there is no such folder", param_hint="'--output'")
    if tsa is not None and output in (None, STANDARD):
        raise typer.BadParameter(
            "it needs --output, for the time stamp goes beside the checkpoint", param_hint="'--tsa'"
        )
    witnesses = [*zip(witness or [], map(parse_verifier_key, witness_key or []), strict=True)]
    with open_source(where, writes=True) as source:
        if pause is None:
            _keep(source, source.checkpoint(), _Others(witnesses, tsa, must_all=True), place, as_json=as_json)
        else:
            _keep_on(source, _Others(witnesses, tsa, must_all=False), place, pause, as_json=as_json)


class _Others(NamedTuple):
    """Those who are to sign a checkpoint, too: witnesses, with their keys, and a time stamp authority.

    If not `must_all`, a checkpoint that some of them did not sign is kept as well.
    """

    witnesses: Sequence[tuple[str, VerifierKey]]
    tsa: str | None
    must_all: bool


def _keep_on(source: Source, others: _Others, output: Path | None, pause: float, *, as_json: bool) -> NoReturn:
    """Keep a checkpoint whenever there is something new. What goes wrong after the first is said, and tried again."""
    from swarmkeep.history.anchors import AnchorRefused
    from swarmkeep.history.checkpoints import BadCheckpoint

    last, has_begun = 0, False
    while True:
        try:
            made = source.checkpoint()
            has_begun = True
            if made.number != last:
                last = _keep(source, made, others, output, as_json=as_json)
        except (AnchorRefused, BadCheckpoint):
            raise
        except Exception as error:
            refusal = find_refusal(error)
            if refusal is None or not has_begun:
                raise
            say(f"no checkpoint was kept: {refusal.sentence}")
        time.sleep(pause)


def _keep(source: Source, made: Checkpoint, others: _Others, output: Path | None, *, as_json: bool) -> int:
    """Have a checkpoint signed and stamped, then write it. Return its number, or 0 if one of the others did not sign.

    Raises AnchorRefused, BadCheckpoint.
    """
    from swarmkeep.history.anchors import AnchorRefused, format_verifier_key, name_stamp, request_stamp
    from swarmkeep.history.checkpoints import BadCheckpoint

    made, note, missing = _ask_witnesses(source, made, others.witnesses)
    stamp = None
    if others.tsa is not None:
        try:
            stamp = request_stamp(others.tsa, note.encode())
        except (AnchorRefused, BadCheckpoint) as error:
            missing.append(error)
    if missing and others.must_all:
        raise missing[0]
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
    for one in missing:
        say(f"one signature is missing: {one}")
    signed = "not signed: the operator has set no key" if own is None else f"signed with {own}"
    where = "" if place is None else f"wrote {place}: "
    say(f"{where}checkpoint {made.number} of {made.size} leaves, {signed}")
    return 0 if missing else made.number


def _ask_witnesses(
    source: Source, made: Checkpoint, witnesses: Sequence[tuple[str, VerifierKey]]
) -> tuple[Checkpoint, str, list[Exception]]:
    """Return the checkpoint that was signed, its note with all signatures, and why others did not sign."""
    from swarmkeep.history.anchors import AnchorRefused, LogBehind, cosign
    from swarmkeep.history.checkpoints import BadCheckpoint

    note, missing = made.note, list[Exception]()
    for url, key in witnesses:
        try:
            # A witness takes the note as the log signed it; the signatures of the others come below.
            signed = cosign(url, key, made.note, lambda since: source.checkpoint(made.number, since=since).consistency)
            note += signed.removeprefix(made.note)
        except LogBehind as error:
            newer = source.checkpoint()
            if newer.size >= error.size:
                # Another process has had a newer one signed in the meantime.
                return _ask_witnesses(source, newer, witnesses)
            missing.append(error)
        except (AnchorRefused, BadCheckpoint) as error:
            missing.append(error)
    return made, note, missing


# `swarmkeep evidence`: sessions in a package that a stranger can check.


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
