"""Evidence packages: sessions with all that is needed to check them elsewhere, in one ZIP file.

Nothing in it is compressed and no time stands in it but that of the manifest, so the file follows from its contents:
`swarmkeep_verify.py`, which lies in it, makes it again and compares the bytes.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, BinaryIO, cast

import msgspec

from swarmkeep.events.codec import Json, encode
from swarmkeep.events.errors import InvalidImport
from swarmkeep.history import swarmkeep_verify
from swarmkeep.history.checkpoints import CheckpointHead, write_checkpoint

FORMAT = "swarmkeep evidence"
VERSION = 1
EVENTS = "events.jsonl"
AUDIT = "audit.jsonl"
CHECKPOINT = "checkpoint.jsonl"
PROOFS = "proofs.jsonl"
PROGRAM = "swarmkeep_verify.py"
_PROGRAM = Path(swarmkeep_verify.__file__).read_bytes()
_README = """Evidence of {count}, written {at}

Each session below was verified when this package was written: its hash chain, its contents and its files.

{sessions}

What is here
{contents}
How to check it
  1. Read swarmkeep_verify.py, or take it from a place that you trust: it is short.
  2. python3 swarmkeep_verify.py {package}
     Exit code 0: nothing was changed since this package was written. A changed byte is named.
  3. With a checkpoint that you were given earlier, and the key that it was signed with:
     python3 swarmkeep_verify.py {package} --checkpoint CHECKPOINT.jsonl --public-key KEY
     It shows as well that nothing that these sessions held before that checkpoint was changed or left out.

What it shows, and what not
  The hashes show any change that is made afterwards to everyone who has this file or its digest. They do not show that
  what was recorded is true, nor that the operator recorded all of it: for that, compare with a checkpoint that another
  party has kept. "redacted" events have lost their content on purpose; who did it, when and why is in the
  log. Names behind "by" are API keys, or people who answered{roles}.
"""


class PackagedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session's end, as the package has it."""

    id: str
    seq: int
    hash: str


def write_package(
    target: BinaryIO,
    name: str,
    sessions: list[PackagedSession],
    at: str,
    *,
    events: Iterable[bytes],
    transcripts: Iterable[Iterable[bytes]],
    audit: Iterable[object] | None,
    proofs: Sequence[object],
    key: Path | None,
) -> None:
    """Write the package `name` of these sessions, which must have been verified; it is held in memory nowhere.

    `events` is their export, `proofs` are those of a checkpoint of the log of heads that has them, if there is one.
    `audit` is None if the audit log may not be read, and README.txt says so. With a signing `key` (a PEM file) their
    heads are signed. Raises BadCheckpoint for a key that cannot be used.
    """
    heads = [CheckpointHead(tenant=None, session_id=one.id, seq=one.seq, hash=one.hash) for one in sessions]
    signed = "not signed: the operator has set no key" if key is None else "signed by the operator's key"
    known: list[tuple[str, str, Iterable[bytes] | None]] = [
        (EVENTS, "the sessions as they were recorded, one event a line; files stand in them as base64", events),
        (CHECKPOINT, f"where each session ended; {signed}", write_checkpoint(heads, at, key)),
        (PROOFS, "that they are in a checkpoint of the operator's log, which others may keep", _write_lines(proofs)),
        (AUDIT, "what the audit log says of them: who decided, redacted, deleted or held", _write_lines(audit)),
        (PROGRAM, "checks all of this with nothing but Python 3.9 or later, and without any network", [_PROGRAM]),
    ]
    contents = [(member, what, pieces) for member, what, pieces in known if pieces is not None]
    listed = [(member, what) for member, what, _ in contents]
    listed.append(("transcript-N.html", "each session for people; open it in a browser, print it from there"))
    if audit is None:
        listed.append((f"(no {AUDIT})", "the key that made this package may not read the audit log"))
    readme = _write_readme(name, sessions, at, listed, has_roles=audit is not None)
    written = [
        ("README.txt", [readme.encode()]),
        *((member, pieces) for member, _, pieces in contents),
        *((f"transcript-{number}.html", pieces) for number, pieces in enumerate(transcripts, start=1)),
    ]
    files: Json = {}
    with zipfile.ZipFile(target, "w") as package:
        for member, pieces in written:
            with tempfile.TemporaryFile() as whole:
                size = sum(whole.write(piece) for piece in pieces)
                whole.seek(0)
                files[member] = {"sha256": _add(package, member, whole, size), "bytes": size}
        manifest = {
            "format": FORMAT, "version": VERSION, "at": at, "sessions": msgspec.to_builtins(sessions), "files": files,
        }  # fmt: skip
        body = encode(manifest) + b"\n"
        with tempfile.TemporaryFile() as whole:
            whole.write(body)
            whole.seek(0)
            _add(package, swarmkeep_verify.MANIFEST, whole, len(body))


@contextmanager
def open_package(file: BinaryIO) -> Iterator[tuple[BinaryIO, BinaryIO] | None]:
    """The events and the checkpoint of a package, once each of its bytes is what was written; None for another file.

    Raises InvalidImport, which names what was changed."""
    if not zipfile.is_zipfile(file):
        file.seek(0)
        yield None
        return
    with ExitStack() as opened:
        try:
            package = opened.enter_context(zipfile.ZipFile(file))
            swarmkeep_verify.check_package(package, file)  # type: ignore[no-untyped-call]
            events, heads = (opened.enter_context(package.open(name)) for name in (EVENTS, CHECKPOINT))
        except Exception as error:
            # A broken ZIP file makes the standard library raise errors of many kinds.
            raise InvalidImport(f"the package was changed: {error}") from None
        yield cast(BinaryIO, events), cast(BinaryIO, heads)


def _add(package: zipfile.ZipFile, name: str, content: IO[bytes], size: int) -> str:
    # What strangers read has no types.
    return str(swarmkeep_verify.add_member(package, name, content, size))  # type: ignore[no-untyped-call]


def _write_lines(values: Iterable[object] | None) -> Iterable[bytes] | None:
    return None if values is None or values == [] else (encode(value) + b"\n" for value in values)


def _write_readme(
    name: str, sessions: list[PackagedSession], at: str, contents: list[tuple[str, str]], *, has_roles: bool
) -> str:
    listed = "\n".join(f"  {one.id}: {one.seq} events, the last has the hash {one.hash}" for one in sessions)
    count = "1 session" if len(sessions) == 1 else f"{len(sessions)} sessions"
    roles = f"; roles of keys are in {AUDIT}, where they were made" if has_roles else ""
    here = "".join(f"  {member:<22}{what}\n" for member, what in contents)
    return _README.format(count=count, at=at, sessions=listed, package=name, contents=here, roles=roles)
