"""`swarmkeep evidence`: sessions in a package that a stranger can check."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from typing import Annotated, cast

import typer

from swarmkeep.cli.configure import load_settings
from swarmkeep.cli.opening import open_source
from swarmkeep.cli.options import ApiKey, DatabaseUrl, ServerUrl, Tenant
from swarmkeep.cli.output import STANDARD, open_atomically
from swarmkeep.cli.sources import Source, SourceOptions, Walk
from swarmkeep.cli.terminal import Refused, say
from swarmkeep.events.wording import pluralize
from swarmkeep_client import AuditEntry, CheckpointNotFound, Forbidden, NotInCheckpoint, Proof

_KEY_ID = re.compile(rb"key_[0-9a-f]{16}")
_KEY_ID_BYTES = 20


def register(app: typer.Typer) -> None:
    app.command(
        "evidence",
        epilog="""
        \b
        Examples:
          swarmkeep evidence order-4711 -o case.zip
          swarmkeep evidence order-4711 order-4712 -o case.zip --signing-key key.pem
        """,
    )(evidence)


def evidence(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The sessions.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Write the ZIP file here.")],
    signing_key: Annotated[
        Path | None,
        typer.Option(
            "--signing-key",
            metavar="FILE",
            help="Sign the sessions' ends with this Ed25519 key (PEM). [env: SWARMKEEP_SIGNING_KEY]",
        ),
    ] = None,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Pack sessions so that a stranger can check them with nothing but Python: events, files, transcripts, what the
    audit log says of them, signed heads, and the checking program. Sessions that do not verify are refused."""
    from swarmkeep.events.codec import to_timestamp
    from swarmkeep.history.checkpoints import BadCheckpoint
    from swarmkeep.history.evidence import PackagedSession, write_package

    key = load_settings(signing_key=signing_key).signing_key
    wanted = list(dict.fromkeys(ids))
    used: set[str] = set()
    with open_source(SourceOptions(url, database_url, tenant, api_key)) as source:
        sessions = []
        for session_id in wanted:
            found = source.verify(session_id)
            if not found.valid or found.head is None:
                problem = f" ({found.problems[0].code} at event {found.problems[0].seq})" if found.problems else ""
                raise Refused(f"session {session_id} does not verify{problem}: see swarmkeep verify {session_id}")
            sessions.append(PackagedSession(id=session_id, seq=found.head.seq, hash=found.head.hash))
        proofs = [proof for session_id in wanted if (proof := _find_proof(source, session_id)) is not None]
        may_read_audit = _may_read_audit(source)
        if not may_read_audit:
            say("the audit log is left out: this key may not read it")
        try:
            with open_atomically(output) as file:
                write_package(
                    file,
                    "case.zip" if str(output) == STANDARD else output.name,
                    sessions,
                    to_timestamp(datetime.now(UTC)),
                    events=_note_keys(source.export(wanted, agent=None, status=None, metadata={}, walk=Walk()), used),
                    transcripts=(source.transcript(session_id, "html") for session_id in wanted),
                    audit=_find_entries(source, set(wanted), used) if may_read_audit else None,
                    proofs=proofs,
                    key=key,
                )
                file.seek(0)
                digest = hashlib.file_digest(cast(BufferedReader, file), "sha256").hexdigest()
        except BadCheckpoint as error:
            raise Refused(str(error)) from None
    signed = "not signed" if key is None else "signed"
    name = "standard output" if str(output) == STANDARD else output
    say(f"wrote {pluralize(len(wanted), 'session')} to {name}, {signed}; SHA-256 {digest}")


def _note_keys(pieces: Iterable[bytes], found: set[str]) -> Iterator[bytes]:
    """The same pieces; notes the API keys that they name."""
    tail = b""
    for piece in pieces:
        found.update(key.decode() for key in _KEY_ID.findall(tail + piece))
        tail = piece[-_KEY_ID_BYTES:]
        yield piece


def _find_entries(source: Source, ids: set[str], used: set[str]) -> Iterator[AuditEntry]:
    """What the audit log says of these sessions, and of the keys that they name.

    The keys in `used` are known once the events have been written."""
    for entry in source.audit():
        if entry.data.get("session_id") in ids or entry.data.get("key_id") in used:
            yield entry


def _find_proof(source: Source, session_id: str) -> Proof | None:
    """The proof from the newest checkpoint of the log of heads, if that has the session."""
    try:
        return source.proof(session_id)
    except Exception as error:
        if getattr(error, "code", None) not in (CheckpointNotFound.code, NotInCheckpoint.code):
            raise
        return None


def _may_read_audit(source: Source) -> bool:
    try:
        next(iter(source.audit()), None)
    except Exception as error:
        if getattr(error, "code", None) != Forbidden.code:
            raise
        return False
    return True
