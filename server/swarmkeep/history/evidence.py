"""Evidence packages: sessions with all that is needed to check them elsewhere, in one ZIP file.

Nothing in it is compressed and no time stands in it but that of the manifest, so the file follows from its contents:
`swarmkeep_proofs.py`, which lies in it beside `swarmkeep_verify.py`, makes it again and compares the bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import sys
import tempfile
import zipfile
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple, cast

import msgspec
from msgspec import UNSET

from swarmkeep.events.codec import Json, decode, encode, to_timestamp
from swarmkeep.events.errors import CheckpointNotFound, HistoryDamaged, InvalidImport, NotInCheckpoint, TooLarge
from swarmkeep.events.facts import ToolStarted
from swarmkeep.history import swarmkeep_proofs
from swarmkeep.history.checkpoints import AuditEntry, CheckpointHead, Signer, view_entry, write_checkpoint
from swarmkeep.history.export import iterate_keys, write_export
from swarmkeep.history.proofs import HeadLog, Proof
from swarmkeep.history.transcript import format_time, open_transcript
from swarmkeep.history.verify import verify
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey, utc_now

FORMAT = "swarmkeep evidence"
VERSION = 1
EVENTS = "events.jsonl"
AUDIT = "audit.jsonl"
CHECKPOINT = "checkpoint.jsonl"
PROOFS = "proofs.jsonl"
_BLOCK_BYTES = 1 << 20
_KEY_ID = re.compile(rb"key_[0-9a-f]{16}")
_KEY_ID_BYTES = 20
_PAGE_EVENTS = 500
_PROGRAM, _PROOFS_PROGRAM = (Path(__file__).with_name(name) for name in ("swarmkeep_verify.py", "swarmkeep_proofs.py"))
_README = """Evidence of {count}, written {at}

Each session below was verified when this package was written: its hash chain, its contents and its files.

{sessions}

What is here
{contents}
How to check it
  1. Read swarmkeep_verify.py and swarmkeep_proofs.py, or take them from a place that you trust: they are short.
     The first alone checks events.jsonl; for this package, and for what follows, the second has to lie beside it.
  2. python3 -I swarmkeep_verify.py {package}
     Exit code 0: it holds what its manifest says. A changed byte is named. Who changes files and makes the manifest
     anew is found out by --public-key KEY, the operator's key: all files are signed with it{unless}.
  3. With a checkpoint that you were given earlier, and the key that it was signed with:
     python3 -I swarmkeep_verify.py {package} --checkpoint CHECKPOINT --public-key KEY
     It shows as well that the events of these sessions, up to those that are named, were in it as they are here. Ask
     who has the database whether there were later ones: swarmkeep verify ID --checkpoint CHECKPOINT. If a witness
     signed it, too, give --witness WITNESS-KEY; if it was time-stamped:
     openssl ts -verify -data CHECKPOINT -in CHECKPOINT.tsr -CAfile AUTHORITY.pem

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


async def make_package(
    store: SqlStore,
    tenant: str,
    ids: Sequence[str],
    *,
    log: HeadLog,
    signer: Signer | None,
    with_audit: bool,
    size: int | None = None,
    name: str = "case.zip",
    max_bytes: int = sys.maxsize,
) -> IO[bytes]:
    """A package of these sessions, in a file that has no name and begins at its beginning; close it.

    Without `with_audit` what the audit log says of them is left out, and README.txt says so. Raises SessionNotFound,
    HistoryDamaged for a session that does not verify, and TooLarge. Proofs are from the log's checkpoint of `size`
    leaves, or CheckpointNotFound or NotInCheckpoint is raised; by default from the newest, where that has the session.
    """
    keys = [SessionKey(tenant, session_id) for session_id in dict.fromkeys(ids)]
    sessions = [await _verify(store, key) for key in keys]
    proofs = [proof for key in keys if (proof := await _prove(store, log, key, size)) is not None]
    with ExitStack() as opened:
        events = opened.enter_context(tempfile.TemporaryFile())
        used: set[str] = set()
        exported = write_export(store, iterate_keys(keys), alone=len(keys) == 1, whole=True)
        left = await _spool(_note_keys(exported, used), events, max_bytes)
        audit = await _find_entries(store, tenant, set(ids), used) if with_audit else None
        roles = _describe_keys(audit or [])
        transcripts, asked = [], list[tuple[str, str]]()
        for key in keys:
            transcripts.append(opened.enter_context(tempfile.TemporaryFile()))
            left = await _spool(await open_transcript(store, key, "html", roles=roles), transcripts[-1], left)
            asked += [(key.id, other) for other in await _find_asked(store, key) if other not in ids]
        # Its reader closes it.
        target = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            await asyncio.to_thread(
                _write_package, target, name, sessions, events=events, transcripts=transcripts, audit=audit,
                proofs=proofs, asked=asked, signer=signer,
            )  # fmt: skip
        except BaseException:
            target.close()
            raise
        return target


