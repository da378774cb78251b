"""`swarmkeep checkpoint`, and `swarmkeep verify --checkpoint`: where all logs ended, noted down and compared later."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarmkeep.cli.sources.source import ApiKey, DatabaseUrl, ServerUrl, Source, SourceOptions, Tenant, open_source
from swarmkeep.cli.terminal import Refused, put, put_json_line, say

if TYPE_CHECKING:
    from swarmkeep.audit.verify.checkpoints import CheckpointHead


def register(app: typer.Typer) -> None:
    app.command(
        "checkpoint",
        short_help="Note down where every session ends.",
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
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Note down where every session and the audit log end, signed if there is a key. Keep the file elsewhere."""
    from swarmkeep.audit.verify.checkpoints import BadCheckpoint, write_checkpoint
    from swarmkeep.cli.configure import load_settings
    from swarmkeep.domain.timestamps import to_timestamp

    key = load_settings(signing_key=signing_key).signing_key
    at = to_timestamp(datetime.now(UTC))
    try:
        with open_source(SourceOptions(url, database_url, tenant, api_key)) as found:
            if output is None:
                for line in write_checkpoint(found.heads(), at, key):
                    sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
                return
            scratch = output.with_name(f"{output.name}.part")
            count = 0
            try:
                with scratch.open("wb") as file:
                    for line in write_checkpoint(found.heads(), at, key):
                        file.write(line)
                        count += 1
                scratch.replace(output)
            finally:
                scratch.unlink(missing_ok=True)
    except BadCheckpoint as error:
        raise Refused(str(error)) from None
    say(f"noted {count - 2} heads in {output}, {'not ' if key is None else ''}signed")


def compare_with_checkpoint(found: Source, file: Path, public_key: Path | None, *, as_json: bool) -> bool:
    """Check every log of a checkpoint against it, and say what became of each; whether all is well."""
    from swarmkeep.audit.verify.checkpoints import BadCheckpoint, read_heads, verify_checkpoint

    counts: dict[str, int] = {}
    try:
        with file.open("rb") as lines:
            seal = verify_checkpoint(lines, public_key)
            for noted in read_heads(lines, seal):
                outcome, detail = _compare_log(found, noted)
                counts[outcome] = counts.get(outcome, 0) + 1
                if as_json:
                    put_json_line({**_to_dict(noted), "outcome": outcome, "detail": detail})
                elif outcome != "unchanged":
                    put(f"{_name_log(noted)}: {outcome.upper() if outcome in BAD_OUTCOMES else outcome}, {detail}")
    except (BadCheckpoint, OSError) as error:
        raise Refused(str(error)) from None
    if seal.public_key is not None and public_key is None:
        say(f"signed with {seal.public_key}; only --public-key tells whether that is the right key")
    say(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "the checkpoint has no heads")
    return not BAD_OUTCOMES & counts.keys()


BAD_OUTCOMES = {"truncated", "rewritten", "invalid", "vanished"}


def _compare_log(found: Source, noted: CheckpointHead) -> tuple[str, str]:
    from swarmkeep.domain.errors import SessionNotFound
    from swarmkeep_client import Head
    from swarmkeep_client import SessionNotFound as NoSession

    head = Head(seq=noted.seq, hash=noted.hash)
    try:
        if noted.session_id is None:
            verification = found.verify_audit_head(noted.tenant, head)
        else:
            verification = found.verify(noted.session_id, head=head, tenant=noted.tenant)
    except (SessionNotFound, NoSession):
        told = _find_deletion(found, noted)
        return ("deleted", told) if told else ("vanished", f"it had {noted.seq} events, and no deletion is recorded")
    if verification.valid:
        return "unchanged", ""
    first = verification.problems[0]
    outcome = next((one.code for one in verification.problems if one.code in ("truncated", "rewritten")), "invalid")
    told = "" if outcome == "invalid" or noted.session_id is None else _find_deletion(found, noted)
    return ("deleted", f"{told}, and made anew") if told else (outcome, first.detail)


def _find_deletion(found: Source, noted: CheckpointHead) -> str:
    """What the audit log says of the session's end, if it does."""
    for entry in found.audit(noted.tenant):
        told = entry.data
        if told.get("session_id") == noted.session_id and _is_at_least(told.get("seq"), noted.seq):
            return f"deleted at {entry.at} by {entry.by or 'somebody'}: {told.get('reason') or 'no reason given'}"
    return ""


def _is_at_least(seq: object, noted: int) -> bool:
    return isinstance(seq, int) and seq >= noted


def _name_log(noted: CheckpointHead) -> str:
    tenant = f"{noted.tenant}/" if noted.tenant else ""
    return f"{tenant}{noted.session_id}" if noted.session_id is not None else f"audit log {noted.tenant or ''}".strip()


def _to_dict(noted: CheckpointHead) -> dict[str, object]:
    return {"tenant": noted.tenant, "session_id": noted.session_id, "seq": noted.seq, "hash": noted.hash}
