"""Checkpoints: where every log ended at some time, in a file that is kept elsewhere and may be signed.

One JSON object in a line: first what the file is, then a head for each session and audit log, at last the SHA-256 of
all the lines above, and a signature over it (Ed25519). The bytes themselves are what is digested; nothing is parsed
and written again.
"""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from swarmkeep.events.codec import MalformedJson, decode, encode
from swarmkeep.history.verify import Head, Problems, Verification
from swarmkeep.store.audit import AuditLogEntry
from swarmkeep.store.hashing import AUDIT_LOG, FORMATS, GENESIS, SALT_BYTES, commitment_of, find_format, header_of
from swarmkeep.store.opening import SqlStore

FORMAT = "swarmkeep checkpoint"
VERSION = 1
_SIGNATURE_PREFIX = b"swarmkeep checkpoint v1\n"
_MAX_LINE_BYTES = 100_000
_BAD_SIGNATURE = "the checkpoint's signature is not valid"


class BadCheckpoint(Exception):
    """The file is no whole checkpoint, or not signed as it should be; the sentence says what is wrong."""


class CheckpointHead(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A head in a checkpoint: of a session, or, where `session_id` is null, of a tenant's audit log.

    `tenant` is null if it was a server that was asked, whose key says it. `first` is the hash of an audit log's first
    entry: a database whose audit log begins otherwise is another one, and does not have to hold the sessions.
    """

    tenant: str | None
    session_id: str | None
    seq: int
    hash: str
    first: str | None = None


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """The last line. `public_key` and `signature` are hexadecimal, and null in a checkpoint that is not signed."""

    lines: int
    sha256: str
    public_key: str | None = None
    signature: str | None = None


def write_checkpoint(heads: Iterable[CheckpointHead], at: str, signer: Signer | None) -> Iterator[bytes]:
    """The lines of a checkpoint."""
    digest = hashlib.sha256()
    count = 0
    for line in _write_body(heads, at):
        digest.update(line)
        count += 1
        yield line
    seal = Seal(lines=count, sha256=digest.hexdigest())
    if signer is not None:
        signature = signer.sign(_SIGNATURE_PREFIX + digest.digest())
        seal = msgspec.structs.replace(seal, public_key=signer.public.hex(), signature=signature.hex())
    yield encode(seal) + b"\n"


def _write_body(heads: Iterable[CheckpointHead], at: str) -> Iterator[bytes]:
    yield encode({"format": FORMAT, "version": VERSION, "at": at}) + b"\n"
    for head in heads:
        yield encode(head) + b"\n"


def verify_checkpoint(file: BinaryIO, public_key: bytes | None) -> Seal:
    """The seal of a checkpoint, once the whole file proves to be what it says. Leaves the file at its beginning.

    With `public_key` it must be signed with that key; otherwise a signature must at least be one of the
    key that it names. Raises BadCheckpoint.
    """
    digest = hashlib.sha256()
    count, last = 0, b""
    for line in _read_lines(file):
        if last:
            digest.update(last)
            count += 1
        last = line
    try:
        seal = decode(last, Seal)
    except (MalformedJson, msgspec.ValidationError):
        raise BadCheckpoint("the last line has no digest: the file is not a checkpoint, or was cut off") from None
    if (seal.lines, seal.sha256) != (count, digest.hexdigest()):
        raise BadCheckpoint("the file was changed: it does not match the digest in its last line")
    _check_signature(seal, _SIGNATURE_PREFIX + digest.digest(), public_key)
    file.seek(0)
    return seal


def read_heads(file: BinaryIO, seal: Seal) -> Iterator[CheckpointHead]:
    """The heads of a checkpoint that was checked. Raises BadCheckpoint."""
    for number, line in enumerate(_read_lines(file), start=1):
        if number > seal.lines:
            return
        try:
            if number == 1:
                first = decode(line, dict[str, Any])
                if (first.get("format"), first.get("version")) != (FORMAT, VERSION):
                    raise BadCheckpoint("this release cannot read the file as a checkpoint")
            else:
                yield decode(line, CheckpointHead)
        except (MalformedJson, msgspec.ValidationError):
            raise BadCheckpoint(f"line {number} of the checkpoint is not a head") from None


def _read_lines(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(_MAX_LINE_BYTES):
        if not line.endswith(b"\n"):
            raise BadCheckpoint("the file ends in the middle of a line: it is not a checkpoint, or was cut off")
        yield line


class Signer(NamedTuple):
    """An Ed25519 key: its public half (32 bytes), and what signs with it."""

    public: bytes
    sign: Callable[[bytes], bytes]


def load_signer(path: Path | None) -> Signer | None:
    """The signing key in a PEM file, if there is to be one. Raises BadCheckpoint."""
    if path is None:
        return None
    ed25519, serialization = _import_cryptography()
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise BadCheckpoint(f"the signing key in {path} cannot be used: {error}") from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise BadCheckpoint(f"the signing key in {path} is not an Ed25519 key")
    return Signer(key.public_key().public_bytes_raw(), key.sign)


def _check_signature(seal: Seal, text: bytes, trusted: bytes | None) -> None:
    if seal.public_key is None or seal.signature is None:
        if trusted is not None:
            raise BadCheckpoint("the checkpoint is not signed")
        return
    try:
        named, signature = binascii.unhexlify(seal.public_key), binascii.unhexlify(seal.signature)
    except ValueError:
        raise BadCheckpoint(_BAD_SIGNATURE) from None
    if trusted is not None and named != trusted:
        raise BadCheckpoint("the checkpoint is signed with another key")
    check_ed25519(named, signature, text)


def check_ed25519(public: bytes, signature: bytes, text: bytes) -> None:
    """Raises BadCheckpoint unless the signature is one of the text by this key."""
    ed25519, _ = _import_cryptography()
    from cryptography.exceptions import InvalidSignature

    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):
        raise BadCheckpoint(_BAD_SIGNATURE) from None


def load_public_key(path: Path) -> bytes:
    """The public key in a PEM file, 32 bytes. Raises BadCheckpoint."""
    ed25519, serialization = _import_cryptography()
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadCheckpoint(f"the public key in {path} cannot be used: {error}") from None
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise BadCheckpoint(f"the public key in {path} is not an Ed25519 key")
    raw: bytes = key.public_bytes_raw()
    return raw


def _import_cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise BadCheckpoint("signatures need one more library: pip install 'swarmkeep[signing]'") from None
    return ed25519, serialization


# A tenant's audit log: what was done to sessions that no session's events can tell, because they are gone.

_PAGE_ENTRIES = 500


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a tenant's audit log."""

    seq: int
    """Its number."""
    type: str
    """What was done."""
    by: str | None
    """The API key's id and name (for a decision, only its id); null without keys, for actions in the database itself,
    and for servers."""
    at: str
    """When."""
    data: msgspec.Raw
    """What it was done to, by type."""
    hash: str
    """Chains the entry to those before it."""


def view_entry(entry: AuditLogEntry) -> AuditEntry:
    return AuditEntry(
        seq=entry.seq, type=entry.type, by=entry.by, at=entry.at, data=_read_data(entry.payload), hash=entry.hash.hex()
    )


def _read_data(payload: str) -> msgspec.Raw:
    try:
        decode(payload)
    except MalformedJson:
        # The payload was damaged.
        return msgspec.Raw(encode(payload))
    return msgspec.Raw(payload.encode())


async def verify_audit_log(store: SqlStore, tenant: str, *, noted: Head | None = None) -> Verification:
    """Check a tenant's audit log as a session's events are checked."""
    findings = Problems()
    findings.add_replaced_tables(
        await store.read_snapshot(lambda stored: stored.find_replaced_tables(of_audit_log=True))
    )
    previous, last = GENESIS, 0
    while page := await store.read_audit_log(tenant, after=last, limit=_PAGE_ENTRIES):
        for entry in page:
            if entry.seq != last + 1:
                findings.add("event_missing", f"entry {last + 1} of the audit log is missing", last + 1)
                previous = b""
            last = entry.seq
            header = header_of(entry.seq, entry.type, entry.version, None, entry.by or "", entry.at)
            format = find_format(previous, header, entry.commitment, entry.hash, chain=AUDIT_LOG)
            if previous and format is None:
                findings.add(
                    "hash_differs",
                    f"entry {last} of the audit log: its hash does not match it and the hash before it",
                    last,
                )
            _check_payload(entry, FORMATS if format is None else (format,), findings)
            previous = entry.hash
            if noted is not None and noted.seq == last and noted.hash != entry.hash.hex():
                findings.add("rewritten", f"entry {last} of the audit log had another hash in the earlier head", last)
    if noted is not None and noted.seq > last:
        findings.add(
            "truncated", f"the audit log ends with entry {last}, but the earlier head is entry {noted.seq}", last + 1
        )
    return findings.make_verification(last, Head(seq=last, hash=previous.hex()) if last else None)


def _check_payload(entry: AuditLogEntry, formats: tuple[int, ...], findings: Problems) -> None:
    name = f"entry {entry.seq} of the audit log"
    if all(commitment_of(entry.salt, entry.payload, format) != entry.commitment for format in formats):
        findings.add("payload_differs", f"{name} is not what was recorded", entry.seq)
    if len(entry.salt) != SALT_BYTES:
        findings.add("salt_invalid", f"{name}: its salt has {len(entry.salt)} bytes, not {SALT_BYTES}", entry.seq)
    if not isinstance(_decode_object(entry.payload), dict):
        findings.add("payload_invalid", f"{name} is not a JSON object", entry.seq)
    if not entry.as_written:
        findings.add("row_differs", f"{name}: its row is not written as a server writes it", entry.seq)


def _decode_object(payload: str) -> object:
    try:
        return decode(payload)
    except MalformedJson:
        return None