def read_blocks(file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    return iter(lambda: file.read(_BLOCK_BYTES), b"")


async def _verify(store: SqlStore, key: SessionKey) -> PackagedSession:
    found = await verify(store, key)
    if not found.valid or found.head is None:
        problem = found.problems[0]
        raise HistoryDamaged(key.id, problem.seq or 1, problem=problem.code, detail=problem.detail)
    return PackagedSession(id=key.id, seq=found.head.seq, hash=found.head.hash)


async def _prove(store: SqlStore, log: HeadLog, key: SessionKey, size: int | None) -> Proof | None:
    """The proof from the checkpoint of `size` leaves, or from the newest, if that has the session.

    Raises CheckpointNotFound and NotInCheckpoint if there is a size.
    """
    try:
        proof = await log.prove(key, None if size is None else await log.find_number(key.tenant, size))
        found = await store.read(key, after=proof.seq - 1, upto=proof.seq)
        if [event.hash for event in found] != [proof.hash]:
            # The session that had this id before was in it.
            raise NotInCheckpoint(key.id, proof.checkpoint.number)
        return proof
    except (CheckpointNotFound, NotInCheckpoint):
        if size is not None:
            raise
        return None


async def _spool(pieces: AsyncGenerator[bytes], file: IO[bytes], max_bytes: int) -> int:
    """Write the pieces to a file; return how many bytes more there may be. Raises TooLarge."""
    async with aclosing(pieces):
        async for piece in pieces:
            max_bytes -= file.write(piece)
            if max_bytes < 0:
                raise TooLarge("the sessions are too large for one package: make several")
    return max_bytes


async def _note_keys(pieces: AsyncGenerator[bytes], found: set[str]) -> AsyncGenerator[bytes]:
    """The same pieces; notes the API keys that they name."""
    tail = b""
    async with aclosing(pieces):
        async for piece in pieces:
            found.update(key.decode() for key in _KEY_ID.findall(tail + piece))
            tail = piece[-_KEY_ID_BYTES:]
            yield piece


async def _find_entries(store: SqlStore, tenant: str, ids: set[str], used: set[str]) -> list[AuditEntry]:
    """What the audit log says of these sessions, and of the keys that they name."""
    found: list[AuditEntry] = []
    after = 0
    while page := await store.read_audit_log(tenant, after=after):
        for entry in map(view_entry, page):
            data = decode(entry.data)
            if isinstance(data, dict) and (data.get("session_id") in ids or data.get("key_id") in used):
                found.append(entry)
        after = page[-1].seq
    return found


def _describe_keys(audit: Sequence[AuditEntry]) -> dict[str, str]:
    """What the audit log says of the keys that it says were made."""
    made = [(decode(entry.data), entry) for entry in audit if entry.type == "key.created"]
    return {
        data["key_id"]: f"{data['name']}, role {data['role']}, made {format_time(entry.at)}"
        f"{f' by {entry.by}' if entry.by else ''}"
        for data, entry in made
    }


async def _find_asked(store: SqlStore, key: SessionKey) -> list[str]:
    """The sessions in which agents of this one asked others."""
    asked, after = dict[str, None](), 0
    while page := await store.read(key, after=after, types=(ToolStarted.type,), limit=_PAGE_EVENTS):
        for event in page:
            if isinstance(event.fact, ToolStarted) and event.fact.session_id is not UNSET:
                asked[event.fact.session_id] = None
        after = page[-1].seq
    return list(asked)


def _write_package(
    target: IO[bytes],
    name: str,
    sessions: list[PackagedSession],
    *,
    events: IO[bytes],
    transcripts: Sequence[IO[bytes]],
    audit: Sequence[AuditEntry] | None,
    proofs: Sequence[Proof],
    asked: Sequence[tuple[str, str]],
    signer: Signer | None,
) -> None:
    at = to_timestamp(utc_now())
    heads = [CheckpointHead(tenant=None, session_id=one.id, seq=one.seq, hash=one.hash) for one in sessions]
    signed = "not signed: the operator has set no key" if signer is None else "signed by the operator's key"
    known: list[tuple[str, str, Iterable[bytes] | None]] = [
        (
            EVENTS,
            "the sessions as they were recorded, one event a line; files are in it as base64",
            read_blocks(events),
        ),
        (CHECKPOINT, f"where each session ended; {signed}", write_checkpoint(heads, at, signer)),
        (
            PROOFS,
            "that they are in a checkpoint of the operator's log, which others may keep",
            _write_lines(proofs or None),
        ),
        (AUDIT, "what the audit log says of them: who decided, redacted, deleted or held", _write_lines(audit)),
        (
            _PROGRAM.name,
            "checks this with nothing but Python 3.9 or later, and without any network",
            [_PROGRAM.read_bytes()],
        ),
        (
            _PROOFS_PROGRAM.name,
            "its second file: packages, signatures, checkpoints and proofs",
            [_PROOFS_PROGRAM.read_bytes()],
        ),
    ]
    contents = [(member, what, pieces) for member, what, pieces in known if pieces is not None]
    listed = [(member, what) for member, what, _ in contents]
    listed.append(("transcript-N.html", "each session for people; open it in a browser, print it from there"))
    if audit is None:
        listed.append((f"(no {AUDIT})", "the key that made this package may not read the audit log"))
    readme = _write_readme(name, sessions, asked, at, listed, has_roles=audit is not None, is_signed=signer is not None)
    written = [
        ("README.txt", [readme.encode()]),
        *((member, pieces) for member, _, pieces in contents),
        *((f"transcript-{number}.html", read_blocks(file)) for number, file in enumerate(transcripts, start=1)),
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
        body = _sign(encode(manifest), signer) + b"\n"
        with tempfile.TemporaryFile() as whole:
            whole.write(body)
            whole.seek(0)
            _add(package, swarmkeep_proofs.MANIFEST, whole, len(body))


def _sign(manifest: bytes, signer: Signer | None) -> bytes:
    """The manifest, which names each file's digest, with the signature of the operator's key as its last members."""
    if signer is None:
        return manifest
    body = manifest[:-1]
    signature = signer.sign(swarmkeep_proofs.SIGNED_AS + hashlib.sha256(body).digest())
    seal = encode({"public_key": signer.public.hex(), "signature": signature.hex()})
    return body + b"," + seal[1:]


class Package(NamedTuple):
    """What is checked of a package: its events, its list of heads, its proofs from the log of heads, and the key that
    it is signed with as a whole."""

    events: BinaryIO
    heads: BinaryIO
    proofs: list[Proof]
    signed: bytes | None


@contextmanager
def open_package(file: BinaryIO) -> Iterator[Package | None]:
    """The files of a package, once each of its bytes is what was written; None for another file.

    Raises InvalidImport, which names what was changed."""
    if not swarmkeep_proofs.is_package(file):  # type: ignore[no-untyped-call]
        yield None
        return
    if not zipfile.is_zipfile(file):
        raise InvalidImport(swarmkeep_proofs.CUT_OFF)
    with ExitStack() as opened:
        try:
            package = opened.enter_context(zipfile.ZipFile(file))
            signed = swarmkeep_proofs.check_package(package, file)  # type: ignore[no-untyped-call]
            events, heads = (opened.enter_context(package.open(name)) for name in (EVENTS, CHECKPOINT))
            *lines, rest = (package.read(PROOFS) if PROOFS in package.namelist() else b"").split(b"\n")
            if rest:
                raise InvalidImport("the proofs are cut off")
            proofs = [decode(line, Proof) for line in lines]
        except Exception as error:
            # A broken ZIP file makes the standard library raise errors of many kinds.
            raise InvalidImport(f"the package was changed: {error}") from None
        key = None if signed is None else bytes.fromhex(signed)
        yield Package(cast(BinaryIO, events), cast(BinaryIO, heads), proofs, key)


def _add(package: zipfile.ZipFile, name: str, content: IO[bytes], size: int) -> str:
    # What strangers read has no types.
    return str(swarmkeep_proofs.add_member(package, name, content, size))  # type: ignore[no-untyped-call]


def _write_lines(values: Iterable[object] | None) -> Iterable[bytes] | None:
    return None if values is None else (encode(value) + b"\n" for value in values)


def _write_readme(
    name: str,
    sessions: list[PackagedSession],
    asked: Sequence[tuple[str, str]],
    at: str,
    contents: list[tuple[str, str]],
    *,
    has_roles: bool,
    is_signed: bool,
) -> str:
    listed = "\n".join(f"  {one.id}: {one.seq} events, the last has the hash {one.hash}" for one in sessions)
    listed += "".join(
        f"\n  not here: {other}, in which an agent of {session_id} asked another" for session_id, other in asked
    )
    count = "1 session" if len(sessions) == 1 else f"{len(sessions)} sessions"
    roles = f"; roles of keys are in {AUDIT}, where they were made" if has_roles else ""
    here = "".join(f"  {member:<22}{what}\n" for member, what in contents)
    unless = "" if is_signed else " where it has set one, which is not so here"
    return _README.format(count=count, at=at, sessions=listed, package=name, contents=here, roles=roles, unless=unless)
